"""What the jobs of a recipe ask of Slurm: its [cluster] table."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from sortk.formats.files import quote

MOST = 10**9
"""The limit of all numbers that sbatch gets."""


@dataclass(frozen=True)
class JobOptions:
    """What the jobs of a stage ask of Slurm. What is not set is left to the cluster's own defaults."""

    partition: str | None = None
    account: str | None = None
    hours: float | None = None  # time limit of a job; training is requeued and resumed
    memory_gb: float | None = None  # per node
    cpus: int | None = None  # cores per process
    gpus: int | None = None  # per node; training starts one process per GPU
    nodes: int | None = None  # for training; all other jobs use one
    processes: int | None = None  # training processes per node, without GPUs
    sbatch: tuple[str, ...] | None = None  # further options: "--constraint=a100"

    def __post_init__(self) -> None:
        for name in ("hours", "memory_gb", "cpus", "nodes", "processes"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= MOST:
                raise ValueError(f"{name} must be more than 0 and at most {MOST}, got {quote(value)}")
        for text in (self.partition or "", self.account or "", *(self.sbatch or ())):
            if not text.isprintable():  # what comes after a line break would be a command of the job's script
                raise ValueError(f"{quote(text)} holds a line break or a control character")
        for line in self.sbatch or ():
            if not line.startswith("--"):
                raise ValueError(f"sbatch: {quote(line)} is not an option of sbatch; write --name or --name=value")

    @property
    def processes_per_node(self) -> int:
        return self.gpus or self.processes or 1

    def flags(self) -> dict[str, str | bool]:
        """Return the options of sbatch, without those of training."""
        given: dict[str, Any] = {
            "partition": self.partition,
            "account": self.account,
            "time": None if self.hours is None else max(1, round(60 * self.hours)),
            "mem": None if self.memory_gb is None else f"{round(1024 * self.memory_gb)}M",
            "cpus-per-task": self.cpus,
            "gpus-per-node": self.gpus or None,
        }
        found: dict[str, str | bool] = {name: str(value) for name, value in given.items() if value is not None}
        for line in self.sbatch or ():
            name, equals, value = line.removeprefix("--").partition("=")
            found[name] = value if equals else True
        return found


@dataclass(frozen=True)
class ClusterOptions(JobOptions):
    """The recipe's [cluster] table: what all jobs ask for, and, in a table by its name, what a stage's jobs ask for."""

    TABLES = "stages"

    retries: int = 2  # how often a shard that was lost is submitted again
    stages: dict[str, JobOptions] = field(default_factory=dict)  # what the jobs of one stage ask for

    def of_stage(self, name: str) -> JobOptions:
        """Return what the stage's table says, and for the rest what all jobs ask for."""
        own = self.stages.get(name.replace("-", "_"), JobOptions())
        chosen = {option.name: getattr(own, option.name) for option in fields(JobOptions)}
        return JobOptions(**{name: getattr(self, name) if value is None else value for name, value in chosen.items()})
