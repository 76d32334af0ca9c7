"""Stretches of time in whole microseconds, so that the pieces of a recording add up to it exactly."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

Span = tuple[int, int]
"""Start and end in microseconds, which is also what RTTM and SegLST files resolve."""


def to_us(seconds: float) -> int:
    return round(seconds * 1e6)


def to_seconds(us: int) -> float:
    return us / 1e6


def length(spans: Iterable[Span]) -> int:
    """Of all spans together."""
    return sum(end - start for start, end in spans)


def merge(spans: Iterable[Span]) -> list[Span]:
    """The spans in order, those that overlap or touch joined."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def clip(spans: Sequence[Span], start: int, end: int) -> list[Span]:
    """What lies inside [start, end] of spans that are in order and do not overlap."""
    first = bisect_right(spans, start, key=lambda span: span[1])
    last = bisect_left(spans, end, key=lambda span: span[0])
    return [(max(span[0], start), min(span[1], end)) for span in spans[first:last]]


def intersect(spans: Iterable[Span], others: Sequence[Span]) -> list[Span]:
    """What lies inside both; each in order and without overlaps."""
    return [both for start, end in spans for both in clip(others, start, end)]


class Stretch(NamedTuple):
    """A stretch of time in which the number of speakers does not change."""

    start: int
    end: int
    n_speakers: int


class Profile:
    """How many speak when: a step function of time, zero before the first and after the last span."""

    def __init__(self, spans: Iterable[Span]) -> None:
        changes: Counter[int] = Counter()
        for start, end in spans:
            changes[start] += 1
            changes[end] -= 1
        self._times: list[int] = []
        self._counts: list[int] = []  # from the time of the same index on
        count = 0
        for time in sorted(time for time, change in changes.items() if change):
            count += changes[time]
            self._times.append(time)
            self._counts.append(count)

    def count_before(self, time: int) -> int:
        """How many speak immediately before."""
        index = bisect_left(self._times, time) - 1
        return self._counts[index] if index >= 0 else 0

    def stretches(self, start: int, end: int) -> list[Stretch]:
        """All of [start, end] in order; a single moment if both are the same."""
        index = bisect_right(self._times, start) - 1
        found, at = [], start
        while index + 1 < len(self._times) and self._times[index + 1] < end:
            found.append(Stretch(at, self._times[index + 1], self._counts[index] if index >= 0 else 0))
            index, at = index + 1, self._times[index + 1]
        return [*found, Stretch(at, end, self._counts[index] if index >= 0 else 0)]
