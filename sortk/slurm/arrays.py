"""RunJobs by arrays of Slurm: submits shards, waits for them, and submits again what was lost."""

from __future__ import annotations

import hashlib
import logging
import os
import shlex
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from sortk.formats.files import ROOT_VARIABLE
from sortk.records import name_work
from sortk.run.folders import Folder
from sortk.slurm.options import JobOptions
from sortk.slurm.queue import Queue, cancel, check_slurm, outside_of_jobs, own_message, read_queue, read_queue_patiently
from sortk.slurm.shards import Call, Shard, Span, Submission, cut_missing, pack

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.25, 10.0  # between two looks at the queue
LATE_FILE_SECONDS = 5.0  # by which a file may show up here after its job has ended there: network disks


class SlurmArrays:
    """RunJobs by arrays of up to `n_jobs` shards, which keep their state in the folder until it is done."""

    def __init__(self, n_jobs: int, folder: Folder, options: JobOptions, retries: int, title: str) -> None:
        check_slurm()
        self.n_jobs, self.folder, self.options, self.retries, self.title = n_jobs, folder, options, retries, title

    def __call__(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        if not items:
            return
        content = pack(work, items)
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
                _check_faults(call, submitted)
                # The queue was read first: who is not in it any more has written its results before.
                submitted = {span: job for span, job in submitted.items() if not call.results(span).exists()}
                watch.report(submitted.values(), queue)
                submitted |= self._submit_again(call, watch.find_lost(submitted, queue))
        except Exception:
            cancel([job.job_id for job in submitted.values()])
            raise

    def _take_over(self, call: Call) -> dict[Span, Submission]:
        """Return the shards that an earlier process has submitted and that are still in the queue."""
        missing = [span for span in call.spans(".json") if not call.results(span).exists()]
        if not missing:
            return {}
        queue = read_queue()
        found = {span: call.read_submission(span) for span in missing}
        found = {span: job for span, job in found.items() if job.job_id in queue}
        log.info("%s: %d shards are in the queue already", self.title, len(found))
        return found

    def _submit_again(self, call: Call, lost: Mapping[Span, Submission]) -> dict[Span, Submission]:
        for span, job in lost.items():
            what = f"{self.title}: items {span[0]} to {span[1] - 1} ({call.title})"
            if job.attempts > self.retries:
                raise OSError(
                    f"{what} failed {job.attempts} times, at last as job {job.job_id}, whose log is "
                    f"{call.log(job)}; finished shards are kept: run the same command again to do the others"
                )
            log.warning("%s were lost with job %s; trying again", what, job.job_id)
        return self._submit(call, {span: job.attempts for span, job in lost.items()})

    def _submit(self, call: Call, attempts: Mapping[Span, int]) -> dict[Span, Submission]:
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


def _check_faults(call: Call, submitted: Mapping[Span, Submission]) -> None:
    for span, job in submitted.items():
        if call.fault(span).exists():
            reason = call.fault(span).read_text(encoding="utf-8")
            raise ValueError(f"{reason} (items {span[0]} to {span[1] - 1}, log {call.log(job)})")


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

    def find_lost(self, submitted: Mapping[Span, Submission], queue: Queue) -> dict[Span, Submission]:
        """Return the shards that have left the queue without results; a file may be a few seconds late."""
        now = time.monotonic()
        gone = {span: job for span, job in submitted.items() if job.job_id not in queue}
        self._missed = {job.job_id: self._missed.get(job.job_id, now) for job in gone.values()}
        return {span: job for span, job in gone.items() if now - self._missed[job.job_id] >= LATE_FILE_SECONDS}
