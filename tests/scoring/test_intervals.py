"""The fast scorer against pyannote.metrics, on random sessions."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyannote.core import Annotation, Timeline
from pyannote.core import Segment as Span
from pyannote.metrics.diarization import JaccardErrorRate

from sortk.records import Region, Segment
from sortk.scoring.der import count_by_pyannote
from sortk.scoring.intervals import SESSION_US, DerCounts, DerOptions, prepare_reference, tabulate_segments

# Hundredths of a second: boundaries of both sides often fall together, and segments are often empty.
times = st.tuples(st.integers(0, 400), st.integers(0, 150)).map(lambda pair: (pair[0] / 100, sum(pair) / 100))


def segments(speakers: str) -> st.SearchStrategy[list[Segment]]:
    return st.lists(
        st.builds(lambda name, span: Segment("s", name, *span), st.sampled_from(speakers), times), max_size=8
    )


def regions() -> st.SearchStrategy[list[Region]]:
    spans = times.filter(lambda span: span[0] < span[1])
    return st.lists(spans.map(lambda span: Region("s", *span)), min_size=1, max_size=3)


sides = st.tuples(segments("abc"), segments("wxyz"))
options = st.builds(DerOptions, st.sampled_from([0.0, 0.05, 0.25]), st.booleans(), st.just("fast"))


def annotate(side: list[Segment]) -> Annotation:
    found = Annotation()
    for track, segment in enumerate(side):
        if segment.duration > 0:
            found[Span(segment.start, segment.end), track] = segment.speaker
    return found.support()


@settings(max_examples=150, deadline=None)
@given(sides, st.none() | regions(), options)
def test_one_session_is_as_pyannote_says(
    session: tuple[list[Segment], list[Segment]], uem: list[Region] | None, options: DerOptions
) -> None:
    reference, hypothesis = session
    [found] = prepare_reference([reference], uem and [uem], options).score(tabulate_segments([hypothesis]))
    expected = count_by_pyannote(reference, hypothesis, uem, options)
    for name in ("scored", "miss", "false_alarm", "confusion"):
        assert getattr(found.errors, name) == pytest.approx(getattr(expected, name), abs=1e-6), name
    assert sum(found.regions.values(), type(expected)()) == found.errors


@pytest.mark.parametrize("seed", range(20))
def test_jer_is_pyannotes(seed: int) -> None:
    # Odd times: of two mappings that are equally good for DER, either may be taken, and JER tells them apart.
    chance = random.Random(seed)

    def make(speakers: str) -> list[Segment]:
        starts = [round(chance.uniform(0, 60), 6) for _ in range(12)]
        return [Segment("s", chance.choice(speakers), start, start + chance.uniform(0.1, 8)) for start in starts]

    reference, hypothesis = make("abc"), make("wxyz")
    skip_overlap = chance.random() < 0.5
    options = DerOptions(chance.choice([0.0, 0.25]), skip_overlap, "fast")
    [found] = prepare_reference([reference], None, options).score(tabulate_segments([hypothesis]))
    metric = JaccardErrorRate(collar=2 * options.collar, skip_overlap=skip_overlap)
    expected = metric(annotate(reference), annotate(hypothesis), uem=Timeline([Span(0, 100)]))
    assert found.jer == pytest.approx(expected, abs=1e-6)


@settings(max_examples=100, deadline=None)
@example(  # in the second, b may be w or x: the time in common is the same
    [
        ([], [Segment("s", name, 0.0, 0.01) for name in "wxy"]),
        (
            [Segment("s", "a", 0.0, 0.0), Segment("s", "b", 0.02, 0.03), Segment("s", "c", 0.0, 0.01)],
            [Segment("s", "w", 0.02, 0.03), Segment("s", "x", 0.01, 0.03)],
        ),
    ],
    DerOptions(0.0, False, "fast"),
    False,
)
@given(st.lists(sides, max_size=4), options, st.booleans())
def test_many_sessions_at_once_are_as_each_alone(
    sessions: list[tuple[list[Segment], list[Segment]]], options: DerOptions, nist: bool
) -> None:
    if nist:
        options = DerOptions(options.collar, options.skip_overlap, "nist")
    references, hypotheses = [session[0] for session in sessions], [session[1] for session in sessions]
    reference, hypothesis = prepare_reference(references, None, options), tabulate_segments(hypotheses)
    together = reference.score(hypothesis)
    alone = [prepare_reference([ref], None, options).score(tabulate_segments([hyp]))[0] for ref, hyp in sessions]
    assert together == alone
    pooled, counts = reference.score_pooled(hypothesis), sum(together, DerCounts()).errors
    assert (pooled.scored, pooled.miss, pooled.false_alarm, pooled.confusion) == pytest.approx(
        (counts.scored, counts.miss, counts.false_alarm, counts.confusion), abs=1e-9
    )


@settings(max_examples=60, deadline=None)
@given(sides, options)
def test_a_hypothesis_equal_to_the_reference_has_no_errors(
    session: tuple[list[Segment], list[Segment]], options: DerOptions
) -> None:
    reference = prepare_reference([session[0]], None, options)
    [found] = reference.score(tabulate_segments([session[0]]))
    assert found.errors.wrong == 0 and found.jer == 0 and found.count_accuracy == 1
    # Nobody gains by saying nothing: all is missed then.
    [silent] = reference.score(tabulate_segments([[]]))
    assert silent.errors.miss == silent.errors.scored == found.errors.scored


def test_times_beyond_the_axis_are_a_sentence() -> None:
    far = [Segment("s", "a", 0.0, SESSION_US / 1e6)]
    with pytest.raises(ValueError, match="more than can be scored at once"):
        prepare_reference([far], None, DerOptions())


def test_a_uem_may_end_never() -> None:
    reference = prepare_reference([[Segment("s", "a", 0.0, 4.0)]], [[Region("s", 1.0, 1e9)]], DerOptions(0.0))
    assert reference.score_pooled(tabulate_segments([[]])).scored == 3.0


def test_memory_does_not_grow_with_turns_times_speakers() -> None:
    # 2000 speakers of 1 s each, one after the other; to the hypothesis they are one: it is right about one of them.
    reference = [Segment("s", f"speaker{n}", float(n), n + 1.0) for n in range(2000)]
    tracemalloc.start()
    prepared = prepare_reference([reference], None, DerOptions(0.0))
    [found] = prepared.score(tabulate_segments([[Segment("s", "x", 0.0, 2000.0)]]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (found.errors.scored, found.errors.confusion, found.errors.wrong) == (2000.0, 1999.0, 1999.0)
    assert peak < 8e6  # a number for each turn and speaker would be 64 MB


def test_a_session_of_many_speakers_beside_many_sessions_is_scored() -> None:
    crowd = [Segment("s", f"speaker{n}", 0.0, 1.0) for n in range(100)]
    prepared = prepare_reference([crowd, *[[Segment("s", "a", 0.0, 1.0)]] * 21_000], None, DerOptions(0.0))
    assert prepared.region_us.sum() == 21_100e6


def test_more_speakers_than_can_be_mapped_are_a_sentence() -> None:
    crowd = [Segment("s", f"speaker{n}", 0.0, 1.0) for n in range(3200)]
    with pytest.raises(ValueError, match="3200 reference and 3200 hypothesis speakers, too many to map"):
        prepare_reference([crowd], None, DerOptions()).score(tabulate_segments([crowd]))
