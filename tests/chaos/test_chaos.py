"""A short `make chaos`: kills of a stage and of the command that does the same, and one class of attacks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("run.py")


@pytest.mark.skipif(sys.platform != "linux", reason="looks at runs through /proc")
def test_a_few_faults_lose_nothing(tmp_path: Path) -> None:
    targets = ("stage 1 simulate", "simulate", "locks that are something else")
    command = [sys.executable, str(RUN), "--dir", str(tmp_path), "--state", str(tmp_path / "state"), "--kills", "4"]
    command += ["--only-kills", "--only", *targets]
    # Commands that other tests ran in this process have set it for their workers; it hides the modules beside run.py.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"(\d+) faults, (\d+) of them kill -9: (\d+) results lost", done.stdout)
    assert found and found.groups() == ("6", "6", "0")
    assert re.search(r"commands on hostile files, folders and settings: 0 did not hold", done.stdout)
    assert not any(tmp_path.iterdir())


def test_the_page_has_the_figures_of_the_last_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(RUN.parent)
    import page

    figures = json.loads(page.FIGURES.read_text(encoding="utf-8"))
    assert page.PAGE.read_text(encoding="utf-8") == page.format_page(figures), "make chaos and make fuzz write the page"
    for part in ("chaos", "fuzz"):
        assert figures[part]["table"][-1][0] == "all" and figures[part]["commit"]


def test_the_page_names_a_commit_without_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(RUN.parent)
    import page

    files = {name: tmp_path / name for name in ("PAGE", "FIGURES", "code.py")}
    for path in files.values():
        path.write_text("1")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for arguments in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "1"]):
        subprocess.run([*git, *arguments], check=True)
    monkeypatch.setattr(page, "CHECKOUT", tmp_path)
    for name in ("PAGE", "FIGURES"):
        monkeypatch.setattr(page, name, files[name])
        files[name].write_text("2")  # as the other program has done
    monkeypatch.setattr(page, "find_commit", lambda: "abc-dirty")
    assert page.find_tested_commit(to_publish=True) == "abc"
    files["code.py"].write_text("2")
    assert page.find_tested_commit(to_publish=False) == "abc-dirty"
    with pytest.raises(SystemExit, match=r"commit or undo your changes first.*\n M code.py"):
        page.find_tested_commit(to_publish=True)


def test_a_table_as_markdown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(RUN.parent)
    import page

    table = page.format_table([["what", "a"], ["longer", 12], ["x", None]])
    assert table.split("\n") == ["| what   |    a |", "| ---    | ---: |", "| longer |   12 |", "| x      |    - |"]
