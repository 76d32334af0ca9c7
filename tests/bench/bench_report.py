"""The report of an experiment with 2,000 sessions of 90 s: how large it is, how long it takes to make and to open."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))

from chromium import browse, find_chromium
from small_experiment import write_experiment

from sortk.stages import report_experiment

N_SESSIONS = 2000
MAX_MEGABYTES, MAX_SECONDS = 30, 3


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        write_experiment(Path(name) / "exp", N_SESSIONS, seconds=90.0)
        began = time.perf_counter()
        page = report_experiment(Path(name) / "exp", None)
        seconds, megabytes = time.perf_counter() - began, page.stat().st_size / 1e6
        print(
            f"report of {N_SESSIONS} sessions: {megabytes:.1f} MB, {megabytes / MAX_MEGABYTES:.2f} x the limit of "
            f"{MAX_MEGABYTES} MB; made in {seconds:.1f} s"
        )
        if not find_chromium():
            print("no Chromium here, so it is not opened")
            return
        wall, used = measure_opening(page)
        print(
            f"opened in {wall:.2f} s, {wall / MAX_SECONDS:.2f} x the limit of {MAX_SECONDS} s; all processes of the "
            f"browser used {used:.2f} s of CPU for it, {used / MAX_SECONDS:.2f} x"
        )


def measure_opening(page: Path) -> tuple[float, float]:
    """Seconds by the clock, which on a busy machine tell little, and of CPU; the best of three."""
    with browse() as tab:
        tab.open(page)  # the browser itself starts
        measured = []
        for _ in range(3):
            before = tab.cpu_seconds()
            wall = tab.open(page)
            measured.append((wall, tab.cpu_seconds() - before))
    return min(wall for wall, _ in measured), min(used for _, used in measured)


if __name__ == "__main__":
    main()
