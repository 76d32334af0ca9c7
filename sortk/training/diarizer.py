"""Stage 5's task: a diarizer learns who speaks when, and in which order they arrived."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from sortk.models.diarizer import DiarizerModel
from sortk.models.frames import SpeakerOutput, valid_frames
from sortk.training.batches import Batch, BatchLoader
from sortk.training.losses import arrival_order, best_permutation, diarization_loss, permute_speakers, share_in_order
from sortk.training.processes import current_processes, sum_numbers
from sortk.training.targets import NOBODY

THRESHOLD = 0.5  # above it a speaker speaks; tuning it is stage 7's business
COSINE_SCALE = 20.0  # of the logits of the speaker classifier


class DiarizerTask(nn.Module):
    """A diarizer of `models`, its loss and its validation.

    Without a pretrained encoder (NEST in the paper) a model must first learn to tell voices apart. For that the frames
    of the encoder can be made to name the speaker among all those of the training data, wherever one speaks alone: as
    the only task for a while (`identify`), and then beside diarization, with `speaker_weight` that falls to 0.
    """

    def __init__(self, model: DiarizerModel, alpha: float, validation: BatchLoader, n_identities: int = 0) -> None:
        super().__init__()
        self.model, self.alpha, self.validation = model, alpha, validation
        self.identities = nn.Parameter(torch.randn(n_identities, model.embedding_size)) if n_identities else None
        self.identify, self.speaker_weight, self.progress = False, 0.0, 0.0

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a batch, and what to log about it."""
        output: SpeakerOutput = self.model(batch.samples, batch.lengths)
        about = {}
        if self.identities is not None and (self.identify or self.speaker_weight > 0):
            speaker_loss, about["speaker_right"] = identify_frames(output.embeddings, self.identities, batch.speakers)
            about["speaker"] = speaker_loss.detach()
            if self.identify:
                return speaker_loss, about
        loss = diarization_loss(output, batch.targets, self.alpha)
        about |= {"sort": loss.sort, "pil": loss.pil, "order_right": loss.order_right}
        if "speaker" in about:
            return loss.total + (1 - self.progress) * self.speaker_weight * speaker_loss, about
        return loss.total, about

    def validate(self, device: torch.device) -> dict[str, float]:
        """DER with the best mapping, DER with the order of arrival taken at its word, and how often the order is right.

        Both count frames of 80 ms without a collar, at threshold 0.5.
        """
        total = FrameErrors()
        processes = current_processes()
        for cpu_batch in self.validation.load_part(processes.rank, processes.n):
            batch = cpu_batch.to(device)
            output: SpeakerOutput = self.model(batch.samples, batch.lengths)
            total += count_errors(output, batch.targets)
        total = FrameErrors(**sum_numbers(asdict(total), device))
        right = total.n_order_right / max(total.n_sessions, 1.0)
        return {"score": total.der, "der": total.der, "der_as_is": total.der_as_is, "order_right": right}


def identify_frames(embeddings: Tensor, identities: Tensor, speakers: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine softmax over all speakers of the training data, of the frames in which one speaks alone.

    (batch, frames, d), (identities, d), (batch, frames) -> cross-entropy, and the share of frames that are right:
    means over the frames of each sample, then over the batch.
    """
    known = speakers != NOBODY
    weights = (known / known.sum(dim=1, keepdim=True).clamp(min=1) / len(known))[known]
    embeddings, speakers = functional.normalize(embeddings[known].float(), dim=1), speakers[known]
    logits = COSINE_SCALE * embeddings @ functional.normalize(identities, dim=1).T
    loss = functional.cross_entropy(logits, speakers, reduction="none") @ weights
    return loss, (logits.argmax(dim=1) == speakers).float() @ weights


@dataclass(frozen=True)
class FrameErrors:
    """Counts that add up over sessions."""

    spoken: float = 0.0  # speaker frames in the reference
    wrong: float = 0.0  # missed, false or confused, with the best mapping
    wrong_as_is: float = 0.0  # with output k taken for the k-th speaker to arrive
    n_sessions: float = 0.0
    n_order_right: float = 0.0

    def __add__(self, other: FrameErrors) -> FrameErrors:
        return FrameErrors(
            self.spoken + other.spoken,
            self.wrong + other.wrong,
            self.wrong_as_is + other.wrong_as_is,
            self.n_sessions + other.n_sessions,
            self.n_order_right + other.n_order_right,
        )

    @property
    def der(self) -> float:
        return self.wrong / max(self.spoken, 1.0)

    @property
    def der_as_is(self) -> float:
        return self.wrong_as_is / max(self.spoken, 1.0)


def count_errors(output: SpeakerOutput, targets: Tensor) -> FrameErrors:
    """Of a batch; targets are (batch, frames, speakers)."""
    decided = (output.speaker_probs > THRESHOLD).float()
    ordered = permute_speakers(targets, arrival_order(targets, output.lengths))
    valid = valid_frames(output.lengths, targets.shape[1])
    if valid is not None:
        ordered = ordered * valid[:, :, None]
    best = best_permutation(ordered.transpose(1, 2) @ decided)  # the mapping with the most frames in common
    n_right = share_in_order(best, (ordered != 0).any(dim=1)) * len(targets)
    return FrameErrors(
        spoken=float(ordered.sum()),
        wrong=_count_wrong(permute_speakers(ordered, best), decided),
        wrong_as_is=_count_wrong(ordered, decided),
        n_sessions=float(len(targets)),
        n_order_right=float(n_right),
    )


def _count_wrong(reference: Tensor, decided: Tensor) -> float:
    """max(speakers there, speakers found) - those found rightly, summed over frames: NIST's DER."""
    n_reference, n_decided, n_right = reference.sum(2), decided.sum(2), (reference * decided).sum(2)
    return float((torch.maximum(n_reference, n_decided) - n_right).sum())
