from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from nemo_names import OFFLINE, STREAMING
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from sortk.models.fastconformer import FastConformerOptions
from sortk.models.frames import SpeakerOutput
from sortk.models.sortformer import SIZES, Sortformer, SortformerOptions
from sortk.models.transformer import TransformerOptions
from sortk.training.losses import diarization_loss

Golden = Callable[[str], dict[str, Tensor]]
Clip = Callable[[str], Tensor]
NvidiaModel = Callable[[str, SortformerOptions], Sortformer]


def outputs_of(model: Sortformer, samples: Tensor, lengths: Tensor | None = None) -> dict[str, Tensor]:
    """Everything that the fixtures hold, by the names they give it."""
    encoder, transformer = model.encoder, model.transformer
    modules: dict[str, nn.Module] = {"mel": model.features, "pre_encode": encoder.pre_encode}
    modules |= {f"conformer_layer{n}": layer for n, layer in enumerate(encoder.layers)}
    for name in ("feed_forward1", "self_attn", "conv", "feed_forward2"):
        modules[f"conformer_layer0_{name}"] = encoder.layers[0].get_submodule(name)
    modules |= {f"transformer_layer{n}": layer for n, layer in enumerate(transformer.layers)}
    modules |= {"encoder_proj": model.encoder_proj, "encoder_out": encoder.layers[-1]}
    found: dict[str, Tensor] = {}
    hooks = []
    for name, module in modules.items():

        def keep(_module: nn.Module, _inputs: object, output: object, name: str = name) -> None:
            found[name] = output[0] if isinstance(output, tuple) else output  # type: ignore[assignment]

        hooks.append(module.register_forward_hook(keep))
    with torch.inference_mode():
        output = model(samples, lengths)
    for hook in hooks:
        hook.remove()
    found["mel"] = found["mel"].transpose(1, 2)
    return found | {"preds": output.speaker_probs}


TOLERANCE = {"mel": 1e-4, "preds": 1e-4, "encoder_out": 1e-5}  # of the layers in between: 1e-4


def compare(found: dict[str, Tensor], expected: dict[str, Tensor], row: int = 0) -> set[str]:
    """Holds the valid frames of one clip to NVIDIA's; returns what was compared."""
    compared = set(found) & set(expected)
    n_frames, n_mel = int(expected["encoder_len"][row]), int(expected["mel_len"][row])
    for name in compared:
        ours, theirs = found[name][row], expected[name][row]
        ours, theirs = (ours[:, :n_mel], theirs[:, :n_mel]) if name == "mel" else (ours[:n_frames], theirs[:n_frames])
        torch.testing.assert_close(ours, theirs, atol=TOLERANCE.get(name, 1e-4), rtol=0, msg=name)
    return compared


@pytest.mark.parametrize(("name", "n_compared"), [("a_3p3", 13), ("b_10", 4), ("c_31p7", 4)])
def test_all_the_way_it_computes_what_nvidia_computes(
    name: str, n_compared: int, golden: Golden, clip: Clip, nvidia_model: NvidiaModel
) -> None:
    model = nvidia_model("tiny_sortformer", OFFLINE)
    found, expected = outputs_of(model, clip(name)), golden(f"tiny_{name}")
    assert len(compare(found, expected)) == n_compared
    assert found["preds"].shape == expected["preds"].shape


def read_batch(clip: Clip) -> tuple[list[Tensor], Tensor, Tensor]:
    clips = [clip(name) for name in ("a_3p3", "b_10", "c_31p7")]
    lengths = torch.tensor([samples.shape[1] for samples in clips])
    batch = torch.zeros(3, int(lengths.max()))
    for row, samples in enumerate(clips):
        batch[row, : samples.shape[1]] = samples[0]
    return clips, batch, lengths


def test_a_padded_batch_equals_each_clip_alone(clip: Clip, nvidia_model: NvidiaModel) -> None:
    """NVIDIA's own does not: its gain is that of the loudest clip of the batch, and moves the others by up to 0.10."""
    model = nvidia_model("tiny_sortformer", OFFLINE)
    clips, batch, lengths = read_batch(clip)
    together = outputs_of(model, batch, lengths)
    for row, samples in enumerate(clips):
        alone = outputs_of(model, samples)
        for name in ("encoder_out", "preds"):
            n_frames = alone[name].shape[1]
            torch.testing.assert_close(together[name][row, :n_frames], alone[name][0], atol=1e-4, rtol=0, msg=name)
        assert not together["preds"][row, n_frames:].any()


def test_with_one_gain_for_the_batch_it_is_nvidias_batch(golden: Golden, clip: Clip, nvidia_model: NvidiaModel) -> None:
    """The gain of the whole batch applied beforehand, all of NVIDIA's batch comes out, layer by layer."""
    no_gain = replace(OFFLINE, features=replace(OFFLINE.features, gain=False))
    _, batch, lengths = read_batch(clip)
    found = outputs_of(nvidia_model("tiny_sortformer", no_gain), batch / (batch.max() + 1e-3), lengths)
    for row in range(3):
        assert len(compare(found, golden("tiny_batch3"), row)) == 13


def test_the_weights_of_the_streaming_model_too(golden: Golden, clip: Clip, nvidia_model: NvidiaModel) -> None:
    with torch.inference_mode():
        output = nvidia_model("tiny_streaming_sortformer", STREAMING)(clip("d_60"))
    expected = golden("tiny_streaming_d_60")["preds_offline_nochunk"]
    torch.testing.assert_close(output.speaker_probs, expected, atol=1e-4, rtol=0)


SMALL = SortformerOptions(
    n_speakers=3,
    encoder=FastConformerOptions(d_model=32, n_layers=2, n_heads=4, subsampling_channels=8),
    transformer=TransformerOptions(d_model=16, n_layers=2, n_heads=4, d_inner=32),
)


@pytest.mark.parametrize(("size", "millions"), [("tiny", 1.88), ("small", 14.27), ("base", 123.22)])
def test_sizes(size: str, millions: float) -> None:
    with torch.device("meta"):
        model = Sortformer(SIZES[size])
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.01)
    if size == "base":  # the paper: "L-size NEST encoder (115M parameters)", "in total a 123M parameter model"
        assert sum(p.numel() for p in model.encoder.parameters()) / 1e6 == pytest.approx(115, abs=0.1)


@pytest.mark.parametrize("options", [SMALL, *SIZES.values()])
def test_options_survive_json(options: SortformerOptions) -> None:
    assert SortformerOptions.from_json(json.loads(json.dumps(options.to_json()))) == options


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ValueError, match="not the options of a Sortformer: .*'depth'"):
        SortformerOptions.from_json({"encoder": {"depth": 3}})
    with pytest.raises(ValueError, match="n_speakers must be from 1 to 65536, got 0"):
        SortformerOptions.from_json({"n_speakers": 0})


@pytest.mark.parametrize(("n_samples", "n_frames"), [(160, 1), (1280, 1), (16000, 13)])
def test_shapes(n_samples: int, n_frames: int) -> None:
    output = Sortformer(SMALL).eval()(torch.randn(2, n_samples))
    assert output.logits.shape == (2, n_frames, 3) and output.embeddings.shape == (2, n_frames, 32)
    assert output.speaker_probs.isfinite().all()
    torch.testing.assert_close(output.speaker_probs, output.logits.sigmoid())


def test_frames_can_be_diarized_without_their_samples() -> None:
    """What streaming does: it keeps subsampled frames, and puts others before them."""
    model, samples = Sortformer(SMALL).eval(), torch.randn(1, 16000)
    mel, _ = model.features(samples)
    frames, _ = model.subsample(mel)
    torch.testing.assert_close(model.diarize_frames(frames).logits, model(samples).logits)


@pytest.mark.usefixtures("fake_cuda")
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_all_of_it_stays_on_the_device(training: bool, padded: bool) -> None:
    """Built and run where no GPU is: tensors without data keep track of the device they would be on."""
    with FakeTensorMode(), torch.device("cuda"):
        model = Sortformer(SMALL).train(training)
        lengths = torch.full((2,), 20000) if padded else None
        output = model(torch.randn(2, 32000), lengths)
        loss = diarization_loss(output, torch.zeros_like(output.logits))
        tensors = [*model.parameters(), *model.buffers(), output.logits, output.speaker_probs, output.embeddings]
        tensors += [loss.total, loss.sort, loss.pil, loss.permutation, loss.arrival_accuracy]
    assert {tensor.device.type for tensor in tensors} == {"cuda"}


@pytest.mark.parametrize("padded", [False, True])
def test_a_step_in_half_precision(padded: bool) -> None:
    model = Sortformer(SMALL)
    with torch.autocast("cpu", torch.bfloat16):
        output: SpeakerOutput = model(torch.randn(2, 16000), torch.tensor([16000, 9000]) if padded else None)
        loss = diarization_loss(output, (torch.rand(output.logits.shape) < 0.3).float())
    assert output.logits.dtype == torch.bfloat16 and loss.total.dtype == torch.float32
    loss.total.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


def test_it_can_learn() -> None:
    """Two tones that alternate are two speakers; a few steps take the loss well below chance, 0.69."""
    torch.manual_seed(0)
    time = torch.arange(32000) / 16000
    second = (time % 1 >= 0.5).float()
    samples = torch.where(second > 0, torch.sin(2 * torch.pi * 1500 * time), torch.sin(2 * torch.pi * 300 * time))[None]
    targets = torch.stack([1 - second, second, torch.zeros_like(second)], dim=1)[640::1280][None]
    encoder, transformer = replace(SMALL.encoder, dropout=0.0), replace(SMALL.transformer, dropout=0.0)
    model = Sortformer(replace(SMALL, dropout=0.0, encoder=encoder, transformer=transformer))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(30):
        loss = diarization_loss(model(samples), targets).total
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1
