"""A recording on its way through a streaming diarizer: samples in, posteriors out as soon as they are final."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sortk.inference.mel import MelStream
from sortk.models.frames import HOP_SAMPLES, MEL_PER_FRAME
from sortk.models.speaker_cache import StreamingStep


class Stream:
    """One recording, or several that are equally long.

    A row of posteriors lasts `model.row_seconds`."""

    def __init__(self, step: StreamingStep, batch: int = 1) -> None:
        self._take_step, self._options = step, step.options
        self._mel = MelStream(step.model.features, batch)
        self.state = step.start(batch)
        self._n_done = 0  # frames

    @torch.inference_mode()
    def push(self, samples: Tensor) -> Tensor:
        """(batch, samples) at 16 kHz that follow on those before -> (batch, rows, speakers) that follow likewise."""
        self._mel.push(samples)
        probs = [self._no_rows()]
        while self._mel.n_settled >= MEL_PER_FRAME * (self._n_done + self._options.chunk + self._options.right_context):
            probs.append(self._step(self._mel.n_settled, is_last=False))
        return torch.cat(probs, dim=1)

    @torch.inference_mode()
    def finish(self) -> Tensor:
        """The recording has ended: (batch, rows, speakers) that are left."""
        n_mel = self._mel.n_samples // HOP_SAMPLES
        probs = [self._no_rows()]
        while self._n_done * MEL_PER_FRAME < n_mel:
            probs.append(self._step(n_mel, is_last=True))
        return torch.cat(probs, dim=1)

    def _no_rows(self) -> Tensor:
        return self.state.cache_probs[:, :0]

    def _step(self, n_mel: int, is_last: bool) -> Tensor:
        """The next chunk, of which `n_mel` mel frames since the start are there."""
        options, begin = self._options, self._n_done
        first = max(begin - options.left_context, 0)
        end = min((begin + options.chunk) * MEL_PER_FRAME, n_mel)
        stop = min(end + options.right_context * MEL_PER_FRAME, n_mel)
        mel = self._mel.cut(first * MEL_PER_FRAME, stop, is_last and stop == n_mel)
        model = self._take_step.model
        frames, _ = model.subsample(mel)
        n_left, n_right = begin - first, math.ceil((stop - end) / MEL_PER_FRAME)
        probs, self.state = self._take_step(self.state, frames, n_left, n_right)
        self._n_done += frames.shape[1] - n_left - n_right
        rows = model.rows_per_frame
        n_rows = math.ceil((end - begin * MEL_PER_FRAME) * rows / MEL_PER_FRAME)  # of the chunk, up to the end of time
        return probs[:, n_left * rows : n_left * rows + n_rows]
