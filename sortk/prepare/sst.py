"""Stage 4: words of stage 3 -> sorted serialized transcripts, of sessions or of the samples of a manifest.

formats/sst.py defines the transcripts: their levels, how they are built and parsed.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from sortk.formats import objects, seglst
from sortk.formats.files import FormatError, files_in, plural, quote
from sortk.formats.sst import SstOptions, build_sst, strip_tokens
from sortk.prepare.timestamps import group_sessions
from sortk.records import Counts, RunJobs, Segment, Session

EDGE_SECONDS = 0.001  # a word that sticks out of a window by less is rounded, not cut

CutWords = Literal["error", "middle"]
"""A word that an edge of a window cuts is an error, or belongs to the window that contains its middle."""


def cut_window(
    words: Iterable[Segment], offset: float, duration: float | None = None, cut_words: CutWords = "error"
) -> list[Segment]:
    """Return the words inside a window of a recording, with their times in the recording; no duration: up to its end.

    Their SST numbers the speakers again: <spk0> is who speaks first in the window. A word that the window's edge cuts
    is an error, because its sound would be in the window and its text not, or vice versa; a test set must not lose a
    word, so it has `cut_words="middle"`.
    """
    end = math.inf if duration is None else offset + duration
    if cut_words == "middle":
        return [word for word in words if offset <= (word.start + word.end) / 2 < end]
    inside = []
    for word in words:
        if word.start >= offset - EDGE_SECONDS and word.end <= end + EDGE_SECONDS:
            inside.append(word)
        elif word.end > offset + EDGE_SECONDS and word.start < end - EDGE_SECONDS:
            raise ValueError(
                f"session {word.session_id}: the window from {offset:.3f} to {end:.3f} s cuts {quote(word.text)} of "
                f"{word.speaker}, {word.start:.3f} to {word.end:.3f} s"
            )
    return inside


@dataclass(frozen=True, slots=True)
class SstSummary(Counts):
    """Counts of serialized sessions."""

    sessions: int = 0
    words: int = 0
    empty_sessions: tuple[str, ...] = ()  # left out: without words

    def to_json(self) -> dict[str, Any]:
        return {"sessions": self.sessions, "words": self.words, "empty_sessions": list(self.empty_sessions)}

    def __str__(self) -> str:
        written = f"{plural(self.sessions, 'session')}, {plural(self.words, 'word')}"
        if not self.empty_sessions:
            return written
        names = ", ".join(self.empty_sessions[:5]) + (", ..." if len(self.empty_sessions) > 5 else "")
        return f"{written}; {len(self.empty_sessions)} left out, without any word: {names}"


def write_sst(
    seglst_path: Path, out_path: Path, options: SstOptions | None = None, run_jobs: RunJobs = map
) -> SstSummary:
    """Write one line {"session_id", "text"} per session of a SegLST file, or a folder of them; a job is one file."""
    files = files_in(seglst_path, ".json")
    results = run_jobs(partial(_serialize_file, options or SstOptions()), files)
    texts: dict[str, str] = {}
    for path, found in zip(files, results, strict=True):
        for session_id, text in found.items():
            if session_id in texts:
                raise ValueError(f"session {quote(session_id)} is in two files; the second is {path}")
            texts[session_id] = text
    lines = [{"session_id": session_id, "text": text} for session_id, text in texts.items() if text]
    objects.write_lines(out_path, lines, objects.entries)
    return _summarize(texts)


def _serialize_file(options: SstOptions, path: Path) -> dict[str, str]:
    sessions = group_sessions(seglst.read(path, zero_duration="keep"), path)
    return {session_id: build_sst(words, options) for session_id, words in sessions.items()}


def serialize_sessions(
    sessions: Sequence[Session],
    options: SstOptions | None = None,
    run_jobs: RunJobs = map,
    cut_words: CutWords = "error",
    transcripts: Path | None = None,
) -> tuple[list[Session], SstSummary]:
    """Return the sessions of a manifest with their SST as `text`, and `num_speakers`; in the same order, without empty
    ones.

    A session may be a window of a recording (offset, duration); its `seglst_path` names the words of the recording.
    In the folder `transcripts`, a file of the same name has the segments that the words were taken from (stage 2).
    A job is one recording with all its windows.
    """
    recordings: dict[Path, list[Session]] = {}
    for session in sessions:
        if session.seglst_path is None:
            raise ValueError(f"session {quote(session.session_id)} has no seglst_filepath, which SST requires")
        recordings.setdefault(session.seglst_path, []).append(session)
    work = partial(_serialize_recording, options or SstOptions(), cut_words, transcripts)
    results = run_jobs(work, list(recordings.items()))
    serialized = {session.session_id: session for part in results for session in part}
    in_order = [serialized[session.session_id] for session in sessions]
    summary = _summarize({session.session_id: session.text or "" for session in in_order})
    return [session for session in in_order if session.text], summary


def _serialize_recording(
    options: SstOptions,
    cut_words: CutWords,
    transcripts: Path | None,
    recording: tuple[Path, Sequence[Session]],
) -> list[Session]:
    path, sessions = recording
    tracks, annotated = _read_tracks(path), dict[str, Track]()
    if transcripts and options.segments == "annotated" and (transcripts / path.name).is_file():
        annotated = _read_tracks(transcripts / path.name)
    serialized = []
    for session in sessions:
        offset, duration = session.offset, session.duration
        nearby = _find_track(session, tracks, path).find(offset, duration)
        words = cut_window(nearby, offset, duration, cut_words)
        # Entries of one word each are words, not segments.
        entries = _find_track(session, annotated, path) if annotated else None
        segments = entries.find(offset, duration) if entries and entries.most_words > 1 else None
        n_speakers = len({word.speaker for word in words if word.text.strip()})
        serialized.append(replace(session, text=build_sst(words, options, segments), num_speakers=n_speakers))
    return serialized


def _read_tracks(path: Path) -> dict[str, Track]:
    by_session = group_sessions(seglst.read(path, zero_duration="keep"), path)
    return {session_id: Track.of(entries) for session_id, entries in by_session.items()}


def _find_track(session: Session, tracks: Mapping[str, Track], path: Path) -> Track:
    """Return the only track of a file, or the one with the name of the session or of its audio."""
    if len(tracks) == 1:
        return next(iter(tracks.values()))
    for name in (session.session_id, objects.id_of(session.audio_path)):
        if name in tracks:
            return tracks[name]
    raise FormatError(path, None, f"none of its {len(tracks)} sessions is {quote(session.session_id)}")


@dataclass(frozen=True, slots=True)
class Track:
    """The words of a recording by their starts, so that each of its hundreds of windows reads only its own words."""

    words: list[Segment]
    longest: float  # seconds
    most_words: int  # in one entry

    @classmethod
    def of(cls, words: Iterable[Segment]) -> Track:
        by_onset = sorted(words, key=attrgetter("start"))
        longest = max((word.duration for word in by_onset), default=0.0)
        return cls(by_onset, longest, max((len(word.text.split()) for word in by_onset), default=0))

    def find(self, offset: float, duration: float | None) -> list[Segment]:
        """Return all words that may overlap the window, and few others."""
        first = bisect.bisect_left(self.words, offset - self.longest - EDGE_SECONDS, key=attrgetter("start"))
        if duration is None:
            return self.words[first:]
        return self.words[first : bisect.bisect_right(self.words, offset + duration, key=attrgetter("start"))]


def _summarize(texts: Mapping[str, str]) -> SstSummary:
    n_words = sum(len(strip_tokens(text).split()) for text in texts.values())
    empty = tuple(session_id for session_id, text in texts.items() if not text)
    return SstSummary(len(texts) - len(empty), n_words, empty)
