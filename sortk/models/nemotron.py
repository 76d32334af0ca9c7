"""Nemotron-3-Diarization (NVIDIA, 2026): up to 8 speakers, a row of posteriors every 10 ms, latency from 0.32 s on.

    samples -> LogMel -> 8 mel frames side by side -> linear: frames of 80 ms, which cache and FIFO hold
            -> LayerNorm -> Transformer with rotary positions -> linear -> SubpixelUpsampling -> two layers -> logits

The speaker cache is Sortformer's (see speaker_cache.py), with a learned frame for silence; it takes the mean of a
frame's 8 rows. Recordings of any length are processed in steps, as NVIDIA's code does.

`.nemo` files and Hugging Face folders map onto the parameters; only the projections of attention differ:

    .nemo                                       Hugging Face                            here
    encoder.pre_encode.proj                     model.audio_tower.embedder.projection   stacking
    encoder.embed_norm, encoder.final_norm      ...input_layer_norm, ...layer_norm      norm_in, norm_out
    encoder.layers.N                            model.audio_tower.layers.N              layers.N
      norm1                                       layer_norm1                             norm_attention
      attn.w_qkv                                  self_attn.{q,k,v}_proj                  query_key_value
      attn.out_proj                               self_attn.o_proj                        out
      norm2                                       layer_norm2                             norm_feed_forward
      ffn.net.0, ffn.net.3                        mlp.fc1, mlp.fc2                        linear1, linear2
    sortformer_modules.encoder_proj             model.proj                              encoder_proj
    sortformer_modules.subpixel_upsample        model.upsampler.conv                    upsampling.conv
    sortformer_modules.first_hidden_to_hidden   classifier.dense                        hidden
    sortformer_modules.single_hidden_to_spks    classifier.out_proj                     speakers
    sortformer_modules.learnable_sil_emb        silence_embeds                          learned_silence
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from sortk.models.diarizer import StreamableDiarizer, StreamingOptions
from sortk.models.features import FeatureOptions, LogMel
from sortk.models.frames import MEL_PER_FRAME, SpeakerOutput, key_bias, valid_frames
from sortk.models.options import ModelOptions, check_sizes

LATENCIES = {"0.32": (3, 1), "0.64": (6, 2), "1.04": (9, 4)}  # seconds: chunk and right context in frames
OFFLINE = "30.4"

_CACHE = StreamingOptions(left_context=0, cache=264, silence_per_speaker=1)
_OFFLINE = replace(_CACHE, chunk=340, right_context=40, fifo=40, update_period=300)
_STREAMING = replace(_CACHE, chunk=9, right_context=4, fifo=264, update_period=222)


@dataclass(frozen=True)
class NemotronOptions(ModelOptions):
    """Everything that a Nemotron-3-Diarization is built from; the defaults are those of the published model, 99M."""

    WHAT = "a Nemotron diarizer"

    n_speakers: int = 8
    d_model: int = 512
    n_layers: int = 31
    n_heads: int = 8
    d_inner: int = 2048  # of the feed-forward layers
    d_head: int = 192  # of the layers behind the Transformer
    rope_base: float = 10000.0  # of the wave lengths of the rotary positions
    dropout: float = 0.1
    features: FeatureOptions = field(
        default_factory=lambda: FeatureOptions(n_mels=128, gain=False, normalize="none", dither=1e-5)
    )
    offline: StreamingOptions = _OFFLINE  # the 30.4 s preset, for files
    streaming: StreamingOptions = _STREAMING  # the other presets, but for chunk and right context

    def __post_init__(self) -> None:
        check_sizes(self, "n_speakers", "d_model", "n_layers", "n_heads", "d_inner", "d_head")
        if self.d_model % (2 * self.n_heads):
            raise ValueError(f"d_model {self.d_model} must be a multiple of twice n_heads {self.n_heads}")
        if not self.rope_base > 1:
            raise ValueError(f"rope_base must be above 1, got {self.rope_base}")
        for steps in (self.offline, self.streaming):
            steps.check_cache(self.n_speakers)


def rotary_angles(n_frames: int, d_k: int, base: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of frame t times base^(-2 i / d_k), i < d_k / 2. (n_frames, d_k / 2) both"""
    frequency = torch.exp(torch.arange(0, d_k, 2, device=device).float() * (-math.log(base) / d_k))
    angle = torch.arange(n_frames, device=device).float()[:, None] * frequency
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn each pair (i, i + d_k / 2) by the angle of its frame. (..., frames, d_k) -> the same shape"""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


class RotaryLayer(nn.Module):
    """Attention with rotary positions, then feed-forward; each one normalises its input and is added to it."""

    def __init__(self, options: NemotronOptions) -> None:
        super().__init__()
        d_model = options.d_model
        self.n_heads, self.dropout = options.n_heads, nn.Dropout(options.dropout)
        self.norm_attention = nn.LayerNorm(d_model)
        self.query_key_value = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model)
        self.norm_feed_forward = nn.LayerNorm(d_model)
        self.linear1 = nn.Linear(d_model, options.d_inner)
        self.linear2 = nn.Linear(options.d_inner, d_model)

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor], no_padding: Tensor | None) -> Tensor:
        """(batch, frames, d_model) -> (batch, frames, d_model)."""
        dropout = self.dropout
        projected = self.query_key_value(self.norm_attention(x)).unflatten(2, (3, self.n_heads, -1))
        query, key, value = projected.permute(2, 0, 3, 1, 4)  # (batch, heads, frames, d_k) each
        query, key = (rotate(part, *angles) for part in (query, key))
        heads = functional.scaled_dot_product_attention(
            query, key, value, no_padding, dropout.p if self.training else 0.0
        )
        x = x + dropout(self.out(heads.transpose(1, 2).flatten(2)))
        out: Tensor = x + dropout(self.linear2(dropout(functional.gelu(self.linear1(self.norm_feed_forward(x))))))
        return out


class SubpixelUpsampling(nn.Module):
    """8 rows for each frame: a convolution over 3 frames whose output channels are 8 rows side by side."""

    def __init__(self, d_head: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(d_head, MEL_PER_FRAME * d_head, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, frames, d_head) -> (batch, 8 frames, d_head)."""
        # As a matrix product over three neighbours side by side: faster than as a convolution with channels first.
        padded = functional.pad(x, (0, 0, 1, 1))
        neighbours = torch.cat([padded[:, :-2], padded[:, 1:-1], padded[:, 2:]], dim=2)
        rows = functional.linear(neighbours, self.conv.weight.transpose(1, 2).flatten(1), self.conv.bias)
        return rows.view(len(x), -1, x.shape[2])


class Nemotron(StreamableDiarizer):
    """Samples -> 8 logits every 10 ms."""

    options: NemotronOptions
    rows_per_frame = MEL_PER_FRAME
    default_preset, whole_clips = "1.04", False

    def __init__(self, options: NemotronOptions) -> None:
        super().__init__()
        self.options = options
        d_model, d_head = options.d_model, options.d_head
        self.embedding_size = self.frame_size = d_model
        self.features = LogMel(options.features)
        self.stacking = nn.Linear(MEL_PER_FRAME * options.features.n_mels, d_model, bias=False)
        self.norm_in = nn.LayerNorm(d_model)
        self.layers = nn.ModuleList(RotaryLayer(options) for _ in range(options.n_layers))
        self.norm_out = nn.LayerNorm(d_model)
        self.encoder_proj = nn.Linear(d_model, d_head)
        self.upsampling = SubpixelUpsampling(d_head)
        self.hidden = nn.Linear(d_head, d_head)
        self.speakers = nn.Linear(d_head, options.n_speakers)
        self.learned_silence = nn.Parameter(torch.zeros(d_model))

        self.presets = {
            name: replace(options.streaming, chunk=chunk, right_context=right)
            for name, (chunk, right) in LATENCIES.items()
        }
        self.presets[OFFLINE] = self.long_steps = options.offline

    def forward(self, samples: Tensor, lengths: Tensor | None = None) -> SpeakerOutput:
        """(batch, samples) at 16 kHz, (batch,) samples of each clip or None if nothing is padded."""
        mel, n_mel = self.features(samples, lengths)
        frames, n_frames = self.subsample(mel, n_mel)
        output = self.diarize_frames(frames, n_frames)
        return output._replace(logits=output.logits[:, : mel.shape[1]], lengths=n_mel)

    def subsample(self, mel: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """(batch, mel frames, n_mels), (batch,) -> (batch, frames, d_model), (batch,)."""
        valid = valid_frames(lengths, mel.shape[1])
        if valid is not None:
            mel = mel.masked_fill(~valid[:, :, None], 0.0)
        missing = -mel.shape[1] % MEL_PER_FRAME
        stacked = functional.pad(mel, (0, 0, 0, missing)).reshape(len(mel), -1, MEL_PER_FRAME * mel.shape[2])
        n_frames = None if lengths is None else (lengths + MEL_PER_FRAME - 1) // MEL_PER_FRAME
        return self.stacking(stacked), n_frames

    def diarize_frames(self, frames: Tensor, lengths: Tensor | None = None) -> SpeakerOutput:
        """Return the output for (batch, frames, d_model) as `subsample` makes them: 8 rows for each frame."""
        options = self.options
        valid = valid_frames(lengths, frames.shape[1])
        no_padding = key_bias(valid, frames.dtype)
        angles = rotary_angles(frames.shape[1], options.d_model // options.n_heads, options.rope_base, frames.device)
        x: Tensor = self.norm_in(frames)
        voices = x
        for number, layer in enumerate(self.layers, start=1):
            x = layer(x, angles, no_padding)
            voices = x if number <= (len(self.layers) + 1) // 2 else voices
        x = self.encoder_proj(self.norm_out(x))
        if valid is not None:
            x = x.masked_fill(~valid[:, :, None], 0.0)  # what the convolution sees behind the end of a clip
        x = functional.relu(self.upsampling(x))
        logits = self.speakers(functional.relu(self.hidden(x)))
        return SpeakerOutput(logits, None if lengths is None else lengths * MEL_PER_FRAME, voices)

    def find_silence(self) -> Tensor:
        return self.learned_silence

    def quantized_parts(self) -> Sequence[nn.Module]:
        return (self.layers,)
