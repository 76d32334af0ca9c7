"""Intervals and paired comparisons, against all sets of sessions written out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from sortk.scoring.compare import SessionCounts, bootstrap, compare


def test_two_sessions_by_hand() -> None:
    # A is wrong for 1 and 2 of 10 s, B for 4 and 1. The four sets (1,1), (1,2), (2,1), (2,2) of 20 s each have the
    # differences B - A: (8 - 2) / 20 = .3, (5 - 3) / 20 = .1, .1, and (2 - 4) / 20 = -.1. One of the four is negative:
    # p = 2 * 1/4. The quantiles .025 and .975 of (-.1, .1, .1, .3) are -.1 + .075 * .2 and .1 + .925 * .2.
    found = compare(SessionCounts([1, 2], [10, 10]), SessionCounts([4, 1], [10, 10]))
    assert found.difference == pytest.approx(0.1)
    assert found.p_value == 0.5
    assert found.interval == pytest.approx((-0.085, 0.285))
    assert found.n_sessions == 2


def test_the_order_of_the_systems_turns_the_sign() -> None:
    a, b = SessionCounts([1.0, 2.0, 0.5], [10.0, 12.0, 9.0]), SessionCounts([3.0, 1.0, 0.7], [10.0, 12.0, 9.0])
    forth, back = compare(a, b), compare(b, a)
    assert forth.difference == -back.difference and forth.p_value == back.p_value
    assert forth.interval == pytest.approx((-back.interval[1], -back.interval[0]))


def test_equal_systems_do_not_differ() -> None:
    same = SessionCounts([1.0] * 30, [10.0] * 30)
    found = compare(same, same)
    assert (found.difference, found.interval, found.p_value) == (0.0, (0.0, 0.0), 1.0)


def test_a_difference_that_every_session_shows_is_significant_however_much_sessions_vary() -> None:
    rng = np.random.default_rng(1)
    scored = rng.uniform(50, 100, 40)
    wrong = scored * rng.uniform(0.0, 0.6, 40)  # some sessions are far harder than others
    found = compare(SessionCounts(wrong, scored), SessionCounts(wrong + 0.02 * scored, scored))
    assert found.difference == pytest.approx(0.02) and found.interval == pytest.approx((0.02, 0.02))
    assert found.p_value == pytest.approx(2 / 10_001)
    low, high = bootstrap(wrong, scored) or (0, 0)
    assert high - low > 0.05  # the rate itself is far less certain


def test_a_session_without_speech_is_not_a_division_by_zero() -> None:
    found = compare(SessionCounts([1, 0], [10, 0]), SessionCounts([2, 1], [10, 0]))
    # The set of the empty session alone is left out; of the other three, (1,1): .1, (1,2) and (2,1): 2 / 10.
    assert found.difference == pytest.approx(0.2) and found.p_value == 0.0


def test_what_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="at least 2 sessions, got 1"):
        compare(SessionCounts([1], [10]), SessionCounts([2], [10]))
    with pytest.raises(ValueError, match="nothing to score"):
        compare(SessionCounts([1, 1], [0, 0]), SessionCounts([2, 1], [0, 0]))
