"""Word error rates of a set of sessions with several speakers.

    WER = (substitutions + insertions + deletions) / words of the reference

What is aligned with what (Appendix D of the paper):

    cpwer   all words of a reference speaker with those of a hypothesis speaker, mapped so that errors are fewest
    tcpwer  as cpwer, but only words at about the same time match: hypothesis words reach `collar` seconds further
    orcwer  each reference segment goes to the hypothesis stream that it suits best, speakers are not looked at
    wer     `sorted`: all words of a session by their start times, speaker tokens removed (Table 2 of the paper)
            `librispeechmix`: cpwer if the hypotheses name speakers, orcwer if they are one stream (Table 3)

A normaliser sees all the words that are aligned as one, so the score does not depend on how a system cuts them into
segments: cpwer a speaker's, wer a session's, tcpwer those of an entry; orcwer an entry of the reference and a stream of
the hypothesis. meeteval's own command line normalises entry by entry.

The score of a set is that of the sums, not a mean of sessions. A session without a hypothesis is all deletions. Words
of a segment that has no word times start where stage 3 would say (Appendix C).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from importlib.metadata import version
from itertools import accumulate, groupby
from math import isnan, nan
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, Literal

from sortk.edits import (
    Assignment,
    TimedWords,
    WordErrors,
    assign_segments,
    count_edits,
    count_timed_edits,
    match_speakers,
)
from sortk.formats import ctm, manifest, seglst, stm
from sortk.formats.convert import detect, lists_in
from sortk.formats.files import FormatError, files_in, quote, read_lines
from sortk.formats.objects import entries
from sortk.formats.sst import TOKEN, parse_any, speaker_number
from sortk.options import Options, option
from sortk.prepare.syllables import WordRule, find_word_edges
from sortk.records import Region, Segment, arrival_order
from sortk.scoring.compare import SessionCounts
from sortk.scoring.normalizers import Normalizer, NormalizerName, find_normalizer
from sortk.scoring.sessions import name_sessions, note_sessions
from sortk.scoring.tables import TableFormat, format_table, percent

Metric = Literal["cpwer", "tcpwer", "orcwer", "wer"]
Style = Literal["sorted", "librispeechmix"]
CountName = Literal["cpwer", "tcpwer", "orcwer", "sorted"]
"""How errors are counted, whatever the score is called."""

MAX_SPEAKERS = 20  # for cpwer and tcpwer; with more, the labels are probably wrong. meeteval has the same limits
MAX_STREAMS = 10  # and for orcwer
MAX_ORC_CELLS = 200_000_000  # for one session, two or four bytes each

LANGUAGE = "en_US"
RULE: WordRule = "sounds"  # how long words are, to order those of overlapping segments; as in stage 3


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
class SessionWer:
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
    sessions: tuple[SessionWer, ...]
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

    @property
    def counts(self) -> SessionCounts:
        """Return the wrong words and the reference words of each session."""
        errors = [session.errors for session in self.sessions]
        return SessionCounts([error.wrong for error in errors], [error.words for error in errors])

    @property
    def parts(self) -> dict[str, int]:
        """Return the number of words of each kind of error."""
        errors = self.overall
        return {"substituted": errors.substitutions, "inserted": errors.insertions, "deleted": errors.deletions}

    @property
    def other_scores(self) -> dict[str, str]:
        return {}


def score_words(
    references: Transcripts, hypotheses: Transcripts, metric: Metric, options: WerOptions | None = None
) -> WerReport:
    """Return the word errors of all sessions of the reference; ValueError for what cannot be scored."""
    options = options or WerOptions()
    references, hypotheses = references.without(references.ignored), hypotheses.without(references.ignored)
    counted_as: CountName
    if metric != "wer":
        counted_as = metric
    elif options.style == "sorted":
        counted_as = "sorted"
    else:
        counted_as = "cpwer" if hypotheses.names_speakers else "orcwer"
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


def _score_session(
    session_id: str,
    reference: Sequence[Segment],
    hypothesis: Sequence[Segment],
    counted_as: CountName,
    options: WerOptions,
) -> SessionWer:
    normalizer = find_normalizer(options.normalizer)
    if counted_as == "cpwer":
        errors, assignment = count_by_speaker(reference, hypothesis, normalizer)
    elif counted_as == "tcpwer":
        errors, assignment = count_by_speaker_and_time(reference, hypothesis, normalizer, options.collar)
    elif counted_as == "orcwer":
        errors, assignment = count_by_stream(reference, hypothesis, normalizer)
    else:
        errors, assignment = count_in_order(reference, hypothesis, normalizer), ()
    return SessionWer(session_id, errors, count_speakers(reference), count_speakers(hypothesis), assignment)


# ---------------------------------------------------------------------------------------------------------------------
# The errors of one session, and which speaker is taken for which


def count_by_speaker(
    reference: Sequence[Segment], hypothesis: Sequence[Segment], normalizer: Normalizer
) -> tuple[WordErrors, Assignment]:
    """cpwer."""
    _check_speakers(reference, hypothesis)
    sides = (_join_speakers(side, normalizer) for side in (reference, hypothesis))
    spoken, found = ({speaker: text.split() for speaker, text in side.items()} for side in sides)
    return match_speakers(spoken, found, count_edits, [])


def count_by_speaker_and_time(
    reference: Sequence[Segment], hypothesis: Sequence[Segment], normalizer: Normalizer, collar: float
) -> tuple[WordErrors, Assignment]:
    """tcpwer; words of an entry get times by their numbers of letters, which is meeteval's way."""
    _check_speakers(reference, hypothesis)
    spoken, found = _time_words(reference, normalizer), _time_words(hypothesis, normalizer, _decimal(collar))
    return match_speakers(spoken, found, count_timed_edits, TimedWords((), (), ()))


def count_by_stream(
    reference: Sequence[Segment], hypothesis: Sequence[Segment], normalizer: Normalizer
) -> tuple[WordErrors, Assignment]:
    """orcwer; the assignment has a pair per reference segment that has words, in the order of starts."""
    texts = [(segment.speaker, normalizer(segment.text).split()) for segment in _by_start(reference)]
    texts = [(speaker, words) for speaker, words in texts if words]
    joined = _join_speakers(hypothesis, normalizer)
    streams = {speaker: words for speaker, text in joined.items() if (words := text.split())}
    if not streams:
        n_words = sum(len(words) for _, words in texts)
        return WordErrors(n_words, deletions=n_words), tuple((speaker, None) for speaker, _ in texts)
    _check_streams(hypothesis[0].session_id, len(texts), streams)
    names = list(streams)
    chosen = [names[number] for number in assign_segments([words for _, words in texts], list(streams.values()))]
    given: dict[str, list[str]] = {name: [] for name in names}
    for name, (_, words) in zip(chosen, texts, strict=True):
        given[name] += words
    errors = sum((count_edits(given[name], streams[name]) for name in names), WordErrors())
    return errors, tuple(zip((speaker for speaker, _ in texts), chosen, strict=True))


def count_in_order(reference: Sequence[Segment], hypothesis: Sequence[Segment], normalizer: Normalizer) -> WordErrors:
    """wer, sorted."""
    return count_edits(_join_words(reference, normalizer).split(), _join_words(hypothesis, normalizer).split())


def _by_start(segments: Sequence[Segment]) -> list[Segment]:
    return sorted(segments, key=attrgetter("start"))


def _join_speakers(segments: Sequence[Segment], normalizer: Normalizer) -> dict[str, str]:
    """Return all that each speaker says."""
    texts: dict[str, list[str]] = {}
    for segment in _by_start(segments):
        texts.setdefault(segment.speaker, []).append(normalizer.clean_entry(segment.text))
    return {speaker: normalizer.normalize(" ".join(own)) for speaker, own in texts.items()}


def _join_words(segments: Sequence[Segment], normalizer: Normalizer) -> str:
    """Return all that is said, word by word in the order of starts; of two that start together, as in an SST."""
    arrival = arrival_order(segments)
    timed = []
    for segment in segments:
        words = normalizer.clean_entry(segment.text).split()
        starts = find_word_edges(words, segment.start, segment.end, LANGUAGE, RULE)[:-1]
        timed += [(start, arrival[segment.speaker], word) for start, word in zip(starts, words, strict=True)]
    return normalizer.normalize(" ".join(word for _, _, word in sorted(timed, key=itemgetter(0, 1))))


def _time_words(
    segments: Sequence[Segment], normalizer: Normalizer, collar: Decimal | None = None
) -> dict[str, TimedWords]:
    """Return the words of each speaker; with a collar, a word reaches from `collar` seconds before its centre to as
    many after it."""
    speakers: dict[str, list[tuple[str, float, float]]] = {}
    for segment in _by_start(segments):
        own = speakers.setdefault(segment.speaker, [])
        words = normalizer(segment.text).split()
        if not words:
            continue
        first, last = _decimal(segment.start), _decimal(segment.end)
        letters = [0, *accumulate(map(len, words))]
        per_letter = (last - first) / letters[-1]
        edges = [first + per_letter * n_letters for n_letters in letters] if len(words) > 1 else [first, last]
        for word, start, end in zip(words, edges[:-1], edges[1:], strict=True):
            if collar is None:
                own.append((word, float(start), float(end)))
            else:
                centre = (start + end) / 2
                own.append((word, float(centre - collar), float(centre + collar)))
    return {
        speaker: TimedWords(*(tuple(column) for column in zip(*own, strict=True))) if own else TimedWords((), (), ())
        for speaker, own in speakers.items()
    }


def _decimal(seconds: float) -> Decimal:
    # meeteval computes times so, and whether a word just touches another's time depends on it.
    return Decimal(str(seconds))


def _check_speakers(reference: Sequence[Segment], hypothesis: Sequence[Segment]) -> None:
    n_ref, n_hyp = count_speakers(reference), count_speakers(hypothesis)
    if max(n_ref, n_hyp) > MAX_SPEAKERS:
        session_id = (*reference, *hypothesis)[0].session_id
        raise ValueError(
            f"session {quote(session_id)}: {n_ref} speakers in the reference and {n_hyp} in the hypothesis; "
            f"cpwer and tcpwer map at most {MAX_SPEAKERS}, so check the labels, or score wer"
        )


def _check_streams(session_id: str, n_segments: int, streams: Mapping[str, Sequence[str]]) -> None:
    where = f"session {quote(session_id)}: {len(streams)} speakers in the hypothesis"
    if len(streams) > MAX_STREAMS:
        raise ValueError(f"{where}; orcwer takes at most {MAX_STREAMS}, so check the labels, or score cpwer")
    n_cells = n_segments * math.prod(len(words) + 1 for words in streams.values())
    if n_cells > MAX_ORC_CELLS and len(streams) > 1:
        raise ValueError(
            f"{where} with so many words that orcwer would need {n_cells:.1e} cells, which is too much "
            f"(at most {MAX_ORC_CELLS:.0e}); score cpwer or tcpwer, or shorter sessions"
        )


def count_speakers(segments: Sequence[Segment]) -> int:
    return len({segment.speaker for segment in segments})


# ---------------------------------------------------------------------------------------------------------------------
# What is reported


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
    """Return the report for `--json`: rates are fractions, null if only the hypothesis has words."""
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
    """Return a row per session and OVERALL, with the settings above it; CSV is the table alone."""
    header = ["session", "words", "sub", "ins", "del", f"{report.metric} %", "ref spk", "hyp spk"]
    rows = [
        [*_cells(session.session_id, session.errors), str(session.n_ref_speakers), str(session.n_hyp_speakers)]
        for session in report.sessions
    ]
    rows.append([*_cells("OVERALL", report.overall), "", ""])
    if report.counted_as in ("cpwer", "tcpwer"):
        header.append("assignment")
        for row, session in zip(rows, report.sessions, strict=False):
            row.append(", ".join(f"{ref or '-'}={hyp or '-'}" for ref, hyp in session.assignment))
        rows[-1].append("")
    table = format_table(header, rows, style)
    return table if style == "csv" else f"{describe_settings(report)}\n\n{table}"


def _cells(name: str, errors: WordErrors) -> list[str]:
    counts = (errors.words, errors.substitutions, errors.insertions, errors.deletions)
    return [name, *map(str, counts), percent(errors.rate)]


# ---------------------------------------------------------------------------------------------------------------------
# Transcripts: what is scored in words, from files of any format that holds words
#
# SegLST, STM and CTM name speakers and times. An SST (sorted serialized transcript) names speakers, by tokens, and the
# order of words, but no times: its segments count words instead of seconds, so that their order is right. So do those
# of a session of SegLST in which any entry has no times: its words are in the order of the file, as in meeteval.
#
# What a decoder writes need not be an SST: any text is taken, by the rules of `formats.sst.parse_any`.

READERS: Mapping[str, Callable[[Path], list[Segment]]] = {
    "seglst": lambda path: seglst.read(path, zero_duration="keep", untimed="keep"),
    "stm": lambda path: stm.read(path, zero_duration="keep"),
    "ctm": lambda path: ctm.read(path, zero_duration="keep"),
}
SUFFIXES = {"seglst": ".json", "stm": ".stm", "ctm": ".ctm"}


@dataclass(frozen=True, slots=True)
class Transcripts:
    """Who said what in each session; a session in which nothing is said has no segments."""

    sessions: Mapping[str, Sequence[Segment]]
    untimed: frozenset[str] = frozenset()  # sessions whose starts and ends count words
    names_speakers: bool = True  # False: one stream of words, as a monaural ASR writes it
    notes: tuple[str, ...] = ()  # sentences about what was odd
    ignored: Mapping[str, Sequence[Region]] = field(default_factory=dict)  # time that an STM says not to score

    @classmethod
    def of(cls, segments: Iterable[Segment]) -> Transcripts:
        """Make transcripts from segments, or words, with times."""
        return cls._of_sessions(_by_session(segments))

    @classmethod
    def of_sst(cls, texts: Mapping[str, str]) -> Transcripts:
        """Make transcripts from the SST of each session, or whatever a decoder wrote in its place."""
        # What is said until another speaker speaks is a segment, so that every level of an SST is scored alike.
        sessions = {
            name: _count_words(
                Segment(name, speaker, nan, nan, " ".join(turn.text for turn in turns))
                for speaker, turns in groupby(parse_any(text), key=attrgetter("speaker"))
            )
            for name, text in texts.items()
        }
        tokens = {name: list(TOKEN.finditer(text)) for name, text in texts.items()}
        early, unknown = [], []
        for name, own in tokens.items():
            speakers = [token[1] for token in own if token[1].lower() != "cs"]
            if own and own[0][1].lower() != "cs" and texts[name][: own[0].start()].strip():
                early.append(name)
            if any(speaker_number(speaker) is None for speaker in speakers):
                unknown.append(name)
        notes = {
            "words before the first speaker token, taken as <spk0>'s": early,
            "a speaker token without a number, taken as a speaker of that name": unknown,
        }
        found = tuple(f"{what}: {name_sessions(names)}" for what, names in notes.items() if names)
        return cls(sessions, frozenset(sessions), any(tokens.values()), found)

    @classmethod
    def read(cls, path: Path, predicted: bool = False) -> Transcripts:
        """Read a SegLST, STM or CTM file, a folder of them, or SST: lines, or a manifest, with `session_id` and
        `text`.

        In a folder, a SegLST without entries is a session in which nothing is said, named after the file. A session is
        in one file; only CTM may have a file for each speaker, as meeteval takes it. `predicted`: lines that have
        NeMo's `pred_text` say there what was recognised, and what was said in `text`.
        """
        found = detect(path)
        if found in READERS:
            ignored: dict[str, list[Region]] = {}
            for file in files_in(path, SUFFIXES[found]) if found == "stm" else ():
                for region in stm.read_ignored(file):
                    ignored.setdefault(region.session_id, []).append(region)
            return replace(cls._of_sessions(_read_segments(path, found)), ignored=ignored)
        texts: dict[str, str] = {}
        for file in lists_in(path) if found == "lists" else [path]:
            for session_id, text in _read_texts(file, predicted):
                if session_id in texts:
                    raise ValueError(f"session {quote(session_id)} is in two files; the second is {file}")
                texts[session_id] = text
        return cls.of_sst(texts)

    @classmethod
    def _of_sessions(cls, sessions: Mapping[str, Sequence[Segment]]) -> Transcripts:
        for segment in (segment for own in sessions.values() for segment in own if "<" in segment.text):
            if token := TOKEN.search(segment.text):
                time = "" if isnan(segment.start) else f" at {segment.start:.3f} s"
                where = f"session {quote(segment.session_id)}, {segment.speaker}{time}"
                raise ValueError(
                    f"{where}: {quote(token[0])} in the words would count as a word; "
                    'give such text as lines {"session_id", "text"}'
                )
        names_speakers = any(len({segment.speaker for segment in own}) > 1 for own in sessions.values())
        untimed = frozenset(name for name, own in sessions.items() if any(isnan(segment.start) for segment in own))
        ordered = {name: _count_words(own) if name in untimed else own for name, own in sessions.items()}
        notes = (f"without times, words are in the order of the file: {name_sessions(untimed)}",) if untimed else ()
        return cls(ordered, untimed, names_speakers, notes)

    def without(self, ignored: Mapping[str, Sequence[Region]]) -> Transcripts:
        """Return the transcripts without the segments, or words, whose middle is in a region that is not scored."""

        kept: dict[str, Sequence[Segment]] = {}
        for name in self.sessions.keys() & ignored.keys() - self.untimed:
            starts, ends = zip(*sorted((region.start, region.end) for region in ignored[name]), strict=True)
            ends_until = [0.0, *accumulate(ends, max)]  # of the first regions, whose number is the index
            middles = [(segment.start + segment.end) / 2 for segment in self.sessions[name]]
            kept[name] = [
                segment
                for segment, middle in zip(self.sessions[name], middles, strict=True)
                if ends_until[bisect_right(starts, middle)] <= middle
            ]
        return replace(self, sessions={**self.sessions, **kept}) if kept else self


def _count_words(segments: Iterable[Segment]) -> list[Segment]:
    """Return the segments in the order given, with the number of words before and after each in place of times."""
    counted = []
    n_words = 0
    for segment in segments:
        start, n_words = n_words, n_words + len(segment.text.split())
        counted.append(replace(segment, start=float(start), end=float(n_words)))
    return counted


def _read_segments(path: Path, found: str) -> dict[str, list[Segment]]:
    parts = [(file, _by_session(READERS[found](file))) for file in files_in(path, SUFFIXES[found])]
    if path.is_dir():
        parts = [(file, part or {file.stem: []}) for file, part in parts]
    n_files = Counter(session_id for _, part in parts for session_id in part)
    sessions: dict[str, list[Segment]] = {}
    for file, part in parts:
        for session_id, segments in part.items():
            if session_id in sessions and found != "ctm":
                raise ValueError(f"session {quote(session_id)} is in two files; the second is {file}")
            prefix = f"{file.stem}:" if n_files[session_id] > 1 else ""
            named = [replace(segment, speaker=prefix + segment.speaker) for segment in segments]
            sessions.setdefault(session_id, []).extend(named)
    return sessions


def _by_session(segments: Iterable[Segment]) -> dict[str, list[Segment]]:
    sessions: dict[str, list[Segment]] = {}
    for segment in segments:
        sessions.setdefault(segment.session_id, []).append(segment)
    return sessions


def _read_texts(path: Path, predicted: bool) -> Iterator[tuple[str, str]]:
    found = detect(path)
    if found == "manifest":
        for number, session in manifest.parse(read_lines(path), path):
            text = session.extra.get("pred_text", session.text) if predicted else session.text
            if not isinstance(text, str):
                raise FormatError(path, number, "has no text, so that its words are not known")
            yield session.session_id, text
        return
    if found != "sst":
        raise FormatError(path, None, f"is {found}, which holds no words; give SegLST, STM, CTM or SST")
    line_of: dict[str, int | None] = {}
    for _, entry in entries(read_lines(path), path):
        session_id = entry.need(entry.name, "session_id")
        entry.check_new("session_id", session_id, line_of)
        yield session_id, entry.need(entry.text, "pred_text" if predicted and "pred_text" in entry.values else "text")
