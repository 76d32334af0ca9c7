"""A task so small that a step takes a millisecond: a line through the targets, with dropout to test random states."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from sortk.training.data import Batch
from sortk.training.loop import TrainingTask
from sortk.training.targets import Example


class ToySource:
    """Examples whose first speaker is where the samples are positive."""

    def __init__(self, seconds: Sequence[float]) -> None:
        self._seconds = list(seconds)

    def __len__(self) -> int:
        return len(self._seconds)

    def seconds(self, index: int, epoch: int) -> float:
        return self._seconds[index]

    def load(self, index: int, epoch: int) -> Example:
        rng = np.random.default_rng([index, epoch])
        n_frames = round(self._seconds[index] / 0.08)
        targets = (rng.random((n_frames, 2)) > 0.5).astype(np.float32)
        samples = np.repeat(targets[:, 0] - 0.5, 1280).astype(np.float32)
        return Example(f"{epoch}-{index}", samples, targets, np.full(n_frames, -1))


class ToyTask(TrainingTask):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.model = nn.Module()
        self.model.layers = nn.Sequential(nn.Linear(1, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        frames = batch.samples[:, ::1280, None]
        loss = nn.functional.binary_cross_entropy_with_logits(self.model.layers(frames)[..., 0], batch.targets[..., 0])
        return loss, {"double": 2 * loss.detach()}

    def validate(self, device: torch.device) -> dict[str, float]:
        return {"score": float(self.model.layers(torch.ones(1, 1)).detach().abs())}
