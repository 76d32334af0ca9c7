"""Commands of a recipe: run, stage, status, tables."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from sortk.cli.options import (
    FILE,
    RECIPE,
    RUN,
    with_verbosity,
)


@click.command()
@click.argument("number", type=int)
@RUN
@with_verbosity
def stage(number: int, **common: Any) -> None:
    """Run exactly one stage of a recipe.

    Example: sortk stage 1 --recipe mini --nj 4
    """
    from sortk.slurm import was_requeued
    from sortk.stages import find_stage

    if find_stage(number).trains and common["cluster"] == "slurm" and not common["dry_run"]:
        _submit_stages([number], True, **common)
        return
    # The job of a stage that has begun to do it again goes on with that.
    _run_stages([number], redo_done=common["force"] and not was_requeued(), **common)


@click.command()
@click.option("--stage", "first", type=int, default=0, show_default=True, help="The first stage to run.")
@click.option("--stop-stage", "last", type=int, help="The last stage to run.  [default: all]")
@click.option("--wait", is_flag=True, help="With --cluster slurm: show how the jobs stand until they have ended.")
@RUN
@with_verbosity
def run(first: int, last: int | None, wait: bool, **common: Any) -> None:
    """Run the stages of a recipe in order, skipping what is done.

    With --force, stages whose settings have changed are done again; those that are done as they should be are
    skipped all the same. With --cluster slurm, every stage becomes a job that starts after the one before it.

    Example: sortk run --recipe mini --stop-stage 1
    """
    from sortk.stages import STAGES, find_stage

    last = STAGES[-1].number if last is None else find_stage(last).number
    if find_stage(first).number > last:
        raise click.UsageError(f"--stage {first} comes after --stop-stage {last}")
    if common["cluster"] == "slurm" and not common["dry_run"]:
        _submit_stages(range(first, last + 1), wait, **common)
    else:
        _run_stages(range(first, last + 1), redo_done=False, **common)


@click.command()
@RUN
@click.option("--out", type=FILE, help="The file to write.  [default: RESULTS.md beside the recipe]")
@with_verbosity
def tables(
    recipe: str,
    exp: Path | None,
    overrides: Sequence[str],
    variant: str | None,
    nj: int,
    cluster: str,
    force: bool,
    dry_run: bool,
    out: Path | None,
) -> None:
    """Measure the paper's Tables 1 to 3 on a recipe's variants, and write RESULTS.md.

    Runs what is missing of the variants that the recipe names in [tables]; what they have in common is run once. After
    a stop, the same command goes on. The paper's own numbers stand beside the measured ones.

    Example: sortk tables --recipe audiomnist --set prepare.corpus_dir=/data/AudioMNIST
    """
    from sortk.tables import place_results, plan_tables, write_tables

    plan = plan_tables(recipe, exp, overrides, variant or "")
    if dry_run:
        for experiment in plan.experiments:
            for line in experiment.dry_run(experiment.stages, force, redo_done=False):
                click.echo(f"{experiment.variant or plan.recipe}: {line}")
        return
    written = write_tables(
        plan,
        out or place_results(recipe, exp, variant or ""),
        lambda experiment: _run_here(experiment, experiment.stages, False, nj, cluster, force),
    )
    click.echo(written, nl=False)


@click.command()
@RECIPE
@with_verbosity
def status(recipe: str, exp: Path | None, overrides: Sequence[str], variant: str | None) -> None:
    """Show how the stages of a recipe stand: a line each, with its jobs if Slurm has any.

    Example: sortk status --recipe mini
    """
    from sortk.slurm import describe_jobs, glance_at_jobs

    experiment = _open_experiment(recipe, exp, overrides, variant)
    for stage in experiment.stages:
        found, folder = experiment.status(stage), experiment.folder(stage)
        why = f"running: {found.holder}" if found.holder else found.why
        if jobs := glance_at_jobs([folder]):
            why = f"{why}; jobs: {describe_jobs(jobs, folder)}".removeprefix("; ")
        click.echo(f"{stage.number}  {stage.name:<10}  {found.state:<7}  {_time_and_size(found):<20}  {why}".rstrip())


def _time_and_size(status: Any) -> str:
    if status.seconds is None:
        return ""
    return f"{status.seconds:9.1f} s {status.n_bytes / 1e6:8.1f} MB"


def _run_stages(
    numbers: Sequence[int],
    redo_done: bool,
    recipe: str,
    exp: Path | None,
    overrides: Sequence[str],
    variant: str | None,
    nj: int,
    cluster: str,
    force: bool,
    dry_run: bool,
) -> None:
    experiment = _open_experiment(recipe, exp, overrides, variant)
    stages = [stage for stage in experiment.stages if stage.number in numbers]
    if not stages:
        raise ValueError(f"recipe {recipe} does without stage {numbers[0]}")
    if dry_run:
        for line in experiment.dry_run(stages, force, redo_done):
            click.echo(line)
        return
    _run_here(experiment, stages, redo_done, nj, cluster, force)


def _run_here(experiment: Any, stages: Sequence[Any], redo_done: bool, nj: int, cluster: str, force: bool) -> None:
    from sortk.cluster import choose_cluster

    for place, stage in enumerate(stages):
        if stage.reads:  # the first thing to be missing is the corpus, about which stage 0 has more to say
            experiment.check_files(stages[place:])
        stale = force and experiment.status(stage).state == "stale"
        folder = experiment.folder(stage)
        run_jobs = choose_cluster(cluster, nj, folder, experiment.recipe.cluster, stage.name)
        with _offer_to_cancel([folder] if cluster == "slurm" else []):
            experiment.run(stage, run_jobs, force=stale or redo_done)


def _submit_stages(
    numbers: Sequence[int],
    wait: bool,
    recipe: str,
    exp: Path | None,
    overrides: Sequence[str],
    variant: str | None,
    nj: int,
    force: bool,
    **_: Any,
) -> None:
    experiment = _open_experiment(recipe, exp, overrides, variant)
    stages = [stage for stage in experiment.stages if stage.number in numbers]
    experiment.check_files(stages)
    settings = [argument for override in overrides for argument in ("--set", override)]
    chosen = ["--variant", variant] if variant else []

    def command(stage: Any, forced: bool) -> list[str]:
        line = [sys.executable, "-m", "sortk", "stage", str(stage.number), "--recipe", recipe, *settings, *chosen]
        jobs = [] if stage.trains else ["--nj", str(nj), "--cluster", "slurm"]
        return [*line, "--exp", str(experiment.root), *jobs, *(["--force"] if forced else [])]

    jobs = experiment.submit(stages, force, command)
    if wait:
        with _offer_to_cancel([job.folder for job in jobs.values()]):
            _show_changes(experiment.watch(jobs))


def _show_changes(views: Iterable[Sequence[str]]) -> None:
    """A view that changes in place on a terminal; elsewhere only the lines that have changed."""
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
def _offer_to_cancel(folders: Sequence[Any]) -> Iterator[None]:
    """Ctrl-C while jobs work for these folders."""
    try:
        yield
    except KeyboardInterrupt:
        from sortk.slurm import cancel, find_jobs

        jobs = [job.job_id for job in find_jobs(folders)] if folders else []
        if jobs and sys.stdin.isatty() and click.confirm(f"\ncancel {len(jobs)} jobs?", err=True):
            cancel(jobs)
        elif jobs:
            click.echo(f"\n{len(jobs)} jobs stay in the queue; sortk status shows them", err=True)
        raise


def _open_experiment(recipe: str, exp: Path | None, overrides: Sequence[str], variant: str | None) -> Any:
    from sortk.stages import open_experiment

    return open_experiment(recipe, exp, overrides, variant or "")
