"""A real Slurm with two nodes on this machine, for the whole run of tests: `make test-slurm`."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
TEST_CLUSTER = HERE.parents[1] / "bin" / "test-cluster"


@pytest.fixture(scope="session", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if not shutil.which("slurmctld"):
        pytest.skip("there is no Slurm on this machine")
    folder = tmp_path_factory.mktemp("cluster") / "slurm"
    started = subprocess.run([TEST_CLUSTER, "start", folder, "2"], capture_output=True, text=True, check=False)
    assert started.returncode == 0, started.stderr
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    os.environ["PYTHONPATH"] = str(HERE)
    try:
        yield
    finally:
        subprocess.run([TEST_CLUSTER, "stop", folder], check=True)


def wait_until(is_so: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "waited for too long"
        time.sleep(0.2)
