"""How long a tuning trial takes: 20 sessions x 10 minutes x 4 speakers, on one core.

trial         postprocessing and DER of all sessions, without Optuna
study         1000 trials with journal and TPE
two processes trials per second on one journal, against one process; each has a core of its own if there are two
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from sortk.formats.postprocess import PRESETS, Postprocess
from sortk.inference.postprocess import find_segments, name_segments
from sortk.scoring.tune import SPACE, Objective, Term, TuneOptions, TuneSet, tune

N_SESSIONS, N_FRAMES, N_SPEAKERS = 20, 7500, 4
MAX_TRIAL_MS, MAX_STUDY_SECONDS = 20, 90
NVIDIA_TRIAL_SECONDS = 25  # its own loop, on such a machine
N_SHARED = 300


def make_set() -> TuneSet:
    """Turns of some seconds, 12 % of them with several speakers; posteriors with noise that blurs them."""
    rng = np.random.default_rng(0)
    references, posteriors = {}, {}
    for number in range(N_SESSIONS):
        speaks = np.zeros((N_FRAMES, N_SPEAKERS), np.float32)
        for speaker in range(N_SPEAKERS):
            frame = int(rng.exponential(120))
            while frame < N_FRAMES:
                length = 4 + int(rng.exponential(35))
                speaks[frame : frame + length, speaker] = 1
                frame += length + 4 + int(rng.exponential(120))
        name = f"s{number}"
        references[name] = name_segments(name, find_segments(speaks, Postprocess()))
        noise = rng.normal(0, 0.15, speaks.shape)
        posteriors[name] = np.clip(0.1 + 0.5 * speaks + noise, 0, 1).astype(np.float32)
    return TuneSet(posteriors, references)


def bench_trial(data: TuneSet) -> None:
    objective = Objective(data, [Term()])
    rng = np.random.default_rng(0)
    drawn = [Postprocess(**{name: rng.uniform(*edges) for name, edges in SPACE.items()}) for _ in range(100)]
    objective(PRESETS["none"])  # imports
    for name, choices in (("presets", [*PRESETS.values()] * 20), ("random settings", drawn)):
        seconds = []
        for postprocess in choices:
            began = time.process_time()
            objective(postprocess)
            seconds.append(time.process_time() - began)
        mean = 1000 * statistics.mean(seconds)
        print(
            f"trial, {name}: mean {mean:.1f} ms (at most {MAX_TRIAL_MS} is wanted), longest {1000 * max(seconds):.1f}; "
            f"NVIDIA's loop takes about {1000 * NVIDIA_TRIAL_SECONDS / mean:.0f} times as long"
        )


def bench_study(data: TuneSet, folder: Path) -> None:
    began, began_cpu = time.perf_counter(), time.process_time()
    tuned = tune(data, TuneOptions(trials=1000), 0, folder / "study.log")
    seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    print(
        f"study of {len(tuned.history)} trials: {seconds:.0f} s, {cpu:.0f} s of them this process "
        f"(at most {MAX_STUDY_SECONDS} is wanted); DER {100 * tuned.der_before:.2f} -> {100 * tuned.der_after:.2f} %"
    )


def run_shared(path: Path, n_trials: int, core: int) -> None:
    """A process of the third part: tells when it begins its trials, and when it is done."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[core % len(cores)]})
    data = make_set()
    tune(data, TuneOptions(trials=1), 0, path.with_name(f"warm-{core}.log"))  # imports
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.perf_counter()
    tune(data, TuneOptions(trials=n_trials), 0, path)
    print(time.perf_counter() - began, flush=True)


def measure_shared(folder: Path, n_processes: int) -> float:
    """Trials per second of so many processes."""
    path = folder / f"shared-{n_processes}.log"
    command = [sys.executable, __file__, str(path), str(N_SHARED)]
    workers = [
        subprocess.Popen([*command, str(core)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for core in range(n_processes)
    ]
    for worker in workers:
        assert worker.stdout is not None and worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("\n")
        worker.stdin.flush()
    seconds = [float(worker.communicate()[0]) for worker in workers]
    return N_SHARED / max(seconds)


def main() -> None:
    data = make_set()
    bench_trial(data)
    with tempfile.TemporaryDirectory() as name:
        bench_study(data, Path(name))
        one, two = measure_shared(Path(name), 1), measure_shared(Path(name), 2)
    n_cores = len(os.sched_getaffinity(0))
    print(f"one process {one:.1f} trials/s, two {two:.1f}: ratio {two / one:.2f} on {n_cores} cores")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run_shared(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
