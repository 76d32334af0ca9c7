"""An experiment of any number of sessions, made up in seconds: files as the stages write them, scores as they count.

For tests and benchmarks of the report; the speakers talk at random, and the hypothesis is the reference with mistakes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np

from sortk.formats import audio, manifest, rttm, seglst
from sortk.records import Segment, Session
from sortk.scoring.der import score_der
from sortk.scoring.intervals import DerOptions
from sortk.scoring.results import DerResult, Results, WerResult, as_json
from sortk.scoring.wer import Transcripts, WerOptions, score_words

WORDS = ["yes", "no", "the", "concert", "was", "great", "although", "nobody", "came", "horses", "</script>", "<b>"]
SAMPLE_SECONDS = 15.0
COLLAR = 0.25


def write_experiment(root: Path, n_sessions: int = 6, seconds: float = 20.0, with_asr: bool = True) -> None:
    """Stages 1, 2, 4 to 8 in root, each with its done.json."""
    sessions = [_write_session(root / "01-simulate", f"test-{n:06d}", seconds, Random(n)) for n in range(n_sessions)]
    manifest.write(root / "01-simulate" / "test.jsonl", sessions)
    _done(root / "01-simulate", simulate={"overlap": 0.12, "silence": 0.1})
    _write_clean(root / "02-clean", n_sessions * seconds / 3600)
    _write_log(root / "05-train-diar", ("sort", "pil"), "der")
    _write_study(root / "07-tune")
    results = Results(
        "made <up>", "1234567", "2026-01-01", {"score": {"normalizer": "lower"}}, _walk(root, sessions), []
    )
    if with_asr:
        _write_log(root / "06-train-asr", ("text", "words"), "cpwer")
        results = replace(results, wer=_transcribe(root, sessions))
    _json(root / "08-score" / "scores.json", as_json(results))
    _done(root / "08-score")


def _write_session(folder: Path, name: str, seconds: float, random: Random) -> Session:
    turns, time = [], random.random()
    while time < seconds - 1:
        end = min(seconds, time + random.uniform(0.8, 5.0))
        turns.append(Segment(name, f"voice-{random.randrange(2 + len(name) % 3)}", round(time, 3), round(end, 3)))
        time = end + random.uniform(-0.7, 0.9)
    words = [word for turn in turns for word in _say(turn, random)]
    rttm.write(folder / "rttm" / f"{name}.rttm", turns)
    seglst.write(folder / "seglst" / f"{name}.json", words)
    path, sound = folder / "audio" / f"{name}.flac", folder / "audio" / "sound.flac"
    if not sound.exists():
        noise = np.random.default_rng(0).normal(0, 0.05, round(seconds * 16_000))
        audio.write_flac(sound, (noise * np.sin(np.arange(len(noise)) / 9000)).astype(np.float32))
    os.link(sound, path)
    return Session(
        name,
        path,
        seconds,
        rttm_path=folder / "rttm" / f"{name}.rttm",
        seglst_path=folder / "seglst" / f"{name}.json",
    )


def _say(turn: Segment, random: Random) -> list[Segment]:
    n_words = max(1, round(turn.duration / 0.35))
    edges = np.linspace(turn.start, turn.end, n_words + 1).round(3).tolist()
    return [
        replace(turn, start=start, end=end, text=random.choice(WORDS[:-1] if n else WORDS[-1:]))
        for n, (start, end) in enumerate(pairwise(edges))
    ]


def _walk(root: Path, sessions: Sequence[Session]) -> list[DerResult]:
    """With mistakes: speakers mixed up now and then, boundaries moved, posteriors that follow the hypothesis."""
    references = {session.session_id: rttm.read(session.rttm_path or Path()) for session in sessions}
    folder, results = root / "08-score" / "hyp" / "test", []
    for name, spread in (("none", 0.5), ("tuned", 0.3)):
        heard = {key: _mistake(turns, spread, Random(key)) for key, turns in references.items()}
        for key, turns in heard.items():
            rttm.write(folder / name / f"{key}.rttm", turns)
        report = score_der(references, heard, None, DerOptions(COLLAR))
        results.append(DerResult("Sortformer, made up", "test", name, report))
    for key, turns in heard.items():
        probs = np.random.default_rng(1).uniform(0, 0.2, (round((sessions[0].duration or 0) / 0.08), 4))
        for turn in turns:
            probs[round(turn.start / 0.08) : round(turn.end / 0.08), int(turn.speaker[-1])] = 0.9
        (folder / "probs").mkdir(exist_ok=True)
        np.save(folder / "probs" / f"{key}.npy", probs.astype(np.float16))
    return results


def _mistake(turns: Sequence[Segment], spread: float, random: Random) -> list[Segment]:
    level = random.random()  # some sessions are harder than others
    return [
        replace(
            turn,
            speaker=f"speaker_{random.randrange(4) if random.random() < level / 3 else int(turn.speaker[-1])}",
            start=max(0.0, turn.start - random.uniform(0, spread)),
            end=turn.end + random.uniform(0, spread * level),
        )
        for turn in turns
        if random.random() > level / 8
    ]


def _transcribe(root: Path, sessions: Sequence[Session]) -> list[WerResult]:
    samples, heard = [], {}
    folder = root / "08-score" / "hyp" / "test" / "words"
    for session in sessions:
        words = seglst.read(session.seglst_path or Path())
        for start in np.arange(0, session.duration or 0, SAMPLE_SECONDS).tolist():
            own = [word for word in words if start <= word.start < start + SAMPLE_SECONDS]
            if not own:
                continue
            name = f"{session.session_id}-{start:07.0f}"
            random = Random(name)
            samples.append(
                replace(session, session_id=name, offset=start, duration=SAMPLE_SECONDS, text=_serialize(own))
            )
            found = [replace(w, text="oops") if random.random() < 0.2 else w for w in own if random.random() > 0.1]
            heard[name] = _serialize(found)
            numbers = {speaker: n for n, speaker in enumerate(dict.fromkeys(w.speaker for w in found))}
            heard_words = [replace(w, session_id=name, speaker=f"speaker_{numbers[w.speaker]}") for w in found]
            seglst.write(folder / f"{name}.json", heard_words)
    manifest.write(root / "04-sst" / "scored" / "test.jsonl", samples)
    _done(root / "04-sst")
    lines = [json.dumps({"session_id": name, "text": text}) for name, text in heard.items()]
    (folder / "sst.jsonl").write_text("\n".join(lines), encoding="utf-8")
    sides = Transcripts.of_sst({s.session_id: s.text or "" for s in samples}), Transcripts.of_sst(heard)
    return [
        WerResult("2: made up", "test", score_words(*sides, metric, WerOptions("lower")), "free")
        for metric in ("wer", "cpwer")
    ]


def _serialize(words: Sequence[Segment]) -> str:
    numbers: dict[str, int] = {}
    return " ".join(f"<spk{numbers.setdefault(word.speaker, len(numbers))}> {word.text}" for word in words)


def _write_clean(folder: Path, hours: float) -> None:
    part = {
        "in": {"hours": hours},
        "out": {"hours": 0.9 * hours, "pieces": 7},
        "rejected_by_rule": {"too_short": {"hours": 0.1 * hours}},
        "words": {"in": 100, "out": 90},
    }
    _json(folder / "summary.json", {"test": {"diar": part, "asr": part, "sessions": 6}})
    _done(folder)


def _write_log(folder: Path, losses: Sequence[str], error: str) -> None:
    lines = []
    for phase in ("short", "long"):
        for step in range(10, 101, 10):
            line = {"phase": phase, "step": step, "loss": 5 / step, "learning_rate": 1e-3, "audio_per_second": 50.0}
            lines.append(line | dict.fromkeys(losses, 2 / step))
        lines.append({"phase": phase, "step": 100, "score": 0.3, error: 0.3})
    folder.mkdir(parents=True)
    (folder / "log.jsonl").write_text("\n".join(json.dumps(line) for line in lines) + "\n", encoding="utf-8")
    _done(folder)


def _write_study(folder: Path) -> None:
    names = ("onset", "offset", "pad_onset", "pad_offset", "min_duration_on", "min_duration_off")
    study = {
        "values": dict.fromkeys(names, 0.25),
        "der_before": 0.2,
        "der_after": 0.15,
        "presets": {"none": 0.2},
        "history": [{"trial": n, "der": 0.15 + 0.1 / (n + 1)} for n in range(30)],
        "importance": dict.fromkeys(names, 1 / 6),
    }
    _json(folder / "postprocess.json", study)
    _done(folder)


def _done(folder: Path, **settings: object) -> None:
    _json(folder / "done.json", {"settings": settings, "versions": {"sortk": "0.1.0"}})


def _json(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
