"""What EEND models share that process a recording block by block: cutting, and joining by constrained clustering.

EEND-GLA and EEND-VC diarize each block by itself and give every local speaker a vector. Vectors of one speaker are
close, so clusters of vectors are the speakers of the recording. Two vectors of one block are two speakers, so they are
never joined (cannot-link).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

OFF = -1e4  # logit of a speaker who is not there


class Blocks(NamedTuple):
    """The blocks of a batch that have a valid frame, one clip after the other, and what is local in them."""

    clip: Tensor  # (blocks,): of which clip
    first: Tensor  # (blocks,): first frame
    lengths: Tensor  # (blocks,): valid frames
    logits: Tensor  # (blocks, size, speakers)
    vectors: Tensor  # (blocks, speakers, d), of length 1
    existence: Tensor | None = None  # (blocks, speakers + 1), of a model that counts its speakers


class Cut(NamedTuple):
    """Frames cut into blocks; those that are padding alone are left out."""

    frames: Tensor  # (blocks, size, d), 0 behind the end of a clip
    clip: Tensor  # (blocks,)
    first: Tensor  # (blocks,)
    lengths: Tensor  # (blocks,)
    kept: Tensor  # (clips * blocks of a clip,): which of all blocks these are


def cut_blocks(frames: Tensor, lengths: Tensor | None, size: int) -> Cut:
    """(batch, frames, d), (batch,) -> blocks of `size` frames; the last one of a clip may be shorter."""
    batch, n_frames, d = frames.shape
    n_blocks = -(-n_frames // size)
    n_valid = torch.full((batch,), n_frames, device=frames.device) if lengths is None else lengths
    first = torch.arange(n_blocks, device=frames.device) * size
    in_block = (n_valid[:, None] - first).clamp(0, size).flatten()
    kept = in_block > 0
    padded = functional.pad(frames, (0, 0, 0, n_blocks * size - n_frames))
    clip = torch.arange(batch, device=frames.device).repeat_interleave(n_blocks)
    return Cut(
        padded.view(batch * n_blocks, size, d)[kept], clip[kept], first.repeat(batch)[kept], in_block[kept], kept
    )


def paste_blocks(parts: Tensor, kept: Tensor, batch: int, n_frames: int) -> Tensor:
    """Return the inverse of `cut_blocks`: (blocks, size, d) -> (batch, frames, d), 0 on padding."""
    everything = parts.new_zeros(len(kept), *parts.shape[1:])
    everything[kept] = parts
    return everything.view(batch, -1, parts.shape[2])[:, :n_frames]


def join_blocks(
    blocks: Blocks, speaks: Tensor, similarity: Tensor, threshold: float, n_clips: int, n_frames: int
) -> list[Tensor]:
    """Return the logits of each clip, (frames, speakers): a cluster of local speakers is one speaker.

    `speaks`, (blocks, speakers), says which local speakers are there; `similarity` is of all of these, in that order.
    """
    similarities = similarity.detach().double().cpu().numpy()
    block_of, column_of = speaks.nonzero(as_tuple=True)
    joined = []
    for clip in range(n_clips):
        own = (blocks.clip[block_of] == clip).nonzero()[:, 0].cpu().numpy()
        labels = cluster(similarities[np.ix_(own, own)], block_of.cpu().numpy()[own], threshold)
        logits = blocks.logits.new_full((n_frames, max(labels, default=-1) + 1), OFF)
        for local, label in zip(own, labels, strict=True):
            block, column = int(block_of[local]), int(column_of[local])
            first, n_valid = int(blocks.first[block]), int(blocks.lengths[block])
            logits[first : first + n_valid, label] = blocks.logits[block, :n_valid, column]
        joined.append(logits)
    return joined


def stack_clips(clips: list[Tensor], n_columns: int) -> Tensor:
    """[(frames, speakers), ...] -> (batch, frames, speakers): as many as the clip with most, at least `n_columns`."""
    n_columns = max(n_columns, *(logits.shape[1] for logits in clips))
    return torch.stack([functional.pad(logits, (0, n_columns - logits.shape[1]), value=OFF) for logits in clips])


def cluster(similarity: npt.NDArray[np.float64], groups: npt.NDArray[np.int64], threshold: float) -> list[int]:
    """(n, n), (n,) -> n labels 0, 1, ..., in the order of first appearance.

    Clusters with the largest mean similarity are joined, as long as it is at least `threshold`; never two that have
    members of one group (cannot-link).
    """
    similarity = np.where(groups[:, None] == groups, -np.inf, similarity)  # also each one with itself
    members = [[index] for index in range(len(groups))]
    while similarity.size:
        keep, gone = sorted(np.unravel_index(similarity.argmax(), similarity.shape))
        if similarity[keep, gone] == -np.inf or similarity[keep, gone] < threshold:
            break
        # Average linkage: the mean over all pairs. -inf stays: what one may not join, their union may not.
        sizes = len(members[keep]), len(members[gone])
        mean = (sizes[0] * similarity[keep] + sizes[1] * similarity[gone]) / sum(sizes)
        mean[[keep, gone]] = -np.inf
        similarity[keep], similarity[:, keep] = mean, mean
        similarity[gone], similarity[:, gone] = -np.inf, -np.inf
        members[keep] += members[gone]
        members[gone] = []
    labels = [0] * len(groups)
    for label, own in enumerate(sorted(sorted(own) for own in members if own)):
        for index in own:
            labels[index] = label
    return labels
