"""EEND-SA and EEND-EDA, the baselines of Table 1: no positions, no order of arrival; both learn with PIL.

samples -> LogMel -> 15 frames side by side, every 80 ms -> linear -> TransformerEncoder -> head

EEND-SA    (Fujita et al. 2019)     the head is a linear layer: K logits a frame
EEND-EDA   (Horiguchi et al. 2022)  the head draws from all frames one vector a speaker, its attractor, as long as
                                    there are speakers; the logit is the product of frame and attractor
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence

from sortk.models.diarizer import DiarizerModel, DiarizerOptions
from sortk.models.features import FeatureOptions, LogMel
from sortk.models.frames import MEL_PER_FRAME, SpeakerOutput, valid_frames
from sortk.models.options import ModelOptions, check_sizes
from sortk.models.transformer import TransformerEncoder, TransformerOptions


@dataclass(frozen=True)
class EendOptions(ModelOptions):
    """Everything that an EEND model is built from; the defaults are of the published models, at frames of 80 ms."""

    WHAT = "an EEND model"

    n_speakers: int = 4
    attractors: bool = False  # EEND-EDA, else EEND-SA
    context: int = 7  # mel frames to the left and right that a frame sees
    features: FeatureOptions = field(default_factory=lambda: FeatureOptions(n_mels=23))
    transformer: TransformerOptions = field(
        default_factory=lambda: TransformerOptions(d_model=256, n_layers=4, n_heads=4, d_inner=2048, dropout=0.1)
    )

    def __post_init__(self) -> None:
        check_sizes(self, "n_speakers")
        if self.context < 0:
            raise ValueError(f"context must not be negative, not {self.context}")


def narrow(d_model: int, n_layers: int, n_heads: int = 4) -> TransformerOptions:
    """Return a narrower Transformer, for sizes that learn on a CPU; too short a time for dropout to be of use."""
    return TransformerOptions(d_model=d_model, n_layers=n_layers, n_heads=n_heads, d_inner=4 * d_model, dropout=0.0)


TINY = TransformerOptions(d_model=64, n_layers=2, n_heads=4, d_inner=128, dropout=0.0)  # for tests
# compact: with about 2M parameters, as many as the tiny Sortformer, so that both can be compared on equal terms.
SIZES = {
    ("eend-sa", "base"): EendOptions(),
    ("eend-sa", "compact"): EendOptions(transformer=narrow(192, 4)),
    ("eend-eda", "base"): EendOptions(attractors=True),
    ("eend-eda", "compact"): EendOptions(attractors=True, transformer=narrow(176, 4)),
    ("eend-sa", "tiny"): EendOptions(transformer=TINY),
    ("eend-eda", "tiny"): EendOptions(attractors=True, transformer=TINY),
}


def stack_context(mel: Tensor, context: int) -> Tensor:
    """Stack every 8th frame and its neighbours: (batch, mel frames, bins) -> (batch, frames, (2 context + 1) bins)."""
    padded = functional.pad(mel, (0, 0, context, context))
    return padded.unfold(1, 2 * context + 1, MEL_PER_FRAME).flatten(2)


class Attractors(nn.Module):
    """A vector for each speaker: an LSTM reads all frames, another one speaks, starting from where the first ended."""

    def __init__(self, d_model: int, n_speakers: int) -> None:
        super().__init__()
        self.n_speakers = n_speakers
        self.encoder = nn.LSTM(d_model, d_model, batch_first=True)
        self.decoder = nn.LSTM(d_model, d_model, batch_first=True)
        self.exists = nn.Linear(d_model, 1)

    def forward(self, frames: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """(batch, frames, d) -> (batch, speakers + 1, d), and (batch, speakers + 1) logits of their existence."""
        if self.training:
            frames = shuffle_frames(frames, lengths)
        if lengths is None:
            _, state = self.encoder(frames)
        else:
            packed = pack_padded_sequence(frames, lengths.cpu(), batch_first=True, enforce_sorted=False)
            _, state = self.encoder(packed)
        silence = torch.zeros_like(frames[:, :1]).expand(-1, self.n_speakers + 1, -1)
        attractors, _ = self.decoder(silence, state)
        return attractors, self.exists(attractors).squeeze(2)


def shuffle_frames(frames: Tensor, lengths: Tensor | None) -> Tensor:
    """Return each clip's frames in a random order, its padding still last: the order of time is not to matter."""
    key = torch.rand(frames.shape[:2], device=frames.device)
    valid = valid_frames(lengths, frames.shape[1])
    if valid is not None:
        key = key.masked_fill(~valid, 2.0)
    return frames.gather(1, key.argsort(dim=1)[:, :, None].expand_as(frames))


class EendEncoderOptions(DiarizerOptions, Protocol):
    """The options that every EEND model has: its front end and its encoder."""

    @property
    def context(self) -> int: ...

    @property
    def transformer(self) -> TransformerOptions: ...


class EendEncoder(DiarizerModel):
    """What all EEND models begin with: samples -> LogMel -> 15 frames side by side -> linear -> TransformerEncoder."""

    def __init__(self, options: EendEncoderOptions) -> None:
        super().__init__()
        d_model, n_mels = options.transformer.d_model, options.features.n_mels
        self.context, self.embedding_size = options.context, d_model
        self.features = LogMel(options.features)
        self.linear_in = nn.Linear((2 * options.context + 1) * n_mels, d_model)
        self.norm_in = nn.LayerNorm(d_model)
        self.transformer = TransformerEncoder(options.transformer)

    def encode(self, samples: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """(batch, samples), (batch,) -> (batch, frames, d_model), (batch,) frames of each clip."""
        mel, lengths = self.features(samples, lengths)
        if lengths is not None:
            lengths = (lengths + MEL_PER_FRAME - 1) // MEL_PER_FRAME
        x = self.norm_in(self.linear_in(stack_context(mel, self.context)))
        return self.transformer(x, lengths), lengths

    def quantized_parts(self) -> Sequence[nn.Module]:
        return (self.transformer.layers,)


class Eend(EendEncoder):
    """EEND-SA or, with `options.attractors`, EEND-EDA."""

    options: EendOptions

    def __init__(self, options: EendOptions) -> None:
        super().__init__(options)
        self.options = options
        d_model = options.transformer.d_model
        self.speakers = nn.Linear(d_model, options.n_speakers) if not options.attractors else None
        self.attractors = Attractors(d_model, options.n_speakers) if options.attractors else None

    def forward(self, samples: Tensor, lengths: Tensor | None = None) -> SpeakerOutput:
        """(batch, samples) at 16 kHz, (batch,) samples of each clip or None if nothing is padded."""
        embeddings, lengths = self.encode(samples, lengths)
        if self.speakers is not None:
            return SpeakerOutput(self.speakers(embeddings), lengths, embeddings)
        assert self.attractors is not None
        attractors, existence = self.attractors(embeddings, lengths)
        logits = embeddings @ attractors[:, :-1].transpose(1, 2)
        return SpeakerOutput(logits, lengths, embeddings, existence)
