"""What the encoder's layers make of distances, kept between clips: it depends on their length only."""

from __future__ import annotations

import math

import torch

from sortk.models.fastconformer import FastConformer, Positions

GROW_BY = 256  # frames
KEEP_UP_TO = 1536  # frames, 123 s: 113 MB in the 123M model. Of longer clips, projecting is a small part of the work


class PositionCache:
    """The projected positions of any number of frames."""

    def __init__(self, encoder: FastConformer) -> None:
        self._encoder = encoder
        self._positions: Positions = ()
        self._n_frames = 0

    def find(self, n_frames: int, device: torch.device) -> Positions | None:
        """As `encoder.encode` takes them; None where the encoder had better make them layer by layer."""
        if n_frames > KEEP_UP_TO:
            return None
        if n_frames > self._n_frames:
            self._n_frames = math.ceil(n_frames / GROW_BY) * GROW_BY
            self._positions = self._encoder.project_positions(self._n_frames, device)
        # Those of fewer frames are the middle of those of more.
        first, stop = self._n_frames - n_frames, self._n_frames + n_frames
        return [None if layer is None else layer[..., first:stop] for layer in self._positions]
