from __future__ import annotations

from itertools import combinations
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortk.prepare.conversation import PlacedTurn, apportion, plan_turns
from sortk.prepare.pieces import SpeechPiece
from sortk.records import Segment, Word
from sortk.spans import measure_activity


def make_cast(
    n_speakers: int, rng: Random, shortest_ms: int = 200, longest_ms: int = 3000
) -> dict[str, list[list[SpeechPiece]]]:
    def piece(speaker: str, n: int) -> SpeechPiece:
        words = tuple(Word("w", 0.0, 0.1) for _ in range(rng.randint(1, 6)))
        length_ms = rng.randint(shortest_ms, longest_ms)
        return SpeechPiece(speaker, f"{speaker}-{n}", Path("x.flac"), 0.0, length_ms, 0, 0, 0.01, words)

    return {f"s{n}": [[piece(f"s{n}", i)] for i in range(40)] for n in range(n_speakers)}


def as_segments(turns: list[PlacedTurn]) -> list[Segment]:
    return [Segment("x", turn.turn.speaker, turn.start_ms / 1000, turn.end_ms / 1000) for turn in turns]


@pytest.mark.parametrize(("overlap", "silence"), [(0.12, 0.10), (0.05, 0.20), (0.25, 0.05), (0.0, 0.3), (0.3, 0.02)])
@pytest.mark.parametrize("n_speakers", [2, 3, 4])
def test_a_session_reaches_its_targets(n_speakers: int, overlap: float, silence: float) -> None:
    for seed in range(10):
        rng = Random(seed)
        turns = plan_turns(make_cast(n_speakers, rng), 90_000, overlap, silence, 0.875, rng)
        activity = measure_activity(as_segments(turns), 90.0)
        assert activity.overlap / activity.speech == pytest.approx(overlap, abs=0.001)
        assert 1 - activity.speech / 90 == pytest.approx(silence, abs=0.01)
        assert activity.n_speakers == n_speakers


@given(
    seed=st.integers(0, 10**6),
    n_speakers=st.integers(1, 6),
    length_ms=st.integers(3000, 120_000),
    overlap=st.floats(0, 0.35),
    silence=st.floats(0, 0.999),
)
def test_nobody_overlaps_himself_and_nothing_leaves_the_session(
    seed: int, n_speakers: int, length_ms: int, overlap: float, silence: float
) -> None:
    rng = Random(seed)
    turns = plan_turns(make_cast(n_speakers, rng, 100, 600), length_ms, overlap, silence, 0.875, rng)
    assert turns == sorted(turns, key=lambda turn: turn.start_ms)
    assert turns[0].start_ms >= 0 and max(turn.end_ms for turn in turns) <= length_ms
    for first, second in combinations(turns, 2):
        if first.turn.speaker == second.turn.speaker:
            assert first.end_ms <= second.start_ms or second.end_ms <= first.start_ms
    boundaries = sorted({time for turn in turns for time in (turn.start_ms, turn.end_ms)})
    for time in boundaries:
        assert sum(turn.start_ms <= time < turn.end_ms for turn in turns) <= 2


def test_one_speaker_has_no_overlap() -> None:
    rng = Random(0)
    turns = plan_turns(make_cast(1, rng), 60_000, 0.2, 0.1, 0.875, rng)
    assert measure_activity(as_segments(turns), 60.0).overlap == 0


@pytest.mark.parametrize(
    ("total", "weights", "limits", "dealt"),
    [
        (10, [1, 1, 2], [9, 1, 9], [3, 1, 6]),
        (10, [1, 1], [100, 100], [5, 5]),
        (10, [1, 1, 1], [100, 100, 100], [4, 3, 3]),
        (10, [1, 1], [2, 3], [2, 3]),
        (0, [1, 1], [2, 3], [0, 0]),
        (10, [0, 1], [9, 99], [0, 10]),
        (10, [], [], []),
    ],
)
def test_apportion(total: int, weights: list[float], limits: list[int], dealt: list[int]) -> None:
    assert apportion(total, weights, limits) == dealt


@given(
    total=st.integers(0, 10**6),
    items=st.lists(st.tuples(st.floats(0.001, 1000), st.integers(0, 10**5)), min_size=1, max_size=40),
)
def test_dealt_numbers_sum_to_the_total_or_to_all_limits(total: int, items: list[tuple[float, int]]) -> None:
    weights, limits = [weight for weight, _ in items], [limit for _, limit in items]
    dealt = apportion(total, weights, limits)
    assert sum(dealt) == min(total, sum(limits))
    assert all(0 <= part <= limit for part, limit in zip(dealt, limits, strict=True))
