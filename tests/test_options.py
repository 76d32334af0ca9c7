"""The one reader of settings: what it accepts, what it says about the rest, and the way back to TOML."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from click.testing import CliRunner

from sortk.cli import main
from sortk.options import Options, format_options, option, read_options
from sortk.recipe import list_variants, load_recipe, shipped_recipes


@dataclass(frozen=True)
class Inner(Options):
    share: float = option(0.5, at_least=0, at_most=1)  # of the examples


@dataclass(frozen=True)
class Outer(Options):
    steps: int = option(10, at_least=1)  # updates
    # Not below
    # its minimum.
    rate: float = option(0.1, above=0)
    limit: float | None = option(None, above=0, below=5)
    kind: Literal["a", "b"] = "a"
    names: tuple[str, ...] = ()
    speeds: tuple[float, ...] = option((1.0,), above=0)
    hours: dict[str, float] = option(default_factory=dict)
    inner: Inner = option(default_factory=Inner)
    phases: tuple[Inner, ...] = (Inner(),)  # in order


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"steps": 0}, "here: steps must be 1 or more, got 0"),
        ({"steps": 1.5}, "here: steps must be a whole number, got 1.5"),
        ({"steps": True}, "here: steps must be a whole number, got True"),
        ({"rate": 0}, "here: rate must be more than 0, got 0.0"),
        ({"rate": math.nan}, "here: rate must be a number, got nan"),
        ({"rate": 10**400}, "here: rate must be a number, got 1000"),
        ({"limit": 5}, "here: limit must be more than 0 and less than 5, got 5.0"),
        ({"kind": "c"}, "here: kind must be one of a, b, got 'c'"),
        ({"speeds": [1, 0]}, "here: speeds must be more than 0, got (1.0, 0.0)"),
        ({"inner": {"share": 2}}, "here: inner: share must be from 0 to 1, got 2.0"),
        ({"inner": 3}, "here: inner must be a table, got 3"),
        ({"hours": {"a": "x"}}, "here: hours.a must be a number, got 'x'"),
        ({"phases": {}}, "here: phases must be a list, got {}"),
        ({"stepps": 1}, "here: unknown key 'stepps'; did you mean 'steps'?"),
        ({"q": 1}, "here: unknown key 'q'; keys: hours, inner, kind"),
        ([], "here must be a table, got []"),
    ],
)
def test_what_is_refused(table: object, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_options(Outer, table, "here")
    assert str(caught.value).startswith(sentence)


def test_an_object_that_code_makes_is_checked_too() -> None:
    with pytest.raises(ValueError, match="steps must be 1 or more, got 0"):
        Outer(steps=0)
    with pytest.raises(ValueError, match="kind must be one of a, b, got 'c'"):
        Outer(kind="c")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="share must be from 0 to 1, got nan"):
        Inner(math.nan)


def test_what_is_accepted() -> None:
    table = {"steps": 3, "rate": 2, "names": "one", "hours": {"a": 1}, "phases": [{}, {"share": 1}], "limit": None}
    found = read_options(Outer, table, "here")
    assert found == Outer(3, 2.0, names=("one",), hours={"a": 1.0}, phases=(Inner(), Inner(1.0)))


def test_commented_toml() -> None:
    text = format_options(Outer(hours={"a b": 1.0}, names=('x"y',), phases=(Inner(), Inner(0.25))))
    assert text.splitlines()[:4] == [
        "steps = 10  # updates",
        "rate = 0.1  # Not below its minimum.",
        "# limit is not set",
        'kind = "a"',
    ]
    assert text.count("# in order\n[[phases]]\nshare = ") == 2
    assert read_options(Outer, tomllib.loads(text), "here").hours == {"a b": 1.0}


@pytest.mark.parametrize("name", shipped_recipes())
def test_the_printed_settings_of_a_recipe_are_that_recipe(name: str, tmp_path: Path) -> None:
    for variant in ("", *list_variants(name)):
        arguments = ["config", "--recipe", name, *(["--variant", variant] if variant else [])]
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 0, result.output
        (tmp_path / f"{name}.toml").write_text(result.stdout, encoding="utf-8")
        assert load_recipe(str(tmp_path / f"{name}.toml")) == load_recipe(name, variant=variant)


def test_the_list_of_recipes() -> None:
    result = CliRunner().invoke(main, ["recipes"])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("dihard3: "))
    assert lines[at + 1] == "  needs     dihard3, exp/callhome/05-train-diar/model"
    assert lines[at + 2].startswith("  variants  debug, ")


def test_an_option_that_counts_only_if_set_has_an_empty_default() -> None:
    """Else all experiments that exist would be stale."""
    with pytest.raises(TypeError, match="must be empty, got 1.0"):
        option(1.0, hash_only_if_set=True)
