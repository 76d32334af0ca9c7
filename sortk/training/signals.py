"""Signals that stop a training with a checkpoint."""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Iterator
from dataclasses import dataclass

log = logging.getLogger(__name__)


class TrainingStopped(KeyboardInterrupt):
    """The run was stopped by a signal; its checkpoint is written."""

    def __init__(self, step: int, requeue: bool) -> None:
        super().__init__(f"stopped at step {step}, with a checkpoint; run the same command again to resume")
        self.requeue = requeue  # the job continues as a new one


@dataclass
class Stop:
    """A signal may reach one process only, at any time; all stop after the same step."""

    got_signal: bool = False  # this process
    got_notice: bool = False  # it was SIGUSR1
    got_interrupt: bool = False  # it was Ctrl-C
    requested: bool = False  # all processes agree
    requeue: bool = False  # the job continues as a new one

    def as_numbers(self) -> dict[str, float]:
        return {"stop": float(self.got_signal), "requeue": float(self.got_notice)}

    def agree(self, sums: dict[str, float]) -> dict[str, float]:
        """Note what came of `as_numbers` in all processes; return the other numbers."""
        self.requested, self.requeue = sums["stop"] > 0, sums["requeue"] > 0
        return {name: value for name, value in sums.items() if name not in ("stop", "requeue")}


@contextlib.contextmanager
def stop_on_signal() -> Iterator[Stop]:
    """SIGINT (Ctrl-C), SIGTERM and SIGUSR1 end the run after the present step, with a checkpoint; a second Ctrl-C at
    once.

    SIGUSR1 is Slurm's notice that the job's time is nearly over, so it is queued again. After SIGTERM it is not: Slurm
    itself requeues what it preempts, and a cancelled job must not come back.
    """
    stop = Stop()

    def request(number: int, frame: object) -> None:
        if number == signal.SIGINT:
            if stop.got_interrupt:
                raise KeyboardInterrupt
            stop.got_interrupt = True
            log.warning("stopping after this step, with a checkpoint; press Ctrl-C again to stop at once")
        stop.got_signal = True
        stop.got_notice = stop.got_notice or number == signal.SIGUSR1

    before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
