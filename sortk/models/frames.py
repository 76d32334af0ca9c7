"""Model frames of 80 ms: how many there are, which of a padded batch are valid, and what a diarizer says about each.

Lengths are a (batch,) tensor, or None when nothing is padded: then no mask is built and nothing is copied. torch is
imported only by the functions that need it: code without tensors counts frames, too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from sortk.records import FRAME_SECONDS as FRAME_SECONDS  # noqa: PLC0414 - for the rooms that count in frames
from sortk.records import SAMPLE_RATE as SAMPLE_RATE  # noqa: PLC0414

if TYPE_CHECKING:
    import torch
    from torch import Tensor

HOP_SAMPLES = 160  # 10 ms: a mel frame
MEL_PER_FRAME = 8
assert HOP_SAMPLES * MEL_PER_FRAME == FRAME_SECONDS * SAMPLE_RATE

Count = TypeVar("Count", int, "Tensor")


def count_frames(n_samples: Count) -> Count:
    """Return how many model frames a clip has; a last one that is begun counts."""
    n_mel: Count = n_samples // HOP_SAMPLES
    return (n_mel + MEL_PER_FRAME - 1) // MEL_PER_FRAME


def count_rows(n_samples: Count, rows_per_frame: int) -> Count:
    """Return how many rows of posteriors a clip has, if a model frame has several; a last one that is begun counts."""
    n_mel: Count = n_samples // HOP_SAMPLES
    mel_per_row = MEL_PER_FRAME // rows_per_frame
    return (n_mel + mel_per_row - 1) // mel_per_row


def valid_frames(lengths: Tensor | None, n_frames: int) -> Tensor | None:
    """(batch,) lengths -> (batch, n_frames), true on the frames of the clip and false on its padding."""
    if lengths is None:
        return None
    import torch  # noqa: PLC0415

    return torch.arange(n_frames, device=lengths.device) < lengths[:, None]


def key_bias(valid: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """(batch, frames) -> (batch, 1, 1, frames) to add to attention scores, so that no frame attends to padding."""
    if valid is None:
        return None
    # The softmax of it is 0, and unlike -inf it gives no NaN for a clip without any frame.
    return valid.new_zeros(valid.shape, dtype=dtype).masked_fill(~valid, -1e4)[:, None, None]


def sinusoids(places: Tensor, d_model: int) -> Tensor:
    """(n,) -> (n, d_model): sine and cosine, interleaved, of each place at ever lower frequencies."""
    import torch  # noqa: PLC0415

    exponent = torch.arange(0, d_model, 2, device=places.device, dtype=torch.float32)
    angle = places.float()[:, None] * torch.exp(exponent * (-math.log(10000.0) / d_model))
    return torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1)


class SpeakerOutput(NamedTuple):
    """What every diarizer here returns."""

    logits: Tensor  # (batch, frames, speakers); the sigmoid of them is P of Eq. 2
    lengths: Tensor | None  # (batch,) valid frames, None: all
    embeddings: Tensor  # (batch, frames, d_model) of the encoder's lower half, which separates voices
    existence: Tensor | None = None  # (batch, speakers + 1) logits; only EEND-EDA counts its speakers
    earlier: tuple[Tensor, ...] = ()  # logits from the layers below the last, in training if they are asked for
    for_loss: object = None  # what the loss of this kind of model needs besides, in training

    @property
    def speaker_probs(self) -> Tensor:
        """p_{k,t} as (batch, frames, speakers), 0 on padding."""
        probs = self.logits.sigmoid()
        if self.existence is not None:  # speakers up to the first that does not exist
            exists = (self.existence[:, None, :-1] > 0).cumprod(dim=2)
            probs = probs * exists
        valid = valid_frames(self.lengths, probs.shape[1])
        return probs if valid is None else probs * valid[:, :, None]
