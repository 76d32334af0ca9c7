"""A whole recipe on a real Slurm against the same here; training that is requeued against training that is not."""

from __future__ import annotations

import contextlib
import filecmp
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import PATIENCE_SECONDS, wait_until

from sortk.slurm.queue import read_queue

DEBUG = ("--recipe", "mini", "--variant", "debug")


def sortk(*arguments: str, expect: int = 0) -> str:
    """What the command says on either output."""
    line = [sys.executable, "-m", "sortk", *arguments]
    finished = subprocess.run(line, capture_output=True, text=True, check=False, env=os.environ | {"WORLD_SIZE": "1"})
    assert finished.returncode == expect, finished.stderr
    return finished.stdout + finished.stderr


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe, run on this machine without Slurm."""
    exp = tmp_path_factory.mktemp("here") / "exp"
    sortk("run", *DEBUG, "--exp", str(exp), "-q")
    return exp / "variant-debug"


def list_files(folder: Path) -> list[Path]:
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and "log" not in path.parts)


def find_processes(job_id: str) -> list[int]:
    """Of a task of an array, those that run Python."""
    array, task = job_id.split("_")
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            environment = (process / "environ").read_bytes().split(b"\0")
            program, *arguments = (process / "cmdline").read_bytes().split(b"\0")
            is_python = b"python" in program and any(b"submitit" in argument for argument in arguments)  # not srun
            wanted = {f"SLURM_ARRAY_JOB_ID={array}".encode(), f"SLURM_ARRAY_TASK_ID={task}".encode()}
            if is_python and wanted <= set(environment):
                found.append(int(process.name))
    return found


def stop_two_shards(folder: Path) -> dict[str, list[int]]:
    """Two running tasks of the folder's array, and their processes, which hold still from now on."""
    stopped: dict[str, list[int]] = {}
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(stopped) < 2:
        assert time.monotonic() < deadline, "there were never two shards that run"
        tasks = [job.job_id for job in read_queue().values() if job.folder == str(folder) and "_" in job.job_id]
        for job_id in [job_id for job_id in tasks if job_id not in stopped][: 2 - len(stopped)]:
            if processes := find_processes(job_id):
                signal_all(processes, signal.SIGSTOP)
                stopped[job_id] = processes
    return stopped


def signal_all(processes: list[int], number: signal.Signals) -> bool:
    """Whether any of them is left."""
    left = False
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)
            left = True
    return left


def cancel_stopped(job_id: str, processes: list[int]) -> None:
    """Slurm lets them go on until it kills them, and submitit makes use of that: they are stopped again and again."""
    subprocess.run(["scancel", job_id], check=True)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while signal_all(processes, signal.SIGSTOP):
        assert time.monotonic() < deadline, "Slurm has not killed it"
        time.sleep(0.01)


@contextlib.contextmanager
def watch_run(*arguments: str, view: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`sortk run --wait`, whose view goes to a file."""
    with view.open("w", encoding="utf-8") as file:
        running = subprocess.Popen([sys.executable, "-m", "sortk", "run", *arguments, "--wait"], stderr=file)
    try:
        yield running
    finally:
        running.kill()
        running.wait()


def test_all_stages_give_the_same_on_slurm_though_two_shards_are_lost(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_TOKEN", "hunter2-3f9c")
    arguments = (*DEBUG, "--exp", str(tmp_path), "--cluster", "slurm", "--nj", "4")
    there, view = tmp_path / "variant-debug", tmp_path / "view"
    with watch_run(*arguments, view=view) as running:
        killed, cancelled = stop_two_shards(there / "01-simulate").items()
        assert "; wait for it" in sortk("run", *arguments, expect=1)
        status = sortk("status", *DEBUG, "--exp", str(tmp_path)).splitlines()
        assert [line.split()[2] for line in status] == ["done", "partial", *["missing"] * 7]
        assert all("jobs: " in line for line in status[1:])
        signal_all(killed[1], signal.SIGKILL)
        cancel_stopped(*cancelled)
        assert running.wait(PATIENCE_SECONDS) == 0, view.read_text(encoding="utf-8")
    said = view.read_text(encoding="utf-8")
    for line in ("stage 1 (simulate): job ", "stage 2 (clean): 1 pending", "stage 8 (score): done"):
        assert line in said
    log = (there / "slurm" / "01-simulate.log").read_text(encoding="utf-8")
    lost = set(re.findall(r"were lost with job (\S+);", log))
    # Slurm gives a cancelled task some seconds, in which it may end its work (test_arrays.py has one that cannot).
    assert {killed[0]} <= lost <= {killed[0], cancelled[0]}
    check_equal_bytes(here, there)
    check_equal_scores(here, there)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]  # scripts and logs of jobs, too
    assert not [path for path in written if b"hunter2-3f9c" in path.read_bytes()]


def check_equal_bytes(here: Path, there: Path) -> None:
    for name in ("00-prepare", "01-simulate", "02-clean", "03-timestamps", "04-sst"):
        files = list_files(here / name)
        assert files == list_files(there / name)
        assert filecmp.cmpfiles(here / name, there / name, map(str, files), shallow=False)[1:] == ([], [])


def check_equal_scores(here: Path, there: Path) -> None:
    """And, since models so young score alike, what they have learned and what they hear."""
    scores = [json.loads((folder / "08-score" / "scores.json").read_text(encoding="utf-8")) for folder in (here, there)]
    for score in scores:
        score.pop("commit", None)
        score.pop("date", None)
    assert scores[0] == scores[1]
    for stage in ("05-train-diar", "06-train-asr"):
        curves = [read_curve(folder, stage) for folder in (here, there)]
        assert curves[0].keys() == curves[1].keys()
        assert list(curves[1].values()) == pytest.approx(list(curves[0].values()), rel=1e-3)
    for path in (here / "07-tune" / "probs").glob("*.npy"):
        same = there / "07-tune" / "probs" / path.name
        np.testing.assert_allclose(np.load(same), np.load(path), atol=2e-3)


TRAINING = tuple(
    argument
    for setting in ("steps=24", "log_every=1", "validate_every=24", "checkpoint_every=24", "batch_seconds=20.0")
    for argument in ("--set", f"train_diar.phases.0.loop.{setting}")
)


def read_curve(exp: Path, stage: str = "05-train-diar") -> dict[tuple[str, int], float]:
    """The loss of each step, as far as the stage has come; no step stands in the log twice."""
    [path] = [path for path in exp.rglob("log.jsonl") if stage in str(path)]
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    steps = [((line["phase"], line["step"]), line["loss"]) for line in lines if "loss" in line]
    assert len(dict(steps)) == len(steps)
    return dict(steps)


def count_steps(exp: Path) -> int:
    try:
        return sum(phase == "few" for phase, _ in read_curve(exp))
    except ValueError:  # it has not begun, or is writing a line
        return 0


def restarts(job_id: str) -> int:
    shown = subprocess.run(["scontrol", "show", "job", job_id], capture_output=True, text=True, check=True).stdout
    return int(shown.partition("Restarts=")[2].split()[0])


def submit_training(here: Path, exp: Path) -> str:
    """On two nodes; the number of its job."""
    for stage in ("00-prepare", "01-simulate", "02-clean"):
        shutil.copytree(here / stage, exp / "variant-debug" / stage)
    settings = (*DEBUG, *TRAINING, "--set", "cluster.train_diar.nodes=2", "--exp", str(exp))
    sortk("run", "--stage", "5", "--stop-stage", "5", *settings, "--cluster", "slurm")
    [job_id] = [job.job_id for job in read_queue().values() if str(exp) in job.folder]
    return job_id


def test_training_that_is_requeued_goes_on_where_it_was(here: Path, tmp_path: Path) -> None:
    """Once by Slurm's notice that time is nearly over, once by an administrator. The only regular checkpoint is the
    last one, so all that it goes on from was saved on these signals."""
    whole, disturbed = tmp_path / "whole", tmp_path / "disturbed"
    undisturbed_job = submit_training(here, whole)
    job_id = submit_training(here, disturbed)
    for number, command in enumerate((["scancel", "--signal=USR1", job_id], ["scontrol", "requeue", job_id])):
        before = count_steps(disturbed)
        wait_until(lambda: count_steps(disturbed) > before + 2)  # noqa: B023 - called at once
        subprocess.run(command, check=True)
        wait_until(lambda: restarts(job_id) == number + 1 and read_queue()[job_id].is_pending)  # noqa: B023
        # Slurm would let it rest for two minutes.
        subprocess.run(["scontrol", "update", f"jobid={job_id}", "StartTime=now"], check=True)
    wait_until(lambda: not {job_id, undisturbed_job} & read_queue().keys())
    assert count_steps(whole) == 24
    assert read_curve(disturbed) == read_curve(whole)
    model = Path("variant-debug") / "05-train-diar" / "model" / "model.safetensors"
    assert (disturbed / model).read_bytes() == (whole / model).read_bytes()


def test_a_partition_that_does_not_exist_is_slurms_own_message(tmp_path: Path) -> None:
    settings = ("--set", "cluster.simulate.partition=nosuch", "--exp", str(tmp_path), "--cluster", "slurm")
    said = sortk("run", *DEBUG, *settings, expect=1)
    assert "sortk: stage 1 (simulate): sbatch: error: invalid partition specified: nosuch" in said
    wait_until(lambda: not [job for job in read_queue().values() if str(tmp_path) in job.folder])  # none, or all
