"""What travels between the rooms: frozen records, all times in seconds from the start of the recording."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

SAMPLE_RATE = 16_000
"""Samples per second of all audio that models and speech detectors process."""

FRAME_SECONDS = 0.08
"""How long a frame of posteriors is, unless the model or the file says otherwise."""

RunJobs = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]
"""How a room hands out work: applies a picklable function to each item, here or in other processes, and gives the
results in the order of the items. The built-in `map` is one; `cluster.py` has the others."""


@dataclass(frozen=True, slots=True)
class Word:
    """One spoken word with its times."""

    text: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of one speaker's speech; with `text`, what was said in it (one word at word level)."""

    session_id: str
    speaker: str
    start: float
    end: float
    text: str = ""
    channel: str = "1"
    confidence: float | None = None
    """How sure a recogniser is of a word, 0 to 1."""

    @property
    def duration(self) -> float:
        return self.end - self.start

    def shift(self, seconds: float) -> Segment:
        """Return the segment moved in time, such as between a window and its recording."""
        return replace(self, start=self.start + seconds, end=self.end + seconds)


def arrival_order(segments: Iterable[Segment], offset: float = 0.0) -> dict[str, int]:
    """Return the place of each speaker by arrival: 0 for the one who speaks first. Transcripts number their speakers
    so, and diarizer targets have their columns so.

    Of two who start together (to the microsecond, in a window that begins at `offset`: who speak already), the one
    whose name comes first in the alphabet arrives first. Names are all that segments, words and every window of a
    recording have in common; the end of a segment is not that of its first word.
    """
    first: dict[str, float] = {}
    for segment in segments:
        start = round(max(segment.start, offset), 6)
        first[segment.speaker] = min(start, first.get(segment.speaker, start))
    in_order = sorted(first, key=lambda speaker: (first[speaker], speaker))
    return {speaker: place for place, speaker in enumerate(in_order)}


@dataclass(frozen=True, slots=True)
class Region:
    """A stretch of a recording that is to be scored (UEM)."""

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
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Keys of other tools, kept as they are."""


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
    split: str = ""
    """train, valid or test, where the corpus has a say in it."""
