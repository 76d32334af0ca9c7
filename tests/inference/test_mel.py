from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sortk.inference.streaming import MelStream
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
    stream.push(samples)
    heard = stream.cut(0, n_samples // 160, is_last=True)
    torch.testing.assert_close(heard, log_mel(options)(samples)[0], atol=1e-4, rtol=1e-5)


def test_pieces_of_plain_features_are_those_of_the_whole() -> None:
    stream, samples = MelStream(log_mel(PLAIN), batch=2), noise(20000, batch=2)
    pieces = []
    for first, stop, n_heard in ((0, 30, 5000), (22, 60, 12000), (52, 125, 20000)):
        stream.push(samples[:, stream.n_samples : n_heard])
        piece = stream.cut(first, stop, is_last=stop == 125)
        pieces.append(piece[:, max(sum(p.shape[1] for p in pieces) - first, 0) :])
    torch.testing.assert_close(torch.cat(pieces, dim=1), log_mel(PLAIN)(samples)[0], atol=1e-4, rtol=1e-5)


def test_settled_frames_do_not_change() -> None:
    """A frame's window reaches 200 samples to the right of its hop: 1150 samples settle frames 0 to 5."""
    stream = MelStream(log_mel(PLAIN))
    assert stream.n_settled == 0
    stream.push(noise(1150))
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
    stream.push(samples)
    stream.cut(0, 100, is_last=False)
    heard = stream.cut(100, 200, is_last=True)
    torch.testing.assert_close(heard, log_mel(OFFLINE)(samples)[0][:, 100:], atol=1e-3, rtol=1e-3)


def test_what_is_not_needed_is_forgotten() -> None:
    stream = MelStream(log_mel(PLAIN))
    for start in range(0, 8000, 80):
        stream.push(noise(12800))
        stream.cut(start, start + 80, is_last=False)
    assert stream.n_samples == 100 * 12800 and stream._samples.shape[1] < 3 * 12800
