"""EEND-GLA, a row of Table 1: global and local attractors, and any number of speakers (Horiguchi et al. 2022).

S. Horiguchi, S. Watanabe, P. Garcia, Y. Takashima, Y. Kawaguchi: "Online neural diarization of unlimited numbers of
speakers using global and local attractors", 2022; the first version is "Towards neural diarization for unlimited
numbers of speakers ...", ASRU 2021.

    E = Encoder(X)                        (T, D)       as in EEND-EDA, with 6 layers in the "Large" model
    A = EDA(E)                            global attractors, of all frames
    A_l = EDA(E_l)                        local attractors, of the l-th block of 5 s; at most K speakers in a block
    P = sigmoid(E A^T),  P_l = sigmoid(E_l A_l^T)
    B = Linear(TransformerDecoder([A_1, ..., A_L], E))     vectors to compare the attractors of different blocks

Training minimises the loss of EEND-EDA for all frames and for the blocks, and a pairwise loss that draws the vectors
of one speaker together and pushes those of two speakers apart (`training.losses.gla_loss`).

Inference clusters the vectors of all blocks; two of one block are never joined. If there are no more clusters than a
training example has speakers, the global attractors decide; otherwise each cluster is a speaker, whose activity in a
block is that of its local attractor. So the number of speakers is limited in a block, and unlimited in a recording.

One EDA for both kinds of attractors and one decoder layer with a linear layer are what the published 10.7M allow for.
The clustering here is agglomerative (average linkage), with a threshold halfway between the margin of the pairwise loss
and 1; in inference, EDA reads the frames in a fixed order that is not that of time; frames are of 80 ms.
The full papers were not at hand: the form of the pairwise loss, its margin and the layer that compares attractors may
differ from theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from sortk.models.blocks import OFF, Blocks, cut_blocks, join_blocks, stack_clips
from sortk.models.canary import DecoderLayer, mask_padding
from sortk.models.eend import TINY, Attractors, EendEncoder, narrow
from sortk.models.features import FeatureOptions
from sortk.models.frames import SpeakerOutput, valid_frames
from sortk.models.options import ModelOptions, check_sizes
from sortk.models.transformer import TransformerOptions

MARGIN = 0.5  # cosine up to which two speakers are far enough apart
SAME_SPEAKER = (1 + MARGIN) / 2  # cosine from which on two clusters are one speaker
GOLDEN_RATIO = (1 + 5**0.5) / 2


@dataclass(frozen=True)
class EendGlaOptions(ModelOptions):
    """Everything that an EEND-GLA is built from; the defaults are of EEND-GLA-Large, 10.7M."""

    WHAT = "an EEND-GLA"

    n_speakers: int = 4  # of a training example, and of a block, at most
    block: int = 63  # frames of 80 ms: 5 s
    context: int = 7  # mel frames to the left and right that a frame sees
    features: FeatureOptions = field(default_factory=lambda: FeatureOptions(n_mels=23))
    transformer: TransformerOptions = field(
        default_factory=lambda: TransformerOptions(d_model=256, n_layers=6, n_heads=4, d_inner=2048, dropout=0.1)
    )

    def __post_init__(self) -> None:
        check_sizes(self, "n_speakers", "block")
        if self.context < 0:
            raise ValueError(f"context must be 0 or more, got {self.context}")


SIZES = {
    ("eend-gla", "base"): EendGlaOptions(),
    ("eend-gla", "compact"): EendGlaOptions(transformer=narrow(144, 6)),
    ("eend-gla", "tiny"): EendGlaOptions(block=25, transformer=TINY),
}


class EendGla(EendEncoder):
    """EEND-GLA."""

    options: EendGlaOptions

    def __init__(self, options: EendGlaOptions) -> None:
        super().__init__(options)
        self.options = options
        d_model = options.transformer.d_model
        self.attractors = Attractors(d_model, options.n_speakers)
        self.comparer = DecoderLayer(options.transformer)
        self.linear_vectors = nn.Linear(d_model, d_model)

    def forward(self, samples: Tensor, lengths: Tensor | None = None) -> SpeakerOutput:
        """(batch, samples) at 16 kHz, (batch,) samples of each clip or None if nothing is padded."""
        frames, lengths = self.encode(samples, lengths)
        attractors, existence = self._attract(frames, lengths)
        logits = frames @ attractors[:, :-1].transpose(1, 2)
        blocks = self.diarize_blocks(frames, lengths)
        if self.training:
            return SpeakerOutput(logits, lengths, frames, existence, for_loss=blocks)
        exists = (existence[:, None, :-1] > 0).cumprod(dim=2).bool()
        chosen = [logits[clip].masked_fill(~exists[clip], OFF) for clip in range(len(frames))]
        for clip, joined in enumerate(self.join_blocks(blocks, len(frames), frames.shape[1])):
            if joined.shape[1] > self.options.n_speakers:
                chosen[clip] = joined
        return SpeakerOutput(stack_clips(chosen, self.options.n_speakers), lengths, frames)

    def embed(self, samples: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.encode(samples, lengths)[0]

    def diarize_blocks(self, frames: Tensor, lengths: Tensor | None) -> Blocks:
        """(batch, frames, d), (batch,) -> what the local attractors decide, and the vectors to compare them by."""
        cut = cut_blocks(frames, lengths, self.options.block)
        attractors, existence = self._attract(cut.frames, cut.lengths)
        attractors = attractors[:, :-1]
        vectors = functional.normalize(self._compare(attractors, cut.kept, frames, lengths), dim=2)
        logits = cut.frames @ attractors.transpose(1, 2)
        return Blocks(cut.clip, cut.first, cut.lengths, logits, vectors, existence)

    def _attract(self, frames: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return attractors and existence; EDA reads the frames out of order in inference too, as it learned to."""
        found: tuple[Tensor, Tensor] = self.attractors(
            frames if self.training else spread_frames(frames, lengths), lengths
        )
        return found

    def _compare(self, attractors: Tensor, kept: Tensor, frames: Tensor, lengths: Tensor | None) -> Tensor:
        """(blocks, speakers, d) -> the same shape: each attractor attends to all of its clip, and to its frames."""
        n_speakers, d_model = attractors.shape[1:]
        padded = attractors.new_zeros(len(kept), n_speakers, d_model).masked_scatter(kept[:, None, None], attractors)
        queries = padded.view(len(frames), -1, d_model)
        own = kept.repeat_interleave(n_speakers).view(len(frames), 1, 1, -1)
        bias = torch.zeros_like(own, dtype=frames.dtype).masked_fill(~own, OFF)
        memory = self.comparer.cross_attention.project(frames)
        compared = self.linear_vectors(self.comparer(queries, bias, memory, mask_padding(frames, lengths), None))
        of_blocks: Tensor = compared.reshape(len(kept), n_speakers, d_model)[kept]
        return of_blocks

    def join_blocks(self, blocks: Blocks, n_clips: int, n_frames: int) -> list[Tensor]:
        """Return the logits of each clip, (frames, speakers), by clustering; as many speakers as there are clusters."""
        assert blocks.existence is not None
        exists = (blocks.existence[:, :-1] > 0).cumprod(dim=1).bool()
        vectors = blocks.vectors[exists].float()
        return join_blocks(blocks, exists, vectors @ vectors.T, SAME_SPEAKER, n_clips, n_frames)

    def quantized_parts(self) -> Sequence[nn.Module]:
        return (self.transformer.layers,)


def spread_frames(frames: Tensor, lengths: Tensor | None) -> Tensor:
    """(batch, frames, d) in an order that is not that of time, padding last; the same for a clip in any batch.

    Frame t is placed by the fractional part of t times the golden ratio, which spreads neighbours evenly.
    """
    key = (torch.arange(frames.shape[1], device=frames.device, dtype=torch.float64) * GOLDEN_RATIO).frac()
    key = key.expand(frames.shape[:2])
    valid = valid_frames(lengths, frames.shape[1])
    if valid is not None:
        key = key.masked_fill(~valid, 2.0)
    return frames.gather(1, key.argsort(dim=1, stable=True)[:, :, None].expand_as(frames))
