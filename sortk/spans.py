"""Spans of time in integer microseconds, so that the pieces of a recording add up exactly; the number of speakers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sortk.records import Segment

Span = tuple[int, int]
"""Start and end in microseconds, the resolution of RTTM and SegLST files."""


def to_us(seconds: float) -> int:
    return round(seconds * 1e6)


def to_seconds(us: int) -> float:
    return us / 1e6


def length(spans: Iterable[Span]) -> int:
    """Return the sum of the lengths of all spans."""
    return sum(end - start for start, end in spans)


def merge(spans: Iterable[Span]) -> list[Span]:
    """Return the spans in order, those that overlap or touch joined."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def clip(spans: Sequence[Span], start: int, end: int) -> list[Span]:
    """Return the parts inside [start, end] of spans that are in order and do not overlap."""
    first = bisect_right(spans, start, key=lambda span: span[1])
    last = bisect_left(spans, end, key=lambda span: span[0])
    return [(max(span[0], start), min(span[1], end)) for span in spans[first:last]]


def intersect(spans: Iterable[Span], others: Sequence[Span]) -> list[Span]:
    """Return what is inside both; each is in order and without overlaps."""
    return [both for start, end in spans for both in clip(others, start, end)]


def gaps(spans: Sequence[Span], start: int, end: int) -> list[Span]:
    """Return the parts of [start, end] that no span holds; the spans are in order and do not overlap."""
    edges = [start, *(edge for span in clip(spans, start, end) for edge in span), end]
    return [(first, last) for first, last in zip(edges[::2], edges[1::2], strict=True) if last > first]


class Stretch(NamedTuple):
    """A span in which the number of speakers does not change."""

    start: int
    end: int
    n_speakers: int


class Profile:
    """The number of speakers over time: a step function, zero before the first and after the last span.

    This is the one sweep over boundaries. `scoring/intervals.py` has its own for many sessions at once, in numpy.
    """

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
        """Return the number of speakers immediately before a time."""
        index = bisect_left(self._times, time) - 1
        return self._counts[index] if index >= 0 else 0

    def at_least(self, n_speakers: int) -> list[Span]:
        """Return the spans with at least so many speakers."""
        if not self._times:
            return []
        found = self.stretches(self._times[0], self._times[-1])
        return merge((start, end) for start, end, count in found if count >= n_speakers)

    def stretches(self, start: int, end: int) -> list[Stretch]:
        """Return the stretches of [start, end] in order; a single moment if both are the same."""
        index = bisect_right(self._times, start) - 1
        found, at = [], start
        while index + 1 < len(self._times) and self._times[index + 1] < end:
            found.append(Stretch(at, self._times[index + 1], self._counts[index] if index >= 0 else 0))
            index, at = index + 1, self._times[index + 1]
        return [*found, Stretch(at, end, self._counts[index] if index >= 0 else 0)]


def speaker_turns(segments: Iterable[Segment]) -> dict[str, list[Span]]:
    """Return the turns of each speaker, by arrival; segments of a speaker that overlap or touch are one turn."""
    turns: dict[str, list[Span]] = {}
    for segment in sorted(segments, key=lambda segment: segment.start):
        start, end = to_us(segment.start), to_us(segment.end)
        if start < end:
            turns.setdefault(segment.speaker, []).append((start, end))
    return {speaker: merge(own) for speaker, own in turns.items()}


def count_speakers(segments: Iterable[Segment]) -> Profile:
    """Return the number of speakers over time."""
    return Profile(turn for turns in speaker_turns(segments).values() for turn in turns)


@dataclass(frozen=True, slots=True)
class Activity:
    """How much of a session is speech, in seconds."""

    n_speakers: int
    duration: float
    speech: float  # at least one speaker
    overlap: float  # at least two

    @property
    def overlap_ratio(self) -> float:
        """Time with two or more speakers over time with at least one."""
        return self.overlap / self.speech if self.speech else 0.0

    @property
    def silence_ratio(self) -> float:
        """Time with no speaker over the duration."""
        return max(0.0, 1 - self.speech / self.duration) if self.duration else 0.0


def measure_activity(segments: Iterable[Segment], duration: float) -> Activity:
    """Return how much of a session is speech and overlap."""
    segments = list(segments)
    profile = count_speakers(segments)
    speech, overlap = (to_seconds(length(profile.at_least(count))) for count in (1, 2))
    return Activity(len({segment.speaker for segment in segments}), duration, speech, overlap)
