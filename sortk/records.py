"""Frozen records that all packages share; all times are seconds from the start of the recording."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

SAMPLE_RATE = 16_000
"""Samples per second of all audio that models and speech detectors process."""

FRAME_SECONDS = 0.08
"""Duration of a frame of posteriors, unless the model or the file has another."""

RunJobs = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]
"""Runs jobs: applies a picklable function to each item, in this process or in others, and yields the results in the
order of the items. The built-in `map` is one; `run/workers.py` and `slurm/` have the others."""


def name_work(work: Callable[..., Any]) -> str:
    """Return the name of a job's function in words, for progress bars and Slurm jobs."""
    function = work.func if isinstance(work, partial) else work
    return str(getattr(function, "__name__", "work")).strip("_").replace("_", " ")


class Counts:
    """Base of dataclasses whose fields add up, such as the summaries of sessions."""

    def __add__(self, other: Self) -> Self:
        names = [entry.name for entry in fields(self)]  # type: ignore[arg-type]
        return type(self)(*(getattr(self, name) + getattr(other, name) for name in names))


@dataclass(frozen=True, slots=True)
class Word:
    """One spoken word with its times."""

    text: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Segment:
    """A span of one speaker's speech; `text` is what was said in it (one word at word level)."""

    session_id: str
    speaker: str
    start: float
    end: float
    text: str = ""
    channel: str = "1"
    confidence: float | None = None  # of a recognizer in a word, 0 to 1

    @property
    def duration(self) -> float:
        return self.end - self.start

    def shift(self, seconds: float) -> Segment:
        """Return the segment moved in time, such as between a window and its recording."""
        return replace(self, start=self.start + seconds, end=self.end + seconds)


def arrival_order(segments: Iterable[Segment], offset: float = 0.0) -> dict[str, int]:
    """Return the place of each speaker by arrival: 0 for the one who speaks first. Transcripts number their speakers in
    this order, and the columns of diarizer targets have it.

    Of two who start together (to the microsecond; in a window that begins at `offset`: who speak already), the one
    whose name comes first in the alphabet arrives first. Only the name is the same in segments, words and every window
    of a recording; the end of a segment is not that of its first word.
    """
    first: dict[str, float] = {}
    for segment in segments:
        start = round(max(segment.start, offset), 6)
        first[segment.speaker] = min(start, first.get(segment.speaker, start))
    in_order = sorted(first, key=lambda speaker: (first[speaker], speaker))
    return {speaker: place for place, speaker in enumerate(in_order)}


@dataclass(frozen=True, slots=True)
class Region:
    """A span of a recording that is scored (UEM)."""

    session_id: str
    start: float
    end: float
    channel: str = "1"


@dataclass(frozen=True, slots=True)
class Session:
    """A recording, or a window of one, with the files that describe it: one line of a manifest."""

    session_id: str
    audio_path: Path
    duration: float | None = None
    offset: float = 0.0
    text: str | None = None
    num_speakers: int | None = None
    rttm_path: Path | None = None
    uem_path: Path | None = None
    ctm_path: Path | None = None
    seglst_path: Path | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)  # keys of other tools, kept unchanged
    channel: int | None = None  # of the audio, counted from 1; None: the average of all


@dataclass(frozen=True, slots=True)
class Source:
    """One utterance of one speaker, the raw material of simulated conversations: one line of sources.jsonl.

    `words`, `speech_start` and `speech_end` count from the start of the utterance (that is, from `offset`).
    """

    utterance_id: str
    audio_path: Path
    offset: float
    duration: float
    speaker: str
    text: str
    words: tuple[Word, ...] = ()
    speech_start: float | None = None
    speech_end: float | None = None
    gender: str = ""
    split: str = ""  # train, valid or test; empty if the corpus has no splits
