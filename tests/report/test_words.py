from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from meeteval.wer.wer.siso import siso_word_error_rate

from sortk.report.experiment import align_words


def test_words_side_by_side() -> None:
    aligned = align_words(["my", "sister", "has", "nine", "horses"], ["sister", "has", "five", "horses", "now"])
    same = ("sister", "sister"), ("has", "has")
    assert aligned == [("my", None), *same, ("nine", "five"), ("horses", "horses"), (None, "now")]
    assert align_words([], ["a"]) == [(None, "a")] and align_words(["a"], []) == [("a", None)]


some_words = st.lists(st.sampled_from("abcd"), max_size=12)


@settings(max_examples=60, deadline=None)
@given(some_words, some_words)
def test_the_errors_are_as_few_as_the_word_error_rate_counts(reference: list[str], hypothesis: list[str]) -> None:
    aligned = align_words(reference, hypothesis)
    assert [word for word, _ in aligned if word] == reference and [word for _, word in aligned if word] == hypothesis
    fewest = siso_word_error_rate(" ".join(reference), " ".join(hypothesis)).errors
    assert sum(said != heard for said, heard in aligned) == fewest
