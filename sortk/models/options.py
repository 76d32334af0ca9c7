"""Options of models from JSON, the inverse of `dataclasses.asdict`: types are checked, whoever wrote it."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

Options = TypeVar("Options")
MAX_SIZE = 1 << 16  # of anything that is counted in a config; no model comes near


def options_from_json(options: type[Options], fields: Any, what: str) -> Options:
    """Fields that are left out have their defaults; `what` it is, for errors."""
    try:
        return _build(options, fields, "options")
    except ValueError as error:
        raise ValueError(f"not the options of {what}: {error}") from None


def check_sizes(options: Any, *names: str) -> None:
    """Raise ValueError if one of these sizes is not from 1 to MAX_SIZE."""
    for name in names:
        value = getattr(options, name)
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
        if value > MAX_SIZE:
            raise ValueError(f"{name} must be at most {MAX_SIZE}, not {_shorten(value)}")


def _build(options: type[Options], fields: Any, where: str) -> Options:
    if not isinstance(fields, Mapping):
        raise ValueError(f"{where} is {_shorten(fields)}, not an object")
    hints = typing.get_type_hints(options)
    for name in fields:
        if name not in hints:
            raise ValueError(f"{where} has an unknown key {_shorten(name)}")
    return options(**{name: _convert(hints[name], value, f"{where}.{name}") for name, value in fields.items()})


def _convert(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type, hint), value, where)
    origin, choices = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _convert(choices[0], value, where)
    if origin is tuple and isinstance(value, list | tuple):
        if choices[-1] is not Ellipsis and len(value) != len(choices):
            raise ValueError(f"{where} is {_shorten(value)}, not {len(choices)} values")
        return tuple(_convert(choices[0], item, f"{where}[{n}]") for n, item in enumerate(value))
    if origin is Literal and isinstance(value, str) and value in choices:
        return value
    if hint is float and type(value) in (int, float) and _is_finite(value):
        return float(value)
    if hint in (int, bool) and type(value) is hint:
        return value
    raise ValueError(f"{where} is {_shorten(value)}")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int that no float holds
        return False


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:36]} ..."
