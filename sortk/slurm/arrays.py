"""RunJobs by arrays of Slurm: cuts items into shards, submits them, waits for them, and submits again what was lost."""

from __future__ import annotations

import hashlib
import importlib
import io
import itertools
import json
import logging
import os
import pickle
import shlex
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

from sortk.formats.files import ROOT_VARIABLE, atomic_path, atomic_text, quote
from sortk.records import name_work
from sortk.run.folders import Folder
from sortk.slurm.options import JobOptions
from sortk.slurm.queue import Queue, cancel, check_slurm, outside_of_jobs, own_message, read_queue, read_queue_patiently

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.25, 10.0  # between two looks at the queue
LATE_FILE_SECONDS = 5.0  # by which a file may show up here after its job has ended there: network disks

DATA_TYPES = frozenset(
    ["builtins.set", "builtins.frozenset", "builtins.complex", "builtins.bytearray", "builtins.range"]
    + [f"collections.{name}" for name in ("Counter", "OrderedDict", "deque")]
    + [f"pathlib{local}.{name}" for local in ("", "._local") for name in ("Path", "PosixPath", "PurePosixPath")]
    + ["array.array", "array._array_reconstructor"]
)
"""What results may be made of, beside dataclasses and named tuples of sortk's own, numbers, texts, lists and tables."""

ROOMS_OF_DATA = ("records", "spans", "formats.", "corpora.", "prepare.", "inference.", "scoring.")
"""Where sortk's own are from."""

NUMPY_PARTS = frozenset(
    [("numpy", "ndarray"), ("numpy", "dtype")]
    + [(f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")]
    + [(f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")]
)
"""What an array is made of in a pickle."""

ItemRange = tuple[int, int]
"""The items of a shard: number of the first, and of the first after it."""


class SlurmArrays:
    """RunJobs by arrays of up to `n_jobs` shards, which keep their state in the folder until it is done."""

    def __init__(self, n_jobs: int, folder: Folder, options: JobOptions, retries: int, title: str) -> None:
        check_slurm()
        self.n_jobs, self.folder, self.options, self.retries, self.title = n_jobs, folder, options, retries, title

    def __call__(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        if not items:
            return
        content = pickle.dumps((work, items))
        name = name_work(work).replace(" ", "-")
        call = Call(self.folder.jobs.absolute() / f"{name}-{hashlib.sha256(content).hexdigest()[:12]}")
        call.open(content)
        self._finish(call, len(items))
        yield from call.read_results()

    def _finish(self, call: Call, n_items: int) -> None:
        """Submit shards, and wait until every item has a result."""
        submitted = self._take_over(call)
        size = -(-n_items // self.n_jobs)
        new = cut_missing([*call.spans(".results"), *submitted], n_items, size)
        watch = _Watch(self.title, call)
        try:
            submitted |= self._submit(call, dict.fromkeys(new, 0))
            while submitted:
                watch.pause()
                queue = read_queue_patiently()
                for span, job in submitted.items():
                    if call.fault(span).exists():
                        reason = call.fault(span).read_text(encoding="utf-8")
                        raise ValueError(f"{reason} (items {span[0]} to {span[1] - 1}, log {call.log(job)})")
                # The queue was read first: who is not in it any more has written its results before.
                submitted = {span: job for span, job in submitted.items() if not call.results(span).exists()}
                watch.report(submitted.values(), queue)
                submitted |= self._submit_again(call, watch.find_lost(submitted, queue))
        except Exception:
            cancel([job.job_id for job in submitted.values()])
            raise

    def _take_over(self, call: Call) -> dict[ItemRange, Submission]:
        """Return the shards that an earlier process has submitted and that are still in the queue."""
        missing = [span for span in call.spans(".json") if not call.results(span).exists()]
        if not missing:
            return {}
        queue = read_queue()
        found = {span: call.read_submission(span) for span in missing}
        found = {span: job for span, job in found.items() if job.job_id in queue}
        log.info("%s: %d shards are in the queue already", self.title, len(found))
        return found

    def _submit_again(self, call: Call, lost: Mapping[ItemRange, Submission]) -> dict[ItemRange, Submission]:
        for span, job in lost.items():
            what = f"{self.title}: items {span[0]} to {span[1] - 1} ({call.title})"
            if job.attempts > self.retries:
                raise OSError(
                    f"{what} failed {job.attempts} times, at last as job {job.job_id}, whose log is "
                    f"{call.log(job)}; finished shards are kept: run the same command again to do the others"
                )
            log.warning("%s were lost with job %s; trying again", what, job.job_id)
        return self._submit(call, {span: job.attempts for span, job in lost.items()})

    def _submit(self, call: Call, attempts: Mapping[ItemRange, int]) -> dict[ItemRange, Submission]:
        """Submit these shards, each after so many attempts, as one array."""
        if not attempts:
            return {}
        from submitit import SlurmExecutor  # noqa: PLC0415 - an extra
        from submitit.core.utils import FailedJobError, FailedSubmissionError  # noqa: PLC0415

        flags = self.options.flags()
        minutes = flags.pop("time", None)
        with outside_of_jobs():
            executor = SlurmExecutor(call.logs, python=f"{shlex.quote(sys.executable)} -P")
            executor.update_parameters(
                job_name=f"sortk-{call.title.replace(' ', '-')}",
                time=None if minutes is None else int(minutes),
                comment=str(self.folder.final.absolute()),
                array_parallelism=self.n_jobs,
                additional_parameters=flags | {"requeue": True},
            )
            digest = hashlib.sha256(call.content.read_bytes()).hexdigest()
            shards = [Shard(call, digest, span, os.environ.get(ROOT_VARIABLE)) for span in attempts]
            try:
                with executor.batch():
                    jobs = [executor.submit(shard) for shard in shards]
            except (FailedJobError, FailedSubmissionError) as error:
                raise OSError(f"{self.title}: {own_message(str(error))}") from None
        found = {
            span: Submission(job.job_id, before + 1) for (span, before), job in zip(attempts.items(), jobs, strict=True)
        }
        for span, submission in found.items():
            call.write_submission(span, submission)
        return found


class _Watch:
    """Looks at a call now and then: longer and longer pauses, a line when something has changed, what was lost."""

    def __init__(self, title: str, call: Call) -> None:
        self._title, self._call = title, call
        self._pause = FIRST_PAUSE_SECONDS
        self._missed: dict[str, float] = {}  # job -> since when it has been neither in the queue nor done
        self._reported = ""

    def pause(self) -> None:
        time.sleep(self._pause)
        self._pause = min(1.2 * self._pause, LONGEST_PAUSE_SECONDS)

    def report(self, submitted: Collection[Submission], queue: Queue) -> None:
        n_running = sum(job.job_id in queue and not queue[job.job_id].is_pending for job in submitted)
        n_done = len(self._call.spans(".results"))
        text = f"{len(submitted) - n_running} pending, {n_running} running, {n_done} done"
        if text != self._reported:
            log.info("%s: %s: %s", self._title, self._call.title, text)
            self._reported = text

    def find_lost(self, submitted: Mapping[ItemRange, Submission], queue: Queue) -> dict[ItemRange, Submission]:
        """Return the shards that have left the queue without results; a file may be a few seconds late."""
        now = time.monotonic()
        gone = {span: job for span, job in submitted.items() if job.job_id not in queue}
        self._missed = {job.job_id: self._missed.get(job.job_id, now) for job in gone.values()}
        return {span: job for span, job in gone.items() if now - self._missed[job.job_id] >= LATE_FILE_SECONDS}


# ---------------------------------------------------------------------------------------------------------------------
# Shards, and all files that record their progress


@dataclass(frozen=True)
class Submission:
    """A shard in the queue."""

    job_id: str
    attempts: int


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

    def log(self, submission: Submission) -> Path:
        return self.logs / f"{submission.job_id}_0_log.err"

    def results(self, span: ItemRange) -> Path:
        return self.folder / f"{span[0]:08d}-{span[1]:08d}.results"

    def fault(self, span: ItemRange) -> Path:
        """What is wrong with the input of a shard, for people; doing it again would not help."""
        return self.folder / f"{span[0]:08d}-{span[1]:08d}.fault"

    def submission(self, span: ItemRange) -> Path:
        """Which job does a shard."""
        return self.folder / f"{span[0]:08d}-{span[1]:08d}.json"

    def spans(self, suffix: str) -> list[ItemRange]:
        """Return the shards that have a file of this kind."""
        names = (path.stem.split("-") for path in self.folder.glob(f"*-*{suffix}"))
        return sorted((int(start), int(stop)) for start, stop in names)

    def open(self, content: bytes) -> None:
        """Write the call, for the first time or again: what was wrong with the input may have been mended."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_path(self.content) as path:
            path.write_bytes(content)
        for span in self.spans(".fault"):
            self.fault(span).unlink()

    def write_submission(self, span: ItemRange, submission: Submission) -> None:
        with atomic_text(self.submission(span)) as file:
            json.dump(asdict(submission), file)

    def read_submission(self, span: ItemRange) -> Submission:
        return Submission(**json.loads(self.submission(span).read_text(encoding="utf-8")))

    def read_results(self) -> Iterator[Any]:
        """Yield the results of all shards, in the order of the items."""
        for span in self.spans(".results"):
            path = self.results(span)
            try:
                results = _DataUnpickler(io.BytesIO(path.read_bytes())).load()
            except (pickle.UnpicklingError, ArithmeticError, EOFError, LookupError, TypeError, ValueError) as error:
                fault = f"{path} is not a file of results ({error})"
                raise ValueError(f"{fault}; remove it and run the stage again") from None
            yield from results

    @property
    def n_failed(self) -> int:
        """Jobs that have ended without results, and were followed by others."""
        return sum(self.read_submission(span).attempts - 1 for span in self.spans(".json"))


class _DataUnpickler(pickle.Unpickler):
    """Reads results, which may have come with an unfinished experiment from elsewhere: data, never code."""

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" in DATA_TYPES or (module, name) in NUMPY_PARTS:
            return super().find_class(module, name)
        if module.startswith(tuple(f"sortk.{room}" for room in ROOMS_OF_DATA)):
            found: Any = getattr(importlib.import_module(module), name, None)
            is_data = isinstance(found, type) and (is_dataclass(found) or issubclass(found, tuple))
            # A pickle could call an object that can be called, as a Shard can.
            if is_data and not any("__call__" in vars(base) for base in found.__mro__):
                return found
        raise pickle.UnpicklingError(f"{quote(f'{module}.{name}')} is not data")


@dataclass(frozen=True)
class Shard:
    """What a task of an array does: some of the items of a call."""

    call: Call
    digest: str  # SHA-256 of the content of the call: another one is not for this shard
    span: ItemRange
    root: str | None  # what files name each other relative to; see formats.files

    def __call__(self) -> None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        if self.root:
            os.environ[ROOT_VARIABLE] = self.root
        content = self.call.content.read_bytes()
        if hashlib.sha256(content).hexdigest() != self.digest:
            raise OSError(f"{self.call.content} was changed after this job was submitted; run the stage again")
        work, items = pickle.loads(content)
        try:
            results = [work(item) for item in items[slice(*self.span)]]
        except ValueError as error:
            with atomic_text(self.call.fault(self.span)) as file:
                file.write(str(error))
            raise
        with atomic_path(self.call.results(self.span)) as path:
            path.write_bytes(pickle.dumps(results))

    def checkpoint(self) -> Any:
        """Return the same shard for a new job, when its time is over; items whose files exist take no time."""
        from submitit.helpers import DelayedSubmission  # noqa: PLC0415 - an extra

        return DelayedSubmission(self)


def cut_missing(taken: Collection[ItemRange], n_items: int, size: int) -> list[ItemRange]:
    """Return the items that are in no span, as spans of at most `size`."""
    edges = [(0, 0), *sorted(taken), (n_items, n_items)]
    gaps = [(before[1], after[0]) for before, after in itertools.pairwise(edges)]
    return [(start, min(start + size, stop)) for begin, stop in gaps for start in range(begin, stop, size)]
