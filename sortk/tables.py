"""`sortk tables`: runs what is missing of the variants in a recipe's [tables], and writes RESULTS.md.

It is made of stages, so it can be stopped and goes on where it was, and variants share all stages that they have in
common.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from sortk.folders import find_commit
from sortk.formats.files import atomic_text
from sortk.pipeline import Experiment
from sortk.recipe import find_recipe, load_recipe
from sortk.scoring.paper_tables import Account, Measured, format_account, read_scores
from sortk.scoring.table_options import TableOptions
from sortk.stages import find_stage, open_experiment

log = logging.getLogger(__name__)

SCORE = 8  # the stage whose results the tables are made of


@dataclass(frozen=True)
class Row:
    """A row of one of the tables, and how it is measured."""

    table: str
    name: str
    experiment: Experiment

    @property
    def variant(self) -> str:
        return self.experiment.variant


@dataclass(frozen=True)
class Plan:
    """All rows of a recipe that can be measured here, and why others cannot."""

    recipe: str
    rows: Sequence[Row]
    notes: Sequence[str]

    @property
    def experiments(self) -> list[Experiment]:
        """Each variant once, in the order of the rows."""
        return list({row.variant: row.experiment for row in self.rows}.values())


def plan_tables(recipe: str, exp: Path | None, overrides: Sequence[str], variant: str = "") -> Plan:
    """The rows that the recipe names; with a variant, such as debug, those of the table go on top of it."""
    base = load_recipe(recipe, overrides, variant)
    rows, notes = [], []
    for table in (option.name for option in fields(TableOptions)):
        for name, row_variant in _list_rows(base.tables, table):
            stacked = "+".join(filter(None, (variant, row_variant)))
            try:
                experiment = open_experiment(recipe, exp, overrides, stacked)
                experiment.check_files(experiment.stages)
            except FileNotFoundError as error:
                notes.append(f"{name}: {error}")
            except ValueError as error:
                if not variant:
                    raise
                why = str(error).removeprefix(f"{find_recipe(recipe)}: ")
                notes.append(f"{name}: makes no sense on top of {variant} ({why})")
            else:
                rows.append(Row(table, name, experiment))
    if not rows and not notes:
        raise ValueError(f"{find_recipe(recipe)}: names no rows of the paper's tables: [tables.table1], ...")
    if not rows:
        raise FileNotFoundError(f"no row of the tables can be measured; the first is {notes[0]}")
    return Plan(base.name, rows, notes)


def _list_rows(tables: TableOptions, table: str) -> list[tuple[str, str]]:
    """Name and variant of each row; a row of several variants once for each."""
    rows: dict[str, str | tuple[str, ...]] = getattr(tables, table)
    return [(name, one) for name, given in rows.items() for one in ([given] if isinstance(given, str) else given)]


def write_tables(plan: Plan, out: Path, run_all: Callable[[Experiment], None]) -> str:
    """Runs all variants by `run_all`, which leaves them scored, and writes the tables; returns their text."""
    for note in plan.notes:
        log.warning("left out: %s", note)
    for number, experiment in enumerate(plan.experiments, start=1):
        log.info("variant %d of %d: %s", number, len(plan.experiments), experiment.variant or "the recipe itself")
        with contextlib.redirect_stdout(sys.stderr):  # where stage 8 prints the results of one variant
            run_all(experiment)
    tables = {
        option.name: [_measure(row) for row in plan.rows if row.table == option.name] for option in fields(TableOptions)
    }
    date = time.strftime("%Y-%m-%d")
    text = format_account(Account(plan.recipe, find_commit(), date, describe_machine(), tables, plan.notes))
    with atomic_text(out) as file:
        file.write(text)
    log.info("written: %s", out)
    return text


def _measure(row: Row) -> Measured:
    experiment = row.experiment
    scores = read_scores(experiment.folder(find_stage(SCORE)).final / "scores.json")
    times = {stage.name: experiment.status(stage).seconds for stage in experiment.stages}
    return Measured(row.name, row.variant, scores, {name: spent for name, spent in times.items() if spent is not None})


def place_results(recipe: str, exp: Path | None, variant: str) -> Path:
    """Beside the recipe; but what a variant such as debug has measured is no result of the recipe."""
    path = find_recipe(recipe)
    name = "RESULTS.md" if path.name == "recipe.toml" else f"{path.stem}-RESULTS.md"
    if not variant:
        return path.parent / name
    return (exp or Path("exp") / load_recipe(recipe).name) / f"variant-{variant}" / name


def describe_machine() -> str:
    """Cores, processor and GPU of this machine."""
    import torch  # noqa: PLC0415 - slow to import, and needed only here

    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return f"{os.cpu_count()} cores ({_name_processor()}), {', '.join(gpus) or 'no GPU'}"


def _name_processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()
