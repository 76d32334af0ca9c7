from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sortk.inference import mel
from sortk.inference.mel import MelStream, subsample_by_blocks
from sortk.models.fastconformer import FastConformer, FastConformerOptions
from sortk.models.features import FeatureOptions, LogMel

PLAIN = FeatureOptions(n_mels=20, gain=False, normalize="none")
OFFLINE = FeatureOptions(n_mels=20)


def noise(n_samples: int, batch: int = 1) -> Tensor:
    return 0.1 * torch.randn(batch, n_samples, generator=torch.Generator().manual_seed(n_samples))


def log_mel(options: FeatureOptions) -> LogMel:
    return LogMel(options).eval()


@pytest.mark.parametrize("n_samples", [160, 1279, 16000, 20123])
@pytest.mark.parametrize("options", [PLAIN, OFFLINE])
def test_in_one_piece_it_is_the_offline_features(options: FeatureOptions, n_samples: int) -> None:
    stream, samples = MelStream(log_mel(options)), noise(n_samples)
    stream.hear(samples)
    heard = stream.cut(0, n_samples // 160, is_last=True)
    torch.testing.assert_close(heard, log_mel(options)(samples)[0], atol=1e-4, rtol=1e-5)


def test_pieces_of_plain_features_are_those_of_the_whole() -> None:
    stream, samples = MelStream(log_mel(PLAIN), batch=2), noise(20000, batch=2)
    pieces = []
    for first, stop, n_heard in ((0, 30, 5000), (22, 60, 12000), (52, 125, 20000)):
        stream.hear(samples[:, stream.n_samples : n_heard])
        piece = stream.cut(first, stop, is_last=stop == 125)
        pieces.append(piece[:, max(sum(p.shape[1] for p in pieces) - first, 0) :])
    torch.testing.assert_close(torch.cat(pieces, dim=1), log_mel(PLAIN)(samples)[0], atol=1e-4, rtol=1e-5)


def test_settled_frames_do_not_change() -> None:
    """A frame's window reaches 200 samples to the right of its hop: 1150 samples settle frames 0 to 5."""
    stream = MelStream(log_mel(PLAIN))
    assert stream.n_settled == 0
    stream.hear(noise(1150))
    assert stream.n_settled == 6
    early, later = noise(1150), torch.cat([noise(1150), 0.5 * noise(4001)[:, :600]], dim=1)
    whole = log_mel(PLAIN)
    torch.testing.assert_close(whole(early)[0][:, :6], whole(later)[0][:, :6])
    assert not torch.allclose(whole(early)[0][:, :7], whole(later)[0][:, :7])


def test_later_pieces_are_normalised_by_all_that_was_heard() -> None:
    """The last piece of a recording has mean and deviation of the whole, so it is the offline one."""
    samples = noise(32000)
    samples[:, 20000:] *= 3  # the peak rises as well
    stream = MelStream(log_mel(OFFLINE))
    stream.hear(samples)
    stream.cut(0, 100, is_last=False)
    heard = stream.cut(100, 200, is_last=True)
    torch.testing.assert_close(heard, log_mel(OFFLINE)(samples)[0][:, 100:], atol=1e-3, rtol=1e-3)


def test_what_is_not_needed_is_forgotten() -> None:
    stream = MelStream(log_mel(PLAIN))
    for start in range(0, 8000, 80):
        stream.hear(noise(12800))
        stream.cut(start, start + 80, is_last=False)
    assert stream.n_samples == 100 * 12800 and stream._samples.shape[1] < 3 * 12800


@pytest.mark.parametrize("n_mel", [1, 7, 8, 9, 64, 65, 200])
@pytest.mark.parametrize("padded", [False, True])
def test_blocks_of_subsampled_frames(n_mel: int, padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mel, "SUBSAMPLED_AT_A_TIME", 4)
    encoder = FastConformer(FastConformerOptions(d_model=16, n_layers=1, n_heads=2, subsampling_channels=8), 20).eval()
    frames, lengths = torch.randn(2, n_mel, 20), torch.tensor([n_mel, n_mel // 3]) if padded else None
    with torch.inference_mode():
        whole, n_valid = encoder.subsample(frames, lengths)
        blocks = subsample_by_blocks(encoder, frames, lengths)
    assert blocks.shape == whole.shape
    for row in range(2):
        n = int(n_valid[row]) if n_valid is not None else whole.shape[1]
        torch.testing.assert_close(blocks[row, :n], whole[row, :n], atol=1e-5, rtol=1e-5)
