"""A recording on its way through a streaming diarizer: samples in, posteriors out as soon as they are final.

`MelStream` computes mel frames of a recording that comes piece by piece, with bounded memory. Models that are made for
streaming take mel frames as they are. Others (the paper's, offline) scale a clip by its peak and normalise each mel bin
over the clip, and the end of a stream is not known. The rule here: the clip is everything so far. A piece is scaled and
normalised by the peak, means and variances of all that has come up to its end, so a recording in one piece has exactly
its offline features; earlier frames are not changed. It takes some seconds to settle: such models need long chunks.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from sortk.models.features import GAIN_FLOOR, LOG_FLOOR, STD_FLOOR, WINDOW_SAMPLES, LogMel
from sortk.models.frames import HOP_SAMPLES, MEL_PER_FRAME
from sortk.models.speaker_cache import StreamingStep

# The window of a mel frame reaches this far to the right of its hop, and as far to the left, where pre-emphasis needs
# one sample more.
AHEAD_SAMPLES = WINDOW_SAMPLES // 2
BEHIND_FRAMES = AHEAD_SAMPLES // HOP_SAMPLES + 1


class MelStream:
    """Samples in, mel frames out: those of the complete recording, except for the rule above."""

    def __init__(self, features: LogMel, batch: int = 1) -> None:
        self._options = features.options
        self._log_mel = LogMel(replace(features.options, gain=False, normalize="none")).to(features.window.device)
        self._log_mel.eval()
        self._samples = features.window.new_zeros(batch, 0)  # those that are still needed,
        self._n_forgotten = 0  # and how many came before them
        self._peak = self._samples.new_zeros(batch, 1)
        self._n_counted = 0  # mel frames in the statistics
        self._mean = self._samples.new_zeros(batch, 1, features.options.n_mels)
        self._squares = torch.zeros_like(self._mean)  # summed squares of distances from the mean

    def push(self, samples: Tensor) -> None:
        """(batch, samples) that follow on those before."""
        self._samples = torch.cat([self._samples, samples.to(self._samples)], dim=1)

    @property
    def n_samples(self) -> int:
        """Return the number of samples so far."""
        return self._n_forgotten + self._samples.shape[1]

    @property
    def n_settled(self) -> int:
        """Return how many mel frames no further sample can change."""
        return max(self.n_samples - AHEAD_SAMPLES + HOP_SAMPLES, 0) // HOP_SAMPLES

    def cut(self, first: int, stop: int, is_last: bool) -> Tensor:
        """Return mel frames `first` to `stop`, (batch, stop - first, n_mels).

        `stop` never goes back; `is_last` says that the recording ends with this piece. Samples that only earlier
        frames need are forgotten.
        """
        start = max(first - BEHIND_FRAMES, 0)
        self._samples = self._samples[:, start * HOP_SAMPLES - self._n_forgotten :]
        self._n_forgotten = start * HOP_SAMPLES
        n_used = None if is_last else (stop - 1 - start) * HOP_SAMPLES + AHEAD_SAMPLES
        samples = self._samples[:, :n_used]
        if self._options.gain:
            samples = samples / self._raise_peak(samples)
        mel: Tensor = self._log_mel(samples)[0][:, first - start : stop - start]
        if self._options.normalize == "per_feature":
            self._count(mel[:, max(self._n_counted - first, 0) :])
            mel = (mel - self._mean) / ((self._squares / max(self._n_counted - 1, 1)).sqrt() + STD_FLOOR)
        return mel

    def _raise_peak(self, samples: Tensor) -> Tensor:
        """(batch, 1): what to divide the samples by."""
        before, self._peak = self._peak, torch.maximum(self._peak, samples.amax(dim=1, keepdim=True))
        if self._n_counted:
            # The frames before now count as quieter, but none is below the floor: log(g^2 x) = log x + 2 log g.
            quieter = 2 * ((before + GAIN_FLOOR) / (self._peak + GAIN_FLOOR)).log()
            self._mean = (self._mean + quieter[:, :, None]).clamp(min=math.log(LOG_FLOOR))
        return self._peak + GAIN_FLOOR

    def _count(self, mel: Tensor) -> None:
        """Add frames to mean and squares (Chan, Golub and LeVeque 1979)."""
        n_before, n_new = self._n_counted, mel.shape[1]
        if n_new == 0:
            return
        self._n_counted = n_before + n_new
        mean = mel.mean(dim=1, keepdim=True)
        distance = mean - self._mean
        self._mean = self._mean + distance * (n_new / self._n_counted)
        self._squares = self._squares + (mel - mean).square().sum(dim=1, keepdim=True)
        self._squares = self._squares + distance.square() * (n_before * n_new / self._n_counted)


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
        """Return the remaining rows, (batch, rows, speakers): the recording has ended."""
        n_mel = self._mel.n_samples // HOP_SAMPLES
        probs = [self._no_rows()]
        while self._n_done * MEL_PER_FRAME < n_mel:
            probs.append(self._step(n_mel, is_last=True))
        return torch.cat(probs, dim=1)

    def _no_rows(self) -> Tensor:
        return self.state.cache_probs[:, :0]

    def _step(self, n_mel: int, is_last: bool) -> Tensor:
        """Process the next chunk; `n_mel` mel frames since the start are available."""
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
