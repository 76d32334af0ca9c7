"""Random choices that follow from the seed and an id; train, valid and test speakers for a corpus without splits."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence

TRAIN, VALID, TEST = "train", "valid", "test"


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
