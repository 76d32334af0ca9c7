"""The third DIHARD challenge, development (LDC2022S12) and evaluation (LDC2022S14): eleven domains, 1 to 10 speakers.

    third_dihard_challenge_dev/data/flac/DH_DEV_0001.flac       and .../third_dihard_challenge_eval/..., DH_EVAL_0001
    third_dihard_challenge_dev/data/rttm/DH_DEV_0001.rttm
    third_dihard_challenge_dev/data/uem/DH_DEV_0001.uem

Either may be missing. `dev` and `eval` have all sessions; `dev4` and `eval4` those of up to four speakers,
on which the paper tests. There are no transcripts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sortk.corpora.sessions import Parts, Published, RecordedSession, find_files, name_speakers, need_file
from sortk.formats import audio, rttm, uem
from sortk.records import RunJobs

# Ryant et al. 2021, The Third DIHARD Diarization Challenge: the full sets.
PUBLISHED = {"dev": Published(254, 34.15), "eval": Published(259, 33.01)}

PART_OF_PREFIX = {"DH_DEV_": "dev", "DH_EVAL_": "eval"}
MAX_SPEAKERS = 4  # in dev4 and eval4
SUBSETS = frozenset({"dev4", "eval4"})


@dataclass(frozen=True, slots=True)
class Files:
    """The files of one session."""

    session_id: str
    data_dir: Path

    @property
    def flac(self) -> Path:
        return need_file(self.data_dir / "flac" / f"{self.session_id}.flac", f"the audio of {self.session_id}")

    @property
    def rttm(self) -> Path:
        return need_file(self.data_dir / "rttm" / f"{self.session_id}.rttm", f"the reference of {self.session_id}")

    @property
    def uem(self) -> Path:
        return need_file(self.data_dir / "uem" / f"{self.session_id}.uem", f"the scored regions of {self.session_id}")


def read(corpus_dir: Path, run_jobs: RunJobs) -> Parts:
    """Return the parts that are on disk: all sessions of each, and those of few speakers."""
    parts: Parts = {}
    for part, sessions in _find_sessions(corpus_dir).items():
        parts[part] = list(run_jobs(read_session, sessions))
        parts[f"{part}{MAX_SPEAKERS}"] = [
            session for session in parts[part] if len({segment.speaker for segment in session.segments}) <= MAX_SPEAKERS
        ]
    return parts


def read_session(files: Files) -> RecordedSession:
    """Read one session; raise FileNotFoundError for the first of its files that is missing."""
    return RecordedSession(
        files.session_id,
        files.flac,
        audio.info(files.flac).seconds,
        segments=name_speakers(rttm.read(files.rttm)),
        regions=tuple(uem.read(files.uem)),
    )


def _find_sessions(corpus_dir: Path) -> dict[str, list[Files]]:
    """Return the sessions by part and name: those with audio, or with a reference in a folder that has audio."""
    files = find_files(corpus_dir)
    found = {
        kind: [path for path in files if path.suffix == f".{kind}" and path.parent.name == kind]
        for kind in ("flac", "rttm")
    }
    data_dirs = {path.parents[1] for path in found["flac"]}  # not those of what stage 0 writes
    names = {(path.stem, path.parents[1]) for paths in found.values() for path in paths if path.parents[1] in data_dirs}
    sessions: dict[str, list[Files]] = {}
    for session_id, data_dir in sorted(names):
        for prefix, part in PART_OF_PREFIX.items():
            if session_id.startswith(prefix):
                sessions.setdefault(part, []).append(Files(session_id, data_dir))
    if not sessions:
        raise FileNotFoundError(
            f"{corpus_dir}: no data/flac/DH_DEV_0001.flac nor DH_EVAL_0001.flac, ..., here or below"
        )
    return sessions
