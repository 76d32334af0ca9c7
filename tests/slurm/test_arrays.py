"""Arrays of shards on a real Slurm: what is lost is done again, what is done is kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Thread

import pytest
import shards
from conftest import HERE, wait_until

from sortk.run.folders import Folder
from sortk.slurm.arrays import SlurmArrays
from sortk.slurm.options import JobOptions
from sortk.slurm.queue import read_queue


def run(
    work: Callable[[Path, int], int], folder: Path, n_jobs: int = 4, n_items: int = 10, retries: int = 2
) -> list[int]:
    arrays = SlurmArrays(n_jobs, Folder(folder / "out"), JobOptions(), retries, "stage 1 (toy)")
    return list(arrays(partial(work, folder), range(n_items)))


def count_runs(folder: Path) -> dict[int, int]:
    return {int(path.stem): len(path.read_text(encoding="utf-8").split()) for path in folder.glob("*.ran")}


def test_results_come_in_order_and_are_not_made_twice(tmp_path: Path) -> None:
    assert run(shards.double, tmp_path) == list(range(0, 20, 2))
    assert run(shards.double, tmp_path, n_jobs=3) == list(range(0, 20, 2))
    assert run(shards.double, tmp_path, n_items=0) == []
    assert set(count_runs(tmp_path).values()) == {1}


def test_a_killed_and_a_cancelled_task_are_done_again_and_no_others(tmp_path: Path) -> None:
    """Shards are 0-2, 3-5, 6-8, 9. Item 3 is killed with -9, the job of item 7 is cancelled."""

    def cancel_the_job_of_7() -> None:
        wait_until(lambda: count_runs(tmp_path).get(7, 0) == 1)
        job_id = (tmp_path / "7.ran").read_text(encoding="utf-8").split()[0]
        subprocess.run(["scancel", job_id], check=True)

    canceller = Thread(target=cancel_the_job_of_7)
    canceller.start()
    assert run(shards.double_unless_killed, tmp_path) == list(range(0, 20, 2))
    canceller.join()
    assert count_runs(tmp_path) == {0: 1, 1: 1, 2: 1, 3: 2, 4: 1, 5: 1, 6: 2, 7: 2, 8: 1, 9: 1}


def test_a_shard_that_fails_again_and_again_ends_the_stage_and_a_rerun_does_only_that_one(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"stage 1 \(toy\): items 3 to 5 \(.*\) failed 2 times") as caught:
        run(shards.double_once_mended, tmp_path, retries=1)
    log = Path(str(caught.value).partition("whose log is ")[2].partition(";")[0])
    assert "the disk is out of reach" in log.read_text(encoding="utf-8")
    before = count_runs(tmp_path)
    assert before[5] == 2
    (tmp_path / "mended").touch()
    assert run(shards.double_once_mended, tmp_path) == list(range(0, 20, 2))
    after = count_runs(tmp_path)
    assert {item for item in after if after[item] > before[item]} == {3, 4, 5}


def test_a_fault_of_the_input_is_not_tried_again(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"some.rttm, line 5: five is not allowed \(items 3 to 5, log .*_log.err\)"):
        run(shards.reject_five, tmp_path)
    assert count_runs(tmp_path)[5] == 1


DRIVER = """
import sys
from pathlib import Path
import shards
from test_arrays import run
print(sum(run(shards.double_when_told, Path(sys.argv[1]))))
"""


def test_who_comes_after_a_killed_driver_takes_over_its_shards(tmp_path: Path) -> None:
    path = os.pathsep.join([str(HERE), str(HERE.parent)])
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], env=os.environ | {"PYTHONPATH": path})
    wait_until(lambda: len(count_runs(tmp_path)) == 4)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    (tmp_path / "go").touch()
    assert run(shards.double_when_told, tmp_path) == list(range(0, 20, 2))
    assert set(count_runs(tmp_path).values()) == {1}


def test_slurms_own_message_comes_with_the_name_of_the_stage(tmp_path: Path) -> None:
    arrays = SlurmArrays(2, Folder(tmp_path / "out"), JobOptions(partition="nosuch"), 2, "stage 1 (toy)")
    with pytest.raises(OSError, match=r"stage 1 \(toy\): sbatch: error: invalid partition specified: nosuch"):
        list(arrays(partial(shards.double, tmp_path), range(4)))
    assert str(tmp_path / "out") not in {job.folder for job in read_queue().values()}
