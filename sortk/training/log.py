"""What a training reports: log.jsonl, a progress bar or lines, unusual updates."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sortk.formats.files import atomic_text
from sortk.progress import ProgressBar, format_clock
from sortk.training.checkpoint import TrainingProgress
from sortk.training.processes import Processes

log = logging.getLogger(__name__)

SECONDS_BETWEEN_LOG_LINES = 15.0
RATES = ("audio_per_second", "examples_per_second")
SHOWN = {"loss": "loss {:.3g}", "der": "DER {:.1%}", "cpwer": "cpWER {:.1%}", "audio_per_second": "{:.3g} x real time"}
MAX_NAMES = 20  # of examples in a message; log.jsonl has them all


@dataclass(frozen=True)
class Event:
    """What is unusual about an update."""

    what: str
    names: tuple[str, ...]  # of the examples in it
    skipped: bool = False

    def list_names(self) -> str:
        more = len(self.names) - MAX_NAMES
        return ", ".join(self.names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


class TrainingLog:
    """log.jsonl: a line of numbers every few steps. Lines after the checkpoint that a phase resumes from are dropped.

    If TensorBoard is installed, it can show the same curves (log/tensorboard).
    """

    def __init__(self, out: Path, phase: str, from_step: int) -> None:
        self._phase, path = phase, out / "log.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        with atomic_text(path) as file:
            file.writelines(f"{line}\n" for line in lines if _is_kept(line, phase, from_step))
        self._file = path.open("a", encoding="utf-8")
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - it may not be installed
        except ImportError:
            self._board: Any = None
        else:
            self._board = SummaryWriter(str(out / "log" / "tensorboard" / phase), purge_step=from_step + 1)

    def __enter__(self) -> TrainingLog:
        return self

    def __exit__(self, *about: object) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()

    def write(self, step: int, numbers: dict[str, float]) -> None:
        self._file.write(json.dumps({"phase": self._phase, "step": step} | numbers) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in numbers.items():
                self._board.add_scalar(name, value, step)

    def note(self, step: int, event: Event) -> None:
        """Write what was unusual about a step, with all examples in it."""
        key = "skipped" if event.skipped else "spike"
        fields = {"phase": self._phase, "step": step, key: event.what, "examples": event.names}
        self._file.write(json.dumps(fields) + "\n")
        self._file.flush()


class _NoLog(contextlib.AbstractContextManager["_NoLog"]):
    """The log of the processes other than rank 0."""

    def __exit__(self, *about: object) -> None: ...
    def write(self, step: int, numbers: dict[str, float]) -> None: ...
    def note(self, step: int, event: Event) -> None: ...


def open_log(out: Path, phase: str, from_step: int, processes: Processes) -> TrainingLog | _NoLog:
    return TrainingLog(out, phase, from_step) if processes.leads else _NoLog()


def _is_kept(line: str, phase: str, from_step: int) -> bool:
    try:
        fields = json.loads(line)
        return bool(fields["phase"] != phase or fields["step"] <= from_step)
    except (ValueError, KeyError, TypeError):
        return False  # the half line of a killed run


class Bar(contextlib.AbstractContextManager["Bar"]):
    """Progress: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, progress: TrainingProgress, n_steps: int, processes: Processes) -> None:
        self._progress, self._n_steps, self._leads = progress, n_steps, processes.leads
        self.scores: dict[str, float] = {}  # of the last validation
        is_seen = sys.stderr.isatty() and processes.leads
        self._bar = ProgressBar(
            total=n_steps, initial=progress.step, desc="training", unit=" steps", disable=not is_seen
        )
        self._first_step, self._began = progress.step, time.monotonic()
        self._last_line = self._began

    def __exit__(self, *about: object) -> None:
        self._bar.close()

    def show(self, numbers: dict[str, float]) -> None:
        self._bar.update()
        shown = numbers | self.scores
        text = ", ".join(style.format(shown[name]) for name, style in SHOWN.items() if name in shown)
        self._bar.set_postfix_str(text, refresh=False)
        now, step = time.monotonic(), self._progress.step
        if self._leads and self._bar.disable and now - self._last_line > SECONDS_BETWEEN_LOG_LINES:
            left = (now - self._began) / max(step - self._first_step, 1) * (self._n_steps - step)
            log.info("step %d of %d: %s, %s left", step, self._n_steps, text, format_clock(left))
            self._last_line = now
