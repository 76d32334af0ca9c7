"""The rules of the code: which package may import which, and that every command has help, an example and a page."""

from __future__ import annotations

import ast
import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import TypeGuard

import click
import pytest
from click.testing import CliRunner

from sortk import cli
from sortk.cli.options import SettingOption
from sortk.prepare.simulate import SimulateOptions
from sortk.recipe import Recipe
from sortk.scoring.tune import TuneOptions
from sortk.stages import STAGES

PACKAGE = Path(cli.__file__).parents[1]
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

BASE = {"records", "spans", "edits", "options", "progress", "formats"}
DATA_PATH = ["corpora", "prepare", "models", "training", "inference", "scoring", "report"]
"""The packages in the order in which data passes them."""

ALLOWED: dict[str, set[str]] = {
    # What each package or top-level module may import beside itself.
    "records": set(),
    "edits": {"records"},
    "progress": set(),
    "spans": {"records"},
    "formats": {"records", "spans", "options"},
    "options": {"formats"},
    "models": {"records", "options"},
    "corpora": BASE,
    "prepare": BASE | {"corpora"},
    "training": BASE | {"corpora", "prepare", "models"},
    "inference": BASE | {"corpora", "prepare", "models"},
    "scoring": BASE | {"corpora", "prepare", "models", "inference"},
    "report": BASE | {"corpora", "prepare", "models", "inference", "scoring"},
    # Running: nothing about speech.
    "slurm": {"records", "options", "formats", "run"},
    "run": {"records", "options", "progress", "formats", "slurm", "recipe"},
    # Everything together.
    "recipe": BASE | {*DATA_PATH, "slurm"},
    "stages": BASE | {*DATA_PATH, "slurm", "run", "recipe"},
    "cli": BASE | {*DATA_PATH, "slurm", "run", "recipe", "stages"},
    "__init__": BASE | {*DATA_PATH},
    "__main__": {"cli"},
}
EXCEPTIONS = {
    # Training in several processes is started here; the tables of the paper run several recipes, and measure run times.
    # Add no others.
    "run.workers": {"training"},
    "run.tables": {"scoring", "stages", "training"},
}


def find_imports(path: Path) -> set[str]:
    """Return the modules of sortk that a file imports, also inside functions; not those for the type checker only."""
    found = set()
    nodes: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "sortk":
            parent = (node.module or "").removeprefix("sortk").removeprefix(".")
            names = (f"{parent}.{alias.name}".removeprefix(".") for alias in node.names)
            found |= {name if name in MODULES else parent for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("sortk.") for alias in node.names if alias.name.startswith("sortk.")}
        nodes += ast.iter_child_nodes(node)
    return found - {""}


@pytest.mark.parametrize("name", MODULES)
def test_a_package_imports_only_what_it_may(name: str) -> None:
    package = name.partition(".")[0]
    allowed = ALLOWED[package] | {package} | EXCEPTIONS.get(name, set())
    for imported in find_imports(MODULES[name]):
        assert imported.partition(".")[0] in allowed, f"{name} imports sortk.{imported}"


def test_there_is_no_import_cycle() -> None:
    """Neither among imports at the top of files nor with those inside functions."""
    imports = {name: find_imports(path) & MODULES.keys() - {name} for name, path in MODULES.items()}
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join((*above[above.index(name) :], name))
        if name not in done:
            for imported in imports[name]:
                visit(imported, (*above, name))
            done.add(name)

    for name in imports:
        visit(name, ())


def leaf_commands(group: click.Group, prefix: str = "") -> dict[str, click.Command]:
    """All commands by full name; those of a group in its place: `score der`, ..."""
    found: dict[str, click.Command] = {}
    for name, command in group.commands.items():
        is_group = isinstance(command, click.Group)
        found |= leaf_commands(command, f"{prefix}{name} ") if is_group else {f"{prefix}{name}": command}
    return found


COMMANDS = leaf_commands(cli.main)


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_help_an_example_and_verbosity(name: str) -> None:
    command = COMMANDS[name]
    assert command.help and f"Example: sortk {name}" in command.help
    parameters = command.get_params(click.Context(command))
    options = {flag for parameter in parameters for flag in parameter.opts}
    assert {"-v", "-q"} <= options
    for parameter in parameters:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"sortk {name} {parameter.opts[0]} has no help"


def test_help_fits_80_columns() -> None:
    """Also the list of commands: a first sentence that is too long would be cut off with dots."""
    for arguments in ([], ["score"], *(name.split() for name in COMMANDS)):
        shown = CliRunner().invoke(cli.main, [*arguments, "--help"], terminal_width=80).output
        assert max(map(len, shown.splitlines())) <= 80, arguments
        assert not re.search(r"\.\.\.$", shown.partition("\n")[2], re.MULTILINE), arguments


def test_every_command_is_in_the_readme() -> None:
    readme = (PACKAGE.parent / "README.md").read_text(encoding="utf-8")
    for name in COMMANDS:
        assert f"sortk {name}" in readme, name


def test_help_imports_nothing_slow() -> None:
    code = "import sys; from sortk.cli import main; main(['--help'], standalone_mode=False); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "scipy", "soundfile", "tqdm"} & set(loaded)


def test_tables_and_tuning_import_torch_only_for_a_model() -> None:
    code = "import sys, sortk.run.tables, sortk.scoring.evaluate, sortk.scoring.tune; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "torch" not in loaded and "scipy" not in loaded


@pytest.mark.parametrize("path", [*(PACKAGE / "cli").glob("*.py"), PACKAGE / "stages.py"], ids=lambda path: path.name)
def test_no_default_is_typed_into_a_help_text(path: Path) -> None:
    texts = [node.value for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if is_text(node)]
    assert not [text for text in texts if re.search(r"\[default: \S", text)]


def is_text(node: ast.AST) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_help_shows_the_defaults_of_the_dataclasses() -> None:
    """Of every option that stands for a field: a field that was renamed is an error here."""
    shown = {}
    for name, command in COMMANDS.items():
        context = click.Context(command, info_name=f"sortk {name}", max_content_width=200, terminal_width=200)
        for option in command.get_params(context):
            if isinstance(option, SettingOption):
                record = option.get_help_record(context)
                assert record is not None
                shown[name, option.opts[0]] = record[1].partition("[default: ")[2].removesuffix("]")
    assert shown["simulate", "--overlap"] == f"{SimulateOptions().overlap:g}"
    assert shown["simulate", "--speakers"] == "2-4" and shown["simulate", "--hours"] == shown["tune", "--storage"] == ""
    assert shown["tune", "--trials"] == str(TuneOptions().trials)
    assert shown["score der", "--collar"] == shown["score compare", "--collar"] == shown["tune", "--collar"] == "0.25"
    assert shown["sst", "--level"] == shown["train-asr", "--level"] == "word"


def test_stages_are_declared_once() -> None:
    """Their tables are in the recipe, earlier stages come first, and commands name what CLI.md fixes."""
    names = [stage.name for stage in STAGES]
    tables = {entry.name for entry in dataclasses.fields(Recipe)}
    for stage in STAGES:
        assert stage.number == names.index(stage.name) and set(stage.tables) <= tables
        assert set(stage.reads) <= set(names[: stage.number])
        inputs = [given.name for given in stage.inputs]
        assert len(set(inputs)) == len(inputs) and all(given.stage or given.flag for given in stage.inputs)
    assert [stage.name for stage in STAGES if stage.has_command] == names[:-1]  # `sortk score` has commands of its own
