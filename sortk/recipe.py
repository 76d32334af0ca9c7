"""recipe.toml -> typed options. Strict: an unknown key or a wrong type is an error that names file, table and key.

A recipe holds one table per stage, and small override tables in [variants.NAME]:

    summary = "four speakers, two hours"
    seed = 0

    [simulate]
    overlap = 0.12

    [variants.dense.simulate]
    overlap = 0.25

Variants can be stacked: `dense+quiet` is quiet on top of dense. What every recipe's [cluster] table starts from can
stand in a file of the user's own, `$XDG_CONFIG_HOME/sortk/cluster.toml` (~/.config/sortk/cluster.toml).
"""

from __future__ import annotations

import contextlib
import os
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from sortk.corpora.registry import PrepareOptions
from sortk.formats.files import check_file_name, quote
from sortk.formats.objects import read_toml
from sortk.formats.sst import SstOptions
from sortk.options import Memo, describe_unknown, list_known, read_options
from sortk.prepare.clean import CleanOptions
from sortk.prepare.simulate import SimulateOptions
from sortk.prepare.timestamps import TimestampOptions
from sortk.scoring.options import ScoreOptions, TableOptions
from sortk.scoring.tune import TuneOptions
from sortk.slurm.options import ClusterOptions
from sortk.training.options import TrainAsrOptions, TrainDiarOptions

TomlTable = dict[str, Any]

NO_STAGES = ("name", "summary", "seed", "asr", "tables", "cluster")  # all other keys of a recipe are tables of stages


@dataclass(frozen=True)
class Recipe:
    """All settings of an experiment: a table per stage."""

    name: str
    summary: str = ""  # one line for people
    seed: int = 0  # every random choice follows from it and from the item's id
    asr: bool = True  # False: the diarizer alone, without stage 6
    prepare: PrepareOptions = field(default_factory=PrepareOptions)
    simulate: SimulateOptions = field(default_factory=SimulateOptions)
    clean: CleanOptions = field(default_factory=CleanOptions)
    timestamps: TimestampOptions = field(default_factory=TimestampOptions)
    sst: SstOptions = field(default_factory=SstOptions)
    train_diar: TrainDiarOptions = field(default_factory=TrainDiarOptions)
    train_asr: TrainAsrOptions = field(default_factory=TrainAsrOptions)
    tune: TuneOptions = field(default_factory=TuneOptions)
    score: ScoreOptions = field(default_factory=ScoreOptions)
    tables: TableOptions = field(default_factory=TableOptions)  # what `sortk tables` measures
    cluster: ClusterOptions = field(default_factory=ClusterOptions)  # where jobs run changes no result

    def __post_init__(self) -> None:
        stages = [entry.name for entry in fields(self) if entry.name not in NO_STAGES]
        for name in self.cluster.stages:
            if name not in stages:
                raise ValueError(f"cluster: {describe_unknown(name, stages)}")


def load_recipe(name_or_path: str, overrides: Sequence[str] = (), variant: str | None = None) -> Recipe:
    """Return the recipe of that name or path, with a variant's tables and then `table.key=value` overrides applied.

    Of several variants, `debug+pil`, each goes on top of those before it.
    """
    path = find_recipe(name_or_path)
    return _build_recipe(path, read_toml(path), overrides, variant.split("+") if variant else [])


def load_shareable(name_or_path: str, overrides: Sequence[str], variant: str) -> dict[str, Recipe]:
    """Return the recipes whose stages a variant may share, by variant: the plain one, as "", and all variants that come
    before it in the file. `debug+pil` also has `debug`, and what comes before pil on top of debug."""
    path = find_recipe(name_or_path)
    table = read_toml(path)
    given = variant.split("+") if variant else []
    memo: Memo = {}  # variants have most tables in common
    _build_recipe(path, table, overrides, given, memo)  # which knows them all, or says so
    known = list(table.get("variants", {}))
    shareable: dict[str, Recipe] = {}
    for depth, name in enumerate(given):
        below = given[:depth]
        for names in (below, *([*below, other] for other in known[: known.index(name)])):
            with contextlib.suppress(ValueError):  # not every variant makes sense on top of every other
                shareable["+".join(names)] = _build_recipe(path, table, overrides, names, memo)
    return shareable


def _build_recipe(
    path: Path, content: TomlTable, overrides: Sequence[str], names: Sequence[str], memo: Memo | None = None
) -> Recipe:
    table = merge_tables({"cluster": read_cluster_defaults()}, content)
    variants = table.pop("variants", {})
    if not isinstance(variants, dict) or not all(isinstance(variant, dict) for variant in variants.values()):
        raise ValueError(f"{path}: variants must be tables, such as [variants.dense.simulate]")
    for name in names:
        if name not in variants:
            raise ValueError(f"{path}: no variant {quote(name)}; {list_known('variants', variants)}")
        table = merge_tables(table, variants[name], f"{path}: ")
    for override in overrides:
        table = merge_tables(table, parse_override(override), "--set ")
    name = path.resolve().parent.name if path.name == "recipe.toml" else path.stem
    recipe = read_options(Recipe, {"name": name} | table, str(path), memo)
    for given, what in ((recipe.name if "name" in table else "", "name"), ("+".join(names), "variant")):
        if given:
            check_file_name(given, path, what)  # of the experiment's folder, and of the variant's in it
    return recipe


def find_recipe(name_or_path: str) -> Path:
    """Return the recipe.toml of a shipped recipe's name, of a folder, or a TOML file itself."""
    given = Path(name_or_path)
    candidates = [given / "recipe.toml", given]
    if name_or_path == given.name:  # not "./mini" or "."
        candidates = [shipped / name_or_path / "recipe.toml" for shipped in _shipped_folders()] + candidates
    for path in candidates:
        if path.is_file():
            return path
    raise ValueError(
        f"no recipe {quote(name_or_path)}: it is neither a file or folder with a recipe.toml nor a shipped recipe; "
        + list_known("shipped recipes", shipped_recipes())
    )


def shipped_recipes() -> list[str]:
    """Return the names of the recipes that came with this installation."""
    return sorted({path.parent.name for folder in _shipped_folders() for path in folder.glob("*/recipe.toml")})


def list_variants(name_or_path: str) -> list[str]:
    """Return the names of a recipe's variants, as they stand in the file."""
    return list(read_toml(find_recipe(name_or_path)).get("variants", {}))


def _shipped_folders() -> list[Path]:
    # A wheel carries the recipes inside the package; in a checkout they are beside it.
    package = Path(__file__).resolve().parent
    return [package / "recipes", package.parent / "recipes"]


def read_cluster_defaults() -> TomlTable:
    """Return the [cluster] table of the user's own file; it is empty without such a file.

    A recipe's own [cluster] table and --set go on top of it. Where jobs run changes no result.
    """
    home = os.environ.get("HOME") or os.devnull  # which holds no files
    path = Path(os.environ.get("XDG_CONFIG_HOME") or Path(home, ".config"), "sortk", "cluster.toml")
    if not path.is_file():
        return {}
    table = read_settings(path, "cluster")
    read_options(Recipe, {"name": "defaults", "cluster": table}, str(path))  # so that an error names this file
    return table


def read_settings(path: Path, name: str) -> TomlTable:
    """Return the table `name` of a recipe, or the content of a file that holds only that table."""
    content = read_toml(path)
    table: TomlTable = content.get(name, content)
    return table


def parse_override(text: str) -> TomlTable:
    """Return the table of an override; a value that is not TOML is a string.

    'simulate.hours.train=2' -> {'simulate': {'hours': {'train': 2}}}
    """
    key, equals, value = text.partition("=")
    names = key.strip().split(".")
    if not equals or not all(names) or not key.isprintable():
        raise ValueError(f"--set {quote(text)}: write table.key=value")
    try:
        parsed: Any = tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        parsed = value.strip()
    for name in reversed(names):
        parsed = {name: parsed}
    return typing.cast(TomlTable, parsed)


def merge_tables(base: TomlTable, overrides: Mapping[str, Any], where: str = "") -> TomlTable:
    """Return `base` with `overrides` on top, table by table; in a list of tables, a table of numbers names its items.

    `where` the overrides come from, for errors.
    """
    merged = dict(base)
    for key, value in overrides.items():
        if isinstance(value, dict) and isinstance(merged.get(key), list):
            merged[key] = _merge_items(merged[key], value, f"{where}{key}")
        elif isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = merge_tables(merged[key], value, f"{where}{key}.")
        else:
            merged[key] = value
    return merged


def _merge_items(base: Sequence[Any], overrides: Mapping[str, Any], where: str) -> list[Any]:
    """Return a list with some items changed: prepare.corpora.0.corpus_dir=DIR is one key of the first corpus."""
    known = {str(number): item for number, item in enumerate(base)}
    for number in overrides:
        if number not in known:
            raise ValueError(f"{where} is a list, which has no item {quote(number)}; {list_known('items', known)}")
    return list(merge_tables(known, overrides, f"{where}.").values())
