"""Your own single-speaker utterances, as a sources.jsonl: checked, and divided into splits if they have none."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from sortk.corpora.splits import share, split_speakers
from sortk.formats import sources
from sortk.formats.files import read_lines
from sortk.records import Source

SOURCES_NAME = "sources.jsonl"


def prepare(corpus_dir: Path, valid_fraction: float, test_fraction: float, seed: int) -> list[Source]:
    """Return the utterances of `corpus_dir`, a sources.jsonl or the folder that holds it; their audio must exist."""
    path = find_sources(corpus_dir)
    if path is None:
        raise FileNotFoundError(f"{corpus_dir}: neither a .jsonl file nor a folder with a {SOURCES_NAME}")
    return fill_splits(read_existing(path), valid_fraction, test_fraction, seed)


def read_existing(path: Path) -> list[Source]:
    """Return the utterances of a sources file; raise an error for the first without audio."""
    numbered = list(sources.parse(read_lines(path), path))
    sources.check_files(numbered, path)
    return [source for _, source in numbered]


def find_sources(path: Path) -> Path | None:
    """Return the sources file that a user means by a path; None if there is none."""
    if path.is_dir():
        path = path / SOURCES_NAME
    return path if path.is_file() else None


def fill_splits(utterances: Sequence[Source], valid_fraction: float, test_fraction: float, seed: int) -> list[Source]:
    """Return the utterances, each with a split: its own, that of its speaker, or one by `split_speakers`."""
    splits = {source.speaker: source.split for source in utterances if source.split}
    genders = {source.speaker: source.gender for source in utterances if source.speaker not in splits}
    if genders:
        n_valid, n_test = share(valid_fraction, len(genders)), share(test_fraction, len(genders))
        splits |= split_speakers(genders, n_valid, n_test, seed)
    return [
        source if source.split else dataclasses.replace(source, split=splits[source.speaker]) for source in utterances
    ]
