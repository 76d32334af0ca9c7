"""Weights of 8 bits: most matrix products of a model with whole numbers. CPU only.

Each row of a weight matrix has a scale of its own, found once; each input matrix one scale, found as it comes (dynamic
quantisation). The sums are exact, so the loss is that of rounding: `make bench` measures it. What has no such weights
stays as it is: the products of attention, the convolutions, and the few products that give the posteriors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sortk.models.diarizer import DiarizerModel
from sortk.models.fastconformer import Pointwise, Pointwise2d

ENGINE = "onednn"  # a little faster than the default, where both run
NOT_QUANTIZED = ("linear_pos",)  # its products are kept, see FastConformer


class Int8Linear(nn.Module):
    """A linear layer, or a pointwise convolution, with weights of 8 bits."""

    def __init__(self, linear: nn.Linear | Pointwise | Pointwise2d) -> None:
        super().__init__()
        weight = linear.weight.detach().flatten(1)
        scale = weight.abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny) / 127
        rounded = torch.quantize_per_channel(weight, scale, torch.zeros_like(scale, dtype=torch.long), 0, torch.qint8)
        bias = None if linear.bias is None else linear.bias.detach()
        with _engine(ENGINE):
            self._packed: Any = torch.ops.quantized.linear_prepack(rounded, bias)

    def forward(self, x: Tensor) -> Tensor:
        # With 7 bits of input, sums of two products fit the 16 bits that older processors have for them.
        out: Tensor = torch.ops.quantized.linear_dynamic(x, self._packed, True)
        return out


@contextmanager
def _engine(name: str) -> Iterator[None]:
    """Weights are packed for the engine of this moment, and remember it; elsewhere it stays as it was."""
    backend: Any = torch.backends.quantized
    if name not in backend.supported_engines:
        yield
        return
    before, backend.engine = backend.engine, name
    try:
        yield
    finally:
        backend.engine = before


def quantize(model: DiarizerModel) -> None:
    """Quantises encoder and transformer of a model, in place."""
    for part in model.quantized_parts():
        for module in list(part.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, (nn.Linear, Pointwise, Pointwise2d)) and name not in NOT_QUANTIZED:
                    setattr(module, name, Int8Linear(child))
