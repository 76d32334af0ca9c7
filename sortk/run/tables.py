"""`sortk tables`: runs what is missing of the variants in a recipe's [tables], and writes RESULTS.md.

It is made of stages, so it can be stopped and resumed, and variants share all stages that they have in common.
"""

from __future__ import annotations

import logging
import os
import platform
import shlex
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sortk.formats import manifest
from sortk.formats.files import atomic_text, own_path
from sortk.recipe import find_recipe, load_recipe
from sortk.run.experiment import Experiment
from sortk.run.folders import find_commit
from sortk.run.stage import Stage
from sortk.scoring.evaluate import evaluate_rttm, evaluate_words
from sortk.scoring.intervals import DerOptions
from sortk.scoring.paper_tables import Measured, PaperTables, format_tables, read_scores
from sortk.scoring.results import DerResult, Results, WerResult, as_json
from sortk.scoring.wer import Style, WerOptions
from sortk.stages import find_stage, open_experiment, sets_of

log = logging.getLogger(__name__)

TABLES = ("table1", "table2", "table3")


@dataclass(frozen=True)
class Row:
    """A row of one of the tables, and how it is measured."""

    table: str
    name: str
    experiment: Experiment  # which is run and scored; of a row from files, whose test sets are scored
    files: Path | None = None  # another system's RTTM, or transcripts
    run: int = 0  # of several runs that differ by their seed

    @property
    def variant(self) -> str:
        return self.experiment.variant

    @property
    def reference_stages(self) -> list[Stage]:
        """The stages that make what files are scored against."""
        last = find_stage("simulate" if self.table == "table1" else "sst")
        return self.experiment.stages[: last.number + 1]


@dataclass(frozen=True)
class TablesPlan:
    """All rows of a recipe that can be measured here, and why others cannot."""

    recipe: str
    rows: Sequence[Row]
    notes: Sequence[str]
    overrides: Sequence[str] = ()
    about: str = ""

    @property
    def experiments(self) -> list[Experiment]:
        """Each variant that is trained and scored, once: the first run of every row, then the second runs, ...

        So a command that is stopped early has something in every row.
        """
        trained = sorted((row for row in self.rows if row.files is None), key=lambda row: row.run)
        return list({row.variant: row.experiment for row in trained}.values())


def list_first(
    recipe: str, exp: Path | None, overrides: Sequence[str], variant: str = "", tables: Collection[str] = TABLES
) -> list[Experiment]:
    """Return the variants that have to be run before `plan_tables`: rows start from their models."""
    first = load_recipe(recipe, overrides, variant).tables.first
    names = [name for table, names in first.items() if table in tables for name in names]
    return [open_experiment(recipe, exp, overrides, "+".join(filter(None, (variant, name)))) for name in names]


def plan_tables(
    recipe: str, exp: Path | None, overrides: Sequence[str], variant: str = "", tables: Collection[str] = TABLES
) -> TablesPlan:
    """Return the rows that the recipe names; with a variant, such as debug, those of the table go on top of it."""
    base = load_recipe(recipe, overrides, variant)
    rows, notes = [], []
    for table, named in base.tables.rows.items():
        if table not in tables:
            continue
        for name, given in named.items():
            files = Path(given.rttm or given.words) if given.rttm or given.words else None
            for run, row_variant in enumerate(given.variants or ("",)):
                stacked = "+".join(filter(None, (variant, row_variant)))
                try:
                    experiment = open_experiment(recipe, exp, overrides, stacked)
                    if files is None:
                        experiment.check_files(experiment.stages)
                    elif not files.exists():
                        raise FileNotFoundError(f"{files}: no such file or folder")
                except FileNotFoundError as error:
                    notes.append(f"{name}: {error}")
                except ValueError as error:
                    if not variant:
                        raise
                    why = str(error).removeprefix(f"{find_recipe(recipe)}: ")
                    notes.append(f"{name}: makes no sense on top of {variant} ({why})")
                else:
                    rows.append(Row(table, name, experiment, files, run))
    if not rows and not notes:
        raise ValueError(f"{find_recipe(recipe)}: names no rows of the paper's tables: [tables.table1], ...")
    if not rows:
        raise FileNotFoundError(f"no row of the tables can be measured; the first is {notes[0]}")
    return TablesPlan(base.name, rows, notes, overrides, base.tables.about)


def keep_finished(plan: TablesPlan) -> TablesPlan:
    """Return the plan with the rows that can be written as they are, and a note about each other one."""
    rows, notes = [], [*plan.notes]
    for row in plan.rows:
        needed = [find_stage("score")] if row.files is None else row.reference_stages
        if all(row.experiment.status(stage).state == "done" for stage in needed):
            rows.append(row)
        else:
            notes.append(f"{row.name} ({row.variant or 'the recipe itself'}): not measured yet")
    if not rows:
        raise ValueError("no row of the tables is finished; run `sortk tables` without --finished")
    return replace(plan, rows=rows, notes=notes)


def write_tables(plan: TablesPlan, out: Path, run_all: Callable[[Experiment], None]) -> str:
    """Run all variants by `run_all`, which leaves them scored, and write the tables; return their text."""
    for note in plan.notes:
        log.warning("left out: %s", note)
    for number, experiment in enumerate(plan.experiments, start=1):
        log.info("variant %d of %d: %s", number, len(plan.experiments), experiment.variant or "the recipe itself")
        run_all(experiment)
    tables = {
        table: [_measure(row, plan) for row in plan.rows if row.table == table]
        for table in TABLES
    }
    date = time.strftime("%Y-%m-%d")
    text = format_tables(
        PaperTables(plan.recipe, find_commit(), date, describe_machine(), tables, plan.notes, plan.about)
    )
    with atomic_text(out) as file:
        file.write(text)
    log.info("written: %s", out)
    return text


def _measure(row: Row, plan: TablesPlan) -> Measured:
    experiment, recipe = row.experiment, row.experiment.recipe
    if row.files is not None:
        return Measured(row.name, row.variant, _score_files(row, row.files), is_from_files=True)
    scores = read_scores(experiment.folder(find_stage("score")).final / "scores.json")
    times = {stage.name: experiment.status(stage).seconds for stage in experiment.stages}
    trained = (recipe.train_diar, recipe.train_asr) if recipe.asr else (recipe.train_diar,)
    return Measured(
        row.name,
        row.variant,
        scores,
        {name: spent for name, spent in times.items() if spent is not None},
        seeds=tuple(recipe.seed + options.seed_offset for options in trained),
        audio_hours=tuple(options.audio_hours for options in trained),
        command=describe_command(plan, row.variant),
    )


def describe_command(plan: TablesPlan, variant: str) -> str:
    """Return the command that runs a variant again; where the corpora are is for the reader to say."""
    settings = []
    for override in plan.overrides:
        key, _, _ = override.partition("=")
        settings.append(f"{key}=DIR" if key.endswith(("corpora_dir", "corpus_dir")) else override)
    parts = [f"--variant {variant}" if variant else "", *(f"--set {shlex.quote(setting)}" for setting in settings)]
    return " ".join(filter(None, (f"sortk run --recipe {plan.recipe}", *parts)))


def _score_files(row: Row, files: Path) -> dict[str, Any]:
    """Score another system's files as stage 8 scores its own, on the test sets of the recipe."""
    experiment, recipe = row.experiment, row.experiment.recipe
    for stage in row.reference_stages:
        experiment.run(stage, map)
    folders = {stage.name: experiment.folder(stage).final for stage in experiment.stages}
    der: list[DerResult] = []
    wer: list[WerResult] = []
    for name in recipe.score.sets:
        if row.table == "table1":
            sessions = sets_of(folders["prepare"], folders["simulate"])[name]
            options = DerOptions(recipe.score.collar, recipe.score.skip_overlap)
            der.append(evaluate_rttm(files, row.name, name, sessions, options))
        else:
            samples = manifest.read(folders["sst"] / "scored" / f"{name}.jsonl")
            style: Style = "librispeechmix" if recipe.score.mixtures else "sorted"
            wer += evaluate_words(files, row.name, name, samples, WerOptions(recipe.score.normalizer, style=style))
    return as_json(Results(recipe.name, "", "", der=der, wer=wer))


def place_results(recipe: str, exp: Path | None, variant: str) -> Path:
    """Return where to write: beside the recipe, but in the experiment for a variant, such as debug."""
    path = find_recipe(recipe)
    name = "RESULTS.md" if path.name == "recipe.toml" else f"{path.stem}-RESULTS.md"
    if not variant:
        return own_path(path.parent / name)
    return own_path((exp or Path("exp") / load_recipe(recipe).name) / f"variant-{variant}" / name)


def describe_machine() -> str:
    """Return the cores, processor and GPU of this machine."""
    import torch  # noqa: PLC0415 - slow to import, and needed only here

    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    processor = next(named, "") or platform.processor() or platform.machine()
    return f"{os.cpu_count()} cores ({processor}), {', '.join(gpus) or 'no GPU'}"
