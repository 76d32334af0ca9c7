from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sortk.models.kernels import KernelOptions, SpeakerKernels, resample_posteriors, sinusoidal_kernels


def test_kernels_by_hand() -> None:
    """M = 8: sin(pi k z / 4) for z = 1 ... 8."""
    root = math.sqrt(0.5)
    expected = [
        [root, 1, root, 0, -root, -1, -root, 0],
        [1, 0, -1, 0, 1, 0, -1, 0],
        [root, -1, root, 0, -root, 1, -root, 0],
    ]
    torch.testing.assert_close(sinusoidal_kernels(3, 8), torch.tensor(expected), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("n_speakers", "d_model"), [(4, 512), (4, 1024), (20, 64), (1, 3)])
def test_kernels_are_orthogonal_with_the_norm_of_facts(n_speakers: int, d_model: int) -> None:
    gamma = sinusoidal_kernels(n_speakers, d_model)
    torch.testing.assert_close(gamma @ gamma.T, torch.eye(n_speakers) * d_model / 2, atol=1e-4, rtol=0)


def test_the_equation() -> None:
    states, probs = 5 * torch.randn(2, 7, 16), torch.rand(2, 7, 3)
    encoded = SpeakerKernels(KernelOptions(), 3, 16)(states, probs)
    for clip in range(2):
        for t in range(7):
            column = states[clip, t] / states[clip, t].square().sum().sqrt()
            for k in range(3):
                column = column + probs[clip, t, k] * torch.sin(2 * math.pi * (k + 1) * torch.arange(1, 17) / 16)
            torch.testing.assert_close(encoded[clip, t], column, atol=1e-5, rtol=1e-5)


def test_where_nobody_speaks_only_the_norm_changes_or_nothing() -> None:
    states, nobody = 5 * torch.randn(2, 7, 16), torch.zeros(2, 7, 3)
    encoded = SpeakerKernels(KernelOptions(), 3, 16)(states, nobody)
    torch.testing.assert_close(encoded.norm(dim=2), torch.ones(2, 7))
    kept = SpeakerKernels(KernelOptions(keep_norm=True), 3, 16)(states, nobody)
    torch.testing.assert_close(kept, states)


def test_it_is_linear_in_the_posteriors() -> None:
    kernels, states = SpeakerKernels(KernelOptions(scale=0.3), 3, 16), torch.randn(2, 7, 16)
    one, other = torch.rand(2, 7, 3), torch.rand(2, 7, 3)
    without = kernels(states, torch.zeros(2, 7, 3))

    def mark(probs: torch.Tensor) -> torch.Tensor:
        return kernels(states, probs) - without

    torch.testing.assert_close(mark(0.7 * one - 2 * other), 0.7 * mark(one) - 2 * mark(other), atol=1e-5, rtol=0)
    torch.testing.assert_close(mark(one), 0.3 * one @ sinusoidal_kernels(3, 16), atol=1e-5, rtol=0)


def test_a_swap_of_speakers_swaps_their_kernels() -> None:
    kernels, gamma = SpeakerKernels(KernelOptions(), 3, 16), sinusoidal_kernels(3, 16)
    states, probs = torch.randn(2, 7, 16), torch.rand(2, 7, 3)
    swapped = kernels(states, probs[:, :, [1, 0, 2]]) - kernels(states, probs)
    expected = (probs[:, :, :1] - probs[:, :, 1:2]) * (gamma[1] - gamma[0])
    torch.testing.assert_close(swapped, expected, atol=1e-5, rtol=0)


def test_learned_kernels_begin_as_sinusoids() -> None:
    states, probs = torch.randn(2, 7, 16), torch.rand(2, 7, 3)
    fixed, learned = (SpeakerKernels(KernelOptions(kind=kind), 3, 16) for kind in ("sinusoidal", "learned"))
    torch.testing.assert_close(fixed(states, probs), learned(states, probs))
    assert not fixed.state_dict() and list(learned.state_dict()) == ["gamma"]
    learned(states, probs).square().sum().backward()
    assert learned.gamma.grad is not None and learned.gamma.grad.abs().sum() > 0


def test_padding_without_any_state_gives_no_nan() -> None:
    states = torch.zeros(1, 3, 16, requires_grad=True)
    encoded = SpeakerKernels(KernelOptions(keep_norm=True), 2, 16)(states, torch.zeros(1, 3, 2))
    encoded.sum().backward()
    assert encoded.isfinite().all() and states.grad is not None and states.grad.isfinite().all()


# ---------------------------------------------------------------------------------------------------------------------
# Other frames


@pytest.mark.parametrize(("n_frames", "expected"), [(3, [1, 2, 3]), (2, [1, 2]), (5, [1, 2, 3, 0, 0])])
def test_posteriors_of_the_same_rate_are_cut_or_padded(n_frames: int, expected: list[float]) -> None:
    probs = torch.tensor([1.0, 2, 3])[None, :, None]
    assert resample_posteriors(probs, n_frames).flatten().tolist() == expected


def test_finer_posteriors_are_averaged() -> None:
    fine = torch.tensor([0, 0.2, 0.4, 0.6, 0.8, 1, 1, 0, 1, 1])[None, :, None]
    torch.testing.assert_close(resample_posteriors(fine, 2, 0.01).flatten(), torch.tensor([0.5, 0.25]))
    uneven = torch.tensor([1.0, 0, 1, 0, 1])[None, :, None]  # of 32 ms: a frame of 80 ms covers two and a half
    torch.testing.assert_close(resample_posteriors(uneven, 2, 0.032).flatten(), torch.tensor([0.6, 0.6]))


def test_coarser_posteriors_are_repeated() -> None:
    coarse = torch.tensor([[1.0, 0], [0, 1]])[None]
    expected = [[1.0, 0], [1, 0], [0, 1], [0, 1], [0, 0]]
    torch.testing.assert_close(resample_posteriors(coarse, 5, 0.16)[0], torch.tensor(expected))


@given(st.integers(1, 40), st.sampled_from([0.01, 0.02, 0.05, 0.0625, 0.1, 0.32]))
def test_resampling_keeps_the_time_that_is_spoken(n_frames: int, frame_seconds: float) -> None:
    n_given = math.ceil(n_frames * 0.08 / frame_seconds)
    probs = torch.rand(1, n_given, 2, generator=torch.Generator().manual_seed(n_frames))
    n_longer = math.ceil(n_given * frame_seconds / 0.08)
    resampled = resample_posteriors(probs, n_longer, frame_seconds)
    assert resampled.min() >= -1e-5 and resampled.max() <= 1 + 1e-5
    spoken = probs.sum(dim=1) * frame_seconds
    torch.testing.assert_close(resampled.sum(dim=1) * 0.08, spoken, atol=1e-4, rtol=1e-4)


def test_errors_are_sentences() -> None:
    with pytest.raises(ValueError, match=r"1000 frames of 0.08 s do not fit 125 frames of 0.08 s"):
        resample_posteriors(torch.zeros(1, 1000, 4), 125)
    with pytest.raises(ValueError, match="posteriors of 4 speakers do not fit the kernels of 3"):
        SpeakerKernels(KernelOptions(), 3, 16)(torch.randn(1, 7, 16), torch.rand(1, 7, 4))
    with pytest.raises(ValueError, match="8 features have kernels for 1 to 3 speakers, got 4"):
        sinusoidal_kernels(4, 8)
    with pytest.raises(ValueError, match="kind must be sinusoidal or learned, got 'cosine'"):
        KernelOptions(kind="cosine")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="scale must be 0 or more, got -1"):
        KernelOptions(scale=-1)
