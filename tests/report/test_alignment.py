from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from meeteval.wer.wer.siso import siso_word_error_rate

from sortk.report.alignment import align_speakers, align_words


def test_words_side_by_side() -> None:
    aligned = align_words(["my", "sister", "has", "nine", "horses"], ["sister", "has", "five", "horses", "now"])
    same = ("sister", "sister"), ("has", "has")
    assert aligned == [("my", None), *same, ("nine", "five"), ("horses", "horses"), (None, "now")]
    assert align_words([], ["a"]) == [(None, "a")] and align_words(["a"], []) == [("a", None)]


def test_each_speaker_against_the_one_who_is_taken_for_him() -> None:
    aligned = align_speakers({"spk0": ["a"], "spk1": ["b"]}, {"spk0": ["b"]}, [("spk0", None), ("spk1", "spk0")])
    assert aligned == [("spk0", None, [("a", None)]), ("spk1", "spk0", [("b", "b")])]


some_words = st.lists(st.sampled_from("abcd"), max_size=12)


@settings(max_examples=60, deadline=None)
@given(some_words, some_words)
def test_the_errors_are_as_few_as_the_word_error_rate_counts(reference: list[str], hypothesis: list[str]) -> None:
    aligned = align_words(reference, hypothesis)
    assert [word for word, _ in aligned if word] == reference and [word for _, word in aligned if word] == hypothesis
    fewest = siso_word_error_rate(" ".join(reference), " ".join(hypothesis)).errors
    assert sum(said != heard for said, heard in aligned) == fewest
