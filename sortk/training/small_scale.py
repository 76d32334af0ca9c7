"""Not the paper's: what models need that start from random weights and learn for minutes on little data.

The paper starts from pretrained models (NEST, Canary), which already distinguish voices and know words. Without them:

    encoder warm-up     the encoder first learns to name the speakers of the training data, frame by frame
    teacher             what stands for a speaker is another model's embedding of the voice, not a learned vector
    speaker_weight      this continues beside diarization, with a weight that changes to final_speaker_weight
    layer_weight        the lower layers of the Transformer learn to diarize, too
    start_by_comparing  new attention first compares frames
    word_weight         the states of the ASR also name the token that is spoken in each frame
    alignment_weight    attention in the upper layers of its decoder looks at the word that comes next

All are off by default, as are Muon (`optimizer.py`) and the scaling of speaker kernels (`kernel_scale`, `keep_norm`).
"""

from __future__ import annotations

import logging
import math
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sortk.formats.annotation import prefer_rttm, recorded_segments
from sortk.formats.files import FormatError
from sortk.models.diarizer import DiarizerModel
from sortk.models.fastconformer import RelativeAttention
from sortk.models.transformer import SelfAttention
from sortk.prepare.pieces import SpeakerIndex
from sortk.prepare.simulate import name_voice
from sortk.records import Session
from sortk.training.data import Batch
from sortk.training.targets import NO_SPAN, NO_SPEAKER

log = logging.getLogger(__name__)

COSINE_SCALE = 20.0  # of the logits of the speaker classifier
FIT_BATCHES = 100  # on which `fit_identities` looks at a model
FIT_RIDGE = 1.0
MAX_TEACHER_BYTES = 1 << 30
COMPARING_SCALE = 1.5  # of queries and keys, so that the resemblance of frames decides from the start


def number_voices(
    sessions: Sequence[Session], speakers: Sequence[SpeakerIndex], speeds: Iterable[float]
) -> dict[str, int]:
    """Return a number for every speaker of the training data, and for each one played at another speed."""
    names = {segment.speaker for session in sessions for segment in recorded_segments(prefer_rttm(session))}
    names |= {name_voice(speaker.speaker, speed) for speaker in speakers for speed in {1.0, *speeds}}
    return {name: number for number, name in enumerate(sorted(names))}


def read_teacher(path: Path, names: Iterable[str]) -> tuple[Tensor, dict[str, int]]:
    """Return (voices, d) embeddings by a teacher, less their mean and with norm 1, and the row of each voice.

    Voices that the file does not have stay without a number, and frames are not trained to name them.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            n_bytes = sum(member.file_size for member in archive.infolist())
        if n_bytes > MAX_TEACHER_BYTES:
            raise ValueError(f"it unpacks to {n_bytes} bytes")
        with np.load(path, allow_pickle=False) as content:
            voices, values = content["voices"], content["vectors"]
        vectors = dict(zip(voices.tolist(), values.astype(np.float32), strict=True))
        if values.ndim != 2 or not np.isfinite(values).all():
            raise ValueError("vectors must be rows of finite numbers")
    except OSError:
        raise
    except Exception as error:  # on arbitrary bytes the reader can fail in any way
        raise FormatError(path, None, f"not a file of recipes/small/teacher.py ({error})") from None
    names = list(names)
    known = [name for name in names if name in vectors]
    if not known:
        raise FormatError(path, None, "it has no embedding of any voice of the training data")
    log.info("%s: embeddings of %d of %d voices", path, len(known), len(names))
    own = torch.from_numpy(np.stack([vectors[name] for name in known]))
    return functional.normalize(own - own.mean(dim=0), dim=1), {name: row for row, name in enumerate(known)}


def speaker_loss(embeddings: Tensor, identities: Tensor, speakers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cosine softmax over all speakers of the training data, for the frames in which one speaks alone.

    (batch, frames, d), (identities, d), (batch, frames) -> cross-entropy, the share of frames that are right, and the
    cosine of a frame and its speaker: means over the frames of each sample, then over the batch.
    """
    known = speakers != NO_SPEAKER
    weights = (known / known.sum(dim=1, keepdim=True).clamp(min=1) / len(known))[known]
    embeddings, speakers = functional.normalize(embeddings[known].float(), dim=1), speakers[known]
    logits = COSINE_SCALE * embeddings @ functional.normalize(identities, dim=1).T
    loss = functional.cross_entropy(logits, speakers, reduction="none") @ weights
    own = logits.gather(1, speakers[:, None])[:, 0] / COSINE_SCALE
    return loss, (logits.argmax(dim=1) == speakers).float() @ weights, own @ weights


@torch.inference_mode()
def fit_identities(model: DiarizerModel, teacher: Tensor, batches: Iterable[Batch]) -> Tensor:
    """Return W (teacher's d, d) that brings the teacher's vectors T W closest to a trained model's own embeddings.

    With E the mean embedding of each voice in the batches, W = (T^T T + r I)^-1 T^T E. Without it, a model that is
    trained further would first have to turn to the directions of a random W.
    """
    model.eval()
    sums = teacher.new_zeros(len(teacher), model.embedding_size)
    for batch in batches:
        known = batch.speakers != NO_SPEAKER
        embeddings = functional.normalize(model.embed(batch.samples, batch.lengths)[known].float(), dim=1)
        sums.index_add_(0, batch.speakers[known], embeddings)
    met = sums.any(dim=1)
    vectors, means = teacher[met], functional.normalize(sums[met], dim=1)
    ridge = FIT_RIDGE * torch.eye(teacher.shape[1]).to(teacher)
    fitted: Tensor = torch.linalg.solve(vectors.T @ vectors + ridge, vectors.T @ means)
    return fitted


@torch.no_grad()
def start_by_comparing(model: nn.Module) -> None:
    """Give new attention equal queries and keys: it attends to frames that resemble the one that asks.

    On top of frames that distinguish voices, that is a first guess of who speaks, from which sorting is learned sooner.
    """
    for part in model.modules():
        if isinstance(part, SelfAttention):
            query, key = part.query, part.key
        elif isinstance(part, RelativeAttention):
            query, key = part.linear_q, part.linear_k
        else:
            continue
        query.weight.mul_(COMPARING_SCALE)
        key.load_state_dict(query.state_dict())


def build_token_head(d_model: int, n_tokens: int) -> nn.Module:
    """Return the layer that names, from a state of the ASR, the token that is spoken in its frame."""
    return nn.Sequential(nn.LayerNorm(d_model), nn.Linear(d_model, n_tokens))


def alignment_losses(attention: Tensor, spans: Tensor) -> Tensor:
    """-log of the share of attention that is on the frames of a token, or a frame before or after: (batch, n).

    `attention` is (batch, n, frames), log-probabilities; `spans` (batch, n, 2), where NO_SPAN has a loss of 0.
    """
    frames = torch.arange(attention.shape[2], device=attention.device)
    is_unknown = spans[:, :, :1] == NO_SPAN
    is_inside = (frames >= spans[:, :, :1] - 1) & (frames <= spans[:, :, 1:])
    return -attention.masked_fill(~(is_inside | is_unknown), -math.inf).logsumexp(dim=2)
