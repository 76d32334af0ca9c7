"""Sessions of recorded corpora: what every reader returns, and how it is written.

<set>.jsonl         manifest; the audio stays where it is
rttm/<id>.rttm      who speaks when
seglst/<id>.json    what is said, if the corpus has transcripts
uem/<id>.uem        what is scored, if not all of it
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from sortk.formats import audio, manifest, rttm, seglst, uem
from sortk.formats.files import check_file_name, plural
from sortk.records import Region, RunJobs, Segment, Session

MAX_DEVIATION = 0.01  # of the hours on disk from the published ones ...
ROUNDING_HOURS = 0.06  # ... which are often rounded to a tenth
PACKED_SUFFIX = ".sph"
CORPUS_KEY = "corpus"  # in a line of a manifest


@dataclass(frozen=True, slots=True)
class RecordedSession:
    """A recording, or an excerpt, with its reference. A speaker name means the same person in all sessions.

    All times count from the start of the recording, also if the session is only an excerpt of it.
    """

    session_id: str
    audio_path: Path  # where the corpus has it; never copied
    duration: float  # of the session
    segments: tuple[Segment, ...]  # who speaks when
    transcript: tuple[Segment, ...] = ()  # what is said, by word or by utterance; empty without a transcript
    regions: tuple[Region, ...] = ()  # what is scored; empty: all of it
    offset: float = 0.0  # where an excerpt begins
    corpus: str = ""  # the name by which stage 2 chooses what to refine, and how many samples to take


@dataclass(frozen=True, slots=True)
class TelephoneCall:
    """One telephone call on disk."""

    session_id: str
    audio_path: Path
    transcript: Path


Parts = dict[str, list[RecordedSession]]
"""The sessions of a corpus by its own parts: train, dev, test, part1, ..."""


@dataclass(frozen=True, slots=True)
class Published:
    """Published numbers of one part of a corpus."""

    sessions: int
    hours: float | None = None  # of audio; None if not published

    def differs_from(self, n_sessions: int, hours: float) -> bool:
        """Return whether the part on disk differs from the published one."""
        if self.hours is None:
            return n_sessions != self.sessions
        allowed = max(MAX_DEVIATION * self.hours, ROUNDING_HOURS)
        return n_sessions != self.sessions or abs(hours - self.hours) > allowed

    def __str__(self) -> str:
        sessions = plural(self.sessions, "session")
        return sessions if self.hours is None else f"{sessions}, {self.hours:.2f} h"


def need_file(path: Path, what: str) -> Path:
    """Return the path; raise a FileNotFoundError that says what is missing if there is no such file."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file ({what}); is the corpus complete?")
    return path


def find_files(corpus_dir: Path) -> list[Path]:
    """Return every file below the folder, sorted. Links to other folders are followed: discs are often linked
    together."""

    def walk(folder: Path) -> Iterator[Path]:
        if folder.resolve() in seen:  # a link to a folder around it
            return
        seen.add(folder.resolve())
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir():
                    yield from walk(Path(entry.path))
                else:
                    yield Path(entry.path)

    seen: set[Path] = set()
    return sorted(walk(corpus_dir))


def index_audio(files: Iterable[Path]) -> dict[str, Path]:
    """Return the audio files by their names without suffix. An unpacked file is preferred to the .sph beside it."""
    found: dict[str, Path] = {}
    for path in files:
        if path.suffix.lower() not in audio.SUFFIXES:
            continue
        if path.stem not in found or found[path.stem].suffix.lower() == PACKED_SUFFIX:
            found[path.stem] = path
    return found


def need_audio(found: Mapping[str, Path], name: str, corpus_dir: Path) -> Path:
    """Return the audio of that name; raise FileNotFoundError if there is none."""
    if name not in found:
        raise FileNotFoundError(
            f"{corpus_dir}: no {name}.sph (nor {name}.wav or .flac) in this folder or below; is the corpus complete?"
        )
    return found[name]


def name_speakers(turns: Iterable[Segment]) -> tuple[Segment, ...]:
    """Return the turns with speaker names that are unique among sessions: A of one call is not A of the next."""
    return tuple(replace(turn, speaker=f"{turn.session_id}-{turn.speaker}") for turn in turns)


def find_parts(audio_of: Mapping[str, Mapping[str, Path]]) -> dict[str, dict[str, Path]]:
    """Return the parts of a corpus (part -> session -> its audio) that are on disk.

    A part may be missing, since not everybody needs all parts. If some of its audio is there, all of it must be.
    """
    there = {part: paths for part, paths in audio_of.items() if any(path.is_file() for path in paths.values())}
    for paths in (there or audio_of).values():
        for session_id, path in paths.items():
            need_file(path, f"the audio of {session_id}")
    return {part: dict(paths) for part, paths in there.items()}


def read_sessions(
    read: Callable[[str, Path], RecordedSession], audio_of: Mapping[str, Mapping[str, Path]], run_jobs: RunJobs
) -> Parts:
    """Read all sessions (part -> session -> its audio) with a reader of one session; each is a job."""
    jobs = [(part, session_id, path) for part, paths in audio_of.items() for session_id, path in paths.items()]
    parts: Parts = {part: [] for part in audio_of}
    for (part, _, _), session in zip(jobs, run_jobs(partial(_read_job, read), jobs), strict=True):
        parts[part].append(session)
    return parts


def _read_job(read: Callable[[str, Path], RecordedSession], job: tuple[str, str, Path]) -> RecordedSession:
    _, session_id, path = job
    return read(session_id, path)


def write_sets(sets: Mapping[str, Sequence[RecordedSession]], out_dir: Path, run_jobs: RunJobs) -> None:
    """Write the files of every session, then the manifest of each set."""
    for name, sessions in sets.items():
        manifest.write(out_dir / f"{name}.jsonl", run_jobs(partial(write_session, out_dir), sessions))


def write_session(out_dir: Path, recorded: RecordedSession) -> Session:
    """Write the files of one session; return its line of the manifest."""
    name = check_file_name(recorded.session_id)
    rttm_path = out_dir / "rttm" / f"{name}.rttm"
    seglst_path = out_dir / "seglst" / f"{name}.json" if recorded.transcript else None
    uem_path = out_dir / "uem" / f"{name}.uem" if recorded.regions else None
    rttm.write(rttm_path, recorded.segments)
    if seglst_path:
        seglst.write(seglst_path, recorded.transcript)
    if uem_path:
        uem.write(uem_path, recorded.regions)
    return Session(
        name,
        recorded.audio_path,
        duration=recorded.duration,
        offset=recorded.offset,
        num_speakers=len({segment.speaker for segment in recorded.segments}),
        rttm_path=rttm_path,
        seglst_path=seglst_path,
        uem_path=uem_path,
        extra={CORPUS_KEY: recorded.corpus} if recorded.corpus else {},
    )
