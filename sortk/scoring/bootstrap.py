"""How sure a pooled error rate is, and the difference of two: bootstrap over sessions.

A set of n sessions stands for the sessions that could have been recorded. Draw n of them with replacement, many times;
the rates of the drawn sets show how much the rate would change with other sessions. To compare two systems, both are
scored on the same drawn sets (Bisani and Ney, "Bootstrap estimates for confidence intervals in ASR performance
evaluation", ICASSP 2004): a session that is hard for both does not blur the difference.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

N_DRAWS = 1000  # for an interval
N_PAIRED_DRAWS = 10_000  # for a p-value; all n^n possible sets are taken instead where there are no more of them
INTERVAL = (0.025, 0.975)


@dataclass(frozen=True)
class Counts:
    """The errors of one system by session: its rate is sum(wrong) / sum(scored)."""

    wrong: Sequence[float]
    scored: Sequence[float]

    def rates(self, drawn: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the rate of each drawn set; `drawn` has the numbers of its sessions, a row each."""
        rates: npt.NDArray[np.float64] = np.asarray(self.wrong)[drawn].sum(axis=1) / np.asarray(self.scored)[drawn].sum(
            axis=1
        )
        return rates


def bootstrap(wrong: Sequence[float], scored: Sequence[float], seed: int = 0) -> tuple[float, float] | None:
    """Return the 95 % interval of sum(wrong) / sum(scored) over drawn sets of sessions; None for a single session."""
    n_sessions = len(wrong)
    if n_sessions < 2:
        return None
    drawn = np.random.default_rng(seed).integers(n_sessions, size=(N_DRAWS, n_sessions))
    sums = np.asarray(scored)[drawn].sum(axis=1)
    if not (sums > 0).all():
        return None
    low, high = np.quantile(np.asarray(wrong)[drawn].sum(axis=1) / sums, INTERVAL).tolist()
    return low, high


@dataclass(frozen=True)
class Difference:
    """The rate of system B minus that of system A on the same sessions: below 0, B is better."""

    difference: float
    interval: tuple[float, float]  # in which the difference is in 95 % of the drawn sets
    p_value: float  # two-sided: how often, if the systems were equally good, the difference would be as large
    n_sessions: int


def compare(a: Counts, b: Counts, seed: int = 0) -> Difference:
    """Return the paired bootstrap of two systems; element i of all arrays belongs to session i.

    The p-value is twice the share of drawn sets in which the sign of the difference is not that of all sessions (a tie
    counts against it).
    """
    n_sessions = len(a.wrong)
    if n_sessions < 2:
        raise ValueError(f"a paired comparison needs at least 2 sessions, got {n_sessions}")
    is_exact = n_sessions**n_sessions <= N_PAIRED_DRAWS
    drawn = (
        np.array(list(itertools.product(range(n_sessions), repeat=n_sessions)))
        if is_exact
        else np.random.default_rng(seed).integers(n_sessions, size=(N_PAIRED_DRAWS, n_sessions))
    )
    drawn = drawn[(np.asarray(a.scored)[drawn].sum(axis=1) > 0) & (np.asarray(b.scored)[drawn].sum(axis=1) > 0)]
    if not len(drawn):
        raise ValueError("the sessions have nothing to score, so they have no error rates to compare")
    differences = b.rates(drawn) - a.rates(drawn)
    low, high = np.quantile(differences, INTERVAL).tolist()
    rarer_sign = min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    # Of random draws, the set itself counts as one more, so that p is never 0 (Davison and Hinkley, 1997, eq. 4.11).
    p_value = rarer_sign / len(drawn) if is_exact else (rarer_sign + 1) / (len(drawn) + 1)
    everything = np.arange(n_sessions)[None]
    difference = float((b.rates(everything) - a.rates(everything))[0])
    return Difference(difference, (low, high), min(1.0, 2 * p_value), n_sessions)
