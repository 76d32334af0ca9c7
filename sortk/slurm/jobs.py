"""Stages as jobs, each after the one before it: their scripts, and their state."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from sortk.formats.files import atomic_text, own_path, quote
from sortk.run.folders import Folder
from sortk.slurm.arrays import Call
from sortk.slurm.options import JobOptions
from sortk.slurm.queue import QueuedJob, ask_slurm, cancel, check_slurm, find_jobs, read_queue

log = logging.getLogger(__name__)

NOTICE_SECONDS = 180  # a job gets a signal so long before its time is over
FIRST_PORT, N_PORTS = 20000, 20000  # where the processes of a training meet; each job has a port of its own


@dataclass(frozen=True)
class StageJob:
    """A stage that is to be a job."""

    title: str
    folder: Folder
    command: Sequence[str]  # sortk stage N ..., as on any machine
    options: JobOptions
    trains: bool

    @property
    def log(self) -> Path:
        return self.folder.final.absolute().parent / "slurm" / f"{self.folder.final.name}.log"

    @property
    def script(self) -> Path:
        return self.log.with_suffix(".sbatch")


def submit_stages(stages: Sequence[StageJob]) -> None:
    """Submit each stage to run after the one before it: all of them, or none."""
    check_slurm()
    if waiting := find_jobs(read_queue(), [stage.folder for stage in stages]):
        about = f"job {waiting[0].job_id} works for {waiting[0].folder}"
        raise ValueError(f"{about} already; wait for it (sortk status), or cancel it (scancel {waiting[0].job_id})")
    submitted: list[str] = []
    for stage in stages:
        with atomic_text(own_path(stage.script)) as file:
            file.write(write_script(stage))
        stage.script.chmod(0o700)  # a setting that was given by --set may be a password
        stage.log.unlink(missing_ok=True)  # a log is about one submission, however often Slurm starts it
        after = [f"--dependency=afterok:{submitted[-1]}", "--kill-on-invalid-dep=yes"] if submitted else []
        try:
            submitted.append(ask_slurm("sbatch", "--parsable", *after, str(stage.script)).strip().partition(";")[0])
        except OSError as error:
            cancel(submitted)
            raise OSError(f"{stage.title}: {error}") from None
        log.info("%s: job %s, log %s", stage.title, submitted[-1], stage.log)


def write_script(stage: StageJob) -> str:
    """Return the script for sbatch; it can also be submitted by hand."""
    options = stage.options
    flags: dict[str, str | bool] = {
        "job-name": f"sortk-{stage.folder.final.name}",
        "comment": str(stage.folder.final.absolute()),
        "output": str(stage.log).replace("%", "%%"),  # %j would be the number of the job
        "open-mode": "append",
        "requeue": True,
    }
    flags |= options.flags()
    if stage.trains:
        flags |= {
            "nodes": str(options.nodes or 1),
            "ntasks-per-node": "1",
            "cpus-per-task": str((options.cpus or 1) * options.processes_per_node),
            "signal": f"USR1@{NOTICE_SECONDS}",
        }
        python, module, *arguments = stage.command[0], *stage.command[2:]
        lines = [
            "# The processes meet on the first node, at a port that no other job has.",
            'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            "export MASTER_ADDR=$(scontrol show node \"$first\" | sed -n 's/.*NodeAddr=\\([^ ]*\\).*/\\1/p')",
            f"export MASTER_PORT=$(({FIRST_PORT} + SLURM_JOB_ID % {N_PORTS}))",
            "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK  # which srun no longer takes over by itself",
            "# These cores are its own: it need not measure how busy they are, and the result is always the same.",
            f"export OMP_NUM_THREADS=${{OMP_NUM_THREADS:-{options.cpus or 1}}}",
            "# torchrun would die of the signal on which its processes save a checkpoint.",
            'srun --kill-on-bad-exit=1 bash -c \'trap "" USR1; exec "$0" -m torch.distributed.run'
            ' --nnodes="$SLURM_NNODES" --node-rank="$SLURM_NODEID" --master-addr="$MASTER_ADDR"'
            f' --master-port="$MASTER_PORT" --nproc-per-node={options.processes_per_node} -m "$@"\' \\',
            f"  {shlex.join([python, module, *arguments])}",
        ]
    else:
        flags.pop("gpus-per-node", None)  # they are for the shards
        flags["signal"] = f"B:USR1@{NOTICE_SECONDS}"
        lines = [
            "# Its time is nearly over, perhaps because its shards had to wait: it continues in a new job.",
            """trap 'kill "$driver"; wait "$driver"; scontrol requeue "$SLURM_JOB_ID"' USR1""",
            f"{shlex.join(stage.command)} &",
            "driver=$!",
            'wait "$driver"',
        ]
    shown = [
        f"#SBATCH --{name}" if value is True else f"#SBATCH --{name}={shlex.quote(str(value))}"
        for name, value in sorted(flags.items())
    ]
    for line in shown:
        if "\n" in line or "\r" in line:  # what comes after it would be a command
            raise ValueError(f"{stage.title}: {quote(line)} holds a line break, which no option of sbatch can have")
    safe_path = "export PYTHONSAFEPATH=1  # no modules from the folder in which it was submitted"
    return "\n".join(["#!/bin/bash", f"# {stage.title}", *shown, "", safe_path, *lines, ""])


def find_reason(stage: StageJob) -> str:
    """Return why the stage is not done, from its log: sortk's own sentence, or else the last line."""
    try:
        lines = stage.log.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return "it was never started"
    own = [line.removeprefix("sortk: ") for line in lines if line.startswith("sortk: ")]
    return (own or [line for line in lines if line.strip()] or ["it said nothing"])[-1]


def describe_jobs(jobs: Collection[QueuedJob], folder: Folder) -> str:
    """Count what is pending, running, done and failed: jobs in the queue, and shards by their files."""
    n_pending = sum(job.is_pending for job in jobs)
    calls = [Call(path) for path in folder.jobs.glob("*/")]
    n_done = sum(len(call.spans(".results")) for call in calls)
    n_failed = sum(call.n_failed for call in calls)
    return f"{n_pending} pending, {len(jobs) - n_pending} running, {n_done} done, {n_failed} failed"
