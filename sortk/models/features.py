"""Log-mel features, with the numbers of NVIDIA's models.

    gain -> pre-emphasis -> windowed Fourier transform -> power -> mel filters -> log -> normalisation per mel bin

A clip's features do not depend on what it is batched with: the gain too is the clip's own. (NVIDIA takes it over the
batch, so its outputs depend on a clip's batch-mates; one clip at a time the two are the same.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from sortk.models.frames import HOP_SAMPLES, SAMPLE_RATE, valid_frames
from sortk.models.options import check_sizes

WINDOW_SAMPLES = 400  # 25 ms
N_FFT = 512
PREEMPHASIS = 0.97
LOG_FLOOR = 2.0**-24  # added to the power, so that silence has a logarithm
GAIN_FLOOR = 1e-3
STD_FLOOR = 1e-5


@dataclass(frozen=True)
class FeatureOptions:
    """Settings of the features; the defaults are those of the offline models."""

    n_mels: int = 80
    gain: bool = True  # scale each clip by 1 / (maximum + 0.001); streaming models only in one pass: `LogMel.gain`
    normalize: Literal["per_feature", "none"] = "per_feature"  # zero mean and unit variance of each bin over the clip
    dither: float = 0.0  # standard deviation of noise added in training (NVIDIA: 1e-5)

    def __post_init__(self) -> None:
        check_sizes(self, "n_mels")
        if self.n_mels > N_FFT:
            raise ValueError(f"n_mels must be at most {N_FFT}, got {self.n_mels}")
        if self.normalize not in ("per_feature", "none"):
            raise ValueError(f"normalize must be per_feature or none, got {self.normalize!r}")


class LogMel(nn.Module):
    """Samples at 16 kHz -> a vector of log-mel energies every 10 ms."""

    window: Tensor
    filters: Tensor

    def __init__(self, options: FeatureOptions) -> None:
        super().__init__()
        self.options = options
        self.gain = options.gain  # of a clip in one pass; a stream is scaled only if the options say so
        device = torch.get_default_device()
        with torch.device("cpu"):  # on the meta device, where models are built to be loaded, this takes two seconds
            window, filters = torch.hann_window(WINDOW_SAMPLES, periodic=False), mel_filters(options.n_mels)
        # Constants, not weights: a checkpoint need not hold them.
        self.register_buffer("window", window.to(device), persistent=False)
        self.register_buffer("filters", filters.to(device), persistent=False)

    def forward(self, samples: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """(batch, samples), (batch,) -> (batch, mel frames, n_mels), 0 on padding, and (batch,) valid mel frames."""
        n_frames = samples.shape[1] // HOP_SAMPLES
        if n_frames == 0:
            raise ValueError(f"a clip of {samples.shape[1]} samples is shorter than one mel frame ({HOP_SAMPLES})")
        with torch.autocast(samples.device.type, enabled=False):  # half precision has no room for a spectrum
            power = self._power(samples.float(), lengths)[:, :n_frames]
            mel = (power @ self.filters + LOG_FLOOR).log()
            mel_lengths = None if lengths is None else lengths // HOP_SAMPLES
            valid = valid_frames(mel_lengths, n_frames)
            if self.options.normalize == "per_feature":
                mel = normalize_bins(mel, valid)
        return (mel if valid is None else mel.masked_fill(~valid[:, :, None], 0.0)), mel_lengths

    def _power(self, samples: Tensor, lengths: Tensor | None) -> Tensor:
        """(batch, samples) -> (batch, mel frames + 1, N_FFT / 2 + 1): |DFT|^2 of windows centred on every hop."""
        valid = valid_frames(lengths, samples.shape[1])
        if self.gain:
            audible = samples if valid is None else samples.masked_fill(~valid, -math.inf)
            peak = audible.amax(dim=1, keepdim=True).clamp(min=0)  # all samples below 0: nothing sensible
            samples = samples / (peak + GAIN_FLOOR)
        if self.training and self.options.dither > 0:
            samples = samples + self.options.dither * torch.randn_like(samples)
        # y_0 = x_0, y_n = x_n - 0.97 x_{n-1}
        samples = torch.cat([samples[:, :1], samples[:, 1:] - PREEMPHASIS * samples[:, :-1]], dim=1)
        if valid is not None:
            samples = samples.masked_fill(~valid, 0.0)
        spectrum = torch.stft(
            samples, N_FFT, HOP_SAMPLES, WINDOW_SAMPLES, self.window, pad_mode="constant", return_complex=True
        )
        power: Tensor = spectrum.real.square() + spectrum.imag.square()
        return power.transpose(1, 2)


def normalize_bins(mel: Tensor, valid: Tensor | None) -> Tensor:
    """Scale the bins of each clip to mean 0 and standard deviation 1 over valid frames. (batch, frames, bins) both."""
    if valid is None:
        weight, n_valid = mel.new_ones(1, 1, 1), mel.new_full((1, 1, 1), mel.shape[1])
    else:
        weight = valid[:, :, None].to(mel.dtype)
        n_valid = weight.sum(dim=1, keepdim=True).clamp(min=1)
    centred = mel - (mel * weight).sum(dim=1, keepdim=True) / n_valid
    variance = (centred.square() * weight).sum(dim=1, keepdim=True) / (n_valid - 1).clamp(min=1)
    return centred / (variance.sqrt() + STD_FLOOR)


def mel_filters(n_mels: int) -> Tensor:
    """(N_FFT / 2 + 1, n_mels): triangles of unit area that overlap by half on Slaney's mel scale, 0 to 8000 Hz."""
    # Slaney's scale is linear, 3 mel per 200 Hz, up to 1000 Hz = 15 mel; then 27 mel are a factor of 6.4.
    highest = 15 + 27 * math.log(SAMPLE_RATE / 2 / 1000) / math.log(6.4)
    mels = torch.linspace(0, highest, n_mels + 2, dtype=torch.float64)
    edges = torch.where(mels < 15, mels * (200 / 3), 1000 * 6.4 ** ((mels - 15) / 27))
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    hertz = torch.linspace(0, SAMPLE_RATE / 2, N_FFT // 2 + 1, dtype=torch.float64)[:, None]
    rising, falling = (hertz - left) / (centre - left), (right - hertz) / (right - centre)
    triangles = torch.minimum(rising, falling).clamp(min=0)
    return (triangles * 2 / (right - left)).float()
