"""The Transformer encoder on top of FastConformer (18 layers of 192 in the paper).

As in the paper it adds no positions of its own, so it is equivariant to any permutation of the frames (Appendix F): the
order of arrival reaches it only through the FastConformer below. A small model learned to sort sooner when it was given
the place of each frame (`positions`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from sortk.models.frames import key_bias, sinusoids, valid_frames
from sortk.models.options import check_sizes


@dataclass(frozen=True)
class TransformerOptions:
    """Sizes of the Transformer encoder; the defaults are the paper's."""

    d_model: int = 192
    n_layers: int = 18
    n_heads: int = 8
    d_inner: int = 768  # of the feed-forward layers
    dropout: float = 0.5
    positions: bool = False  # add the sinusoids of each frame's place to the input
    pre_norm: bool = False  # normalise before each sub-layer and at the end (Canary), not after each (Sortformer)

    def __post_init__(self) -> None:
        check_sizes(self, "d_model", "n_heads", "d_inner")
        if self.n_layers < 0:
            raise ValueError(f"n_layers must be 0 or more, got {self.n_layers}")
        if self.d_model % self.n_heads:
            raise ValueError(f"d_model {self.d_model} must be a multiple of n_heads {self.n_heads}")


class MultiHeadAttention(nn.Module):
    """The projections of softmax(Q K^T / sqrt(d_k)) V of every head, joined by W^O (Appendix F)."""

    def __init__(self, options: TransformerOptions) -> None:
        super().__init__()
        self.n_heads, self.dropout = options.n_heads, options.dropout
        self.query = nn.Linear(options.d_model, options.d_model)
        self.key = nn.Linear(options.d_model, options.d_model)
        self.value = nn.Linear(options.d_model, options.d_model)
        self.out = nn.Linear(options.d_model, options.d_model)


class SelfAttention(MultiHeadAttention):
    """Every frame attends to all frames."""

    def forward(self, x: Tensor, valid: Tensor | None) -> Tensor:
        """(batch, frames, d_model), (batch, frames) -> (batch, frames, d_model)."""
        query, key, value = (
            linear(x).unflatten(2, (self.n_heads, -1)).transpose(1, 2)  # (batch, heads, frames, d_k)
            for linear in (self.query, self.key, self.value)
        )
        dropout = self.dropout if self.training else 0.0
        heads = functional.scaled_dot_product_attention(query, key, value, key_bias(valid, query.dtype), dropout)
        out: Tensor = self.out(heads.transpose(1, 2).flatten(2))
        return out


class FeedForward(nn.Module):
    """(batch, frames, d_model) -> (batch, frames, d_model), each frame by itself."""

    def __init__(self, options: TransformerOptions) -> None:
        super().__init__()
        self.linear1 = nn.Linear(options.d_model, options.d_inner)
        self.linear2 = nn.Linear(options.d_inner, options.d_model)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear2(functional.relu(self.linear1(x)))
        return out


class TransformerLayer(nn.Module):
    """Attention, then feed-forward; each one added to its input."""

    def __init__(self, options: TransformerOptions) -> None:
        super().__init__()
        self.pre_norm = options.pre_norm
        self.norm_attention = nn.LayerNorm(options.d_model)
        self.attention = SelfAttention(options)
        self.norm_feed_forward = nn.LayerNorm(options.d_model)
        self.feed_forward = FeedForward(options)
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, x: Tensor, valid: Tensor | None) -> Tensor:
        """(batch, frames, d_model) -> (batch, frames, d_model)."""
        if self.pre_norm:
            x = x + self.dropout(self.attention(self.norm_attention(x), valid))
            x = x + self.dropout(self.feed_forward(self.norm_feed_forward(x)))
        else:
            x = self.norm_attention(x + self.dropout(self.attention(x, valid)))
            x = self.norm_feed_forward(x + self.dropout(self.feed_forward(x)))
        return x


class TransformerEncoder(nn.Module):
    """The layers, one after the other."""

    def __init__(self, options: TransformerOptions) -> None:
        super().__init__()
        self.positions = options.positions
        self.layers = nn.ModuleList(TransformerLayer(options) for _ in range(options.n_layers))
        self.norm_out = nn.LayerNorm(options.d_model) if options.pre_norm else nn.Identity()

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(batch, frames, d_model), (batch,) -> (batch, frames, d_model)."""
        out: Tensor = self.norm_out(self.by_layer(x, lengths)[-1])
        return out

    def by_layer(self, x: Tensor, lengths: Tensor | None = None) -> list[Tensor]:
        """Return the input with its positions, and what each layer makes of it."""
        valid = valid_frames(lengths, x.shape[1])
        if self.positions:
            x = x + sinusoids(torch.arange(x.shape[1], device=x.device), x.shape[2]).to(x.dtype)
        outputs = [x]
        for layer in self.layers:
            outputs.append(layer(outputs[-1], valid))
        return outputs
