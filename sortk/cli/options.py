"""Options that several commands share, and how given ones become typed options."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import logging
import os
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import click
from click.shell_completion import CompletionItem

Command = TypeVar("Command", bound=Callable[..., Any])
FILE = click.Path(path_type=Path)


class ModelPath(click.Path):
    """A model folder, a .nemo file, or a name such as nvidia/diar_sortformer_4spk-v1; the command is given its path."""

    name = "model"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        from sortk.formats.hub import find_model

        return find_model(value)


MODEL = ModelPath()


def with_verbosity(command: Command) -> Command:
    """Add -v and -q, which every command takes."""

    @click.option("-v", "--verbose", is_flag=True, help="Show more messages, and tracebacks.")
    @click.option("-q", "--quiet", is_flag=True, help="Show only warnings and errors.")
    @functools.wraps(command)
    def wrapped(*args: Any, verbose: bool, quiet: bool, **kwargs: Any) -> Any:
        from sortk.run.folders import LogFormatter

        level = logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO
        console = logging.StreamHandler()  # standard error: standard output is for results
        console.setLevel(level)
        console.setFormatter(LogFormatter("%(message)s"))
        logging.raiseExceptions = False  # a log that cannot be written causes no traceback
        if quiet:
            os.environ["TQDM_DISABLE"] = "1"
        root = logging.getLogger("sortk")
        root.handlers, root.propagate = [console], False
        root.setLevel(min(level, logging.INFO))
        return command(*args, **kwargs)

    return wrapped  # type: ignore[return-value]


def with_options(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def complete_recipe(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
    """Return what a shell offers after --recipe: shipped recipes, else files."""
    from sortk.recipe import shipped_recipes

    names = [name for name in shipped_recipes() if name.startswith(typed)]
    return [CompletionItem(name) for name in names] or [CompletionItem(typed, type="file")]


JOBS = with_options(
    click.option("--nj", type=click.IntRange(min=1), default=1, show_default=True, help="Processes to use."),
    click.option(
        "--cluster", type=click.Choice(["local", "slurm"]), default="local", show_default=True, help="Where jobs run."
    ),
)
FORCE = click.option("--force", is_flag=True, help="Run again what was made with other settings or inputs.")
SETTINGS = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a setting (repeatable)."
)
OUT = click.option("--out", type=FILE, required=True, help="The folder to write.")
RECIPE = with_options(
    click.option(
        "--recipe",
        required=True,
        metavar="NAME|PATH",
        shell_complete=complete_recipe,
        help="A shipped recipe, or a recipe.toml.",
    ),
    click.option("--exp", type=FILE, help="The folder of the experiment; exp/<recipe> if it is not given."),
    click.option(
        "--set", "overrides", multiple=True, metavar="TABLE.KEY=VALUE", help="Override a setting (repeatable)."
    ),
    click.option("--variant", metavar="NAME", default="", help="A variant of the recipe, or several: debug+pil."),
)
RUN = with_options(RECIPE, JOBS, FORCE, click.option("--dry-run", is_flag=True, help="Show what would run, and why."))


def given_only(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given; the others keep the default that stands on their dataclass."""
    return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True)
class Setting:
    """The type of a field of an options dataclass, and its default."""

    hint: Any
    default: Any

    @property
    def click_type(self) -> Any:
        return click.Choice(typing.get_args(self.hint)) if typing.get_origin(self.hint) is Literal else self.hint

    def __str__(self) -> str:
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)


def find_setting(place: str) -> Setting:
    """Find "sortk.recipe:Recipe.simulate.overlap"; a key of a dict ("simulate.hours.all") has no default."""
    module, _, path = place.partition(":")
    owner, *names = path.split(".")
    hint: Any = getattr(importlib.import_module(module), owner)
    default: Any = None
    for name in names:
        if typing.get_origin(hint) is dict:
            return Setting(typing.get_args(hint)[1], None)
        [entry] = [entry for entry in dataclasses.fields(hint) if entry.name == name]
        default = entry.default
        if entry.default_factory is not dataclasses.MISSING:
            default = entry.default_factory()
        hint = typing.get_type_hints(hint)[name]
    return Setting(hint, default)


class SettingOption(click.Option):
    """An option whose default stands on a dataclass, from where the help takes it; not given, its value is None."""

    def __init__(self, *args: Any, settings: Sequence[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.settings = settings

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        found = [find_setting(place) for place in self.settings]
        if record is None or any(setting.default in (None, "", ()) for setting in found):
            return record
        return record[0], f"{record[1]}  [default: {'-'.join(map(str, found))}]"
