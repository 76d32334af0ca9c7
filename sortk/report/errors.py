"""Where a hypothesis is wrong: stretches that are missed, false alarm or confusion, as the DER counts them.

The scorer (`scoring/intervals.py`) sums up; this finds the places, for pictures. Between two neighbouring boundaries of
reference, hypothesis, collars and UEM nothing changes, and with R reference speakers, H hypothesis speakers and C
who are mapped to each other

    missed = R - min(R, H),  false alarm = H - min(R, H),  confusion = min(R, H) - C
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from sortk.records import Region, Segment

Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Mark:
    """A stretch with errors; each kind counts speakers, as several may be wrong at once."""

    start: float
    end: float
    missed: int
    false_alarm: int
    confusion: int


@dataclass(frozen=True, slots=True)
class Errors:
    """Of one session."""

    mapping: Mapping[str, str]
    """Reference speakers, by the hypothesis speakers that stand for them."""
    marks: tuple[Mark, ...]


def find_errors(
    reference: Sequence[Segment],
    hypothesis: Sequence[Segment],
    collar: float = 0.0,
    skip_overlap: bool = False,
    regions: Sequence[Region] | None = None,
) -> Errors:
    """`regions`: what is scored; without them, everything."""
    ref_turns, hyp_turns = merge_turns(reference), merge_turns(hypothesis)
    bounds = [bound for turns in ref_turns.values() for turn in turns for bound in turn]
    collars = [(bound - collar, bound + collar) for bound in bounds] if collar else []
    scored = None if regions is None else [(region.start, region.end) for region in regions]
    spans = [*collars, *(scored or []), *(turn for turns in hyp_turns.values() for turn in turns)]
    edges = np.unique(np.round([*bounds, *(bound for span in spans for bound in span)], 6))
    if len(edges) < 2:
        return Errors({}, ())
    seconds = np.diff(edges)
    refs = np.stack([_covered(edges, turns) for turns in ref_turns.values()] or [np.zeros(len(seconds), bool)])
    hyps = np.stack([_covered(edges, turns) for turns in hyp_turns.values()] or [np.zeros(len(seconds), bool)])
    counts = ~_covered(edges, collars)
    if scored is not None:
        counts &= _covered(edges, scored)
    if skip_overlap:
        counts &= refs.sum(axis=0) < 2
    refs, hyps = refs & counts, hyps & counts
    ref_rows, hyp_rows = _map_speakers(refs, hyps, seconds)
    n_ref, n_hyp = refs.sum(axis=0), hyps.sum(axis=0)
    n_both, n_right = np.minimum(n_ref, n_hyp), (refs[ref_rows] & hyps[hyp_rows]).sum(axis=0)
    mapping = {
        list(hyp_turns)[hyp]: list(ref_turns)[ref]
        for ref, hyp in zip(ref_rows.tolist(), hyp_rows.tolist(), strict=True)
        if (refs[ref] & hyps[hyp]).any()  # who have no time in common are mapped only for want of others
    }
    return Errors(mapping, _join_marks(edges, n_ref - n_both, n_hyp - n_both, n_both - n_right))


def merge_turns(segments: Sequence[Segment]) -> dict[str, list[Span]]:
    """What each speaker says, by arrival; segments that overlap or touch are one, so that none counts twice."""
    turns: dict[str, list[Span]] = {}
    for segment in sorted(segments, key=lambda segment: segment.start):
        own = turns.setdefault(segment.speaker, [])
        start, end = round(segment.start, 6), round(segment.end, 6)
        if own and start <= own[-1][1]:
            own[-1] = own[-1][0], max(own[-1][1], end)
        elif start < end:
            own.append((start, end))
    return {speaker: own for speaker, own in turns.items() if own}


def _covered(edges: npt.NDArray[np.float64], spans: Sequence[Span]) -> npt.NDArray[np.bool_]:
    """Whether each interval between edges lies in one of the spans, whose bounds are edges."""
    covered = np.zeros(len(edges) - 1, bool)
    for first, last in np.searchsorted(edges, np.round(np.reshape(spans, (-1, 2)), 6)).tolist():
        covered[first:last] = True
    return covered


def _map_speakers(
    refs: npt.NDArray[np.bool_], hyps: npt.NDArray[np.bool_], seconds: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Rows of reference and hypothesis: the one-to-one mapping with the most time in common."""
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415 - slow to import

    ref, hyp = linear_sum_assignment((refs * seconds) @ hyps.T.astype(float), maximize=True)
    return ref, hyp


def _join_marks(edges: npt.NDArray[np.float64], *kinds: npt.NDArray[np.int64]) -> tuple[Mark, ...]:
    """The intervals with errors; neighbours of the same kind are one."""
    marks: list[Mark] = []
    for (start, end), (missed, false_alarm, confusion) in zip(
        pairwise(edges.tolist()), np.stack(kinds, axis=1).tolist(), strict=True
    ):
        if not missed + false_alarm + confusion:
            continue
        mark = Mark(start, end, missed, false_alarm, confusion)
        last = marks[-1] if marks else None
        same = last and (last.end, last.missed, last.false_alarm, last.confusion) == (
            start,
            missed,
            false_alarm,
            confusion,
        )
        if last and same:
            marks[-1] = Mark(last.start, end, missed, false_alarm, confusion)
        else:
            marks.append(mark)
    return tuple(marks)
