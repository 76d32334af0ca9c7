"""Diarization error rates of a set of sessions: which sessions are scored, by which scorer, and what is reported.

A session is scored if the reference has it. `sessions.py` says what happens to those that only one side has. Also:

    session that the UEM does not name  is not scored, as a UEM says what is; a note names it
    UEM that names no session of ours   an error
    segment of zero length              holds no speech; a note names its session

A session without speech is an empty file in a folder of references: all speech in it is a false alarm.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from sortk.formats import rttm, uem
from sortk.formats.annotation import is_annotated, prefer_rttm, session_regions, session_segments
from sortk.formats.files import files_in, quote
from sortk.records import Region, Segment, Session
from sortk.scoring.compare import N_DRAWS, SessionCounts, bootstrap
from sortk.scoring.intervals import DerCounts, DerOptions, ErrorSeconds, prepare_reference, tabulate_segments
from sortk.scoring.sessions import check_case, name_sessions, note_sessions
from sortk.scoring.tables import TableFormat, format_table, percent


@dataclass(frozen=True)
class SessionDer:
    """One session's score."""

    session_id: str
    counts: DerCounts
    has_hypothesis: bool = True


@dataclass(frozen=True)
class DerReport:
    """The score of a set."""

    options: DerOptions
    uem: str  # where the scored time comes from
    sessions: tuple[SessionDer, ...]
    notes: tuple[str, ...] = ()  # sentences that a reader of the score should know

    @property
    def overall(self) -> DerCounts:
        return sum((session.counts for session in self.sessions), DerCounts())

    def by_speakers(self) -> dict[int, DerCounts]:
        """Pooled over the sessions with so many reference speakers."""
        found: dict[int, DerCounts] = {}
        for session in sorted(self.sessions, key=lambda session: session.counts.n_ref_speakers):
            n_speakers = session.counts.n_ref_speakers
            found[n_speakers] = found.get(n_speakers, DerCounts()) + session.counts
        return found

    @property
    def counts(self) -> SessionCounts:
        """Return the wrong and the scored seconds of each session."""
        errors = [session.counts.errors for session in self.sessions]
        return SessionCounts([error.wrong for error in errors], [error.scored for error in errors])

    @property
    def parts(self) -> dict[str, float]:
        """Return the seconds of each kind of error."""
        errors = self.overall.errors
        return {"miss": errors.miss, "false alarm": errors.false_alarm, "confusion": errors.confusion}

    @property
    def other_scores(self) -> dict[str, str]:
        """Return the pooled scores beside the DER, as tables show them."""
        jer = percent(self.overall.jer) if self.overall.n_jaccard else "-"
        return {"JER": jer, RIGHT_COUNT: self.overall.right_counts}

    def bootstrap(self, seed: int = 0) -> tuple[float, float] | None:
        """Return the 95 % interval of the pooled DER over sets drawn from these sessions; None for one session."""
        return bootstrap([self.counts], seed)


def score_der(
    references: Mapping[str, Sequence[Segment]],
    hypotheses: Mapping[str, Sequence[Segment]],
    uem: Mapping[str, Sequence[Region]] | None = None,
    options: DerOptions | None = None,
    marks: Mapping[str, rttm.Marks] | None = None,
) -> DerReport:
    """Return the score of all sessions of the reference that the UEM names; all of them without a UEM.

    `marks`, the reference's NOSCORE and NON-LEX lines, count for the scorer `nist` only, as they do for md-eval.
    """
    options, marks = options or DerOptions(), marks or {}
    notes = _note_sessions(references, hypotheses, uem)
    chosen = [name for name in references if uem is None or name in uem]
    reference = [references[name] for name in chosen]
    hypothesis = [hypotheses.get(name, ()) for name in chosen]
    regions = None if uem is None else [uem[name] for name in chosen]
    zones: list[list[list[Region]]] = []
    if options.scorer == "nist" and marks:
        own = [marks.get(name, rttm.Marks()) for name in chosen]
        zones = [
            [mark.no_score for mark in own],
            [_extend_zones(mark, segments) for mark, segments in zip(own, reference, strict=True)],
        ]
    elif excluded := [name for name in chosen if name in marks and marks[name].no_score]:
        notes.append(f"NOSCORE lines count for --scorer nist only, so their time is scored: {name_sessions(excluded)}")
    counts = prepare_reference(reference, regions, options, *zones).score(tabulate_segments(hypothesis))
    if options.scorer == "pyannote":
        # The seconds are its own; what it has no notion of (regions, numbers of speakers) is that of the fast scorer.
        counts = [
            replace(
                count, errors=count_by_pyannote(reference[n], hypothesis[n], regions[n] if regions else None, options)
            )
            for n, count in enumerate(counts)
        ]
    if not sum(count.errors.scored for count in counts):
        notes.append("nothing is scored: no reference speech is inside the UEM and outside collars and skipped overlap")
    sessions = (SessionDer(name, count, name in hypotheses) for name, count in zip(chosen, counts, strict=True))
    extent = "the reference" if options.scorer == "nist" else "reference and hypothesis"
    source = "given" if uem is not None else f"none: extent of {extent}"
    return DerReport(options, source, tuple(sessions), tuple(notes))


def count_by_pyannote(
    reference: Sequence[Segment], hypothesis: Sequence[Segment], uem: Sequence[Region] | None, options: DerOptions
) -> ErrorSeconds:
    """Return the seconds of error of one session by pyannote.metrics, which the paper reports.

    Without a UEM, all time in which either side has speech is scored.
    """
    from pyannote.core import Segment as Span  # noqa: PLC0415 - three seconds to import
    from pyannote.core import Timeline  # noqa: PLC0415
    from pyannote.metrics.diarization import DiarizationErrorRate  # noqa: PLC0415

    scored = uem if uem is not None else [*reference, *hypothesis]
    timeline = Timeline(Span(part.start, part.end) for part in scored if part.end > part.start).support()
    if uem is None:
        timeline = Timeline([timeline.extent()] if timeline else [])
    if not timeline:
        return ErrorSeconds()
    # It takes the whole width of a collar; ours is NIST's, on each side.
    metric = DiarizationErrorRate(collar=2 * options.collar, skip_overlap=options.skip_overlap)
    found = metric(_annotate(reference), _annotate(hypothesis), uem=timeline, detailed=True)
    return ErrorSeconds(found["total"], found["missed detection"], found["false alarm"], found["confusion"])


def _annotate(segments: Sequence[Segment]) -> Any:
    """Return the segments in pyannote's form; `support` merges what overlaps or touches of one speaker, else it would
    count twice."""
    from pyannote.core import Annotation  # noqa: PLC0415
    from pyannote.core import Segment as Span  # noqa: PLC0415

    found = Annotation()
    for track, segment in enumerate(segments):
        if segment.duration > 0:
            found[Span(segment.start, segment.end), track] = segment.speaker
    return found.support()


MAX_EXTENSION = 0.5  # seconds by which md-eval extends a zone that is not scored


def _extend_zones(marks: rttm.Marks, segments: Sequence[Segment]) -> list[Region]:
    """Return the zones that md-eval does not score: extended to the next word or the next boundary of a segment, but
    by no more than MAX_EXTENSION, and not at all into a word."""
    edges = sorted(time for segment in segments for time in (segment.start, segment.end))
    starts, last_end = _accumulate(((word.start, word.end) for word in marks.words), max)
    ends, first_start = _accumulate(((-word.end, word.start) for word in marks.words), min)  # from the last end on
    zones = []
    for zone in (*marks.no_score, *marks.non_lexical):
        start, end = zone.start - MAX_EXTENSION, zone.end + MAX_EXTENSION
        if place := bisect_right(edges, zone.start):
            start = max(start, edges[place - 1])
        if place := bisect_right(starts, zone.start):  # words that start before the zone
            start = max(start, min(last_end[place - 1], zone.start))
        if (place := bisect_left(edges, zone.end)) < len(edges):
            end = min(end, edges[place])
        if place := bisect_left(ends, -zone.end):  # words that end after it
            end = min(end, max(first_start[place - 1], zone.end))
        zones.append(replace(zone, start=max(0.0, start), end=end))
    return zones


def _accumulate(
    pairs: Iterable[tuple[float, float]], choose: Callable[[float, float], float]
) -> tuple[list[float], list[float]]:
    """Return the first values in order, and what was chosen of the second values up to each."""
    ordered = sorted(pairs)
    return [first for first, _ in ordered], list(accumulate((second for _, second in ordered), choose))


def _note_sessions(
    references: Mapping[str, Sequence[Segment]],
    hypotheses: Mapping[str, Sequence[Segment]],
    uem: Mapping[str, Sequence[Region]] | None,
) -> list[str]:
    """Return notes on sessions that do not fit; ValueError for what makes any score meaningless."""
    unscored: set[str] = set()
    if uem is not None and references:
        check_case(references, uem, "UEM")
        unscored = references.keys() - uem.keys()
        if unscored == references.keys():
            raise ValueError(
                f"the UEM is for other recordings: it names {name_sessions(uem)}, "
                f"but the reference {name_sessions(references)}"
            )
    notes = note_sessions(references.keys() - unscored, hypotheses.keys() - unscored, counted_as="missed")
    found = {
        "not in the UEM, so not scored": unscored,
        "segments of zero length in the reference, which hold no speech": _without_length(references),
        "segments of zero length in the hypothesis, which hold no speech": _without_length(hypotheses),
    }
    return notes + [f"{what}: {name_sessions(names)}" for what, names in found.items() if names]


def _without_length(sessions: Mapping[str, Sequence[Segment]]) -> set[str]:
    return {name for name, segments in sessions.items() if any(segment.end <= segment.start for segment in segments)}


# ---------------------------------------------------------------------------------------------------------------------
# Files


def score_files(
    ref: str | Path, hyp: str | Path, uem_path: str | Path | None = None, options: DerOptions | None = None
) -> DerReport:
    """Return the score of files, or folders of files: RTTM and, if there is one, UEM."""
    regions = read_regions(uem_path) if uem_path else None
    marks = {
        name: own for file in files_in(Path(ref), ".rttm", ".rttm.gz") for name, own in rttm.read_marks(file).items()
    }
    report = score_der(read_segments(ref), read_segments(hyp), regions, options, marks)
    return replace(report, uem=str(uem_path)) if uem_path else report


def read_segments(path: str | Path) -> dict[str, list[Segment]]:
    """Return the segments of each session of an RTTM file, or of a folder of them.

    In a folder, a session is in one file, and a file without segments is a session without speech of that name.
    """
    path = Path(path)
    sessions: dict[str, list[Segment]] = {}
    for file in files_in(path, ".rttm", ".rttm.gz"):
        part: dict[str, list[Segment]] = {}
        for segment in rttm.stream(file, zero_duration="keep"):
            part.setdefault(segment.session_id, []).append(segment)
        if path.is_dir() and not part:
            part[file.name.removesuffix(".gz").removesuffix(".rttm")] = []
        for name in part.keys() & sessions.keys():
            raise ValueError(f"{file}: session {quote(name)} is in another file of this folder, too")
        sessions |= part
    return sessions


def read_regions(path: str | Path) -> dict[str, list[Region]]:
    """Return the regions of each session of a UEM file, or of a folder of them."""
    sessions: dict[str, list[Region]] = {}
    for file in files_in(Path(path), ".uem"):
        for region in uem.read(file):
            sessions.setdefault(region.session_id, []).append(region)
    return sessions


def read_references(
    sessions: Sequence[Session],
) -> tuple[dict[str, list[Segment]], dict[str, list[Region]] | None]:
    """Return who speaks when, and what is scored (None: everything), of each session, in seconds from its start."""
    unknown = [session.session_id for session in sessions if not is_annotated(session)]
    if unknown:
        raise ValueError(f"the manifest names no RTTM, SegLST or CTM of {name_sessions(unknown)}")
    references = {
        session.session_id: [segment.shift(-session.offset) for segment in session_segments(prefer_rttm(session))]
        for session in sessions
    }
    uem = {session.session_id: _find_regions(session) for session in sessions}
    return references, uem if any(session.uem_path for session in sessions) else None


def _find_regions(session: Session) -> list[Region]:
    """Return what is scored of a session, from its start on: all of it if it has no UEM."""
    length = session.duration if session.duration is not None else 1e6
    regions = session_regions(session) or [Region(session.session_id, session.offset, session.offset + length)]
    cut = ((max(0.0, part.start - session.offset), min(length, part.end - session.offset)) for part in regions)
    return [Region(session.session_id, start, end) for start, end in cut if start < end]


# ---------------------------------------------------------------------------------------------------------------------
# To read: a row per session, the pooled one, regions and numbers of speakers; or all of it as JSON

RIGHT_COUNT = "right number of speakers"
SCORERS = {
    "fast": "fast (the numbers of pyannote.metrics)",
    "pyannote": "pyannote.metrics",
    "nist": "nist (the meaning of md-eval)",
}
HEADER = ("session", "scored s", "miss %", "fa %", "conf %", "DER %", "JER %", "ref spk", "hyp spk", RIGHT_COUNT)


def format_report(report: DerReport, style: TableFormat = "text", by_speakers: bool = False) -> str:
    """Return the table with the settings above it; CSV is the table alone."""
    overall = report.overall
    rows = [_cells(session.session_id, session.counts) for session in report.sessions]
    rows.append(_cells("OVERALL", overall))
    rows += [[f"OVERALL {name}", *_rates(overall.regions[name]), *[""] * 4] for name in ("single", "overlap")]
    if by_speakers:
        rows += [_cells(f"OVERALL {n}-speaker", counts) for n, counts in report.by_speakers().items()]
    table = format_table(HEADER, rows, style)
    if style == "csv":
        return table
    parts = [describe_settings(report), table]
    if interval := report.bootstrap():
        low, high = map(percent, interval)
        draws = f"{N_DRAWS} draws of {len(report.sessions)} sessions"
        parts.append(f"DER of OVERALL, 95 % interval: {low} to {high} ({draws})")
    return "\n\n".join(parts)


def describe_settings(report: DerReport) -> str:
    """Return the settings that the numbers depend on, in one line."""
    options = report.options
    overlap = "overlap skipped" if options.skip_overlap else "overlap scored"
    return f"collar {options.collar:g} s on each side, {overlap}, UEM {report.uem}, scorer {SCORERS[options.scorer]}"


def _cells(name: str, counts: DerCounts) -> list[str]:
    n_speakers = str(counts.n_ref_speakers), str(counts.n_hyp_speakers)
    jer = percent(counts.jer) if counts.n_jaccard else "-"
    return [name, *_rates(counts.errors), jer, *n_speakers, counts.right_counts]


def _rates(errors: ErrorSeconds) -> list[str]:
    parts = (errors.miss, errors.false_alarm, errors.confusion, errors.wrong)
    return [f"{errors.scored:.2f}", *(percent(errors.rate(part)) if errors.scored > 0 else "-" for part in parts)]


def as_json(report: DerReport) -> dict[str, Any]:
    """Return the report for `--json`: rates are fractions, null where nothing is scored."""
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
