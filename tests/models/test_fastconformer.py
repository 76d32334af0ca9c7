from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from sortk.models import fastconformer
from sortk.models.fastconformer import (
    FastConformer,
    FastConformerOptions,
    MaskedBatchNorm,
    RelativeAttention,
    Subsampling,
    relative_sinusoids,
    shift_relative,
)

SMALL = FastConformerOptions(d_model=32, n_layers=2, n_heads=4, subsampling_channels=8)
# Nothing left that knows the order of the frames: no positions, and a convolution over one frame.
ORDERLESS = replace(SMALL, positions=False, conv_kernel=1)


def randomized(module: nn.Module) -> nn.Module:
    """Biases and norms too, so that nothing is hidden by a 0 or 1."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return module


def make_encoder(options: FastConformerOptions) -> FastConformer:
    torch.manual_seed(0)
    encoder = FastConformer(options, n_mels=20)
    randomized(encoder)
    return encoder.eval()


@pytest.mark.parametrize(("n_queries", "n_keys"), [(1, 1), (3, 3), (2, 5), (1, 4), (4, 2)])
def test_shift_puts_each_distance_at_its_key(n_queries: int, n_keys: int) -> None:
    scores = torch.randn(2, 3, n_queries, n_queries + n_keys)
    shifted = shift_relative(scores, n_keys)
    assert shifted.shape == (2, 3, n_queries, n_keys)
    for i in range(n_queries):
        for s in range(n_keys):
            assert torch.equal(shifted[:, :, i, s], scores[:, :, i, n_queries - 1 - i + s])


def test_sinusoids_by_hand() -> None:
    sinusoids = relative_sinusoids(2, 4, torch.device("cpu"))  # distances 1, 0, -1, -2; frequencies 1 and 1/100
    expected = [[math.sin(d), math.cos(d), math.sin(d / 100), math.cos(d / 100)] for d in (1, 0, -1, -2)]
    torch.testing.assert_close(sinusoids, torch.tensor(expected))


@pytest.mark.parametrize("block", [256, 3])
def test_attention_follows_its_equation(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastconformer, "QUERY_BLOCK", block)
    n_frames, d_model, n_heads = 7, SMALL.d_model, SMALL.n_heads
    attention = RelativeAttention(SMALL).eval()
    randomized(attention)
    x = torch.randn(1, n_frames, d_model)
    sinusoids = relative_sinusoids(n_frames, d_model, x.device)

    def heads(y: Tensor) -> Tensor:
        return y.view(-1, n_heads, d_model // n_heads)

    q, k, v = heads(attention.linear_q(x[0])), heads(attention.linear_k(x[0])), heads(attention.linear_v(x[0]))
    r = heads(attention.linear_pos(sinusoids))
    out = torch.zeros(n_frames, n_heads, d_model // n_heads)
    for h in range(n_heads):
        scores = torch.zeros(n_frames, n_frames)
        for t in range(n_frames):
            for s in range(n_frames):
                content = (q[t, h] + attention.pos_bias_u[h]) @ k[s, h]
                distance = (q[t, h] + attention.pos_bias_v[h]) @ r[n_frames - 1 - (t - s), h]
                scores[t, s] = (content + distance) / math.sqrt(d_model // n_heads)
        out[:, h] = scores.softmax(dim=1) @ v[:, h]
    expected = attention.linear_out(out.flatten(1))
    actual = attention(x, attention.project_positions(sinusoids), None)[0]
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


def plain_convolutions(subsampling: Subsampling, mel: Tensor) -> Tensor:
    """(batch, mel frames, n_mels) -> (batch, frames, d_model)"""
    plain = subsampling.conv(mel[:, None])  # (batch, channels, frames, bins)
    frames: Tensor = subsampling.out(plain.transpose(1, 2).flatten(2))
    return frames


@pytest.mark.parametrize("n_mels", [80, 23])
@pytest.mark.parametrize("n_mel_frames", [1, 7, 8, 9, 50])
def test_subsampling_is_the_plain_convolutions(n_mels: int, n_mel_frames: int) -> None:
    subsampling = Subsampling(n_mels, channels=8, d_model=16)
    mel = torch.randn(2, n_mel_frames, n_mels)
    frames, lengths = subsampling(mel, None)
    assert lengths is None and frames.shape == (2, math.ceil(n_mel_frames / 8), 16)
    torch.testing.assert_close(frames, plain_convolutions(subsampling, mel), atol=1e-5, rtol=0)


def test_subsampling_learns_like_the_plain_convolutions() -> None:
    subsampling, mel = Subsampling(20, channels=8, d_model=16), torch.randn(2, 30, 20)

    def gradients(frames: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(frames.square().sum(), list(subsampling.parameters()))

    plain = gradients(plain_convolutions(subsampling, mel))
    for ours, expected in zip(gradients(subsampling(mel, None)[0]), plain, strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)


def test_batch_norm_leaves_padding_out() -> None:
    x, valid = torch.randn(2, 5, 3), torch.tensor([[True] * 5, [True] * 2 + [False] * 3])
    masked, plain = MaskedBatchNorm(3), nn.BatchNorm1d(3)
    torch.testing.assert_close(masked(x, valid)[valid], plain(x[valid]))
    torch.testing.assert_close(masked.state_dict(), plain.state_dict())
    masked.eval(), plain.eval()
    torch.testing.assert_close(masked(x, valid)[valid], plain(x[valid]))
    torch.testing.assert_close(masked(x), masked(x, valid))


@pytest.mark.parametrize("options", [SMALL, replace(SMALL, positions=False), replace(SMALL, scale_input=False)])
def test_a_padded_batch_equals_each_clip_alone(options: FastConformerOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastconformer, "QUERY_BLOCK", 4)
    encoder = make_encoder(options)
    lengths = [80, 41, 1, 64]
    mel = torch.randn(4, 90, 20)  # also what lies in the padding does not matter
    frames, frame_lengths = encoder(mel, torch.tensor(lengths))
    assert frame_lengths is not None and frame_lengths.tolist() == [10, 6, 1, 8]
    for row, n in enumerate(lengths):
        alone, _ = encoder(mel[row : row + 1, :n])
        torch.testing.assert_close(frames[row, : alone.shape[1]], alone[0], atol=1e-5, rtol=0)


def test_a_clip_without_any_frame_gives_no_nan() -> None:
    frames, _ = make_encoder(SMALL).train()(torch.randn(2, 30, 20), torch.tensor([30, 0]))
    assert frames.isfinite().all()


@torch.inference_mode()
def test_positions_that_are_kept_are_those_of_any_number_of_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastconformer, "POSITIONS_GROW_BY", 4)
    monkeypatch.setattr(fastconformer, "POSITIONS_KEPT", 12)
    encoder, frames = make_encoder(SMALL), torch.randn(2, 14, 32)
    expected = {n: encoder.encode(frames[:, :n])[0] for n in (9, 3, 12, 13, 10)}
    encoder.freeze_for_inference()
    for n, output in expected.items():
        torch.testing.assert_close(encoder.encode(frames[:, :n])[0], output, atol=1e-5, rtol=0)
    assert encoder._n_kept == 12


@pytest.mark.parametrize("n_mel", [1, 7, 8, 9, 64, 65, 200])
@pytest.mark.parametrize("padded", [False, True])
def test_frames_are_subsampled_in_blocks(n_mel: int, padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastconformer, "SUBSAMPLED_AT_A_TIME", 4)
    encoder, mel = make_encoder(SMALL), torch.randn(2, n_mel, 20)
    lengths = torch.tensor([n_mel, n_mel // 3]) if padded else None
    with torch.enable_grad():
        expected, n_expected = encoder.subsample(mel, lengths)
    with torch.no_grad():
        frames, n_frames = encoder.subsample(mel, lengths)
    assert frames.shape == expected.shape
    assert (n_frames is None) == (n_expected is None) == (not padded)
    for row in range(2):
        n = int(n_expected[row]) if n_expected is not None else expected.shape[1]
        assert n_frames is None or int(n_frames[row]) == n
        torch.testing.assert_close(frames[row, :n], expected[row, :n], atol=1e-5, rtol=1e-5)


def test_without_positions_the_encoder_is_permutation_equivariant() -> None:
    """f(PX) = P f(X), Appendix F; with positions, or a convolution over several frames, it is not."""
    frames, permutation = torch.randn(1, 12, 32), torch.randperm(12, generator=torch.Generator().manual_seed(1))

    def error(options: FastConformerOptions) -> float:
        encoder = make_encoder(options).requires_grad_(False)
        return float(
            (encoder.encode(frames[:, permutation])[0] - encoder.encode(frames)[0][:, permutation]).abs().max()
        )

    assert error(ORDERLESS) < 1e-5
    assert error(replace(ORDERLESS, positions=True)) > 0.01
    assert error(replace(ORDERLESS, conv_kernel=9)) > 0.01


def test_errors_are_sentences() -> None:
    with pytest.raises(ValueError, match="d_model 100 must be even and a multiple of n_heads 8"):
        FastConformerOptions(d_model=100)
    with pytest.raises(ValueError, match="conv_kernel must be odd, got 8"):
        FastConformerOptions(conv_kernel=8)
