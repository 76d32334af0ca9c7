"""Multitalker Parakeet: NVIDIA's numbers, and streaming that equals the offline pass."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import nemo2
import pytest
import torch
from nemo_models import changed, constants, parakeet_config
from test_parakeet import CAUSAL
from torch import Tensor

from sortk.inference.load import load_asr
from sortk.models.fastconformer import Context
from sortk.models.features import FeatureOptions
from sortk.models.multitalker import Multitalker, MultitalkerOptions, MultitalkerStream, split_speakers
from sortk.models.nemo import MULTITALKER_NAMES, convert
from sortk.models.options import name_tensor
from sortk.models.parakeet import ParakeetOptions
from sortk.models.rnnt import TransducerOptions

SMALL = MultitalkerOptions(
    n_tokens=11,
    features=FeatureOptions(n_mels=16, gain=False, normalize="none", dither=1e-5),
    encoder=CAUSAL,
    transducer=TransducerOptions(d_prediction=6, n_layers=2, d_joint=10),
    contexts=((4, 1), (28, 0)),
    kernel_layers=(0, 1),
)


@functools.cache
def load() -> Multitalker:
    model = load_asr(nemo2.find("tiny_multitalker.nemo")).model
    assert isinstance(model, Multitalker)
    return model


def small(options: MultitalkerOptions = SMALL) -> Multitalker:
    torch.manual_seed(2)
    model = Multitalker(options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def stream(
    model: Multitalker, mel: Tensor, p: Tensor, q: Tensor, context: Context, chunks_a_step: int = 1
) -> tuple[Tensor, MultitalkerStream]:
    """A recording of (mel frames, n_mels) step by step."""
    written, steps = MultitalkerStream(model, len(p), context), []
    while True:
        first, n_new = written.n_frames, context.chunk * chunks_a_step
        stop = written.count_mel(first + n_new)
        is_last = stop >= len(mel)
        own = slice(first, None if is_last else first + n_new)
        steps.append(written.step(mel[written.first_mel : stop], p[:, own], q[:, own], is_last))
        if is_last:
            return torch.cat(steps, dim=1), written


# --- NVIDIA's numbers


@pytest.mark.parametrize("name", ["a_3p3", "b_10"])
@pytest.mark.parametrize("speaker", [0, 1, 2, None])
def test_offline(name: str, speaker: int | None) -> None:
    arrays, golden, model = nemo2.arrays("tiny_multitalker"), nemo2.results("tiny_multitalker")["offline"], load()
    key = f"{name}_nospk" if speaker is None else f"{name}_spk{speaker}"
    p = q = None
    if speaker is not None:
        p, q = split_speakers(arrays[f"{name}_posteriors"].float(), torch.tensor([speaker]))
    with torch.inference_mode():
        frames, _ = model.encode(nemo2.clip(name)[None], None, p, q)
        tokens = model.decode(frames).tokens[0]
    torch.testing.assert_close(frames[0], arrays[f"{key}_encoder_out"], atol=1e-4, rtol=0)
    assert (tokens.ids, tokens.frames) == (golden[key]["ids"], golden[key]["frames"])


def test_posteriors_that_begin_late_are_filled_on_the_left() -> None:
    arrays, model = nemo2.arrays("tiny_multitalker"), load()
    p, q = split_speakers(arrays["a_3p3_posteriors"].float(), torch.tensor([0]))
    with torch.inference_mode():
        frames, _ = model.encode(nemo2.clip("a_3p3")[None], None, p[:, 3:], q[:, 3:])
    expected = arrays["a_3p3_spk0_first3missing_encoder_out"]
    torch.testing.assert_close(frames[0], expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("right", [13, 6, 1, 0])
def test_streams(right: int) -> None:
    arrays, golden, model = nemo2.arrays("tiny_multitalker"), nemo2.results("tiny_multitalker")["streaming"], load()
    samples, context = nemo2.clip("b_10")[None], Context(28, right)
    p, q = split_speakers(arrays["b_10_posteriors"].float(), torch.tensor([0, 1]))
    with torch.inference_mode():
        offline, _ = model.encode(samples.expand(2, -1), None, p, q, context)
        tokens = model.decode(offline).tokens
        frames, written = stream(model, model.features(samples)[0][0], p, q, context)
    torch.testing.assert_close(frames, offline, atol=1e-4, rtol=0)
    if f"b_10_spk0_ctx{right}_encoder_out" in arrays:
        torch.testing.assert_close(offline[0], arrays[f"b_10_spk0_ctx{right}_encoder_out"], atol=1e-4, rtol=0)
    for speaker, own in enumerate(written.state.tokens):
        assert own[:2] == tokens[speaker][:2]
        key = f"b_10_spk{speaker}_ctx{right}"
        if key in golden:
            torch.testing.assert_close(frames[speaker], arrays[f"{key}_stream_encoder_out"], atol=1e-4, rtol=0)
            assert (own.ids, own.frames) == (golden[key]["ids"], golden[key]["frames"])


# --- without NVIDIA's files


@pytest.mark.parametrize("n_mel", [1, 7, 8, 9, 16, 17, 131, 136])
@pytest.mark.parametrize("chunks_a_step", [1, 3])
@torch.inference_mode()
def test_a_stream_of_any_length_is_the_offline_pass(n_mel: int, chunks_a_step: int) -> None:
    model, mel = small(), torch.randn(n_mel, 16)
    frames, _ = model.encoder.subsample(mel[None])
    posteriors = torch.rand(frames.shape[1], 3)
    p, q = split_speakers(posteriors, torch.tensor([2, 0]))
    context = Context(4, 1)
    offline = model.encode_frames(frames.expand(2, -1, -1), None, p, q, context)
    steps, written = stream(model, mel, p, q, context, chunks_a_step)
    torch.testing.assert_close(steps, offline, atol=1e-5, rtol=1e-5)
    assert [own[:2] for own in written.state.tokens] == [own[:2] for own in model.decode(offline).tokens]
    assert written.n_frames == frames.shape[1]


def test_target_and_others() -> None:
    posteriors = torch.tensor([[0.9, 0.6, 0.1], [0.2, 0.5, 0.4], [0.0, 0.51, 0.7]])
    p, q = split_speakers(posteriors, torch.tensor([1, 0]))
    assert p.tolist() == posteriors.T[[1, 0]].tolist()
    assert q.tolist() == [[1, 0, 1], [1, 0, 1]]


@torch.inference_mode()
def test_kernels_of_later_layers_need_a_target() -> None:
    model, frames = small(), torch.randn(1, 6, 16)
    everybody = model.encode_frames(frames)
    ones = torch.ones(1, 6)
    named = model.encode_frames(frames, None, ones, torch.zeros(1, 6))
    assert not torch.allclose(everybody, named)  # the kernels of layer 1
    first = small(replace(SMALL, kernel_layers=(0,)))
    torch.testing.assert_close(first.encode_frames(frames), first.encode_frames(frames, None, ones, torch.zeros(1, 6)))


def config_of(options: MultitalkerOptions) -> dict[str, Any]:
    parakeet = ParakeetOptions(options.n_tokens, options.features, options.encoder, options.transducer, ctc=False)
    return parakeet_config(parakeet) | {
        "target": "nemo.collections.asr.models.multitalker_asr_models.EncDecMultiTalkerRNNTBPEModel",
        "spk_kernel_type": "ff",
        "spk_kernel_layers": list(options.kernel_layers),
        "add_bg_spk_kernel": options.background,
    }


def tensors_of(model: Multitalker) -> dict[str, Tensor]:
    named = {name_tensor(name, MULTITALKER_NAMES): tensor for name, tensor in model.state_dict().items()}
    return named | constants(model.options.features.n_mels)


@pytest.mark.parametrize("options", [SMALL, replace(SMALL, background=False, kernel_layers=(1,))])
def test_any_size_comes_out_as_it_went_in(options: MultitalkerOptions) -> None:
    model = Multitalker(options)
    tensors = tensors_of(model)
    assert f"spk_kernels.{options.kernel_layers[0]}.3.weight" in tensors
    converted = convert(config_of(options), tensors)
    assert MultitalkerOptions.from_json(converted.config["options"]) == options
    assert all(torch.equal(converted.weights[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("spk_kernel_type", "mask", "spk_kernel_type is 'mask'; sortk supports 'ff' only"),
        ("spk_kernel_layers", [0, 7], "kernel_layers must be layers of the encoder"),
        ("spk_kernel_layers", "all", "spk_kernel_layers is 'all', not a list of layers"),
        ("encoder.att_context_size", [28, -2], "encoder.att_context_size is"),
        ("encoder.causal_downsampling", False, "a multitalker Parakeet must be causal"),
    ],
)
def test_what_a_damaged_config_is_told(key: str, value: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        convert(changed(config_of(SMALL), key, value), tensors_of(Multitalker(SMALL)))
