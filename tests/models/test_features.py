from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from sortk.models.features import LOG_FLOOR, FeatureOptions, LogMel, mel_filters, normalize_bins
from sortk.models.frames import count_frames

Golden = Callable[[str], dict[str, Tensor]]
Clip = Callable[[str], Tensor]

RAW = FeatureOptions(gain=False, normalize="none")


@pytest.mark.parametrize("name", ["a_3p3", "b_10", "c_31p7"])
def test_mel_is_nvidias(name: str, golden: Golden, clip: Clip) -> None:
    expected = golden(f"tiny_{name}")
    mel, lengths = LogMel(FeatureOptions())(clip(name))
    assert lengths is None
    assert mel.shape == (1, int(expected["mel_len"]), 80)  # NVIDIA keeps one more column, of zeros
    torch.testing.assert_close(mel.transpose(1, 2), expected["mel"][:, :, :-1], atol=1e-4, rtol=0)


def test_mel_of_the_streaming_models_is_nvidias(golden: Golden, clip: Clip) -> None:
    expected = golden("tiny_streaming_d_60")["mel"][:, :, :-1]
    mel, _ = LogMel(FeatureOptions(n_mels=128, gain=False, normalize="none"))(clip("d_60"))
    error = (mel.transpose(1, 2) - expected).abs()
    # Without normalisation the quietest bins show the rounding of float32: in float64 NVIDIA's are off by 1.6e-4.
    assert error.max() < 4e-4
    assert (error > 1e-4).float().mean() < 1e-3


@pytest.mark.parametrize(("name", "n_mels"), [("tiny_sortformer", 80), ("tiny_streaming_sortformer", 128)])
def test_constants_are_nvidias(name: str, n_mels: int, nemo_weights: Callable[[str], dict[str, Tensor]]) -> None:
    weights, ours = nemo_weights(name), LogMel(FeatureOptions(n_mels=n_mels))
    torch.testing.assert_close(ours.window, weights["preprocessor.featurizer.window"])
    torch.testing.assert_close(ours.filters.T[None], weights["preprocessor.featurizer.fb"], atol=1e-8, rtol=0)


def test_filters_are_triangles_of_unit_area() -> None:
    filters = mel_filters(40)
    hertz_per_bin = 8000 / 256
    # Each is a triangle sampled at the bins of the transform: the wider, the closer to its area.
    torch.testing.assert_close(filters[:, 20:].sum(dim=0) * hertz_per_bin, torch.ones(20), atol=0.02, rtol=0)
    # Below 1000 Hz = 15 mel the centres lie (highest mel) / 41 apart, 200/3 Hz per mel.
    highest = 15 + 27 * math.log(8) / math.log(6.4)
    centres = filters.argmax(dim=0) * hertz_per_bin
    assert centres[7] == pytest.approx(8 * highest / 41 * 200 / 3, abs=hertz_per_bin / 2)


def test_a_tone_is_loudest_in_its_bin() -> None:
    tone = torch.sin(2 * math.pi * 1000 * torch.arange(16000) / 16000)[None]
    mel, _ = LogMel(RAW)(tone)
    # 1000 Hz is 15 mel; of 82 edges over 45.25 mel, 15 is between the 26th and 27th: the filter that it is nearest to.
    highest = 15 + 27 * math.log(8) / math.log(6.4)
    assert set(mel[0, 5:95].argmax(dim=1).tolist()) == {round(15 / highest * 81) - 1}


def test_silence_is_the_logarithm_of_the_floor() -> None:
    silence = torch.zeros(1, 16000)
    assert torch.equal(LogMel(RAW)(silence)[0], torch.full((1, 100, 80), math.log(LOG_FLOOR)))
    # Normalised it would be 0, but for the rounding of the mean over the floor of the deviation, 1e-6 / 1e-5.
    assert LogMel(FeatureOptions())(silence)[0].abs().max() < 1


def test_normalisation_by_hand() -> None:
    # Valid values 1 and 3: mean 2, unbiased standard deviation sqrt 2. The third frame is padding.
    mel = torch.tensor([[[1.0], [3.0], [100.0]]])
    valid = torch.tensor([[True, True, False]])
    expected = torch.tensor([-1.0, 1.0]) / (math.sqrt(2) + 1e-5)
    torch.testing.assert_close(normalize_bins(mel, valid)[0, :2, 0], expected)
    torch.testing.assert_close(normalize_bins(mel[:, :2], None)[0, :, 0], expected)
    assert torch.equal(normalize_bins(mel[:, :1], None), torch.zeros(1, 1, 1))  # one frame has no deviation


@pytest.mark.parametrize("options", [FeatureOptions(), RAW])
def test_a_padded_batch_equals_each_clip_alone(options: FeatureOptions) -> None:
    features = LogMel(options)
    lengths = [16000, 9999, 3217]
    clips = [0.1 * (n + 1) * torch.randn(1, length) for n, length in enumerate(lengths)]
    batch = torch.full((3, 16000), 7.0)  # what lies in the padding does not matter
    for row, samples in enumerate(clips):
        batch[row, : samples.shape[1]] = samples[0]
    mel, mel_lengths = features(batch, torch.tensor(lengths))
    assert mel_lengths is not None and mel_lengths.tolist() == [100, 62, 20]
    for row, samples in enumerate(clips):
        alone, _ = features(samples)
        torch.testing.assert_close(mel[row, : alone.shape[1]], alone[0], atol=1e-4, rtol=0)
        assert not mel[row, alone.shape[1] :].any()


def test_gradients_reach_the_samples() -> None:
    samples = torch.randn(2, 4000, requires_grad=True)
    LogMel(FeatureOptions())(samples, torch.tensor([4000, 2000]))[0].square().sum().backward()
    assert samples.grad is not None and samples.grad.isfinite().all()
    assert samples.grad[0].any() and not samples.grad[1, 2000:].any()


def test_dither_is_for_training_only() -> None:
    features, samples = LogMel(FeatureOptions(dither=1e-3)), torch.randn(1, 16000)
    assert not torch.equal(features(samples)[0], features(samples)[0])
    features.eval()
    assert torch.equal(features(samples)[0], features(samples)[0])


def test_half_precision_does_not_touch_the_features() -> None:
    features, samples = LogMel(FeatureOptions()), torch.randn(1, 16000)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(features(samples)[0], features(samples.clone())[0])
        assert features(samples)[0].dtype == torch.float32


def test_errors_are_sentences() -> None:
    with pytest.raises(ValueError, match="a clip of 100 samples is shorter"):
        LogMel(FeatureOptions())(torch.zeros(1, 100))
    with pytest.raises(ValueError, match="normalize must be"):
        FeatureOptions(normalize="all")  # type: ignore[arg-type]


@pytest.mark.parametrize(("n_samples", "n_frames"), [(160, 1), (1280, 1), (1439, 1), (1440, 2), (16000, 13)])
def test_count_of_model_frames(n_samples: int, n_frames: int) -> None:
    assert count_frames(n_samples) == n_frames
    assert count_frames(torch.tensor([n_samples])).tolist() == [n_frames]


@pytest.mark.parametrize("n_mels", [80, 128])
def test_mel_filters_are_those_of_torchaudio(n_mels: int, torchaudio: Any) -> None:
    expected = torchaudio.functional.melscale_fbanks(257, 0.0, 8000.0, n_mels, 16000, "slaney", "slaney")
    torch.testing.assert_close(mel_filters(n_mels), expected, atol=1e-6, rtol=0)
