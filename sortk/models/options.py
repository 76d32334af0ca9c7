"""Options of models from JSON, the inverse of `dataclasses.asdict`; and the bounds of sizes."""

from __future__ import annotations

from typing import Any, TypeVar

from sortk.options import read_options

Options = TypeVar("Options")
MAX_SIZE = 1 << 16  # of anything that is counted in a config; no model comes near


def options_from_json(options: type[Options], fields: Any, what: str) -> Options:
    """Return the options; fields that are left out have their defaults. `what` it is, for errors."""
    try:
        return read_options(options, fields, "options")
    except ValueError as error:
        raise ValueError(f"not the options of {what}: {error}") from None


def check_sizes(options: Any, *names: str) -> None:
    """Raise ValueError if one of these sizes is not from 1 to MAX_SIZE."""
    for name in names:
        value = getattr(options, name)
        if not 1 <= value <= MAX_SIZE:
            raise ValueError(f"{name} must be from 1 to {MAX_SIZE}, got {value!r:.40}")
