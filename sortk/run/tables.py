"""`sortk tables`: runs what is missing of the variants in a recipe's [tables], and writes RESULTS.md.

It is made of stages, so it can be stopped and resumed, and variants share all stages that they have in common. The
scores of every run are also stored in results/, beside RESULTS.md: a table of many trainings can be continued on
another machine, without the experiment.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import platform
import shlex
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from sortk.formats import manifest
from sortk.formats.files import atomic_text, own_path
from sortk.recipe import find_recipe, load_recipe
from sortk.run.experiment import Experiment
from sortk.run.folders import find_commit, settings_of
from sortk.run.stage import Stage
from sortk.scoring.evaluate import evaluate_rttm, evaluate_words
from sortk.scoring.intervals import DerOptions
from sortk.scoring.paper_tables import (
    Measured,
    PaperTables,
    RuntimeFigures,
    format_tables,
    read_measured,
    read_runtime,
    read_scores,
    summarize,
    write_measured,
    write_runtime,
)
from sortk.scoring.results import DerResult, Results, WerResult, as_json
from sortk.scoring.wer import Style, WerOptions
from sortk.stages import find_stage, open_experiment, sets_of

log = logging.getLogger(__name__)

TABLES = ("table1", "table2", "table3")


@dataclass(frozen=True)
class Row:
    """A run of a row of one of the tables, and how it is measured."""

    table: str
    name: str
    experiment: Experiment  # which is run and scored; of a row from files, whose test sets are scored
    files: Path | None = None  # another system's RTTM, or transcripts
    run: int = 0  # of several runs that differ by their seed
    first: Sequence[Experiment] = ()  # the runs from whose models it starts
    store: Path | None = None  # the folder of what is measured, also on other machines

    @property
    def variant(self) -> str:
        return self.experiment.variant

    @property
    def is_scored(self) -> bool:
        """Whether stage 8 is done here."""
        return self.files is None and self.experiment.status(find_stage("score")).state == "done"

    @property
    def stored_at(self) -> Path | None:
        return self.store / f"{self.variant or 'recipe'}.json" if self.store and self.files is None else None

    @functools.cached_property
    def stored(self) -> Measured | None:
        """What was measured with the present settings, on this machine or on another."""
        return read_measured(self.stored_at, self.name, self.variant, self.settings_key) if self.stored_at else None

    @functools.cached_property
    def settings_key(self) -> str:
        """A hash of all settings of the run, and of those from whose models it starts.

        It does not depend on where the corpora are, nor on their content: a recipe means one corpus.
        """
        settings = []
        for experiment in (self.experiment, *self.first):
            tables = {table for stage in experiment.stages for table in stage.tables}
            options = {table: settings_of(getattr(experiment.recipe, table)) for table in sorted(tables)}
            revisions = [stage.revision for stage in experiment.stages]
            settings.append([experiment.recipe.seed, revisions, _without_folders(options)])
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def reference_stages(self) -> list[Stage]:
        """The stages that make what files are scored against."""
        last = find_stage("simulate" if self.table == "table1" else "sst")
        return self.experiment.stages[: last.number + 1]


def _without_folders(settings: Any) -> Any:
    """Return the settings without those that name a folder, such as corpora_dir."""
    if isinstance(settings, list):
        return [_without_folders(item) for item in settings]
    if isinstance(settings, dict):
        return {key: _without_folders(item) for key, item in settings.items() if not key.endswith("_dir")}
    return settings


@dataclass(frozen=True)
class TablesPlan:
    """All rows of a recipe that can be measured here, and why others cannot."""

    recipe: str
    rows: Sequence[Row]
    notes: Sequence[str]
    overrides: Sequence[str] = ()
    about: str = ""
    runtime: Literal["", "tiny", "base"] = ""  # size of the models whose run time is measured; empty: not
    stored_runtime: Path | None = None

    @property
    def experiments(self) -> list[Experiment]:
        return list_missing(self.rows)


@dataclass(frozen=True)
class TablesRequest:
    """Which tables of a recipe are wanted; with a variant, such as debug, those of the rows go on top of it."""

    recipe: str
    exp: Path | None = None
    overrides: Sequence[str] = ()
    variant: str = ""
    tables: Collection[str] = TABLES
    store: Path | None = None
    finished: bool = False  # write what is measured, and run nothing

    def open(self, variant: str) -> Experiment:
        stacked = "+".join(filter(None, (self.variant, variant)))
        return open_experiment(self.recipe, self.exp, self.overrides, stacked)

    def list_rows(self, notes: list[str]) -> Iterator[Row]:
        """Yield every run that the recipe names, whether or not its files exist; note which ones make no sense."""
        options = load_recipe(self.recipe, self.overrides, self.variant).tables
        for table, named in options.rows.items():
            if table not in self.tables:
                continue
            first = [self.open(variant) for variant in options.first.get(table, ())]
            for name, given in named.items():
                files = Path(given.rttm or given.words) if given.rttm or given.words else None
                for run, variant in enumerate(given.variants or ("",)):
                    try:
                        experiment = self.open(variant)
                        yield Row(table, name, experiment, files, run, _find_starts(experiment, first), self.store)
                    except ValueError as error:
                        if not self.variant:
                            raise
                        why = str(error).removeprefix(f"{find_recipe(self.recipe)}: ")
                        notes.append(f"{name}: makes no sense on top of {self.variant} ({why})")


def _find_starts(experiment: Experiment, first: Sequence[Experiment]) -> list[Experiment]:
    """Return those of `first` from whose models the experiment starts, also by way of one another."""
    starts: list[Experiment] = []
    for candidate in reversed(first):
        recipes = [start.recipe for start in (experiment, *starts)]
        inits = [options.init for recipe in recipes for options in (recipe.train_diar, recipe.train_asr)]
        if any(f"variant-{candidate.variant}" in Path(init).parts for init in inits):
            starts.insert(0, candidate)
    return starts


def list_missing(rows: Iterable[Row]) -> list[Experiment]:
    """Return each variant that is to be trained and scored, once: the first run of every row, then the second runs, ...

    So a command that is stopped early has something in every row.
    """
    missing = sorted((row for row in rows if row.files is None and not row.stored), key=lambda row: row.run)
    return list({row.variant: row.experiment for row in missing}.values())


def list_first(rows: Iterable[Row]) -> list[Experiment]:
    """Return the variants that have to be run before `plan_tables`: rows that are not stored start from them."""
    missing = [row for row in rows if row.files is None and not row.stored]
    return list({experiment.variant: experiment for row in missing for experiment in row.first}.values())


def plan_tables(request: TablesRequest) -> TablesPlan:
    """Return the rows that can be measured."""
    base = load_recipe(request.recipe, request.overrides, request.variant)
    rows: list[Row] = []
    notes: list[str] = []
    for row in request.list_rows(notes):
        try:
            if row.files is None and not row.stored and not request.finished:
                row.experiment.check_files(row.experiment.stages)
            if row.files is not None and not row.files.exists():
                raise FileNotFoundError(f"{row.files}: no such file or folder")
        except FileNotFoundError as error:
            notes.append(f"{row.name}: {error}")
        else:
            rows.append(row)
    if not rows and not notes:
        raise ValueError(f"{find_recipe(request.recipe)}: names no rows of the paper's tables: [tables.table1], ...")
    if not rows:
        raise FileNotFoundError(f"no row of the tables can be measured; the first is {notes[0]}")
    options = base.tables
    runtime = request.store / "runtime.json" if request.store else None
    notes = list(dict.fromkeys(notes))  # the runs of a row may lack the same file
    plan = TablesPlan(base.name, rows, notes, request.overrides, options.about, options.runtime, runtime)
    return _keep_finished(plan) if request.finished else plan


def _keep_finished(plan: TablesPlan) -> TablesPlan:
    """Return the plan with the rows that can be written as they are, and a note about each other one."""
    rows = []
    missing: dict[str, list[str]] = {}  # runs of each row
    for row in plan.rows:
        is_ready = row.files is not None and all(
            row.experiment.status(stage).state == "done" for stage in row.reference_stages
        )
        if is_ready or row.stored or row.is_scored:
            rows.append(row)
        else:
            missing.setdefault(f"{row.table}, {row.name}", []).append(row.variant or "the recipe itself")
    if not rows:
        raise ValueError("no row of the tables is finished; run `sortk tables` without --finished")
    runtime = plan.runtime if plan.stored_runtime and plan.stored_runtime.exists() else ""
    notes = [*plan.notes, *(f"{name}: not measured yet: {', '.join(runs)}" for name, runs in missing.items())]
    return replace(plan, rows=rows, notes=notes, runtime=runtime)


def write_tables(plan: TablesPlan, out: Path, run_all: Callable[[Experiment], None]) -> str:
    """Run all variants by `run_all`, which leaves them scored, and write the tables; return their text."""
    for note in plan.notes:
        log.warning("left out: %s", note)
    missing = plan.experiments
    if stored := {row.stored_at for row in plan.rows if row.stored_at and row.stored}:
        log.info("%d runs are stored in %s", len(stored), next(iter(stored)).parent)
    for number, experiment in enumerate(missing, start=1):
        log.info("variant %d of %d: %s", number, len(missing), experiment.variant or "the recipe itself")
        run_all(experiment)
        for row in plan.rows:
            if row.variant == experiment.variant:
                _measure(row, plan)
    tables = {table: [_measure(row, plan) for row in plan.rows if row.table == table] for table in TABLES}
    first = dict.fromkeys(experiment.variant for row in plan.rows for experiment in row.first)
    text = format_tables(
        PaperTables(
            plan.recipe,
            find_commit(),
            time.strftime("%Y-%m-%d"),
            describe_machine(),
            tables,
            plan.notes,
            plan.about,
            _find_runtime(plan),
            [describe_command(plan, variant) for variant in first],
        )
    )
    with atomic_text(out) as file:
        file.write(text)
    log.info("written: %s", out)
    return text


def _find_runtime(plan: TablesPlan) -> RuntimeFigures:
    """Return the figures about run time that are stored; or measure and store them, if the recipe wants them."""
    if not plan.runtime:
        return ()
    if plan.stored_runtime and plan.stored_runtime.exists():
        return read_runtime(plan.stored_runtime)
    from sortk.training.runtime import measure_runtime  # noqa: PLC0415 - imports torch, which is slow

    figures = measure_runtime(plan.runtime)
    if plan.stored_runtime:
        plan.stored_runtime.parent.mkdir(exist_ok=True)
        write_runtime(plan.stored_runtime, figures)
    return figures


def _measure(row: Row, plan: TablesPlan) -> Measured:
    """Return the scores of a run, and store them; or those that are stored, if it was not run here."""
    experiment, recipe = row.experiment, row.experiment.recipe
    if row.files is not None:
        return Measured(row.name, row.variant, _score_files(row, row.files), is_from_files=True)
    if row.stored and not row.is_scored:
        return row.stored
    scores = read_scores(experiment.folder(find_stage("score")).final / "scores.json")
    times = {stage.name: experiment.status(stage).seconds for stage in experiment.stages}
    trained = (recipe.train_diar, recipe.train_asr) if recipe.asr else (recipe.train_diar,)
    measured = Measured(
        row.name,
        row.variant,
        scores,
        {name: spent for name, spent in times.items() if spent is not None},
        seeds=tuple(recipe.seed + options.seed_offset for options in trained),
        audio_hours=tuple(options.audio_hours for options in trained),
        command=describe_command(plan, row.variant),
    )
    if row.stored_at:
        row.stored_at.parent.mkdir(exist_ok=True)
        write_measured(row.stored_at, measured, row.settings_key)
    return measured


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
    return summarize(as_json(Results(recipe.name, "", "", der=der, wer=wer)))


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
