"""Intervals and paired comparisons, against all sets of sessions written out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from sortk.scoring.compare import SessionCounts, bootstrap, compare


def test_two_sessions_by_hand() -> None:
    # A is wrong for 1 and 2 of 10 s, B for 4 and 1. The four sets (1,1), (1,2), (2,1), (2,2) of 20 s each have the
    # differences B - A: (8 - 2) / 20 = .3, (5 - 3) / 20 = .1, .1, and (2 - 4) / 20 = -.1. One of the four is negative:
    # p = 2 * 1/4. The quantiles .025 and .975 of (-.1, .1, .1, .3) are -.1 + .075 * .2 and .1 + .925 * .2.
    found = compare([SessionCounts([1, 2], [10, 10])], [SessionCounts([4, 1], [10, 10])])
    assert found.difference == pytest.approx(0.1)
    assert found.p_value == 0.5
    assert found.interval == pytest.approx((-0.085, 0.285))
    assert found.n_sessions == 2


def test_the_order_of_the_systems_turns_the_sign() -> None:
    a, b = SessionCounts([1.0, 2.0, 0.5], [10.0, 12.0, 9.0]), SessionCounts([3.0, 1.0, 0.7], [10.0, 12.0, 9.0])
    forth, back = compare([a], [b]), compare([b], [a])
    assert forth.difference == -back.difference and forth.p_value == back.p_value
    assert forth.interval == pytest.approx((-back.interval[1], -back.interval[0]))


def test_equal_systems_do_not_differ() -> None:
    same = SessionCounts([1.0] * 30, [10.0] * 30)
    found = compare([same], [same])
    assert (found.difference, found.interval, found.p_value) == (0.0, (0.0, 0.0), 1.0)


def test_a_difference_that_every_session_shows_is_significant_however_much_sessions_vary() -> None:
    rng = np.random.default_rng(1)
    scored = rng.uniform(50, 100, 40)
    wrong = scored * rng.uniform(0.0, 0.6, 40)  # some sessions are far harder than others
    found = compare([SessionCounts(wrong, scored)], [SessionCounts(wrong + 0.02 * scored, scored)])
    assert found.difference == pytest.approx(0.02) and found.interval == pytest.approx((0.02, 0.02))
    assert found.p_value == pytest.approx(2 / 10_001)
    low, high = bootstrap([SessionCounts(wrong, scored)]) or (0, 0)
    assert high - low > 0.05  # the rate itself is far less certain


def test_runs_are_drawn_by_themselves() -> None:
    """Every session of a run has the same rate, so only the runs decide. Two of two are drawn: with A at 10 and 30 %,
    a quarter of the draws have 10, a half 20, a quarter 30 %, and the distance from 20 is enlarged by sqrt(2)."""
    scored = [10.0] * 20
    runs = [SessionCounts([1.0] * 20, scored), SessionCounts([3.0] * 20, scored)]
    assert bootstrap(runs) == pytest.approx((0.2 - 0.1 * 2**0.5, 0.2 + 0.1 * 2**0.5))
    # B has 25 % in its only run. A is above it in the quarter of draws with 20 + 14 %.
    found = compare(runs, [SessionCounts([2.5] * 20, scored)])
    assert found.difference == pytest.approx(0.05)
    assert found.p_value == pytest.approx(0.5, abs=0.03)
    assert found.interval == pytest.approx((0.05 - 0.1 * 2**0.5, 0.05 + 0.1 * 2**0.5))


def test_runs_and_sessions_both_widen_the_interval() -> None:
    rng = np.random.default_rng(2)
    scored = np.full(100, 10.0)
    hard = rng.uniform(0, 4, 100)
    runs = [SessionCounts(hard + change, scored) for change in (0.0, 0.5, 1.0)]
    widths = [high - low for low, high in (bootstrap([runs[1]]) or (0, 0), bootstrap(runs) or (0, 0))]
    # Standard errors by theory, in points: of sessions 10 sqrt(16 / 12 / 100) = 1.15, of runs 5 / sqrt(3) = 2.9.
    assert widths[0] == pytest.approx(2 * 1.96 * 0.0115, rel=0.15)
    assert widths[1] == pytest.approx(2 * 1.96 * np.hypot(0.0115, 0.029), rel=0.15)


def test_a_session_without_speech_is_not_a_division_by_zero() -> None:
    found = compare([SessionCounts([1, 0], [10, 0])], [SessionCounts([2, 1], [10, 0])])
    # The set of the empty session alone is left out; of the other three, (1,1): .1, (1,2) and (2,1): 2 / 10.
    assert found.difference == pytest.approx(0.2) and found.p_value == 0.0


def test_what_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="at least 2 sessions, got 1"):
        compare([SessionCounts([1], [10])], [SessionCounts([2], [10])])
    with pytest.raises(ValueError, match="nothing to score"):
        compare([SessionCounts([1, 1], [0, 0])], [SessionCounts([2, 1], [0, 0])])
