"""The same work as Slurm jobs. sortk does not schedule; Slurm does.

`sortk run --cluster slurm` submits a job for each stage, every one after the one before it, and returns. The job of a
stage is the same `sortk stage N` as anywhere, so its folders, locks, markers and resuming are those of a local run:

    training     the job starts torchrun on each of its nodes
    all others   the job is one process; whenever the stage hands out items (records.RunJobs), it submits them as an
                 array of shards through submitit, waits for them, and combines their results

So a small job waits for large ones. It has to, for only a running stage knows its items: those of stage 1 depend on
what its own first array found. That job may be killed, too: it is requeued, and takes over the shards that run.

A shard is done when its file of results is there. Whether it still may come, the queue tells; nothing else is asked
of Slurm, not even accounting. A shard that has left the queue without results (killed, cancelled, its node lost) is
submitted again, a set number of times.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import itertools
import json
import logging
import os
import pickle
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sortk.cluster import name_work
from sortk.folders import Folder
from sortk.formats.files import ROOT_VARIABLE, atomic_path, atomic_text

log = logging.getLogger(__name__)

Span = tuple[int, int]
"""The items of a shard: number of the first, and of the first that is no longer in it."""

LONGEST_PAUSE_SECONDS = 10.0  # between two looks at the queue
LATE_FILE_SECONDS = 5.0  # by which a file may show up here after its job has ended there: network disks
QUEUE_PATIENCE_SECONDS = 600.0  # for which a controller may be out of reach
NOTICE_SECONDS = 180  # before its time is over, training is told to save a checkpoint
FIRST_PORT, N_PORTS = 20000, 20000  # where the processes of a training meet; each job has a port of its own


@dataclass(frozen=True)
class JobOptions:
    """What the jobs of a stage ask of Slurm. What is not set is left to the cluster's own defaults."""

    partition: str | None = None
    account: str | None = None
    hours: float | None = None  # after which Slurm ends a job; training is requeued and goes on
    memory_gb: float | None = None  # on each node
    cpus: int | None = None  # of each process
    gpus: int | None = None  # on each node; training starts a process for each
    nodes: int | None = None  # of training; all other jobs have one
    processes: int | None = None  # of training, on each node without GPUs
    sbatch: tuple[str, ...] | None = None  # further lines: "--constraint=a100"

    def __post_init__(self) -> None:
        for name in ("hours", "memory_gb", "cpus", "nodes", "processes"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be more than 0, not {value}")
        for line in self.sbatch or ():
            if not line.startswith("--"):
                raise ValueError(f"sbatch: {line!r} is no option of sbatch; write --name or --name=value")

    @property
    def processes_per_node(self) -> int:
        return self.gpus or self.processes or 1

    def flags(self) -> dict[str, str | bool]:
        """As options of sbatch, without those of training."""
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

    retries: int = 2  # of a shard that was lost, or failed for no fault of its input
    prepare: JobOptions = field(default_factory=JobOptions)
    simulate: JobOptions = field(default_factory=JobOptions)
    clean: JobOptions = field(default_factory=JobOptions)
    timestamps: JobOptions = field(default_factory=JobOptions)
    sst: JobOptions = field(default_factory=JobOptions)
    train_diar: JobOptions = field(default_factory=JobOptions)
    train_asr: JobOptions = field(default_factory=JobOptions)
    tune: JobOptions = field(default_factory=JobOptions)
    score: JobOptions = field(default_factory=JobOptions)

    def of_stage(self, name: str) -> JobOptions:
        """What the stage's table says, and for the rest what all jobs ask for."""
        own: JobOptions = getattr(self, name.replace("-", "_"))
        chosen = {option.name: getattr(own, option.name) for option in fields(JobOptions)}
        return JobOptions(**{name: getattr(self, name) if value is None else value for name, value in chosen.items()})


# ---------------------------------------------------------------------------------------------------------------------
# Slurm's own commands


def check_slurm() -> None:
    """ValueError unless jobs can be submitted from here."""
    missing = [name for name in ("sbatch", "squeue", "scancel", "scontrol") if not shutil.which(name)]
    if missing:
        raise ValueError(
            f"--cluster slurm: there is no Slurm on this machine (no command {missing[0]}); "
            "run this where jobs are submitted, or use --cluster local"
        )
    if find_spec("submitit") is None:
        raise ValueError("--cluster slurm needs submitit: pip install 'sortk[cluster]'")


@dataclass(frozen=True)
class QueuedJob:
    """A line of the queue."""

    job_id: str  # 12, or 12_3 of an array
    state: str  # PENDING, RUNNING, ...
    folder: str  # that it works for

    @property
    def is_pending(self) -> bool:
        return self.state in ("PENDING", "CONFIGURING", "REQUEUED")


def read_queue() -> dict[str, QueuedJob]:
    """This user's jobs by their number; the tasks of an array one by one."""
    lines = _call("squeue", "--array", "--noheader", f"--user={getpass.getuser()}", "--format=%i|%T|%k").splitlines()
    jobs = [QueuedJob(*line.split("|", 2)) for line in lines if line.count("|") >= 2]
    return {job.job_id: job for job in jobs}


def cancel(job_ids: Collection[str]) -> None:
    """Those that have ended in the meantime do not matter."""
    if job_ids:
        with contextlib.suppress(OSError):
            _call("scancel", *sorted(job_ids))


def was_requeued() -> bool:
    """Whether this process belongs to a job that Slurm has started before."""
    return int(os.environ.get("SLURM_RESTART_COUNT", "0")) > 0


def _call(*command: str) -> str:
    """The output of one of Slurm's commands; OSError with its own message."""
    with _outside_of_jobs():
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise OSError(_own_message(finished.stderr) or f"{command[0]} failed with exit code {finished.returncode}")
    return finished.stdout


def _own_message(text: str) -> str:
    """What Slurm says, in one line: 'sbatch: error: invalid partition specified: x; sbatch: error: ...'."""
    lines = [line.strip() for line in text.splitlines() if "error" in line.lower() or "invalid" in line.lower()]
    return "; ".join(lines) or text.strip().replace("\n", "; ")


@contextlib.contextmanager
def _outside_of_jobs() -> Iterator[None]:
    """A job that submits jobs must not hand on what Slurm has told it about itself."""
    hidden = re.compile(r"(SLURM|SLURMD|SRUN|SBATCH|SUBMITIT)_(?!CONF$)")
    kept = {name: os.environ.pop(name) for name in list(os.environ) if hidden.match(name)}
    try:
        yield
    finally:
        os.environ.update(kept)


# ---------------------------------------------------------------------------------------------------------------------
# Arrays of shards


@dataclass(frozen=True)
class Call:
    """Every file of one call of RunJobs, in a folder of its own.

    A rerun finds it by what is to be done: the same work on the same items. It may cut what is missing otherwise, so
    a shard goes by the items in it.
    """

    folder: Path

    @property
    def title(self) -> str:
        """What is done, for people."""
        return self.folder.name.rpartition("-")[0].replace("-", " ")

    @property
    def content(self) -> Path:
        return self.folder / "call.pickle"

    @property
    def logs(self) -> Path:
        return self.folder / "submitit"

    def results(self, span: Span) -> Path:
        return self.folder / f"{span[0]:08d}-{span[1]:08d}.results"

    def fault(self, span: Span) -> Path:
        """What is wrong with the input of a shard, for people; doing it again would not help."""
        return self.folder / f"{span[0]:08d}-{span[1]:08d}.fault"

    def submission(self, span: Span) -> Path:
        """Which job does a shard."""
        return self.folder / f"{span[0]:08d}-{span[1]:08d}.json"

    def spans(self, suffix: str) -> list[Span]:
        """Shards that have a file of this kind."""
        names = (path.stem.split("-") for path in self.folder.glob(f"*-*{suffix}"))
        return sorted((int(start), int(stop)) for start, stop in names)


@dataclass(frozen=True)
class Submission:
    """A shard in the queue."""

    job_id: str
    attempts: int

    def log_of(self, call: Call) -> Path:
        return call.logs / f"{self.job_id}_0_log.err"


@dataclass(frozen=True)
class Shard:
    """What a task of an array does: some of the items of a call."""

    call: Call
    span: Span
    root: str | None  # what files name each other relative to; see formats.files

    def __call__(self) -> None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        if self.root:
            os.environ[ROOT_VARIABLE] = self.root
        work, items = pickle.loads(self.call.content.read_bytes())
        try:
            results = [work(item) for item in items[slice(*self.span)]]
        except ValueError as error:
            with atomic_text(self.call.fault(self.span)) as file:
                file.write(str(error))
            raise
        with atomic_path(self.call.results(self.span)) as path:
            path.write_bytes(pickle.dumps(results))

    def checkpoint(self) -> Any:
        """Its time is over: the same again, in a new job; items whose files are there are done at once."""
        from submitit.helpers import DelayedSubmission  # noqa: PLC0415 - an extra

        return DelayedSubmission(self)


class SlurmArrays:
    """RunJobs by arrays of up to `n_jobs` shards, which keep their state in the folder until it is done."""

    def __init__(self, n_jobs: int, folder: Folder, options: JobOptions, retries: int, title: str) -> None:
        check_slurm()
        self.n_jobs, self.folder, self.options, self.retries, self.title = n_jobs, folder, options, retries, title

    def __call__(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        if not items:
            return
        call = self._open(work, items)
        self._finish(call, len(items))
        for span in call.spans(".results"):
            yield from pickle.loads(call.results(span).read_bytes())

    def _open(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Call:
        content = pickle.dumps((work, items))
        name = name_work(work).replace(" ", "-")
        call = Call(self.folder.jobs.absolute() / f"{name}-{hashlib.sha256(content).hexdigest()[:12]}")
        call.folder.mkdir(parents=True, exist_ok=True)
        with atomic_path(call.content) as path:
            path.write_bytes(content)
        for span in call.spans(".fault"):  # of an earlier run; its input may have been mended
            call.fault(span).unlink()
        return call

    def _finish(self, call: Call, n_items: int) -> None:
        """Until every item has a result."""
        submitted = self._take_over(call)
        size = -(-n_items // self.n_jobs)
        new = cut_missing([*call.spans(".results"), *submitted], n_items, size)
        watch = _Watch(self.title, call)
        try:
            submitted |= self._submit(call, dict.fromkeys(new, 0))
            while submitted:
                watch.pause()
                queue = watch.look()
                self._check_faults(call, submitted)
                # The queue was read first: who is not in it any more has written its results before.
                submitted = {span: job for span, job in submitted.items() if not call.results(span).exists()}
                watch.tell(submitted.values(), queue)
                submitted |= self._submit_again(call, watch.find_lost(submitted, queue))
        except Exception:
            cancel([job.job_id for job in submitted.values()])
            raise

    def _take_over(self, call: Call) -> dict[Span, Submission]:
        """Shards that an earlier process has submitted, and that may still end well."""
        missing = [span for span in call.spans(".json") if not call.results(span).exists()]
        if not missing:
            return {}
        queue = read_queue()
        found = {span: _read_submission(call, span) for span in missing}
        found = {span: job for span, job in found.items() if job.job_id in queue}
        log.info("%s: %d shards are in the queue already", self.title, len(found))
        return found

    def _submit_again(self, call: Call, lost: Mapping[Span, Submission]) -> dict[Span, Submission]:
        for span, job in lost.items():
            what = f"{self.title}: items {span[0]} to {span[1] - 1} ({call.title})"
            if job.attempts > self.retries:
                raise OSError(
                    f"{what} failed {job.attempts} times, at last as job {job.job_id}, whose log is "
                    f"{job.log_of(call)}; finished shards are kept: run the same command again to do the others"
                )
            log.warning("%s were lost with job %s; trying again", what, job.job_id)
        return self._submit(call, {span: job.attempts for span, job in lost.items()})

    def _check_faults(self, call: Call, submitted: Mapping[Span, Submission]) -> None:
        for span, job in submitted.items():
            if call.fault(span).exists():
                reason = call.fault(span).read_text(encoding="utf-8")
                raise ValueError(f"{reason} (items {span[0]} to {span[1] - 1}, log {job.log_of(call)})")

    def _submit(self, call: Call, attempts: Mapping[Span, int]) -> dict[Span, Submission]:
        """These shards, each after so many attempts, as one array."""
        if not attempts:
            return {}
        from submitit import SlurmExecutor  # noqa: PLC0415 - an extra
        from submitit.core.utils import FailedJobError, FailedSubmissionError  # noqa: PLC0415

        flags = self.options.flags()
        minutes = flags.pop("time", None)
        with _outside_of_jobs():
            executor = SlurmExecutor(call.logs, python=shlex.quote(sys.executable))
            executor.update_parameters(
                job_name=f"sortk-{call.title.replace(' ', '-')}",
                time=None if minutes is None else int(minutes),
                comment=str(self.folder.final.absolute()),
                array_parallelism=self.n_jobs,
                additional_parameters=flags | {"requeue": True},
            )
            shards = [Shard(call, span, os.environ.get(ROOT_VARIABLE)) for span in attempts]
            try:
                with executor.batch():
                    jobs = [executor.submit(shard) for shard in shards]
            except (FailedJobError, FailedSubmissionError) as error:
                raise OSError(f"{self.title}: {_own_message(str(error))}") from None
        found = {
            span: Submission(job.job_id, before + 1) for (span, before), job in zip(attempts.items(), jobs, strict=True)
        }
        for span, submission in found.items():
            with atomic_text(call.submission(span)) as file:
                json.dump({"job_id": submission.job_id, "attempts": submission.attempts}, file)
        return found


def cut_missing(taken: Collection[Span], n_items: int, size: int) -> list[Span]:
    """The items in no span, as spans of at most `size`."""
    edges = [(0, 0), *sorted(taken), (n_items, n_items)]
    gaps = [(before[1], after[0]) for before, after in itertools.pairwise(edges)]
    return [(start, min(start + size, stop)) for begin, stop in gaps for start in range(begin, stop, size)]


def _read_submission(call: Call, span: Span) -> Submission:
    return Submission(**json.loads(call.submission(span).read_text(encoding="utf-8")))


class _Watch:
    """Looks at the queue now and then, and tells how a call stands."""

    def __init__(self, title: str, call: Call) -> None:
        self._title, self._call = title, call
        self._pause = 0.25
        self._reached = time.monotonic()  # the controller
        self._missed: dict[str, float] = {}  # job -> since when it has been neither in the queue nor done
        self._told = ""

    def pause(self) -> None:
        time.sleep(self._pause)
        self._pause = min(1.2 * self._pause, LONGEST_PAUSE_SECONDS)

    def look(self) -> Mapping[str, QueuedJob] | None:
        """The queue; None if the controller cannot be reached just now."""
        try:
            queue = read_queue()
        except OSError as error:
            if time.monotonic() - self._reached > QUEUE_PATIENCE_SECONDS:
                raise
            log.debug("%s", error)
            return None
        self._reached = time.monotonic()
        return queue

    def find_lost(
        self, submitted: Mapping[Span, Submission], queue: Mapping[str, QueuedJob] | None
    ) -> dict[Span, Submission]:
        """Shards that have left the queue for good; a job whose file may only be late gets a moment."""
        if queue is None:
            return {}
        now = time.monotonic()
        gone = {span: job for span, job in submitted.items() if job.job_id not in queue}
        self._missed = {job.job_id: self._missed.get(job.job_id, now) for job in gone.values()}
        return {span: job for span, job in gone.items() if now - self._missed[job.job_id] >= LATE_FILE_SECONDS}

    def tell(self, submitted: Collection[Submission], queue: Mapping[str, QueuedJob] | None) -> None:
        if queue is None:
            return
        n_running = sum(job.job_id in queue and not queue[job.job_id].is_pending for job in submitted)
        n_done = len(self._call.spans(".results"))
        text = f"{len(submitted) - n_running} pending, {n_running} running, {n_done} done"
        if text != self._told:
            log.info("%s: %s: %s", self._title, self._call.title, text)
            self._told = text


# ---------------------------------------------------------------------------------------------------------------------
# Jobs of whole stages


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
    """Submits each stage to run after the one before it. All of them, or none."""
    check_slurm()
    if waiting := find_jobs([stage.folder for stage in stages]):
        about = f"job {waiting[0].job_id} works for {waiting[0].folder}"
        raise ValueError(f"{about} already; wait for it (sortk status), or cancel it (scancel {waiting[0].job_id})")
    submitted: list[str] = []
    for stage in stages:
        with atomic_text(stage.script) as file:
            file.write(write_script(stage))
        after = [f"--dependency=afterok:{submitted[-1]}", "--kill-on-invalid-dep=yes"] if submitted else []
        try:
            submitted.append(_call("sbatch", "--parsable", *after, str(stage.script)).strip().partition(";")[0])
        except OSError as error:
            cancel(submitted)
            raise OSError(f"{stage.title}: {error}") from None
        log.info("%s: job %s, log %s", stage.title, submitted[-1], stage.log)


def write_script(stage: StageJob) -> str:
    """What sbatch is given; it can be submitted by hand, too."""
    flags = stage.options.flags() | {
        "job-name": f"sortk-{stage.folder.final.name}",
        "comment": str(stage.folder.final.absolute()),
        "output": str(stage.log),
        "open-mode": "append",
        "requeue": True,
    }
    lines = _training_lines(stage) if stage.trains else _driving_lines(stage)
    flags |= _training_flags(stage) if stage.trains else {"signal": f"B:USR1@{NOTICE_SECONDS}"}
    if not stage.trains:
        flags.pop("gpus-per-node", None)  # for the shards
    shown = (
        f"#SBATCH --{name}" if value is True else f"#SBATCH --{name}={shlex.quote(str(value))}"
        for name, value in sorted(flags.items())
    )
    return "\n".join(["#!/bin/bash", f"# {stage.title}", *shown, "", *lines, ""])


def _driving_lines(stage: StageJob) -> list[str]:
    return [
        "# Its time is nearly over, perhaps because its shards had to wait: it goes on in a new job.",
        """trap 'kill "$driver"; wait "$driver"; scontrol requeue "$SLURM_JOB_ID"' USR1""",
        f"{shlex.join(stage.command)} &",
        "driver=$!",
        'wait "$driver"',
    ]


def _training_flags(stage: StageJob) -> dict[str, str | bool]:
    return {
        "nodes": str(stage.options.nodes or 1),
        "ntasks-per-node": "1",
        "cpus-per-task": str((stage.options.cpus or 1) * stage.options.processes_per_node),
        "signal": f"USR1@{NOTICE_SECONDS}",
    }


def _training_lines(stage: StageJob) -> list[str]:
    python, module, *arguments = stage.command[0], *stage.command[2:]
    return [
        "# The processes meet on the first node, at a port that no other job has.",
        'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        "export MASTER_ADDR=$(scontrol show node \"$first\" | sed -n 's/.*NodeAddr=\\([^ ]*\\).*/\\1/p')",
        f"export MASTER_PORT=$(({FIRST_PORT} + SLURM_JOB_ID % {N_PORTS}))",
        "# torchrun would die of the signal that tells its processes to save a checkpoint.",
        'srun --kill-on-bad-exit=1 bash -c \'trap "" USR1; exec "$0" -m torch.distributed.run'
        ' --nnodes="$SLURM_NNODES" --node-rank="$SLURM_NODEID" --master-addr="$MASTER_ADDR"'
        f' --master-port="$MASTER_PORT" --nproc-per-node={stage.options.processes_per_node} -m "$@"\' \\',
        f"  {shlex.join([python, module, *arguments])}",
    ]


def find_reason(stage: StageJob) -> str:
    """Why the stage is not done, as far as its log tells: sortk's own sentence, or else the last line."""
    try:
        lines = stage.log.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return "it was never started"
    own = [line.removeprefix("sortk: ") for line in lines if line.startswith("sortk: ")]
    return (own or [line for line in lines if line.strip()] or ["it said nothing"])[-1]


def find_jobs(folders: Collection[Folder]) -> list[QueuedJob]:
    """The queue's jobs that work for these folders."""
    names = {str(folder.final.absolute()) for folder in folders}
    return [job for job in read_queue().values() if job.folder in names]


def glance_at_jobs(folders: Collection[Folder]) -> list[QueuedJob]:
    """As `find_jobs`; none where no Slurm answers."""
    try:
        return find_jobs(folders) if shutil.which("squeue") else []
    except OSError as error:
        log.warning("the queue cannot be read: %s", error)
        return []


def describe_jobs(jobs: Collection[QueuedJob], folder: Folder) -> str:
    """pending, running, done, failed: jobs in the queue, and shards by the files that they have left."""
    n_pending = sum(job.is_pending for job in jobs)
    calls = [Call(path) for path in folder.jobs.glob("*/")]
    n_done = sum(len(call.spans(".results")) for call in calls)
    n_failed = sum(_read_submission(call, span).attempts - 1 for call in calls for span in call.spans(".json"))
    return f"{n_pending} pending, {len(jobs) - n_pending} running, {n_done} done, {n_failed} failed"
