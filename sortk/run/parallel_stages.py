"""Stages of several experiments side by side: each in a process of its own, one for each slot.

A small model trains on one core nearly as fast as on two, so two trainings side by side take little more time than one.
A slot has cores or a GPU. Stages skip what is done, as always, and one that was stopped is resumed.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from sortk.run.experiment import Experiment
from sortk.run.stage import Stage
from sortk.run.workers import count_cores

log = logging.getLogger(__name__)

CHILD = """
import sys
from sortk.run.workers import die_with
die_with(int(sys.argv[1]))
from sortk.cli import main
main(sys.argv[2:], prog_name="sortk")
"""
"""The program of a child process: a sortk command that ends with its parent. As text, because cli imports run."""

SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_BETWEEN_LOG_LINES = 60.0

Environment = Mapping[str, str]
"""Environment variables of a slot's processes, beside our own."""


@dataclass(frozen=True)
class Step:
    """A stage of an experiment that is to be run."""

    experiment: Experiment
    stage: Stage

    @property
    def folder(self) -> Path:
        return self.experiment.folder(self.stage).final

    @property
    def is_stale(self) -> bool:
        return self.experiment.status(self.stage).state == "stale"

    @property
    def inputs(self) -> set[Path]:
        return {self.experiment.folder(needed).final for needed in self.experiment.inputs(self.stage)}

    @property
    def title(self) -> str:
        return f"{self.experiment.variant or self.experiment.recipe.name}: {self.stage.title}"


def find_slots(n_jobs: int, gpus: Sequence[str]) -> list[Environment]:
    """Return at most `n_jobs` slots: one for each GPU, or without any, slots that share the cores."""
    if gpus:
        return [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in gpus[:n_jobs]]
    n_cores = count_cores()
    n_slots = min(n_jobs, n_cores)
    return [{"OMP_NUM_THREADS": str(n_cores // n_slots)}] * n_slots


def find_gpus() -> list[str]:
    """Return the GPUs that may be used, as CUDA_VISIBLE_DEVICES names them."""
    import torch  # noqa: PLC0415 - slow to import, and needed only here

    n_gpus = torch.cuda.device_count()
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(n_gpus)))
    return allowed.split(",")[:n_gpus]


def list_steps(experiments: Sequence[Experiment]) -> list[Step]:
    """Return the stages that are not done, each folder once: early stages first, then in the order of experiments."""
    steps: dict[Path, Step] = {}
    for experiment in experiments:
        for stage in experiment.stages:
            if experiment.status(stage).state != "done":
                step = Step(experiment, stage)
                steps.setdefault(step.folder, step)
    return sorted(steps.values(), key=lambda step: step.stage.number)


def run_side_by_side(
    steps: Sequence[Step], slots: Sequence[Environment], command: Callable[[Step], Sequence[str]]
) -> None:
    """Run all steps, each as soon as its inputs exist and a slot is free; `command` returns the arguments of sortk.

    If one fails (ValueError), or at Ctrl-C, the others are asked to stop.
    """
    waiting, running = list(steps), dict[int, _Running]()
    last_line = time.monotonic()
    try:
        while waiting or running:
            for slot in range(len(slots)):
                if slot in running:
                    continue
                unfinished = {step.folder for step in waiting} | {one.step.folder for one in running.values()}
                step = next((step for step in waiting if not step.inputs & unfinished), None)
                if step is not None:
                    waiting.remove(step)
                    running[slot] = _start(step, command(step), slots[slot])
            time.sleep(SECONDS_BETWEEN_LOOKS)
            for slot, one in list(running.items()):
                if one.process.poll() is not None:
                    del running[slot]
                    _finish(one, len(waiting) + len(running))
            if time.monotonic() - last_line > SECONDS_BETWEEN_LOG_LINES:
                last_line = time.monotonic()
                for one in running.values():
                    log.info("%s: %s", one.step.title, one.last_log_line())
    finally:  # no process stays; a training that is asked to end saves a checkpoint first
        for one in running.values():
            one.process.terminate()
        for one in running.values():
            one.process.wait()
            one.messages.close()


@dataclass(frozen=True)
class _Running:
    step: Step
    process: subprocess.Popen[bytes]
    messages: IO[bytes]  # its standard error: warnings and errors only, because it runs with --quiet
    began: float

    def last_message(self) -> str:
        self.messages.seek(0)
        lines = self.messages.read().decode(errors="replace").split("\n")
        spoken = [line.removeprefix("sortk: ") for line in lines if line.strip()]
        return spoken[-1] if spoken else f"ended with exit code {self.process.returncode}"

    def last_log_line(self) -> str:
        path = self.step.experiment.folder(self.step.stage).partial / "log" / "stage.log"
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
        if not lines:
            return "starting"
        return lines[-1].split(" ", 3)[-1].removeprefix(f"{self.step.stage.title}: ")  # after date, time and level


def _start(step: Step, command: Sequence[str], slot: Environment) -> _Running:
    log.info("%s: running, output in %s", step.title, step.folder)
    messages = TemporaryFile()  # noqa: SIM115 - closed when the process has ended
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", CHILD, str(os.getpid()), *command, "--quiet"],
        env={**os.environ, **slot},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=messages,
        start_new_session=True,  # Ctrl-C reaches only this process, which ends them
    )
    return _Running(step, process, messages, time.monotonic())


def _finish(one: _Running, n_left: int) -> None:
    with one.messages:
        if one.process.returncode != 0:
            raise ValueError(f"{one.step.title} failed: {one.last_message()}")
    log.info("%s: done in %.1f s; %d stages to go", one.step.title, time.monotonic() - one.began, n_left)
