"""Spans of time, and how many speak when."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sortk.records import Segment
from sortk.spans import (
    Profile,
    Span,
    Stretch,
    clip,
    gaps,
    intersect,
    measure_activity,
    merge,
    speaker_turns,
    to_seconds,
    to_us,
)

spans = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40)).map(lambda pair: (pair[0], sum(pair))), max_size=25)


def turns(*spans: tuple[str, float, float]) -> list[Segment]:
    return [Segment("s", *span) for span in spans]


def test_spans_by_hand() -> None:
    assert merge([(5, 7), (0, 2), (2, 3), (6, 9)]) == [(0, 3), (5, 9)]
    assert clip([(0, 3), (5, 9), (12, 13)], 3, 8) == [(5, 8)]
    assert intersect([(0, 4), (6, 10)], [(2, 7), (8, 9)]) == [(2, 4), (6, 7), (8, 9)]
    assert to_us(to_seconds(1_113_845_375)) == 1_113_845_375


def test_a_profile_counts_speakers() -> None:
    profile = Profile([(10, 20), (15, 30), (30, 40)])
    assert profile.stretches(0, 35) == [(0, 10, 0), (10, 15, 1), (15, 20, 2), (20, 35, 1)]
    assert profile.stretches(15, 15) == [Stretch(15, 15, 2)]
    assert profile.stretches(50, 60) == [(50, 60, 0)]
    assert [profile.count_before(time) for time in (10, 11, 20, 40, 41)] == [0, 1, 2, 1, 0]


@given(spans, spans)
@settings(deadline=None)
def test_spans_agree_with_counting_every_moment(first: list[Span], second: list[Span]) -> None:
    def moments(some: list[Span]) -> set[int]:
        return {moment for start, end in some for moment in range(start, end)}

    merged, other = merge(first), merge(second)
    assert moments(merged) == moments(first)
    assert all(before[1] < after[0] for before, after in pairwise(merged))
    assert moments(intersect(merged, other)) == moments(first) & moments(second)
    for start, end, count in Profile(first).stretches(5, 320):
        for moment in range(start, end):
            assert count == sum(span[0] <= moment < span[1] for span in first)


def test_gaps_are_what_spans_leave() -> None:
    assert gaps([(2, 3), (5, 9), (12, 13)], 0, 20) == [(0, 2), (3, 5), (9, 12), (13, 20)]
    assert gaps([(0, 3), (5, 9)], 2, 8) == [(3, 5)]
    assert gaps([], 1, 4) == [(1, 4)] and gaps([(0, 9)], 1, 4) == []


def test_where_several_speak() -> None:
    profile = Profile([(10, 20), (15, 30), (18, 40), (50, 60)])
    assert profile.at_least(1) == [(10, 40), (50, 60)]
    assert profile.at_least(2) == [(15, 30)] and profile.at_least(3) == [(18, 20)] and profile.at_least(4) == []
    assert Profile([]).at_least(1) == []


def test_segments_of_one_speaker_that_touch_are_one_turn() -> None:
    found = turns(("bob", 5, 6), ("ann", 1, 2), ("ann", 1.5, 1.8), ("ann", 2, 3), ("cy", 4, 4))
    assert speaker_turns(found) == {"ann": [(1_000_000, 3_000_000)], "bob": [(5_000_000, 6_000_000)]}
    assert list(speaker_turns(found)) == ["ann", "bob"]


def test_activity_of_a_session() -> None:
    # someone speaks for 6 s, two for 1 s, nobody for 4 of 10 s; a speaker's own overlap is none
    activity = measure_activity(turns(("a", 1, 5), ("a", 2, 3), ("b", 4, 6), ("a", 8, 9)), 10.0)
    assert (activity.n_speakers, activity.speech, activity.overlap) == (2, 6.0, 1.0)
    assert activity.overlap_ratio == pytest.approx(1 / 6) and activity.silence_ratio == pytest.approx(0.4)
    silent = measure_activity([], 10.0)
    assert (silent.overlap_ratio, silent.silence_ratio, measure_activity([], 0.0).silence_ratio) == (0.0, 1.0, 0.0)
