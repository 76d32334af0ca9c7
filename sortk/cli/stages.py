"""The commands of single stages on any files (`sortk simulate`, ...), made from the declarations of STAGES."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from sortk.cli.options import (
    FILE,
    FORCE,
    JOBS,
    MODEL,
    OUT,
    SETTINGS,
    SettingOption,
    find_setting,
    with_options,
    with_verbosity,
)
from sortk.run.stage import Stage


class StageCommand(click.Command):
    """The command of a stage. Its options are made when they are needed: their types are those of dataclasses whose
    modules are slow to import."""

    def __init__(self, stage: Stage) -> None:
        text = stage.run.__doc__ or ""
        super().__init__(stage.name, help=f"Stage {stage.number}: {text[:1].lower()}{text[1:]}")
        self.stage = stage

    @functools.cached_property
    def made(self) -> click.Command:
        """The command with its options."""

        def run(**given: Any) -> None:
            _run_stage(self.stage, given)

        return click.command(with_options(*_make_options(self.stage))(with_verbosity(run)))

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return self.made.get_params(ctx)

    def invoke(self, ctx: click.Context) -> Any:
        return self.made.invoke(ctx)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.help and "{corpora}" in self.help:
            from sortk.corpora.registry import CORPORA

            self.help = self.help.replace("{corpora}", ", ".join(sorted(CORPORA)))
        super().format_help_text(ctx, formatter)


def _make_options(stage: Stage) -> Iterator[Callable[[Any], Any]]:
    for given in stage.inputs:
        if given.flag:
            kind = MODEL if given.is_model else FILE
            yield click.option(given.flag, given.name, type=kind, required=given.required, help=given.help)
    yield click.option("--out", type=FILE, required=True, help="The file to write.") if stage.writes_file else OUT
    for flag in stage.flags:
        if not flag.keys:
            yield click.option(flag.name, is_flag=flag.is_switch, help=flag.help)
        elif not flag.name.startswith("-"):
            yield click.argument(flag.name)
        else:
            settings = [f"sortk.recipe:Recipe.{key}" for key in flag.keys]
            given_as = find_setting(settings[0]).click_type if len(settings) == 1 else NumberRange()
            about = {"type": given_as, "metavar": flag.metavar or None, "help": flag.help}
            yield click.option(flag.name, cls=SettingOption, settings=settings, **about)
    if stage.trains:
        yield click.option("--config", type=FILE, help=f"Settings: a recipe.toml, or only its table {stage.table}.")
    yield SETTINGS
    if not stage.trains:
        yield JOBS
    if not stage.writes_file:
        yield FORCE


class NumberRange(click.ParamType):  # type: ignore[type-arg]  # that of click 8.2 is not generic
    """A number or a range: 3, 2-4."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        low, _, high = str(value).partition("-")
        if not low.isdecimal() or not (high or low).isdecimal():
            self.fail(f"{value!r} is neither a number nor a range such as 2-4", param, ctx)
        return int(low), int(high or low)


def _run_stage(stage: Stage, given: dict[str, Any]) -> None:
    from sortk.records import RunJobs
    from sortk.run.experiment import run_alone
    from sortk.run.folders import Folder
    from sortk.run.workers import choose_cluster

    flags = {given_input.flag: given[given_input.name] for given_input in stage.inputs if given_input.flag}
    flags |= {flag.name: given[flag.parameter] for flag in stage.flags if not flag.is_switch}
    flags |= {"--set": given["overrides"] or None}
    if wrong := stage.check([name for name, value in flags.items() if value is not None]):
        raise click.UsageError(wrong)
    inputs = {declared.name: given[declared.name] for declared in stage.inputs if given.get(declared.name)}
    own_flags = {flag.parameter: given[flag.parameter] for flag in stage.flags if not flag.keys}
    out: Path = given["out"]
    settings = _read_settings(stage, given)
    run_jobs: RunJobs = map
    if not stage.trains:
        run_jobs = choose_cluster(given["cluster"], given["nj"], Folder(out), settings.cluster, stage.name)
    run_alone(stage, settings, inputs, own_flags, out, run_jobs, given.get("force", False))


def _read_settings(stage: Stage, given: dict[str, Any]) -> Any:
    """Return the settings as a recipe of the stage's tables: from --config, then flags, then --set."""
    from sortk.options import read_options
    from sortk.recipe import Recipe, merge_tables, parse_override, read_cluster_defaults, read_settings

    table: dict[str, Any] = {"name": stage.name, "cluster": read_cluster_defaults()}
    if given.get("config"):
        table[stage.table] = read_settings(given["config"], stage.table)
    for flag in stage.flags:
        value = given[flag.parameter]
        values = value if len(flag.keys) > 1 else [value]
        for key, part in zip(flag.keys, values if value is not None else (), strict=False):
            table = merge_tables(table, functools.reduce(lambda inner, name: {name: inner}, key.split(".")[::-1], part))
    for override in given["overrides"]:
        table = merge_tables(table, {stage.table: parse_override(override)})
    return read_options(Recipe, table, "options")
