"""How fast the tiny model trains while another process computes on every core, by threads and by how idle ones wait.

By default, OpenMP's idle threads spin. On a core that another process needs as well, the thread that has work then
waits for threads that have none. `sortk` lets them sleep (sortk/cli/__init__.py), so that two threads are never much
slower than one. Each row is a process of its own, because OpenMP reads its variables once.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time

SECONDS = 15.0  # of training in each row
N_CLIPS, CLIP_SECONDS = 2, 10
MIN_RATIO = 0.9  # of two threads to one, beside another process


def train(policy: str) -> None:
    """Print the seconds of audio that are trained on in a second."""
    if policy == "sortk":
        import sortk.cli  # noqa: F401 - it sets the policy, before torch is loaded
    from bench_training import Step

    step = Step("tiny", N_CLIPS, CLIP_SECONDS)
    step()
    began, n_steps = time.perf_counter(), 0
    while time.perf_counter() - began < SECONDS:
        step()
        n_steps += 1
    print(n_steps * N_CLIPS * CLIP_SECONDS / (time.perf_counter() - began))


def measure(n_threads: int, policy: str) -> float:
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    command = [sys.executable, __file__, "--train", policy]
    ended = subprocess.run(
        command, env=variables | {"OMP_NUM_THREADS": str(n_threads)}, capture_output=True, text=True, check=True
    )
    return float(ended.stdout)


def compute_forever() -> None:
    while True:
        sum(range(100_000))


def main() -> None:
    if "--train" in sys.argv:
        train(sys.argv[2])
        return
    n_cores = max(2, len(os.sched_getaffinity(0)))
    others = [multiprocessing.Process(target=compute_forever, daemon=True) for _ in range(n_cores)]
    for n_others in (0, n_cores):
        for other in others[:n_others]:
            other.start()
        one = measure(1, "sortk")
        print(f"{n_others} other processes: one thread {one:.0f} s of audio per second")
        for policy in ("default", "sortk"):
            rate = measure(n_cores, policy)
            print(f"    {n_cores} threads, waiting as {policy}: {rate:.0f}, {rate / one:.2f} x", end="")
            missed = "" if rate >= MIN_RATIO * one else ": MISSED"
            print(f" ({MIN_RATIO} wanted{missed})" if policy == "sortk" else "")
    for other in others:
        other.kill()


if __name__ == "__main__":
    main()
