"""How a corpus hands out work that can run in other processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

RunJobs = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]
"""Applies a picklable function to each item; gives the results in the order of the items. The built-in `map` is one."""
