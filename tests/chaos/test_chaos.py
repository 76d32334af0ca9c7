"""A short `make chaos`: kills of a stage, and of the command that does the same."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("run.py")


@pytest.mark.skipif(sys.platform != "linux", reason="looks at runs through /proc")
def test_a_few_faults_lose_nothing(tmp_path: Path) -> None:
    targets = ("stage 1 simulate", "simulate")
    command = [sys.executable, str(RUN), "--dir", str(tmp_path), "--kills", "6", "--only-kills", "--only", *targets]
    # Commands that other tests ran in this process have set it for their workers; it hides the modules beside run.py.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"(\d+) faults, (\d+) of them kill -9: (\d+) results lost", done.stdout)
    assert found and found.groups() == ("9", "9", "0")
    assert not any(tmp_path.iterdir())
