"""A DER report to read: a row per session, the pooled one, regions and numbers of speakers; or all of it as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sortk.scoring.bootstrap import N_DRAWS
from sortk.scoring.der import DerReport
from sortk.scoring.der_counts import DerCounts, ErrorSeconds
from sortk.scoring.tables import TableFormat, format_table, percent

SCORERS = {
    "fast": "fast (the numbers of pyannote.metrics)",
    "pyannote": "pyannote.metrics",
    "nist": "nist (the meaning of md-eval)",
}
HEADER = ("session", "scored s", "miss %", "fa %", "conf %", "DER %", "JER %", "ref spk", "hyp spk", "right count %")


def format_report(report: DerReport, style: TableFormat = "text", by_speakers: bool = False) -> str:
    """The table with the settings above it; CSV is the table alone."""
    overall = report.overall
    rows = [_cells(session.session_id, session.counts) for session in report.sessions]
    rows.append(_cells("OVERALL", overall))
    rows += [[f"OVERALL {name}", *_rates(overall.regions[name]), *[""] * 4] for name in ("single", "overlap")]
    if by_speakers:
        rows += [_cells(f"OVERALL {n}-speaker", counts) for n, counts in report.by_speakers().items()]
    table = format_table(HEADER, rows, style)
    return table if style == "csv" else "\n\n".join(filter(None, [describe_settings(report), table, _interval(report)]))


def describe_settings(report: DerReport) -> str:
    """All that the numbers hang on, in a line."""
    options = report.options
    overlap = "overlap skipped" if options.skip_overlap else "overlap scored"
    return f"collar {options.collar:g} s on each side, {overlap}, UEM {report.uem}, scorer {SCORERS[options.scorer]}"


def _cells(name: str, counts: DerCounts) -> list[str]:
    n_speakers = str(counts.n_ref_speakers), str(counts.n_hyp_speakers)
    jer = percent(counts.jer) if counts.n_jaccard else "-"
    return [name, *_rates(counts.errors), jer, *n_speakers, percent(counts.count_accuracy)]


def _rates(errors: ErrorSeconds) -> list[str]:
    parts = (errors.miss, errors.false_alarm, errors.confusion, errors.wrong)
    return [f"{errors.scored:.2f}", *(percent(errors.rate(part)) if errors.scored > 0 else "-" for part in parts)]


def _interval(report: DerReport) -> str:
    interval = report.bootstrap()
    if interval is None:
        return ""
    low, high = map(percent, interval)
    return f"DER of OVERALL, 95 % interval: {low} to {high} ({N_DRAWS} draws of {len(report.sessions)} sessions)"


def as_json(report: DerReport) -> dict[str, Any]:
    """For `--json`: rates are fractions, null where nothing is scored."""
    interval = report.bootstrap()
    return {
        "settings": asdict(report.options) | {"uem": report.uem},
        "overall": _counts_as_json(report.overall) | {"der_interval_95": list(interval) if interval else None},
        "by_speakers": {str(n): _counts_as_json(counts) for n, counts in report.by_speakers().items()},
        "sessions": {
            session.session_id: _counts_as_json(session.counts) | {"has_hypothesis": session.has_hypothesis}
            for session in report.sessions
        },
        "notes": list(report.notes),
    }


def _counts_as_json(counts: DerCounts) -> dict[str, Any]:
    return {
        **_errors_as_json(counts.errors),
        "jer": counts.jer if counts.n_jaccard else None,
        "ref_speakers": counts.n_ref_speakers,
        "hyp_speakers": counts.n_hyp_speakers,
        "n_sessions": counts.n_sessions,
        "speaker_count_accuracy": counts.count_accuracy,
        "regions": {name: _errors_as_json(errors) for name, errors in counts.regions.items()},
    }


def _errors_as_json(errors: ErrorSeconds) -> dict[str, float | None]:
    parts = {
        "der": errors.wrong,
        "miss": errors.miss,
        "false_alarm": errors.false_alarm,
        "confusion": errors.confusion,
    }
    rates = {name: errors.rate(seconds) if errors.scored > 0 else None for name, seconds in parts.items()}
    return rates | {f"{name}_seconds": seconds for name, seconds in asdict(errors).items()}
