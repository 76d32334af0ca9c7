from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from sortk.formats.files import FormatError
from sortk.run.folders import Folder
from sortk.run.workers import choose_cluster, run_local


def add(constant: int, item: int) -> int:
    return constant + item


def reject_seven(item: int) -> int:
    if item == 7:
        raise FormatError("some.rttm", 7, "seven is not allowed")
    return item


def die(item: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return item


@pytest.mark.parametrize("n_jobs", [1, 3])
def test_results_come_in_the_order_of_the_items(n_jobs: int) -> None:
    assert list(run_local(partial(add, 100), range(50), n_jobs)) == list(range(100, 150))
    assert list(run_local(partial(add, 100), [], n_jobs)) == []


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_an_error_in_a_worker_arrives_as_it_is(n_jobs: int) -> None:
    with pytest.raises(FormatError, match="some.rttm, line 7: seven is not allowed") as caught:
        list(run_local(reject_seven, range(20), n_jobs))
    assert caught.value.line == 7


def test_a_killed_worker_is_one_sentence() -> None:
    with pytest.raises(OSError, match="a worker process was killed"):
        list(run_local(die, range(4), 2))


ENDLESS = """
import os, time
from sortk.run.workers import run_local
def sleep(item):
    os.write(1, b"%d\\n" % os.getpid())  # in one go: print could mix the lines of two workers
    time.sleep(60)
if __name__ == "__main__":
    list(run_local(sleep, range(2), 2))
"""


def test_workers_die_with_a_killed_parent(tmp_path: Path) -> None:
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS, encoding="utf-8")
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    workers = [int(parent.stdout.readline()) for _ in range(2)]
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 300
    while any(Path(f"/proc/{pid}").exists() and "Z" not in _state(pid) for pid in workers):
        assert time.monotonic() < deadline, "workers outlived their parent"
        time.sleep(0.05)


def test_a_worker_whose_parent_died_before_it_began_ends_at_once() -> None:
    code = (
        "import os; from sortk.run.workers import _start_worker; _start_worker(b'', 1, os.getpid()); print('goes on')"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "")


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_without_slurm_one_sentence_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="--cluster slurm: there is no Slurm on this machine .*use --cluster local"):
        choose_cluster("slurm", 4, Folder(tmp_path / "out"))


def count_threads(item: int) -> int:
    if item:
        return int(os.environ["OMP_NUM_THREADS"])
    import torch

    return torch.get_num_threads()


def test_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    n_cores = len(os.sched_getaffinity(0))
    assert set(run_local(count_threads, range(2), n_jobs=2)) == {max(1, n_cores // 2)}


INTERRUPTED = """
import signal, time
from sortk.run.workers import run_local
def sleep(item):
    time.sleep(0.01)
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background of a shell ignores it
    print("started", flush=True)
    try:
        list(run_local(sleep, range(10**9), 4))
    except KeyboardInterrupt:
        raise SystemExit(130)
"""


@pytest.mark.parametrize("seconds", [0.05, 0.3, 0.8])
def test_ctrl_c_while_workers_start_prints_nothing(tmp_path: Path, seconds: float) -> None:
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED, encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None and process.stdout.readline() == "started\n"
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 130 and "Traceback" not in stderr, stderr
