"""Pictures for the README (make screenshots), of a finished report: python screenshots.py REPORT.html FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

from chromium import browse

MAX_BYTES = 300_000
# A session in the middle of the list, in the middle of a word.
CHOOSE = """
(() => {
  const heard = shown.filter((row) => row.view?.audio);
  choose(heard[Math.floor(heard.length / 2)]);
  const word = view.view.reference_words.find((one) => one[1] > 0.45 * view.view.duration);
  view.seek(word ? (word[1] + word[2]) / 2 : 0);
  view.row.element.scrollIntoView({ block: "center", behavior: "instant" });
  document.documentElement.style.scrollBehavior = "auto";
  document.querySelector("#sessions").scrollIntoView();
})()
"""


def main() -> None:
    report, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    with browse() as tab:
        tab.open(report, width=1280, height=960)
        tab.run(CHOOSE)
        tab.screenshot(folder / "report.png")
        tab.screenshot(folder / "session.png", of="#view")
    for path in (folder / "report.png", folder / "session.png"):
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise SystemExit(f"{path}: {size} bytes, which is more than the {MAX_BYTES} that a README should load")
        print(f"{path}: {size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
