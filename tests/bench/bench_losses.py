"""How long the losses take, forward and backward, on one core: 4 clips of 1125 frames (90 s).

K = 4     against enumerating the K! permuted targets, in the same run
K = 8, 16 where enumeration cannot run
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from sortk.training.losses import hybrid_loss, pil_loss, sort_loss

BATCH, N_FRAMES = 4, 1125
LIMITS_MS = {8: 5.0, 16: 50.0}
MIN_RATIO = 20


def enumerated_pil(logits: Tensor, targets: Tensor) -> Tensor:
    """PIL by its definition: the cross-entropy of every permutation of the targets, and the least of them."""
    permuted = targets[:, :, torch.tensor(list(itertools.permutations(range(targets.shape[2]))))]
    losses = functional.binary_cross_entropy_with_logits(
        logits[:, :, None].expand_as(permuted), permuted, reduction="none"
    )
    return losses.mean(dim=(1, 3)).amin(dim=1).mean()


def milliseconds(loss: Callable[[], Tensor], repeats: int = 50) -> float:
    """Of the fastest forward and backward pass: what else runs on the machine only adds."""
    fastest = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        loss().backward()
        fastest = min(fastest, time.perf_counter() - began)
    return 1000 * fastest


def hybrid_total(logits: Tensor, targets: Tensor, lengths: Tensor | None) -> Tensor:
    return hybrid_loss(logits, targets, lengths).total


def random_batch(n_speakers: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n_speakers)
    logits = torch.randn(BATCH, N_FRAMES, n_speakers, generator=generator).requires_grad_()
    targets = (torch.rand(BATCH, N_FRAMES, n_speakers, generator=generator) < 0.3).float()
    return logits, targets, torch.full((BATCH,), N_FRAMES)


def main() -> None:
    torch.set_num_threads(1)
    logits, targets, lengths = random_batch(4)
    assert torch.isclose(enumerated_pil(logits, targets), pil_loss(logits, targets))
    enumerated, pil = (
        milliseconds(lambda: enumerated_pil(logits, targets)),
        milliseconds(lambda: pil_loss(logits, targets)),
    )
    print(f"PIL, K = 4: {pil:.2f} ms, enumeration {enumerated:.2f} ms: {enumerated / pil:.0f} x")

    print("  K    Sort     PIL  hybrid  hybrid with lengths (ms)")
    for n_speakers in (2, 4, 6, 8, 16, 20):
        logits, targets, lengths = random_batch(n_speakers)
        losses = (
            partial(sort_loss, logits, targets),
            partial(pil_loss, logits, targets),
            partial(hybrid_total, logits, targets, None),
            partial(hybrid_total, logits, targets, lengths),
        )
        times = [milliseconds(loss) for loss in losses]
        print(f"{n_speakers:3d}" + "".join(f"{time:8.2f}" for time in times))
        assert max(times) < LIMITS_MS.get(n_speakers, 50), f"more than {LIMITS_MS[n_speakers]} ms"
    assert enumerated / pil >= MIN_RATIO, f"less than {MIN_RATIO} x faster than enumeration"


if __name__ == "__main__":
    main()
