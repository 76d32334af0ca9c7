"""One step of a stream, with a cache of its speakers (Medennikov et al. 2025); torch and ONNX run this code.

Every step, three things are put in a row and diarized together:

    | speaker cache | FIFO | left context, chunk, right context |
      frames of the   the     what is new; the contexts are given,
      distant past    recent  but only the chunk is decided
                      past

The chunk then joins the FIFO. When that is full, its oldest frames move on to the speaker cache, and when this is
full, it is compressed: the frames that separate the speakers best are kept, the first speaker's first. So the model,
which sorts speakers by their arrival, gives each speaker the same output again (arrival-order speaker cache, AOSC).

Compression scores frame t for speaker k by how surely k, and no other speaker, speaks in it,

    s_{k,t} = log p_{k,t} + sum_{j != k} log(1 - p_{j,t}) + log 2

(above 0: likely k alone), with a bonus for recent frames, and two boosts for the best frames of each speaker: a strong
one that guarantees each speaker a share of the cache, and a weak one that keeps one speaker from filling it.

Cache and FIFO have their full size from the start, and counts say how much of it is filled: a graph has no branches
and no shapes that depend on what came before.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from sortk.models.diarizer import StreamableDiarizer, StreamingOptions


class StreamingState(NamedTuple):
    """What a stream remembers of each recording. Frames are as `model.subsample` makes them."""

    cache: Tensor  # (batch, cache, frame_size), ordered by speaker once it was compressed; of these
    n_cache: Tensor  # (batch,) frames are filled, the others are 0
    cache_probs: Tensor  # (batch, cache, speakers); they count only if
    is_compressed: Tensor  # (batch,) is 1, not 0: until then each step gives new ones
    fifo: Tensor  # (batch, at least 1, frame_size); of these
    n_fifo: Tensor  # (batch,) frames are filled, the others are 0
    silence: Tensor  # (batch, frame_size): the mean silent frame, or the one that the model has learned
    n_silence: Tensor  # (batch,) frames that it is the mean of


class StreamingStep:
    """A diarizer that takes one step at a time; what it remembers is in a state that is handed on."""

    def __init__(self, model: StreamableDiarizer, options: StreamingOptions) -> None:
        options.check_cache(model.options.n_speakers)
        self.model, self.options = model, options

    def start(self, batch: int = 1) -> StreamingState:
        """Return the state before the first step."""
        options, like = self.options, self.model.features.window
        size, n_speakers = self.model.frame_size, self.model.options.n_speakers

        def count() -> Tensor:
            return like.new_zeros(batch, dtype=torch.long)

        return StreamingState(
            cache=like.new_zeros(batch, options.cache, size),
            n_cache=count(),
            cache_probs=like.new_zeros(batch, options.cache, n_speakers),
            is_compressed=count(),
            fifo=like.new_zeros(batch, max(options.fifo, 1), size),
            n_fifo=count(),
            silence=like.new_zeros(batch, size),
            n_silence=count(),
        )

    def __call__(
        self, state: StreamingState, frames: Tensor, n_left: Tensor | int = 0, n_right: Tensor | int = 0
    ) -> tuple[Tensor, StreamingState]:
        """Diarize (batch, left + chunk + right, frame_size), of which the contexts have so many frames.

        Returns the posteriors of all these frames, (batch, frames * rows_per_frame, speakers), and the next state.
        """
        rows = self.model.rows_per_frame
        joined = join(state.cache, state.n_cache, join(state.fifo, state.n_fifo, frames))
        n_before = state.n_cache + state.n_fifo
        lengths: Tensor | None = n_before + frames.shape[1]
        if not torch.compiler.is_compiling():  # where shapes may change: nothing is computed for frames that are empty
            assert lengths is not None
            longest = int(lengths.max())
            joined, lengths = joined[:, :longest], lengths if int(lengths.min()) < longest else None
        probs = self.model.diarize_frames(joined, lengths).speaker_probs
        place = rows * n_before[:, None] + torch.arange(rows * frames.shape[1], device=frames.device)
        by_frame = probs if rows == 1 else probs.view(len(probs), -1, rows, probs.shape[2]).mean(dim=2)
        return pick(probs, place), self._remember(state, joined, by_frame, frames.shape[1], n_left, n_right)

    def _remember(
        self,
        state: StreamingState,
        joined: Tensor,
        probs: Tensor,
        n_frames: int,
        n_left: Tensor | int,
        n_right: Tensor | int,
    ) -> StreamingState:
        """Move frames from a full FIFO to the cache, and compress a full cache."""
        options, n_cache, n_fifo = self.options, state.n_cache, state.n_fifo
        # FIFO and chunk, without the left context between them. It is as long as can be: `compress` wants a number.
        place = torch.arange(state.fifo.shape[1] + options.chunk, device=joined.device)[None]
        source = n_cache[:, None] + place + torch.where(place < n_fifo[:, None], 0, n_left)
        source = source.clamp(max=joined.shape[1] - 1)
        queue, queue_probs = pick(joined, source), pick(probs, source)
        n_queue = n_fifo + n_frames - n_left - n_right
        n_over = n_queue - options.fifo
        n_moved = torch.where(n_over > 0, torch.minimum(n_over.clamp(min=options.update_period), n_queue), 0)
        is_moved = place < n_moved[:, None]
        silence, n_silence = self._update_silence(state, queue, queue_probs, is_moved)

        n_kept = n_cache + n_moved
        is_full = (n_kept > options.cache)[:, None, None]
        known = torch.where(state.is_compressed[:, None, None] > 0, state.cache_probs, fit(probs, options.cache))
        candidates = clear(join(state.cache, n_cache, queue), n_kept)
        candidate_probs = clear(join(known, n_cache, queue_probs), n_kept)
        # Equal scores are frequent, and `topk` chooses among them by the length of its input: it must be the true one.
        longest = candidates.shape[1] if torch.compiler.is_compiling() else int(n_kept.max())
        compressed, compressed_probs = candidates[:, : options.cache], state.cache_probs
        if longest > options.cache:
            compressed, compressed_probs = compress(
                candidates[:, :longest], candidate_probs[:, :longest], silence, options
            )
        n_rest = n_queue - n_moved
        rest = n_moved[:, None] + torch.arange(state.fifo.shape[1], device=joined.device)
        return StreamingState(
            cache=torch.where(is_full, compressed, candidates[:, : options.cache]),
            n_cache=n_kept.clamp(max=options.cache),
            cache_probs=torch.where(is_full, compressed_probs, state.cache_probs),
            is_compressed=torch.maximum(state.is_compressed, is_full[:, 0, 0].long()),
            fifo=clear(pick(queue, rest.clamp(max=queue.shape[1] - 1)), n_rest),
            n_fifo=n_rest,
            silence=silence,
            n_silence=n_silence,
        )

    def _update_silence(
        self, state: StreamingState, queue: Tensor, probs: Tensor, is_moved: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the mean of all silent frames that have left the FIFO, and their number."""
        learned = self.model.find_silence()
        if learned is not None:  # and in a graph the state stays an input, which starts with zeros
            return learned + 0 * state.silence, state.n_silence
        is_silent = (probs.sum(dim=2) < self.options.silence_threshold) & is_moved
        n_silence = state.n_silence + is_silent.sum(dim=1)
        total = state.silence * state.n_silence[:, None] + (queue * is_silent[:, :, None]).sum(dim=1)
        mean = total / n_silence.clamp(min=1)[:, None]
        return torch.where(is_moved.any(dim=1, keepdim=True), mean, state.silence), n_silence


def pick(frames: Tensor, places: Tensor) -> Tensor:
    """(batch, n, d), (batch, m) -> (batch, m, d)."""
    return frames.gather(1, places[:, :, None].expand(-1, -1, frames.shape[2]))


def join(first: Tensor, n_first: Tensor, second: Tensor) -> Tensor:
    """Put `second` right behind the first (batch,) frames of `first`. (batch, n, d), (batch, m, d) -> (batch, n + m, d)

    At the end, where nothing is left, the last frame is repeated."""
    both = torch.cat([first, second], dim=1)
    place = torch.arange(both.shape[1], device=both.device)[None]
    source = torch.where(place < n_first[:, None], place, place - n_first[:, None] + first.shape[1])
    return pick(both, source.clamp(max=both.shape[1] - 1))


def clear(frames: Tensor, n_filled: Tensor) -> Tensor:
    """(batch, n, d) with 0 behind the first (batch,) frames."""
    is_filled = torch.arange(frames.shape[1], device=frames.device) < n_filled[:, None]
    return frames * is_filled[:, :, None]


def fit(frames: Tensor, n: int) -> Tensor:
    """(batch, any, d) -> (batch, n, d): cut, or filled up with 0."""
    return functional.pad(frames, (0, 0, 0, n))[:, :n]


def compress(frames: Tensor, probs: Tensor, silence: Tensor, options: StreamingOptions) -> tuple[Tensor, Tensor]:
    """Return the `options.cache` frames that separate the speakers best, speaker by speaker, and their probabilities.

    (batch, frames, d_model), (batch, frames, speakers), (batch, d_model) -> (batch, cache, d_model | speakers). A frame
    may represent several speakers. Behind each speaker's frames, and where there are not enough, is silence.
    """
    n_frames, n_speakers = probs.shape[1:]
    scores = score_frames(probs, options)
    n_silent = options.silence_per_speaker
    scores = functional.pad(scores, (0, 0, 0, n_silent), value=math.inf).transpose(1, 2).flatten(1)
    best, index = scores.topk(options.cache, dim=1, sorted=False)
    nothing = n_speakers * (n_frames + n_silent)  # behind all others when sorted
    index = index.masked_fill(best == -math.inf, nothing).sort(dim=1).values
    frame = index % (n_frames + n_silent)
    is_silence = ((index == nothing) | (frame >= n_frames))[:, :, None]
    frame = frame.clamp(max=n_frames - 1)[:, :, None]
    kept = frames.gather(1, frame.expand(-1, -1, frames.shape[2]))
    kept_probs = probs.gather(1, frame.expand(-1, -1, n_speakers))
    return torch.where(is_silence, silence[:, None], kept), kept_probs.masked_fill(is_silence, 0.0)


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
