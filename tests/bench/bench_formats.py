"""How fast a million RTTM lines are read, against splitting the same lines and nothing else; memory stays flat."""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path

from sortk.formats import rttm

N_LINES = 1_000_000


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "large.rttm"
        with path.open("w", encoding="utf-8") as file:
            for n in range(N_LINES):
                file.write(f"SPEAKER s{n // 500} 1 {n % 500 * 1.37:.2f} 1.25 <NA> <NA> spk{n % 4} <NA> <NA>\n")
        began = time.perf_counter()
        with path.open(encoding="utf-8") as file:
            for line in file:
                line.split()
        split_seconds = time.perf_counter() - began
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.perf_counter()
        n_segments = sum(1 for _ in rttm.stream(path))
        seconds = time.perf_counter() - began
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert n_segments == N_LINES
    print(f"RTTM: {N_LINES} lines in {seconds:.1f} s, {seconds / split_seconds:.1f} x splitting them; "
          f"memory grew by {grown / 1024:.0f} MB")  # fmt: skip


if __name__ == "__main__":
    main()
