"""Stages side by side: the variants of a table in two slots, a failure, a stop."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_recipe import STAGES, sortk

from sortk.run import parallel_stages
from sortk.run.experiment import Experiment
from sortk.run.parallel_stages import Step, find_gpus, find_slots, list_steps, run_side_by_side
from sortk.run.tables import TablesRequest, plan_tables
from sortk.run.workers import count_cores

RECIPE = (
    STAGES
    + """
[tables.table1]
Sortformer-Hybrid-Loss = ["", "again"]
[variants.again.train_diar]
seed_offset = 1
[variants.broken.train_diar.phases.0.loop]
learning_rate = 1e30
max_bad_updates = 1
steps = 20
[variants.long]
train_diar.phases.0.loop = { steps = 100000, validate_every = 100000, log_every = 1 }
"""
)


needs_two_cores = pytest.mark.skipif(count_cores() < 2, reason="on one core, models train one after another")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe, and its experiment up to the stages that train."""
    folder = tmp_path_factory.mktemp("prepared")
    (folder / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    result = sortk("run", "--recipe", folder, "--exp", folder / "exp", "--stop-stage", 4)
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def recipe(prepared: Path, tmp_path: Path) -> Path:
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One thread in this process, and in each of two slots."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Ended:
    """A process that has ended when it is looked at."""

    returncode = 0

    def __init__(self, step: Step, done: list[Step]) -> None:
        self.step, self.done = step, done

    def poll(self) -> int:
        self.done.append(self.step)
        return 0


def test_a_stage_waits_for_its_inputs_and_not_for_others(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = list_steps(plan_tables(TablesRequest(str(recipe), recipe / "nothing yet")).experiments)
    assert [step.stage.number for step in steps] == [0, 1, 2, 3, 4, 5, 5, 7, 7, 8, 8]
    rounds: list[list[int]] = [[]]
    done: list[Step] = []

    def start(step: Step, command: object, slot: object) -> Any:
        assert step.inputs <= {one.folder for one in done}
        rounds[-1].append(step.stage.number)
        return parallel_stages._Running(step, Ended(step, done), BytesIO(), 0.0)  # type: ignore[arg-type]

    monkeypatch.setattr(parallel_stages, "_start", start)
    monkeypatch.setattr(parallel_stages.time, "sleep", lambda seconds: rounds.append([]))  # between rounds
    run_side_by_side(steps, [{}, {}], lambda step: [])
    # A training reads stage 2; the last round is empty.
    assert rounds == [[0], [1], [2], [3, 5], [4, 5], [7, 7], [8, 8], []]


@needs_two_cores
@pytest.mark.usefixtures("one_thread")
def test_two_variants_side_by_side_and_the_row_that_is_their_mean(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainings run in processes of their own, stages 7 and 8 here: each process takes seconds to import torch."""

    def list_trainings(experiments: Sequence[Experiment]) -> list[Step]:
        return [step for step in list_steps(experiments) if step.stage.trains]

    monkeypatch.setattr(parallel_stages, "list_steps", list_trainings)
    command = ("tables", "--recipe", recipe, "--exp", recipe / "exp", "--nj", 2)
    shutil.copytree(recipe / "exp", recipe / "alone")
    shutil.rmtree(recipe / "exp" / "04-sst")  # a stage before the trainings
    result = sortk(*command)
    assert result.exit_code == 0, result.output
    ends = [line.split(": done in")[0] for line in result.stderr.splitlines() if "stages to go" in line]
    assert set(ends) == {f"{recipe.name}: stage 5 (train-diar)", "again: stage 5 (train-diar)"} and len(ends) == 2
    [row] = [line for line in result.stdout.splitlines() if line.startswith("| Sortformer-Hybrid-Loss | none |")]
    header = next(line for line in result.stdout.splitlines() if line.startswith("| system |"))
    cells = dict(zip(header.strip("| ").split(" | "), row.strip("| ").split(" | "), strict=True))
    first, second = map(float, cells["test each run"].split(", "))
    overall = float(
        cells.get("test all", cells.get("test 2 spk", "nan")).rstrip("\\*")
    )  # a mark: differs from the best
    assert first != second and overall == pytest.approx((first + second) / 2, abs=0.011)
    assert "2 runs are stored in" in sortk(*command).stderr
    # One after another gives the same.
    shutil.rmtree(recipe / "results")
    alone = sortk("tables", "--recipe", recipe, "--exp", recipe / "alone")
    assert result.stdout.split("## Runs")[0] == alone.stdout.split("## Runs")[0]


@needs_two_cores
def test_a_stage_that_fails_is_named_and_ends_the_others(recipe: Path) -> None:
    text = RECIPE.replace('["", "again"]', '["long", "broken"]')
    (recipe / "recipe.toml").write_text(text, encoding="utf-8")
    result = sortk("tables", "--recipe", recipe, "--exp", recipe / "exp", "--nj", 2)
    assert result.exit_code == 1 and "Traceback" not in result.output
    last_line = result.stderr.splitlines()[-1]
    assert re.match(r"sortk: broken: stage 5 \(train-diar\) failed: the (loss|norm of .*) is (nan|inf)", last_line)
    assert not (recipe / "RESULTS.md").exists()
    status = sortk("status", "--recipe", recipe, "--exp", recipe / "exp", "--variant", "long").stdout
    assert "5  train-diar  partial" in status and "running" not in status


@needs_two_cores
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_a_stop_leaves_no_process_and_goes_on_later(recipe: Path, number: signal.Signals) -> None:
    (recipe / "recipe.toml").write_text(RECIPE.replace('["", "again"]', '["long", "again+long"]'), encoding="utf-8")
    exp = recipe / "exp"
    command = [sys.executable, "-m", "sortk", "tables", "--recipe", str(recipe), "--exp", str(exp), "--nj", "2"]
    parent = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        partials = [exp / f"variant-{name}" / "05-train-diar.partial" for name in ("long", "again+long")]
        wait_until(lambda: all((partial / "log.jsonl").exists() for partial in partials))  # before, there is nothing
        slots = [int(pid) for pid in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()]
        assert len(slots) == 2
        parent.send_signal(number)
        parent.wait()
    finally:
        parent.kill()  # and with it its slots, if it has not ended
    assert parent.returncode != 0
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in slots))
    status = sortk("status", "--recipe", recipe, "--exp", exp, "--variant", "long").stdout
    assert "5  train-diar  partial" in status and "will be resumed" in status


def wait_until(is_so: Callable[[], bool], seconds: float = 600.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_slot_for_each_gpu_or_a_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_slots(4, ["2", "5"]) == [{"CUDA_VISIBLE_DEVICES": "2"}, {"CUDA_VISIBLE_DEVICES": "5"}]
    assert find_slots(1, ["2", "5"]) == [{"CUDA_VISIBLE_DEVICES": "2"}]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(7)))
    assert find_slots(2, []) == [{"OMP_NUM_THREADS": "3"}] * 2
    assert find_slots(100, []) == [{"OMP_NUM_THREADS": "1"}] * 7
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert find_gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-8fb1")
    assert find_gpus() == ["3", "GPU-8fb1"]
