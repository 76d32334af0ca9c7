"""Word error rates of a set of sessions with several speakers.

    WER = (substitutions + insertions + deletions) / words of the reference

What is aligned with what (Appendix D of the paper):

    cpwer   all words of a reference speaker with those of a hypothesis speaker, mapped so that errors are fewest
    tcpwer  as cpwer, but only words at about the same time match: hypothesis words reach `collar` seconds further
    orcwer  each reference segment goes to the hypothesis stream that it suits best, speakers are not looked at
    wer     `sorted`: all words of a session by their start times, speaker tokens removed (Table 2 of the paper)
            `librispeechmix`: cpwer if the hypotheses name speakers, orcwer if they are one stream (Table 3)

The score of a set is that of the sums, not a mean of sessions. A session without a hypothesis is all deletions. Words
of a segment that has no word times start where stage 3 would say (Appendix C).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any, Literal

from sortk.edits import Assignment, WordErrors
from sortk.options import Options, option
from sortk.records import Segment
from sortk.scoring.normalizers import NormalizerName, find_normalizer
from sortk.scoring.sessions import name_sessions, note_sessions
from sortk.scoring.tables import TableFormat, format_table, percent
from sortk.scoring.wer_counts import (
    count_by_speaker,
    count_by_speaker_and_time,
    count_by_stream,
    count_in_order,
    count_speakers,
)
from sortk.scoring.wer_transcripts import Transcripts

Metric = Literal["cpwer", "tcpwer", "orcwer", "wer"]
Style = Literal["sorted", "librispeechmix"]
CountName = Literal["cpwer", "tcpwer", "orcwer", "sorted"]
"""How errors are counted, whatever the score is called."""


@dataclass(frozen=True)
class WerOptions(Options):
    """Settings of word errors."""

    normalizer: NormalizerName = "none"  # of both sides: none, lower, whisper or chime8
    # Tcpwer: seconds by which the time of a hypothesis word may be wrong.
    collar: float = option(5.0, at_least=0, below=math.inf)
    style: Style = "sorted"  # wer: sorted (Table 2 of the paper) or librispeechmix (Table 3)

    def __post_init__(self) -> None:
        super().__post_init__()
        find_normalizer(self.normalizer)


@dataclass(frozen=True, slots=True)
class SessionErrors:
    """One session's score."""

    session_id: str
    errors: WordErrors
    n_ref_speakers: int
    n_hyp_speakers: int
    assignment: Assignment = ()  # cpwer and tcpwer: a pair per speaker; orcwer: per reference segment; wer: none


@dataclass(frozen=True)
class WerReport:
    """The score of a set."""

    metric: Metric
    counted_as: CountName  # what `metric` comes to: cpwer, tcpwer, orcwer or sorted
    options: WerOptions
    sessions: tuple[SessionErrors, ...]
    notes: tuple[str, ...] = ()  # sentences that a reader of the score should know

    @property
    def overall(self) -> WordErrors:
        return sum((session.errors for session in self.sessions), WordErrors())

    def by_speakers(self) -> dict[int, WordErrors]:
        """Return the errors of the sessions with so many reference speakers."""
        found: dict[int, WordErrors] = {}
        for session in sorted(self.sessions, key=lambda session: session.n_ref_speakers):
            found[session.n_ref_speakers] = found.get(session.n_ref_speakers, WordErrors()) + session.errors
        return found


def score_words(
    references: Transcripts, hypotheses: Transcripts, metric: Metric, options: WerOptions | None = None
) -> WerReport:
    """The word errors of all sessions of the reference; ValueError for what cannot be scored."""
    options = options or WerOptions()
    references, hypotheses = references.without(references.ignored), hypotheses.without(references.ignored)
    counted_as = _choose_count(metric, options.style, hypotheses)
    for side, transcripts in (("reference", references), ("hypothesis", hypotheses)):
        if counted_as == "tcpwer" and transcripts.untimed:
            without = f"the {side} has none in {name_sessions(transcripts.untimed)}"
            raise ValueError(f"tcpwer needs times, and {without}; give SegLST, STM or CTM with times, or score cpwer")
    notes = note_sessions(references.sessions, hypotheses.sessions, counted_as="deleted")
    notes += [f"reference: {note}" for note in references.notes]
    notes += [f"hypothesis: {note}" for note in hypotheses.notes]
    sessions = [
        _score_session(session_id, reference, hypotheses.sessions.get(session_id, ()), counted_as, options)
        for session_id, reference in references.sessions.items()
    ]
    return WerReport(metric, counted_as, options, tuple(sessions), tuple(notes))


def _choose_count(metric: Metric, style: Style, hypotheses: Transcripts) -> CountName:
    if metric != "wer":
        return metric
    if style == "sorted":
        return "sorted"
    return "cpwer" if hypotheses.names_speakers else "orcwer"


def _score_session(
    session_id: str,
    reference: Sequence[Segment],
    hypothesis: Sequence[Segment],
    counted_as: CountName,
    options: WerOptions,
) -> SessionErrors:
    normalizer = find_normalizer(options.normalizer)
    if counted_as == "cpwer":
        errors, assignment = count_by_speaker(reference, hypothesis, normalizer)
    elif counted_as == "tcpwer":
        errors, assignment = count_by_speaker_and_time(reference, hypothesis, normalizer, options.collar)
    elif counted_as == "orcwer":
        errors, assignment = count_by_stream(reference, hypothesis, normalizer)
    else:
        errors, assignment = count_in_order(reference, hypothesis, normalizer), ()
    return SessionErrors(session_id, errors, count_speakers(reference), count_speakers(hypothesis), assignment)


# ---------------------------------------------------------------------------------------------------------------------
# What is told


def describe_settings(report: WerReport) -> str:
    """Return the settings that the numbers depend on, in one line."""
    return ", ".join(f"{key} {value}" for key, value in _settings(report).items())


def _settings(report: WerReport) -> dict[str, str | float]:
    settings: dict[str, str | float] = {"metric": report.metric}
    if report.metric == "wer":
        settings["style"] = report.options.style
        settings |= {"counted_as": report.counted_as} if report.counted_as != "sorted" else {}
    if report.counted_as == "tcpwer":
        settings["collar"] = report.options.collar
    return settings | {"normalizer": report.options.normalizer, "scorer": f"kaldialign {version('kaldialign')}"}


def as_json(report: WerReport) -> dict[str, Any]:
    """For `--json`: rates are fractions, null where the reference has no words but the hypothesis has."""
    return {
        "settings": _settings(report),
        "overall": _counts_as_json(report, report.overall),
        "by_speakers": {str(n): _counts_as_json(report, errors) for n, errors in report.by_speakers().items()},
        "sessions": {
            session.session_id: {
                **_counts_as_json(report, session.errors),
                "ref_speakers": session.n_ref_speakers,
                "hyp_speakers": session.n_hyp_speakers,
                "assignment": [list(pair) for pair in session.assignment],
            }
            for session in report.sessions
        },
        "notes": list(report.notes),
    }


def _counts_as_json(report: WerReport, errors: WordErrors) -> dict[str, Any]:
    rate = errors.rate if math.isfinite(errors.rate) else None
    return {report.metric: rate, "errors": errors.wrong, **asdict(errors)}


def format_report(report: WerReport, style: TableFormat = "text") -> str:
    """A row per session and OVERALL, with the settings above it; CSV is the table alone."""
    header = ["session", "words", "sub", "ins", "del", f"{report.metric} %", "ref spk", "hyp spk"]
    rows = [
        [*_cells(session.session_id, session.errors), str(session.n_ref_speakers), str(session.n_hyp_speakers)]
        for session in report.sessions
    ]
    rows.append([*_cells("OVERALL", report.overall), "", ""])
    if report.counted_as in ("cpwer", "tcpwer"):
        header.append("assignment")
        rows = [[*row, text] for row, text in zip(rows, [*map(_format_assignment, report.sessions), ""], strict=True)]
    table = format_table(header, rows, style)
    return table if style == "csv" else f"{describe_settings(report)}\n\n{table}"


def _cells(name: str, errors: WordErrors) -> list[str]:
    counts = (errors.words, errors.substitutions, errors.insertions, errors.deletions)
    return [name, *map(str, counts), percent(errors.rate)]


def _format_assignment(session: SessionErrors) -> str:
    return ", ".join(f"{ref or '-'}={hyp or '-'}" for ref, hyp in session.assignment)
