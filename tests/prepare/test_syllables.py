from __future__ import annotations

import itertools
from typing import get_args

import pyphen
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sortk.prepare.syllables import (
    WordRule,
    approximate_word_times,
    find_language,
    read_aloud,
    weigh_word,
)
from sortk.records import Word

RULES: tuple[WordRule, ...] = get_args(WordRule)


# ---------------------------------------------------------------------------------------------------------------------
# Times


def test_the_equations_of_the_paper() -> None:
    # pyphen: con-ver-sa-tion, is, ta-ble: N = 4 + 1 + 2 = 7 syllables in l = 3.5 s, so lambda = 0.5 s.
    words = approximate_word_times(["conversation", "is", "table"], 10.0, 13.5, rule="hyphenation")
    assert words == [Word("conversation", 10.0, 12.0), Word("is", 12.0, 12.5), Word("table", 12.5, 13.5)]


def test_letters() -> None:
    words = approximate_word_times(["abc", "d"], 1.0, 2.0, rule="letters")
    assert words == [Word("abc", 1.0, 1.75), Word("d", 1.75, 2.0)]


def test_sounds() -> None:
    # the: 0.5 + vowel + th = 2.5; cat: 2 + vowel + c + t = 5; um: 5 + vowel + m = 7; sat,: 2 + 3 + a pause of 2 = 7;
    # x: 2 + vowel + k + s = 5. N = 26.5 in l = 2.65 s, so lambda = 0.1 s.
    words = approximate_word_times(["the", "cat", "um", "sat,", "x"], 0.0, 2.65)
    assert [round(word.start, 6) for word in words] == [0.0, 0.25, 0.75, 1.45, 2.15]
    assert words[-1].end == 2.65


def test_no_words_and_one_word() -> None:
    assert approximate_word_times([], 1.0, 2.0) == []
    assert approximate_word_times(["extraordinary"], 1.0, 2.0) == [Word("extraordinary", 1.0, 2.0)]


def test_capitals_count_only_beside_small_letters() -> None:
    shout = approximate_word_times(["THE", "TV", "IS", "ON"], 0.0, 1.0)
    quiet = approximate_word_times(["the", "tv", "is", "on"], 0.0, 1.0)
    mixed = approximate_word_times(["the", "TV", "is", "on"], 0.0, 1.0)
    assert [word.start for word in shout] == [word.start for word in quiet]
    assert mixed[2].start > quiet[2].start
    assert shout[1].text == "TV"


@settings(deadline=None)  # the first word of a language loads its dictionary
@given(
    words=st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=30),
    start=st.floats(0, 1e6),
    seconds=st.floats(1e-3, 1e4),
    rule=st.sampled_from(RULES),
    lang=st.sampled_from(["en_US", "de_DE", "fr", "ru", "th"]),
)
def test_words_fill_the_segment_in_order(
    words: list[str], start: float, seconds: float, rule: WordRule, lang: str
) -> None:
    times = approximate_word_times(words, start, start + seconds, lang, rule)
    assert [word.text for word in times] == words
    assert times[0].start == start
    assert times[-1].end == start + seconds
    assert all(word.start <= word.end for word in times)
    assert all(word.end == after.start for word, after in itertools.pairwise(times))


# ---------------------------------------------------------------------------------------------------------------------
# Counts


@pytest.mark.parametrize(
    ("n_syllables", "words"),
    [
        (1, "time are whole walked times league you're don't aren't"),
        (1, "a yes eyes played scared hmm brr nth shh"),
        (2, "table centre hundred wanted boxes pages maybe safely something every nineteen ninety city beyond player"),
        (2, "being going trying quiet science unique didn't it'll it'd boss's prism rhythm playing nation"),
        (3, "area banana radio basically usual easier beautiful"),
        (4, "conversation titanium reality"),
        (5, "university opportunity"),
    ],
)
def test_english(n_syllables: int, words: str) -> None:
    assert {word: weigh_word(word, rule="syllables") for word in words.split()} == dict.fromkeys(
        words.split(), n_syllables
    )


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("1999", "nineteen ninety nine"),
        ("1905", "nineteen oh five"),
        ("1900", "nineteen hundred"),
        ("2000", "two thousand"),
        ("2024", "twenty twenty four"),
        ("3.5", "three point five"),
        ("24th", "twenty four"),
        ("1990s", "nineteen ninety"),
        ("10:30", "ten thirty"),
        ("1,250,000", "one million two hundred fifty thousand"),
        ("007", "zero zero seven"),
        ("0", "zero"),
        ("4k", "four kay"),
        ("24-bit", "twenty four bit"),
        ("well-known", "well known"),
        ("don't", "don't"),
        ("don’t", "don't"),
        ("I'm", "i'm"),
        ("O'Brien", "o'brien"),
        ("McDonald", "mcdonald"),
        ("TV", "tee vee"),
        ("TVs", "tee vee"),
        ("TV's", "tee vee"),
        ("PhD", "pee aitch dee"),
        ("U.S.", "you ess"),
        ("USA", "you ess ay"),
        ("WWW", "doubleyou doubleyou doubleyou"),
        ("HTML", "aitch tee em ell"),
        ("NVIDIA", "en vidia"),
        ("JPEG", "jay peg"),
        ("NASA", "nasa"),
        ("I", "i"),
        ("b", "bee"),
        ("(hello)", "hello"),
        ("café", "café"),
        ("—", ""),
        ("...", ""),
        ("", ""),
    ],
)
def test_reading_aloud(word: str, said: str) -> None:
    assert read_aloud(word, "en_US") == said.split()


@pytest.mark.parametrize(
    ("word", "n_syllables"),
    [("1999", 5), ("3.5", 3), ("24th", 3), ("W", 3), ("TV", 2), ("U.S.", 2), ("NVIDIA", 4), ("café", 2), ("naïve", 2)],
)
def test_odd_english_words(word: str, n_syllables: int) -> None:
    assert weigh_word(word, rule="syllables") == n_syllables


@pytest.mark.parametrize("word", ["", " ", "-", "...", "?!", "hmm", "brr", "nth", "_", "♪", "\u0301"])
@pytest.mark.parametrize("lang", ["en_US", "de", "ru"])
def test_at_least_one_syllable(word: str, lang: str) -> None:
    assert weigh_word(word, lang, "syllables") == 1
    assert weigh_word(word, lang, "hyphenation") == 1
    assert all(weigh_word(word, lang, rule) >= 1 for rule in RULES)


@pytest.mark.parametrize(
    ("lang", "word", "n_syllables"),
    [
        ("en_US", "东京", 2),
        ("en_US", "こんにちは", 5),
        ("en_US", "きょう", 2),
        ("en_US", "コーヒー", 4),
        ("en_US", "안녕하세요", 5),
        ("en_US", "\u110b\u1161\u11ab\u1102\u1167\u11bc", 2),  # the same as 안녕, decomposed
        ("ru_RU", "объективность", 4),
        ("ru_RU", "США", 3),
        ("uk_UA", "їжак", 2),
        ("bg_BG", "България", 4),
        ("el_GR", "καλημέρα", 4),
        ("el_GR", "ουρανός", 3),
        ("mr_IN", "नमस्ते", 3),
        ("te_IN", "తెలుగు", 3),
        ("en_US", "السلام", 3),
        ("en_US", "שלום", 2),
        ("th_TH", "สวัสดี", 2),
        ("de_DE", "Bundesrepublik", 5),
        ("de_DE", "Äpfel", 2),
        ("fr", "table", 1),
        ("fr", "été", 2),
        ("fr", "parlent", 1),
        ("es", "día", 2),
        ("hu_HU", "magyar", 2),
        ("cs_CZ", "vlk", 1),
        ("pl_PL", "dzień", 1),
        ("de_DE", "1999", 8),  # two a digit; it is "neunzehnhundertneunundneunzig"
        ("de_DE", "BMW", 3),
    ],
)
def test_other_languages_and_scripts(lang: str, word: str, n_syllables: int) -> None:
    assert weigh_word(word, lang, "syllables") == n_syllables


def test_the_plain_rule_is_pyphens() -> None:
    for word in ("well", "idea", "banana", "conversation", "area"):
        assert weigh_word(word, rule="hyphenation") == pyphen.Pyphen(lang="en_US").inserted(word).count("-") + 1
    assert weigh_word("“conversation,”", rule="hyphenation") == 4


@settings(deadline=None)  # the first word of a language loads its dictionary
@given(st.text(max_size=20), st.sampled_from(sorted(pyphen.LANGUAGES)), st.sampled_from(RULES))
def test_every_word_has_a_length_in_every_language(word: str, lang: str, rule: WordRule) -> None:
    assert 1 <= weigh_word(word, lang, rule) < 1000


# ---------------------------------------------------------------------------------------------------------------------
# Errors


@pytest.mark.parametrize(("lang", "language"), [("en_US", "en_US"), ("en-us", "en_US"), ("de_LU", "de"), ("fr", "fr")])
def test_languages_have_several_names(lang: str, language: str) -> None:
    assert find_language(lang) == language


@pytest.mark.parametrize(
    ("lang", "close"), [("english", "en_US"), ("deu", "de_DE"), ("", "languages: af"), ("zh", "Chinese")]
)
def test_an_unknown_language_is_named_with_close_ones(lang: str, close: str) -> None:
    with pytest.raises(ValueError, match=f"unknown language '{lang}'.*{close}"):
        approximate_word_times(["a", "b"], 0.0, 1.0, lang)


def test_an_unknown_rule_is_named() -> None:
    with pytest.raises(ValueError, match=r"unknown rule 'vowels'.*sounds, syllables, hyphenation, letters"):
        weigh_word("a", rule="vowels")
