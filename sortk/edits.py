"""Word errors: the fewest insertions, deletions and substitutions that turn one word sequence into another.

meeteval counts the same to the last insertion, and is the judge in the tests; but it needs a C++ compiler to install.
Several alignments can have the fewest errors, and differ in how many of them are substitutions. Which one is taken
follows meeteval: `count_edits` is the same library for all but very long sequences, `align` and `assign_segments` say
their rule.

The recursion is Levenshtein's. With D[i, j] for the first i words of the reference and j words of the hypothesis,

    D[i, j] = min(D[i-1, j] + 1, D[i, j-1] + 1, D[i-1, j-1] + (0 if the words are equal, else 1))

`align` keeps a row of D as bits, since neighbours differ by at most 1: 200,000 words of one speaker take a minute and
200 MB. `assign_segments` needs D itself. The middle term looks at the same row, so that numpy cannot take a row at
once. But S[i, j] = D[i, j] - j can:

    S[i, j] = min over k <= j of min(S[i-1, k] + 1, S[i-1, k-1] + (-1 if equal, else 0))

is a running minimum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from sortk.records import Counts

Pairs = list[tuple[int | None, int | None]]
"""Indices of a word of the reference and of one of the hypothesis; None where one has no partner."""

Assignment = tuple[tuple[str | None, str | None], ...]
"""Reference and hypothesis speaker; None where one has no partner."""

MAX_LIBRARY_CELLS = 10_000_000  # pairs of words; kaldialign takes 14 ns for each, and cannot be interrupted
MAX_ROW_BITS = 200_000_000  # of the rows of D between two that are kept, unless the root of all rows is more
MAX_MASKS = 1000  # words whose places in the hypothesis are kept

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
    if len(reference) * len(hypothesis) > MAX_LIBRARY_CELLS:
        return _count_pairs(reference, hypothesis, align(reference, hypothesis))
    found = edit_distance(reference, hypothesis)
    return WordErrors(len(reference), int(found["sub"]), int(found["ins"]), int(found["del"]))


def count_timed_edits(reference: TimedWords, hypothesis: TimedWords) -> WordErrors:
    """Return the errors of one word sequence, if only words whose times overlap can be equal or substituted."""
    pairs = align(reference.words, hypothesis.words, (reference, hypothesis))
    return _count_pairs(reference.words, hypothesis.words, pairs)


def _count_pairs(reference: Sequence[str], hypothesis: Sequence[str], pairs: Pairs) -> WordErrors:
    partners = [(ref, hyp) for ref, hyp in pairs if ref is not None and hyp is not None]
    n_ref, n_hyp = len(reference), len(hypothesis)
    wrong = sum(reference[ref] != hypothesis[hyp] for ref, hyp in partners)
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
    rows = _BitRows(reference, hypothesis, times)
    n_ref, j = len(reference), len(hypothesis)
    # Of long sequences every `step`-th row is kept, and those between are computed again: all would fill the memory.
    step = max(math.isqrt(n_ref), MAX_ROW_BITS // (j + 1)) + 1
    row = _Row((1 << j) - 1, (1 << j) - 1, 0, 0)
    starts = [row]
    for i in range(n_ref - 1 - (n_ref - 1) % step if n_ref else 0):
        row = rows.advance(row, i)
        if (i + 1) % step == 0:
            starts.append(row)
    pairs: Pairs = []
    for number, start in reversed([*enumerate(starts)]):
        first = number * step
        mask = (1 << j) - 1  # what is left of a column does not depend on it
        found = [_Row(mask, start.right & mask, start.left & mask, 0)]
        for i in range(first, min(first + step, n_ref)):
            found.append(rows.advance(found[-1], i))
        for i in range(first + len(found) - 2, first - 1, -1):
            row = found[i - first + 1]
            while j and row.right >> (j - 1) & 1:
                j -= 1
                pairs.append((None, j))
            if row.down >> j & 1:
                pairs.append((i, None))
            else:
                j -= 1
                pairs.append((i, j))
    pairs += [(None, left) for left in range(j - 1, -1, -1)]
    return pairs[::-1]


class _Row(NamedTuple):
    """A row of D as differences of neighbours, a bit for each word of the hypothesis."""

    full: int  # a bit for each word
    right: int  # bit j - 1: D[i, j] is D[i, j-1] + 1
    left: int  # bit j - 1: D[i, j] is D[i, j-1] - 1
    down: int  # bit j: D[i, j] is D[i-1, j] + 1


class _BitRows:
    """Rows of D, each from the one above it in some operations on long integers (Myers 1999, Hyyrö 2003).

    A pair costs 2 where the times forbid it, which a deletion and an insertion cost as well.
    """

    def __init__(
        self, reference: Sequence[str], hypothesis: Sequence[str], times: tuple[TimedWords, TimedWords] | None
    ) -> None:
        self._ref, self._hyp = _number_words(reference, hypothesis)
        self._equal = lru_cache(MAX_MASKS)(lambda word: _as_bits(self._hyp == word))
        self._times = None if times is None else tuple((np.array(side.starts), np.array(side.ends)) for side in times)
        if self._times is not None:
            starts, ends = self._times[1]
            self._ends_until = np.maximum.accumulate(ends)
            self._starts_from = np.minimum.accumulate(starts[::-1])[::-1]

    def _match(self, i: int) -> tuple[int, int | None]:
        """Return which words of the hypothesis are word i of the reference, and which may be paired with it (None:
        any)."""
        if self._times is None:
            return self._equal(self._ref[i]), None
        (ref_starts, ref_ends), (hyp_starts, hyp_ends) = self._times
        first = int(np.searchsorted(self._ends_until, ref_starts[i], "right"))
        last = max(first, int(np.searchsorted(self._starts_from, ref_ends[i], "left")))
        near = slice(first, last)  # what overlaps is in here
        overlap = (ref_starts[i] < hyp_ends[near]) & (ref_ends[i] > hyp_starts[near])
        return _as_bits(overlap & (self._hyp[near] == self._ref[i])) << first, _as_bits(overlap) << first

    def advance(self, row: _Row, i: int) -> _Row:
        """Return the row below, for word i of the reference."""
        full, right, left, _ = row
        equal, allowed = self._match(i)
        equal &= full
        # Bit j - 1: D[i, j] is D[i-1, j-1]. The sum carries that on along a run of `right`.
        same = ((((equal & right) + right) ^ right) | equal | left) & full
        up = right & same  # bit j - 1: D[i, j] is D[i-1, j] - 1
        down = left | (full ^ (same | right))
        # Where the times forbid a pair, D grows by 2 if both neighbours are dearer than the cell before the pair.
        dear = 0 if allowed is None else right & (full ^ (same | allowed))
        down = ((down | dear) + down + 1) ^ dear  # moved from bit j - 1 to bit j, carried on along a run of `dear`
        below = down & full
        return _Row(full, up << 1 & full | full ^ (same | below) | dear & below, same & below, down)


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


def _as_bits(flags: npt.NDArray[np.bool]) -> int:
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")


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
