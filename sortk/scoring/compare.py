"""How sure an error rate is, and whether several systems differ on the same sessions: bootstrap over sessions.

A set of n sessions stands for the sessions that could have been recorded. Draw n of them with replacement, many times;
the rates of the drawn sets show how much the rate would change with other sessions. To compare two systems, both are
scored on the same drawn sets (Bisani and Ney, "Bootstrap estimates for confidence intervals in ASR performance
evaluation", ICASSP 2004): a session that is hard for both does not blur the difference.

A system that was trained several times, with different seeds, would also have other rates with other seeds. So its runs
are drawn, too, independently of the sessions: the interval covers both kinds of chance.
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
    """The errors of one run of a system by session: its rate is sum(wrong) / sum(scored)."""

    wrong: Sequence[float]
    scored: Sequence[float]

    def rates(self, drawn: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the rate of each drawn set; `drawn` has the numbers of its sessions, a row each."""
        rates: npt.NDArray[np.float64] = np.asarray(self.wrong)[drawn].sum(axis=1) / np.asarray(self.scored)[drawn].sum(
            axis=1
        )
        return rates


Runs = Sequence[SessionCounts]
"""One system, trained once or with several seeds, and scored on the same sessions: its rate is the mean of its runs."""


def draw_rates(runs: Runs, drawn: npt.NDArray[np.int64], rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return the rate of a system in each drawn set of sessions, with as many runs as it has drawn with replacement.

    The n runs vary less about their own mean than about that of all seeds: by sqrt((n - 1) / n). Hence the factor.
    """
    rates = np.stack([run.rates(drawn) for run in runs])
    n_runs = len(runs)
    mean: npt.NDArray[np.float64] = rates.mean(axis=0)
    if n_runs == 1:
        return mean
    drawn_runs = rng.integers(n_runs, size=rates.shape)
    deviation = np.take_along_axis(rates, drawn_runs, axis=0).mean(axis=0) - mean
    varied: npt.NDArray[np.float64] = mean + (n_runs / (n_runs - 1)) ** 0.5 * deviation
    return varied


def bootstrap(runs: Runs, seed: int = 0) -> tuple[float, float] | None:
    """Return the 95 % interval of a rate over drawn sets of sessions, and over drawn runs; None for one session."""
    n_sessions, rng = len(runs[0].wrong), np.random.default_rng(seed)
    if n_sessions < 2:
        return None
    drawn = rng.integers(n_sessions, size=(N_DRAWS, n_sessions))
    if not all((np.asarray(run.scored)[drawn].sum(axis=1) > 0).all() for run in runs):
        return None
    low, high = np.quantile(draw_rates(runs, drawn, rng).clip(min=0), INTERVAL).tolist()
    return low, high


@dataclass(frozen=True)
class Difference:
    """The rate of system B minus that of system A on the same sessions: below 0, B is better."""

    difference: float
    interval: tuple[float, float]  # in which the difference is in 95 % of the drawn sets
    p_value: float  # two-sided: how often, if the systems were equally good, the difference would be as large
    n_sessions: int


def compare(a: Runs, b: Runs, seed: int = 0) -> Difference:
    """Return the paired bootstrap of two systems; element i of all arrays belongs to session i.

    Both have the same drawn sessions, and each its own drawn runs. The p-value is twice the share of drawn sets in
    which the sign of the difference is not that of all sessions (a tie counts against it).
    """
    n_sessions, rng = len(a[0].wrong), np.random.default_rng(seed)
    if n_sessions < 2:
        raise ValueError(f"a paired comparison needs at least 2 sessions, got {n_sessions}")
    is_exact = n_sessions**n_sessions <= N_PAIRED_DRAWS and len(a) == len(b) == 1
    drawn = (
        np.array(list(itertools.product(range(n_sessions), repeat=n_sessions)))
        if is_exact
        else rng.integers(n_sessions, size=(N_PAIRED_DRAWS, n_sessions))
    )
    for run in (*a, *b):
        drawn = drawn[np.asarray(run.scored)[drawn].sum(axis=1) > 0]
    if not len(drawn):
        raise ValueError("the sessions have nothing to score, so they have no error rates to compare")
    differences = draw_rates(b, drawn, rng) - draw_rates(a, drawn, rng)
    low, high = np.quantile(differences, INTERVAL).tolist()
    rarer_sign = min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    # Of random draws, the set itself counts as one more, so that p is never 0 (Davison and Hinkley, 1997, eq. 4.11).
    p_value = rarer_sign / len(drawn) if is_exact else (rarer_sign + 1) / (len(drawn) + 1)
    difference = mean_rate(b) - mean_rate(a)
    return Difference(difference, (low, high), min(1.0, 2 * p_value), n_sessions)


def mean_rate(runs: Runs) -> float:
    """Return the rate of a system: the mean over its runs."""
    return sum(sum(run.wrong) / sum(run.scored) for run in runs) / len(runs)


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
        interval = bootstrap([counts])
        low, high = map(percent, interval) if interval else ("-", "-")
        rows.setdefault("OVERALL 95 % from", []).append(low)
        rows.setdefault("OVERALL 95 % to", []).append(high)
        for score, value in report.other_scores.items():
            rows.setdefault(f"OVERALL {score}", []).append(value)
    return format_table(["session", *reports], [[name, *cells] for name, cells in rows.items()], style)


def compare_systems(reports: Mapping[str, DerReport | WerReport], seed: int = 0) -> dict[str, Difference]:
    """Return the paired bootstrap of each further system against the first."""
    (_, first), *others = reports.items()
    return {name: compare([first.counts], [report.counts], seed) for name, report in others}


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
