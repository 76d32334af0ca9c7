"""Diarizers in forms that can be exported.

A graph has no branches and no loops that depend on lengths, so a few parts are written again here in a way that has
none. A step of a stream is not: `StreamingStep` runs in torch and in a graph.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from sortk.models.diarizer import StreamableDiarizer, StreamingOptions
from sortk.models.fastconformer import ConformerLayer, Context, RelativeAttention, Subsampling
from sortk.models.features import (
    GAIN_FLOOR,
    LOG_FLOOR,
    N_FFT,
    PREEMPHASIS,
    WINDOW_SAMPLES,
    LogMel,
    normalize_bins,
)
from sortk.models.frames import HOP_SAMPLES, key_bias
from sortk.models.sortformer import Sortformer
from sortk.models.speaker_cache import StreamingState, StreamingStep
from sortk.models.transformer import SelfAttention, TransformerLayer

Module = TypeVar("Module", bound=nn.Module)
Diarizer = TypeVar("Diarizer", bound=StreamableDiarizer)


class PlainLogMel(nn.Module):
    """LogMel whose Fourier transform is a convolution: (batch, samples) -> (batch, mel frames, n_mels)."""

    fourier: Tensor
    filters: Tensor

    def __init__(self, features: LogMel) -> None:
        super().__init__()
        self.options = features.options
        # The window lies in the middle of the transform. |sum_n w_n x_n e^{-i a n}|^2 has a cosine and a sine part.
        margin = (N_FFT - WINDOW_SAMPLES) // 2
        window = functional.pad(features.window.double().cpu(), (margin, margin))
        angle = torch.outer(torch.arange(N_FFT // 2 + 1).double(), torch.arange(N_FFT).double()) * (2 * math.pi / N_FFT)
        fourier = torch.cat([angle.cos() * window, angle.sin() * window])
        self.register_buffer("fourier", fourier[:, None].float())
        self.register_buffer("filters", features.filters.cpu())

    def forward(self, samples: Tensor) -> Tensor:
        if self.options.gain:
            samples = samples / (samples.amax(dim=1, keepdim=True).clamp(min=0) + GAIN_FLOOR)
        before = functional.pad(samples, (1, 0))[:, :-1]
        samples = functional.pad(samples - PREEMPHASIS * before, (N_FFT // 2, N_FFT // 2 - HOP_SAMPLES))
        cosine, sine = functional.conv1d(samples[:, None], self.fourier, stride=HOP_SAMPLES).chunk(2, dim=1)
        power = (cosine.square() + sine.square()).transpose(1, 2)
        mel = (power @ self.filters + LOG_FLOOR).log()
        return normalize_bins(mel, None) if self.options.normalize == "per_feature" else mel


class PlainSubsampling(nn.Module):
    """Subsampling as its convolutions stand: (batch, mel frames, n_mels) -> (batch, frames, d_model)."""

    def __init__(self, subsampling: Subsampling) -> None:
        super().__init__()
        self.conv, self.out = subsampling.conv, subsampling.out

    def forward(self, mel: Tensor) -> Tensor:
        frames: Tensor = self.out(self.conv(mel[:, None]).transpose(1, 2).flatten(2))
        return frames


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
    """Attention as it is written: (batch, heads, frames, d_k) three times -> (batch, frames, heads, d_k)."""
    scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[3])
    scores = scores if bias is None else scores + bias
    return (scores.softmax(dim=3) @ value).transpose(1, 2)


class PlainRelativeAttention(RelativeAttention):
    """RelativeAttention with all queries at once."""

    def _attend_by_blocks(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        positions: Tensor,
        no_padding: Tensor | None,
        dropout: float,
        context: Context | None = None,
    ) -> Tensor:
        by_distance = (query + self.pos_bias_v[:, None]) / math.sqrt(query.shape[3])
        bias = shift_whole(by_distance @ positions[..., :-1])
        return attend(query + self.pos_bias_u[:, None], key, value, bias if no_padding is None else bias + no_padding)

    def project_positions(self, distances: Tensor) -> Tensor:
        projected: Tensor = self.linear_pos(distances)
        return projected.view(distances.shape[0], self.n_heads, -1).permute(1, 2, 0)


def shift_whole(scores: Tensor) -> Tensor:
    """`shift_relative` of all queries: (batch, heads, n, 2 n - 1) -> (batch, heads, n, n).

    Each row starts one column further left than the row above. A column of zeros in front, and the same numbers in rows
    of n, without the first row, are what is read there.
    """
    batch, n_heads, n, _ = scores.shape
    padded = functional.pad(scores, (1, 0)).reshape(batch, n_heads, 2 * n, n)
    return padded[:, :, 1:].reshape(batch, n_heads, n, 2 * n - 1)[..., :n]


class PlainSelfAttention(SelfAttention):
    """The Transformer's."""

    def forward(self, x: Tensor, valid: Tensor | None) -> Tensor:
        query, key, value = (
            linear(x).unflatten(2, (self.n_heads, -1)).transpose(1, 2) for linear in (self.query, self.key, self.value)
        )
        out: Tensor = self.out(attend(query, key, value, key_bias(valid, query.dtype)).flatten(2))
        return out


def plain_model(model: Diarizer) -> Diarizer:
    """Return a copy on the CPU whose attention is plain."""
    plain = copy.deepcopy(model).cpu()
    if isinstance(plain, Sortformer):
        for conformer in cast(Iterable[ConformerLayer], plain.encoder.layers):
            conformer.self_attn = _replace(conformer.self_attn, PlainRelativeAttention(plain.options.encoder))
        for layer in cast(Iterable[TransformerLayer], plain.transformer.layers):
            layer.attention = _replace(layer.attention, PlainSelfAttention(plain.options.transformer))
    return plain.eval()


def plain_subsampling(model: StreamableDiarizer) -> nn.Module:
    """Return the module from mel frames to model frames."""
    return PlainSubsampling(model.encoder.pre_encode) if isinstance(model, Sortformer) else Stacking(model)


class Stacking(nn.Module):
    """`model.subsample` as a module."""

    def __init__(self, model: StreamableDiarizer) -> None:
        super().__init__()
        self.model = model

    def forward(self, mel: Tensor) -> Tensor:
        return self.model.subsample(mel)[0]


def _replace(old: nn.Module, new: Module) -> Module:
    new.load_state_dict(old.state_dict())
    return new


# --- graphs


class FeatureGraph(nn.Module):
    """(1, samples) -> (1, mel frames, n_mels), without the gain and the normalisation over the clip."""

    def __init__(self, model: StreamableDiarizer) -> None:
        super().__init__()
        plain = replace(model.options.features, gain=False, normalize="none")
        self.features = PlainLogMel(LogMel(plain))

    def forward(self, samples: Tensor) -> Tensor:
        mel: Tensor = self.features(samples)
        return mel


class OfflineGraph(nn.Module):
    """(1, samples) -> (1, rows, speakers)."""

    def __init__(self, model: StreamableDiarizer) -> None:
        super().__init__()
        self.model = plain_model(model)
        self.features, self.subsampling = PlainLogMel(model.features), plain_subsampling(self.model)

    def forward(self, samples: Tensor) -> Tensor:
        mel = self.features(samples)
        probs = self.model.diarize_frames(self.subsampling(mel)).speaker_probs
        return probs if self.model.rows_per_frame == 1 else probs[:, : mel.shape[1]]


class StepGraph(nn.Module):
    """One step of one stream: mel frames and a state in, posteriors and the next state out."""

    def __init__(self, model: StreamableDiarizer, options: StreamingOptions) -> None:
        super().__init__()
        if model.options.n_speakers < 2:
            raise ValueError("a step of a stream needs a model of at least two speakers")
        self.model = plain_model(model)
        self.take_step = StreamingStep(self.model, options)
        self.subsampling = plain_subsampling(self.model)

    def forward(self, mel: Tensor, n_left: Tensor, n_right: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """(1, mel frames, n_mels), whose first and last (1,) model frames are context -> (1, rows, speakers), of the
        contexts too, and the state."""
        probs, after = self.take_step(StreamingState(*state), self.subsampling(mel), n_left, n_right)
        return probs, *after
