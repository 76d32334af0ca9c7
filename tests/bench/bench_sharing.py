"""How fast the tiny model trains while another process computes on every core, by threads and by how idle ones wait.

By default, OpenMP's idle threads spin. On a core that another process needs as well, the thread that has work then
waits for threads that have none. `sortk` lets them sleep (sortk/cli/__init__.py), and trains with one thread where all
of them are not faster (sortk/training/threads.py). Each row is a process of its own, because OpenMP reads its variables
once.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time

SECONDS = 15.0  # of training in each row
N_CLIPS, CLIP_SECONDS = 2, 10
MIN_RATIO = 0.9  # of what sortk does to one thread: both are measured once, seconds apart


def train(waiting: str, threads: str) -> None:
    """Print the seconds of audio that are trained on in a second, and the number of threads."""
    if waiting == "sleeping":
        import sortk.cli  # noqa: F401 - it sets the policy, before torch is loaded
    from bench_training import Step

    from sortk.training.threads import choose_threads, use_threads

    with use_threads(choose_threads() if threads == "chosen" else int(threads)):
        step = Step("tiny", N_CLIPS, CLIP_SECONDS)
        step()
        began, n_steps = time.perf_counter(), 0
        while time.perf_counter() - began < SECONDS:
            step()
            n_steps += 1
        print(n_steps * N_CLIPS * CLIP_SECONDS / (time.perf_counter() - began))


def measure(waiting: str, threads: str) -> float:
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    command = [sys.executable, __file__, "--train", waiting, threads]
    return float(subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout)


def compute_forever() -> None:
    while True:
        sum(range(100_000))


def main() -> None:
    if "--train" in sys.argv:
        train(*sys.argv[2:])
        return
    n_cores = max(2, len(os.sched_getaffinity(0)))
    others = [multiprocessing.Process(target=compute_forever, daemon=True) for _ in range(n_cores)]
    for n_others in (0, n_cores):
        for other in others[:n_others]:
            other.start()
        one = measure("sleeping", "1")
        print(f"{n_others} other processes: one thread {one:.0f} s of audio per second")
        for waiting in ("spinning", "sleeping"):
            rate = measure(waiting, str(n_cores))
            print(f"    {n_cores} threads, {waiting} while idle: {rate:.0f}, {rate / one:.2f} x")
        rate = measure("sleeping", "chosen")
        missed = "" if rate >= MIN_RATIO * one else ": MISSED"
        print(f"    as many threads as sortk chooses: {rate:.0f}, {rate / one:.2f} x ({MIN_RATIO} wanted{missed})")
    for other in others:
        other.kill()


if __name__ == "__main__":
    main()
