from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from nemo_models import random_sortformer
from torch import Tensor

from sortk.cli import main
from sortk.formats.model_folder import save_model
from sortk.inference import export
from sortk.inference.export import FeatureGraph, OfflineGraph, OnnxSession, StepGraph, write_graph, write_windows
from sortk.models.diarizer import StreamingOptions
from sortk.models.eend import Eend, EendOptions
from sortk.models.fastconformer import FastConformerOptions
from sortk.models.features import FeatureOptions
from sortk.models.frames import MEL_PER_FRAME
from sortk.models.nemotron import Nemotron, NemotronOptions
from sortk.models.sortformer import Sortformer, SortformerOptions
from sortk.models.speaker_cache import StreamingState, StreamingStep
from sortk.models.transformer import TransformerOptions

ENCODER = FastConformerOptions(d_model=16, n_layers=1, n_heads=2, subsampling_channels=4)
TRANSFORMER = TransformerOptions(d_model=8, n_layers=1, n_heads=2, d_inner=8)
OFFLINE = SortformerOptions(3, 0.0, FeatureOptions(n_mels=20), ENCODER, TRANSFORMER)
STREAMED = SortformerOptions(3, 0.0, FeatureOptions(n_mels=20, gain=False, normalize="none"), ENCODER, TRANSFORMER)
NEMOTRON = NemotronOptions(
    n_speakers=3, d_model=16, n_layers=1, n_heads=2, d_inner=16, d_head=8, features=STREAMED.features
)
STEPS = (
    StreamingOptions(chunk=4, left_context=2, right_context=1, fifo=8, update_period=6, cache=20),
    StreamingOptions(chunk=5, left_context=1, right_context=3, fifo=0, update_period=5, cache=15),
    StreamingOptions(chunk=7, left_context=0, right_context=0, fifo=3, update_period=30, cache=12),
)


def decided(options: SortformerOptions) -> Sortformer:
    """Posteriors from 0 to 1: otherwise nobody ever speaks, and the cache stays empty."""
    model = random_sortformer(options)
    with torch.no_grad():
        model.speakers.weight.mul_(20)
    return model


def steps_of(mel: Tensor, options: StreamingOptions) -> Iterator[tuple[Tensor, int, int]]:
    """Mel frames of each step, and how many model frames left and right are context."""
    n_mel = mel.shape[1]
    for begin in range(0, math.ceil(n_mel / MEL_PER_FRAME), options.chunk):
        first = max(begin - options.left_context, 0)
        end = min((begin + options.chunk) * MEL_PER_FRAME, n_mel)
        stop = min(end + options.right_context * MEL_PER_FRAME, n_mel)
        yield mel[:, first * MEL_PER_FRAME : stop], begin - first, math.ceil((stop - end) / MEL_PER_FRAME)


def stream(model: Any, options: StreamingOptions, run: Any) -> None:
    """Compare all steps of a stream in a graph and in torch."""
    torch.manual_seed(1)
    mel = 3 * torch.randn(1, 8 * 61 + 3, model.options.features.n_mels)
    step = StreamingStep(model, options)
    expected_state = state = step.start()
    for piece, n_left, n_right in steps_of(mel, options):
        frames, _ = model.subsample(piece)
        expected, expected_state = step(expected_state, frames, n_left, n_right)
        probs, *rest = run(piece, torch.tensor([n_left]), torch.tensor([n_right]), *state)
        state = StreamingState(*rest)
        torch.testing.assert_close(probs, expected, atol=1e-4, rtol=0)
        for name, found in state._asdict().items():
            torch.testing.assert_close(found, getattr(expected_state, name), atol=1e-4, rtol=0, msg=name)
    assert expected_state.is_compressed  # it was compressed on the way


@pytest.mark.parametrize("options", [OFFLINE, STREAMED])
def test_the_graph_of_a_clip_computes_what_the_model_computes(options: SortformerOptions) -> None:
    model = decided(options)
    with torch.inference_mode():
        for n_samples in (1440, 20001, 100000):
            samples = 0.1 * torch.randn(1, n_samples)
            probs = OfflineGraph(model).eval()(samples)
            torch.testing.assert_close(probs, model(samples).speaker_probs, atol=1e-4, rtol=0)


def test_features_of_a_stream_have_no_gain() -> None:
    samples = 0.1 * torch.randn(1, 16000)
    expected, _ = decided(STREAMED).features(samples)
    torch.testing.assert_close(FeatureGraph(decided(OFFLINE))(samples), expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize("options", STEPS)
@torch.inference_mode()
def test_the_graph_of_a_step_remembers_what_the_stream_remembers(options: StreamingOptions) -> None:
    model = decided(STREAMED)
    stream(model, options, StepGraph(model, options).eval())


@torch.inference_mode()
def test_the_graph_of_a_nemotrons_step() -> None:
    """In torch: how a step is written to a file does not depend on the model."""
    torch.manual_seed(0)
    model = Nemotron(NEMOTRON).eval()
    model.speakers.weight.mul_(20)
    stream(model, STEPS[0], StepGraph(model, STEPS[0]).eval())


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="a cache of 5 frames is too small for 3 speakers"):
        StepGraph(decided(STREAMED), StreamingOptions(cache=5))
    alone = SortformerOptions(1, 0.0, STREAMED.features, ENCODER, TRANSFORMER)
    with pytest.raises(ValueError, match="at least two speakers"):
        StepGraph(decided(alone), STEPS[0])


# --- in onnxruntime


def export_command(*arguments: Any) -> Any:
    return CliRunner().invoke(main, ["export-onnx", *map(str, arguments)])


@pytest.fixture
def onnxruntime() -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    if not export.TORCH_CAN_EXPORT:
        pytest.skip("torch is older than 2.9")


@pytest.mark.usefixtures("onnxruntime")
def test_a_clip_of_any_length_in_onnxruntime(tmp_path: Path) -> None:
    model = decided(OFFLINE)
    save_model(tmp_path / "m", model.state_dict(), {"model": "sortformer", "options": OFFLINE.to_json()})
    result = export_command("--model", tmp_path / "m", "--out", tmp_path / "model.onnx")
    assert result.exit_code == 0 and not result.stdout
    assert result.stderr.count("\n") == 1 and "model.onnx: offline, at most" in result.stderr
    run = OnnxSession(tmp_path / "model.onnx")
    for n_samples in (1440, 30000, 200000):
        samples = 0.1 * torch.randn(1, n_samples)
        with torch.inference_mode():
            expected = model(samples).speaker_probs
        torch.testing.assert_close(run(samples=samples)[0], expected, atol=1e-4, rtol=0)


@pytest.mark.usefixtures("onnxruntime")
def test_a_stream_in_onnxruntime(tmp_path: Path) -> None:
    model, options = decided(STREAMED), STEPS[0]
    assert write_graph(model, tmp_path / "step.onnx", "step", options) < 1e-4
    session = OnnxSession(tmp_path / "step.onnx")
    names = ("mel", "n_left", "n_right", *StreamingState._fields)

    def run(*inputs: Tensor) -> list[Tensor]:
        return session(**dict(zip(names, inputs, strict=True)))

    with torch.inference_mode():
        stream(model, options, run)


@pytest.mark.usefixtures("onnxruntime")
def test_a_graph_of_windows_has_no_weights(tmp_path: Path) -> None:
    """windows.onnx of the diarizer that comes with sortk is compared with torch in test_window_graph.py."""
    config = {"model": "sortformer", "options": OFFLINE.to_json(), "linking": {"window": 40, "step": 20}}
    weights = decided(OFFLINE).state_dict()
    save_model(tmp_path, weights, config)
    with pytest.raises(ValueError, match="is not in half precision"):
        write_windows(tmp_path)
    assert not (tmp_path / "windows.onnx").exists()
    halves = {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in weights.items()}
    save_model(tmp_path, halves, config)
    assert write_windows(tmp_path) < 1e-4
    content = (tmp_path / "windows.onnx").read_bytes()
    assert halves["encoder.pre_encode.out.weight"].numpy().tobytes() not in content
    assert halves["encoder.pre_encode.out.weight"].float().numpy().tobytes() not in content


@pytest.mark.usefixtures("onnxruntime")
def test_a_nemotron_in_onnxruntime(tmp_path: Path) -> None:
    model = Nemotron(NEMOTRON).eval()
    assert write_graph(model, tmp_path / "offline.onnx", "offline", STEPS[0]) < 1e-4
    samples = 0.1 * torch.randn(1, 30000)
    with torch.inference_mode():
        expected = model(samples).speaker_probs
    assert expected.shape == (1, 187, 3)  # rows of 10 ms
    torch.testing.assert_close(OnnxSession(tmp_path / "offline.onnx")(samples=samples)[0], expected, atol=1e-4, rtol=0)


@pytest.mark.usefixtures("onnxruntime")
def test_a_graph_that_is_wrong_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(tmp_path / "m", decided(OFFLINE).state_dict(), {"model": "sortformer", "options": OFFLINE.to_json()})
    monkeypatch.setattr(export, "MAX_MEL_DIFFERENCE", 0.0)
    result = export_command("--model", tmp_path / "m", "--out", tmp_path / "bad.onnx", "--part", "features")
    assert result.exit_code == 1 and not result.stdout
    assert result.stderr.count("\n") == 1 and "the exported graph differs from torch by" in result.stderr
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m"]


@pytest.mark.usefixtures("onnxruntime")
def test_what_cannot_be_exported(tmp_path: Path) -> None:
    options = EendOptions(transformer=TransformerOptions(d_model=8, n_layers=1, n_heads=2, d_inner=8))
    save_model(tmp_path / "e", Eend(options).state_dict(), {"model": "eend-sa", "options": options.to_json()})
    result = export_command("--model", tmp_path / "e", "--out", tmp_path / "a.onnx")
    assert result.exit_code == 1 and "this model cannot be exported" in result.stderr
    save_model(tmp_path / "m", decided(OFFLINE).state_dict(), {"model": "sortformer", "options": OFFLINE.to_json()})
    result = export_command("--model", tmp_path / "m", "--out", tmp_path / "a.onnx", "--part", "step", "--preset", "5")
    assert result.exit_code == 1 and "there is no preset '5'; choose from 0.32, 1.04, 10, 30.4" in result.stderr


def test_without_the_extra_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    result = export_command("--model", tmp_path, "--out", tmp_path / "a.onnx")
    assert result.exit_code == 1
    assert "the export needs onnx, onnxscript, onnxruntime: pip install 'sortk[export]'" in result.stderr


def test_an_old_torch_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "find_spec", lambda name: name)
    monkeypatch.setattr(export, "TORCH_CAN_EXPORT", False)
    result = export_command("--model", tmp_path, "--out", tmp_path / "a.onnx")
    assert result.exit_code == 1
    assert f"the export needs torch 2.9 or newer, this is {torch.__version__}" in result.stderr
