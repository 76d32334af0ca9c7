from __future__ import annotations

from collections import Counter

from sortk.corpora.sentences import GRAMMAR, MAX_WORDS, make_sentence, vocabulary

SENTENCES = [make_sentence(0, f"speaker{number % 20}", number) for number in range(2000)]


def test_a_sentence_follows_from_seed_speaker_and_index() -> None:
    assert make_sentence(3, "anna", 7) == make_sentence(3, "anna", 7)
    nearby = {make_sentence(seed, name, index).spoken for seed in (0, 1) for name in ("a", "b") for index in range(50)}
    assert len(nearby) > 120  # the rest are back-channels, which repeat


def test_a_sentence_is_the_same_in_every_version_of_sortk() -> None:
    assert [make_sentence(0, "f1-en-us", index).spoken for index in range(3)] == [
        "well, yeah.",
        "first we fed the cat, and after that julia traveled to dublin by plane.",
        "listen, i need a new piano.",
    ]


def test_transcripts_hold_lower_case_words_and_apostrophes_only() -> None:
    for sentence in SENTENCES:
        assert set(sentence.text) <= set("abcdefghijklmnopqrstuvwxyz' ")
        assert sentence.text.split() == sentence.words


def test_word_positions_point_at_the_words() -> None:
    for sentence in SENTENCES:
        for word, position in zip(sentence.words, sentence.word_positions, strict=True):
            assert sentence.spoken[position : position + len(word)] == word


def test_the_vocabulary_has_about_500_words_and_nearly_all_are_used() -> None:
    words = vocabulary()
    used = {word for sentence in SENTENCES for word in sentence.words}
    assert 450 <= len(words) <= 550
    assert used <= words
    assert len(used) > 0.95 * len(words)


def test_lengths_are_those_of_conversation() -> None:
    lengths = Counter(len(sentence.words) for sentence in SENTENCES)
    share = {length: count / len(SENTENCES) for length, count in lengths.items()}
    assert 0.15 < share[1] + share[2] < 0.25
    assert 0.4 < sum(share[length] for length in range(4, 9)) < 0.65
    assert 0.1 < sum(share.get(length, 0) for length in range(12, MAX_WORDS + 1)) < 0.3
    assert max(lengths) <= MAX_WORDS


def test_nobody_says_rice_and_rice() -> None:
    foods = set(GRAMMAR["food"])
    for sentence in SENTENCES:
        eaten = [word for word in sentence.words if word in foods]
        assert len(eaten) == len(set(eaten)), sentence.spoken


def test_fewer_alternatives_leave_fewer_words() -> None:
    few = {word for index in range(2000) for word in make_sentence(0, "anna", index, alternatives=4).words}
    assert few < vocabulary(alternatives=4) < vocabulary()
    assert len(few) == 132
    assert "yeah" in few  # the first back-channel
    assert "fish" not in few  # the ninth food
