"""Tests on a real Slurm with two nodes, all on this machine: `make test-slurm` starts it, and stops it again."""

from __future__ import annotations

import getpass
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PATIENCE_SECONDS = 600.0  # on a machine that has other things to do


@pytest.fixture(scope="session", autouse=True)
def cluster() -> None:
    if "SLURM_CONF" not in os.environ:
        pytest.skip("make test-slurm starts the Slurm that these tests are for")
    os.environ["PYTHONPATH"] = str(HERE)  # where jobs find what the tests have them do


@pytest.fixture(autouse=True)
def leave_no_jobs() -> Iterator[None]:
    """A test that fails must not keep the machine busy for those after it."""
    yield
    subprocess.run(["scancel", f"--user={getpass.getuser()}"], check=True)


def wait_until(is_so: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "waited for too long"
        time.sleep(0.2)
