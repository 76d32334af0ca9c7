"""The paper's tables as a recipe has measured them, with the paper's own numbers beside: the text of RESULTS.md.

A row is the scores.json of one variant, or the mean of several that differ by their seed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sortk.formats.files import atomic_text
from sortk.scoring.compare import Runs, SessionCounts, bootstrap, compare, mean_rate
from sortk.scoring.results import METRICS, NOT_MEASURED, format_arrival
from sortk.scoring.tables import format_table, percent

# ---------------------------------------------------------------------------------------------------------------------
# The paper's own numbers, in per cent. None of them was measured here. Of each table the rows that a recipe can have;
# None where the paper gives no number.

PaperNumbers = tuple[float | None, ...]

# Table 1: DER, overlap scored; collar 0 for DIHARD III and 0.25 s for the others.
TABLE_1_COLUMNS = (
    "DIHARD III, up to 4 spk",
    "CALLHOME part 2, 2 spk",
    "CALLHOME part 2, 3 spk",
    "CALLHOME part 2, 4 spk",
    "CH109",
)
TABLE_1: Mapping[tuple[str, str], PaperNumbers] = {
    ("MSDD", "none"): (29.40, 11.41, 16.45, 19.49, 8.24),
    ("EEND-EDA", "none"): (15.55, 7.83, 12.29, 17.59, None),
    ("WavLM-L+EEND-VC", "none"): (None, 6.46, 10.69, 11.84, None),
    ("EEND-GLA-Large", "none"): (13.64, 7.11, 11.88, 14.37, None),
    ("AED-EEND", "none"): (None, 6.18, 11.51, 18.44, None),
    ("AED-EEND-EE", "none"): (None, 6.93, 11.92, 17.12, None),
    ("Sortformer-PIL", "none"): (18.33, 7.28, 11.57, 18.80, 5.66),
    ("Sortformer-PIL", "tuned"): (17.04, 6.94, 10.30, 17.52, 6.89),
    ("Sortformer-Sort-Loss", "none"): (17.88, 7.42, 12.68, 19.42, 9.08),
    ("Sortformer-Sort-Loss", "tuned"): (17.10, 6.52, 10.36, 17.40, 10.85),
    ("Sortformer-Hybrid-Loss", "none"): (16.28, 6.49, 10.01, 14.14, 6.27),
    ("Sortformer-Hybrid-Loss", "tuned"): (14.76, 5.87, 8.46, 12.59, 6.86),
}

# Table 2: short segments of AMI test with up to four speakers, and of CH109.
TABLE_2_COLUMNS = ("AMI test WER", "AMI test cpWER", "CH109 WER", "CH109 cpWER")
TABLE_2: Mapping[str, PaperNumbers] = {
    "baseline": (26.93, None, 21.81, None),
    "1": (19.67, 32.94, 18.57, 24.80),
    "2": (20.08, 28.17, 18.65, 22.22),
    "3": (19.47, 32.74, 19.53, 26.97),
    "4": (19.48, 26.83, 18.74, 24.39),
    "5": (18.58, 28.59, 17.74, 22.19),
    "6": (18.04, 26.71, 16.46, 21.45),
}

# Table 3: WER on LibriSpeechMix. DOM-SOT was tested on mixtures with fixed delays, except for one speaker.
TABLE_3_COLUMNS = ("1mix WER", "2mix WER", "3mix WER")
TABLE_3: Mapping[str, PaperNumbers] = {
    "Canary-170M": (2.19, 21.37, 48.71),
    "Canary-1B": (1.65, 20.49, 47.32),
    "SOT-ASR": (4.6, 11.2, 24.0),
    "SOT-ASR-SQR": (4.2, 8.7, 20.2),
    "DOM-SOT": (5.17, 5.56, 9.96),
    "MT-LLM": (2.3, 5.2, 10.2),
    "MS-Canary": (2.74, 6.55, 12.14),
    "Sortformer-MS-Canary": (2.26, 4.61, 9.05),
}

# ---------------------------------------------------------------------------------------------------------------------

TITLES = {
    "table1": "Table 1: diarization error rate (%)",
    "table2": "Table 2: word error rates (%)",
    "table3": "Table 3: word error rate of mixtures (%)",
}
PAPER = "paper: "  # how the header of a column with the paper's numbers begins
NO_NUMBERS: PaperNumbers = (None,)
DER_PARTS = ("miss", "false_alarm", "confusion")
SIGNIFICANT = 0.05
MARK = "\\*"  # in Markdown, a star
MARK_NOTE = (
    f"- {MARK} differs from the best of its column (paired bootstrap over sessions and runs, p < {SIGNIFICANT:g})"
)

RUNTIME_NOTE = (
    "Measured on one core with random weights: a training step on one sample of 90 s, of which the losses were timed "
    "by themselves; and transcription of a batch of 4 clips of 12 s. The paper gives the time of an epoch on 64 GPUs, "
    "and that of batches of 100 on one GPU, which can run the diarizer beside the ASR; a core runs one after the other."
)

ScoreEntry = Mapping[str, Any]
"""Of scores.json: one system on one test set, with one postprocessing."""


RuntimeFigures = Sequence[tuple[str, float, float]]
"""What takes longer; by how many per cent, as measured; and in the paper."""


@dataclass(frozen=True)
class Measured:
    """One variant, measured once."""

    name: str  # of the row, as the paper has it
    variant: str
    scores: Mapping[str, Any]  # scores.json of stage 8, see `summarize`
    seconds: Mapping[str, float] = field(default_factory=dict)  # of each stage, shared ones included
    is_from_files: bool = False  # another system's output, which was only scored here
    seeds: tuple[int, ...] = ()  # of the diarizer and, if there is one, of the ASR
    audio_hours: tuple[float, ...] = ()  # in the training batches of both
    command: str = ""  # that runs this variant again


@dataclass(frozen=True)
class PaperTables:
    """Everything that RESULTS.md says."""

    recipe: str
    commit: str
    date: str
    machine: str
    tables: Mapping[str, Sequence[Measured]]  # table1, table2, table3; those of one name are one row
    notes: Sequence[str] = ()
    about: str = ""
    runtime: RuntimeFigures = ()
    first: Sequence[str] = ()  # commands of the runs from whose models others start


def read_scores(path: Path) -> dict[str, Any]:
    """Read the scores.json of stage 8, summarized."""
    return summarize(_read_object(path, {"der", "wer", "commit", "date"}, "run stage 8 again"))


def summarize(scores: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the tables need of the scores: of each session, how much is wrong and how much is scored."""
    parts = {"der": ([f"{part}_seconds" for part in DER_PARTS], "scored_seconds"), "wer": (["errors"], "words")}
    summary: dict[str, Any] = {"commit": scores["commit"], "date": scores["date"]}
    for kind, (wrong, scored) in parts.items():
        summary[kind] = []
        for entry in scores[kind]:
            sessions = [counts for _, counts in sorted(entry.get("sessions", {}).items())]
            counts = {
                "wrong": [round(sum(session[part] for part in wrong), 3) for session in sessions],
                "scored": [round(session[scored], 3) for session in sessions],
            }
            summary[kind].append({**entry, "sessions": counts})
    return summary


def _read_object(path: Path, keys: set[str], remedy: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); {remedy}") from None
    if not isinstance(content, dict) or not keys <= content.keys():
        raise ValueError(f"{path} is not a file of results; {remedy}")
    return content


def write_measured(path: Path, measured: Measured, key: str) -> None:
    """Store a run, with the key of its settings, so that it need not be trained again on another machine."""
    content = {
        "key": key,
        "scores": measured.scores,
        "seconds": {stage: round(seconds, 1) for stage, seconds in measured.seconds.items()},
        "seeds": measured.seeds,
        "audio_hours": measured.audio_hours,
        "command": measured.command,
    }
    with atomic_text(path) as file:
        json.dump(content, file, separators=(",", ":"))
        file.write("\n")


def write_runtime(path: Path, figures: RuntimeFigures) -> None:
    with atomic_text(path) as file:
        json.dump({"figures": figures}, file)
        file.write("\n")


def read_runtime(path: Path) -> RuntimeFigures:
    figures = _read_object(path, {"figures"}, "remove it")["figures"]
    return [(str(what), float(measured), float(paper)) for what, measured, paper in figures]


def read_measured(path: Path, name: str, variant: str, key: str) -> Measured | None:
    """Return a stored run; None if there is none, or if it was measured with other settings."""
    if not path.exists():
        return None
    content = _read_object(path, {"key", "scores", "seconds", "seeds", "audio_hours", "command"}, "remove it")
    if content["key"] != key:
        return None
    return Measured(
        name,
        variant,
        content["scores"],
        content["seconds"],
        seeds=tuple(content["seeds"]),
        audio_hours=tuple(content["audio_hours"]),
        command=content["command"],
    )


def format_tables(page: PaperTables) -> str:
    """Return the text of RESULTS.md."""
    parts = [
        f"# {page.recipe}: the paper's tables",
        f"Written by `sortk tables` on {page.date}, commit {page.commit}, {page.machine}. Columns that begin with "
        f'"{PAPER.strip()}" are the paper\'s own numbers, of its models on its data; they were not measured here.',
    ]
    for table, rows in page.tables.items():
        if rows:
            parts += [f"## {TITLES[table]}", *(_format_der(rows) if table == "table1" else _format_wer(rows, table))]
    parts += _format_arrival(page.tables.get("table1", ()))
    if page.runtime:
        # Adding 0 turns -0.00 into +0.00.
        lines = [[what, *(f"{round(value, 2) + 0.0:+.2f}" for value in values)] for what, *values in page.runtime]
        parts += ["## Run time (%)", RUNTIME_NOTE, format_table(["what", "measured", f"{PAPER}GPUs"], lines, "md")]
    parts += ["## What this shows, and what it does not", page.about] if page.about else []
    parts += ["## Runs", *_format_runs(page)]
    if page.notes:
        parts += ["## Left out", "\n".join(f"- {note}" for note in page.notes)]
    return "\n\n".join(parts) + "\n"


def _format_der(rows: Sequence[Measured]) -> list[str]:
    measured: dict[tuple[str, str], dict[str, list[ScoreEntry]]] = {}  # (row, postprocessing) -> test set -> each run
    for row in rows:
        for entry in row.scores["der"]:
            by_set = measured.setdefault((row.name, entry["postprocessing"]), {})
            by_set.setdefault(entry["test_set"], []).append(entry)
    cells = {key: _der_cells(by_set) for key, by_set in measured.items()}
    has_marks = _mark_worse(cells, {key: _count_seconds(by_set) for key, by_set in measured.items()})
    columns = list(dict.fromkeys(name for row_cells in cells.values() for name in row_cells))
    lines = [
        [
            *key,
            *(row_cells.get(name, NOT_MEASURED) for name in columns),
            *_paper_cells(TABLE_1.get(key, ()), TABLE_1_COLUMNS),
        ]
        for key, row_cells in cells.items()
    ]
    header = ["system", "postprocessing", *columns, *(PAPER + name for name in TABLE_1_COLUMNS)]
    notes = [*_explain_means(measured), *([MARK_NOTE] if has_marks else []), *_list_settings(rows, "der")]
    return [format_table(header, lines, "md"), "\n".join(notes)]


def _count_seconds(by_set: Mapping[str, Sequence[ScoreEntry]]) -> dict[str, Runs]:
    """Return the errors of each run by session, for the column of each test set's overall DER."""
    columns = {}
    for test_set, runs in by_set.items():
        n_speakers = list(runs[0]["by_speakers"])
        column = f"{test_set} {n_speakers[0]} spk" if len(n_speakers) == 1 else f"{test_set} all"
        columns[column] = _counts_of(runs)
    return columns


def _counts_of(runs: Sequence[ScoreEntry]) -> Runs:
    """Return what is wrong and what is scored in each run, by session."""
    return [SessionCounts(run["sessions"]["wrong"], run["sessions"]["scored"]) for run in runs]


def _mark_worse(cells: Mapping[Any, dict[str, str]], counts: Mapping[Any, Mapping[str, Runs]]) -> bool:
    """Mark the rates that differ from the best of their column; returns whether there are any."""
    has_marks = False
    for column in dict.fromkeys(name for own in counts.values() for name in own):
        own = {row: by_column[column] for row, by_column in counts.items() if column in by_column}
        own = {row: runs for row, runs in own.items() if all(sum(run.scored) > 0 for run in runs)}
        if len(own) < 2:
            continue
        best = min(own, key=lambda row: mean_rate(own[row]))
        for row, runs in own.items():
            alike = len(runs[0].wrong) == len(own[best][0].wrong) > 1
            if row != best and alike and compare(own[best], runs).p_value < SIGNIFICANT:
                cells[row][column] += MARK
                has_marks = True
    return has_marks


def _der_cells(by_set: Mapping[str, Sequence[ScoreEntry]]) -> dict[str, str]:
    """Return the DER of each test set by number of speakers, of all of it if there are several numbers, and how sure it
    is.

    Of several runs, the mean, and that of each.
    """
    cells: dict[str, str] = {}
    for test_set, runs in by_set.items():
        by_speakers = [{n: counts["der"] for n, counts in run["by_speakers"].items()} for run in runs]
        cells |= {f"{test_set} {n} spk": _mean([rates.get(n) for rates in by_speakers]) for n in by_speakers[0]}
        if len(by_speakers[0]) != 1:
            cells[f"{test_set} all"] = _mean([run["overall"]["der"] for run in runs])
        if interval := bootstrap(_counts_of(runs)):
            cells[f"{test_set} 95 %"] = " to ".join(map(percent, interval))
        if len(runs) > 1:
            cells[f"{test_set} each run"] = ", ".join(_mean([run["overall"]["der"]]) for run in runs)
    return cells


def _mean(rates: Sequence[float | None]) -> str:
    known = [rate for rate in rates if rate is not None]
    return percent(sum(known) / len(known)) if len(known) == len(rates) else NOT_MEASURED


def _explain_means(measured: Mapping[Any, Mapping[str, Sequence[ScoreEntry]]]) -> list[str]:
    several = {len(runs) for by_set in measured.values() for runs in by_set.values()} - {1}
    note = (
        "- where runs are listed, rates are their mean; they differ by chance only (seeds), and intervals and "
        "comparisons cover other seeds as well as other sessions"
    )
    return [note] if several else []


def _format_wer(rows: Sequence[Measured], table: str) -> list[str]:
    known, names = {
        "table2": (TABLE_2, TABLE_2_COLUMNS),
        "table3": (TABLE_3, TABLE_3_COLUMNS),
    }[table]
    measured: dict[str, dict[str, list[ScoreEntry]]] = {}  # row -> test set and metric -> each run
    for row in rows:
        for entry in row.scores["wer"]:
            by_column = measured.setdefault(row.name, {})
            by_column.setdefault(f"{entry['test_set']} {METRICS[entry['settings']['metric']]}", []).append(entry)
    cells = {name: _wer_cells(by_column) for name, by_column in measured.items()}
    counts = {
        name: {column: _counts_of(runs) for column, runs in by_column.items() if _has_rate(runs[0])}
        for name, by_column in measured.items()
    }
    has_marks = _mark_worse(cells, counts)
    columns = list(dict.fromkeys(column for row_cells in cells.values() for column in row_cells))
    lines = [
        [
            name,
            "; ".join(dict.fromkeys(run["system"] for runs in measured[name].values() for run in runs)),
            *(row_cells.get(column, NOT_MEASURED) for column in columns),
            *_paper_cells(known.get(name, ()), names),
        ]
        for name, row_cells in cells.items()
    ]
    header = ["system", "what it is", *columns, *(PAPER + name for name in names)]
    notes = [*_explain_means(measured), *([MARK_NOTE] if has_marks else []), *_list_settings(rows, "wer")]
    return [format_table(header, lines, "md"), "\n".join(notes)]


def _wer_cells(by_column: Mapping[str, Sequence[ScoreEntry]]) -> dict[str, str]:
    """Return the rates of a row: of each test set and metric; for the last metric also by number of speakers, with its
    interval and each run."""
    cells: dict[str, str] = {}
    last = {runs[0]["test_set"]: column for column, runs in by_column.items()}
    for column, runs in by_column.items():
        metric = runs[0]["settings"]["metric"]
        rates = [run["overall"][metric] for run in runs]
        cells[column] = _mean(rates) if _has_rate(runs[0]) else NOT_MEASURED
        if column != last[runs[0]["test_set"]] or not _has_rate(runs[0]):
            continue
        test_set, name = runs[0]["test_set"], METRICS[metric]
        numbers = list(runs[0].get("by_speakers", ()))
        if len(numbers) > 1:
            cells |= {
                f"{test_set} {n} spk {name}": _mean([run["by_speakers"].get(n, {}).get(metric) for run in runs])
                for n in numbers
            }
        if interval := bootstrap(_counts_of(runs)):
            cells[f"{column} 95 %"] = " to ".join(map(percent, interval))
        if len(runs) > 1:
            cells[f"{column} each run"] = ", ".join(_mean([rate]) for rate in rates)
    return cells


def _has_rate(entry: ScoreEntry) -> bool:
    metric = entry["settings"]["metric"]
    # Who writes no speakers has no cpWER: as in the paper, where the baseline has none.
    is_nameless = entry["system"].startswith("baseline") and metric == "cpwer"
    return entry["overall"][metric] is not None and not is_nameless


def _paper_cells(numbers: PaperNumbers, columns: Sequence[str]) -> list[str]:
    known = numbers or NO_NUMBERS * len(columns)
    return [NOT_MEASURED if number is None else f"{number:.2f}" for number in known]


def _list_settings(rows: Sequence[Measured], kind: str) -> list[str]:
    """Return how each test set was scored, a line each; all rows of a recipe are scored alike."""
    lines: dict[str, None] = {}
    for entry in (entry for row in rows for entry in row.scores[kind]):
        shown = entry["settings"] | ({"decoding": entry["decoding"]} if "decoding" in entry else {})
        settings = ", ".join(f"{name} {value}" for name, value in shown.items())
        lines[f"- {entry['test_set']}: {settings}"] = None
    return list(lines)


def _format_arrival(rows: Sequence[Measured]) -> list[str]:
    """Return the section on the order of speakers, without postprocessing; the runs of a row are added up."""
    runs: dict[tuple[str, ...], list[ScoreEntry]] = {}
    for row in rows:
        for entry in row.scores["der"]:
            if entry["postprocessing"] == "none" and entry.get("arrival", {}).get("sessions", {}).get("n"):
                runs.setdefault((row.name,), []).append(entry["arrival"])
    title = "## Speakers in the order of arrival (%), without postprocessing"
    return [title, *format_arrival(["system"], runs)] if runs else []


def _format_runs(page: PaperTables) -> list[str]:
    rows = {row.variant: row for rows in page.tables.values() for row in rows if not row.is_from_files}
    stages = list(dict.fromkeys(stage for row in rows.values() for stage in row.seconds))
    lines = [
        [
            row.variant or "the recipe itself",
            ", ".join(map(str, row.seeds)),
            ", ".join(f"{hours:.1f}" for hours in row.audio_hours),
            *(_minutes(row.seconds.get(stage)) for stage in stages),
            _minutes(sum(row.seconds.values())),
            f"{row.scores['commit']}, {row.scores['date']}",
            f"`{row.command}`",
        ]
        for row in rows.values()
    ]
    header = ["variant", "seed", "audio h", *stages, "all", "scored at", "to run it again"]
    about = (
        "Seeds, and hours of audio in all training batches, of the diarizer and of the ASR. Then the minutes of each "
        "stage, by the clock; of one that was interrupted, since it was last continued. A stage that several variants "
        "have in common was run once, and counts in every row."
    )
    if page.first:
        commands = ", then ".join(f"`{command}`" for command in page.first)
        about += f" Some runs start from models of others, so first run {commands}."
    return [about, format_table(header, lines, "md")]


def _minutes(seconds: float | None) -> str:
    return NOT_MEASURED if seconds is None else f"{seconds / 60:.1f}"
