"""Pictures for the README (make screenshots): the pages of the demo. python screenshots.py FOLDER."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from chromium import browse

DEMO = Path(__file__).parents[2] / "sortk" / "data"
MAX_BYTES = 150_000
SECONDS = 16.5  # where the cursor is


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, browse() as tab:
        work = Path(place)
        (work / "recordings").mkdir()
        shutil.copy(DEMO / "demo.ogg", work / "recordings")
        shutil.copy(DEMO / "demo.rttm", work / "ref.rttm")
        sortk(work, "diarize --demo --out-dir demo --html")
        sortk(work, "diarize --demo --out-dir sortformer")
        sortk(work, "diarize --demo --out-dir one-speaker --max-speakers 1")
        sortk(work, "report --ref ref.rttm --hyp sortformer --hyp one-speaker --audio recordings --out page.html")
        tab.open(work / "demo" / "demo.html", width=1280, height=740)
        tab.run(f"view.seek({SECONDS})")
        tab.screenshot(folder / "diarize.png")
        tab.open(work / "page.html", width=1280, height=900)
        tab.run(f"view.seek({SECONDS})")
        tab.screenshot(folder / "report.png", of="#view")
    for path in (folder / "diarize.png", folder / "report.png"):
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise SystemExit(f"{path}: {size} bytes, which is more than the {MAX_BYTES} that a README should load")
        print(f"{path}: {size / 1000:.0f} kB")


def sortk(work: Path, arguments: str) -> None:
    command, quiet = [sys.executable, "-m", "sortk", *arguments.split()], subprocess.DEVNULL
    subprocess.run(command, cwd=work, check=True, stdout=quiet, stderr=quiet)


if __name__ == "__main__":
    main()
