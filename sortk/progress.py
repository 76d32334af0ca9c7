"""Progress of long work: a bar on a terminal, a line now and then in a log. Times are h:mm:ss."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from tqdm import tqdm

Result = TypeVar("Result")

log = logging.getLogger(__name__)

SECONDS_BETWEEN_LOG_LINES = 15.0


def format_clock(seconds: float) -> str:
    """Return h:mm:ss: 3725 -> "1:02:05"."""
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"


class ProgressBar(tqdm):  # type: ignore[type-arg]
    """tqdm's bar with its times as h:mm:ss. It is shown on a terminal only, and disappears when the work is done."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        layout = "{desc}: {percentage:3.0f} % |{bar}| {n_fmt} of {total_fmt}{unit}, {spent}, {left} left{postfix}"
        defaults: dict[str, Any] = {"bar_format": layout, "dynamic_ncols": True, "disable": None, "leave": False}
        super().__init__(*args, **defaults | kwargs)

    @property
    def format_dict(self) -> dict[str, Any]:
        found = dict(super().format_dict)
        if self.disable:
            return found
        n_done, rate = found["n"] - found["initial"], found["rate"]
        rate = rate or (n_done / found["elapsed"] if found["elapsed"] else 0.0)
        left = format_clock((found["total"] - found["n"]) / rate) if rate and found["total"] else "?"
        return found | {"spent": format_clock(found["elapsed"]), "left": left}


class Progress:
    """How much of `total` is done, and how long the rest will take: a bar on a terminal, elsewhere lines in the log."""

    def __init__(self, title: str, total: float, unit: str = "") -> None:
        self._title, self._total, self._done = title, total, 0.0
        self._bar = ProgressBar(total=round(total), desc=title, unit=unit, unit_scale=bool(unit))
        self._began = self._last_line = time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def update(self, amount: float = 1) -> None:
        self._done += amount
        self._bar.update(amount)
        now = time.monotonic()
        if self._bar.disable and self._done and now - self._last_line > SECONDS_BETWEEN_LOG_LINES:
            left = (now - self._began) * max(self._total / self._done - 1, 0)
            share = 100 * self._done / max(self._total, self._done)
            log.info("%s: %.0f %% done, %s left", self._title, share, format_clock(left))
            self._last_line = now


def show_progress(results: Iterable[Result], total: int, title: str) -> Iterator[Result]:
    """Yield the results, and show how many of `total` there are."""
    with Progress(title, total) as progress:
        for result in results:
            yield result
            progress.update()
