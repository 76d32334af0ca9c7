from __future__ import annotations

import json
from pathlib import Path

import pytest

from sortk.records import Segment
from sortk.report.curves import measure_ratios, read_training


def test_steps_count_over_all_phases(tmp_path: Path) -> None:
    lines = [
        {"phase": "short", "step": 10, "loss": 2.0},
        {"phase": "short", "step": 20, "loss": 1.0},
        {"phase": "short", "step": 20, "score": 0.5, "der": 0.5},
        {"phase": "long", "step": 10, "loss": 0.5, "pil": 0.25},
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    curves = read_training(path)
    assert curves["phases"] == [{"name": "short", "x": 0}, {"name": "long", "x": 20}] and curves["steps"] == 30
    assert curves["train"]["loss"] == [[10, 2.0], [20, 1.0], [30, 0.5]] and curves["train"]["pil"] == [[30, 0.25]]
    assert curves["valid"]["der"] == [[20, 0.5]]


def test_ratios_of_a_session() -> None:
    segments = [Segment("s", "a", 1, 5), Segment("s", "b", 4, 6), Segment("s", "a", 8, 9)]
    # someone speaks for 6 s, two for 1 s, nobody for 4 of 10 s
    assert measure_ratios(segments, 10.0) == (pytest.approx(1 / 6), pytest.approx(0.4))
    assert measure_ratios([], 10.0) == (0.0, 1.0) and measure_ratios([], 0.0) == (0.0, 0.0)
