"""FastConformer: the encoder below, NVIDIA's NEST in the paper. Mel frames of 10 ms in, model frames of 80 ms out.

    Subsampling            three strided convolutions, 8 x fewer frames
    ConformerLayer         1/2 feed-forward, attention, convolution, 1/2 feed-forward; each one added to its input
      ConformerFeedForward
      RelativeAttention    attention that knows how far apart two frames are (Transformer-XL)
      Convolution          9 frames around, or before
    FastConformer          all of it

Streaming models are causal: a frame sees its own chunk and some frames before it (`Context`). Their layers can work
step by step with a `LayerCache`, and compute then what they compute on a complete recording.

Every tensor is (batch, frames, features). `valid`, (batch, frames), is true on a clip's own frames, or None when
nothing is padded. A clip's outputs do not depend on its padding or on its batch-mates. Names and shapes of the
parameters are NVIDIA's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor, distributed, nn
from torch.distributed.nn.functional import all_reduce
from torch.nn import functional

from sortk.models.features import FeatureOptions
from sortk.models.frames import MEL_PER_FRAME, key_bias, sinusoids, valid_frames
from sortk.models.options import ModelOptions, check_sizes

QUERY_BLOCK = 256  # frames that attend at a time: the (frames x frames) scores are never all in memory
SUBSAMPLED_AT_A_TIME = 512  # frames: the first convolution makes the largest tensor of all, 80 MB in the 123M model
POSITIONS_KEPT = 1536  # frames, 123 s: 113 MB in the 123M model. Projecting is a small part of longer clips
POSITIONS_GROW_BY = 256  # frames


@dataclass(frozen=True)
class FastConformerOptions:
    """Sizes of the encoder; the defaults are NEST-L's, 115M parameters."""

    d_model: int = 512
    n_layers: int = 18
    n_heads: int = 8
    ff_expansion: int = 4  # inner size of the feed-forward layers / d_model
    conv_kernel: int = 9  # frames; odd. 1 takes the order of the frames away from the convolution
    subsampling_channels: int = 256
    scale_input: bool = True  # times sqrt(d_model) before the first layer (NVIDIA: xscaling)
    positions: bool = True  # relative positions in the attention; without them it cannot sort (Appendix F)
    dropout: float = 0.1
    # Of streaming models.
    causal_subsampling: bool = False  # the strided convolutions see no later mel frame
    causal_convolution: bool = False  # those of the layers see no later frame
    conv_norm: Literal["batch_norm", "layer_norm"] = "batch_norm"  # after the convolution of a layer
    left_context: int = -1  # frames that attention sees before a chunk; -1: all
    right_context: int = -1  # a chunk has one frame more than this; -1: it is the complete recording

    def __post_init__(self) -> None:
        check_sizes(self, "d_model", "n_layers", "n_heads", "ff_expansion", "conv_kernel", "subsampling_channels")
        if self.d_model % self.n_heads or self.d_model % 2:
            raise ValueError(f"d_model {self.d_model} must be even and a multiple of n_heads {self.n_heads}")
        if self.conv_kernel % 2 == 0:
            raise ValueError(f"conv_kernel must be odd, got {self.conv_kernel}")
        if self.conv_norm not in ("batch_norm", "layer_norm"):
            raise ValueError(f"conv_norm must be batch_norm or layer_norm, got {self.conv_norm!r}")
        Context(self.left_context, self.right_context).check()

    @property
    def context(self) -> Context | None:
        """Return the context; None: every frame sees all frames."""
        return None if self.right_context < 0 else Context(self.left_context, self.right_context)


class Context(NamedTuple):
    """What attention sees: frame i is in chunk i // (right + 1), and sees that chunk and left // (right + 1) before."""

    left: int
    right: int

    def check(self) -> None:
        if self.left < -1 or self.right < -1 or (self.right == -1 and self.left != -1):
            raise ValueError(f"an attention context of [{self.left}, {self.right}] frames is not supported")

    @property
    def chunk(self) -> int:
        return self.right + 1

    @property
    def n_kept(self) -> int | None:
        """Return how many frames before a chunk it sees; None: all."""
        return None if self.left < 0 else self.left // self.chunk * self.chunk

    def find_keys(self, start: int, stop: int, n_frames: int) -> tuple[int, int]:
        """Return the first and the last + 1 of the frames that the frames from `start` to `stop` see."""
        first = 0 if self.n_kept is None else max(start // self.chunk * self.chunk - self.n_kept, 0)
        return first, min(((stop - 1) // self.chunk + 1) * self.chunk, n_frames)

    def mask(self, queries: Tensor, keys: Tensor, dtype: torch.dtype) -> Tensor:
        """(queries, keys) to add to scores, of frames with these numbers."""
        behind = queries[:, None] // self.chunk - keys // self.chunk
        hidden = behind < 0 if self.n_kept is None else (behind < 0) | (behind > self.n_kept // self.chunk)
        return torch.zeros_like(hidden, dtype=dtype).masked_fill(hidden, -1e4)


class LayerCache:
    """What a layer keeps from step to step: the last inputs of its attention and of its depthwise convolution."""

    def __init__(self, context: Context) -> None:
        self.n_kept = context.n_kept
        self.attended: Tensor | None = None  # (batch, up to n_kept frames, d_model)
        self.convolved: Tensor | None = None  # (batch, conv_kernel - 1, d_model)

    def attend(self, new: Tensor) -> Tensor:
        """Return the frames that the new ones see, and these."""
        seen = new if self.attended is None else torch.cat([self.attended, new], dim=1)
        self.attended = seen if self.n_kept is None else seen[:, max(seen.shape[1] - self.n_kept, 0) :]
        return seen


class Subsampling(nn.Module):
    """Three 3 x 3 convolutions of stride 2 over time and frequency; the last two depthwise, then pointwise."""

    def __init__(self, n_mels: int, channels: int, d_model: int, causal: bool = False) -> None:
        super().__init__()
        # Zeros before the first and after the last, of frames and of mel bins: then a causal frame t sees the mel
        # frames 8 t - 14 to 8 t, others 8 t - 7 to 8 t + 7.
        self.before, self.after = (2, 1) if causal else (1, 1)

        def depthwise() -> nn.Conv2d:
            return nn.Conv2d(channels, channels, 3, stride=2, padding=0 if causal else 1, groups=channels)

        def pointwise() -> Pointwise2d:
            return Pointwise2d(channels, channels, 1)

        # The ReLUs hold NVIDIA's numbering; `_rectify` applies them.
        self.conv = nn.Sequential(
            nn.Conv2d(1, channels, 3, stride=2, padding=0 if causal else 1), nn.ReLU(),
            depthwise(), pointwise(), nn.ReLU(),
            depthwise(), pointwise(), nn.ReLU(),
        )  # fmt: skip
        n_bins = self.halve(self.halve(self.halve(n_mels)))
        self.out = nn.Linear(channels * n_bins, d_model)

    def forward(self, mel: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """(batch, mel frames, n_mels), (batch,) -> (batch, frames, d_model), (batch,)."""
        full, *separable = (cast(nn.Conv2d, layer) for layer in self.conv if not isinstance(layer, nn.ReLU))
        valid = valid_frames(lengths, mel.shape[1])
        if valid is not None:
            mel = mel.masked_fill(~valid[:, :, None], 0.0)
        # Channels come last, so that a pointwise convolution is a plain matrix product; and so is the first one, over
        # 3 x 3 patches. They are cut 3 x 4, the fourth column with weight 0: products with 12 columns are several
        # times faster than with 9.
        padding = (self.before, self.after + 1, self.before, self.after)
        patches = functional.pad(mel, padding).unfold(1, 3, 2).unfold(2, 4, 2).flatten(3)
        lengths = self.halve_lengths(lengths)
        weight = functional.pad(full.weight, (0, 1)).flatten(1)
        x = _rectify(functional.linear(patches.flatten(0, 2), weight, full.bias), patches, lengths)
        for depthwise, pointwise in (separable[:2], separable[2:]):
            x = x.permute(0, 3, 1, 2)
            if self.before != self.after:
                x = functional.pad(x, (self.before, self.after) * 2)
            x = depthwise(x).permute(0, 2, 3, 1)
            lengths = self.halve_lengths(lengths)
            x = _rectify(pointwise(x.flatten(0, 2)), x, lengths)
        frames: Tensor = self.out(x.transpose(2, 3).flatten(2))
        return frames, lengths

    def halve(self, n: int) -> int:
        """Return the number of outputs of a convolution with kernel 3 and stride 2."""
        return (n + self.before + self.after - 3) // 2 + 1

    def halve_lengths(self, lengths: Tensor | None) -> Tensor | None:
        return None if lengths is None else (lengths + self.before + self.after - 3) // 2 + 1


def _rectify(rows: Tensor, x: Tensor, lengths: Tensor | None) -> Tensor:
    """relu, and 0 on padding; rows of x (batch, frames, bins, n) -> (batch, frames, bins, channels)."""
    # As rows: autograd copies a tensor that is changed in place through a view, and these are the largest of all.
    valid = valid_frames(lengths, x.shape[1])
    if valid is not None:
        rows.masked_fill_(~valid.flatten().repeat_interleave(x.shape[2])[:, None], 0.0)
    return rows.relu_().view(*x.shape[:3], -1)


class ConformerFeedForward(nn.Module):
    """(batch, frames, d_model) -> (batch, frames, d_model), each frame by itself."""

    def __init__(self, options: FastConformerOptions) -> None:
        super().__init__()
        inner = options.d_model * options.ff_expansion
        self.linear1 = nn.Linear(options.d_model, inner)
        self.linear2 = nn.Linear(inner, options.d_model)
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear2(self.dropout(functional.silu(self.linear1(x))))
        return out


class RelativeAttention(nn.Module):
    """Self-attention whose score depends on the two frames and on how far apart they are.

    The score of query frame t and key frame s (Dai et al. 2019, Transformer-XL, with biases of each layer's own):

        ((q_t + u) . k_s + (q_t + v) . W r_{t-s}) / sqrt(d_k)

    where r_{t-s} is the sinusoid of the distance. Without positions it is q_t . k_s / sqrt(d_k), and the layer is
    equivariant to any permutation of the frames (Appendix F).
    """

    def __init__(self, options: FastConformerOptions) -> None:
        super().__init__()
        d_model, self.n_heads = options.d_model, options.n_heads
        self.dropout = options.dropout
        self.linear_q = nn.Linear(d_model, d_model)
        self.linear_k = nn.Linear(d_model, d_model)
        self.linear_v = nn.Linear(d_model, d_model)
        self.linear_out = nn.Linear(d_model, d_model)
        if options.positions:
            self.linear_pos = nn.Linear(d_model, d_model, bias=False)
            self.pos_bias_u = nn.Parameter(torch.zeros(self.n_heads, d_model // self.n_heads))
            self.pos_bias_v = nn.Parameter(torch.zeros(self.n_heads, d_model // self.n_heads))

    def forward(
        self,
        x: Tensor,
        positions: Tensor | None,
        valid: Tensor | None,
        context: Context | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """(batch, frames, d_model), `project_positions`, (batch, frames) -> (batch, frames, d_model)."""
        seen = x if cache is None else cache.attend(x)
        query, key, value = (
            linear(inputs).unflatten(2, (self.n_heads, -1)).transpose(1, 2)  # (batch, heads, frames, d_k)
            for linear, inputs in ((self.linear_q, x), (self.linear_k, seen), (self.linear_v, seen))
        )
        no_padding = key_bias(valid, query.dtype)
        dropout = self.dropout if self.training else 0.0
        if positions is None:
            heads = functional.scaled_dot_product_attention(query, key, value, no_padding, dropout)
            heads = heads.transpose(1, 2)
        else:
            heads = self._attend_by_blocks(query, key, value, positions, no_padding, dropout, context)
        out: Tensor = self.linear_out(heads.flatten(2))
        return out

    def _attend_by_blocks(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        positions: Tensor,
        no_padding: Tensor | None,
        dropout: float,
        context: Context | None = None,
    ) -> Tensor:
        """(batch, heads, frames, d_k) three times -> (batch, frames, heads, d_k).

        There may be more keys than queries, from frames before; `positions` are of as many frames as there are keys.
        """
        n_frames, scale = key.shape[2], 1 / math.sqrt(query.shape[3])
        n_before = n_frames - query.shape[2]
        by_content = query + self.pos_bias_u[:, None]
        by_distance = (query + self.pos_bias_v[:, None]) * scale
        blocks = []
        for start in range(n_before, n_frames, QUERY_BLOCK):
            stop = min(start + QUERY_BLOCK, n_frames)
            first, last = (0, n_frames) if context is None else context.find_keys(start, stop, n_frames)
            own = slice(start - n_before, stop - n_before)
            # The distances that these queries meet, from stop - 1 - first down to start - last.
            distances = positions[..., n_frames - stop + first : n_frames - start + last]
            bias = shift_relative(by_distance[:, :, own] @ distances, last - first)
            bias = bias if no_padding is None else bias + no_padding[..., first:last]
            if context is not None:
                numbers = torch.arange(n_frames, device=query.device)
                bias = bias + context.mask(numbers[start:stop], numbers[first:last], bias.dtype)
            block = functional.scaled_dot_product_attention(
                by_content[:, :, own], key[:, :, first:last], value[:, :, first:last], bias, dropout
            )
            blocks.append(block.transpose(1, 2))
        return torch.cat(blocks, dim=1) if len(blocks) > 1 else blocks[0]

    def project_positions(self, distances: Tensor) -> Tensor:
        """W r: (2 frames, d_model) -> (heads, d_k, 2 frames)."""
        projected: Tensor = self.linear_pos(distances)
        return projected.view(len(distances), self.n_heads, -1).permute(1, 2, 0)


def relative_sinusoids(n_frames: int, d_model: int, device: torch.device) -> Tensor:
    """r: (2 n_frames, d_model), of the distances n_frames - 1 down to -n_frames; sine and cosine interleaved."""
    return sinusoids(torch.arange(n_frames - 1, -n_frames - 1, -1, device=device), d_model)


def shift_relative(scores: Tensor, n_keys: int) -> Tensor:
    """Scores by distance -> scores by key frame. (..., n, n + n_keys) -> (..., n, n_keys)

    Row i of n queries meets key s at the column n - 1 - i + s: each row starts one column further left than the row
    above. In memory that is n - 1 + i (n + n_keys - 1) + s. So the same numbers, read from the (n - 1)-th on in rows of
    one element less, have key s in column s; nothing is moved.
    """
    n, width = scores.shape[-2], scores.shape[-1]
    shifted = scores.flatten(-2)[..., n - 1 : n - 1 + n * (width - 1)]
    return shifted.view(*scores.shape[:-1], width - 1)[..., :n_keys]


class MaskedBatchNorm(nn.BatchNorm1d):
    """Batch normalisation whose statistics leave padding out, and are those of all processes that train together.

    (batch, frames, features)
    """

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        if not self.training or (valid is None and not distributed.is_initialized()):
            return super().forward(x.flatten(0, 1)).view_as(x)
        assert self.running_mean is not None and self.running_var is not None and self.momentum is not None
        assert self.num_batches_tracked is not None
        wide = x.float()
        weight = wide.new_ones(()).expand(x.shape[:2])[:, :, None] if valid is None else valid[:, :, None].float()
        n_valid = _sum_over_processes(weight.sum()).clamp(min=2)
        mean = _sum_over_processes((wide * weight).sum(dim=(0, 1))) / n_valid
        variance = _sum_over_processes(((wide - mean).square() * weight).sum(dim=(0, 1))) / n_valid
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * n_valid / (n_valid - 1), self.momentum)
            self.num_batches_tracked.add_(1)
        normal = (wide - mean) * (variance + self.eps).rsqrt()
        return (normal * self.weight + self.bias).to(x.dtype)


def _sum_over_processes(x: Tensor) -> Tensor:
    """Return the sum over all processes; gradients flow to each of them."""
    return cast(Tensor, all_reduce(x)) if distributed.is_initialized() else x  # type: ignore[no-untyped-call]


class Convolution(nn.Module):
    """Gated pointwise convolution, depthwise convolution over time, normalisation, SiLU, pointwise convolution."""

    def __init__(self, options: FastConformerOptions) -> None:
        super().__init__()
        d_model, kernel = options.d_model, options.conv_kernel
        self.pointwise_conv1 = Pointwise(d_model, 2 * d_model, 1)
        self.n_before = kernel - 1 if options.causal_convolution else kernel // 2  # frames that a frame sees
        self.n_after = kernel - 1 - self.n_before
        self.depthwise_conv = nn.Conv1d(d_model, d_model, kernel, padding=kernel // 2, groups=d_model)
        # NVIDIA's name, whichever it is.
        self.batch_norm: MaskedBatchNorm | nn.LayerNorm | None = (
            MaskedBatchNorm(d_model) if options.conv_norm == "batch_norm" else nn.LayerNorm(d_model)
        )
        self.pointwise_conv2 = Pointwise(d_model, d_model, 1)

    def forward(self, x: Tensor, valid: Tensor | None, cache: LayerCache | None = None) -> Tensor:
        """(batch, frames, d_model) -> (batch, frames, d_model). Only a causal one can take a cache."""
        x = functional.glu(self.pointwise_conv1(x))
        if valid is not None:
            x = x.masked_fill(~valid[:, :, None], 0.0)
        if cache is not None:
            before = x.new_zeros(len(x), self.n_before, x.shape[2]) if cache.convolved is None else cache.convolved
            x = torch.cat([before, x], dim=1)
            cache.convolved = x[:, x.shape[1] - self.n_before :]
        elif self.n_before != self.n_after:
            x = functional.pad(x, (0, 0, self.n_before, self.n_after))
        # As an image of height 1 with channels last it keeps its memory layout: 5 x faster than as a sequence.
        depthwise = self.depthwise_conv
        x = functional.conv2d(
            x.transpose(1, 2).unsqueeze(2),
            depthwise.weight.unsqueeze(2),
            depthwise.bias,
            padding=(0, self.n_after) if self.n_before == self.n_after else 0,
            groups=depthwise.groups,
        )
        x = x.squeeze(2).transpose(1, 2)
        if isinstance(self.batch_norm, MaskedBatchNorm):
            x = self.batch_norm(x, valid)
        elif self.batch_norm is not None:
            x = self.batch_norm(x)
        out: Tensor = self.pointwise_conv2(functional.silu(x))
        return out

    @torch.no_grad()
    def fold_batch_norm(self) -> None:
        """Puts the batch norm into the convolution before it: w' = g w / s, b' = g (b - m) / s + c. For inference."""
        norm, conv = self.batch_norm, self.depthwise_conv
        if not isinstance(norm, MaskedBatchNorm):
            return
        assert norm.running_mean is not None and norm.running_var is not None and conv.bias is not None
        scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
        conv.weight = nn.Parameter(conv.weight * scale[:, None, None])
        conv.bias = nn.Parameter((conv.bias - norm.running_mean) * scale + norm.bias)
        self.batch_norm = None


class Pointwise2d(nn.Conv2d):
    """A convolution over one pixel; on pixels as rows, (pixels, in), it is the matrix product that it is."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.dim() == 4 else functional.linear(x, self.weight.flatten(1), self.bias)


class Pointwise(nn.Conv1d):
    """A convolution of one frame, as the matrix product that it is. (batch, frames, features)"""

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight.squeeze(2), self.bias)


class ConformerLayer(nn.Module):
    """The macaron: half a feed-forward layer before and half after attention and convolution."""

    def __init__(self, options: FastConformerOptions) -> None:
        super().__init__()
        self.norm_feed_forward1 = nn.LayerNorm(options.d_model)
        self.feed_forward1 = ConformerFeedForward(options)
        self.norm_self_att = nn.LayerNorm(options.d_model)
        self.self_attn = RelativeAttention(options)
        self.norm_conv = nn.LayerNorm(options.d_model)
        self.conv = Convolution(options)
        self.norm_feed_forward2 = nn.LayerNorm(options.d_model)
        self.feed_forward2 = ConformerFeedForward(options)
        self.norm_out = nn.LayerNorm(options.d_model)
        self.dropout = nn.Dropout(options.dropout)

    def forward(
        self,
        x: Tensor,
        positions: Tensor | None,
        valid: Tensor | None,
        context: Context | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """(batch, frames, d_model) -> (batch, frames, d_model)."""
        x = x + 0.5 * self.dropout(self.feed_forward1(self.norm_feed_forward1(x)))
        x = x + self.dropout(self.self_attn(self.norm_self_att(x), positions, valid, context, cache))
        x = x + self.dropout(self.conv(self.norm_conv(x), valid, cache))
        x = x + 0.5 * self.dropout(self.feed_forward2(self.norm_feed_forward2(x)))
        out: Tensor = self.norm_out(x)
        return out


class FastConformer(nn.Module):
    """Mel frames -> model frames. `subsample` and `encode` are its halves; streaming puts a speaker cache between."""

    def __init__(self, options: FastConformerOptions, n_mels: int) -> None:
        super().__init__()
        self.options = options
        self.pre_encode = Subsampling(n_mels, options.subsampling_channels, options.d_model, options.causal_subsampling)
        self.dropout = nn.Dropout(options.dropout)
        self.layers = nn.ModuleList(ConformerLayer(options) for _ in range(options.n_layers))
        self._keeps_positions, self._n_kept = False, 0
        self._kept_positions: list[Tensor | None] = []

    def forward(self, mel: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """(batch, mel frames, n_mels), (batch,) -> (batch, frames, d_model), (batch,)."""
        frames, lengths = self.subsample(mel, lengths)
        return self.encode(frames, lengths)[0], lengths

    def subsample(self, mel: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """(batch, mel frames, n_mels), (batch,) -> (batch, frames, d_model), (batch,).

        Without gradients it works in blocks. A frame sees 7 mel frames to either side of its first, so with one more
        frame on the left, which is then dropped, a block has exactly the frames of the clip. A causal frame sees its
        first and 14 before: two more.
        """
        frames: Tensor
        if torch.is_grad_enabled() or mel.shape[1] <= SUBSAMPLED_AT_A_TIME * MEL_PER_FRAME:
            frames, lengths = self.pre_encode(mel, lengths)
            return frames, lengths
        blocks = []
        for start in range(0, mel.shape[1], SUBSAMPLED_AT_A_TIME * MEL_PER_FRAME):
            stop = start + SUBSAMPLED_AT_A_TIME * MEL_PER_FRAME
            n_before = min(start, MEL_PER_FRAME * (2 if self.options.causal_subsampling else 1))
            block = mel[:, start - n_before : stop]
            n_valid = None if lengths is None else (lengths - start + n_before).clamp(0, block.shape[1])
            own = self.pre_encode(block, n_valid)[0][:, n_before // MEL_PER_FRAME :]
            blocks.append(own[:, :SUBSAMPLED_AT_A_TIME] if stop < mel.shape[1] else own)
        for _ in range(3):
            lengths = self.pre_encode.halve_lengths(lengths)
        return torch.cat(blocks, dim=1), lengths

    def encode(
        self,
        frames: Tensor,
        lengths: Tensor | None = None,
        context: Context | None = None,
        before_layer: Callable[[int, Tensor], Tensor] | None = None,
        caches: Sequence[LayerCache] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """(batch, frames, d_model) -> twice the same shape: the output, and what the lower half of the layers makes.

        `context` takes the place of the model's own. `before_layer` changes what goes into a layer, given its number
        from 0 on. With `caches`, one for each layer, the frames follow on those of the step before, and are complete
        chunks but at the end.
        """
        valid, context = valid_frames(lengths, frames.shape[1]), context or self.options.context
        n_kept = 0 if not caches or caches[0].attended is None else caches[0].attended.shape[1]
        positions = self._find_positions(n_kept + frames.shape[1], frames.device)
        x: Tensor = self.dropout(frames * math.sqrt(self.options.d_model) if self.options.scale_input else frames)
        lower = x
        for number, (layer, projected) in enumerate(zip(self.layers, positions, strict=True), start=1):
            if before_layer is not None:
                x = before_layer(number - 1, x)
            x = layer(x, projected, valid, context, None if caches is None else caches[number - 1])
            lower = x if number <= self.n_lower else lower
        return x, lower

    def encode_lower(self, frames: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the second output of `encode`, without computing the first."""
        valid = valid_frames(lengths, frames.shape[1])
        positions = self._find_positions(frames.shape[1], frames.device)
        x: Tensor = self.dropout(frames * math.sqrt(self.options.d_model) if self.options.scale_input else frames)
        for layer, projected in zip(self.layers[: self.n_lower], positions, strict=False):
            x = layer(x, projected, valid, self.options.context, None)
        return x

    @property
    def n_lower(self) -> int:
        """Return the number of layers of the lower half, which separates voices."""
        return (len(self.layers) + 1) // 2

    def freeze_for_inference(self) -> None:
        """Fold batch norms into the convolutions, and keep projected positions: they depend on the number of frames
        only, and are 8 % of the work at batch 1. The weights must not change afterwards."""
        for layer in self.layers:
            cast(ConformerLayer, layer).conv.fold_batch_norm()
        self._keeps_positions = True

    def _find_positions(self, n_frames: int, device: torch.device) -> Iterable[Tensor | None]:
        if not self._keeps_positions or n_frames > POSITIONS_KEPT:
            return self._project_positions(n_frames, device)
        if n_frames > self._n_kept:
            self._n_kept = math.ceil(n_frames / POSITIONS_GROW_BY) * POSITIONS_GROW_BY
            self._kept_positions = list(self._project_positions(self._n_kept, device))
        # Those of fewer frames are the middle of those of more.
        first, stop = self._n_kept - n_frames, self._n_kept + n_frames
        return [None if layer is None else layer[..., first:stop] for layer in self._kept_positions]

    def _project_positions(self, n_frames: int, device: torch.device) -> Iterator[Tensor | None]:
        """Yield what each layer makes of the distances, (heads, d_k, 2 frames)."""
        distances = relative_sinusoids(n_frames, self.options.d_model, device)
        for layer in self.layers:
            attention = cast(ConformerLayer, layer).self_attn
            yield attention.project_positions(distances) if self.options.positions else None


@dataclass(frozen=True)
class EncoderOptions(ModelOptions):
    """An encoder alone (NVIDIA's NEST), with the features that it was trained on."""

    WHAT = "an encoder"

    features: FeatureOptions = field(default_factory=FeatureOptions)
    encoder: FastConformerOptions = field(default_factory=FastConformerOptions)


class PretrainedEncoder(nn.Module):
    """The weights of an encoder, to start training from."""

    def __init__(self, options: EncoderOptions) -> None:
        super().__init__()
        self.options = options
        self.encoder = FastConformer(options.encoder, options.features.n_mels)
