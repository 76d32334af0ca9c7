"""What comes from others, and what goes out: bounded packages, no shell, quoted jobs, no environment in files."""

from __future__ import annotations

import ast
import itertools
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from sortk.run.folders import Folder, Identity, build_folder
from sortk.slurm.jobs import StageJob, write_script
from sortk.slurm.options import JobOptions

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "sortk").rglob("*.py"))
OWN_PICKLES = {
    "sortk/run/workers.py",
    "sortk/slurm/arrays.py",
}  # of its own jobs

FORBIDDEN = {"os.system", "os.popen", "eval", "exec", "subprocess.getoutput", "subprocess.getstatusoutput"}


def calls_in(path: Path) -> list[tuple[str, ast.Call]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [(ast.unparse(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]


def keyword(call: ast.Call, name: str) -> str:
    return next((ast.unparse(given.value) for given in call.keywords if given.arg == name), "")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_text_becomes_a_command_or_code(path: Path) -> None:
    for name, call in calls_in(path):
        where = f"{path.name}, line {call.lineno}: {name}"
        assert name not in FORBIDDEN, where
        assert keyword(call, "shell") in ("", "False"), where
        if name in ("pickle.load", "pickle.loads"):
            assert str(path.relative_to(ROOT)) in OWN_PICKLES, where
        if name == "torch.load":
            assert keyword(call, "weights_only") == "True", where
        if name in ("np.load", "numpy.load"):
            assert keyword(call, "allow_pickle") == "False", where
        if name == "yaml.load":
            assert "_PlainLoader" in ast.unparse(call), where


def test_every_package_has_a_lower_and_an_upper_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = [project["project"]["dependencies"], *project["project"]["optional-dependencies"].values()]
    for line in itertools.chain(project["build-system"]["requires"], *groups):
        if line.startswith(("sortk[", "torch>=")):  # why torch has no upper bound: test_package
            continue
        assert re.fullmatch(r"[\w.-]+(==[\w.*]+|>=[\w.]+,<[\w.]+)", line), line
    assert "<" in project["project"]["requires-python"]


NASTY = "a b'c\"d$(touch pwned)`touch pwned`;touch pwned\\&|<>*?~#%j"


@pytest.mark.parametrize("trains", [False, True])
def test_names_and_paths_reach_a_job_as_they_are(tmp_path: Path, trains: bool) -> None:
    """The script is run, with commands of Slurm that hand on what they are given."""
    tell = tmp_path / "tell.py"
    tell.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n", encoding="utf-8")
    tell.chmod(0o755)
    for name in ("scontrol", "sed", "head"):
        (tmp_path / name).symlink_to("/bin/true")
    (tmp_path / "srun").write_text('#!/bin/bash\nshift; exec "$@"\n', encoding="utf-8")
    (tmp_path / "srun").chmod(0o755)
    arguments = ["stage", "5", "--recipe", NASTY, "--exp", f"/x/{NASTY}", "--set", f"prepare.corpora_dir={NASTY}\nx"]
    folder = Folder(tmp_path / NASTY.replace("/", "") / "05-train-diar")
    options = JobOptions(account=NASTY, sbatch=(f"--comment={NASTY}", "--exclusive"))
    job = StageJob("stage 5 (train-diar)", folder, [str(tell), "-m", "sortk", *arguments], options, trains)
    script = write_script(job)
    finished = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7"},
    )  # fmt: skip
    given = json.loads(finished.stdout)
    assert given[given.index("sortk") + 1 :] == arguments, finished.stderr
    assert not (tmp_path / "pwned").exists()
    flags = dict(shlex.split(line)[1].removeprefix("--").partition("=")[::2] for line in script.splitlines()
                 if line.startswith("#SBATCH") and shlex.split(line, comments=False))  # fmt: skip
    assert flags["account"] == NASTY
    assert flags["output"].replace("%%", "%") == str(job.log)
    assert flags["comment"] in (NASTY, str(folder.final))


@pytest.mark.parametrize("options", [{"sbatch": ("--x\ntouch pwned",)}, {"partition": "a\ntouch pwned"}])
def test_an_option_with_a_line_break_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="holds a line break"):
        JobOptions(**options)


def test_no_environment_in_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "hunter2-3f9c"
    monkeypatch.setenv("SOME_TOKEN", secret)
    identity = Identity("stage 1 (simulate)", {"hours": 1}, {})

    def fail(partial: Path) -> None:
        (partial / "file").write_text("x", encoding="utf-8")
        raise ValueError("oh no")

    with pytest.raises(ValueError, match="oh no"):
        build_folder(Folder(tmp_path / "failed"), identity, fail)
    build_folder(Folder(tmp_path / "done"), identity, lambda partial: (partial / "file").touch())
    job = StageJob("stage 1 (simulate)", Folder(tmp_path / "done"), ["sortk"], JobOptions(), trains=False)
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) >= 5
    assert not any(secret.encode() in content for content in [*written, write_script(job).encode()])
