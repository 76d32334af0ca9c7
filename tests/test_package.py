"""What a user gets from `pip install`: the wheel works without the checkout, without a compiler, and where parts of the
system are missing. Commands run in new processes, in an environment that has sortk from the wheel only."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

import numpy as np
import pytest
from nemo_models import random_sortformer
from packaging.requirements import Requirement

from sortk import __version__
from sortk.formats import audio, manifest, rttm, seglst, sources, stm
from sortk.formats.model_folder import save_model
from sortk.models.fastconformer import FastConformerOptions
from sortk.models.features import FeatureOptions
from sortk.models.sortformer import SortformerOptions
from sortk.models.transformer import TransformerOptions
from sortk.records import Segment, Session, Source

CHECKOUT = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(not (CHECKOUT / "pyproject.toml").exists(), reason="not a checkout")

# Runs at the start of every Python of the environment; what is hidden is what the variable HIDDEN names.
HIDE = """
import ctypes, errno, os, sys

hidden = os.environ.get("HIDDEN", "").split()
for name in hidden:
    if name == "macos":  # what Linux has and macOS does not; fcntl is missing on Windows
        sys.modules["fcntl"] = None
        del os.sched_getaffinity, os.sched_setaffinity
        find, read_limit = ctypes.CDLL.__getattr__, os.sysconf

        def find_function(library, name):
            if name in ("mallopt", "malloc_trim", "prctl"):
                raise AttributeError(name)
            return find(library, name)

        def sysconf(name):
            if name == "SC_AVPHYS_PAGES":
                raise ValueError("unrecognized configuration name")
            return read_limit(name)

        def hide_proc(event, arguments):
            if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith("/proc/"):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), arguments[0])

        ctypes.CDLL.__getattr__, os.sysconf = find_function, sysconf
        sys.addaudithook(hide_proc)
    else:
        sys.modules[name] = None  # an import raises ImportError
"""


@dataclass(frozen=True)
class Installed:
    """An environment with sortk from its wheel, and a folder with files to use it on."""

    wheel: Path
    python: Path
    folder: Path

    def run(self, *command: str, hidden: str = "meeteval") -> subprocess.CompletedProcess[str]:
        """Run a program of the environment; PATH has no compiler."""
        program = self.python.with_name(command[0])
        variables = {
            "PATH": str(self.python.parent),
            "CC": "/nonexistent",
            "CXX": "/nonexistent",
            "HIDDEN": hidden,
            "OMP_NUM_THREADS": "1",
            "XDG_CACHE_HOME": str(self.folder / "cache"),
        }
        return subprocess.run(
            [program, *command[1:]], cwd=self.folder, env=variables, capture_output=True, text=True, check=False
        )

    def sortk(self, *arguments: str, hidden: str = "meeteval") -> str:
        """Return the standard output of a command that works."""
        result = self.run("sortk", *arguments, hidden=hidden)
        assert result.returncode == 0, result.stderr
        return result.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("package")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(CHECKOUT)]
    subprocess.run(build, check=True, capture_output=True)
    [wheel] = folder.glob("sortk-*.whl")
    venv.create(folder / "env", symlinks=True)
    python = folder / "env" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "--quiet", "install"]
    subprocess.run([*pip, "--no-deps", "--no-index", "--no-compile", str(wheel)], check=True, capture_output=True)
    # The dependencies are those of this environment. Its own .pth files, an editable sortk among them, have no effect.
    [packages] = (folder / "env" / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\nimport hide\n", encoding="utf-8")
    (packages / "hide.py").write_text(HIDE, encoding="utf-8")
    write_files(folder)
    return Installed(wheel, python, folder)


def write_files(folder: Path) -> None:
    """Write a recording, who spoke when and what, its manifest, and a diarizer with random weights."""
    time = np.arange(6 * 16000) / 16000
    segments = [Segment("meeting", "a", 0.5, 3.0, "shall we start"), Segment("meeting", "b", 2.5, 5.5, "yes let us")]
    hums = [
        np.sin(2 * np.pi * pitch * time) * ((time >= each.start) & (time < each.end))
        for pitch, each in zip((150, 260), segments, strict=True)
    ]
    audio.write_flac(folder / "meeting.flac", (0.2 * sum(hums)).astype(np.float32))
    rttm.write(folder / "ref.rttm", segments)
    rttm.write(folder / "hyp.rttm", segments[:1])
    stm.write(folder / "ref.stm", segments)
    seglst.write(folder / "hyp.json", segments[:1])
    session = Session("meeting", folder / "meeting.flac", rttm_path=folder / "ref.rttm", duration=6.0)
    manifest.write(folder / "dev.jsonl", [session])
    said = [Source(each.speaker, folder / "meeting.flac", 0.0, 2.0, each.speaker, "yes") for each in segments]
    sources.write(folder / "sources.jsonl", said)
    options = SortformerOptions(
        features=FeatureOptions(n_mels=16),
        encoder=FastConformerOptions(d_model=32, n_layers=1, n_heads=2, subsampling_channels=8),
        transformer=TransformerOptions(d_model=16, n_layers=1, n_heads=2, d_inner=32),
    )
    config = {"model": "sortformer", "options": options.to_json()}
    save_model(folder / "model", random_sortformer(options).state_dict(), config)


def test_the_wheel_holds_all_that_a_user_needs(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        names = set(archive.namelist())
        [described] = (name for name in names if name.endswith(".dist-info/METADATA"))
        fields = HeaderParser().parsestr(archive.read(described).decode())
    recipes = {f"sortk/{path.relative_to(CHECKOUT)}" for path in CHECKOUT.glob("recipes/*/*.*")}
    data = {str(path.relative_to(CHECKOUT)) for path in (CHECKOUT / "sortk" / "data").rglob("*") if path.is_file()}
    assert recipes and data and recipes | data | {"sortk/recipes/parse_options.sh"} <= names
    assert not any(name.startswith(("tests/", "docs/", "recipes/")) for name in names)
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert fields["Version"] == __version__ and "version" not in project  # it is written in sortk/__init__.py only
    assert (
        set(fields["Requires-Python"].split(",")) == set(project["requires-python"].split(",")) == {">=3.11", "<3.15"}
    )
    core = [name for name in fields.get_all("Requires-Dist") if "extra ==" not in name]
    assert len(core) == len(project["dependencies"]) and not any("meeteval" in name for name in core)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, tags do not tell where a wheel was made")
def test_no_dependency_was_compiled_on_this_machine() -> None:
    """A wheel that pip has compiled, as it does for meeteval, is for linux_x86_64 and not for manylinux."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    left = [Requirement(line) for line in project["dependencies"]]
    tags: dict[str, list[str]] = {"torch": ["any"]}  # always a wheel; that of 2.6 has the tag of a compiled one
    while left:
        needed = left.pop()
        name = re.sub(r"[-_.]+", "-", needed.name).lower()
        if name not in tags and (needed.marker is None or needed.marker.evaluate({"extra": ""})):
            package = importlib.metadata.distribution(name)
            tags[name] = re.findall(r"^Tag: (.*)$", package.read_text("WHEEL") or "", re.MULTILINE)
            left += [Requirement(line) for line in package.requires or []]
    assert {"click", "kaldialign", "pyannote-metrics", "scikit-learn"} <= tags.keys()
    for name, found in tags.items():
        assert found and all(tag.endswith("any") or "manylinux" in tag for tag in found), (name, found)


def test_torch_has_no_upper_limit() -> None:
    """pip first chooses the versions of packages with an upper limit, even before those that the user names.

    With `torch<3`, pip took the newest torch, and then vllm 0.19.1 instead of 0.32.0, which needs an older torch.
    """
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [torch] = (needed for needed in map(Requirement, project["dependencies"]) if needed.name == "torch")
    assert [each.operator for each in torch.specifier] == [">="]


def test_every_installed_file_is_from_the_wheel(installed: Installed) -> None:
    source = (
        "import sortk; print(sortk.__file__); import shutil; print([shutil.which(n) for n in ('cc', 'gcc', 'c++')])"
    )
    place, compilers = installed.run("python", "-c", source).stdout.splitlines()
    assert Path(place).is_relative_to(installed.python.parents[1]) and compilers == "[None, None, None]"
    assert __version__ in installed.sortk("--version") and "diarize" in installed.sortk("--help")
    listed = installed.sortk("recipes")
    for path in (CHECKOUT / "recipes").glob("*/recipe.toml"):
        assert re.search(rf"^{path.parent.name}\b", listed, re.MULTILINE)


def test_installed_scores_are_right_without_meeteval(installed: Installed) -> None:
    installed.sortk("score", "der", "--ref", "ref.rttm", "--hyp", "hyp.rttm", "--collar", "0", "--json", "der.json")
    # 2.5 s of a and 3 s of b; b is missing
    assert json.loads((installed.folder / "der.json").read_text())["overall"]["der"] == pytest.approx(3 / 5.5, abs=1e-4)
    installed.sortk("score", "cpwer", "--ref", "ref.stm", "--hyp", "hyp.json", "--json", "cpwer.json")
    overall = json.loads((installed.folder / "cpwer.json").read_text())["overall"]
    assert overall["cpwer"] == pytest.approx(3 / 6)  # three words of six are missing


# Several commands in one process: an import of torch takes as long as any of them. The last one gives the exit code.
COMMANDS = """
import contextlib, sys
import sortk.inference.transcribe
from sortk.cli import main
*others, last = sys.argv[1:]
for command in others:
    if command.startswith("hide "):
        sys.modules[command.removeprefix("hide ")] = None
    else:
        with contextlib.suppress(SystemExit):
            main(command.split())
main(last.split())
"""


def test_what_may_be_missing_is_not_needed(installed: Installed) -> None:
    """torchaudio that cannot be imported, and what Linux has but other systems do not."""
    diarize = "diarize meeting.flac --model model"
    tune = "tune --model model --manifest dev.jsonl --out postprocess.toml --trials 3"
    (installed.folder / "train.toml").write_text(
        'model = "wavlm-eend-vc"\nsize = "tiny"\nglobal_speakers = true\nphases = [{loop = {steps = 1}}]\n',
        encoding="utf-8",
    )
    train = "train-diar --train dev.jsonl --valid dev.jsonl --out diar --config train.toml"
    plain = installed.run("python", "-c", COMMANDS, diarize, tune, "hide torchaudio", train)
    found = [line for line in plain.stdout.splitlines() if line.startswith("SPEAKER meeting 1 ")]
    assert found and tomllib.loads((installed.folder / "postprocess.toml").read_text(encoding="utf-8")), plain.stderr
    errors = [line for line in plain.stderr.splitlines() if line.startswith("sortk: ")]
    assert plain.returncode == 1 and len(errors) == 1 and "Traceback" not in plain.stderr, plain.stderr
    needed = r"WavLM needs torchaudio, which cannot be imported \(.*\): pip install 'sortk\[wavlm\]'"
    assert re.search(needed, errors[0]) and plain.stderr.splitlines()[-1] == errors[0]

    commands = (diarize, "doctor", "score der --ref ref.rttm --hyp hyp.rttm")
    without = installed.run("python", "-c", COMMANDS, *commands, hidden="meeteval torchaudio macos")
    assert without.returncode == 0 and without.stdout.splitlines()[: len(found)] == found, without.stderr
    said = " ".join(without.stdout.split())
    missing = importlib.util.find_spec("torchaudio") is None  # where torch is newer than every torchaudio
    why = "is missing" if missing else "cannot be loaded (ModuleNotFoundError), which only WavLM needs"
    assert f"torchaudio {why}" in said
    assert "everything that sortk needs works" in said
    assert re.search(r"^memory +[\d.]+ GB$", without.stdout, re.MULTILINE)  # and not what is free
    assert f"{os.cpu_count()} of {os.cpu_count()} cores" in without.stdout
    assert "OVERALL" in without.stdout
