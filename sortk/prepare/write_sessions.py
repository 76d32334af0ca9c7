"""Write planned sessions as a set of files: audio, RTTM, word-level SegLST, CTM, plan; and a manifest of all."""

from __future__ import annotations

import json
import statistics
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from sortk.formats import audio, ctm, manifest, rttm, seglst
from sortk.formats.files import atomic_text, check_file_name, plural
from sortk.formats.objects import read_own
from sortk.prepare.render import Int16, Plan, plan_from_json, plan_to_json
from sortk.records import RunJobs, Session
from sortk.spans import Activity, measure_activity


class Mixer(Protocol):
    """Plans and renders sessions by their number."""

    def session_id(self, index: int) -> str: ...
    def plan(self, index: int) -> Plan: ...
    def render(self, plan: Plan) -> Int16: ...


@dataclass(frozen=True, slots=True)
class SessionPaths:
    """Every file of one session, named here and nowhere else."""

    folder: Path
    session_id: str

    @property
    def audio(self) -> Path:
        return self.folder / "audio" / f"{self.session_id}.flac"

    @property
    def rttm(self) -> Path:
        return self.folder / "rttm" / f"{self.session_id}.rttm"

    @property
    def seglst(self) -> Path:
        return self.folder / "seglst" / f"{self.session_id}.json"

    @property
    def ctm(self) -> Path:
        return self.folder / "ctm" / f"{self.session_id}.ctm"

    @property
    def plan(self) -> Path:
        """Written last: when it is there, the session is complete."""
        return self.folder / "plan" / f"{self.session_id}.json"


def write_set(mixer: Mixer, n_sessions: int, manifest_path: Path, run_jobs: RunJobs) -> SetSummary:
    """Write the sessions that do not exist yet, then their manifest. Memory does not grow with their number."""
    summary = SetSummary()

    def sessions() -> Iterator[Session]:
        for session, activity in run_jobs(partial(write_session, mixer, manifest_path.parent), range(n_sessions)):
            summary.add(activity)
            yield session

    manifest.write(manifest_path, sessions())
    return summary


def write_session(mixer: Mixer, folder: Path, index: int) -> tuple[Session, Activity]:
    """Plan, render and write one session, unless it is complete already; return its line of the manifest."""
    paths = SessionPaths(folder, check_file_name(mixer.session_id(index)))
    if paths.plan.exists():
        plan, activity = read_plan(paths.plan)
    else:
        plan = mixer.plan(index)
        audio.write_flac(paths.audio, mixer.render(plan), plan.sample_rate)
        rttm.write(paths.rttm, plan.segments())
        words = plan.words()
        seglst.write(paths.seglst, words)
        ctm.write(paths.ctm, words)
        with atomic_text(paths.plan) as file:
            file.write(json.dumps(plan_to_json(plan, paths.plan)))
        activity = _measure(plan)
    session = Session(
        plan.session_id,
        paths.audio,
        duration=plan.duration,
        num_speakers=len(plan.speakers),
        rttm_path=paths.rttm,
        ctm_path=paths.ctm,
        seglst_path=paths.seglst,
    )
    return session, activity


def read_plan(path: Path) -> tuple[Plan, Activity]:
    """Return the plan of a session that is complete, and its statistics."""

    def parse(fields: Any) -> tuple[Plan, Activity]:
        plan = plan_from_json(fields, path)
        if plan.session_id != path.stem:
            raise ValueError(f"the plan of session {plan.session_id}")
        return plan, _measure(plan)

    return read_own(path, parse)


def _measure(plan: Plan) -> Activity:
    return measure_activity(plan.segments(), plan.duration)


@dataclass
class SetSummary:
    """Statistics of a set: ratios pooled over its sessions, and medians over sessions."""

    seconds: float = 0.0
    speech_seconds: float = 0.0
    overlap_seconds: float = 0.0
    speaker_counts: Counter[int] = field(default_factory=Counter)
    overlap_ratios: array[float] = field(default_factory=lambda: array("d"))
    silence_ratios: array[float] = field(default_factory=lambda: array("d"))
    like: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # statistics of `simulate.like`, and its own

    def add(self, activity: Activity) -> None:
        self.seconds += activity.duration
        self.speech_seconds += activity.speech
        self.overlap_seconds += activity.overlap
        self.speaker_counts[activity.n_speakers] += 1
        self.overlap_ratios.append(activity.overlap_ratio)
        self.silence_ratios.append(activity.silence_ratio)

    def to_json(self) -> dict[str, Any]:
        overlap = self.overlap_seconds / self.speech_seconds if self.speech_seconds else 0.0
        return {
            "sessions": len(self.overlap_ratios),
            "hours": round(self.seconds / 3600, 4),
            "sessions_by_speakers": {str(count): n for count, n in sorted(self.speaker_counts.items())},
            "overlap": round(overlap, 4),
            "overlap_median_session": round(statistics.median(self.overlap_ratios), 4),
            "silence": round(1 - self.speech_seconds / self.seconds, 4),
            "silence_median_session": round(statistics.median(self.silence_ratios), 4),
            **({"like": {name: list(both) for name, both in self.like.items()}} if self.like else {}),
        }

    def __str__(self) -> str:
        numbers = self.to_json()
        sessions = plural(numbers["sessions"], "session")
        return f"{sessions}, {{hours:.2f}} h, overlap {{overlap:.3f}}, silence {{silence:.3f}}".format(**numbers)
