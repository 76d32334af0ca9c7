"""How many threads a training on the CPU uses."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

log = logging.getLogger(__name__)

MIN_GAIN = 1.2  # how much faster all threads must be than one
ROUNDS = 4
ROUND_SECONDS = 0.5  # at least: a shorter time says little about cores that other processes use, too
ENOUGH_SECONDS = 10.0  # of measuring; a large model, which takes longer, is measured once


@contextmanager
def use_threads(n_threads: int) -> Iterator[None]:
    """Compute with this many threads in the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def choose_threads(compute: Callable[[], object], earlier: int = 0) -> int:
    """Return all threads or one, whichever does `compute` faster now; the same as earlier in the run, if there was any.

    Threads wait for one another after each operation. If other processes use the same cores, one of the threads is
    suspended most of the time, and all of them together are slower than one. The same holds for a small model even on
    idle cores, because its operations are short. Hence `compute` should be work of the training itself. A number in
    OMP_NUM_THREADS is kept.
    """
    all_threads = torch.get_num_threads()
    if all_threads == 1 or "OMP_NUM_THREADS" in os.environ:
        return all_threads
    if earlier:
        return min(earlier, all_threads)
    began = time.perf_counter()
    rates = {1: 0.0, all_threads: 0.0}
    compute()  # the first time, memory is allocated, too
    for _ in range(ROUNDS):  # in turns, because the load may change meanwhile
        for n_threads in rates:
            rates[n_threads] += measure_rate(compute, n_threads)
        if time.perf_counter() - began > ENOUGH_SECONDS:
            break
    gain = rates[all_threads] / rates[1]
    if gain >= MIN_GAIN:
        return all_threads
    log.info(
        "training with one thread: %d threads are only %.1f times as fast; OMP_NUM_THREADS=%d uses them all the same",
        all_threads,
        gain,
        all_threads,
    )
    return 1


def measure_rate(compute: Callable[[], object], n_threads: int) -> float:
    """Return how many times a second it computes."""
    n_times = 0
    with use_threads(n_threads):
        began = time.perf_counter()
        while n_times == 0 or time.perf_counter() - began < ROUND_SECONDS:
            compute()
            n_times += 1
        return n_times / (time.perf_counter() - began)
