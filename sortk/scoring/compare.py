"""How sure an error rate is, and whether several systems differ on the same sessions: bootstrap over sessions.

A set of n sessions stands for the sessions that could have been recorded. Draw n of them with replacement, many times;
the rates of the drawn sets show how much the rate would change with other sessions. To compare two systems, both are
scored on the same drawn sets (Bisani and Ney, "Bootstrap estimates for confidence intervals in ASR performance
evaluation", ICASSP 2004): a session that is hard for both does not blur the difference.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sortk.scoring.tables import TableFormat, format_table, percent

if TYPE_CHECKING:
    from sortk.scoring.der import DerReport
    from sortk.scoring.wer import WerReport

N_DRAWS = 1000  # for an interval
N_PAIRED_DRAWS = 10_000  # for a p-value; all n^n possible sets are taken instead where there are no more of them
INTERVAL = (0.025, 0.975)


@dataclass(frozen=True)
class SessionCounts:
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


def compare(a: SessionCounts, b: SessionCounts, seed: int = 0) -> Difference:
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


# ---------------------------------------------------------------------------------------------------------------------
# Reports of several systems on the same references


def name_systems(paths: Sequence[Path]) -> list[str]:
    """Return a name for each hypothesis: the shortest end of its path that no other has, such as hyp.rttm or
    a/hyp.rttm. ValueError if one is given twice."""
    files = [path.resolve() for path in paths]
    for path, file in zip(paths, files, strict=True):
        if files.count(file) > 1:
            raise ValueError(f"hypothesis {path} is given twice; give each system once")
    parts = [path.absolute().parts for path in paths]
    n_parts = next(n for n in itertools.count(1) if len({own[-n:] for own in parts}) == len(parts))
    return [str(Path(*own[-n_parts:])) for own in parts]


def format_systems(reports: Mapping[str, DerReport | WerReport], style: TableFormat = "text") -> str:
    """Return a table with a row per session and a column per system, then the pooled rates, their parts and intervals.

    All reports are of the same references, so they have the same sessions.
    """
    rows: dict[str, list[str]] = {}
    for report in reports.values():
        counts = report.counts
        names = [session.session_id for session in report.sessions]
        for name, wrong, scored in zip(names, counts.wrong, counts.scored, strict=True):
            rows.setdefault(name, []).append(percent(wrong / scored) if scored else "-")
        total = sum(counts.scored)
        rows.setdefault("OVERALL", []).append(percent(sum(counts.wrong) / total) if total else "-")
        for part, wrong in report.parts.items():
            rows.setdefault(f"OVERALL {part}", []).append(percent(wrong / total) if total else "-")
        interval = bootstrap(counts.wrong, counts.scored)
        low, high = map(percent, interval) if interval else ("-", "-")
        rows.setdefault("OVERALL 95 % from", []).append(low)
        rows.setdefault("OVERALL 95 % to", []).append(high)
        for score, value in report.other_scores.items():
            rows.setdefault(f"OVERALL {score}", []).append(value)
    return format_table(["session", *reports], [[name, *cells] for name, cells in rows.items()], style)


def compare_systems(reports: Mapping[str, DerReport | WerReport], seed: int = 0) -> dict[str, Difference]:
    """Return the paired bootstrap of each further system against the first."""
    (_, first), *others = reports.items()
    return {name: compare(first.counts, report.counts, seed) for name, report in others}


def format_comparison(
    reports: Mapping[str, DerReport | WerReport], differences: Mapping[str, Difference], style: TableFormat
) -> str:
    """Return a table with a row per system: its rate, and its difference from the first, in points of per cent."""
    header = ["system", "sessions", "rate %", "difference", "95 % interval", "p"]
    rows = []
    for name, report in reports.items():
        counts = report.counts
        cells = [name, str(len(counts.wrong)), percent(sum(counts.wrong) / (sum(counts.scored) or 1))]
        if name in differences:
            found = differences[name]
            low, high = (f"{100 * edge:+.2f}" for edge in found.interval)
            cells += [f"{100 * found.difference:+.2f}", f"{low} to {high}", f"{found.p_value:.4f}"]
        else:
            cells += ["", "", ""]
        rows.append(cells)
    return format_table(header, rows, style)
