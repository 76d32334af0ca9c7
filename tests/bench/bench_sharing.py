"""How fast the tiny model trains while another process computes on every core, by threads and by how idle ones wait.

By default, OpenMP's idle threads spin. On a core that another process needs as well, the thread that has work then
waits for threads that have none. `sortk` lets them sleep (sortk/cli/__init__.py), and trains with one thread where all
of them are not faster (sortk/training/threads.py).

Numbers of threads are compared in turns in one process, by their medians, because the load of the machine changes.
Spinning and sleeping need a process each, because OpenMP reads its variables once.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from statistics import median

ROUNDS, ROUND_SECONDS = 3, 6.0  # for each number of threads
N_CLIPS, CLIP_SECONDS = 2, 10
MIN_RATIO = 0.9  # of what sortk chooses to one thread


def train(waiting: str, *settings: str) -> None:
    """Print for each setting, a number or "chosen", the number of threads and the seconds of audio per second."""
    if waiting == "sleeping":
        import sortk.cli  # noqa: F401 - it sets the policy, before torch is loaded
    from bench_training import Step

    from sortk.training.threads import choose_threads, use_threads

    step = Step("tiny", N_CLIPS, CLIP_SECONDS)
    n_threads = {setting: choose_threads(step) if setting == "chosen" else int(setting) for setting in settings}
    rates: dict[str, list[float]] = {setting: [] for setting in settings}
    for _ in range(ROUNDS):
        for setting in settings:
            with use_threads(n_threads[setting]):
                step()
                began, n_steps = time.perf_counter(), 0
                while (seconds := time.perf_counter() - began) < ROUND_SECONDS:
                    step()
                    n_steps += 1
            rates[setting].append(n_steps * N_CLIPS * CLIP_SECONDS / seconds)
    print(json.dumps([(n_threads[setting], median(rates[setting])) for setting in settings]))


def measure(waiting: str, *settings: str) -> list[tuple[int, float]]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    command = [sys.executable, __file__, "--train", waiting, *settings]
    return json.loads(subprocess.run(command, env=variables, stdout=subprocess.PIPE, check=True).stdout)


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
        (_, one), (_, rate) = measure("spinning", "1", str(n_cores))
        print(f"{n_others} other processes: {n_cores} threads, spinning while idle: {rate / one:.2f} x one thread")
        (_, one), (_, rate), (n_chosen, chosen) = measure("sleeping", "1", str(n_cores), "chosen")
        print(f"    {n_cores} threads, sleeping while idle: {rate / one:.2f} x")
        missed = "" if chosen >= MIN_RATIO * one else ": MISSED"
        print(f"    sortk chooses {n_chosen}: {chosen / one:.2f} x ({MIN_RATIO} wanted{missed})")
        print(f"    one thread: {one:.0f} s of audio per second")
    for other in others:
        other.kill()


if __name__ == "__main__":
    main()
