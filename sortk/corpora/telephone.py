"""Shared by the readers of telephone corpora: audio by file name, in any folder of the discs; names of speakers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sortk.formats import audio
from sortk.records import Segment

PACKED_SUFFIX = ".sph"


@dataclass(frozen=True, slots=True)
class TelephoneCall:
    """One conversation on disk."""

    session_id: str
    audio_path: Path
    transcript: Path


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
