"""Several systems on the same references: their rates side by side, and whether two of them differ."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from sortk.scoring.bootstrap import Counts, Difference, bootstrap, compare
from sortk.scoring.der import DerReport, SessionDer
from sortk.scoring.tables import TableFormat, format_table, percent
from sortk.scoring.wer import SessionErrors, WerReport

Report = DerReport | WerReport


def name_systems(paths: Sequence[Path]) -> list[str]:
    """Return a name for each hypothesis: its path below the folder that all share. ValueError if one is given twice."""
    for path in paths:
        if list(paths).count(path) > 1:
            raise ValueError(f"hypothesis {path} is given twice; give each system once")
    shared = Path(os.path.commonpath([path.absolute().parent for path in paths]))
    return [str(path.absolute().relative_to(shared)) for path in paths]


def count_errors(report: Report) -> Counts:
    """Return wrong and scored seconds, or wrong words and reference words, of each session."""
    if isinstance(report, DerReport):
        errors = [session.counts.errors for session in report.sessions]
        return Counts([error.wrong for error in errors], [error.scored for error in errors])
    words = [session.errors for session in report.sessions]
    return Counts([error.wrong for error in words], [error.words for error in words])


def format_systems(reports: Mapping[str, Report], style: TableFormat = "text") -> str:
    """Return a table with a row per session and a column per system, then the pooled rates, their parts and intervals.

    All reports are of the same references, so they have the same sessions.
    """
    rows: dict[str, list[str]] = {}
    for report in reports.values():
        sessions: Sequence[SessionDer | SessionErrors] = report.sessions
        counts = count_errors(report)
        for session, wrong, scored in zip(sessions, counts.wrong, counts.scored, strict=True):
            rows.setdefault(session.session_id, []).append(percent(wrong / scored) if scored else "-")
        total = sum(counts.scored)
        rows.setdefault("OVERALL", []).append(percent(sum(counts.wrong) / total) if total else "-")
        for part, wrong in _parts(report).items():
            rows.setdefault(f"OVERALL {part}", []).append(percent(wrong / total) if total else "-")
        interval = bootstrap(counts.wrong, counts.scored)
        low, high = map(percent, interval) if interval else ("-", "-")
        rows.setdefault("OVERALL 95 % from", []).append(low)
        rows.setdefault("OVERALL 95 % to", []).append(high)
    return format_table(["session", *reports], [[name, *cells] for name, cells in rows.items()], style)


def _parts(report: Report) -> dict[str, float]:
    if isinstance(report, DerReport):
        errors = report.overall.errors
        return {"miss": errors.miss, "false alarm": errors.false_alarm, "confusion": errors.confusion}
    words = report.overall
    return {"substituted": words.substitutions, "inserted": words.insertions, "deleted": words.deletions}


def compare_systems(reports: Mapping[str, Report], seed: int = 0) -> dict[str, Difference]:
    """Return the paired bootstrap of each further system against the first."""
    (_, first), *others = reports.items()
    return {name: compare(count_errors(first), count_errors(report), seed) for name, report in others}


def format_comparison(reports: Mapping[str, Report], differences: Mapping[str, Difference], style: TableFormat) -> str:
    """Return a table with a row per system: its rate, and its difference from the first, in points of per cent."""
    header = ["system", "sessions", "rate %", "difference", "95 % interval", "p"]
    rows = []
    for name, report in reports.items():
        counts = count_errors(report)
        cells = [name, str(len(counts.wrong)), percent(sum(counts.wrong) / (sum(counts.scored) or 1))]
        if name in differences:
            found = differences[name]
            low, high = (f"{100 * edge:+.2f}" for edge in found.interval)
            cells += [f"{100 * found.difference:+.2f}", f"{low} to {high}", f"{found.p_value:.4f}"]
        else:
            cells += ["", "", ""]
        rows.append(cells)
    return format_table(header, rows, style)
