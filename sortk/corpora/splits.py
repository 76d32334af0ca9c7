"""Single-speaker utterances: train, valid and test speakers for a corpus without splits, and your own sources.jsonl."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sortk.formats import sources
from sortk.formats.files import read_lines
from sortk.records import Source

TRAIN, VALID, TEST = "train", "valid", "test"
SOURCES_NAME = "sources.jsonl"


def stable_random(*parts: object) -> random.Random:
    """Return a generator that depends on the parts alone, not on process or order."""
    # The built-in hash() of a string changes from process to process.
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return random.Random(int.from_bytes(digest[:8], "big"))


def split_speakers(genders: Mapping[str, str], n_valid: int, n_test: int, seed: int = 0) -> dict[str, str]:
    """Return the split of every speaker; no speaker is in two, and each split has its share of each gender.

    The speakers are sorted by gender and shuffled within it. The test speakers are taken at even distances from that
    list, then the validation speakers from the rest. So the result depends only on the set of speakers and the seed,
    not on the order in which a corpus lists them.
    """
    if n_valid + n_test >= len(genders):
        raise ValueError(
            f"{n_valid} validation and {n_test} test speakers leave none of the {len(genders)} for training; "
            "ask for fewer"
        )
    remaining = sorted(genders, key=lambda speaker: (genders[speaker], stable_random(seed, speaker).random(), speaker))
    test = _evenly_spaced(remaining, n_test)
    remaining = [speaker for speaker in remaining if speaker not in test]
    valid = _evenly_spaced(remaining, n_valid)
    return {speaker: TEST if speaker in test else VALID if speaker in valid else TRAIN for speaker in genders}


def share(fraction: float, n_speakers: int) -> int:
    """Return how many of the speakers a fraction is: at least one if it is above 0 and three splits can be filled."""
    wanted = 1 if fraction > 0 and n_speakers >= 3 else 0
    return max(wanted, round(fraction * n_speakers))


def _evenly_spaced(names: Sequence[str], count: int) -> set[str]:
    # The middle of each of `count` equal parts of the list.
    return {names[(2 * part + 1) * len(names) // (2 * count)] for part in range(count)}


# ---------------------------------------------------------------------------------------------------------------------
# Your own utterances


def read_own_sources(corpus_dir: Path, valid_fraction: float, test_fraction: float, seed: int) -> list[Source]:
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
    return [source if source.split else replace(source, split=splits[source.speaker]) for source in utterances]
