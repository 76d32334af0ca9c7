"""A short run of the fuzzer (`make fuzz` is the long one), and the inputs that once found a bug."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import numpy as np
import pytest
import soundfile

from fuzz.mutate import mutate
from fuzz.run import FOLDER, find_fault, make_input, share_inputs, try_input
from fuzz.targets import FILE, NXT, RECIPE, TARGETS, Parts

N_INPUTS = 12_000  # in all


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / FOLDER
    path.mkdir()
    return path


@pytest.mark.parametrize("name", TARGETS)
def test_a_damaged_file_is_read_or_is_one_sentence(name: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    target, n_inputs = TARGETS[name], share_inputs(N_INPUTS, list(TARGETS))[name]
    seeds, rng = target.seeds(), random.Random(name)
    try_input(target, dict(seeds[0]), folder)  # imports take memory, too
    for parts in seeds if target.seeds_are_valid else ():
        assert try_input(target, dict(parts), folder) == (True, "")
    for number in range(n_inputs):
        parts = mutate(rng, seeds)
        assert not (fault := try_input(target, parts, folder)[1]), (number, fault, parts)


DEEP = b"[" * 5000
FOUND: dict[str, tuple[str, Parts]] = {
    "variants that are no tables": ("recipe", {FILE: b"variants = 3\n"}),
    "a variant that is no table": ("recipe", {FILE: b"[variants]\ndense = 3\npil = {}\n"}),
    "a variant that is not there": ("recipe", {FILE: RECIPE.replace("variants.pil", "variants.pit").encode()}),
    "a variant of 5000 letters": ("recipe", {FILE: RECIPE.replace("variants.pil", "variants." + "x" * 5000).encode()}),
    "a phase of 6000 letters": ("set option", {FILE: b"train_diar.phases.0.name=" + b"$(id)" * 1200}),
    "deep TOML": ("recipe", {FILE: b"seed = " + DEEP}),
    "a number of 5000 digits": ("recipe", {FILE: b"seed = " + b"9" * 5000}),
    "a key of 90000 characters": ("recipe", {FILE: b"s" * 90_000 + b" = 1"}),
    "an option of 90000 characters": ("set option", {FILE: b"simulate.overlap=" + b"x" * 90_000}),
    "an item that is not there": ("set option", {FILE: b"train_diar.phases.0\x00.loop.steps=3"}),
    "deep postprocessing": ("postprocess", {FILE: b"onset = " + DEEP}),
    "a large onset": ("postprocess", {FILE: b"onset = " + b"9" * 5000}),
    "an onset that no float holds": ("postprocess", {FILE: b"onset = " + b"9" * 400}),
    "an encoding that there is not": ("nxt xml", {FILE: NXT.replace("8859", "8s59").encode()}),
    "an encoding that XML cannot have": ("nxt xml", {FILE: NXT.replace("ISO-8859-1", "utf-7").encode()}),
    "a key with a line break": ("set option", {FILE: b"simulate.hours.tr\x1eain=x"}),
    "tiers by the googol": (
        "textgrid",
        {FILE: b'"ooTextFile" "TextGrid" 0 1 <exists> ' + b"9" * 5000},
    ),
    "an array with half a header": ("posteriors", {FILE: b"\x93NUMPY\x01\x00v\x00{'descr': ('<f4" + b" " * 200}),
    "brackets without end": ("ldc", {FILE: b"1 2 A: " + b"[" * 100_000}),
    "a name of several lines": ("named files", {FILE: b'{"audio_filepath": "x\\ny\\u2028z"}'}),
    "a name of 6000 characters": ("named files", {FILE: b'{"audio_filepath": "' + b"a/" * 3000 + b'"}'}),
    "zeros without end": ("named files", {FILE: b'{"audio_filepath": "a.wav", "rttm_filepath": "/dev/zero"}'}),
    "a pipe without a writer": ("named files", {FILE: b'{"audio_filepath": "a.wav", "seglst_filepath": "fifo"}'}),
    "a region file that is a pipe": ("named files", {FILE: b'{"audio_filepath": "a.wav", "uem_filepath": "fifo"}'}),
    "a file whose disk fails": (
        "named files",
        {FILE: b'{"audio_filepath": "a.wav", "ctm_filepath": "/proc/self/mem"}'},
    ),
    "audio whose disk fails": ("named files", {FILE: b'{"audio_filepath": "/proc/self/mem"}'}),
    "a session that is a byte order mark": (
        "named files",
        {FILE: '{"session_id": "\ufeff", "audio_filepath": "a.wav", "rttm_filepath": "a.rttm"}'.encode()},
    ),
    "a marker whose inputs are a number": (
        "markers",
        {"out/done.json": b'{"made_by": "x", "key": "x", "settings": {}, "inputs": 1}'},
    ),
    "a journal that is nested deeply": ("journal", {"study.log": DEEP + b"\n"}),
    "a journal with a time that is no number": (
        "journal",
        {"study.log": b'{"op_code": 0, "worker_id": "x", "study_name": "x", "directions": [NaN]}\n'},
    ),
    "a result of cleaning without its outputs": (
        "resume files",
        {"sessions/s.json": b'{"kept": {}, "rejected": [], "counts": {"sessions": 1, "outputs": {}, "repairs": {}}}'},
    ),
    "a plan of another session": ("resume files", {"plan/train-0.json": b'{"session_id": "../x"}'}),
    "a piece without speech": (
        "resume files",
        {"pieces/a.json": b'{"speaker": "a", "audio": ["a"], "utterances": [["u", 0, [[0, 0, 0, 0, 0, []]]]]}'},
    ),
    "an sbatch option of 5000 letters": ("cluster", {FILE: b'sbatch = ["' + b"9" * 5000 + b'"]'}),
    "a deep marker": ("markers", {"out/done.json": DEEP}),
    "a name of thousands of letters": (
        "hub cache",
        {"name": b"nvidia/" + b"x" * 10_000, "ref": b"a", "commit": b"a"},
    ),
    "a gigabyte in a megabyte": ("gzip", {FILE: b"".join([gzip.compress(bytes(1 << 26))] * 16)}),
}


@pytest.mark.parametrize("about", FOUND)
def test_what_once_found_a_bug(about: str, folder: Path) -> None:
    name, parts = FOUND[about]
    try_input(TARGETS[name], dict(TARGETS[name].seeds()[0]), folder)  # imports take memory, too
    assert try_input(TARGETS[name], dict(parts), folder)[1] == ""


@pytest.mark.parametrize("size", [b"1000000000", b'"1"', b"null", b"-1", b"1.5", b"[1]"])
def test_a_model_of_layers_that_nobody_can_build(size: bytes, folder: Path) -> None:
    parts = dict(TARGETS["model folder"].seeds()[0])
    parts["config.json"] = parts["config.json"].replace(b'"n_layers": 1', b'"n_layers": ' + size)
    assert try_input(TARGETS["model folder"], parts, folder) == (False, "")


def test_a_share_of_more_than_any_float_holds(folder: Path) -> None:
    parts = dict(TARGETS["model folder"].seeds()[0])
    config = parts["config.json"].replace(b'"dropout": 0.', b'"dropout": ' + b"9" * 400, 1)
    assert config != parts["config.json"]
    assert try_input(TARGETS["model folder"], parts | {"config.json": config}, folder) == (False, "")


def test_two_channels_as_loud_as_numbers_go(folder: Path) -> None:
    path = folder / "loud.wav"
    soundfile.write(path, np.full((160, 2), 3e38, dtype=np.float32), 16_000, subtype="FLOAT")
    assert try_input(TARGETS["wav"], {FILE: path.read_bytes()}, folder) == (False, "")  # not samples from -1 to 1


def test_an_mp3_that_ends_where_its_channels_are_compared(folder: Path) -> None:
    target = TARGETS["other audio"]
    assert try_input(target, make_input("other audio", 101, 1859, target.seeds()), folder)[1] == ""


@pytest.mark.parametrize(
    "damage", [(b'"values":[', b'"values":[[1],'), (b'"param_value_internal":', b'"param_value_internal":1e308,"x":')]
)
def test_a_journal_with_results_that_make_no_sense(folder: Path, damage: tuple[bytes, bytes]) -> None:
    target = TARGETS["journal"]
    content = target.seeds()[0]["study.log"]
    assert damage[0] in content
    assert try_input(target, {"study.log": content.replace(*damage)}, folder)[1] == ""


def test_a_fault_is_found(folder: Path) -> None:
    """The fuzzer itself sees what it should."""
    assert "UnicodeDecodeError" in find_fault(UnicodeDecodeError("utf-8", b"", 0, 1, "x"), folder)
    assert "names no file" in find_fault(ValueError("oh"), folder)
    assert "several lines" in find_fault(ValueError("work/a: oh\nno"), folder)
    assert find_fault(ValueError("work/a, line 1: oh"), folder) == ""
