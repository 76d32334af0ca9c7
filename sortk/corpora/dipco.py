"""DipCo, dinner parties of four: one microphone of the first array, and utterances with the times of that array.

    Dipco/audio/<dev or eval>/S02_U01.CH1.wav
    Dipco/transcriptions/<dev or eval>/S02.json

    [{"session_id": "S02", "speaker_id": "P05", "words": "are you [laugh] sure", "gender": "female", ...,
      "start_time": {"U01": "00:00:12.34", ..., "close-talk": "00:00:12.30"}, "end_time": {"U01": ...}}, ...]

Every device has its own clock. The corpus has one file per headset, and no mix of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from sortk.corpora.sessions import Parts, Published, RecordedSession, find_parts, need_file, read_sessions
from sortk.formats import audio
from sortk.formats.files import FormatError, quote, read_lines, span_fault
from sortk.formats.objects import Entry, decode
from sortk.records import RunJobs, Segment

DEVICE, CHANNEL = "U01", "CH1"
SESSIONS = {"dev": ("S02", "S04", "S05", "S09", "S10"), "eval": ("S01", "S03", "S06", "S07", "S08")}

PUBLISHED = {"dev": Published(5, 2.7), "eval": Published(5, 2.6)}

_CLOCK = re.compile(r"(\d+):(\d\d):(\d\d(?:\.\d+)?)")
_MARK = re.compile(r"\[[^\]]*\]")  # [laugh], [noise], [unintelligible], ...


def read(corpus_dir: Path, run_jobs: RunJobs) -> Parts:
    """Return the sessions of the parts that are on disk."""
    root = corpus_dir / "Dipco" if (corpus_dir / "Dipco").is_dir() else corpus_dir
    audio_of = {
        part: {name: root / "audio" / part / f"{name}_{DEVICE}.{CHANNEL}.wav" for name in names}
        for part, names in SESSIONS.items()
    }
    return read_sessions(partial(read_session, root), find_parts(audio_of), run_jobs)


def read_session(root: Path, session: str, audio_path: Path) -> RecordedSession:
    """Read one dinner. Other corpora have sessions S01 to S10, too, so the session is called dipco-S01."""
    path = root / "transcriptions" / audio_path.parent.name / f"{session}.json"
    utterances = sorted(_read_utterances(need_file(path, "a transcript")), key=lambda each: (each.start, each.end))
    return RecordedSession(
        f"dipco-{session}",
        audio_path,
        audio.info(audio_path).seconds,
        segments=tuple(utterances),
        transcript=tuple(utterance for utterance in utterances if utterance.text),
    )


def _read_utterances(path: Path) -> Iterator[Segment]:
    value = decode("\n".join(line for _, line in read_lines(path)), path, None)
    if not isinstance(value, list):
        raise FormatError(path, None, f"a transcript must be a JSON list, got {quote(value)}")
    for number, item in enumerate(value, start=1):
        entry = Entry.of(item, path, None, label=f"entry {number}: ")
        start, end = _read_clock(entry, "start_time"), _read_clock(entry, "end_time")
        if fault := span_fault(start, end):
            raise entry.error(fault)
        speaker = entry.need(entry.name, "speaker_id")
        words = _MARK.sub(" ", entry.need(entry.text, "words")).split()
        yield Segment(f"dipco-{path.stem}", f"dipco-{speaker}", start, end, " ".join(words))


def _read_clock(entry: Entry, key: str) -> float:
    """Return the seconds by the clock of DEVICE."""
    times = entry.values.get(key)
    text = times.get(DEVICE) if isinstance(times, dict) else None
    clock = _CLOCK.fullmatch(text) if isinstance(text, str) else None
    if clock is None:
        raise entry.error(f'{key} is not of the form {{"{DEVICE}": "00:00:12.34", ...}}: {quote(times)}')
    hours, minutes, seconds = clock.groups()
    return round(3600 * int(hours) + 60 * int(minutes) + float(seconds), 6)
