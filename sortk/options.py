"""Settings: frozen dataclasses that check themselves, and the one strict reader that builds them from TOML or JSON.

    @dataclass(frozen=True)
    class SearchOptions(Options):
        trials: int = option(200, at_least=1)  # trials in the study
        sampler: Literal["tpe", "random"] = "tpe"

    read_options(SearchOptions, {"trails": 3}, "my.toml: tune")   # unknown key 'trails'; did you mean 'trials'?

Default, range and comment stand on the field, once. `Literal` types and ranges are checked whenever an object is made;
types are checked by the reader, because whoever wrote the file is not a type checker. A class with a SHORTHAND may be
written as the value of that field alone. A class with TABLES has a field of that name, a dict, for all tables that are
not fields: [cluster.simulate] is `cluster.stages["simulate"]`. FIXED holds former options that became constants: they
remain part of a stage's key, so that finished stages stay valid.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import inspect
import itertools
import json
import math
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, field
from typing import Any, Literal, TypeVar

from sortk.formats.files import quote

T = TypeVar("T")
Memo = dict[tuple[str, int], tuple[Any, Any]]  # key and id of a value -> the value, and what it was converted to

LONGEST_LINE = 116  # characters of a setting and the comment behind it
LONGEST_KEY = 80  # characters in which a typing error is looked for
HASH_ONLY_IF_SET = {"hash_only_if_set": True}
"""Metadata of an option that was added when experiments existed already. Its default is empty, 0 or false, and then it
does not count as a setting, so that it makes no finished stage stale (see `folders.settings_of`)."""


@dataclasses.dataclass(frozen=True)
class Range:
    """The numbers that an option may have."""

    at_least: float = -math.inf
    at_most: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    def __contains__(self, value: float) -> bool:
        return self.at_least <= value <= self.at_most and self.above < value < self.below  # False for NaN

    def __str__(self) -> str:
        low = f"{self.at_least:g} or more" if self.at_least > -math.inf else ""
        low = f"more than {self.above:g}" if self.above > -math.inf else low
        if self.at_least > -math.inf and self.at_most < math.inf:
            return f"from {self.at_least:g} to {self.at_most:g}"
        high = f"at most {self.at_most:g}" if self.at_most < math.inf else ""
        high = f"less than {self.below:g}" if self.below < math.inf else high
        return " and ".join(filter(None, (low, high)))


def option(
    default: Any = MISSING,
    *,
    default_factory: Callable[[], Any] | Any = MISSING,
    hash_only_if_set: bool = False,
    secret: bool = False,
    **limits: float,
) -> Any:
    """Return a dataclass field with a range (`at_least`, `at_most`, `above`, `below`); None is always allowed.

    A secret one, such as a URL with a password, changes no result: it is not written anywhere, nor part of a key.
    """
    metadata: dict[str, Any] = {"range": Range(**limits)} if limits else {}
    if hash_only_if_set:
        if default is not MISSING and default:
            raise TypeError(f"the default of an option that counts only if it is set must be empty, got {default!r}")
        metadata |= HASH_ONLY_IF_SET
    if secret:
        metadata["secret"] = True
    return field(default=default, default_factory=default_factory, metadata=metadata)


class Options:
    """Base of option dataclasses. A subclass with rules of its own calls super().__post_init__() first."""

    def __post_init__(self) -> None:
        for name, allowed in _list_rules(typing.cast(Any, type(self))):
            value = getattr(self, name)
            if isinstance(allowed, Range):
                _check_range(name, value, allowed)
            elif value not in typing.get_args(allowed):
                raise ValueError(_must_be_one_of(name, allowed, value))


@functools.cache  # a recipe with many variants is read thousands of times
def _list_rules(options: Any) -> list[tuple[str, Any]]:
    """Return each field that has a rule, in order, with its Range or its Literal type."""
    hints, rules = _type_hints(options), []
    for entry in dataclasses.fields(options):
        if "range" in entry.metadata:
            rules.append((entry.name, entry.metadata["range"]))
        if typing.get_origin(hints[entry.name]) is Literal:
            rules.append((entry.name, hints[entry.name]))
    return rules


@functools.cache
def _type_hints(options: Any) -> dict[str, Any]:
    return typing.get_type_hints(options)


def _check_range(name: str, value: Any, allowed: Range) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _check_range(f"{name}.{key}", item, allowed)
    elif not all(number is None or number in allowed for number in (value if isinstance(value, tuple) else (value,))):
        raise ValueError(f"{name} must be {allowed}, got {quote(value)}")


def read_options(options: type[T], table: Any, where: str, memo: Memo | None = None) -> T:
    """Build an options dataclass from a TOML table or a JSON object; a key that is left out has its default.

    An unknown key, a wrong type or a value out of range is a ValueError that begins with `where`. Tables that have
    values in common, the same objects, are read faster with one `memo` for all: it has what they were converted to.
    """
    memo = {} if memo is None else memo
    if not isinstance(table, Mapping):
        raise ValueError(f"{where} must be a table, got {quote(table)}")
    hints = dict(_type_hints(typing.cast(Any, options)))
    values: dict[str, Any] = {}
    if field_of_tables := getattr(options, "TABLES", ""):
        hint = hints.pop(field_of_tables)
        tables = {key: value for key, value in table.items() if key not in hints and isinstance(value, Mapping)}
        table = {key: value for key, value in table.items() if key not in tables}
        values[field_of_tables] = _convert(hint, tables, where)
    for key, value in table.items():
        if key not in hints:
            raise ValueError(f"{where}: {describe_unknown(key, hints)}")
        if (key, id(value)) not in memo:
            memo[key, id(value)] = value, _convert(hints[key], value, f"{where}: {key}")  # the value keeps its id
        values[key] = memo[key, id(value)][1]
    try:
        return options(**values)
    except ValueError as error:  # the options' own checks say what; this says where
        raise ValueError(f"{where}: {error}") from None


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        [inner] = [argument for argument in arguments if argument is not type(None)]
        return None if value is None else _convert(inner, value, where)
    if dataclasses.is_dataclass(hint):
        if hasattr(hint, "SHORTHAND") and isinstance(value, str | list):
            value = {hint.SHORTHAND: value}
        return read_options(typing.cast(type, hint), value, where)
    if origin is Literal:
        if value not in arguments:
            raise ValueError(_must_be_one_of(where, hint, value))
        return value
    if origin is tuple and arguments[0] is str and isinstance(value, str):
        return (value,)
    if origin is tuple and isinstance(value, list | tuple):
        if arguments[-1] is not Ellipsis and len(value) != len(arguments):
            raise ValueError(f"{where} must have {len(arguments)} values, got {quote(value)}")
        return tuple(_convert(arguments[0], item, where) for item in value)
    if origin is dict and isinstance(value, Mapping):
        return {key: _convert(arguments[1], item, f"{where}.{quote(key)[1:-1]}") for key, item in value.items()}
    if hint is float and type(value) in (int, float) and abs(value) <= sys.float_info.max:
        return float(value)
    if hint in (int, str, bool) and type(value) is hint:
        return value
    names = {float: "a number", int: "a whole number", str: "a string", bool: "true or false"}
    kind = "a list" if origin is tuple else "a table" if origin is dict else ""
    raise ValueError(f"{where} must be {kind or names.get(hint, hint)}, got {quote(value)}")


def _must_be_one_of(name: str, hint: Any, value: Any) -> str:
    return f"{name} must be one of {', '.join(map(str, typing.get_args(hint)))}, got {quote(value)}"


def describe_unknown(key: Any, known: Iterable[str]) -> str:
    """Return "unknown key 'trails'; did you mean 'trials'?", for a key that is not among those that are known."""
    known = list(known)
    close = difflib.get_close_matches(str(key)[:LONGEST_KEY], known, n=1)
    return f"unknown key {quote(key)}; " + (f"did you mean {close[0]!r}?" if close else list_known("keys", known))


def list_known(what: str, names: Iterable[str]) -> str:
    """Return "keys: a, b", for an error about a name that is not among them."""
    return f"{what}: {', '.join(name[:LONGEST_KEY] for name in sorted(names)) or 'none'}"


# ---------------------------------------------------------------------------------------------------------------------
# Back to TOML, with the comments of the source


def format_options(options: Any, name: str = "") -> str:
    """Return the settings as commented TOML, which `read_options` reads back; `name` is the table they stand in."""
    comments = _read_comments(options.__class__)
    lines, tables = [], []
    for entry in dataclasses.fields(options):
        value = getattr(options, entry.name)
        where = f"{name}.{entry.name}" if name else entry.name
        if entry.name == getattr(options, "TABLES", None):
            tables += [f"\n[{name}.{key}]\n{format_options(item, f'{name}.{key}')}" for key, item in value.items()]
            continue
        is_list = isinstance(value, tuple) and bool(value) and dataclasses.is_dataclass(value[0])
        if is_list or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
            note = f"# {comments[entry.name]}\n" if entry.name in comments else ""
            head = f"[[{where}]]" if is_list else f"[{where}]"
            tables += [f"\n{note}{head}\n{format_options(item, where)}" for item in (value if is_list else (value,))]
        else:
            # A key that is not set has no value in TOML.
            text = f"# {entry.name} is not set" if value is None else f"{entry.name} = {_format_value(value)}"
            if entry.metadata.get("secret") and value != entry.default:
                text = f"# {entry.name} is set, but not shown: it may hold a password"
            if comment := comments.get(entry.name, ""):
                fits = len(text) + len(comment) < LONGEST_LINE
                text = f"{text}  # {comment}" if fits else f"# {comment}\n{text}"
            lines.append(text)
    return "\n".join([*lines, *tables])


def _format_value(value: Any) -> str:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {entry.name: getattr(value, entry.name) for entry in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return (
            "{" + ", ".join(f"{_format_value(str(key))} = {_format_value(item)}" for key, item in value.items()) + "}"
        )
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_format_value, value)) + "]"
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


@functools.cache  # it parses source code
def _read_comments(options: type) -> dict[str, str]:
    """Return the comment of each field: behind it, or in the lines before it; after the last field, in those below."""
    comments: dict[str, str] = {}
    for owner in reversed(options.__mro__):
        if not dataclasses.is_dataclass(owner):
            continue
        source = textwrap.dedent(inspect.getsource(owner))
        [body] = ast.parse(source).body
        assert isinstance(body, ast.ClassDef)
        lines = source.splitlines()
        nodes = [node for node in body.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)]
        for node, following in zip(nodes, [*nodes[1:], None], strict=True):
            assert isinstance(node.target, ast.Name) and node.end_lineno is not None
            before = list(itertools.takewhile(_is_comment, reversed(lines[: node.lineno - 1])))[::-1]
            behind = lines[node.end_lineno - 1].partition("  # ")[2]
            after = list(itertools.takewhile(_is_comment, lines[node.end_lineno :])) if following is None else []
            parts = [line.strip().removeprefix("#").strip() for line in [*before, behind, *after]]
            if text := " ".join(filter(None, parts)):
                comments[node.target.id] = text
    return comments


def _is_comment(line: str) -> bool:
    return line.strip().startswith("#")
