"""Canary: speech to text, one token after the other. NVIDIA's encoder-decoder, and what multi-speaker ASR builds on.

    samples -> LogMel -> FastConformer -> linear -> TransformerEncoder -> states     (linear, transformer: if need be)
    tokens so far, states -> Decoder -> logits of the next token

    Attention         of tokens to tokens, or of tokens to states
    DecoderLayer      attention to tokens, attention to states, feed-forward; each one added to its input
    Decoder           all of it, for complete texts (training)
    PartialTexts      the same, token by token: what was computed for the tokens before is kept

A clip's states do not depend on its padding. (NVIDIA encodes one mel frame of padding more: there 10 s have 126 frames,
of which 125 are valid; here they have 125. The valid ones are the same.)

NVIDIA's checkpoints map onto the parameters one to one; `encoder.` keeps its names, nemo.py renames the rest:

    encoder_decoder_proj                        encoder_proj
    transf_encoder.layers.N                     transformer.layers.N
      first_sub_layer.{query,key,value}_net       attention.{query,key,value}
      first_sub_layer.out_projection              attention.out
      second_sub_layer.dense_{in,out}             feed_forward.linear{1,2}
      layer_norm_1, layer_norm_2                  norm_attention, norm_feed_forward
    transf_encoder.final_layer_norm             transformer.norm_out
    transf_decoder._embedding.token_embedding   decoder.embedding
    transf_decoder._embedding.layer_norm        decoder.norm_in
    transf_decoder._decoder.layers.N            decoder.layers.N
      first_sub_layer, second_sub_layer           self_attention, cross_attention
      third_sub_layer.dense_{in,out}              feed_forward.linear{1,2}
      layer_norm_1, layer_norm_2, layer_norm_3    norm_self, norm_cross, norm_feed_forward
    transf_decoder._decoder.final_layer_norm    decoder.norm_out
    log_softmax.mlp.layer0.bias                 decoder.bias

Left out are its constants `preprocessor.featurizer.*` and `transf_decoder._embedding.position_embedding.pos_enc`, and
`log_softmax.mlp.layer0.weight`, which is the embedding once more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from sortk.models.fastconformer import FastConformer, FastConformerOptions, relative_sinusoids
from sortk.models.features import FeatureOptions, LogMel
from sortk.models.frames import key_bias, valid_frames
from sortk.models.options import ModelOptions, check_sizes
from sortk.models.transformer import FeedForward, MultiHeadAttention, TransformerEncoder, TransformerOptions

KeyValue = tuple[Tensor, Tensor]
"""What attention attends to: keys and values, (rows, heads, n, d_k) both."""


@dataclass(frozen=True)
class CanaryOptions(ModelOptions):
    """Everything that a Canary is built from; the defaults are those of canary-180m-flash."""

    WHAT = "a Canary"

    n_tokens: int = 5248  # of the tokenizer; NVIDIA's are padded to a multiple of 8
    max_tokens: int = 1024  # of a text with its prompt
    features: FeatureOptions = field(default_factory=lambda: FeatureOptions(n_mels=128, gain=False))
    encoder: FastConformerOptions = field(default_factory=lambda: FastConformerOptions(n_layers=17, scale_input=False))
    transformer: TransformerOptions | None = None  # on top of the encoder
    decoder: TransformerOptions = field(
        default_factory=lambda: TransformerOptions(1024, n_layers=4, d_inner=4096, dropout=0.1, pre_norm=True)
    )

    def __post_init__(self) -> None:
        check_sizes(self, "n_tokens", "max_tokens")
        if not self.decoder.pre_norm:
            raise ValueError("the decoder must have pre_norm")
        if self.transformer is not None and self.transformer.d_model != self.decoder.d_model:
            raise ValueError(
                f"d_model {self.transformer.d_model} of the transformer must be that of the decoder, "
                f"{self.decoder.d_model}"
            )


SIZES = {
    # Learns on two CPU cores: the mini recipe. Its features are those of the tiny Sortformer. The states tell their
    # place in time, so that the decoder soon finds the next word: half as many steps as without. As there, no dropout.
    "tiny": CanaryOptions(
        n_tokens=256,
        features=FeatureOptions(),
        encoder=FastConformerOptions(128, 4, n_heads=4, subsampling_channels=32, scale_input=False, dropout=0.0),
        transformer=TransformerOptions(128, 1, n_heads=4, d_inner=512, dropout=0.0, positions=True, pre_norm=True),
        decoder=TransformerOptions(128, 3, n_heads=4, d_inner=512, dropout=0.0, pre_norm=True),
    ),
    "small": CanaryOptions(  # 10M: the "larger ASR" of adapters (systems 5 and 6) in the recipe audiomnist
        n_tokens=256,
        features=FeatureOptions(),
        encoder=FastConformerOptions(192, 8, n_heads=4, subsampling_channels=32, scale_input=False, dropout=0.0),
        transformer=TransformerOptions(192, 1, n_heads=4, d_inner=768, dropout=0.0, positions=True, pre_norm=True),
        decoder=TransformerOptions(192, 4, n_heads=4, d_inner=768, dropout=0.0, pre_norm=True),
    ),
    # As large as DOM-SOT (33M) and SOT-ASR (135.6M) of Table 3, with the encoder and decoder of Canary: theirs differ.
    "33m": CanaryOptions(
        n_tokens=1024,
        encoder=FastConformerOptions(d_model=256, n_layers=16, n_heads=4, scale_input=False),
        decoder=TransformerOptions(256, n_layers=6, n_heads=4, d_inner=1024, dropout=0.1, pre_norm=True),
    ),
    "136m": CanaryOptions(
        n_tokens=1024,
        encoder=FastConformerOptions(n_layers=17, scale_input=False),
        decoder=TransformerOptions(512, n_layers=6, d_inner=2048, dropout=0.1, pre_norm=True),
    ),
    "180m-flash": CanaryOptions(),
    "1b": CanaryOptions(
        n_tokens=4128,
        encoder=FastConformerOptions(d_model=1024, n_layers=24, scale_input=False),
        decoder=TransformerOptions(1024, n_layers=24, d_inner=4096, dropout=0.1, pre_norm=True),
    ),
}


class Attention(MultiHeadAttention):
    """Attention to keys and values that are projected apart, so that they can be kept."""

    def project(self, x: Tensor) -> KeyValue:
        """(rows, n, d_model) -> twice (rows, heads, n, d_k)."""
        key, value = (linear(x).unflatten(2, (self.n_heads, -1)).transpose(1, 2) for linear in (self.key, self.value))
        return key, value

    def forward(self, x: Tensor, attended: KeyValue, mask: Tensor | None) -> Tensor:
        """(rows, n, d_model) -> the same shape; `mask` is added to the scores.

        Several rows in a row may attend to one row of keys: they are further queries of it.
        """
        key, value = attended
        query = self.query(x).view(len(key), -1, self.n_heads, key.shape[3]).transpose(1, 2)
        mask = None if mask is None else mask.to(query.dtype)
        dropout = self.dropout if self.training else 0.0
        heads = functional.scaled_dot_product_attention(query, key, value, mask, dropout)
        out: Tensor = self.out(heads.transpose(1, 2).reshape(x.shape))
        return out

    def align(self, x: Tensor, attended: KeyValue, mask: Tensor | None) -> Tensor:
        """(rows, n, d_model) -> (rows, n, keys): log-probabilities with which the first head attends to each key."""
        key = attended[0][:, 0]
        d_k = key.shape[2]
        query = functional.linear(x, self.query.weight[:d_k], self.query.bias[:d_k])
        scores = (query @ key.mT).float() / math.sqrt(d_k)
        return (scores if mask is None else scores + mask[:, 0]).log_softmax(dim=2)


class TokenCache:
    """Keys and values of the tokens so far, in one layer: room for `max_tokens`, filled from the left."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens, self.n_tokens = max_tokens, 0
        self._kept: Tensor | None = None  # (2, rows, heads, max_tokens, d_k)

    def append(self, new: KeyValue) -> KeyValue:
        """Return the keys and values of all tokens up to the new ones."""
        rows, n_heads, n_new, d_k = new[0].shape
        start, self.n_tokens = self.n_tokens, self.n_tokens + n_new
        if self._kept is None:
            self._kept = new[0].new_empty(2, rows, n_heads, self.max_tokens, d_k)
        for kept, tensor in zip(self._kept, new, strict=True):
            kept[:, :, start : self.n_tokens] = tensor
        key, value = self._kept[:, :, :, : self.n_tokens]
        return key, value

    def select(self, rows: Tensor) -> None:
        """Continue row i from what was row rows[i]."""
        if self._kept is not None:
            self._kept[:, :, :, : self.n_tokens] = self._kept[:, rows, :, : self.n_tokens]


class DecoderLayer(nn.Module):
    """Attention to the tokens so far, attention to the states, feed-forward."""

    def __init__(self, options: TransformerOptions) -> None:
        super().__init__()
        self.norm_self = nn.LayerNorm(options.d_model)
        self.self_attention = Attention(options)
        self.norm_cross = nn.LayerNorm(options.d_model)
        self.cross_attention = Attention(options)
        self.norm_feed_forward = nn.LayerNorm(options.d_model)
        self.feed_forward = FeedForward(options)
        self.dropout = nn.Dropout(options.dropout)

    def forward(
        self,
        x: Tensor,
        causal: Tensor | None,
        states: KeyValue,
        padding: Tensor | None,
        cache: TokenCache | None,
        alignments: list[Tensor] | None = None,
    ) -> Tensor:
        """(rows, n, d_model) -> the same shape. `causal` and `padding` are masks of the two attentions.

        `alignments` is given what `align` returns for the attention to the states.
        """
        y = self.norm_self(x)
        tokens = self.self_attention.project(y)
        x = x + self.dropout(self.self_attention(y, tokens if cache is None else cache.append(tokens), causal))
        y = self.norm_cross(x)
        if alignments is not None:
            alignments.append(self.cross_attention.align(y, states, padding))
        x = x + self.dropout(self.cross_attention(y, states, padding))
        out: Tensor = x + self.dropout(self.feed_forward(self.norm_feed_forward(x)))
        return out


class Decoder(nn.Module):
    """Tokens and states -> logits of the next token, after each token."""

    def __init__(self, options: TransformerOptions, n_tokens: int, max_tokens: int) -> None:
        super().__init__()
        self.max_tokens = max_tokens
        self.embedding = nn.Embedding(n_tokens, options.d_model)
        # As large as the positions, and logits of about 1: the embedding is also the output layer.
        nn.init.normal_(self.embedding.weight, std=options.d_model**-0.5)
        self.norm_in = nn.LayerNorm(options.d_model)
        self.layers = nn.ModuleList(DecoderLayer(options) for _ in range(options.n_layers))
        self.norm_out = nn.LayerNorm(options.d_model)
        self.bias = nn.Parameter(torch.zeros(n_tokens))
        self.dropout = nn.Dropout(options.dropout)

    def forward(
        self,
        tokens: Tensor,
        states: Tensor,
        lengths: Tensor | None = None,
        alignments: list[Tensor] | None = None,
    ) -> Tensor:
        """(batch, n), (batch, frames, d_model), (batch,) -> (batch, n, n_tokens). Padding follows a text's tokens.

        `alignments` is given (batch, n, frames) of each layer: see `Attention.align`.
        """
        x = self.embed(tokens, self.count(tokens.shape[1], tokens.device))
        causal, padding = causal_mask(tokens.shape[1], 0, x), mask_padding(states, lengths)
        for layer in self.layers:
            projected = cast(DecoderLayer, layer).cross_attention.project(states)
            x = layer(x, causal, projected, padding, None, alignments)
        return self.predict(x)

    def start(self, states: Tensor, lengths: Tensor | None = None, beam: int = 1, max_tokens: int = 0) -> PartialTexts:
        """Return the decoding of these states: `beam` rows for each clip, up to `max_tokens` tokens (0: the most)."""
        return PartialTexts(self, states, lengths, beam, min(max_tokens or self.max_tokens, self.max_tokens))

    def count(self, n_tokens: int, device: torch.device) -> Tensor:
        """(n_tokens, d_model): the sinusoids of the positions 0, 1, ..."""
        if n_tokens > self.max_tokens:
            raise ValueError(
                f"a text of {n_tokens} tokens is longer than the {self.max_tokens} that the decoder can count; "
                "cut the recording into shorter ones"
            )
        d_model = self.embedding.embedding_dim
        return relative_sinusoids(n_tokens, d_model, device)[:n_tokens].flip(0) / math.sqrt(d_model)

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """(rows, n), (n, d_model) -> (rows, n, d_model)."""
        x: Tensor = self.dropout(self.norm_in(self.embedding(tokens) + positions))
        return x

    def predict(self, x: Tensor) -> Tensor:
        """(..., d_model) -> (..., n_tokens)."""
        return functional.linear(self.norm_out(x), self.embedding.weight, self.bias)


def causal_mask(n: int, n_before: int, x: Tensor) -> Tensor | None:
    """(n, n_before + n) to add to scores, so that no token sees those after it. One token alone needs none."""
    if n == 1:
        return None
    return x.new_full((n, n_before + n), -math.inf).triu(n_before + 1)


def mask_padding(states: Tensor, lengths: Tensor | None) -> Tensor | None:
    return key_bias(valid_frames(lengths, states.shape[1]), states.dtype)


class PartialTexts:
    """Texts under way, `beam` rows for each clip: the next tokens in, logits of those after them out.

    A step computes the new tokens only. The states are projected once, and once for all rows of a clip.
    """

    def __init__(self, decoder: Decoder, states: Tensor, lengths: Tensor | None, beam: int, max_tokens: int) -> None:
        self.max_tokens, self.n_rows = max_tokens, len(states) * beam
        self._decoder = decoder
        self._positions = decoder.count(max_tokens, states.device)
        self._padding = mask_padding(states, lengths)
        layers = [cast(DecoderLayer, layer) for layer in decoder.layers]
        self._layers = [(layer, layer.cross_attention.project(states), TokenCache(max_tokens)) for layer in layers]
        self._n_tokens = 0

    def __call__(self, tokens: Tensor) -> Tensor:
        """(rows, n) -> (rows, n_tokens): logits of the token after the last."""
        n_before, self._n_tokens = self._n_tokens, self._n_tokens + tokens.shape[1]
        x = self._decoder.embed(tokens, self._positions[n_before : self._n_tokens])
        causal = causal_mask(tokens.shape[1], n_before, x)
        for layer, states, cache in self._layers:
            x = layer(x, causal, states, self._padding, cache)
        return self._decoder.predict(x[:, -1])

    def select(self, rows: Tensor) -> None:
        """Continue row i from what was row rows[i], of the same clip."""
        for _, _, cache in self._layers:
            cache.select(rows)


class Canary(nn.Module):
    """Speech to text. `encode` and `project` are the halves of its encoder; speaker kernels come between."""

    def __init__(self, options: CanaryOptions) -> None:
        super().__init__()
        self.options = options
        d_encoder, d_decoder = options.encoder.d_model, options.decoder.d_model
        self.features = LogMel(options.features)
        self.encoder = FastConformer(options.encoder, options.features.n_mels)
        self.encoder_proj = nn.Linear(d_encoder, d_decoder) if d_encoder != d_decoder else nn.Identity()
        self.transformer = TransformerEncoder(options.transformer) if options.transformer is not None else None
        self.decoder = Decoder(options.decoder, options.n_tokens, options.max_tokens)

    def forward(self, samples: Tensor, lengths: Tensor | None, tokens: Tensor) -> Tensor:
        """(batch, samples) at 16 kHz, (batch,) or None, (batch, n) -> (batch, n, n_tokens) logits."""
        frames, lengths = self.encode(samples, lengths)
        logits: Tensor = self.decoder(tokens, self.project(frames, lengths), lengths)
        return logits

    def encode(self, samples: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """(batch, samples), (batch,) -> A, (batch, frames, encoder.d_model), and (batch,) valid frames."""
        frames: Tensor
        frames, lengths = self.encoder(*self.features(samples, lengths))
        return frames, lengths

    def project(self, frames: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(batch, frames, encoder.d_model) -> (batch, frames, decoder.d_model): what the decoder attends to."""
        states: Tensor = self.encoder_proj(frames)
        return states if self.transformer is None else self.transformer(states, lengths)


# ---------------------------------------------------------------------------------------------------------------------
# Weights


def extend_vocabulary(weights: Mapping[str, Tensor], n_tokens: int) -> dict[str, Tensor]:
    """Return the weights with rows for new tokens after the old ones, `n_tokens` in all.

    New rows are drawn with the mean and the spread of the old ones, always the same: they are tokens like any others,
    and apart from each other, so that even a model whose embedding is frozen (adapters) can learn to write them.
    """
    extended = dict(weights)
    for name in ("decoder.embedding.weight", "decoder.bias"):
        old = weights[name]
        if n_tokens < len(old):
            raise ValueError(f"{name} has {len(old)} tokens, which cannot be extended to {n_tokens}")
        drawn = torch.randn(n_tokens - len(old), *old.shape[1:], generator=torch.Generator().manual_seed(0))
        spread = old.std(dim=0) if old.dim() > 1 else old.new_zeros(())
        extended[name] = torch.cat([old, old.mean(dim=0) + spread * drawn.to(old)])
    return extended
