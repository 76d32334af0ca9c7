"""Commands of a recipe: run, stage, status, tables, recipes, config."""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sortk.cli.options import FILE, RECIPE, RUN, with_verbosity
from sortk.stages import STAGES, find_stage, list_stages, open_experiment

if TYPE_CHECKING:
    from sortk.run.experiment import Experiment
    from sortk.run.folders import Folder, Status
    from sortk.run.stage import Stage


@dataclass(frozen=True)
class _Chosen:
    """What the options of RUN say."""

    recipe: str
    exp: Path | None
    overrides: Sequence[str]
    variant: str
    nj: int
    cluster: str
    force: bool
    dry_run: bool

    @property
    def submits(self) -> bool:
        return self.cluster == "slurm" and not self.dry_run

    def arguments(self, stage: Stage, experiment: Experiment, force: bool) -> list[str]:
        """Return the arguments with which another process runs a stage of a variant."""
        settings = [argument for override in self.overrides for argument in ("--set", override)]
        variant = ["--variant", experiment.variant] if experiment.variant else []
        where = ["--recipe", self.recipe, *settings, *variant, "--exp", str(experiment.root)]
        return ["stage", str(stage.number), *where, *(["--force"] if force else [])]

    def command(self, stage: Stage, experiment: Experiment, force: bool) -> list[str]:
        """Return what the job of a stage runs."""
        jobs = [] if stage.trains else ["--nj", str(self.nj), "--cluster", "slurm"]
        return [sys.executable, "-m", "sortk", *self.arguments(stage, experiment, force), *jobs]


@click.command(
    help=f"""Run exactly one stage of a recipe, by number or name.

    The stages are {list_stages()}.

    Example: sortk stage 1 --recipe mini --nj 4
    """
)
@click.argument("name", metavar="STAGE")
@RUN
@with_verbosity
def stage(name: str, **common: Any) -> None:
    from sortk.slurm.queue import was_requeued

    chosen, number = _Chosen(**common), find_stage(name).number
    if find_stage(number).trains and chosen.cluster == "slurm":
        _submit_stages(chosen, *_select([number], chosen), wait=True)
    else:  # a requeued job that had begun to redo the stage resumes it
        _run_stages(chosen, *_select([number], chosen), redo_done=chosen.force and not was_requeued())


@click.command(
    help=f"""Run the stages of a recipe in order, skipping what is done.

    The stages are {list_stages()}. `sortk recipes` lists the recipes, `sortk config` the settings of one.

    With --force, stages whose settings or inputs have changed are run again; up-to-date stages are still skipped. With
    --cluster slurm, every stage becomes a job that starts after the one before it.

    Example: sortk run --recipe mini --stop-stage 1
    """
)
@click.option(
    "--stage",
    "first",
    default=str(STAGES[0].number),
    show_default=True,
    help="The first stage to run: number or name.",
)
@click.option(
    "--stop-stage",
    "last",
    default=str(STAGES[-1].number),
    show_default=True,
    help="The last stage to run: number or name.",
)
@click.option("--wait", is_flag=True, help="With --cluster slurm: show the status of the jobs until they have ended.")
@RUN
@with_verbosity
def run(first: str, last: str, wait: bool, **common: Any) -> None:
    first_number, last_number = find_stage(first).number, find_stage(last).number
    if first_number > last_number:
        raise click.UsageError(f"--stage {first} comes after --stop-stage {last}")
    chosen = _Chosen(**common)
    selected = _select(range(first_number, last_number + 1), chosen)
    if wait and chosen.cluster != "slurm":
        raise click.UsageError("--wait needs --cluster slurm")
    if chosen.cluster == "slurm":
        _submit_stages(chosen, *selected, wait=wait)
    else:
        _run_stages(chosen, *selected)


@click.command()
@RUN
@click.option("--out", type=FILE, help="The file to write; RESULTS.md beside the recipe if it is not given.")
@click.option("--table", type=click.Choice(["1", "2", "3"]), help="Only this table of the paper; else all of them.")
@click.option("--finished", is_flag=True, help="Run nothing: write the rows that are finished, and name the others.")
@with_verbosity
def tables(out: Path | None, table: str | None, finished: bool, **common: Any) -> None:
    """Measure the paper's Tables 1 to 3 on a recipe.

    Runs what is missing of the variants that the recipe names in [tables], and writes RESULTS.md. What variants have in
    common is run once. After a stop, the same command continues. The scores of each run are also stored in results/,
    beside RESULTS.md, and a run with the same settings is not repeated, even on another machine; remove results/ to
    measure everything again. The paper's own numbers stand beside the measured ones. With --nj, models train side by
    side, one on each GPU; without a GPU, they share the cores.

    Example: sortk tables --recipe audiomnist --set prepare.corpus_dir=/data/AudioMNIST
    """
    from sortk.run.tables import (
        TABLES,
        TablesRequest,
        list_first,
        list_missing,
        place_results,
        plan_tables,
        write_tables,
    )

    chosen = _Chosen(**common)
    results = place_results(chosen.recipe, chosen.exp, chosen.variant)
    request = TablesRequest(
        chosen.recipe,
        chosen.exp,
        chosen.overrides,
        chosen.variant,
        tables=(f"table{table}",) if table else TABLES,
        store=results.with_name(results.name.replace("RESULTS.md", "results")),
        finished=finished,
    )

    def run_all(experiment: Experiment) -> None:
        if finished:
            return
        if chosen.submits:
            _submit_stages(chosen, experiment, experiment.stages, wait=True)
        else:
            _run_stages(chosen, experiment, experiment.stages, to_stderr=True)  # the tables go to standard output

    rows = list(request.list_rows([]))
    first = list_first(rows)
    if chosen.dry_run:
        # A row may lack only what is run first.
        for experiment in (*first, *list_missing(rows)) if first else plan_tables(request).experiments:
            for line in experiment.dry_run(experiment.stages, chosen.force, redo_done=False):
                click.echo(f"{experiment.variant or experiment.recipe.name}: {line}")
        return
    for experiment in first:
        run_all(experiment)
    plan = plan_tables(request)
    if not finished and not chosen.submits:
        _run_side_by_side(chosen, plan.experiments)
    written = write_tables(plan, out or results, run_all)
    click.echo(written, nl=False)


@click.command()
@RECIPE
@with_verbosity
def status(recipe: str, exp: Path | None, overrides: Sequence[str], variant: str) -> None:
    """Show the status of each stage of a recipe.

    A line for each stage says whether it is done, stale (and why), partial or missing, how long it took, how large it
    is, and how its Slurm jobs stand.

    Example: sortk status --recipe mini
    """
    from sortk.slurm.jobs import describe_jobs
    from sortk.slurm.queue import find_jobs, glance_at_queue

    experiment, queue = open_experiment(recipe, exp, overrides, variant), glance_at_queue()
    for stage in experiment.stages:
        found, folder = experiment.status(stage), experiment.folder(stage)
        why = f"running: {found.holder}" if found.holder else found.why
        if jobs := find_jobs(queue, [folder]):
            why = f"{why}; jobs: {describe_jobs(jobs, folder)}".removeprefix("; ")
        click.echo(f"{stage.number}  {stage.name:<10}  {found.state:<7}  {_time_and_size(found):<20}  {why}".rstrip())
    others = sorted(path.name.removeprefix("variant-") for path in experiment.root.glob("variant-*"))
    if others and not variant:
        click.echo(f"variants in {experiment.root}: {', '.join(others)}; show one with --variant", err=True)


def _time_and_size(status: Status) -> str:
    from sortk.progress import format_clock

    if status.seconds is None or status.n_bytes is None:
        return ""
    spent = f"{status.seconds:.1f} s" if status.seconds < 60 else format_clock(status.seconds)
    return f"{spent:>9} {status.n_bytes / 1e6:8.1f} MB"


def _select(numbers: Sequence[int], chosen: _Chosen) -> tuple[Experiment, list[Stage]]:
    """Return the experiment, and its stages of these numbers."""
    experiment = open_experiment(chosen.recipe, chosen.exp, chosen.overrides, chosen.variant)
    stages = [stage for stage in experiment.stages if stage.number in numbers]
    if not stages:
        why = "" if experiment.recipe.asr else ", because of asr = false"
        raise ValueError(f"recipe {chosen.recipe} has no stage {numbers[0]}{why}")
    return experiment, stages


def _run_stages(
    chosen: _Chosen, experiment: Experiment, stages: Sequence[Stage], redo_done: bool = False, to_stderr: bool = False
) -> None:
    """Run stages here; with --cluster slurm, their shards are jobs. Results go to standard output."""
    from sortk.records import RunJobs
    from sortk.run.workers import choose_cluster

    if chosen.dry_run:
        for line in experiment.dry_run(stages, chosen.force, redo_done):
            click.echo(line)
        return

    def choose_jobs(stage: Stage) -> RunJobs:
        folder, options = experiment.folder(stage), experiment.recipe.cluster
        return choose_cluster(chosen.cluster, chosen.nj, folder, options, stage.name)

    with _offer_to_cancel(list(map(experiment.folder, stages)) if chosen.cluster == "slurm" else []):
        show = functools.partial(click.echo, err=to_stderr)
        experiment.run_stages(stages, choose_jobs, show, chosen.force, redo_done)


def _run_side_by_side(chosen: _Chosen, experiments: Sequence[Experiment]) -> None:
    """Make what all variants train on, with all processes, then run one stage a slot; nothing with a single slot."""
    from sortk.run.parallel_stages import find_gpus, find_slots, list_steps, run_side_by_side

    slots = find_slots(chosen.nj, find_gpus()) if chosen.nj > 1 else []
    if len(slots) < 2:
        return
    for experiment in experiments:
        before = itertools.takewhile(lambda stage: not stage.trains, experiment.stages)
        missing = [stage for stage in before if experiment.status(stage).state != "done"]
        _run_stages(chosen, experiment, missing, to_stderr=True)
    run_side_by_side(
        list_steps(experiments),
        slots,
        lambda step: chosen.arguments(step.stage, step.experiment, chosen.force and step.is_stale),
    )


def _submit_stages(chosen: _Chosen, experiment: Experiment, stages: Sequence[Stage], wait: bool) -> None:
    """Submit each stage as a job; in a dry run, show their scripts."""

    def command(stage: Stage, force: bool) -> list[str]:
        return chosen.command(stage, experiment, force)

    if chosen.dry_run:
        for line in experiment.dry_run(stages, chosen.force, False, command):
            click.echo(line)
        return
    experiment.check_files(stages)
    jobs = experiment.submit(stages, chosen.force, command)
    if wait:
        with _offer_to_cancel([job.folder for job in jobs.values()]):
            _show_changes(experiment.watch(jobs))


def _show_changes(views: Iterable[Sequence[str]]) -> None:
    """Show a view that changes in place on a terminal; elsewhere only the lines that have changed."""
    shown: Sequence[str] = []
    for view in views:
        changed = [line for line in view if line not in shown]
        if sys.stderr.isatty() and changed:
            click.echo(f"\x1b[{len(shown)}A\x1b[J" if shown else "", err=True, nl=False)
            changed = list(view)
        for line in changed:
            click.echo(line, err=True)
        shown = view
        time.sleep(2)


@contextlib.contextmanager
def _offer_to_cancel(folders: Sequence[Folder]) -> Iterator[None]:
    """On Ctrl-C, offer to cancel the jobs of these folders."""
    try:
        yield
    except KeyboardInterrupt:
        from sortk.slurm.queue import cancel, find_jobs, glance_at_queue

        jobs = [job.job_id for job in find_jobs(glance_at_queue(), folders)] if folders else []
        if jobs and sys.stdin.isatty() and click.confirm(f"\ncancel {len(jobs)} jobs?", err=True):
            cancel(jobs)
        elif jobs:
            click.echo(f"\n{len(jobs)} jobs stay in the queue; sortk status shows them", err=True)
            raise click.exceptions.Exit(130) from None
        raise


@click.command()
@with_verbosity
def recipes() -> None:
    """List the recipes that come with sortk, and what each needs.

    Example: sortk recipes
    """
    from sortk.corpora.registry import CORPORA
    from sortk.recipe import list_variants, load_recipe, shipped_recipes

    for name in shipped_recipes():
        recipe = load_recipe(name)
        corpora = [choice.corpus for choice in recipe.prepare.choices if CORPORA[choice.corpus].origin]
        models = [init for init in (recipe.train_diar.init, recipe.train_asr.init if recipe.asr else "") if init]
        click.echo(f"{name}: {recipe.summary}")
        click.echo(f"  needs     {', '.join([*dict.fromkeys(corpora), *models]) or 'nothing'}")
        click.echo(f"  variants  {', '.join(list_variants(name)) or 'none'}")


@click.command()
@RECIPE
@with_verbosity
def config(recipe: str, exp: Path | None, overrides: Sequence[str], variant: str) -> None:
    """Print all settings of a recipe as commented TOML.

    They are what the recipe sets, and the defaults of everything else. The output is a recipe itself.

    Example: sortk config --recipe mini --variant debug
    """
    from sortk.options import format_options
    from sortk.recipe import load_recipe

    settings = load_recipe(recipe, overrides, variant)
    # A recipe is called after its file, so the name is not written into it.
    click.echo(format_options(settings).removeprefix(f'name = "{settings.name}"\n'))
