"""How many threads a training on the CPU uses."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.functional import layer_norm, relu

log = logging.getLogger(__name__)

MIN_GAIN = 1.2  # how much faster all threads must be than one; on idle cores two threads are 1.8 times as fast
ROUNDS = 5
ROUND_SECONDS = 0.1


@contextmanager
def use_threads(n_threads: int) -> Iterator[None]:
    """Compute with this many threads in the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def choose_threads(earlier: int = 0) -> int:
    """Return all threads or one, whichever computes faster now; the same as earlier in the run, if there was any.

    Threads wait for one another after each operation. If other processes use the same cores, one of the threads is
    suspended most of the time, and all of them together are slower than one. A number in OMP_NUM_THREADS is kept.
    """
    all_threads = torch.get_num_threads()
    if all_threads == 1 or "OMP_NUM_THREADS" in os.environ:
        return all_threads
    if earlier:
        return min(earlier, all_threads)
    rates = {1: 0.0, all_threads: 0.0}
    for _ in range(ROUNDS):  # in turns, because the load may change meanwhile
        for n_threads in rates:
            rates[n_threads] += measure_rate(n_threads)
    if rates[all_threads] >= MIN_GAIN * rates[1]:
        return all_threads
    log.info(
        "training with one thread: the cores are busy, and %d threads are only %.1f times as fast; OMP_NUM_THREADS=%d "
        "uses them all the same",
        all_threads,
        rates[all_threads] / rates[1],
        all_threads,
    )
    return 1


def measure_rate(n_threads: int) -> float:
    """Return how many times a second the gradients of a small feed-forward layer are computed."""
    inputs = torch.ones(250, 256)  # as a batch of the mini recipe; not random, which would change what follows
    widen, narrow = (torch.ones(size, requires_grad=True) for size in ((256, 1024), (1024, 256)))
    with use_threads(n_threads):
        (inputs @ widen).sum()  # starts the threads
        began, n_updates = time.perf_counter(), 0
        while (seconds := time.perf_counter() - began) < ROUND_SECONDS:
            torch.autograd.grad(layer_norm(relu(inputs @ widen) @ narrow, (256,)).sum(), (widen, narrow))
            n_updates += 1
    return n_updates / seconds
