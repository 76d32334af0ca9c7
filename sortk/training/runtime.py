"""The paper's figures about run time, measured on this machine with random weights.

- Section 5.1.3: what Sort Loss and the hybrid loss add to a training step with PIL. The losses are timed by themselves,
  because they take less than the spread of a step.
- Section 5.4.3: what Sortformer's supervision adds to the transcription of a batch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from sortk.models.canary import SIZES as ASR_SIZES
from sortk.models.decoding import DecodingOptions, search
from sortk.models.frames import SAMPLE_RATE
from sortk.models.msasr import MsAsr, MsAsrOptions
from sortk.models.sortformer import SIZES as DIARIZER_SIZES
from sortk.models.sortformer import Sortformer
from sortk.training.losses import hybrid_loss, pil_loss, sort_loss

log = logging.getLogger(__name__)

STEP_SECONDS = 90  # of a training sample, as in the paper; one instead of four, so that it fits into memory
CLIP_SECONDS, N_CLIPS, N_TOKENS = 12, 4, 60  # of a batch to transcribe; 3-mixtures of LibriSpeechMix last about 16 s
NEVER = 1  # a token that is never the likeliest: every text has N_TOKENS


def measure_runtime(size: Literal["tiny", "base"]) -> list[tuple[str, float, float]]:
    """Return what takes longer, by how many per cent, and the paper's number.

    The models have that size: base is the paper's (123M and about 170M), and takes some minutes.
    """
    log.info("measuring run times with models of size %s", size)
    torch.manual_seed(0)
    diarizer = Sortformer(DIARIZER_SIZES[size]).train()
    samples = 0.1 * torch.randn(1, STEP_SECONDS * SAMPLE_RATE)
    targets = (torch.rand_like(diarizer(samples).logits.detach()) < 0.3).float()
    step = fastest_seconds(lambda: torch.autograd.backward(pil_loss(diarizer(samples).logits, targets)), 2)
    logits = torch.randn_like(targets).requires_grad_()

    def time_loss(loss: Callable[[Tensor, Tensor], Tensor]) -> float:
        return fastest_seconds(lambda: torch.autograd.backward(loss(logits, targets)), 50)

    pil, sort = time_loss(pil_loss), time_loss(sort_loss)
    hybrid = time_loss(lambda logits, targets: hybrid_loss(logits, targets).total)
    alone, supervised = (_time_transcription(size, supervision) for supervision in ("none", "frozen"))
    return [
        ("a training step with Sort Loss, relative to PIL", 100 * (sort - pil) / step, 0.22),
        ("a training step with the hybrid loss, relative to PIL", 100 * (hybrid - pil) / step, 2.26),
        ("transcription with Sortformer, relative to the ASR alone", 100 * (supervised / alone - 1), 0.78),
    ]


@torch.inference_mode()
def _time_transcription(size: Literal["tiny", "base"], supervision: Literal["none", "frozen"]) -> float:
    asr = ASR_SIZES["tiny" if size == "tiny" else "180m-flash"]
    model = MsAsr(MsAsrOptions(asr, supervision, 4, None if supervision == "none" else DIARIZER_SIZES[size])).eval()
    model.asr.decoder.bias.data[NEVER] = -1e9
    samples = 0.1 * torch.randn(N_CLIPS, CLIP_SECONDS * SAMPLE_RATE)

    def transcribe() -> None:
        states, _ = model.encode(samples)
        steps = model.asr.decoder.start(states, beam=1, max_tokens=N_TOKENS + 1)
        search(steps, [0], NEVER, [N_TOKENS] * N_CLIPS, DecodingOptions(max_repeats=N_TOKENS))

    return fastest_seconds(transcribe, 3)


def fastest_seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """Return the processor time of the fastest of several runs: whatever else the machine does only adds."""
    spent = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        spent.append(time.process_time() - began)
    return min(spent)
