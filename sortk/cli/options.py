"""Options that several commands share, and how given ones become typed options."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

Command = TypeVar("Command", bound=Callable[..., Any])
FILE = click.Path(path_type=Path)


def with_verbosity(command: Command) -> Command:
    """-v and -q, which every command takes."""

    @click.option("-v", "--verbose", is_flag=True, help="Say more, and show tracebacks.")
    @click.option("-q", "--quiet", is_flag=True, help="Say nothing but warnings and errors.")
    @functools.wraps(command)
    def wrapped(*args: Any, verbose: bool, quiet: bool, **kwargs: Any) -> Any:
        from sortk.folders import LogFormatter

        level = logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO
        console = logging.StreamHandler()  # standard error: standard output is for results
        console.setLevel(level)
        console.setFormatter(LogFormatter("%(message)s"))
        logging.raiseExceptions = False  # a log that cannot be written is no reason for a traceback
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
    """What a shell offers after --recipe: shipped recipes, else files."""
    from sortk.recipe import shipped_recipes

    names = [name for name in shipped_recipes() if name.startswith(typed)]
    return [CompletionItem(name) for name in names] or [CompletionItem(typed, type="file")]


JOBS = with_options(
    click.option("--nj", type=click.IntRange(min=1), default=1, show_default=True, help="Processes to use."),
    click.option(
        "--cluster", type=click.Choice(["local", "slurm"]), default="local", show_default=True, help="Where jobs run."
    ),
)
FORCE = click.option("--force", is_flag=True, help="Do it again where settings or inputs have changed.")
SETTINGS = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a setting (repeatable)."
)
SEED = click.option("--seed", type=int, default=0, show_default=True, help="All random choices follow from it.")
OUT = click.option("--out", type=FILE, required=True, help="The folder to write.")
LANGUAGE = with_options(
    click.option("--lang", help="Language of the transcripts, as pyphen names it.  [default: en_US]"),
    click.option(
        "--rule",
        type=click.Choice(["sounds", "syllables", "hyphenation", "letters"]),
        help="What makes a word long; the same for clean and timestamps.  [default: sounds]",
    ),
)
RECIPE = with_options(
    click.option(
        "--recipe",
        required=True,
        metavar="NAME|PATH",
        shell_complete=complete_recipe,
        help="A shipped recipe, or a recipe.toml.",
    ),
    click.option("--exp", type=FILE, help="Where the stages' folders are.  [default: exp/<recipe>]"),
    click.option(
        "--set", "overrides", multiple=True, metavar="TABLE.KEY=VALUE", help="Override a setting (repeatable)."
    ),
    click.option("--variant", metavar="NAME", help="A variant of the recipe, or several: debug+pil."),
)
RUN = with_options(RECIPE, JOBS, FORCE, click.option("--dry-run", is_flag=True, help="Say what would run, and why."))


def given_only(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given; the others keep the default that stands on their dataclass."""
    return {name: value for name, value in options.items() if value is not None}


def typed_options(options: type, overrides: Sequence[str], **given: Any) -> Any:
    from sortk.options import read_options
    from sortk.recipe import merge_tables, parse_override

    table = given
    for override in overrides:
        table = merge_tables(table, parse_override(override))
    return read_options(options, table, "options")
