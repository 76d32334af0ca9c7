"""The paper's claims about time, measured as far as one CPU core allows, with the paper's numbers beside.

Section 5.1.3   with 64 GPUs, an epoch takes 0.22 % longer with Sort Loss than with PIL, 2.26 % with the hybrid loss
Section 5.3     Sortformer adds 0.78 % to the time of MS-Canary on LibriSpeechMix test-3mix (one GPU, batches of 100)

Seconds are CPU time of this process, so other work on the machine hardly matters. The time of a step is that of the
123M model without its loss plus that of each loss: the differences are too small to be measured in the sum.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from sortk.models.canary import SIZES as ASR_SIZES
from sortk.models.canary import Canary, Decoding
from sortk.models.sortformer import SIZES, Sortformer
from sortk.training.losses import hybrid_loss

BATCH, SECONDS, N_SPEAKERS = 2, 30, 4  # the paper has 4 x 90 s, which takes a core more than a minute
PAPER_TRAINING = {"PIL": 0.0, "Sort Loss": 0.22, "hybrid loss": 2.26}  # per cent over PIL
PAPER_INFERENCE = 0.78
N_TOKENS = 40  # of a text of 10 s


def cpu_seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the least CPU time of several runs."""
    fastest = float("inf")
    for _ in range(repeats):
        began = time.process_time()
        work()
        fastest = min(fastest, time.process_time() - began)
    return fastest


def measure_training() -> None:
    torch.manual_seed(0)
    model = Sortformer(SIZES["base"]).train()
    samples = 0.1 * torch.randn(BATCH, SECONDS * 16_000)
    n_frames = SECONDS * 25 // 2
    targets = (torch.rand(BATCH, n_frames, N_SPEAKERS) < 0.3).float()

    def step() -> None:
        model(samples).logits.sum().backward()

    of_model = cpu_seconds(step, 2)
    logits = torch.randn(BATCH, n_frames, N_SPEAKERS, requires_grad=True)
    print(f"training step of the 123M model, {BATCH} x {SECONDS} s: {of_model:.2f} s without the loss")
    losses = {
        name: cpu_seconds(lambda alpha=alpha: hybrid_loss(logits, targets, None, alpha).total.backward(), 20)
        for name, alpha in (("PIL", 0.0), ("Sort Loss", 1.0), ("hybrid loss", 0.5))
    }
    for name, seconds in losses.items():
        overhead = 100 * (seconds - losses["PIL"]) / (of_model + losses["PIL"])
        claim = f"paper {PAPER_TRAINING[name]:+.2f} %"
        print(f"  {name:<12} {1000 * seconds:6.2f} ms, {overhead:+.3f} % of a step over PIL; {claim}")


def measure_inference() -> None:
    torch.manual_seed(0)
    samples = 0.1 * torch.randn(1, 10 * 16_000)
    alone = Canary(ASR_SIZES["180m-flash"]).eval()
    diarizer = Sortformer(SIZES["base"]).eval()
    token = torch.zeros(1, 1, dtype=torch.long)

    @torch.inference_mode()
    def transcribe() -> None:
        frames, lengths = alone.encode(samples)
        decoding = Decoding(alone.decoder, alone.project(frames, lengths), lengths, 1, N_TOKENS)
        for _ in range(N_TOKENS):
            decoding(token)

    @torch.inference_mode()
    def diarize() -> None:
        diarizer(samples)

    of_asr, of_diarizer = cpu_seconds(transcribe, 2), cpu_seconds(diarize, 2)
    print(f"inference, 10 s of audio and {N_TOKENS} tokens: MS-Canary {of_asr:.2f} s, Sortformer {of_diarizer:.2f} s")
    print(f"  supervision adds {100 * of_diarizer / of_asr:.1f} % on one core; paper {PAPER_INFERENCE} % on a GPU")
    print(
        "  On a GPU, most of the time is spent on decoding one token after the other, which a core does not feel as much."
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    measure_training()
    measure_inference()
