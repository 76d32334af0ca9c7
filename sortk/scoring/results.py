"""What a recipe has measured: RESULTS.md with the rows of the paper's tables, and scores.json with everything.

    Table 1   DER of each system without and with postprocessing, by test set and number of speakers
    Table 2   WER and cpWER of each system, by test set
    Table 3   the same shape, with the WER of LibriSpeechMix

A row is a system (and its postprocessing), a column what it was measured on. Everything that a number depends on is
listed: settings of the scorers below each table, those of the recipe at the end, commit and date at the top.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sortk.formats.objects import encode
from sortk.scoring import der, wer
from sortk.scoring.arrival import DISTANCES, ArrivalReport
from sortk.scoring.der import RIGHT_COUNT, DerReport
from sortk.scoring.intervals import DerCounts
from sortk.scoring.tables import format_table, percent
from sortk.scoring.wer import WerReport

METRICS = {"cpwer": "cpWER", "tcpwer": "tcpWER", "orcwer": "ORC-WER", "wer": "WER"}
NOT_MEASURED = "-"

Cells = dict[tuple[tuple[str, ...], str], str]
"""The text of each cell, by row and column."""


@dataclass(frozen=True)
class DerResult:
    """Who spoke when, measured once."""

    system: str
    test_set: str
    postprocessing: str  # "none", or what was done
    report: DerReport
    arrival: ArrivalReport | None = None  # of a model's own outputs; the speakers of other files have no order


@dataclass(frozen=True)
class WerResult:
    """What was said, measured once."""

    system: str
    test_set: str
    report: WerReport
    decoding: str  # free, or valid: only sorted serialized transcripts

    @property
    def score(self) -> str:
        """As the paper calls it."""
        name = METRICS[self.report.metric]
        is_special = self.report.metric == "wer" and self.report.options.style != "sorted"
        return f"{name} ({self.report.options.style})" if is_special else name


LEFT_OUT = {
    "no_words": "without words",
    "no_transcript": "without a transcript",
    "outside_uem": "outside the UEM",
    "after_audio": "in entries that start after the end of the audio",
}
"""Why a part of a test set has no word error rate."""


@dataclass(frozen=True)
class Coverage:
    """How much of a test set its word error rates are about, and how much they are not."""

    test_set: str
    hours: float
    segments: int  # samples of 10 to 20 s
    words: int
    left_out: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # by a key of LEFT_OUT: hours, ...
    cut_words: int = 0  # places at which a cut went through words, which count once all the same

    @classmethod
    def of(cls, test_set: str, cleaned: Mapping[str, Any], serialized: Mapping[str, Any]) -> Coverage:
        """Read what stages 2 and 4 have noted of the set in their summary.json."""
        repairs, samples = cleaned["repairs"], cleaned["scored"]
        left_out: dict[str, dict[str, float]] = {
            rule: {"hours": rejected["hours"], "segments": rejected["pieces"]}
            for rule, rejected in samples["rejected_by_rule"].items()
        }
        if repairs.get("words_outside_uem"):
            left_out.setdefault("outside_uem", {})["words"] = repairs["words_outside_uem"]
        if repairs.get("transcript_after_end"):
            left_out["after_audio"] = {"entries": repairs["transcript_after_end"]}
        counts = serialized["sessions"], serialized["words"]
        return cls(test_set, samples["out"]["hours"], *counts, left_out, repairs.get("word_cut_by_scored", 0))

    def to_json(self) -> dict[str, Any]:
        scored = {"hours": self.hours, "segments": self.segments, "words": self.words}
        return {"scored": scored, "left_out": self.left_out, "cut_words": self.cut_words}


def describe_coverage(test_set: str, coverage: Mapping[str, Any]) -> str:
    """Return the sentence of RESULTS.md about an entry of scores.json's `coverage`."""
    scored = coverage["scored"]
    parts = [
        ", ".join(f"{amount:.3f} h" if name == "hours" else f"{amount} {name}" for name, amount in amounts.items())
        + f" {LEFT_OUT[why]}"
        for why, amounts in coverage["left_out"].items()
    ]
    text = f"{test_set}: {scored['hours']:.3f} h scored, {scored['segments']} segments with {scored['words']} words"
    text += f"; left out: {'; '.join(parts) or 'nothing'}"
    n_cuts = coverage["cut_words"]
    return text + (f"; {n_cuts} cuts inside a word, which is in the segment of its middle" if n_cuts else "")


@dataclass(frozen=True)
class Results:
    """All that one run of the recipe has measured; rows and columns are in the order given here."""

    recipe: str
    commit: str
    date: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the recipe: tables of keys and values
    der: Sequence[DerResult] = ()
    wer: Sequence[WerResult] = ()
    coverage: Sequence[Coverage] = ()  # of each test set that has word error rates
    initial: Sequence[DerResult] = ()  # of the diarizer that training started from, if there is one

    def __post_init__(self) -> None:
        _check_alike((result.test_set, (result.report.options, result.report.uem)) for result in self.der)
        _check_alike((f"{result.test_set} {result.score}", result.report.options) for result in self.wer)
        _check_single((result.system, result.postprocessing, result.test_set) for result in (*self.initial, *self.der))
        _check_single((result.system, result.score, result.test_set) for result in self.wer)


def _check_alike(measured: Iterable[tuple[str, object]]) -> None:
    """Numbers of one column must have been measured in one way."""
    known: dict[str, object] = {}
    for name, settings in measured:
        if known.setdefault(name, settings) != settings:
            raise ValueError(f"{name} is scored with different settings: {known[name]} and {settings}; name it twice")


def _check_single(keys: Iterable[tuple[str, ...]]) -> None:
    seen: set[tuple[str, ...]] = set()
    for key in keys:
        if key in seen:
            raise ValueError(f"measured twice: {', '.join(key)}")
        seen.add(key)


# ---------------------------------------------------------------------------------------------------------------------
# scores.json


def as_json(results: Results) -> dict[str, Any]:
    """Everything, down to the sessions; rates are fractions."""
    return {
        "recipe": results.recipe,
        "commit": results.commit,
        "date": results.date,
        "settings": dict(results.settings),
        "der": [_der_as_json(result) for result in results.der],
        "initial": [_der_as_json(result) for result in results.initial],
        "wer": [
            {
                "system": result.system,
                "test_set": result.test_set,
                "decoding": result.decoding,
                **wer.as_json(result.report),
            }
            for result in results.wer
        ],
        "coverage": {coverage.test_set: coverage.to_json() for coverage in results.coverage},
    }


def _der_as_json(result: DerResult) -> dict[str, Any]:
    names = {"system": result.system, "test_set": result.test_set, "postprocessing": result.postprocessing}
    arrival = {"arrival": result.arrival.to_json()} if result.arrival else {}
    return names | der.as_json(result.report) | arrival


# ---------------------------------------------------------------------------------------------------------------------
# RESULTS.md


def format_results(results: Results) -> str:
    """Return the text of RESULTS.md."""
    parts = [f"# Results of {results.recipe}", f"Commit {results.commit}, {results.date}."]
    if results.der:
        parts += ["## Diarization error rate (%)", *_format_der([*results.initial, *results.der])]
        arrivals: dict[tuple[str, ...], list[dict[str, Any]]] = {
            (result.system, result.postprocessing, result.test_set): [result.arrival.to_json()]
            for result in [*results.initial, *results.der]
            if result.arrival and result.arrival.sessions
        }
        if arrivals:
            columns = ("system", "postprocessing", "test set")
            parts += ["## Speakers in the order of arrival (%)", *format_arrival(columns, arrivals)]
    if results.wer:
        parts += ["## Word error rates (%)", *_format_wer(results.wer)]
        parts += ["\n".join(f"- {describe_coverage(c.test_set, c.to_json())}" for c in results.coverage)]
    measured: list[DerResult | WerResult] = [*results.der, *results.wer]
    notes = [f"- {result.test_set}, {result.system}: {note}" for result in measured for note in result.report.notes]
    if notes:
        parts += ["## Notes", "\n".join(dict.fromkeys(notes))]
    if results.settings:
        parts += ["## Settings", "\n".join(["```", *_flatten(results.settings), "```"])]
    return "\n\n".join(parts) + "\n"


def format_summary(results: Results) -> str:
    """Return the main tables for a terminal: DER, and word error rates."""
    tables = []
    if results.der:
        header, rows = _pivot(("DER (%)", "postprocessing"), _der_cells([*results.initial, *results.der]))
        tables.append(format_table(header, rows))
    if results.wer:
        header, rows = _pivot(("word error rate (%)",), _wer_cells(results.wer))
        tables.append(format_table(header, rows))
    return "\n\n".join(tables)


def _format_der(results: Sequence[DerResult]) -> list[str]:
    settings = {f"- {result.test_set}: {der.describe_settings(result.report)}": None for result in results}
    parts = [[result.system, result.postprocessing, result.test_set, *_der_parts(result.report)] for result in results]
    header = ["system", "postprocessing", "test set", "sessions", "scored h", "miss", "false alarm", "confusion", "DER"]
    return [
        format_table(*_pivot(("system", "postprocessing"), _der_cells(results)), "md"),
        "\n".join(settings),
        format_table([*header, "95 % interval", "JER", RIGHT_COUNT], parts, "md"),
    ]


def _der_cells(results: Sequence[DerResult]) -> Cells:
    return {
        ((result.system, result.postprocessing), column): _der(counts)
        for result in results
        for column, counts in _columns(result).items()
    }


ARRIVAL_NOTE = (
    "Of two speakers who arrive one after the other, how often the output of the earlier one comes first, by the "
    "distance of their first starts; and how often all speakers of a session are in order, by their number. A speaker "
    "without an output counts as wrong. In brackets: how many."
)


def format_arrival(
    columns: Sequence[str], rows: Mapping[tuple[str, ...], Sequence[Mapping[str, Any]]]
) -> tuple[str, str]:
    """Return a note and a table: for each row, entries `arrival` of scores.json, which are added up."""
    numbers = sorted({int(n) for runs in rows.values() for run in runs for n in run["by_speakers"]})
    header = [*columns, *(f"{name} apart" for name in DISTANCES), "all pairs"]
    header += [f"complete sessions, {n} spk" for n in numbers] + ["all sessions"]
    lines = []
    for labels, runs in rows.items():
        pairs = [[run["pairs"][name] for run in runs] for name in DISTANCES]
        by_number = [[run["by_speakers"].get(str(n), {}).get("sessions", {}) for run in runs] for n in numbers]
        cells = []
        for own in [
            *pairs,
            [tally for tallies in pairs for tally in tallies],
            *by_number,
            [r["sessions"] for r in runs],
        ]:
            n, right = sum(tally.get("n", 0) for tally in own), sum(tally.get("right", 0) for tally in own)
            cells.append(f"{percent(right / n)} ({n})" if n else NOT_MEASURED)
        lines.append([*labels, *cells])
    return ARRIVAL_NOTE, format_table(header, lines, "md")


def _columns(result: DerResult) -> dict[str, DerCounts]:
    """Return the test set by number of speakers, and all of it; only the latter if there is just one number."""
    by_speakers = {n: counts for n, counts in result.report.by_speakers().items() if counts.errors.scored > 0}
    overall = result.report.overall
    if len(by_speakers) == 1:
        return {f"{result.test_set} {next(iter(by_speakers))} spk": overall}
    columns = {f"{result.test_set} {n} spk": counts for n, counts in by_speakers.items()}
    return {**columns, f"{result.test_set} all": overall}


def _der(counts: DerCounts) -> str:
    return percent(counts.der) if counts.errors.scored > 0 else NOT_MEASURED


def _der_parts(report: DerReport) -> list[str]:
    counts, errors, interval = report.overall, report.overall.errors, report.bootstrap()
    rates = [percent(errors.rate(seconds)) for seconds in (errors.miss, errors.false_alarm, errors.confusion)]
    return [
        str(counts.n_sessions),
        f"{errors.scored / 3600:.3f}",
        *(rates if errors.scored > 0 else [NOT_MEASURED] * 3),
        _der(counts),
        " to ".join(map(percent, interval)) if interval else NOT_MEASURED,
        percent(counts.jer) if counts.n_jaccard else NOT_MEASURED,
        percent(counts.count_accuracy),
    ]


def _wer_cells(results: Sequence[WerResult]) -> Cells:
    return {
        ((result.system,), f"{result.test_set} {result.score}"): percent(result.report.overall.rate)
        for result in results
    }


def _format_wer(results: Sequence[WerResult]) -> list[str]:
    settings = {
        f"- {result.test_set}: {wer.describe_settings(result.report)}; decoding {result.decoding}": None
        for result in results
    }
    parts = []
    for result in results:
        errors = result.report.overall
        counts = errors.words, errors.substitutions, errors.insertions, errors.deletions
        names = [result.system, result.test_set, result.score, str(len(result.report.sessions))]
        parts.append([*names, *map(str, counts), percent(errors.rate)])
    header = ["system", "test set", "score", "samples", "words", "substituted", "inserted", "deleted", "rate"]
    return [
        format_table(*_pivot(("system",), _wer_cells(results)), "md"),
        "\n".join(settings),
        format_table(header, parts, "md"),
    ]


def _pivot(names: Sequence[str], cells: Cells) -> tuple[list[str], list[list[str]]]:
    """Header and rows; what was not measured is `-`."""
    rows, columns = (list(dict.fromkeys(keys)) for keys in zip(*cells, strict=True))
    return [*names, *columns], [[*row, *(cells.get((row, column), NOT_MEASURED) for column in columns)] for row in rows]


def _flatten(settings: Mapping[str, Any], prefix: str = "") -> list[str]:
    """`table.key = value`, a line each."""
    lines = []
    for key, value in settings.items():
        if isinstance(value, Mapping):
            lines += _flatten(value, f"{prefix}{key}.")
        else:
            lines.append(f"{prefix}{key} = {encode(value)}")
    return lines
