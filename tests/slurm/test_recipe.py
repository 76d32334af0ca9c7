"""A whole recipe on a real Slurm against the same here; training that is requeued against training that is not."""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import wait_until

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


def test_all_stages_give_the_same_on_slurm(here: Path, tmp_path: Path) -> None:
    submitted = sortk("run", *DEBUG, "--exp", str(tmp_path), "--cluster", "slurm", "--nj", "4", "--stop-stage", "4")
    assert "stage 1 (simulate): job " in submitted
    assert "; wait for it" in sortk("run", *DEBUG, "--exp", str(tmp_path), "--cluster", "slurm", expect=1)
    assert "jobs: 1 pending" in sortk("status", *DEBUG, "--exp", str(tmp_path))
    wait_until(lambda: not read_queue(), seconds=400)
    view = sortk("run", *DEBUG, "--exp", str(tmp_path), "--cluster", "slurm", "--nj", "4", "--wait")
    assert "stage 4 (sst): done already, skipped" in view
    assert "stage 8 (score): done" in view
    there = tmp_path / "variant-debug"
    for name in ("00-prepare", "01-simulate", "02-clean", "03-timestamps", "04-sst"):
        files = list_files(here / name)
        assert files == list_files(there / name)
        assert filecmp.cmpfiles(here / name, there / name, map(str, files), shallow=False)[1:] == ([], [])
    scores = [json.loads((folder / "08-score" / "scores.json").read_text(encoding="utf-8")) for folder in (here, there)]
    for score in scores:
        score.pop("commit", None)
        score.pop("date", None)
    assert scores[0] == scores[1]


TRAINING = tuple(
    argument
    for setting in ("steps=40", "log_every=1", "validate_every=40", "checkpoint_every=40", "batch_seconds=20.0")
    for argument in ("--set", f"train_diar.phases.0.loop.{setting}")
)


def read_curve(exp: Path) -> list[tuple[str, int, float]]:
    path = next(path for path in exp.rglob("log.jsonl") if "05-train-diar" in str(path))
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [(line["phase"], line["step"], line["loss"]) for line in lines if "loss" in line]


def count_steps(exp: Path) -> int:
    try:
        return sum(phase == "few" for phase, _, _ in read_curve(exp))
    except (StopIteration, ValueError):  # it has not begun, or is writing a line
        return 0


def restarts(job_id: str) -> int:
    shown = subprocess.run(["scontrol", "show", "job", job_id], capture_output=True, text=True, check=True).stdout
    return int(shown.partition("Restarts=")[2].split()[0])


@pytest.mark.parametrize("n_nodes", [1, 2])
def test_training_that_is_requeued_goes_on_where_it_was(here: Path, tmp_path: Path, n_nodes: int) -> None:
    """Once by Slurm's notice that time is nearly over, once by an administrator. The only regular checkpoint is the
    last one, so all that it goes on from was saved on these signals."""
    settings = (*DEBUG, *TRAINING, "--set", f"cluster.train_diar.nodes={n_nodes}")
    for name in ("whole", "disturbed"):
        for stage in ("00-prepare", "01-simulate", "02-clean"):
            shutil.copytree(here / stage, tmp_path / name / "variant-debug" / stage)
    sortk("stage", "5", *settings, "--exp", str(tmp_path / "whole"), "--cluster", "slurm")
    exp = tmp_path / "disturbed"
    sortk("run", "--stage", "5", "--stop-stage", "5", *settings, "--exp", str(exp), "--cluster", "slurm")
    [job_id] = [job.job_id for job in read_queue().values() if str(exp) in job.folder]
    for number, command in enumerate((["scancel", "--signal=USR1", job_id], ["scontrol", "requeue", job_id])):
        before = count_steps(exp)
        wait_until(lambda: count_steps(exp) > before + 4)  # noqa: B023 - called at once
        subprocess.run(command, check=True)
        wait_until(lambda: restarts(job_id) == number + 1 and read_queue()[job_id].is_pending)  # noqa: B023
        # Slurm would let it rest for two minutes.
        subprocess.run(["scontrol", "update", f"jobid={job_id}", "StartTime=now"], check=True)
    wait_until(lambda: job_id not in read_queue(), seconds=300)
    assert read_curve(exp) == read_curve(tmp_path / "whole")
    model = Path("variant-debug") / "05-train-diar" / "model" / "model.safetensors"
    assert (exp / model).read_bytes() == (tmp_path / "whole" / model).read_bytes()


def test_a_partition_that_does_not_exist_is_slurms_own_message(tmp_path: Path) -> None:
    settings = ("--set", "cluster.simulate.partition=nosuch", "--exp", str(tmp_path), "--cluster", "slurm")
    said = sortk("run", *DEBUG, *settings, expect=1)
    assert "sortk: stage 1 (simulate): sbatch: error: invalid partition specified: nosuch" in said
    wait_until(lambda: not [job for job in read_queue().values() if str(tmp_path) in job.folder])  # none, or all
