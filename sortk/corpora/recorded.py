"""Sessions of recorded corpora: what every reader finds, whatever the corpus looks like on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sortk.records import Region, Segment


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recording with its reference; all times count from its start."""

    session_id: str
    audio_path: Path  # where the corpus has it; never copied
    duration: float
    segments: tuple[Segment, ...]  # who speaks when
    transcript: tuple[
        Segment, ...
    ] = ()  # what is said: a word each, or an utterance each; none if nobody wrote it down
    regions: tuple[Region, ...] = ()  # what is scored; none: all of it


Parts = dict[str, list[Recorded]]
"""The sessions of a corpus by its own parts: train, dev, test, part1, ..."""
