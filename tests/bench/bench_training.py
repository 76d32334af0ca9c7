"""How fast the diarizer trains, on one core.

base    a whole step on 4 x 30 s: audio seconds per second, against NVIDIA's step and against the machine's rate of
        multiplying matrices in the same run; and what the losses add to it
data    conversations on the fly, against what the tiny model consumes
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from bench_simulate import find_sources
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from sortk.models.frames import SAMPLE_RATE
from sortk.models.sortformer import SIZES, Sortformer
from sortk.prepare.simulate import SimulateOptions, Simulator, index_sources
from sortk.training.data import BatchLoader, SimulatedSource
from sortk.training.losses import hybrid_loss, pil_loss, sort_loss
from sortk.training.options import BatchLimit
from sortk.training.targets import DiarizerLabels

N_CLIPS, SECONDS = 4, 30
NEMO_STEP_SECONDS, NEMO_GEMM_RATE = 24.0, 125e9  # FACTS.md: measured on one machine, one thread
MIN_DATA_RATIO = 10
MAX_SORT_SHARE, MAX_HYBRID_SHARE = 0.002, 0.005


def fastest_seconds(work: Callable[[], object], repeats: int) -> float:
    """What else runs on the machine only adds."""
    fastest = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        fastest = min(fastest, time.perf_counter() - began)
    return fastest


def measure_gemm_rate() -> float:
    """Floating-point operations per second of a product as large as those of the model."""
    a, b = torch.randn(1125, 512), torch.randn(512, 2048)
    return 2 * 1125 * 512 * 2048 / fastest_seconds(lambda: a @ b, 50)


class Step:
    """A training step of a diarizer on random sound."""

    def __init__(self, size: str, n_clips: int, seconds: float) -> None:
        self.model = Sortformer(SIZES[size]).train()
        self.samples = 0.1 * torch.randn(n_clips, int(seconds * SAMPLE_RATE))
        n_frames = self.model(self.samples).logits.shape[1]
        self.targets = (torch.rand(n_clips, n_frames, 4) < 0.3).float()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    def compute_loss(self) -> Tensor:
        return hybrid_loss(self.model(self.samples).logits, self.targets).total

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        self.compute_loss().backward()
        self.optimizer.step()


def bench_base() -> None:
    step = Step("base", N_CLIPS, SECONDS)
    with FlopCounterMode(display=False) as counter:
        step()
    seconds, gemm_rate = fastest_seconds(step, 2), measure_gemm_rate()
    rate = counter.get_total_flops() / seconds
    # NVIDIA's step was timed on another day: compared as if this machine were as fast as that one was.
    nemo_seconds = NEMO_STEP_SECONDS * NEMO_GEMM_RATE / gemm_rate
    print(
        f"base, {N_CLIPS} x {SECONDS} s: {seconds:.1f} s a step, {N_CLIPS * SECONDS / seconds:.1f} audio s/s; "
        f"{rate / 1e9:.0f} of {gemm_rate / 1e9:.0f} GFLOP/s = {rate / gemm_rate:.0%}; "
        f"{nemo_seconds / seconds:.1f} x NeMo's"
    )
    logits = torch.randn_like(step.targets).requires_grad_()

    def compute(loss: Callable[[Tensor, Tensor], Tensor]) -> float:
        return fastest_seconds(lambda: loss(logits, step.targets).backward(), 50) / seconds

    pil, sort = compute(pil_loss), compute(sort_loss)
    hybrid = compute(lambda logits, targets: hybrid_loss(logits, targets).total)
    print(f"of that the losses: PIL {pil:.3%}, Sort {sort:.3%}, hybrid {hybrid:.3%}")
    for name, share, paper in (("Sort", sort, "0.22"), ("hybrid", hybrid, "2.26")):
        print(f"a step with {name} instead of PIL: {share - pil:+.3%}; paper, an epoch on 64 GPUs: +{paper} %")
    assert sort < MAX_SORT_SHARE and hybrid < MAX_HYBRID_SHARE


def bench_data() -> None:
    n_batches, batch_seconds = 40, 120.0
    options = SimulateOptions(seconds=30)
    with tempfile.TemporaryDirectory() as name:
        speakers = index_sources(find_sources(Path(name)), Path(name), options.sample_rate, map)
        source = SimulatedSource(Simulator(speakers, options, 0, "bench"), 4 * n_batches, DiarizerLabels(4))
        loader = BatchLoader([source], BatchLimit(seconds=batch_seconds), 0)
        list(loader.load_epoch(0))  # decodes what it needs, once
        began = time.perf_counter()
        loaded = sum(batch.seconds for batch in loader.load_epoch(1))
        rate = loaded / (time.perf_counter() - began)
    step = Step("tiny", 4, 30)
    step()
    consumed = batch_seconds / fastest_seconds(step, 5)
    print(f"tiny consumes {consumed:.0f} audio s/s, the data side delivers {rate:.0f}: {rate / consumed:.0f} x")
    assert rate >= MIN_DATA_RATIO * consumed


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    bench_data()
    bench_base()


if __name__ == "__main__":
    main()
