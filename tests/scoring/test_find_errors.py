from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sortk.records import Region, Segment
from sortk.scoring.der import score_der
from sortk.scoring.intervals import DerOptions, ErrorMarks, Mark, find_errors


def turns(*spans: tuple[str, float, float]) -> list[Segment]:
    return [Segment("s", *span) for span in spans]


def errors(
    reference: list[Segment],
    hypothesis: list[Segment],
    collar: float = 0.0,
    skip_overlap: bool = False,
    regions: list[Region] | None = None,
) -> ErrorMarks:
    return find_errors(reference, hypothesis, regions, DerOptions(collar, skip_overlap))


REFERENCE = turns(("ann", 0, 10), ("bob", 8, 20))


def test_each_kind_of_error_has_its_place() -> None:
    found = errors(REFERENCE, turns(("x", 0, 9), ("y", 9, 14), ("x", 14, 16), ("z", 22, 23)))
    # x is ann (9 s in common), y is bob; from 8 to 10 two speak and one is heard; from 14 to 16 bob is taken for ann.
    assert found.mapping == {"x": "ann", "y": "bob"}
    assert found.marks == (
        Mark(8, 10, 1, 0, 0),
        Mark(14, 16, 0, 0, 1),
        Mark(16, 20, 1, 0, 0),
        Mark(22, 23, 0, 1, 0),
    )


def test_a_change_of_speakers_that_the_hypothesis_does_not_have() -> None:
    found = errors(turns(("ann", 0, 6), ("bob", 6, 10)), turns(("x", 0, 10)))  # one speaks all the time
    assert found == ErrorMarks({"x": "ann"}, (Mark(6, 10, 0, 0, 1),))


def test_marks_say_what_is_not_scored() -> None:
    nobody = turns()
    assert errors(REFERENCE, nobody).marks == (Mark(0, 8, 1, 0, 0), Mark(8, 10, 2, 0, 0), Mark(10, 20, 1, 0, 0))
    collared = errors(REFERENCE, nobody, collar=0.5).marks
    scored = [(mark.start, mark.end) for mark in collared if mark.is_scored]
    assert scored == [(0.5, 7.5), (8.5, 9.5), (10.5, 19.5)]
    # Inside the collars errors are marked, too: from 7.5 to 8 ann alone is missed, from 8 to 8.5 both are.
    assert collared[2:4] == (Mark(7.5, 8, 1, 0, 0, False), Mark(8, 8.5, 2, 0, 0, False))
    skipped = errors(REFERENCE, nobody, skip_overlap=True).marks
    assert [(mark.start, mark.is_scored) for mark in skipped] == [(0, True), (8, False), (10, True)]
    assert errors(REFERENCE, nobody, regions=[Region("s", 1, 2)]).marks == (Mark(1, 2, 1, 0, 0),)
    assert errors(nobody, nobody).marks == ()


def some_turns(speakers: str) -> st.SearchStrategy[list[Segment]]:
    turn = st.tuples(st.sampled_from(speakers), st.integers(0, 60), st.integers(1, 25))
    return st.lists(turn.map(lambda t: Segment("s", t[0], t[1] / 4, (t[1] + t[2]) / 4)), max_size=9)


@settings(max_examples=60, deadline=None)
@given(some_turns("abc"), some_turns("wxyz"), st.sampled_from([0.0, 0.25, 0.3]), st.booleans(), st.booleans())
def test_the_marks_add_up_to_what_the_scorer_counts(
    reference: list[Segment], hypothesis: list[Segment], collar: float, skip_overlap: bool, with_uem: bool
) -> None:
    regions = [Region("s", 2.0, 6.1), Region("s", 7.0, 30.0)] if with_uem else None
    uem = {"s": regions} if regions else None
    scored = score_der({"s": reference}, {"s": hypothesis}, uem, DerOptions(collar, skip_overlap)).overall.errors
    marks = errors(reference, hypothesis, collar, skip_overlap, regions).marks
    for kind, seconds in (
        ("missed", scored.miss),
        ("false_alarm", scored.false_alarm),
        ("confusion", scored.confusion),
    ):
        assert (
            abs(sum((mark.end - mark.start) * getattr(mark, kind) for mark in marks if mark.is_scored) - seconds) < 1e-5
        )
