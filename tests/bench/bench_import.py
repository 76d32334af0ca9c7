"""Import of a `.nemo` file of the paper's size, 123M weights: seconds, and peak memory / size of the file."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).parents[1]
IMPORT = "sortk import-nemo"
MAX_SECONDS = 10
MAX_MEMORY = 2.5  # x the file

# This process stays small: a child's peak memory begins with that of its parent.
WRITE = """
import sys
from pathlib import Path
from nemo_models import sortformer_config, sortformer_tensors, write_nemo
from sortk.models.sortformer import SIZES, Sortformer
model = Sortformer(SIZES["base"])
write_nemo(Path(sys.argv[1]), sortformer_config(model.options), sortformer_tensors(model))
"""
LOAD = """
import sys
from pathlib import Path
from sortk.inference.load import load_diarizer
load_diarizer(Path(sys.argv[1]))
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        file, folder = Path(name) / "model.nemo", Path(name) / "model"
        measure([sys.executable, "-c", WRITE, str(file)])
        n_bytes = file.stat().st_size
        works = {
            IMPORT: [sys.executable, "-m", "sortk", "import-nemo", "-q", str(file), "--out", str(folder)],
            "load the .nemo file": [sys.executable, "-c", LOAD, str(file)],
            "load the folder": [sys.executable, "-c", LOAD, str(folder)],
            "only imports": [sys.executable, "-c", "import sortk.inference.load"],
        }
        print(f"{n_bytes / 1e6:.0f} MB               seconds   CPU seconds   peak memory / file")
        for about, command in works.items():
            seconds, cpu_seconds, peak = measure(command)
            print(f"{about:<20}{seconds:10.1f}{cpu_seconds:14.1f}{peak / n_bytes:19.2f} x")
            if about == IMPORT:
                assert peak < MAX_MEMORY * n_bytes, f"more memory than {MAX_MEMORY} x the file"
                assert cpu_seconds < MAX_SECONDS, f"more than {MAX_SECONDS} s"


def measure(command: list[str]) -> tuple[float, float, int]:
    """Seconds that a command takes, seconds of a processor, and the most memory that it has had, in bytes."""
    start = time.perf_counter()
    process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(TESTS)})
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"failed: {' '.join(command)}")
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


if __name__ == "__main__":
    main()
