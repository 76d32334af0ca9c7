"""Sortformer in forms that can be exported.

A graph has no branches and no loops that depend on lengths, so a few parts are written again here in a way that has
none.

The state of `StreamingSortformer` grows until cache and FIFO are full. In a graph they have their full size from the
start, and numbers say how much of it is filled; before the model hears them, the filled parts are put side by side.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from sortk.inference.streaming import StreamingOptions, StreamingSortformer, StreamingState, compress
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
from sortk.models.transformer import SelfAttention, TransformerLayer

Module = TypeVar("Module", bound=nn.Module)


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


def plain_sortformer(model: Sortformer) -> Sortformer:
    """A copy on the CPU whose attention is plain."""
    plain = copy.deepcopy(model).cpu()
    for conformer in cast(Iterable[ConformerLayer], plain.encoder.layers):
        conformer.self_attn = _replace(conformer.self_attn, PlainRelativeAttention(plain.options.encoder))
    for layer in cast(Iterable[TransformerLayer], plain.transformer.layers):
        layer.attention = _replace(layer.attention, PlainSelfAttention(plain.options.transformer))
    return plain.eval()


def _replace(old: nn.Module, new: Module) -> Module:
    new.load_state_dict(old.state_dict())
    return new


# --- graphs


class FeatureGraph(nn.Module):
    """(1, samples) -> (1, mel frames, n_mels), without the gain and the normalisation over the clip."""

    def __init__(self, model: Sortformer) -> None:
        super().__init__()
        plain = replace(model.options.features, gain=False, normalize="none")
        self.features = PlainLogMel(LogMel(plain))

    def forward(self, samples: Tensor) -> Tensor:
        mel: Tensor = self.features(samples)
        return mel


class OfflineGraph(nn.Module):
    """(1, samples) -> (1, frames, speakers)."""

    def __init__(self, model: Sortformer) -> None:
        super().__init__()
        self.model = plain_sortformer(model)
        self.features, self.subsampling = PlainLogMel(model.features), PlainSubsampling(self.model.encoder.pre_encode)

    def forward(self, samples: Tensor) -> Tensor:
        return self.model.diarize_frames(self.subsampling(self.features(samples))).speaker_probs


class GraphState(NamedTuple):
    """StreamingState at its full size."""

    cache: Tensor  # (1, cache, d_model), of which
    n_cache: Tensor  # (1,) frames are filled
    cache_probs: Tensor  # (1, cache, speakers); they count only if
    is_compressed: Tensor  # (1,) is 1, not 0
    fifo: Tensor  # (1, at least 1, d_model), of which
    n_fifo: Tensor  # (1,) frames are filled
    mean_silence: Tensor  # (1, d_model)
    n_silence: Tensor  # (1,)


class StepGraph(nn.Module):
    """One step of one stream, as StreamingSortformer takes it."""

    def __init__(self, model: Sortformer, options: StreamingOptions) -> None:
        super().__init__()
        StreamingSortformer(model, options)  # refuses settings that cannot be
        if model.options.n_speakers < 2:
            raise ValueError("a step of a stream needs a model of at least two speakers")
        self.model, self.options = plain_sortformer(model), options
        self.subsampling = PlainSubsampling(self.model.encoder.pre_encode)

    def start(self) -> GraphState:
        """Nothing heard yet."""
        d_model, n_speakers = self.model.options.encoder.d_model, self.model.options.n_speakers
        return GraphState(
            cache=torch.zeros(1, self.options.cache, d_model),
            n_cache=torch.zeros(1, dtype=torch.long),
            cache_probs=torch.zeros(1, self.options.cache, n_speakers),
            is_compressed=torch.zeros(1, dtype=torch.long),
            fifo=torch.zeros(1, max(self.options.fifo, 1), d_model),
            n_fifo=torch.zeros(1, dtype=torch.long),
            mean_silence=torch.zeros(1, d_model),
            n_silence=torch.zeros(1, dtype=torch.long),
        )

    def forward(self, mel: Tensor, n_left: Tensor, n_right: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """(1, mel frames, n_mels), whose first and last (1,) model frames are context -> (1, frames, speakers), of the
        contexts too, and the state."""
        before = GraphState(*state)
        frames = self.subsampling(mel)
        heard = join(before.cache, before.n_cache, join(before.fifo, before.n_fifo, frames))
        n_remembered = before.n_cache + before.n_fifo
        probs = self.model.diarize_frames(heard, n_remembered + frames.shape[1]).speaker_probs
        after = self._remember(before, heard, probs, frames.shape[1], n_left, n_right)
        return probs.index_select(1, n_remembered + torch.arange(frames.shape[1])), *after

    def _remember(
        self, state: GraphState, heard: Tensor, probs: Tensor, n_frames: int, n_left: Tensor, n_right: Tensor
    ) -> GraphState:
        options, n_cache, n_fifo = self.options, state.n_cache, state.n_fifo
        # FIFO and chunk; the left context between them is skipped. It is as long as can be: `compress` wants a number.
        place = torch.arange(state.fifo.shape[1] + options.chunk)
        source = (n_cache + place + torch.where(place < n_fifo, 0, n_left)).clamp(max=heard.shape[1] - 1)
        queue, queue_probs = heard.index_select(1, source), probs.index_select(1, source)
        n_queue = n_fifo + n_frames - n_left - n_right
        n_over = n_queue - options.fifo
        n_moved = torch.where(n_over > 0, torch.minimum(n_over.clamp(min=options.update_period), n_queue), 0)

        is_silent = (queue_probs.sum(dim=2) < options.silence_threshold) & (place < n_moved)
        n_silence = state.n_silence + is_silent.sum(dim=1)
        total = state.mean_silence * state.n_silence[:, None] + (queue * is_silent[:, :, None]).sum(dim=1)
        mean_silence = torch.where(n_moved[:, None] > 0, total / n_silence.clamp(min=1)[:, None], state.mean_silence)

        n_kept = n_cache + n_moved
        is_full = n_kept > options.cache
        known = torch.where(state.is_compressed[:, None, None] > 0, state.cache_probs, probs[:, : options.cache])
        candidates = clear(join(state.cache, n_cache, queue), n_kept)
        candidate_probs = clear(join(known, n_cache, queue_probs), n_kept)
        compressed, compressed_probs = compress(candidates, candidate_probs, mean_silence, options)
        n_left_over = n_queue - n_moved
        fifo = queue.index_select(1, (n_moved + torch.arange(state.fifo.shape[1])).clamp(max=queue.shape[1] - 1))
        return GraphState(
            cache=torch.where(is_full[:, None, None], compressed, candidates[:, : options.cache]),
            n_cache=n_kept.clamp(max=options.cache),
            cache_probs=torch.where(is_full[:, None, None], compressed_probs, state.cache_probs),
            is_compressed=torch.maximum(state.is_compressed, is_full.long()),
            fifo=clear(fifo, n_left_over),
            n_fifo=n_left_over,
            mean_silence=mean_silence,
            n_silence=n_silence,
        )


def join(first: Tensor, n_first: Tensor, second: Tensor) -> Tensor:
    """`second` right behind the first (1,) frames of `first`. (1, n, d), (1, m, d) -> (1, n + m, d)

    At the end, where nothing is left, the last frame is repeated."""
    both = torch.cat([first, second], dim=1)
    place = torch.arange(both.shape[1])
    source = torch.where(place < n_first, place, place - n_first + first.shape[1])
    return both.index_select(1, source.clamp(max=both.shape[1] - 1))


def clear(frames: Tensor, n_filled: Tensor) -> Tensor:
    """(1, n, d) with 0 behind the first (1,) frames."""
    return frames * (torch.arange(frames.shape[1]) < n_filled)[None, :, None]


def fill(graph: StepGraph, state: StreamingState) -> GraphState:
    """The state of StreamingSortformer as that of a graph."""
    empty = graph.start()
    cache, fifo = empty.cache, empty.fifo
    cache[:, : state.cache.shape[1]], fifo[:, : state.fifo.shape[1]] = state.cache, state.fifo
    return GraphState(
        cache=cache,
        n_cache=torch.tensor([state.cache.shape[1]]),
        cache_probs=empty.cache_probs if state.cache_probs is None else state.cache_probs,
        is_compressed=torch.tensor([int(state.cache_probs is not None)]),
        fifo=fifo,
        n_fifo=torch.tensor([state.fifo.shape[1]]),
        mean_silence=state.mean_silence,
        n_silence=state.n_silence,
    )
