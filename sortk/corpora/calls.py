"""What the readers of telephone corpora share: files by name, wherever the discs were copied to; names of speakers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sortk.formats import audio
from sortk.records import Segment

PACKED_SUFFIX = ".sph"


@dataclass(frozen=True, slots=True)
class Call:
    """One conversation on disk."""

    session_id: str
    audio_path: Path
    transcript: Path


def find_files(corpus_dir: Path) -> list[Path]:
    """Every file below the folder, by name. Links to other folders are followed: discs are often linked together."""
    return sorted(_walk(corpus_dir, set()))


def _walk(folder: Path, seen: set[Path]) -> Iterator[Path]:
    if folder.resolve() in seen:  # a link to a folder around it
        return
    seen.add(folder.resolve())
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _walk(Path(entry.path), seen)
            else:
                yield Path(entry.path)


def index_audio(files: Iterable[Path]) -> dict[str, Path]:
    """The audio files by their names without suffix. Beside an .sph, the file that it was unpacked to is taken."""
    found: dict[str, Path] = {}
    for path in files:
        if path.suffix.lower() not in audio.SUFFIXES:
            continue
        if path.stem not in found or found[path.stem].suffix.lower() == PACKED_SUFFIX:
            found[path.stem] = path
    return found


def need_audio(found: Mapping[str, Path], name: str, corpus_dir: Path) -> Path:
    """The audio of that name; FileNotFoundError if there is none."""
    if name not in found:
        raise FileNotFoundError(
            f"{corpus_dir}: no {name}.sph (nor {name}.wav or .flac) in this folder or below; is the corpus complete?"
        )
    return found[name]


def name_speakers(turns: Iterable[Segment]) -> tuple[Segment, ...]:
    """With speakers of names that no other session has: A of one call is not A of the next."""
    return tuple(replace(turn, speaker=f"{turn.session_id}-{turn.speaker}") for turn in turns)
