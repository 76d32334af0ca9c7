from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from small_msasr import ASR, DIARIZER
from torch import Tensor
from torch.nn import functional

from sortk.models.decoding import DecodingOptions, search
from sortk.models.features import FeatureOptions
from sortk.models.kernels import KernelOptions
from sortk.models.msasr import MsAsr, MsAsrOptions

TOKENS = torch.tensor([[2, 5, 6], [2, 7, 3]])
START, END, SPEAKERS, WORDS = 1, 0, (2, 3), (5, 6)


def build(supervision: str = "frozen", **changed: object) -> MsAsr:
    torch.manual_seed(0)
    options = MsAsrOptions(ASR, supervision, 2, None if supervision == "none" else DIARIZER)  # type: ignore[arg-type]
    return MsAsr(replace(options, **changed)).eval()  # type: ignore[arg-type]


def noise(n_samples: int = 16000) -> Tensor:
    return 0.1 * torch.randn(2, n_samples)


def test_without_supervision_it_is_canary() -> None:
    model, samples = build("none"), noise()
    torch.testing.assert_close(model(samples, None, TOKENS), model.asr(samples, None, TOKENS))
    assert all(name.startswith("asr.") for name in model.state_dict())


def test_posteriors_enter_by_the_equation() -> None:
    model, samples, lengths = build(), noise(), torch.tensor([16000, 9000])
    probs = model.diarizer(samples, lengths).speaker_probs  # type: ignore[misc]
    frames, n_frames = model.asr.encode(samples, lengths)
    z = torch.arange(1, 33)
    gamma = torch.stack([torch.sin(2 * torch.pi * k * z / 32) for k in (1, 2)])
    marked = frames / frames.norm(dim=2, keepdim=True) + probs @ gamma
    expected = model.asr.decoder(TOKENS, model.asr.project(marked, n_frames), n_frames)
    torch.testing.assert_close(model(samples, lengths, TOKENS), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(model(samples, lengths, TOKENS, probs), expected, atol=1e-4, rtol=1e-4)


def test_features_are_computed_once_where_settings_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    model, samples = build(), noise()
    expected = model(samples, None, TOKENS)
    assert model.options.shares_features and model.diarizer is not None
    monkeypatch.setattr(model.diarizer.features, "forward", lambda *about: pytest.fail("computed twice"))
    torch.testing.assert_close(model(samples, None, TOKENS), expected)
    dithered = replace(ASR, features=FeatureOptions(dither=1e-5))
    assert replace(model.options, asr=dithered).shares_features
    other = replace(ASR, features=FeatureOptions(gain=False))
    apart = build(asr=other)
    assert not apart.options.shares_features
    probs = apart.diarizer(samples).speaker_probs  # type: ignore[misc]
    torch.testing.assert_close(apart(samples, None, TOKENS), apart(samples, None, TOKENS, probs))


@pytest.mark.parametrize(("supervision", "reached"), [("frozen", False), ("finetuned", True), ("truth", False)])
def test_gradients_reach_the_diarizers_first_layer_in_system_3_only(supervision: str, reached: bool) -> None:
    model, truth = build(supervision).train(), torch.rand(2, 13, 2)
    logits = model(noise(), None, TOKENS, truth if supervision == "truth" else None)
    logits.square().mean().backward()
    assert model.diarizer is not None
    first = model.diarizer.encoder.pre_encode.conv[0].weight.grad  # type: ignore[union-attr]
    assert (first is not None and bool(first.abs().sum() > 0)) == reached
    assert model.asr.encoder.pre_encode.conv[0].weight.grad.abs().sum() > 0  # type: ignore[union-attr]
    assert model.frozen_parts == (() if reached else ("diarizer",))


def test_truth_needs_no_diarizer_until_it_is_asked() -> None:
    model = build("truth", diarizer=None)
    model(noise(), None, TOKENS, torch.rand(2, 13, 2))
    with pytest.raises(ValueError, match="this model has no diarizer inside: give a trained one, or posteriors"):
        model(noise(), None, TOKENS)


def test_posteriors_of_other_frames_are_resampled_or_refused() -> None:
    model, samples = build(), noise()
    probs = torch.rand(2, 13, 2)
    fine = probs.repeat_interleave(8, dim=1)
    same = model.encode(samples, speaker_probs=fine, frame_seconds=0.01)[0]
    torch.testing.assert_close(same, model.encode(samples, speaker_probs=probs)[0], atol=1e-4, rtol=1e-4)
    with pytest.raises(ValueError, match=r"posteriors of 104 frames of 0.08 s do not fit 13 frames"):
        model.encode(samples, speaker_probs=fine)
    with pytest.raises(ValueError, match="posteriors of 3 speakers do not fit the kernels of 2"):
        model.encode(samples, speaker_probs=torch.rand(2, 13, 3))


def test_options_survive_json() -> None:
    kernels = KernelOptions("learned", 0.5)
    for options in (build("none").options, MsAsrOptions(ASR, "truth", 2, DIARIZER, kernels, adapters=16)):
        assert MsAsrOptions.from_json(json.loads(json.dumps(options.to_json()))) == options
    with pytest.raises(ValueError, match="not the options of a multi-speaker ASR: .*beams"):
        MsAsrOptions.from_json({"beams": 1, "supervision": "none"})


def test_bad_options_are_errors() -> None:
    with pytest.raises(ValueError, match="supervision 'frozen' needs a diarizer"):
        MsAsrOptions(ASR, "frozen", 2)
    with pytest.raises(ValueError, match="the diarizer has 2 outputs, but the ASR is for 4 speakers"):
        MsAsrOptions(ASR, "frozen", 4, DIARIZER)
    with pytest.raises(ValueError, match="supervision must be one of none, frozen, finetuned, truth, got 'all'"):
        MsAsrOptions(ASR, "all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="adapters must be 0 or more"):
        MsAsrOptions(ASR, "none", adapters=-1)


# ---------------------------------------------------------------------------------------------------------------------
# The kernels are used


def make_batch(n_clips: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Two words, a low and a high hum, one after the other; who says which is told by the posteriors alone."""
    generator = torch.Generator().manual_seed(seed)
    time = torch.arange(6400) / 16000  # 5 frames
    hums = torch.stack([torch.sin(2 * torch.pi * hertz * time) for hertz in (200, 1500)])
    first_word = torch.randint(2, (n_clips,), generator=generator)
    first_speaker = torch.randint(2, (n_clips,), generator=generator)
    is_late = time >= 0.16
    samples = torch.where(is_late, hums[1 - first_word], hums[first_word])
    samples = samples + 0.01 * torch.randn(n_clips, 6400, generator=generator)
    probs = torch.zeros(n_clips, 5, 2)
    for clip, speaker in enumerate(first_speaker.tolist()):
        probs[clip, :2, speaker], probs[clip, 2:, 1 - speaker] = 1.0, 1.0
    speakers, words = torch.tensor(SPEAKERS), torch.tensor(WORDS)
    texts = [speakers[first_speaker], words[first_word], speakers[1 - first_speaker], words[1 - first_word]]
    edges = torch.tensor([START, END]).expand(n_clips, 2)
    return samples, probs, torch.stack([edges[:, 0], *texts, edges[:, 1]], dim=1)


def transcribe(model: MsAsr, samples: Tensor, probs: Tensor) -> list[tuple[int, ...]]:
    with torch.inference_mode():
        states, lengths = model.encode(samples, None, probs)
        steps = model.asr.decoder.start(states, lengths)
        found = search(steps, [START], END, [10] * len(samples), DecodingOptions())
    return [hypothesis.tokens for hypothesis in found]


def test_a_swap_of_the_posteriors_swaps_the_speaker_tokens() -> None:
    small = replace(ASR, features=FeatureOptions(n_mels=16))
    model = build("truth", diarizer=None, asr=small).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(150):
        samples, probs, tokens = make_batch(16, step)
        optimizer.zero_grad()
        logits = model(samples, None, tokens[:, :-1], probs)
        functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:]).backward()
        optimizer.step()
    model.eval()
    samples, probs, tokens = make_batch(12, seed=1000)
    as_they_are = transcribe(model, samples, probs)
    assert as_they_are == [tuple(row[1:-1]) for row in tokens.tolist()]
    other = dict(zip(SPEAKERS, SPEAKERS[::-1], strict=True))
    swapped = [tuple(other.get(token, token) for token in text) for text in as_they_are]
    assert transcribe(model, samples, probs.flip(2)) == swapped
