"""int8 inference on a CPU: most matrix products of a model are computed with 8-bit integers.

Each row of a weight matrix has its own scale, computed once; each input matrix has one scale and one zero point,
computed when it arrives (dynamic quantisation):

    w ~ q_w * scale_w                   q_w in -127 ... 127
    x ~ (q_x - zero) * scale_x          q_x in 0 ... 127, with zero such that 0 itself is exact

The sums of products q_x q_w are exact, so the only error is that of rounding: `make bench` measures it. The rest stays
in float32: the products of attention, the convolutions, and the few products that give the posteriors.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sortk.models import fastconformer, transformer
from sortk.models.diarizer import DiarizerModel
from sortk.models.fastconformer import Pointwise, Pointwise2d

NOT_QUANTIZED = ("linear_pos",)  # its products are kept, see FastConformer
INPUT_STEPS = 127  # with 7 bits of input, sums of two products fit the 16 bits that older processors have for them


class Int8Linear(nn.Module):
    """A linear layer, or a pointwise convolution, with weights of 8 bits, and oneDNN's `activation` of the result.

    oneDNN's product is called with plain int8 tensors, because torch removes its quantized tensors. torch._int_mm would
    also take them, but was 14 to 80 times slower than float32 on a processor with AVX2 only.
    """

    packed: Tensor
    scale: Tensor
    zeros: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear | Pointwise | Pointwise2d, activation: str = "none") -> None:
        super().__init__()
        self.activation = activation
        weight = linear.weight.detach().flatten(1)
        scale = weight.abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny) / 127
        rounded = (weight / scale[:, None]).round().to(torch.int8)
        # oneDNN's own memory layout, which a contiguous copy would lose: not a buffer.
        self.packed = torch.ops.onednn.qlinear_prepack(rounded, None)
        self.register_buffer("scale", scale)
        self.register_buffer("zeros", torch.zeros(len(scale), dtype=torch.int32))
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        low, high = (edge.item() for edge in x.aminmax())
        low, high = min(low, 0.0), max(high, 0.0)
        step = max((high - low) / INPUT_STEPS, torch.finfo(torch.float32).tiny)
        zero = round(-low / step)
        # The conversion cuts off the fraction, so half a step is added to round. All is below 128, so int8 holds it,
        # and the conversion to int8 is five times faster than that to uint8.
        rounded = torch.add(torch.tensor(zero + 0.5), x, alpha=1 / step).to(torch.int8).view(torch.uint8)
        weights, output = (self.packed, self.scale, self.zeros, self.bias), (1.0, 0, torch.float32)
        out: Tensor = torch.ops.onednn.qlinear_pointwise(
            rounded, step, zero, *weights, *output, self.activation, [], ""
        )
        return out


class Int8FeedForward(nn.Module):
    """Both layers of a feed-forward block. Its activation is computed inside the first product, which saves a pass over
    the widest tensor of a layer."""

    def __init__(self, block: fastconformer.ConformerFeedForward | transformer.FeedForward) -> None:
        super().__init__()
        activation = "swish" if isinstance(block, fastconformer.ConformerFeedForward) else "relu"
        self.linear1, self.linear2 = Int8Linear(block.linear1, activation), Int8Linear(block.linear2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear2(self.linear1(x))
        return out


def quantize(model: DiarizerModel) -> None:
    """Quantise the encoder and the transformer of a model, in place."""
    if not (torch._C._has_mkldnn and hasattr(torch.ops.onednn, "qlinear_pointwise")):
        raise ValueError("int8 needs a torch with oneDNN, which this one is not built with; run without it")
    for part in model.quantized_parts():
        _quantize_children(part)


def _quantize_children(module: nn.Module) -> None:
    for name, child in list(module.named_children()):
        if isinstance(child, fastconformer.ConformerFeedForward | transformer.FeedForward):
            setattr(module, name, Int8FeedForward(child))
        elif isinstance(child, nn.Linear | Pointwise | Pointwise2d):
            if name not in NOT_QUANTIZED:
                setattr(module, name, Int8Linear(child))
        else:
            _quantize_children(child)
