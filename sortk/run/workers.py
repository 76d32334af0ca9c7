"""The same work here, in N processes, or as Slurm jobs (see `slurm`): each a function with the signature of RunJobs."""

from __future__ import annotations

import ctypes
import itertools
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sortk.progress import Result, show_progress
from sortk.records import RunJobs, name_work
from sortk.run.folders import Folder
from sortk.slurm.arrays import SlurmArrays
from sortk.slurm.options import ClusterOptions
from sortk.slurm.queue import requeue_this_job
from sortk.training.signals import TrainingStopped

Item = TypeVar("Item")


def count_cores() -> int:
    """Return how many cores this process may use; where the system does not say (macOS), how many there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_cluster(
    cluster: str, n_jobs: int, folder: Folder, options: ClusterOptions | None = None, stage: str = ""
) -> RunJobs:
    """Return the way of running jobs that `--cluster` and `--nj` ask for, to fill the folder."""
    if cluster != "slurm":
        return partial(run_local, n_jobs=n_jobs)
    options = options or ClusterOptions()
    chosen = options.of_stage(stage) if stage else options
    return SlurmArrays(n_jobs, folder, chosen, options.retries, stage or folder.final.name)


def build_together(build: Callable[[Callable[[Path], None]], bool], work: Callable[[Path], None]) -> bool:
    """Return `build(work)`; of several processes that torchrun has started, one does so and the others join its work.

    `build` makes a folder by calling the work on it, or finds that there is nothing to do. A training whose job is
    about to run out of time is queued again.
    """
    from sortk.training.processes import broadcast, join_processes, wait_for_all  # noqa: PLC0415 - torch, only if needed

    announced: list[Path] = []

    def lead(folder: Path) -> None:
        announced.append(broadcast(folder))
        work(folder)

    with join_processes() as processes:
        try:
            if processes.n == 1:
                return build(work)
            if processes.leads:
                try:
                    return build(lead)
                finally:
                    if not announced:  # nothing to do, or refused
                        broadcast(None)
            logging.getLogger("sortk").setLevel(logging.WARNING)
            folder: Path | None = broadcast(None)
            if folder is not None:
                work(folder)
            return folder is not None
        except TrainingStopped as stopped:
            if stopped.requeue and processes.leads:
                requeue_this_job()
            wait_for_all()  # torchrun ends them all when one has ended
            raise


def is_distributed() -> bool:
    """Return whether torchrun has started several processes."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def run_local(work: Callable[[Item], Result], items: Sequence[Item], n_jobs: int = 1) -> Iterator[Result]:
    """Run the items in this process, or in `n_jobs` worker processes, showing progress."""
    n_jobs = min(n_jobs, len(items))
    results = map(work, items) if n_jobs <= 1 else _run_in_processes(work, items, n_jobs)
    return show_progress(results, len(items), name_work(work))


def _run_in_processes(work: Callable[[Item], Result], items: Sequence[Item], n_jobs: int) -> Iterator[Result]:
    # Spawned workers share no state with this process, so a result cannot depend on what ran here before. The work
    # goes to each worker once; a task carries only its item. A bounded queue keeps memory flat for any item count.
    pool = ProcessPoolExecutor(
        n_jobs,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(pickle.dumps(work), max(1, count_cores() // n_jobs), os.getpid()),
    )
    waiting: deque[Future[Any]] = deque()
    remaining = iter(items)
    try:
        with _no_interrupt():  # the first task starts all workers
            waiting.extend(pool.submit(_run_in_worker, item) for item in itertools.islice(remaining, 4 * n_jobs))
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(pool.submit(_run_in_worker, item) for item in itertools.islice(remaining, 1))
    except BrokenProcessPool:
        raise OSError(
            "a worker process was killed from outside (out of memory?); run the same command again to continue, "
            "with a smaller --nj if memory was short"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Hold back Ctrl-C in the block, and for good in processes that are started there: until they can ignore it, each
    would print a traceback."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    # Another thread may still receive the signal, and Python would then interrupt the main thread.
    held: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, lambda number, frame: held.append(number)) if is_main else None
    try:
        yield
    finally:
        if is_main:
            signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if held:
        signal.raise_signal(signal.SIGINT)


_work_of_this_worker: Callable[[Any], Any] | None = None


def _start_worker(pickled_work: bytes, n_threads: int, parent: int) -> None:
    global _work_of_this_worker  # noqa: PLW0603 - a worker process has exactly one work, set once
    # Before numpy or torch is loaded with the work: workers that use all cores each wait for one another.
    os.environ.setdefault("OMP_NUM_THREADS", str(n_threads))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, which ends its workers in order
    die_with(parent)
    _work_of_this_worker = pickle.loads(pickled_work)


def _run_in_worker(item: Any) -> Any:
    assert _work_of_this_worker is not None
    return _work_of_this_worker(item)


def die_with(parent: int) -> None:
    """End this process when its parent dies: kill -9 must not leave workers that keep writing, or wait forever."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
        if os.getppid() != parent:  # it had died before the call
            os._exit(1)
