from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sortk.records import Region, Segment
from sortk.report.errors import Mark, find_errors, merge_turns
from sortk.scoring.der import score_der
from sortk.scoring.der_counts import DerOptions


def turns(*spans: tuple[str, float, float]) -> list[Segment]:
    return [Segment("s", *span) for span in spans]


REFERENCE = turns(("ann", 0, 10), ("bob", 8, 20))


def test_each_kind_of_error_has_its_place() -> None:
    found = find_errors(REFERENCE, turns(("x", 0, 9), ("y", 9, 14), ("x", 14, 16), ("z", 22, 23)))
    # x is ann (9 s in common), y is bob; from 8 to 10 two speak and one is heard; from 14 to 16 bob is taken for ann.
    assert found.mapping == {"x": "ann", "y": "bob"}
    assert found.marks == (
        Mark(8, 10, 1, 0, 0),
        Mark(14, 16, 0, 0, 1),
        Mark(16, 20, 1, 0, 0),
        Mark(22, 23, 0, 1, 0),
    )


def test_collars_overlap_and_what_is_not_scored_have_no_marks() -> None:
    nobody = turns()
    assert find_errors(REFERENCE, nobody).marks == (Mark(0, 8, 1, 0, 0), Mark(8, 10, 2, 0, 0), Mark(10, 20, 1, 0, 0))
    collared = find_errors(REFERENCE, nobody, collar=0.5).marks
    assert [(mark.start, mark.end) for mark in collared] == [(0.5, 7.5), (8.5, 9.5), (10.5, 19.5)]
    assert [mark.start for mark in find_errors(REFERENCE, nobody, skip_overlap=True).marks] == [0, 10]
    assert find_errors(REFERENCE, nobody, regions=[Region("s", 1, 2)]).marks == (Mark(1, 2, 1, 0, 0),)
    assert find_errors(nobody, nobody).marks == ()


def test_segments_of_one_speaker_that_touch_are_one_turn() -> None:
    assert merge_turns(turns(("bob", 5, 6), ("ann", 1, 2), ("ann", 1.5, 1.8), ("ann", 2, 3), ("cy", 4, 4))) == {
        "ann": [(1, 3)],
        "bob": [(5, 6)],
    }


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
    marks = find_errors(reference, hypothesis, collar, skip_overlap, regions).marks
    for kind, seconds in (
        ("missed", scored.miss),
        ("false_alarm", scored.false_alarm),
        ("confusion", scored.confusion),
    ):
        assert abs(sum((mark.end - mark.start) * getattr(mark, kind) for mark in marks) - seconds) < 1e-5
