"""Sort Loss, permutation-invariant loss (PIL) and their mixture: Section 3.3 of the paper.

With targets Y, logits Z and P = sigmoid(Z), all (frames, speakers), the cross-entropy of target i and output j is

    BCE(y_i, q_j) = -sum_t [y_it log p_jt + (1 - y_it) log(1 - p_jt)] = sum_t softplus(z_jt) - sum_t y_it z_jt

A permutation pairs each output with one target. The first sum then runs over all outputs, whatever the permutation;
so the permutation with the least cross-entropy is the one with the largest total of

    A_ij = sum_t y_it z_jt        A = Y^T Z

One product of two matrices decides, and the cross-entropy is computed for one permutation instead of K!. Up to six
speakers the K! totals are compared on the device; beyond, the Hungarian method finds the largest.

Training computes `hybrid_loss`, whose two ends are `sort_loss` and `pil_loss`.

Every loss is the mean over the valid frames and the speakers of a sample, 1/(TK) as in the paper, then over the batch.
(NVIDIA takes one mean over all valid frames of a batch; for clips of equal length the two are the same.)
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from sortk.models.aed_eend import SpeechTypes
from sortk.models.blocks import Blocks
from sortk.models.eend_gla import MARGIN
from sortk.models.frames import SpeakerOutput, valid_frames
from sortk.training.targets import NO_SPEAKER

MAX_ENUMERATED = 6  # speakers: 720 permutations
FORBIDDEN = -1e9  # affinity of a pair that must not be


@dataclass(frozen=True)
class DiarizationLoss:
    """The loss and, for logging, what it is made of. Only `total` carries gradients."""

    total: Tensor  # what to minimise
    sort: Tensor  # L_Sort
    pil: Tensor  # L_PIL
    permutation: Tensor  # (batch, speakers): the target that PIL pairs with each output
    arrival_accuracy: Tensor  # fraction of the samples whose speakers PIL finds in the order of arrival
    existence: Tensor | None = None  # of EEND-EDA's count of speakers


def diarization_loss(output: SpeakerOutput, targets: Tensor, alpha: float = 0.5) -> DiarizationLoss:
    """Return the loss of any diarizer of `models`; targets as the logits, (batch, frames, speakers)."""
    if isinstance(output.for_loss, SpeechTypes):
        return aed_loss(output.logits, output.for_loss, targets, output.lengths)
    if isinstance(output.for_loss, Blocks) and output.existence is not None:
        return gla_loss(output.logits, output.existence, output.for_loss, targets, output.lengths)
    if isinstance(output.for_loss, Blocks):  # EEND-VC: PIL of the chunks; `SpeakerDictionary` is the other part
        chunks = output.for_loss
        return hybrid_loss(chunks.logits, cut_targets(targets, chunks), chunks.lengths, alpha=0.0)
    if output.existence is not None:
        return eda_loss(output.logits, output.existence, targets, output.lengths)
    return hybrid_loss(output.logits, targets, output.lengths, alpha)


def sort_loss(logits: Tensor, targets: Tensor, lengths: Tensor | None = None) -> Tensor:
    """L_Sort = BCE(Y_eta, P), Eq. 11: the targets by order of arrival. (batch, frames, speakers) both -> a scalar."""
    _require_same_shape(logits, targets)
    return cross_entropy(logits, sort_by_arrival(targets, lengths).targets, mean_weights(logits, lengths))


def pil_loss(logits: Tensor, targets: Tensor, lengths: Tensor | None = None) -> Tensor:
    """L_PIL = min over pi of BCE(Y_pi, P), Eq. 4 to 6, exactly. (batch, frames, speakers) both -> a scalar."""
    return cross_entropy(logits, pair_targets(logits, targets, lengths).best, mean_weights(logits, lengths))


def hybrid_loss(logits: Tensor, targets: Tensor, lengths: Tensor | None = None, alpha: float = 0.5) -> DiarizationLoss:
    """L_hybrid = alpha L_Sort + (1 - alpha) L_PIL, Eq. 12. (batch, frames, speakers) both.

    Its total is `sort_loss` for alpha = 1 and `pil_loss` for alpha = 0: all three take their targets from
    `sort_by_arrival` and `pair_targets`.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must be from 0 to 1, got {alpha}")
    return _mix(logits, pair_targets(logits, targets, lengths), lengths, alpha)


def eda_loss(
    logits: Tensor, existence: Tensor, targets: Tensor, lengths: Tensor | None = None, existence_weight: float = 1.0
) -> DiarizationLoss:
    """EEND-EDA (Horiguchi et al. 2022): PIL of the first n outputs when n speakers are present, and the existence of
    the attractors up to the (n + 1)-th, the first that must not exist. `existence`: (batch, speakers + 1) logits."""
    pairs = pair_targets(logits, targets, lengths, present_only=True)
    loss = _mix(logits, pairs, lengths, alpha=0.0, present_only=True)
    n_present = (silence_padding(targets, lengths) != 0).any(dim=1).sum(dim=1, keepdim=True)
    index = torch.arange(existence.shape[1], device=existence.device)
    counted = index <= n_present
    weights = counted / counted.sum(dim=1, keepdim=True) / len(counted)
    count = cross_entropy(existence, index < n_present, weights)
    return replace(loss, total=loss.total + existence_weight * count, existence=count.detach())


def aed_loss(logits: Tensor, types: SpeechTypes, targets: Tensor, lengths: Tensor | None = None) -> DiarizationLoss:
    """AED-EEND (Chen et al. 2024): cross-entropy of the enrolled speakers, in the order of their enrolment, and of the
    speech types (silence, one speaker, overlap).

    Teacher forcing gives the order, so nothing is permuted; the permutation of PIL is found for the log only.
    """
    pairs = pair_targets(logits, targets, lengths, present_only=True)
    targets = silence_padding(targets, lengths)
    speakers = cross_entropy(logits, targets, mean_weights(logits, lengths, types.enrolled))
    n_active = targets.sum(dim=2)
    wanted = torch.stack([n_active == 0, n_active == 1, n_active > 1], dim=2)
    total = speakers + cross_entropy(types.logits, wanted, mean_weights(types.logits, lengths))
    in_order = share_in_order(pairs.best_of_arrival, pairs.present)
    return DiarizationLoss(total, speakers.detach(), speakers.detach(), pairs.permutation, in_order)


def gla_loss(
    logits: Tensor, existence: Tensor, blocks: Blocks, targets: Tensor, lengths: Tensor | None = None
) -> DiarizationLoss:
    """EEND-GLA (Horiguchi et al. 2022): the loss of EEND-EDA for all frames, that for the blocks, and the pairwise loss
    of the local attractors, each of which represents the speaker that PIL pairs it with in its block."""
    everything = eda_loss(logits, existence, targets, lengths)
    assert blocks.existence is not None
    local_targets = cut_targets(targets, blocks)
    local = eda_loss(blocks.logits, blocks.existence, local_targets, blocks.lengths)
    n_present = (silence_padding(local_targets, blocks.lengths) != 0).any(dim=1).sum(dim=1, keepdim=True)
    used = torch.arange(targets.shape[2], device=targets.device) < n_present
    speaker = blocks.clip[:, None] * targets.shape[2] + local.permutation  # others of other clips
    clip = blocks.clip[:, None].expand_as(used)
    pairwise = pairwise_loss(blocks.vectors[used], speaker[used], clip[used])
    return replace(everything, total=everything.total + local.total + pairwise)


def cut_targets(targets: Tensor, blocks: Blocks) -> Tensor:
    """(batch, frames, speakers) -> (blocks, size, speakers): the targets of each block, 0 behind the end of a clip."""
    size = blocks.logits.shape[1]
    frame = blocks.first[:, None] + torch.arange(size, device=targets.device)
    return silence_padding(functional.pad(targets, (0, 0, 0, size))[blocks.clip[:, None], frame], blocks.lengths)


def pairwise_loss(vectors: Tensor, speakers: Tensor, clips: Tensor) -> Tensor:
    """(n, d) of length 1, (n,), (n,) -> a scalar: for each pair of vectors of one clip, 1 - cos if they are of one
    speaker, max(cos - MARGIN, 0) if not; the mean over pairs of speakers of the mean over their vectors."""
    if len(vectors) == 0:
        return vectors.sum()
    vectors = _full_precision(vectors)
    cosine = vectors @ vectors.T
    same = speakers[:, None] == speakers
    cost = torch.where(same, 1 - cosine, (cosine - MARGIN).clamp(min=0))
    n_own = same.sum(dim=1)
    weights = (clips[:, None] == clips) / (n_own[:, None] * n_own)  # each pair of speakers weighs as much
    return (cost * weights).sum() / weights.sum()


class SortedTargets(NamedTuple):
    """The targets sorted by arrival."""

    targets: Tensor  # Y_eta of Eq. 9, (batch, frames, speakers)
    order: Tensor  # eta, (batch, speakers): who comes first, second, ...
    present: Tensor  # (batch, speakers), in that order: who speaks at all; absent speakers come last


def sort_by_arrival(targets: Tensor, lengths: Tensor | None = None) -> SortedTargets:
    """Sort the columns of the targets, (batch, frames, speakers), by arrival; padding becomes silence."""
    targets = silence_padding(targets, lengths)
    first, order = first_active(targets).sort(dim=1, stable=True)
    return SortedTargets(permute_speakers(targets, order), order, first < targets.shape[1])


class PairedTargets(NamedTuple):
    """The targets in the two orders that the losses compare with the outputs."""

    arrival: Tensor  # Y_eta, (batch, frames, speakers): sorted by arrival, for Sort Loss
    best: Tensor  # Y_pi of Eq. 5: the permutation with the least cross-entropy, for PIL
    permutation: Tensor  # (batch, speakers): the target that PIL pairs with each output
    best_of_arrival: Tensor  # (batch, speakers): the same, counted in the order of arrival
    present: Tensor  # (batch, speakers): who speaks at all, in the order of arrival; absent speakers come last


def pair_targets(
    logits: Tensor, targets: Tensor, lengths: Tensor | None = None, present_only: bool = False
) -> PairedTargets:
    """Sort the targets by arrival, and by the best permutation: (batch, frames, speakers) both.

    With `present_only`, only the first outputs, as many as there are speakers, are paired with speakers who speak.
    """
    _require_same_shape(logits, targets)
    arrival, order, present = sort_by_arrival(targets, lengths)
    affinity = pair_affinity(logits, arrival)
    if present_only:
        affinity = affinity.masked_fill(present[:, :, None] != present[:, None, :], FORBIDDEN)
    best = best_permutation(affinity)
    return PairedTargets(arrival, permute_speakers(arrival, best), order.gather(1, best), best, present)


def _mix(
    logits: Tensor, pairs: PairedTargets, lengths: Tensor | None, alpha: float, present_only: bool = False
) -> DiarizationLoss:
    """alpha BCE(Y_eta, P) + (1 - alpha) BCE(Y_pi, P), with one cross-entropy.

    It is linear in the targets, BCE(Y, P) = ... - sum y z: the mixture of two losses is the loss of the mixture of
    their targets, and the difference of two losses is a sum of z.
    """
    weights = mean_weights(logits, lengths, pairs.present if present_only else None)
    change = pairs.best - pairs.arrival
    total = cross_entropy(logits, pairs.best - alpha * change, weights)
    gap = change * logits.detach()
    gap = gap.mean() if weights is None else (gap * weights).sum()  # L_Sort - L_PIL
    return DiarizationLoss(
        total=total,
        sort=total.detach() + (1 - alpha) * gap,
        pil=total.detach() - alpha * gap,
        permutation=pairs.permutation,
        arrival_accuracy=share_in_order(pairs.best_of_arrival, pairs.present),
    )


# ---------------------------------------------------------------------------------------------------------------------
# The order of the speakers


def arrival_order(targets: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Return eta of Eq. 9, the sorting function: (batch, frames, speakers) -> (batch, speakers), who comes first,
    second, ...

    Speakers who start in the same frame keep the order of their indices; those who never speak come last.
    """
    return first_active(silence_padding(targets, lengths)).argsort(dim=1, stable=True)


def first_active(targets: Tensor) -> Tensor:
    """Psi of Eq. 7: (batch, frames, speakers) -> (batch, speakers), the first active frame; if none, their number."""
    first = targets.sign().argmax(dim=1)  # of equals the first
    speaks = targets.gather(1, first[:, None])[:, 0] != 0
    return first.where(speaks, targets.shape[1])


def permute_speakers(targets: Tensor, permutation: Tensor) -> Tensor:
    """Y_pi, whose column k is column pi(k). (batch, frames, speakers), (batch, speakers) -> the shape of the targets"""
    return targets.gather(2, permutation[:, None].expand_as(targets))


def pair_affinity(logits: Tensor, targets: Tensor) -> Tensor:
    """A = Y^T Z: (batch, frames, speakers) both -> (batch, targets, outputs). No gradient."""
    logits = _full_precision(logits.detach())
    return _product(targets.to(logits.dtype).transpose(1, 2), logits)


def best_permutation(affinity: Tensor) -> Tensor:
    """Return the pairing with the largest total: (batch, targets, outputs) -> (batch, outputs), the target of each
    output."""
    n_speakers = affinity.shape[1]
    if n_speakers > MAX_ENUMERATED:
        from scipy.optimize import linear_sum_assignment  # noqa: PLC0415 - slow to import, rarely needed

        # The solver refuses NaN; any permutation serves here, and the loss is NaN for the caller to see.
        matrices = affinity.transpose(1, 2).nan_to_num().cpu().numpy()
        targets = np.stack([linear_sum_assignment(matrix, maximize=True)[1] for matrix in matrices])
        return torch.as_tensor(targets, device=affinity.device)
    permutations, pairs = _permutations(n_speakers)
    totals = _product(affinity.flatten(1), torch.as_tensor(pairs, dtype=affinity.dtype, device=affinity.device))
    best = totals.argmax(dim=1)  # of equals the first, which may be the identity
    return torch.as_tensor(permutations, device=affinity.device)[best]


@cache
def _permutations(n: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Return all permutations, (n!, n), the identity first; and (n n, n!), 1 where one pairs (target, output)."""
    permutations = np.array(list(itertools.permutations(range(n))))
    pairs = np.zeros((n, n, len(permutations)), np.float32)
    pairs[permutations.T, np.arange(n)[:, None], np.arange(len(permutations))] = 1
    return permutations, pairs.reshape(n * n, -1)


def share_in_order(best: Tensor, present: Tensor) -> Tensor:
    """Return the share of samples with each output k paired with the k-th speaker to arrive; (batch, speakers) both.

    Absent speakers, the last ones, are alike: their pairing does not count.
    """
    identity = torch.arange(best.shape[1], device=best.device)
    return ((best == identity) | ~present).all(dim=1).float().mean()


# ---------------------------------------------------------------------------------------------------------------------
# Cross-entropy


def cross_entropy(logits: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
    """BCE(Y, P), in float32 at least: a weighted sum, or without weights the mean. -> a scalar"""
    logits = _full_precision(logits)
    targets = targets.to(logits.dtype)
    if weights is None:
        return functional.binary_cross_entropy_with_logits(logits, targets)
    weights = weights.to(logits.dtype)
    return functional.binary_cross_entropy_with_logits(logits, targets, weights, reduction="sum")


def mean_weights(logits: Tensor, lengths: Tensor | None, used: Tensor | None = None) -> Tensor | None:
    """Weights that make a sum over (batch, frames, speakers) the mean over the valid frames and the speakers of each
    sample, then over the batch; only over the outputs `used`, (batch, speakers), if given. None: the plain mean."""
    valid = valid_frames(lengths, logits.shape[1])
    if valid is None and used is None:
        return None
    everything = torch.ones_like(logits[:1], dtype=torch.bool)
    valid = everything[:, :, 0] if valid is None else valid
    used = everything[:, 0] if used is None else used
    frame_share, speaker_share = (mask / mask.sum(dim=1, keepdim=True).clamp(min=1) for mask in (valid, used))
    return frame_share[:, :, None] * speaker_share[:, None] / len(logits)


def silence_padding(targets: Tensor, lengths: Tensor | None) -> Tensor:
    """Return the targets, (batch, frames, speakers), as floating-point numbers, 0 on padding."""
    targets = targets if targets.is_floating_point() else targets.float()
    valid = valid_frames(lengths, targets.shape[1])
    return targets if valid is None else targets * valid[:, :, None]


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b, under autocast too with all digits: of two close permutations the worse might win."""
    if not torch.is_autocast_enabled(a.device.type):
        return a @ b
    with torch.autocast(a.device.type, enabled=False):
        return a @ b


def _full_precision(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _require_same_shape(logits: Tensor, targets: Tensor) -> None:
    if logits.shape != targets.shape:
        raise ValueError(f"logits of shape {tuple(logits.shape)} do not fit targets of shape {tuple(targets.shape)}")


# ---------------------------------------------------------------------------------------------------------------------
# The speaker vectors that EEND-VC learns beside diarization: one for each speaker of the training data
#
#     L_vector = -log softmax_s(-alpha ||v_k - u_s||^2),  v_k and u_s of length 1
#
# v_k is the vector of output k of a chunk, and s the speaker that PIL pairs with it (`models/eend_vc.py`). After
# training the dictionary is thrown away: new voices are distinguished by the distance of their vectors.

VECTOR_WEIGHT = 0.03  # lambda: of this loss; diarization has 1 - lambda


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
