"""One loop for every model: steps, checkpoints, validation. A `TrainingTask` knows the model and its loss.

A run that is killed and started again sees the same batches and draws the same random numbers as one that was not, and
ends with the same weights: batches follow from seed, epoch and number, the random numbers of a step from seed and step;
everything else is in the checkpoint.

An update whose loss or gradients are not finite is skipped: weights, optimiser and statistics stay as they are. The
examples in it are named in the log; several such updates in a row stop the run (`max_bad_updates`). A loss that jumps
is logged with its examples, too; its update is made.

Several processes (see `processes`) share each batch; their loss is that of one process with a batch as large as all of
theirs.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import logging
import math
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from sortk.models.memory import keep_freed_memory
from sortk.training.checkpoint import Checkpoints, TrainingProgress, full_tensor
from sortk.training.data import Batch, BatchLoader, ExampleSource
from sortk.training.log import RATES, Bar, Event, open_log
from sortk.training.optimizer import build_optimizer, freeze_parts, learning_rate
from sortk.training.options import LoopOptions, PhaseOptions
from sortk.training.processes import Processes, all_gather, current_processes, sum_numbers, wait_for_all
from sortk.training.signals import Stop, TrainingStopped, stop_on_signal
from sortk.training.threads import choose_threads, use_threads

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

log = logging.getLogger(__name__)

MAX_BAD_UPDATES = 10  # in a row, if the options do not say
SPIKE = 4.0  # times its mean: a loss that jumps
MEAN_UPDATES = 50  # over which that mean is taken, roughly; before that, nothing is a jump


class TrainingTask(nn.Module):
    """A model, its loss and its validation."""

    model: nn.Module
    progress: float = 0.0  # how much of the phase is over, 0 to 1

    def begin(self, phase: PhaseOptions) -> None:
        """Prepare for a phase: what follows is learned as its options say."""

    def advance(self, progress: float) -> None:
        """Note how much of the phase is over, for weights of losses that change with it."""
        self.progress = progress

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a batch, and what to log about it."""
        raise NotImplementedError

    def validate(self, device: torch.device) -> dict[str, float]:
        """Return scores on held-out data; `score` among them decides what is best (lower is better)."""
        raise NotImplementedError


def train(
    task: TrainingTask,
    loader: BatchLoader,
    options: LoopOptions,
    out: Path,
    device: torch.device,
    phase: str = "train",
    seed: int = 0,
) -> TrainingProgress:
    """Train a task in place; continue where an earlier run stopped, and do nothing more if that one was complete.

    Writes checkpoints/<phase>/ and log.jsonl in `out`.
    """
    keep_freed_memory()
    task.to(device)
    processes = current_processes()
    run = _Run(task, options, device, processes, f"{seed} {phase}")
    checkpoints = Checkpoints(out / "checkpoints" / phase, options.keep_best)
    progress = checkpoints.restore(run.learner, run.optimizer)
    if progress.scaler:
        run.scaler.load_state_dict(progress.scaler)
    n_steps = options.steps
    _log_start(phase, progress.step, options)
    updates = _updates(loader, progress, options, processes)
    if progress.step < n_steps and processes.n == 1 and device.type == "cpu":
        first = next(updates)
        progress.threads = choose_threads(lambda: run.try_gradients(first[0]), progress.threads)
        updates = itertools.chain([first], updates)
    with (
        use_threads(progress.threads or torch.get_num_threads()),
        open_log(out, phase, progress.step, processes) as training_log,
        stop_on_signal() as stop,
        Bar(progress, n_steps, processes) as bar,
    ):
        while progress.step < n_steps and not stop.requested:
            if 0 < options.patience <= progress.validations_since_best:
                break
            numbers, event = run.update(progress, next(updates), stop)
            progress.step += 1
            bar.show(numbers)
            if event:
                training_log.note(progress.step, event)
            if _is_due(progress.step, options.log_every, n_steps):
                training_log.write(progress.step, numbers)
            if _is_due(progress.step, options.validate_every, n_steps):
                scores = run.validate()
                bar.scores = scores
                training_log.write(progress.step, scores)
                if processes.leads:
                    checkpoints.keep(progress.step, scores["score"], run.task.model)
                progress.note_score(scores["score"])
            if _is_due(progress.step, options.checkpoint_every, n_steps) or stop.requested:
                progress.scaler = run.scaler.state_dict()
                checkpoints.save(progress, run.learner, run.optimizer, writes=processes.leads)
        stop.agree(sum_numbers(stop.as_numbers(), device))  # a signal may have come after the last update
        if stop.requested:
            wait_for_all()  # torchrun ends them all when one has ended, and the checkpoint must be complete
            raise TrainingStopped(progress.step, stop.requeue)
    if progress.bad_updates >= max(2, options.steps // 2):
        raise ValueError(
            f"phase {phase} has diverged: none of the last {progress.bad_updates} of {options.steps} updates had "
            "finite gradients; train with a lower learning_rate, a longer warmup or precision float32 (and --force)"
        )
    run.collect()
    return progress


def _log_start(phase: str, step: int, options: LoopOptions) -> None:
    if step >= options.steps:
        log.info("phase %s: all %d steps are done", phase, options.steps)
    elif step:
        log.info("resuming phase %s at step %d of %d", phase, step, options.steps)
    else:
        log.info("phase %s: %d steps", phase, options.steps)
    if options.warmup_steps > options.steps:
        log.warning(
            "phase %s: warmup_steps (%d) is more than steps (%d), so the learning rate stays below %g and never "
            "reaches %g",
            phase,
            options.warmup_steps,
            options.steps,
            learning_rate(options.steps, options),
            options.learning_rate,
        )


def _is_due(step: int, every: int, n_steps: int) -> bool:
    return step % every == 0 or step == n_steps


class _Run:
    """One update, one validation."""

    def __init__(
        self, task: TrainingTask, options: LoopOptions, device: torch.device, processes: Processes, seed: str
    ) -> None:
        self.task, self.options, self.device, self.processes, self.seed = task, options, device, processes, seed
        self.is_sharded = options.shard and processes.n > 1
        # What learns may be sharded over the processes; the task has full tensors, and is given what was learned.
        self.learner = shard(copy.deepcopy(task), device) if self.is_sharded else task
        self.frozen = freeze_parts(self.learner.model, options.freeze)
        self.optimizer = build_optimizer(self.learner, options)
        self.scaler = torch.GradScaler(device.type, enabled=options.precision == "float16")
        shared: nn.Module = self.learner
        if processes.n > 1 and not self.is_sharded:
            # What a step learns changes with the phase (an auxiliary loss, an encoder that warms up alone).
            shared = DistributedDataParallel(task, broadcast_buffers=False, find_unused_parameters=True)
        self.compute_loss = torch.compile(shared) if options.compile else shared
        self._clock = time.monotonic()

    def update(
        self, progress: TrainingProgress, batches: Sequence[Batch], stop: Stop
    ) -> tuple[dict[str, float], Event | None]:
        """Make one step of the optimiser over one or more batches; return numbers to log, and what was unusual."""
        options = self.options
        rate = learning_rate(progress.step, options)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.learner.advance(progress.step / options.steps)
        torch.manual_seed(zlib.crc32(f"{self.seed} {progress.step} {self.processes.rank}".encode()))
        self.learner.train()
        for part in self.frozen:
            part.eval()  # its statistics stay, too
        self.optimizer.zero_grad(set_to_none=True)
        statistics = [(buffer, buffer.clone()) for buffer in self.learner.buffers()]  # of batch norm
        numbers, broken = self._accumulate(batches)
        numbers = stop.agree(sum_numbers(numbers | stop.as_numbers(), self.device))
        self.scaler.unscale_(self.optimizer)
        norm = float(
            full_tensor(torch.nn.utils.clip_grad_norm_(self.learner.parameters(), options.clip_norm or math.inf))
        )
        # All processes have the same sums and gradients, and so the same result.
        event = self._judge(progress, numbers["loss"], norm, batches, broken)
        if event is None or not event.skipped:
            self.scaler.step(self.optimizer)
        else:
            with torch.no_grad():
                for buffer, before in statistics:
                    buffer.copy_(before)
        self.scaler.update()
        seconds = self._lap()
        numbers |= {name: numbers[name] / seconds for name in RATES} | {"learning_rate": rate, "grad_norm": norm}
        return {name: value for name, value in numbers.items() if math.isfinite(value)}, event

    def _judge(
        self, progress: TrainingProgress, loss: float, norm: float, batches: Sequence[Batch], broken: Sequence[str]
    ) -> Event | None:
        """Return what is unusual about an update, noted in `progress`; raise ValueError after too many bad ones."""
        step = progress.step + 1
        fault = _find_fault(loss, norm, self.scaler)
        if not fault:
            progress.bad_updates = 0
            mean = progress.mean_loss
            progress.mean_loss = loss if mean is None else mean + (loss - mean) / MEAN_UPDATES
            if mean is None or step <= MEAN_UPDATES or loss < SPIKE * mean or mean <= 0:
                return None
            event = Event(f"the loss jumped to {loss:.3g}, {loss / mean:.1f} times its mean", _names(batches))
            self._warn(step, event)
            return event
        # All batches of an update share its gradients, but a loss is one batch's own.
        named = tuple(name for names in all_gather(tuple(broken)) for name in names)
        event = Event(fault, named or _names(batches), skipped=True)
        progress.bad_updates += 1
        allowed = self.options.max_bad_updates or MAX_BAD_UPDATES
        if progress.bad_updates >= allowed:
            row = f", the last of {allowed} updates in a row" if allowed > 1 else ""
            raise ValueError(
                f"{event.what} at step {step}, of {event.list_names()}{row}; look at these examples, or train with "
                "a lower learning_rate, a longer warmup or precision float32"
            )
        self._warn(step, event)
        return event

    def _warn(self, step: int, event: Event) -> None:
        if self.processes.leads:
            done = "; the update is skipped" if event.skipped else ""
            log.warning("step %d: %s, of %s%s", step, event.what, event.list_names(), done)

    def _accumulate(self, batches: Sequence[Batch]) -> tuple[dict[str, float], list[str]]:
        """Compute the gradients of the mean loss over all examples.

        Returns this process's part of the means, to be summed over all, and the names of its examples in batches whose
        loss is not finite.
        """
        broken: list[str] = []
        n_examples = sum(batch.n_in_all for batch in batches)
        sums = dict(zip(RATES, (sum(b.seconds for b in batches), sum(len(b.names) for b in batches)), strict=True))
        for number, batch in enumerate(batches, start=1):
            weight = len(batch.names) / n_examples
            with self._sync_if(number == len(batches)), self._autocast():
                loss, about = self.compute_loss(batch.to(self.device))
                # Gradients are averaged over the processes, hence the factor.
                self.scaler.scale(loss * (weight * self.processes.n)).backward()
            own = {name: float(value) for name, value in (about | {"loss": loss.detach()}).items()}
            sums |= {name: sums.get(name, 0.0) + weight * value for name, value in own.items()}
            if not math.isfinite(own["loss"]):
                broken += batch.names
        return sums, broken

    def try_gradients(self, batch: Batch) -> None:
        """Compute the gradients of a batch and forget them; the model stays as it is."""
        statistics = [(buffer, buffer.clone()) for buffer in self.learner.buffers()]
        self.learner.train()
        with self._autocast():
            loss, _ = self.compute_loss(batch.to(self.device))
            loss.backward()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for buffer, before in statistics:
                buffer.copy_(before)

    def collect(self) -> None:
        """Copy what was learned into the task."""
        if self.is_sharded:
            self.task.load_state_dict({name: full_tensor(weight) for name, weight in self.learner.state_dict().items()})

    def validate(self) -> dict[str, float]:
        self.collect()
        self.task.eval()
        with torch.inference_mode(), self._autocast():
            scores = self.task.validate(self.device)
        self._lap()
        return scores

    def _lap(self) -> float:
        before, self._clock = self._clock, time.monotonic()
        return max(self._clock - before, 1e-9)

    def _sync_if(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Gradients travel between the processes once an update, with its last batch."""
        if self.is_sharded:
            cast("FSDPModule", self.learner).set_requires_gradient_sync(last)
        if last or not isinstance(self.compute_loss, DistributedDataParallel):
            return contextlib.nullcontext()
        return self.compute_loss.no_sync()

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.options.precision == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, getattr(torch, self.options.precision))


def _find_fault(loss: float, norm: float, scaler: torch.GradScaler) -> str:
    """Return why an update must not be made; empty if nothing is wrong.

    In float16, gradients may overflow: the scaler skips the update by itself, and scales them up less from then on. It
    is a fault if even those that are not scaled up do.
    """
    if not math.isfinite(loss):
        return f"the loss is {loss}"
    if not math.isfinite(norm) and (not scaler.is_enabled() or scaler.get_scale() < 1):
        return f"the norm of the gradients is {norm}"
    return ""


def _names(batches: Sequence[Batch]) -> tuple[str, ...]:
    """Return the names of all examples of an update, in all processes."""
    return tuple(name for names in all_gather([name for batch in batches for name in batch.names]) for name in names)


def shard(task: TrainingTask, device: torch.device) -> TrainingTask:
    """FSDP2: shard weights, gradients and the optimiser's state over the processes; a step gathers the weights.

    All at once and not layer by layer, because the encoder projects the positions of all its layers beforehand.
    """
    if device.type == "cpu" and not hasattr(torch.cpu.Stream, "record_event"):  # which FSDP2 calls
        raise ValueError(f"shard = true on CPUs needs a newer torch than {torch.__version__}")
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415 - slow to import, rarely needed
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - slow to import, rarely needed

    fully_shard(task, mesh=init_device_mesh(device.type, (distributed.get_world_size(),)))  # in place
    return task


def _updates(
    loader: BatchLoader, progress: TrainingProgress, options: LoopOptions, processes: Processes
) -> Iterator[list[Batch]]:
    """Yield the batches of each update, epoch after epoch, from where the run is; update `progress`.

    The last update of an epoch may have fewer batches than the others.
    """
    while True:
        batches = loader.load_epoch(progress.epoch, progress.batch, processes.rank, processes.n)
        while collected := list(itertools.islice(batches, options.accumulate)):
            progress.batch += len(collected)
            yield collected
        if progress.batch == 0:
            raise ValueError("there is nothing to learn from: an epoch has no batches")
        progress.epoch, progress.batch = progress.epoch + 1, 0


SCORE_NAMES = {
    "der": "DER",
    "der_unmapped": "DER in arrival order",
    "arrival_accuracy": "correct arrival order",
    "wer": "WER",
    "cpwer": "cpWER",
}


def run_phases(
    task: TrainingTask,
    phases: Sequence[PhaseOptions],
    sources_of: Callable[[Any], list[ExampleSource]],
    seed: int,
    out: Path,
    frozen: Sequence[str] = (),
) -> dict[str, float]:
    """Train the task's model through all phases, on the examples that `sources_of(phase)` gives.

    Fills `out` with checkpoints/<phase>/ and log.jsonl; continues where an earlier run stopped. At the end the model
    has the best weights of the last phase (the average of the `keep_best` best); returns its scores. `frozen` are parts
    of the model that learn in no phase.
    """
    device = current_processes().choose_device()
    for phase in phases:
        task.begin(phase)
        loader = BatchLoader(sources_of(phase), phase.batch_limit, seed, phase.loop.workers)
        loop = replace(phase.loop, freeze=tuple(dict.fromkeys((*frozen, *phase.loop.freeze))))
        train(task, loader, loop, out, device, phase.name, seed)
    wait_for_all()  # rank 0 may still be writing the last weights
    last = phases[-1]
    task.model.load_state_dict(Checkpoints(out / "checkpoints" / last.name, last.loop.keep_best).average_best())
    task.eval()
    with torch.inference_mode():
        scores = task.validate(device)
    rates = ", ".join(f"{SCORE_NAMES.get(name, name)} {value:.1%}" for name, value in scores.items() if name != "score")
    log.info("final model, on the validation set: %s", rates)
    return scores
