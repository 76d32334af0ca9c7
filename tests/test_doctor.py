"""What a bug report says: versions that fit, faults with advice, and nothing private."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import click
import pytest
import torch
from click.testing import CliRunner, Result
from packaging.requirements import Requirement

from sortk import __version__
from sortk.cli import main
from sortk.cli.options import complete_recipe
from sortk.run import doctor

SHELLS = ("bash", "zsh", "fish")


def sortk(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_the_version_is_that_of_torch_too_without_importing_it() -> None:
    cuda = torch.version.cuda or "none"
    python = ".".join(map(str, sys.version_info[:3]))
    expected = f"sortk {__version__}, Python {python}, torch {metadata.version('torch')}, CUDA {cuda}\n"
    assert sortk("--version").stdout == expected
    code = "import sys; from sortk.run.doctor import describe_versions; describe_versions(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy"} & set(loaded)


def test_a_healthy_machine_gets_one_screen_and_exit_code_0() -> None:
    result = sortk("doctor")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 100
    for name in ("sortk", "packages", "extras", "device", "memory", "disk", "Slurm", "corpora"):
        assert any(line.startswith(name) for line in lines), name
    assert lines[-1].split(maxsplit=1) == ["result", "everything that sortk needs works"]
    assert "pytest" not in result.stdout and "atheris" not in result.stdout  # extras for developers


def test_json_holds_the_same_findings() -> None:
    findings = json.loads(sortk("doctor", "--json").stdout)
    assert [finding["name"] for finding in findings][:3] == ["sortk", "system", "packages"]
    assert all(finding.keys() == {"name", "found", "advice"} for finding in findings)
    assert f"torch {metadata.version('torch')}" in findings[2]["found"]


def test_nothing_private_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = tmp_path / "home-of-jane"
    (private / "corpora" / "ami").mkdir(parents=True)
    monkeypatch.chdir(private)
    for name in ("USER", "LOGNAME", "HOME", "TOKEN"):
        monkeypatch.setenv(name, "jane-doe-secret")
    monkeypatch.setenv("CORPORA", str(private / "corpora"))
    for arguments in (("doctor",), ("doctor", "--json"), ("doctor", "-v")):
        output = sortk(*arguments).output
        assert "jane" not in output and str(tmp_path) not in output and "ami (missing:" in output


def test_corpora_are_found_by_their_names(tmp_path: Path) -> None:
    for name in ("ami", "fisher", "holiday"):
        (tmp_path / name).mkdir()
    finding = doctor.examine_corpora(str(tmp_path))
    assert finding.found.startswith("fisher, ami (missing: audiomnist, ") and not finding.advice
    assert "holiday" not in finding.found and "espeak" not in finding.found
    assert doctor.examine_corpora(str(tmp_path / "none")).advice
    assert not doctor.examine_corpora("").advice


def test_packages_that_are_missing_or_do_not_fit_are_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    requires = ["torch==1.0.*", "no-such-package>=2", "click>=8", 'also-missing>=1; extra == "more"']
    monkeypatch.setattr(metadata, "requires", lambda _: requires)
    [packages, _] = doctor.examine_packages()
    assert f"torch is {metadata.version('torch')}, not ==1.0.*; no-such-package is missing: run" in packages.advice
    assert "also-missing" not in packages.advice and "no-such-package missing" in packages.found
    extra = doctor._describe_extra([Requirement(line) for line in requires], "more")
    assert extra == "also-missing is missing"


def test_a_package_that_does_not_load_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)  # makes `import soundfile` fail
    [packages, _] = doctor.examine_packages()
    assert "soundfile cannot be loaded (ModuleNotFoundError)" in packages.advice
    assert sortk("doctor").exit_code == 1 and "\n!  " in sortk("doctor").stdout


def test_a_package_of_an_extra_that_does_not_load_is_not_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torchaudio with a torch that is newer than every torchaudio."""
    requires = ["click>=8", 'torchaudio>=2.6; extra == "wavlm"']
    monkeypatch.setattr(metadata, "requires", lambda _: requires)
    monkeypatch.setattr(doctor, "_installed_version", lambda _: "9.0")
    monkeypatch.setitem(sys.modules, "torchaudio", None)
    [packages, _] = doctor.examine_packages()
    assert not packages.advice
    extra = doctor._describe_extra([Requirement(line) for line in requires], "wavlm")
    assert extra == "torchaudio cannot be loaded (ModuleNotFoundError), which only WavLM needs"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_write_access_is_a_fault(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert doctor.examine_access(tmp_path).advice


def test_a_folder_that_cannot_be_written_is_told_and_left_clean(tmp_path: Path) -> None:
    assert doctor.examine_access(tmp_path / "gone").advice == "change to a folder that you can write to"
    assert not doctor.examine_access(tmp_path).advice and not list(tmp_path.iterdir())


def test_a_full_disk_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**12, 10**12 - 10**8, 10**8))  # type: ignore[attr-defined]
    finding = doctor.examine_disk(tmp_path)
    assert finding.found == "1000 GB, 0.1 GB free" and "make room" in finding.advice


def test_slurm_is_described_by_the_states_of_its_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.examine_slurm().found == "none (no sinfo)"
    sinfo = tmp_path / "sinfo"
    sinfo.write_text("#!/bin/sh\necho 3 nodes idle\necho 1 nodes down\n", encoding="utf-8")
    sinfo.chmod(0o755)
    assert doctor.examine_slurm().found == "3 nodes idle, 1 nodes down"
    sinfo.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    assert "no controller answers" in doctor.examine_slurm().found


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_scripts_are_those_of_click(shell: str) -> None:
    script = sortk("completion", shell).stdout
    assert f"_SORTK_COMPLETE={shell}_complete" in script


def test_bash_completes_commands_options_and_recipes() -> None:
    def complete(line: str) -> list[str]:
        variables = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1), "PATH": os.environ["PATH"]}
        command = [sys.executable, "-m", "sortk"]
        environment = variables | {"_SORTK_COMPLETE": "bash_complete"}
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return [row.split(",")[1] for row in result.stdout.split()]

    assert complete("sortk train") == ["train-diar", "train-asr"]
    assert "--int8" in complete("sortk diarize --i")
    assert complete("sortk run --recipe call") == ["callhome"]


def test_other_recipes_are_files() -> None:
    context = click.Context(main)
    [item] = complete_recipe(context, main.params[0], "./my")
    assert (item.value, item.type) == ("./my", "file")
