"""Reads what the page shows of training and data: log.jsonl, hours kept and dropped, simulated conversations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from sortk.formats import manifest
from sortk.formats.annotation import prefer_rttm, session_segments
from sortk.formats.files import read_lines
from sortk.formats.objects import decode
from sortk.records import Session
from sortk.spans import measure_activity, speaker_turns, to_seconds

MAX_POINTS = 600  # of a curve; a longer one is thinned
MAX_SESSIONS = 500  # of a set whose ratios are drawn
N_BINS = 24


def read_json(path: Path) -> Any:
    """Return the content of a JSON file."""
    return decode("\n".join(line for _, line in read_lines(path)), path, None)


def read_training(log_path: Path) -> dict[str, Any]:
    """Read log.jsonl by columns: `x` counts steps over all phases, `phases` has the `x` at which each begins, and lines
    with a score are validations."""
    trained: list[dict[str, Any]] = []
    validated: list[dict[str, Any]] = []
    phases: list[dict[str, Any]] = []
    begin = last = 0
    for number, line in read_lines(log_path):
        entry = decode(line, log_path, number)
        if not phases or phases[-1]["name"] != entry["phase"]:
            begin = last
            phases.append({"name": entry["phase"], "x": begin})
        last = max(last, begin + entry["step"])
        (validated if "score" in entry else trained).append({**entry, "x": begin + entry["step"]})
    thinned = trained[:: -(-len(trained) // MAX_POINTS) or 1]
    return {"phases": phases, "steps": last, "train": _columns(thinned), "valid": _columns(validated)}


def _columns(entries: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return each number as [x, value] pairs; a phase need not have all of them."""
    columns: dict[str, list[Any]] = {}
    for entry in entries:
        for name, value in entry.items():
            if name != "x" and isinstance(value, (int, float)):
                columns.setdefault(name, []).append([entry["x"], float(f"{value:.5g}")])
    return columns


def read_cleaning(summary_path: Path) -> list[dict[str, Any]]:
    """Read the hours kept, and dropped by each rule, of every set, for the diarizer and for the ASR."""
    return [
        {
            "set": name,
            "use": use,
            "hours_in": part["in"]["hours"],
            "hours_out": part["out"]["hours"],
            "pieces_out": part["out"]["pieces"],
            "dropped": {rule: cut["hours"] for rule, cut in part["rejected_by_rule"].items()},
        }
        for name, own in read_json(summary_path).items()
        for use, part in own.items()
        if use == "diar" or (use == "asr" and part["words"]["in"])  # without transcripts, there is nothing for an ASR
    ]


def read_simulation(folder: Path) -> dict[str, Any]:
    """Measure overlap, silence and turns of simulated sessions, beside the targets of the recipe."""
    done = folder / "done.json"
    asked = read_json(done)["settings"].get("simulate", {}) if done.is_file() else {}
    sets = {path.stem: manifest.read(path) for path in sorted(folder.glob("*.jsonl")) if path.is_file()}
    return {
        "target": {name: asked[name] for name in ("overlap", "silence") if name in asked},
        "sets": [{"set": name, **describe_set(sessions)} for name, sessions in sets.items() if sessions],
    }


def describe_set(sessions: Sequence[Session]) -> dict[str, Any]:
    """Return histograms over sessions (ratios) and turns (seconds); of a large set, only over its first sessions."""
    overlap, silence, turns = [], [], []
    for session in sessions[:MAX_SESSIONS]:
        segments = session_segments(prefer_rttm(session))
        activity = measure_activity(segments, session.duration or 0.0)
        overlap.append(activity.overlap_ratio)
        silence.append(activity.silence_ratio)
        turns += [to_seconds(end - start) for own in speaker_turns(segments).values() for start, end in own]
    return {
        "sessions": len(sessions),
        "n_measured": min(len(sessions), MAX_SESSIONS),
        "hours": sum(session.duration or 0.0 for session in sessions) / 3600,
        "overlap": _histogram(overlap, 0.5),
        "silence": _histogram(silence, 0.5),
        "turns": _histogram(turns, 12.0),
    }


def _histogram(values: Sequence[float], highest: float) -> dict[str, Any]:
    """Count values in equal bins from 0 on; the last bin includes everything above."""
    counts, _ = np.histogram(np.clip(values, 0, highest), bins=N_BINS, range=(0, highest))
    return {
        "highest": highest,
        "counts": counts.tolist(),
        "median": median(values) if values else 0.0,
        "mean": sum(values) / len(values) if values else 0.0,
    }
