from __future__ import annotations

import json
from pathlib import Path

from sortk.report.curves import read_training


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
