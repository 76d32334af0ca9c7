"""What was said against what was heard, word by word, as cpWER aligns it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sortk.edits import align

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
    return [
        (None if ref is None else reference[ref], None if hyp is None else hypothesis[hyp])
        for ref, hyp in align(reference, hypothesis)
    ]
