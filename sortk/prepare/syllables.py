"""Word times from segment times (Appendix C of the paper): every syllable of a segment is taken to last equally long."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sortk.records import Word

VOWEL_GROUP = re.compile(r"[aeiouy]+")


def count_syllables(word: str) -> int:
    """Vowel groups, at least one; a silent final e does not count."""
    letters = word.lower()
    count = len(VOWEL_GROUP.findall(letters))
    if letters.endswith("e") and not letters.endswith("le") and count > 1:
        count -= 1
    return max(count, 1)


def approximate_word_times(words: Sequence[str], start: float, end: float) -> list[Word]:
    """The words of a segment [start, end] one after the other, each as long as its syllables.

    tau_i = [delta_i, delta_i + lambda n_i] with lambda = l / N: segment length over its number of syllables.
    """
    counts = [count_syllables(word) for word in words]
    syllable_seconds = (end - start) / max(sum(counts), 1)
    times, delta = [], start
    for word, n_syllables in zip(words, counts, strict=True):
        times.append(Word(word, delta, delta + syllable_seconds * n_syllables))
        delta += syllable_seconds * n_syllables
    return times
