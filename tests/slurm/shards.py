"""What the shards of the tests do: functions that a job can import. Each notes that it ran."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def note(folder: Path, item: int) -> int:
    """Adds a line to the item's file; how many times the item has been begun."""
    path, array = folder / f"{item}.ran", os.environ.get("SLURM_ARRAY_JOB_ID")
    job_id = f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ["SLURM_JOB_ID"]
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{job_id}\n")
    return len(path.read_text(encoding="utf-8").split())


def double(folder: Path, item: int) -> int:
    note(folder, item)
    return 2 * item


def double_unless_killed(folder: Path, item: int) -> int:
    """The first time: item 3 kills its own process, item 7 waits to be cancelled."""
    first = note(folder, item) == 1
    if first and item == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if first and item == 7:
        time.sleep(100)
    return 2 * item


def double_once_mended(folder: Path, item: int) -> int:
    """Item 5 finds its disk out of reach until there is a file `mended`."""
    note(folder, item)
    if item == 5 and not (folder / "mended").exists():
        raise OSError("the disk is out of reach")
    return 2 * item


def reject_five(folder: Path, item: int) -> int:
    note(folder, item)
    if item == 5:
        raise ValueError("some.rttm, line 5: five is not allowed")
    return 2 * item


def double_when_told(folder: Path, item: int) -> int:
    """Waits for a file `go`."""
    note(folder, item)
    while not (folder / "go").exists():
        time.sleep(0.1)
    return 2 * item
