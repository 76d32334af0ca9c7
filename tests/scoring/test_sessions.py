from __future__ import annotations

import pytest

from sortk.scoring.sessions import name_sessions, note_sessions


def test_what_does_not_fit_is_named() -> None:
    assert note_sessions(["a", "b"], ["b", "c"], "deleted") == [
        "no hypothesis, counted as all deleted: 1 session (a)",
        "not in the reference, so not scored: 1 session (c)",
    ]
    assert note_sessions(["a"], ["a"], "deleted") == []


def test_an_empty_hypothesis_is_all_wrong() -> None:
    assert note_sessions(["a"], [], "missed") == ["no hypothesis, counted as all missed: 1 session (a)"]


@pytest.mark.parametrize(
    ("references", "hypotheses", "message"),
    [
        ([], ["a"], "the reference has no sessions"),
        (["Rec1", "rec2"], ["rec1", "rec2"], "'Rec1' of the reference is 'rec1' in the hypothesis"),
        (["a"], ["b"], r"no session in common: 1 session \(a\) in the reference, 1 session \(b\)"),
    ],
)
def test_what_makes_a_score_meaningless_is_an_error(references: list[str], hypotheses: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        note_sessions(references, hypotheses, "deleted")


def test_of_many_sessions_the_first_are_named() -> None:
    assert name_sessions("gfedcba") == "7 sessions (a, b, c, d, e, ...)"
