"""Word errors: the fewest insertions, deletions and substitutions that turn one word sequence into another.

meeteval counts the same to the last insertion, and is the judge in the tests; but it needs a C++ compiler to install.
Several alignments can have the fewest errors, and differ in how many of them are substitutions. Which one is taken
follows meeteval: `count_edits` is the same library, the two functions below it say their rule.

The recursion is Levenshtein's. With D[i, j] for the first i words of the reference and j words of the hypothesis,

    D[i, j] = min(D[i-1, j] + 1, D[i, j-1] + 1, D[i-1, j-1] + (0 if the words are equal, else 1))

The middle term looks at the same row, so that numpy cannot take a row at once. But S[i, j] = D[i, j] - j can:

    S[i, j] = min over k <= j of min(S[i-1, k] + 1, S[i-1, k-1] + (-1 if equal, else 0))

is a running minimum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from sortk.records import Counts

Pairs = list[tuple[int | None, int | None]]
"""Indices of a word of the reference and of one of the hypothesis; None where one has no partner."""

Assignment = tuple[tuple[str | None, str | None], ...]
"""Reference and hypothesis speaker; None where one has no partner."""

Costs = npt.NDArray[np.signedinteger]
Words = TypeVar("Words")


@dataclass(frozen=True, slots=True)
class WordErrors(Counts):
    """Counts that add up."""

    words: int = 0  # of the reference
    substitutions: int = 0
    insertions: int = 0
    deletions: int = 0

    @property
    def wrong(self) -> int:
        return self.substitutions + self.insertions + self.deletions

    @property
    def rate(self) -> float:
        """As a fraction of the reference: infinite if that has no words, but something is inserted."""
        if self.words:
            return self.wrong / self.words
        return math.inf if self.wrong else 0.0


@dataclass(frozen=True, slots=True)
class TimedWords:
    """Words with their times: words of two sides may only match where their times overlap."""

    words: tuple[str, ...]
    starts: tuple[float, ...]
    ends: tuple[float, ...]


def count_edits(reference: Sequence[str], hypothesis: Sequence[str]) -> WordErrors:
    """Return the errors of one word sequence."""
    from kaldialign import edit_distance  # noqa: PLC0415 - few commands count words

    if not reference:
        return WordErrors(insertions=len(hypothesis))
    found = edit_distance(reference, hypothesis)
    return WordErrors(len(reference), int(found["sub"]), int(found["ins"]), int(found["del"]))


def count_timed_edits(reference: TimedWords, hypothesis: TimedWords) -> WordErrors:
    """Return the errors of one word sequence, if only words whose times overlap can be equal or substituted."""
    pairs = align(reference.words, hypothesis.words, (reference, hypothesis))
    partners = [(ref, hyp) for ref, hyp in pairs if ref is not None and hyp is not None]
    n_ref, n_hyp = len(reference.words), len(hypothesis.words)
    wrong = sum(reference.words[ref] != hypothesis.words[hyp] for ref, hyp in partners)
    return WordErrors(n_ref, wrong, n_hyp - len(partners), n_ref - len(partners))


def match_speakers(
    reference: Mapping[str, Words],
    hypothesis: Mapping[str, Words],
    count: Callable[[Words, Words], WordErrors],
    nothing: Words,
) -> tuple[WordErrors, Assignment]:
    """Return the errors when speakers are mapped so that errors are fewest (the Hungarian method), and the mapping.
    `nothing` is what a speaker says who is not there."""
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415 - slow to import

    n_speakers = max(len(reference), len(hypothesis))
    spoken, found = ([*side.values()] + [nothing] * (n_speakers - len(side)) for side in (reference, hypothesis))
    errors = [[count(ref, hyp) for hyp in found] for ref in spoken]
    costs = np.array([[each.wrong for each in row] for row in errors]).reshape(n_speakers, n_speakers)
    rows, columns = (places.tolist() for places in linear_sum_assignment(costs))
    names = [dict(enumerate(side)) for side in (reference, hypothesis)]
    assignment = tuple((names[0].get(row), names[1].get(column)) for row, column in zip(rows, columns, strict=True))
    return sum((errors[row][column] for row, column in zip(rows, columns, strict=True)), WordErrors()), assignment


def align(
    reference: Sequence[str], hypothesis: Sequence[str], times: tuple[TimedWords, TimedWords] | None = None
) -> Pairs:
    """Return the pairs of an alignment with the fewest errors, in order.

    Of several, the one that, from the end on, takes an insertion rather than a deletion, and that rather than a pair.
    """
    ref, hyp = _number_words(reference, hypothesis)
    # What a pair costs: 2 where the times forbid it, which a deletion and an insertion cost as well.
    differs = np.ones((len(ref), len(hyp)), np.int8)
    differs[ref[:, None] == hyp] = 0
    if times is not None:
        (ref_starts, ref_ends), (hyp_starts, hyp_ends) = (
            (np.array(side.starts), np.array(side.ends)) for side in times
        )
        differs[(ref_starts[:, None] >= hyp_ends) | (ref_ends[:, None] <= hyp_starts)] = 2
    costs = _fill(np.arange(len(hyp) + 1, dtype=_choose_type(len(ref) + len(hyp))), differs)
    pairs: Pairs = []
    i, j = len(ref), len(hyp)
    while i or j:
        insertion = costs[i, j - 1] + 1 if j else math.inf
        deletion = costs[i - 1, j] + 1 if i else math.inf
        pair = costs[i - 1, j - 1] + differs[i - 1, j - 1] if i and j else math.inf
        if pair < min(insertion, deletion):  # never where the times forbid it
            i, j = i - 1, j - 1
            pairs.append((i, j))
        elif deletion < insertion:
            i -= 1
            pairs.append((i, None))
        else:
            j -= 1
            pairs.append((None, j))
    return pairs[::-1]


def assign_segments(segments: Sequence[Sequence[str]], streams: Sequence[Sequence[str]]) -> list[int]:
    """Return the stream that each segment of the reference goes to, so that all streams together have the fewest errors
    (the optimal reference combination, ORC). Segments have at least one word.

    D has an index per stream: D_u[j_1, ..., j_K] are the fewest errors of the first u segments against the first j_k
    words of each stream k. A segment that goes to stream k moves D along that axis alone, as above, and D_u is the
    minimum over k. All D_u are kept, and the choices are found from the end. Of several: the first of the streams, and
    within one, from the end on, a match, or else an insertion rather than a deletion, and that rather than a pair.
    """
    if len(streams) == 1:
        return [0] * len(segments)
    numbered = _number_words(*segments, *streams)
    refs, hyps = numbered[: len(segments)], numbered[len(segments) :]
    dtype = _choose_type(sum(map(len, numbered)))
    shifted = [np.zeros([len(hyp) + 1 for hyp in hyps], dtype)]  # D - j_1 - ... - j_K
    for ref in refs:
        best = _advance(shifted[-1], ref, hyps[0], 0)
        for axis, hyp in enumerate(hyps[1:], start=1):
            np.minimum(best, _advance(shifted[-1], ref, hyp, axis), out=best)
        shifted.append(best)
    ends, chosen = [len(hyp) for hyp in hyps], []
    for before, ref in zip(shifted[-2::-1], refs[::-1], strict=True):
        grids = []
        for axis, hyp in enumerate(hyps):
            line = before[tuple(slice(end + 1) if k == axis else end for k, end in enumerate(ends))]
            others = sum(ends) - ends[axis]
            differs = (ref[:, None] != hyp[: ends[axis]]).astype(np.int8)
            grids.append((_fill(line + np.arange(len(line), dtype=dtype) + others, differs), differs))
        axis = min(range(len(hyps)), key=lambda k: int(grids[k][0][-1, -1]))
        chosen.append(axis)
        ends[axis] = _find_start(*grids[axis])
    return chosen[::-1]


def _number_words(*sides: Sequence[str]) -> list[npt.NDArray[np.int64]]:
    """Return each side with a number in place of each word."""
    numbers: dict[str, int] = {}
    return [np.array([numbers.setdefault(word, len(numbers)) for word in side], np.int64) for side in sides]


def _choose_type(largest: int) -> type[np.signedinteger]:
    return np.int16 if largest < 32_000 else np.int32


def _fill(first: Costs, differs: npt.NDArray[np.int8]) -> Costs:
    """Return D, (n_ref + 1, n_hyp + 1), from its first row, (n_hyp + 1,), and what each pair costs, (n_ref, n_hyp)."""
    place = np.arange(len(first), dtype=first.dtype)
    costs = np.empty((len(differs) + 1, len(first)), first.dtype)
    costs[0] = first - place
    for before, after, row in zip(costs, costs[1:], differs, strict=False):
        np.add(before, 1, out=after)
        np.minimum(after[1:], before[:-1] + (row - 1), out=after[1:])
        np.minimum.accumulate(after, out=after)
    return costs + place


def _advance(shifted: Costs, ref: npt.NDArray[np.int64], hyp: npt.NDArray[np.int64], axis: int) -> Costs:
    """Return D - j_1 - ... - j_K after a segment that goes to the stream of this axis."""
    shape = [-1 if k == axis else 1 for k in range(shifted.ndim)]
    behind, before = (
        tuple(part if k == axis else slice(None) for k in range(shifted.ndim)) for part in (slice(1, None), slice(-1))
    )
    for word in ref:
        after = shifted + shifted.dtype.type(1)
        paired = shifted[before] - (hyp == word).astype(shifted.dtype).reshape(shape)
        np.minimum(after[behind], paired, out=after[behind])
        shifted = np.minimum.accumulate(after, axis=axis)
    return shifted


def _find_start(costs: Costs, differs: npt.NDArray[np.int8]) -> int:
    """Return where in its first row the path to the last cell of D begins."""
    i, j = len(differs), len(differs.T)
    while i:
        if j == 0:
            return 0
        pair, deletion, insertion = costs[i - 1, j - 1], costs[i - 1, j], costs[i, j - 1]
        if not differs[i - 1, j - 1] or pair < min(deletion, insertion):
            i, j = i - 1, j - 1
        elif deletion < insertion:
            i -= 1
        else:
            j -= 1
    return j
