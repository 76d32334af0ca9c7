"""One loop for every model: steps, checkpoints, validation. What is learned is the business of a `Task`.

A run that is killed and started again sees the same batches and draws the same random numbers as one that was not, and
ends with the same weights: batches follow from seed, epoch and number; everything else is in the checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from tqdm import tqdm

from sortk.formats.files import atomic_text
from sortk.training.batches import Batch, BatchLoader
from sortk.training.checkpoint import Checkpoints, Progress
from sortk.training.options import LoopOptions

log = logging.getLogger(__name__)

SECONDS_BETWEEN_LOG_LINES = 15.0


def learning_rate(step: int, options: LoopOptions) -> float:
    """Of the step-th update, counted from 0: a linear rise over the warm-up, then down to the minimum.

    inverse_sqrt   peak sqrt(warmup / step): the paper's, which does not know where it ends
    cosine         half a cosine from the peak to the minimum at the last step: better for short runs
    """
    peak, minimum, warmup = options.learning_rate, options.min_learning_rate, options.warmup_steps
    if step < warmup:
        return max(minimum, peak * (step + 1) / warmup)
    if options.annealing == "inverse_sqrt":
        return max(minimum, peak * math.sqrt(max(warmup, 1) / (step + 1)))
    progress = min(1.0, (step - warmup) / max(1, options.steps - warmup))
    return minimum + (peak - minimum) * (1 + math.cos(math.pi * progress)) / 2


class Task(Protocol):
    """A module that holds a model, and knows what it has to learn."""

    model: nn.Module
    progress: float
    """How much of the phase is over, 0 to 1; set by the loop, for weights that change with it."""

    def __call__(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a batch, and what to log about it."""

    def validate(self, device: torch.device) -> dict[str, float]:
        """Scores on held-out data; `score` among them decides what is best (lower is better)."""


class TrainingStopped(KeyboardInterrupt):
    """Somebody asked the run to stop; its checkpoint is written."""


def train(task: nn.Module, loader: BatchLoader, options: LoopOptions, out: Path, device: torch.device) -> Progress:
    """Trains a `Task` in place; goes on where an earlier run stopped, and does nothing more if that one was through.

    Leaves checkpoints and log.jsonl in `out`.
    """
    task.to(device)
    weights = [weight for weight in task.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=options.learning_rate, weight_decay=options.weight_decay)
    checkpoints = Checkpoints(out, options.keep_best)
    progress = checkpoints.restore(task, optimizer)
    run = _Run(task, optimizer, options, device)
    n_steps = options.steps
    with (
        TrainingLog(out / "log.jsonl", progress.step) as training_log,
        _stop_on_signal() as stop,
        _Bar(progress, n_steps) as bar,
    ):
        updates = _updates(loader, progress, options)
        while progress.step < n_steps and not _is_patience_over(progress, options):
            numbers = run.update(progress, next(updates))
            progress.step += 1
            bar.show(numbers)
            if _is_due(progress.step, options.log_every, n_steps):
                training_log.write(progress.step, numbers)
            if _is_due(progress.step, options.validate_every, n_steps):
                scores = run.validate()
                training_log.write(progress.step, scores)
                checkpoints.keep(progress.step, scores["score"], run.task.model)
                _note_score(progress, scores["score"])
            if _is_due(progress.step, options.checkpoint_every, n_steps) or stop.requested:
                checkpoints.save(progress, task, optimizer)
            if stop.requested and progress.step < n_steps:
                raise TrainingStopped(
                    f"stopped by a signal at step {progress.step}; run the same command again to go on"
                )
    return progress


def _is_due(step: int, every: int, n_steps: int) -> bool:
    return step % every == 0 or step == n_steps


class _Run:
    """One update, one validation."""

    def __init__(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, options: LoopOptions, device: torch.device
    ) -> None:
        self.module, self.optimizer, self.options, self.device = module, optimizer, options, device
        self.task = cast(Task, module)
        self.compute_loss = torch.compile(module) if options.compile else self.task
        self.scaler = torch.GradScaler(device.type, enabled=options.precision == "float16")
        self._clock = time.monotonic()

    def update(self, progress: Progress, batches: Sequence[Batch]) -> dict[str, float]:
        """One step of the optimiser over one or more batches."""
        options = self.options
        rate = learning_rate(progress.step, options)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.task.progress = progress.step / options.steps
        self.module.train()
        self.optimizer.zero_grad(set_to_none=True)
        sums: dict[str, float] = {}
        for batch in batches:
            with self._autocast():
                loss, about = self.compute_loss(batch.to(self.device))
            if not bool(torch.isfinite(loss)):
                raise ValueError(f"the loss is {loss.item()} at step {progress.step + 1}, of {', '.join(batch.names)}")
            self.scaler.scale(loss / len(batches)).backward()
            for name, value in (about | {"loss": loss.detach()}).items():
                sums[name] = sums.get(name, 0.0) + float(value)
        self.scaler.unscale_(self.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self.module.parameters(), options.clip_norm or math.inf)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        heard, seconds = sum(batch.seconds for batch in batches), self._lap()
        numbers = {name: value / len(batches) for name, value in sums.items()}
        return numbers | {"learning_rate": rate, "grad_norm": float(norm), "audio_per_second": heard / seconds}

    def validate(self) -> dict[str, float]:
        self.module.eval()
        with torch.inference_mode(), self._autocast():
            scores = self.task.validate(self.device)
        self._lap()
        return scores

    def _lap(self) -> float:
        before, self._clock = self._clock, time.monotonic()
        return max(self._clock - before, 1e-9)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.options.precision == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, getattr(torch, self.options.precision))


class _Bar(contextlib.AbstractContextManager["_Bar"]):
    """Progress: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, progress: Progress, n_steps: int) -> None:
        self._progress, self._n_steps = progress, n_steps
        self._bar = tqdm(
            total=n_steps, initial=progress.step, disable=not sys.stderr.isatty(), leave=False, unit="step"
        )
        self._last_line = time.monotonic()

    def __exit__(self, *about: object) -> None:
        self._bar.close()

    def show(self, numbers: dict[str, float]) -> None:
        self._bar.update()
        text = ", ".join(f"{name} {numbers[name]:.3g}" for name in ("loss", "audio_per_second") if name in numbers)
        self._bar.set_postfix_str(text, refresh=False)
        if self._bar.disable and time.monotonic() - self._last_line > SECONDS_BETWEEN_LOG_LINES:
            log.info("step %d of %d: %s", self._progress.step, self._n_steps, text)
            self._last_line = time.monotonic()


def _updates(loader: BatchLoader, progress: Progress, options: LoopOptions) -> Iterator[list[Batch]]:
    """The batches of each update, epoch after epoch, from where the run stands; moves `progress` along."""
    while True:
        collected: list[Batch] = []
        for batch in loader.load_epoch(progress.epoch, progress.batch):
            collected.append(batch)
            if len(collected) == options.accumulate:
                progress.batch += options.accumulate
                yield collected
                collected = []
        progress.epoch, progress.batch = progress.epoch + 1, 0


def _note_score(progress: Progress, score: float) -> None:
    if progress.best_score is None or score < progress.best_score:
        progress.best_score, progress.validations_since_best = score, 0
    else:
        progress.validations_since_best += 1


def _is_patience_over(progress: Progress, options: LoopOptions) -> bool:
    return 0 < options.patience <= progress.validations_since_best


class TrainingLog:
    """log.jsonl: a line of numbers now and then. Lines after the checkpoint that a run goes on from are dropped."""

    def __init__(self, path: Path, from_step: int) -> None:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        with atomic_text(path) as file:
            file.writelines(f"{line}\n" for line in lines if _is_before(line, from_step))
        self._file = path.open("a", encoding="utf-8")

    def __enter__(self) -> TrainingLog:
        return self

    def __exit__(self, *about: object) -> None:
        self._file.close()

    def write(self, step: int, numbers: dict[str, float]) -> None:
        self._file.write(json.dumps({"step": step} | numbers) + "\n")
        self._file.flush()


def _is_before(line: str, from_step: int) -> bool:
    try:
        return bool(json.loads(line)["step"] <= from_step)
    except (ValueError, KeyError, TypeError):
        return False  # the half line of a killed run


@dataclass
class _Stop:
    requested: bool = False


@contextlib.contextmanager
def _stop_on_signal() -> Iterator[_Stop]:
    """SIGTERM and SIGUSR1 end the run after the present step, with a checkpoint."""
    stop = _Stop()

    def request(*about: object) -> None:
        stop.requested = True

    before = {number: signal.signal(number, request) for number in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
