"""docs/reliability.md: the prose of reliability.md.in with the figures of the last `make chaos` and `make fuzz`.

Both write their figures into figures.json beside this file, and the page again.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any, Literal

from sortk.formats.files import atomic_text
from sortk.run.folders import find_commit

TEMPLATE = Path(__file__).with_name("reliability.md.in")
FIGURES = Path(__file__).with_name("figures.json")
CHECKOUT = Path(__file__).parents[2]
PAGE = CHECKOUT / "docs" / "reliability.md"


def find_tested_commit(to_publish: bool) -> str:
    """Return the commit of this checkout, marked if files were changed since, but for the page, which both programs
    write; exit if a page is to name it and it is marked."""
    written = [f":!{path.relative_to(CHECKOUT)}" for path in (FIGURES, PAGE)]
    command = ["git", "-C", str(CHECKOUT), "status", "--porcelain", "--untracked-files=no", "--", ".", *written]
    changed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    if changed and to_publish:
        sys.exit(f"commit or undo your changes first, since the page names the commit that was tested:\n{changed}")
    return find_commit().removesuffix("-dirty") + ("-dirty" if changed else "")


def publish(part: Literal["chaos", "fuzz"], figures: Mapping[str, Any], commit: str) -> None:
    """Keep the figures of a run of this commit, and write the page with them and with those of the other program."""
    known = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {}
    known[part] = {**figures, **_describe_machine(), "commit": commit}
    for path, text in ((FIGURES, json.dumps(known, indent=1, sort_keys=True) + "\n"), (PAGE, format_page(known))):
        with atomic_text(path) as file:
            file.write(text)


def format_page(figures: Mapping[str, Any]) -> str:
    values = {}
    for part, target in (("chaos", "`make chaos`"), ("fuzz", "`make fuzz`")):
        found = figures.get(part, {})
        values[f"{part}_summary"] = found.get("summary", "Not run yet.")
        values[f"{part}_about"] = _say_how(target, found) if found else ""
        for name in ("table", "attacks"):
            values[f"{part}_{name}"] = format_table(found[name]) if name in found else ""
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(values)


def _say_how(target: str, found: Mapping[str, Any]) -> str:
    return (
        f"{target} with `{found['command']}`, commit {found['commit']}, {found['date']}, {found['machine']}, "
        f"{found['minutes']:.0f} minutes"
        + (f", {found['cpu_minutes']:.0f} of them on the CPU." if "cpu_minutes" in found else ".")
    )


def _describe_machine() -> dict[str, str]:
    machine = f"{platform.system()} {platform.machine()}, {len(os.sched_getaffinity(0))} core(s)"
    return {
        "date": datetime.date.today().isoformat(),
        "machine": f"{machine}, Python {platform.python_version()}",
    }


def format_table(rows: Sequence[Sequence[Any]]) -> str:
    """Markdown of rows of which the first holds the titles; a count of None is a dash."""
    lines = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    lines.insert(1, ["---", *["---:"] * (len(lines[0]) - 1)])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        f"| {line[0].ljust(widths[0])} | "
        f"{' | '.join(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))} |"
        for line in lines
    )
