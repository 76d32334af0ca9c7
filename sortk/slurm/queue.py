"""Slurm's own commands: what is in the queue, what leaves it, what goes back into it."""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
import re
import shutil
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from sortk.run.folders import Folder

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 600.0  # for which a controller may be out of reach
PAUSE_SECONDS = 10.0  # before it is asked again


@dataclass(frozen=True)
class QueuedJob:
    """A line of the queue."""

    job_id: str  # 12, or 12_3 of an array
    state: str  # PENDING, RUNNING, ...
    folder: str  # that it works for

    @property
    def is_pending(self) -> bool:
        return self.state in ("PENDING", "CONFIGURING", "REQUEUED")


Queue = Mapping[str, QueuedJob]
"""Jobs by their number; the tasks of an array one by one."""


def check_slurm() -> None:
    """Raise ValueError unless jobs can be submitted from here."""
    missing = [name for name in ("sbatch", "squeue", "scancel", "scontrol") if not shutil.which(name)]
    if missing:
        raise ValueError(
            f"--cluster slurm: there is no Slurm on this machine (no command {missing[0]}); "
            "run this where jobs are submitted, or use --cluster local"
        )
    if find_spec("submitit") is None:
        raise ValueError("--cluster slurm needs submitit: pip install 'sortk[cluster]'")


def read_queue() -> Queue:
    """Return the jobs of this user."""
    lines = ask_slurm("squeue", "--array", "--noheader", f"--user={getpass.getuser()}", "--format=%i|%T|%k")
    jobs = [QueuedJob(*line.split("|", 2)) for line in lines.splitlines() if line.count("|") >= 2]
    return {job.job_id: job for job in jobs}


def read_queue_patiently() -> Queue:
    """Read the queue, and try again for a while: the controller of a busy cluster does not always answer."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return read_queue()
        except OSError as error:
            if time.monotonic() > deadline:
                raise
            log.warning("the queue cannot be read, trying again: %s", error)
        time.sleep(PAUSE_SECONDS)


def glance_at_queue() -> Queue:
    """Read the queue; return an empty one where no Slurm answers."""
    try:
        return read_queue() if shutil.which("squeue") else {}
    except OSError as error:
        log.warning("the queue cannot be read: %s", error)
        return {}


def find_jobs(queue: Queue, folders: Collection[Folder]) -> list[QueuedJob]:
    """Return the jobs that work for these folders."""
    names = {str(folder.final.absolute()) for folder in folders}
    return [job for job in queue.values() if job.folder in names]


def cancel(job_ids: Collection[str]) -> None:
    """Cancel jobs; those that have ended in the meantime do not matter."""
    if job_ids:
        with contextlib.suppress(OSError):
            ask_slurm("scancel", *sorted(job_ids))


def requeue_this_job() -> None:
    """Requeue the job of this process, if it belongs to one: Slurm starts it again when its processes have ended."""
    if job_id := os.environ.get("SLURM_JOB_ID"):
        ask_slurm("scontrol", "requeue", job_id)


def was_requeued() -> bool:
    """Return whether this process belongs to a job that Slurm has started before."""
    return int(os.environ.get("SLURM_RESTART_COUNT", "0")) > 0


def ask_slurm(*command: str) -> str:
    """Return the output of one of Slurm's commands; raise OSError with its own message."""
    with outside_of_jobs():
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise OSError(own_message(finished.stderr) or f"{command[0]} failed with exit code {finished.returncode}")
    return finished.stdout


def own_message(text: str) -> str:
    """Return Slurm's message in one line: 'sbatch: error: invalid partition specified: x; sbatch: error: ...'."""
    lines = [line.strip() for line in text.splitlines() if "error" in line.lower() or "invalid" in line.lower()]
    return "; ".join(lines) or text.strip().replace("\n", "; ")


@contextlib.contextmanager
def outside_of_jobs() -> Iterator[None]:
    """Hide the variables that Slurm has set for this job: jobs that it submits must not inherit them."""
    hidden = re.compile(r"(SLURM|SLURMD|SRUN|SBATCH|SUBMITIT)_(?!CONF$)")
    kept = {name: os.environ.pop(name) for name in list(os.environ) if hidden.match(name)}
    try:
        yield
    finally:
        os.environ.update(kept)
