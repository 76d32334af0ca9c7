"""AED-EEND and AED-EEND-EE, rows of Table 1: attractors by attention, one speaker after the other (Chen et al. 2024).

Z. Chen, B. Han, S. Wang, Y. Qian: "Attention-based encoder-decoder end-to-end neural diarization with embedding
enhancer", 2024; the first version is "... with target speaker attractor", Interspeech 2023.

    E = Encoder(X)                        (T, D)          as in EEND-EDA
    e_s = mean of E over the frames that enrol speaker s
    A = Decoder([q_1, q_2, q_3, e_1, ..., e_S], E)        (3 + S, D)   the queries attend to each other and to E
    P = sigmoid(E A^T / sqrt(D))          (T, 3 + S)

The learned queries q find the speech types: silence, one speaker, overlap. With teacher forcing, training takes the
enrolment of a speaker from the reference: up to `enrolment` frames in which that speaker speaks alone, from a random
one on. The order of the outputs is then given, and there is no permutation to search: the loss is the cross-entropy of
the types and of the enrolled speakers (`training.losses.aed_loss`).

Inference is iterative. The first pass knows no speaker; its single-speaker frames that no known speaker claims are
the candidates. The first `enrolment` frames of the longest run of candidates enrol the next speaker, and the decoder
runs again with one more query, until no run is as long as that: the number of speakers is not limited by
the number in training. Half of the training examples enrol only some of their speakers, since every pass but the last
does so.

AED-EEND-EE has an embedding enhancer: layers in which the frames attend to each other and to the attractors, before
the product, E' = Enhancer(E, A). The published size, 11.6M with and without it, is that of 4 encoder layers and 4
layers with cross-attention; with the enhancer we divide the latter: 2 in the decoder and 2 in the enhancer. That
division, the scale 1 / sqrt(D) and frames of 80 ms are choices made here. The full papers were not at hand: where their
abstracts say nothing (form of the enhancer, choice of enrolment frames, weights of the loss), this may differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sortk.models.canary import DecoderLayer, mask_padding
from sortk.models.eend import TINY, EendEncoder, narrow
from sortk.models.features import FeatureOptions
from sortk.models.frames import SpeakerOutput, key_bias, valid_frames
from sortk.models.options import ModelOptions, check_sizes
from sortk.models.transformer import TransformerOptions

SILENCE, SINGLE, OVERLAP = range(3)
N_TYPES = 3
ACTIVE = 0.0  # a logit: probability 0.5


@dataclass(frozen=True)
class AedEendOptions(ModelOptions):
    """Everything that an AED-EEND is built from; the defaults are of the published model, 11.6M."""

    WHAT = "an AED-EEND"

    n_speakers: int = 4  # of a training example, at most
    context: int = 7  # mel frames to the left and right that a frame sees
    features: FeatureOptions = field(default_factory=lambda: FeatureOptions(n_mels=23))
    transformer: TransformerOptions = field(
        default_factory=lambda: TransformerOptions(d_model=256, n_layers=4, n_heads=4, d_inner=2048, dropout=0.1)
    )
    decoder_layers: int = 4
    enhancer_layers: int = 0  # AED-EEND-EE: 2, and 2 in the decoder
    enrolment: int = 6  # frames of 80 ms that enrol a speaker: about the 0.5 s of the paper
    max_found: int = 20  # speakers at which inference ends in any case

    def __post_init__(self) -> None:
        check_sizes(self, "n_speakers", "decoder_layers", "enrolment", "max_found")
        if self.context < 0 or self.enhancer_layers < 0:
            raise ValueError(
                f"context and enhancer_layers must be 0 or more, got {self.context} and {self.enhancer_layers}"
            )


SIZES = {
    ("aed-eend", "base"): AedEendOptions(),
    ("aed-eend-ee", "base"): AedEendOptions(decoder_layers=2, enhancer_layers=2),
    ("aed-eend", "compact"): AedEendOptions(transformer=narrow(128, 4)),
    ("aed-eend-ee", "compact"): AedEendOptions(transformer=narrow(128, 4), decoder_layers=2, enhancer_layers=2),
    ("aed-eend", "tiny"): AedEendOptions(transformer=TINY, decoder_layers=1),
    ("aed-eend-ee", "tiny"): AedEendOptions(transformer=TINY, decoder_layers=1, enhancer_layers=1),
}


class SpeechTypes(NamedTuple):
    """What the loss of AED-EEND needs besides the logits of the speakers."""

    logits: Tensor  # (batch, frames, 3): silence, one speaker, overlap
    enrolled: Tensor  # (batch, speakers): the outputs that represent a speaker


class AedEend(EendEncoder):
    """AED-EEND or, with `options.enhancer_layers`, AED-EEND-EE."""

    options: AedEendOptions
    teacher_forcing = True

    def __init__(self, options: AedEendOptions) -> None:
        super().__init__(options)
        self.options = options
        d_model = options.transformer.d_model
        self.types = nn.Parameter(torch.randn(N_TYPES, d_model))
        self.decoder = nn.ModuleList(DecoderLayer(options.transformer) for _ in range(options.decoder_layers))
        self.norm_decoder = nn.LayerNorm(d_model)
        self.enhancer = nn.ModuleList(DecoderLayer(options.transformer) for _ in range(options.enhancer_layers))
        self.norm_enhancer = nn.LayerNorm(d_model) if options.enhancer_layers else nn.Identity()

    def forward(self, samples: Tensor, lengths: Tensor | None = None, targets: Tensor | None = None) -> SpeakerOutput:
        """(batch, samples) at 16 kHz, (batch,) samples of each clip or None if nothing is padded.

        With targets, (batch, frames, speakers), column k of the logits is for column k of them; only in training.
        """
        frames, lengths = self.encode(samples, lengths)
        if targets is not None:
            targets = targets.to(frames.dtype)
            enrolled = drop_speakers((targets != 0).any(dim=1))
            vectors = mean_frames(frames, choose_enrolment(targets, self.options.enrolment))
            types, logits = self.decode(frames, lengths, vectors, enrolled)
            return SpeakerOutput(logits, lengths, frames, for_loss=SpeechTypes(types, enrolled))
        logits, enrolled = self.find_speakers(frames, lengths)
        # An output without a speaker is off: no embedding claims it.
        return SpeakerOutput(logits.masked_fill(~enrolled[:, None], -1e4), lengths, frames)

    def embed(self, samples: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.encode(samples, lengths)[0]

    def decode(
        self, frames: Tensor, lengths: Tensor | None, vectors: Tensor, enrolled: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(batch, frames, d), (batch,), (batch, S, d) enrolments and (batch, S) whether they represent a speaker ->
        logits of the types, (batch, frames, 3), and of the speakers, (batch, frames, S)."""
        batch = len(frames)
        known = torch.cat([enrolled.new_ones(batch, N_TYPES), enrolled], dim=1)
        queries = torch.cat([self.types.to(frames.dtype).expand(batch, -1, -1), vectors], dim=1)
        attractors = _attend(
            self.decoder, queries, key_bias(known, frames.dtype), frames, mask_padding(frames, lengths)
        )
        attractors = self.norm_decoder(attractors)
        if len(self.enhancer):
            of_known = key_bias(known, frames.dtype)
            frames = _attend(self.enhancer, frames, mask_padding(frames, lengths), attractors, of_known)
        logits = self.norm_enhancer(frames) @ attractors.transpose(1, 2) * attractors.shape[2] ** -0.5
        return logits[:, :, :N_TYPES], logits[:, :, N_TYPES:]

    def find_speakers(self, frames: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """(batch, frames, d), (batch,) -> logits (batch, frames, S), and (batch, S) who is found. Those of a clip come
        first; S is at least `n_speakers`."""
        batch, n_frames, d_model = frames.shape
        vectors, enrolled = frames.new_zeros(batch, 0, d_model), frames.new_zeros(batch, 0, dtype=torch.bool)
        types, logits = self.decode(frames, lengths, vectors, enrolled)
        valid = valid_frames(lengths, n_frames)
        free = torch.ones_like(types[:, :, 0], dtype=torch.bool) if valid is None else valid
        for _ in range(self.options.max_found):
            claimed = ((logits > ACTIVE) & enrolled[:, None]).any(dim=2)
            run, n_run = longest_run(free & (types[:, :, SINGLE] > ACTIVE) & ~claimed)
            is_new = n_run >= self.options.enrolment
            if not bool(is_new.any()):
                break
            chosen = run & (run.cumsum(dim=1) <= self.options.enrolment) & is_new[:, None]
            free = free & ~chosen  # so that it ends even if the new speaker does not claim these frames
            vectors = torch.cat([vectors, mean_frames(frames, chosen[:, :, None].to(frames.dtype))], dim=1)
            enrolled = torch.cat([enrolled, is_new[:, None]], dim=1)
            types, logits = self.decode(frames, lengths, vectors, enrolled)
        missing = max(self.options.n_speakers - enrolled.shape[1], 0)
        return nn.functional.pad(logits, (0, missing)), nn.functional.pad(enrolled, (0, missing))

    def quantized_parts(self) -> Sequence[nn.Module]:
        return (self.transformer.layers, self.decoder, self.enhancer)


def _attend(layers: nn.ModuleList, x: Tensor, own: Tensor | None, memory: Tensor, padding: Tensor | None) -> Tensor:
    """Run layers in which x, (batch, n, d), attends to itself and to the memory; `own` and `padding` are the masks."""
    for layer in layers:
        assert isinstance(layer, DecoderLayer)
        x = layer(x, own, layer.cross_attention.project(memory), padding, None)
    return x


def drop_speakers(present: Tensor) -> Tensor:
    """(batch, speakers) -> the same shape: in half of the examples, a random share of those present, at least one."""
    share = torch.rand(len(present), 1, device=present.device) * 2  # from 1 on: all
    draw = torch.rand(present.shape, device=present.device).masked_fill(~present, 2.0)
    return present & ((draw < share) | (draw == draw.amin(dim=1, keepdim=True)))


def choose_enrolment(targets: Tensor, n_frames: int) -> Tensor:
    """(batch, frames, speakers) of 0 and 1 -> the same shape: up to `n_frames` frames of each speaker alone, from a
    random one on, and after the last comes the first; of all frames if a speaker is never alone."""
    alone = targets * (targets.sum(dim=2, keepdim=True) == 1)
    alone = torch.where((alone != 0).any(dim=1, keepdim=True), alone, targets)
    total = alone.sum(dim=1, keepdim=True)
    first = (torch.rand_like(total) * total).floor()
    place = (alone.cumsum(dim=1) - 1 - first).remainder(total.clamp(min=1))
    return alone * (place < n_frames)


def mean_frames(frames: Tensor, chosen: Tensor) -> Tensor:
    """(batch, frames, d), (batch, frames, speakers) of 0 and 1 -> (batch, speakers, d), the mean of the chosen"""
    total = chosen.transpose(1, 2) @ frames
    return total / chosen.sum(dim=1)[:, :, None].clamp(min=1)


def longest_run(mask: Tensor) -> tuple[Tensor, Tensor]:
    """(batch, frames) -> the same shape with the longest run of true values alone, the first of equals; its length."""
    place = torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)
    last_false = place.masked_fill(mask, -1).cummax(dim=1).values
    n_run, end = (place - last_false).max(dim=1)
    return (place <= end[:, None]) & (place > (end - n_run)[:, None]), n_run
