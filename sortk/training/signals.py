"""How a training is asked to stop, by whoever runs it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass


class TrainingStopped(KeyboardInterrupt):
    """Somebody asked the run to stop; its checkpoint is written."""

    def __init__(self, step: int, is_to_go_on: bool) -> None:
        super().__init__(f"stopped by a signal at step {step}; run the same command again to go on")
        self.is_to_go_on = is_to_go_on  # in a new job


@dataclass
class Stop:
    """A signal may reach one process only, at any time; all stop after the same step."""

    got_signal: bool = False  # this process
    got_notice: bool = False  # it was SIGUSR1
    requested: bool = False  # all processes agree
    is_to_go_on: bool = False  # in a new job

    def as_numbers(self) -> dict[str, float]:
        return {"stop": float(self.got_signal), "go_on": float(self.got_notice)}

    def agree(self, sums: dict[str, float]) -> dict[str, float]:
        """What came of `as_numbers` in all processes; the other numbers."""
        self.requested, self.is_to_go_on = sums["stop"] > 0, sums["go_on"] > 0
        return {name: value for name, value in sums.items() if name not in ("stop", "go_on")}


@contextlib.contextmanager
def stop_on_signal() -> Iterator[Stop]:
    """SIGTERM and SIGUSR1 end the run after the present step, with a checkpoint.

    SIGUSR1 is Slurm's notice that the job's time is nearly over, so it wants to be queued again. SIGTERM is left to
    whom it comes from: Slurm requeues by itself what it preempts, and what is cancelled shall not come back.
    """
    stop = Stop()

    def request(number: int, frame: object) -> None:
        stop.got_signal = True
        stop.got_notice = stop.got_notice or number == signal.SIGUSR1

    before = {number: signal.signal(number, request) for number in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
