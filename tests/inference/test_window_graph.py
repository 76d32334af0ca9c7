"""The diarizer that comes with sortk in onnxruntime. What torch computes from the same weights is the reference."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from sortk.cli import main
from sortk.formats import audio, hub
from sortk.formats.hub import DEMO_AUDIO, SHIPPED_MODEL
from sortk.formats.model_folder import GRAPH_NAME, WEIGHTS_NAME, load_config, write_config
from sortk.inference import diarize, windows
from sortk.inference.diarize import DiarizeOptions, Diarizer, choose_postprocess, load
from sortk.inference.load import LoadedDiarizer, load_diarizer
from sortk.inference.windows import OnnxDiarizer, count_threads

WINDOW = 188 * 1280  # samples


@pytest.fixture(scope="module")
def with_torch() -> Diarizer:
    return Diarizer(load_diarizer(SHIPPED_MODEL), DiarizeOptions(postprocess=choose_postprocess(None, SHIPPED_MODEL)))


@pytest.fixture(scope="module")
def with_onnx() -> Diarizer:
    diarizer = load()
    assert isinstance(diarizer.loaded, OnnxDiarizer)
    return diarizer


@pytest.mark.parametrize("n_samples", [100, 160, 1500, 75_001, WINDOW, WINDOW + 1, 600_123, 3_000_000])
def test_posteriors_and_segments_are_those_of_torch(with_torch: Diarizer, with_onnx: Diarizer, n_samples: int) -> None:
    """Shorter than a mel frame, one mel frame, one frame and a bit, ..., exactly a window, ..., three minutes."""
    rng = np.random.default_rng(n_samples)
    speech = np.resize(audio.read(DEMO_AUDIO), n_samples)
    samples = (speech * rng.uniform(0.1, 1) + 0.003 * rng.standard_normal(n_samples)).astype(np.float32)
    expected, found = with_torch.posteriors(samples), with_onnx.posteriors(samples)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert with_onnx(samples) == with_torch(samples)


def test_the_demo_is_that_of_torch(with_torch: Diarizer, with_onnx: Diarizer) -> None:
    assert with_onnx(DEMO_AUDIO) == with_torch(DEMO_AUDIO) != []
    samples = torch.from_numpy(audio.read(DEMO_AUDIO))
    assert [segment.start for segment in with_onnx(samples)] == [segment.start for segment in with_torch(DEMO_AUDIO)]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from /proc")
def test_the_command_imports_no_torch_and_takes_little_memory() -> None:
    """The peak is VmHWM: ru_maxrss of a new process is at least that of the process that started it."""
    code = """if True:
        import sys
        from pathlib import Path
        from sortk.cli import main
        main(["diarize", "--demo"], standalone_mode=False)
        status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
        print("torch" in sys.modules, status["VmHWM"].split()[0], file=sys.stderr)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("SPEAKER demo 1 ")
    has_torch, kilobytes = done.stderr.splitlines()[-1].split()
    assert has_torch == "False" and 1024 * int(kilobytes) < 400e6


def test_torch_is_used_for_what_the_graph_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(load(options=DiarizeOptions(streaming="10")).loaded, LoadedDiarizer)
    assert isinstance(load(int8=True).loaded, LoadedDiarizer)
    assert isinstance(load("sortk/small", device="cpu").loaded, OnnxDiarizer)
    diarizer = load()
    samples = torch.from_numpy(audio.read(DEMO_AUDIO))[None]
    stream = diarizer.stream()
    assert torch.cat([stream.push(samples), stream.finish()], dim=1).shape == (1, 375, 4)
    assert "onnxruntime" in repr(diarizer) and diarizer.model.options.n_speakers == diarizer.n_speakers
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # as if it were not installed
    assert isinstance(load().loaded, LoadedDiarizer)


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the model folder, in the place of the one that comes with sortk."""
    folder = shutil.copytree(SHIPPED_MODEL, tmp_path / "diarizer")
    for module in (hub, windows, diarize):
        monkeypatch.setattr(module, "SHIPPED_MODEL", folder)
    return folder


@pytest.mark.parametrize("name", [GRAPH_NAME, WEIGHTS_NAME])
def test_a_damaged_file_is_one_sentence(shipped: Path, name: str) -> None:
    content = bytearray((shipped / name).read_bytes())
    content[len(content) // 2] ^= 1
    (shipped / name).write_bytes(content)
    result = CliRunner().invoke(main, ["diarize", "-q", "--demo"])
    assert result.exit_code == 1 and not result.stdout and result.stderr.count("\n") == 1
    assert f"{name}: is not the file that config.json was written with (sha256)" in result.stderr


def test_only_the_graph_that_comes_with_sortk_is_run(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(shipped)
    (shipped / GRAPH_NAME).write_bytes(b"no graph")
    write_config(shipped, config, [shipped / GRAPH_NAME])
    result = CliRunner().invoke(main, ["diarize", "-q", "--demo"])
    assert result.exit_code == 1 and not result.stdout and result.stderr.count("\n") == 1
    assert f"{GRAPH_NAME}: onnxruntime cannot run this graph" in result.stderr
    monkeypatch.undo()  # now it is any other folder
    assert isinstance(load(shipped).loaded, LoadedDiarizer)


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert count_threads() == 3
    for unknown in ("0", "4,2", ""):
        monkeypatch.setenv("OMP_NUM_THREADS", unknown)
        assert count_threads() >= 1
