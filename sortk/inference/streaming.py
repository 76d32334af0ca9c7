"""Sortformer on a stream: chunk after chunk, with a memory of who is who (Medennikov et al. 2025).

Every step, three things are put in a row and diarized together:

    | speaker cache | FIFO | left context, chunk, right context |
      frames of the   the     what is new; the contexts are heard,
      long past       recent  but only the chunk is decided
                      past

The chunk then joins the FIFO. When that is full, its oldest frames move on to the speaker cache, and when this is
full, it is compressed: the frames that tell the speakers apart best are kept, the first speaker's first. So the model,
which sorts speakers by their arrival, gives everybody the same output again (arrival-order speaker cache, AOSC).

Compression scores frame t for speaker k by how surely k, and nobody else, speaks in it,

    s_{k,t} = log p_{k,t} + sum_{j != k} log(1 - p_{j,t}) + log 2

(above 0: likely k alone), with a bonus for recent frames, and two boosts for the best frames of each speaker: a strong
one that guarantees everybody a share of the cache, and a weak one that keeps one speaker from filling it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from sortk.inference.mel import MelStream
from sortk.models.diarizer import StreamableDiarizer
from sortk.models.frames import FRAME_SECONDS, HOP_SAMPLES, MEL_PER_FRAME


@dataclass(frozen=True)
class StreamingOptions:
    """How a stream is cut and remembered. Lengths are in frames of 80 ms; the defaults are those of NVIDIA's models."""

    chunk: int = 188  # new frames of a step
    left_context: int = 1  # frames before the chunk that are heard with it
    right_context: int = 1  # frames after it; the step waits for them
    fifo: int = 0  # recent frames that are kept as they are
    update_period: int = 188  # frames that move from a full FIFO to the cache, at least
    cache: int = 188  # frames in the speaker cache
    silence_per_speaker: int = 3  # frames of mean silence after each speaker's frames in the cache
    silence_threshold: float = 0.2  # a frame is silent if all speakers' probabilities together are below this
    prob_floor: float = 0.25  # p and 1 - p count as no less in a score
    recent_bonus: float = 0.05  # added to the score of frames that are new in the cache
    strong_boost: float = 0.75  # of a speaker's share of the cache: so many of the best frames get 2 log 2
    weak_boost: float = 1.5  # likewise: so many get log 2
    min_alone: float = 0.5  # likewise: who has as many frames with s > 0 keeps no others

    def __post_init__(self) -> None:
        for name, least in (("chunk", 1), ("left_context", 0), ("right_context", 0), ("fifo", 0), ("update_period", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least} frames, not {getattr(self, name)}")

    @property
    def latency_seconds(self) -> float:
        """How long a frame waits, at most, until its step can run."""
        return (self.chunk + self.right_context) * FRAME_SECONDS


PRESETS = {
    "0.32": StreamingOptions(chunk=3, right_context=1, fifo=188, update_period=144),
    "1.04": StreamingOptions(chunk=6, right_context=7, fifo=188, update_period=144),
    "10": StreamingOptions(chunk=124, right_context=1, fifo=124, update_period=124),
    "30.4": StreamingOptions(chunk=340, right_context=40, fifo=40, update_period=300),
}
"""NVIDIA's published settings, by their latency in seconds."""


class StreamingState(NamedTuple):
    """What a stream remembers. Frames are as `encoder.subsample` gives them."""

    cache: Tensor  # (batch, frames, d_model), ordered by speaker once it was compressed
    cache_probs: Tensor | None  # (batch, frames, speakers); None until then: each step gives new ones
    fifo: Tensor  # (batch, frames, d_model)
    mean_silence: Tensor  # (batch, d_model)
    n_silence: Tensor  # (batch,) frames that it is the mean of


class StreamingSortformer:
    """A Sortformer that takes one step at a time; what it remembers is in a state that is handed on."""

    def __init__(self, model: StreamableDiarizer, options: StreamingOptions) -> None:
        n_speakers = model.options.n_speakers
        least = n_speakers * (1 + options.silence_per_speaker)
        if options.cache < least:
            raise ValueError(f"a cache of {options.cache} frames is too small for {n_speakers} speakers: give {least}")
        self.model, self.options = model, options

    def start(self, batch: int = 1) -> StreamingState:
        """Nothing heard yet."""
        nothing = self.model.features.window.new_zeros(batch, 0, self.model.frame_size)
        silence = nothing.new_zeros(batch, nothing.shape[2])
        return StreamingState(nothing, None, nothing, silence, silence.new_zeros(batch, dtype=torch.long))

    def step(
        self, state: StreamingState, frames: Tensor, n_left: int = 0, n_right: int = 0
    ) -> tuple[Tensor, StreamingState]:
        """(batch, left + chunk + right, d_model) -> (batch, chunk, speakers), and what to remember."""
        n_cache, n_fifo, n_chunk = state.cache.shape[1], state.fifo.shape[1], frames.shape[1] - n_left - n_right
        heard = torch.cat([state.cache, state.fifo, frames], dim=1)
        output = self.model.diarize_frames(heard)
        parts = torch.split(output.speaker_probs, [n_cache, n_fifo, n_left, n_chunk, n_right], dim=1)
        cache_probs, fifo_probs, _, chunk_probs, _ = parts
        if state.cache_probs is not None:
            cache_probs = state.cache_probs
        fifo = torch.cat([state.fifo, frames[:, n_left : n_left + n_chunk]], dim=1)
        fifo_probs = torch.cat([fifo_probs, chunk_probs], dim=1)
        return chunk_probs, self._remember(state, cache_probs, fifo, fifo_probs)

    def _remember(self, state: StreamingState, cache_probs: Tensor, fifo: Tensor, fifo_probs: Tensor) -> StreamingState:
        """Moves frames from a full FIFO to the cache, and compresses a full cache."""
        n_over = fifo.shape[1] - self.options.fifo
        if n_over <= 0:
            return state._replace(fifo=fifo)
        n_moved = max(n_over, self.options.update_period)  # if there are as many
        moved, moved_probs = fifo[:, :n_moved], fifo_probs[:, :n_moved]
        mean_silence, n_silence = self._hear_silence(state, moved, moved_probs)
        cache, kept_probs = torch.cat([state.cache, moved], dim=1), None
        if cache.shape[1] > self.options.cache:
            probs = torch.cat([cache_probs, moved_probs], dim=1)
            cache, kept_probs = compress(cache, probs, mean_silence, self.options)
        return StreamingState(cache, kept_probs, fifo[:, n_moved:], mean_silence, n_silence)

    def _hear_silence(self, state: StreamingState, frames: Tensor, probs: Tensor) -> tuple[Tensor, Tensor]:
        """The mean of all silent frames so far, and their number."""
        is_silent = probs.sum(dim=2) < self.options.silence_threshold
        n_silence = state.n_silence + is_silent.sum(dim=1)
        total = state.mean_silence * state.n_silence[:, None] + (frames * is_silent[:, :, None]).sum(dim=1)
        return total / n_silence.clamp(min=1)[:, None], n_silence


def compress(frames: Tensor, probs: Tensor, mean_silence: Tensor, options: StreamingOptions) -> tuple[Tensor, Tensor]:
    """The `options.cache` frames that tell the speakers apart best, speaker by speaker, and their probabilities.

    (batch, frames, d_model), (batch, frames, speakers), (batch, d_model) -> (batch, cache, d_model | speakers). A frame
    may stand for several speakers. Behind each speaker's frames, and where there are not enough, is silence.
    """
    n_frames, n_speakers = probs.shape[1:]
    scores = score_frames(probs, options)
    silence = options.silence_per_speaker
    scores = functional.pad(scores, (0, 0, 0, silence), value=math.inf).transpose(1, 2).flatten(1)
    best, index = scores.topk(options.cache, dim=1, sorted=False)
    nothing = n_speakers * (n_frames + silence)  # behind all others when sorted
    index = index.masked_fill(best == -math.inf, nothing).sort(dim=1).values
    frame = index % (n_frames + silence)
    is_silence = ((index == nothing) | (frame >= n_frames))[:, :, None]
    frame = frame.clamp(max=n_frames - 1)[:, :, None]
    kept = frames.gather(1, frame.expand(-1, -1, frames.shape[2]))
    kept_probs = probs.gather(1, frame.expand(-1, -1, n_speakers))
    return torch.where(is_silence, mean_silence[:, None], kept), kept_probs.masked_fill(is_silence, 0.0)


def score_frames(probs: Tensor, options: StreamingOptions) -> Tensor:
    """(batch, frames, speakers): how much each frame is worth for each speaker; -inf where the speaker is silent."""
    n_frames, n_speakers = probs.shape[1:]
    share = options.cache // n_speakers - options.silence_per_speaker
    speaks = probs.clamp(min=options.prob_floor).log()
    silent = (1 - probs).clamp(min=options.prob_floor).log()
    scores = speaks - silent + silent.sum(dim=2, keepdim=True) - math.log(0.5)
    scores = scores.masked_fill(probs <= 0.5, -math.inf)
    is_alone = scores > 0
    enough_alone = is_alone.sum(dim=1, keepdim=True) >= math.floor(share * options.min_alone)
    scores = scores.masked_fill(~is_alone & enough_alone, -math.inf)
    scores[:, options.cache :] += options.recent_bonus
    for part, boost in ((options.strong_boost, 2 * math.log(2)), (options.weak_boost, math.log(2))):
        best = scores.topk(min(math.floor(share * part), n_frames), dim=1, sorted=False).indices
        scores = scores.scatter_add(1, best, scores.new_full(best.shape, boost))
    return scores


class Stream:
    """One recording on its way through a model: samples in, posteriors out as soon as they are final."""

    def __init__(self, streaming: StreamingSortformer, batch: int = 1) -> None:
        self._streaming, self._options = streaming, streaming.options
        self._mel = MelStream(streaming.model.features, batch)
        self.state = streaming.start(batch)
        self._n_done = 0  # frames

    @torch.inference_mode()
    def hear(self, samples: Tensor) -> Tensor:
        """(batch, samples) at 16 kHz that follow on those before -> (batch, frames, speakers) that follow likewise."""
        self._mel.hear(samples)
        probs = [self._no_frames()]
        while self._mel.n_settled >= MEL_PER_FRAME * (self._n_done + self._options.chunk + self._options.right_context):
            probs.append(self._step(self._mel.n_settled, is_last=False))
        return torch.cat(probs, dim=1)

    @torch.inference_mode()
    def finish(self) -> Tensor:
        """The recording has ended: (batch, frames, speakers) that are left."""
        n_mel = self._mel.n_samples // HOP_SAMPLES
        probs = [self._no_frames()]
        while self._n_done * MEL_PER_FRAME < n_mel:
            probs.append(self._step(n_mel, is_last=True))
        return torch.cat(probs, dim=1)

    def _no_frames(self) -> Tensor:
        return self.state.cache.new_zeros(len(self.state.cache), 0, self._streaming.model.options.n_speakers)

    def _step(self, n_mel: int, is_last: bool) -> Tensor:
        """The next chunk, of which `n_mel` mel frames since the start are there."""
        options, begin = self._options, self._n_done
        first = max(begin - options.left_context, 0)
        end = min((begin + options.chunk) * MEL_PER_FRAME, n_mel)
        stop = min(end + options.right_context * MEL_PER_FRAME, n_mel)
        mel = self._mel.cut(first * MEL_PER_FRAME, stop, is_last and stop == n_mel)
        frames, _ = self._streaming.model.subsample(mel)
        n_right = math.ceil((stop - end) / MEL_PER_FRAME)
        probs, self.state = self._streaming.step(self.state, frames, begin - first, n_right)
        self._n_done += probs.shape[1]
        return probs
