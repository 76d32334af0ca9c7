"""What was said against what was heard, word by word, as cpWER aligns it (by meeteval)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

SpeakerWords = Callable[[str], Mapping[str, Sequence[str]]]
"""From a serialized transcript to the words of each speaker, as they are scored."""

Pair = tuple[str | None, str | None]
"""A word of the reference and one of the hypothesis; None where one has no partner."""


def align_speakers(
    reference: Mapping[str, Sequence[str]],
    hypothesis: Mapping[str, Sequence[str]],
    assignment: Sequence[tuple[str | None, str | None]],
) -> list[tuple[str | None, str | None, list[Pair]]]:
    """For each pair of speakers that cpWER takes for one another, their words side by side."""
    return [
        (ref, hyp, align_words(reference.get(ref or "", ()), hypothesis.get(hyp or "", ()))) for ref, hyp in assignment
    ]


def align_words(reference: Sequence[str], hypothesis: Sequence[str]) -> list[Pair]:
    """With the fewest errors."""
    from meeteval.wer.wer.time_constrained import align  # noqa: PLC0415 - slow to import

    if not reference or not hypothesis:
        return [*((word, None) for word in reference), *((None, word) for word in hypothesis)]
    # Its alignment obeys times; a collar longer than the text lets any word meet any other.
    found = align(
        _entries(reference),
        _entries(hypothesis),
        collar=len(reference) + len(hypothesis),
        reference_pseudo_word_level_timing="none",
        hypothesis_pseudo_word_level_timing="none",
        reference_sort=False,
        hypothesis_sort=False,
        style="index",
    )
    return [(None if ref is None else reference[ref], None if hyp is None else hypothesis[hyp]) for ref, hyp in found]


def _entries(words: Sequence[str]) -> list[dict[str, Any]]:
    return [{"words": word, "start_time": place, "end_time": place + 1} for place, word in enumerate(words)]
