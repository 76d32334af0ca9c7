"""Sessions of recorded corpora: what every reader finds, whatever the corpus looks like on disk, and how it is written.

<set>.jsonl         manifest; the audio is named where it lies
rttm/<id>.rttm      who speaks when
seglst/<id>.json    what is said, if the corpus has transcripts
uem/<id>.uem        what is scored, if that is not all
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sortk.formats import manifest, rttm, seglst, uem
from sortk.formats.files import check_file_name
from sortk.records import Region, RunJobs, Segment, Session

MAX_DEVIATION = 0.01  # of the hours on disk from the published ones ...
CORPUS_KEY = "corpus"  # of a line of a manifest
ROUNDING_HOURS = 0.06  # ... which are often rounded to a tenth


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recording, or an excerpt, with its reference. In all sessions, a name is the same speaker.

    All times count from the start of the recording, also if the session is only an excerpt of it.
    """

    session_id: str
    audio_path: Path  # where the corpus has it; never copied
    duration: float  # of the session
    segments: tuple[Segment, ...]  # who speaks when
    # What is said: a word each, or an utterance each; none if nobody wrote it down.
    transcript: tuple[Segment, ...] = ()
    regions: tuple[Region, ...] = ()  # what is scored; none: all of it
    offset: float = 0.0  # where an excerpt begins
    corpus: str = ""  # under which stage 2 can choose what to refine, and how many samples to take


Parts = dict[str, list[Recorded]]
"""The sessions of a corpus by its own parts: train, dev, test, part1, ..."""


@dataclass(frozen=True, slots=True)
class Published:
    """What those who made a corpus say of one of its parts."""

    sessions: int
    hours: float | None = None  # of audio; None if nobody says

    def differs_from(self, n_sessions: int, hours: float) -> bool:
        """Whether a part as it is found on disk is another one."""
        if self.hours is None:
            return n_sessions != self.sessions
        allowed = max(MAX_DEVIATION * self.hours, ROUNDING_HOURS)
        return n_sessions != self.sessions or abs(hours - self.hours) > allowed

    def __str__(self) -> str:
        return f"{self.sessions} sessions" if self.hours is None else f"{self.sessions} sessions, {self.hours:.2f} h"


def need_file(path: Path, what: str) -> Path:
    """The path itself; FileNotFoundError that says what is missing if there is no such file."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file ({what}); is the corpus complete?")
    return path


def find_parts(audio_of: Mapping[str, Mapping[str, Path]]) -> dict[str, dict[str, Path]]:
    """Of the parts of a corpus (part -> session -> its audio) those that are on disk.

    A part may be left out as a whole, since not everybody needs all. If some of its audio is there, all must be.
    """
    there = {part: paths for part, paths in audio_of.items() if any(path.is_file() for path in paths.values())}
    for paths in (there or audio_of).values():
        for session_id, path in paths.items():
            need_file(path, f"the audio of {session_id}")
    return {part: dict(paths) for part, paths in there.items()}


def read_sessions(
    read: Callable[[str, Path], Recorded], audio_of: Mapping[str, Mapping[str, Path]], run_jobs: RunJobs
) -> Parts:
    """Applies a reader of one session to all, each of them a job: part -> session -> its audio."""
    jobs = [(part, session_id, path) for part, paths in audio_of.items() for session_id, path in paths.items()]
    parts: Parts = {part: [] for part in audio_of}
    for (part, _, _), session in zip(jobs, run_jobs(partial(_read_job, read), jobs), strict=True):
        parts[part].append(session)
    return parts


def _read_job(read: Callable[[str, Path], Recorded], job: tuple[str, str, Path]) -> Recorded:
    _, session_id, path = job
    return read(session_id, path)


def write_sets(sets: Mapping[str, Sequence[Recorded]], out_dir: Path, run_jobs: RunJobs) -> None:
    """The files of every session, then the manifest of each set."""
    for name, sessions in sets.items():
        manifest.write(out_dir / f"{name}.jsonl", run_jobs(partial(write_session, out_dir), sessions))


def write_session(out_dir: Path, recorded: Recorded) -> Session:
    """Writes what is known of one recording; returns its line of the manifest."""
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
