"""The speaker vectors that EEND-VC learns beside diarization: one for each speaker of the training data.

    L_vector = -log softmax_s(-alpha ||v_k - u_s||^2),  v_k and u_s of length 1

v_k is the vector of output k of a chunk, and s the speaker that PIL pairs with it (`models/eend_vc.py`). After training
the dictionary is thrown away: new voices are told apart by the distance of their vectors.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from sortk.models.blocks import Blocks
from sortk.training.losses import cut_targets
from sortk.training.targets import NO_SPEAKER

WEIGHT = 0.03  # lambda: of this loss; diarization has 1 - lambda


class SpeakerDictionary(nn.Module):
    """The vectors u_s and the scale alpha."""

    def __init__(self, n_speakers: int, vector_size: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(n_speakers, vector_size))
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, chunks: Blocks, permutation: Tensor, targets: Tensor, speakers: Tensor) -> Tensor:
        """Return the mean over outputs and chunks; outputs without a speaker, or for one without a name, count as 0.

        `permutation`, (chunks, outputs), has the column of the targets, (batch, frames, columns), for each output;
        `speakers`, (batch, frames), who speaks alone.
        """
        names = name_columns(targets, speakers)[chunks.clip]
        is_present = (cut_targets(targets, chunks) != 0).any(dim=1)
        names = names.masked_fill(~is_present, NO_SPEAKER).gather(1, permutation)
        known = names != NO_SPEAKER
        if not bool(known.any()):
            return 0.0 * (chunks.vectors.sum() + self.vectors.sum() + self.scale)
        # ||v - u||^2 = 2 - 2 v.u, as both have length 1.
        distance = 2 - 2 * chunks.vectors[known].float() @ functional.normalize(self.vectors, dim=1).T
        loss = functional.cross_entropy(-self.scale.clamp(min=1e-6) * distance, names[known], reduction="sum")
        return loss / known.numel()


def name_columns(targets: Tensor, speakers: Tensor) -> Tensor:
    """(batch, frames, columns), (batch, frames) -> (batch, columns): each column's speaker, or NO_SPEAKER.

    A speaker's number is known from the frames in which that speaker speaks alone.
    """
    alone = (targets != 0) & ((targets != 0).sum(dim=2, keepdim=True) == 1)
    named = torch.where(
        alone, speakers[:, : targets.shape[1], None], torch.full_like(speakers[:, :1, None], NO_SPEAKER)
    )
    return named.amax(dim=1)
