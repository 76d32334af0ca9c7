"""Word errors of sequences of any length; tests/scoring has those of sessions."""

from __future__ import annotations

from random import Random
from resource import RUSAGE_SELF, getrusage
from time import process_time

import pytest
from kaldialign import edit_distance

from sortk import edits
from sortk.edits import TimedWords, WordErrors, align, count_edits, count_timed_edits


def _draw_words(rng: Random, n_words: int, n_different: int) -> list[str]:
    return [str(rng.randrange(n_different)) for _ in range(n_words)]


@pytest.mark.parametrize("n_bits_kept", [0, 10_000_000])
def test_long_sequences_are_counted_as_the_library_counts_short_ones(
    monkeypatch: pytest.MonkeyPatch, n_bits_kept: int
) -> None:
    monkeypatch.setattr(edits, "MAX_LIBRARY_CELLS", -1)
    monkeypatch.setattr(edits, "MAX_ROW_BITS", n_bits_kept)
    rng = Random(1)
    for _ in range(500):
        n_different = rng.choice((1, 2, 3, 8, 50))
        ref, hyp = (_draw_words(rng, rng.randrange(1, 90), n_different) for _ in range(2))
        found = edit_distance(ref, hyp)
        assert count_edits(ref, hyp) == WordErrors(len(ref), found["sub"], found["ins"], found["del"]), (ref, hyp)


def test_words_pair_only_where_their_times_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edits, "MAX_ROW_BITS", 0)
    rng = Random(2)
    for _ in range(500):
        sides = []
        for _ in range(2):
            n_words = rng.randrange(12)
            starts = [rng.randrange(20) / 2 for _ in range(n_words)]  # in any order: a speaker may overlap himself
            ends = [start + rng.choice((0.0, 0.5, 3.0)) for start in starts]
            sides.append(TimedWords(tuple(_draw_words(rng, n_words, 3)), tuple(starts), tuple(ends)))
        ref, hyp = sides
        assert count_timed_edits(ref, hyp).wrong == _count_by_recursion(ref, hyp)
        for i, j in align(ref.words, hyp.words, (ref, hyp)):
            if i is not None and j is not None:
                assert ref.starts[i] < hyp.ends[j] and hyp.starts[j] < ref.ends[i]


def _count_by_recursion(ref: TimedWords, hyp: TimedWords) -> int:
    row = [*range(len(hyp.words) + 1)]
    for i, word in enumerate(ref.words):
        before, row = row, [row[0] + 1]
        for j, other in enumerate(hyp.words):
            overlap = ref.starts[i] < hyp.ends[j] and hyp.starts[j] < ref.ends[i]
            pair = before[j] + (word != other) if overlap else before[j] + 2
            row.append(min(before[j + 1] + 1, row[j] + 1, pair))
    return row[-1]


def test_time_and_memory_of_long_sequences_are_bounded() -> None:
    rng = Random(3)
    ref, hyp = (_draw_words(rng, 12_000, 5000) for _ in range(2))
    before, began = getrusage(RUSAGE_SELF).ru_maxrss, process_time()
    assert count_edits(ref, hyp).wrong > 11_000
    times = tuple(float(number) for number in range(12_000))
    ends = tuple(time + 5 for time in times)
    assert count_timed_edits(TimedWords(tuple(ref), times, ends), TimedWords(tuple(hyp), times, ends)).words == 12_000
    assert process_time() - began < 5
    assert getrusage(RUSAGE_SELF).ru_maxrss - before < 300_000  # kB; the matrix with times alone takes 720_000
