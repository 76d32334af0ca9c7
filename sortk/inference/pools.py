"""Models on many sessions, here or in other processes: a job is a pool of sessions, and loads the model once.

Sessions of a pool are padded together, so results depend on the pools but not on where each is processed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from sortk.formats.posteriors import Probs
from sortk.inference.diarize import POOL, Diarizer, load
from sortk.inference.load import read_frame_seconds
from sortk.inference.pieces import TranscribeOptions, Transcriber
from sortk.inference.transcribe import load_transcriber
from sortk.models.decoding import Decoding
from sortk.records import RunJobs, Segment, Session


@dataclass(frozen=True)
class PooledDiarizer:
    """GivesPosteriors as `Diarizer` does."""

    model: Path
    run_jobs: RunJobs
    device: str | None = None

    @property
    def frame_seconds(self) -> float:
        """Return the duration of a row of posteriors."""
        return read_frame_seconds(self.model)

    def posteriors_of(self, sessions: Sequence[Session]) -> Iterator[tuple[Session, Probs]]:
        """Yield the posteriors of each session, in order."""
        for found in self.run_jobs(partial(diarize_sessions, self.model, self.device), _split(sessions)):
            yield from found


@dataclass(frozen=True)
class PooledTranscriber:
    """Transcribes samples as `Transcriber` does."""

    model: Path
    diarizer: Path | None  # for a model without one inside
    decoding: Decoding
    run_jobs: RunJobs

    def transcribe_samples(self, samples: Sequence[Session]) -> Iterator[tuple[Session, str, list[Segment]]]:
        """Yield the SST and the words of each sample."""
        work = partial(transcribe_samples, self.model, self.diarizer, self.decoding)
        for written in self.run_jobs(work, _split(samples)):
            yield from written


def diarize_sessions(model: Path, device: str | None, sessions: Sequence[Session]) -> list[tuple[Session, Probs]]:
    """Return the posteriors of a pool: a job of `PooledDiarizer`."""
    return list(_load_diarizer(model, device, _version(model)).posteriors_of(sessions))


def transcribe_samples(
    model: Path, diarizer: Path | None, decoding: Decoding, samples: Sequence[Session]
) -> list[tuple[Session, str, list[Segment]]]:
    """Return the transcripts of a pool: a job of `PooledTranscriber`."""
    versions = _version(model), _version(diarizer) if diarizer else 0
    transcriber = _load_transcriber(model, diarizer, decoding, versions)
    return list(transcriber.transcribe_samples(samples))


def _split(sessions: Sequence[Session]) -> list[Sequence[Session]]:
    return [sessions[first : first + POOL] for first in range(0, len(sessions), POOL)]


def _version(model: Path) -> int:
    """Return a number that changes when the model is trained again; the loader reports a missing model."""
    weights = model / "model.safetensors" if model.is_dir() else model
    return weights.stat().st_mtime_ns if weights.exists() else 0


@lru_cache(maxsize=1)
def _load_diarizer(model: Path, device: str | None, version: int) -> Diarizer:
    return load(model, device=device)


@lru_cache(maxsize=1)
def _load_transcriber(
    model: Path, diarizer: Path | None, decoding: Decoding, versions: tuple[int, int]
) -> Transcriber[Any]:
    return load_transcriber(model, diarizer, TranscribeOptions(decoding=decoding))
