from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sortk.formats import rttm
from sortk.prepare.conversation import measure, read_turn_taking
from sortk.prepare.simulate import SimulateOptions, Simulator, index_sources, simulate_set
from sortk.records import Segment, Source

TALK = [
    ("a", 0.0, 2.0),
    ("b", 1.0, 1.5),  # inside the turn of a
    ("b", 3.0, 4.0),  # takes the floor after a gap of 1 s
    ("b", 5.0, 6.0),  # goes on after a pause
    ("a", 5.5, 7.0),  # starts early by 0.5 s
]


def recording(name: str) -> list[Segment]:
    return [Segment(name, speaker, start, end) for speaker, start, end in TALK]


def test_statistics_counted_by_hand() -> None:
    found, habits = measure(recording(f"r{n}") for n in range(10))
    assert found.overlap == pytest.approx(1 / 5) and found.silence == pytest.approx(2 / 7)
    assert found.spread == pytest.approx(0.0, abs=1e-6)  # all recordings are alike
    assert found.turn_change == pytest.approx(3 / 4)
    assert (found.turn, found.turn_mean) == pytest.approx((1.0, 1.2))
    assert (found.gap, found.early_start, found.backchannel) == pytest.approx((1.0, 0.5, 0.5))
    assert found.backchannel_share == pytest.approx(0.5)
    assert found.dominant_share == pytest.approx(3.5 / 6)
    assert (habits.turn_ms[0], habits.turn_ms[50], habits.turn_ms[100]) == (500, 1000, 2000)
    assert habits.share_std == pytest.approx(0.5 / 6) and habits.mean_overlap_ms == 500


def test_too_few_turns_is_one_sentence(tmp_path: Path) -> None:
    rttm.write(tmp_path / "a.rttm", recording("r"))
    with pytest.raises(ValueError, match="50 turns or more to be fitted to, got 5"):
        read_turn_taking(tmp_path)


def test_simulated_sessions_are_like_the_corpus(tmp_path: Path, make_sources: Callable[..., list[Source]]) -> None:
    rttm.write(tmp_path / "like" / "a.rttm", [s for n in range(20) for s in recording(f"r{n}")])
    speakers = index_sources(make_sources(), tmp_path, 16000, map)
    options = SimulateOptions(seconds=30.0, max_speakers=2, like=str(tmp_path / "like"))
    summary = simulate_set(speakers, options, 0, "sim", 10 * 30 / 3600, tmp_path / "sim.jsonl", map)
    both = summary.to_json()["like"]
    for name, error in {"overlap": 0.03, "silence": 0.05, "turn": 0.3, "dominant_share": 0.1}.items():
        wanted, reached = both[name]
        assert reached == pytest.approx(wanted, abs=error), name


def test_a_share_of_the_sessions_is_like_the_corpus(tmp_path: Path, make_sources: Callable[..., list[Source]]) -> None:
    rttm.write(tmp_path / "like" / "a.rttm", [s for n in range(20) for s in recording(f"r{n}")])
    speakers = index_sources(make_sources(), tmp_path, 16000, map)
    usual = SimulateOptions(seconds=30.0, max_speakers=2, silence=0.6)
    alike = replace(usual, like=str(tmp_path / "like"))
    mixed = replace(alike, usual_share=0.5)
    simulators = [Simulator(speakers, options, 0, "sim") for options in (usual, alike, mixed)]
    plans = [[simulator.plan(number) for number in range(20)] for simulator in simulators]
    is_like = [simulators[2].is_like(number) for number in range(20)]
    assert plans[2] == [b if like else a for a, b, like in zip(*plans[:2], is_like, strict=True)]
    assert 5 <= sum(is_like) <= 15
    assert simulators[2].mean_targets() == pytest.approx({"overlap": (0.12 + 0.2) / 2, "silence": (0.6 + 2 / 7) / 2})
