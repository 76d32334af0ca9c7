"""What learns, by which rule and how fast: learning rates, AdamW, Muon, frozen parts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from sortk.training.options import LoopOptions


def learning_rate(step: int, options: LoopOptions) -> float:
    """Return the rate of an update, counted from 0: a linear rise over the warm-up, then down to the minimum.

    inverse_sqrt   peak sqrt(warmup / step): the paper's, which does not know where it ends
    cosine         half a cosine from the peak to the minimum at the last step: better for short runs
    """
    peak, minimum, warmup = options.learning_rate, options.min_learning_rate, options.warmup_steps
    if step < warmup:
        return max(minimum, peak * (step + 1) / warmup)
    if options.annealing == "inverse_sqrt":
        return max(minimum, peak * math.sqrt(max(warmup, 1) / (step + 1)))
    progress = min(1.0, (step - warmup) / max(1, options.steps - warmup))
    return minimum + (peak - minimum) * (1 + math.cos(math.pi * progress)) / 2


def build_optimizer(module: nn.Module, options: LoopOptions) -> torch.optim.Optimizer:
    if options.optimizer == "muon":
        dtype = torch.bfloat16 if options.precision == "bfloat16" else torch.float32
        return Muon(module, options.learning_rate, options.weight_decay, dtype)
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    return torch.optim.AdamW(weights, lr=options.learning_rate, weight_decay=options.weight_decay)


def freeze_parts(model: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    """Freeze the parts of a model with these names, and return them; the others learn."""
    parts = dict(model.named_modules())
    for name in names:
        if name not in parts:
            known = ", ".join(child for child, _ in model.named_children())
            raise ValueError(f"freeze: the model has no part {name!r}; its parts are {known}")
    for weight_name, weight in model.named_parameters():
        weight.requires_grad_(not any(weight_name.startswith(f"{name}.") for name in names))
    return [parts[name] for name in names]


# ---------------------------------------------------------------------------------------------------------------------
# Muon (Jordan et al. 2024): the momentum of a weight matrix is made orthogonal before it becomes an update
#
# Not the paper's: it is for small models that start from random weights. An update of AdamW is dominated by a few
# directions. With U S V^T the momentum, Muon takes U V^T: every direction counts the same, and small models learned in
# fewer steps here. It is for matrices inside layers; all other weights are updated by AdamW.
#
# torch has a Muon, too. It always rounds to bfloat16, which many CPUs have to emulate: a whole step takes four times as
# long. Here, the precision of the training decides.

MOMENTUM = 0.95
BETAS, EPSILON = (0.9, 0.999), 1e-8  # of AdamW
RMS_RATIO = 0.6  # of an update's root mean square to AdamW's, which is about the learning rate

# An odd polynomial a x + b x^3 + c x^5, five times, takes every singular value in (0, 1] to about 1 (0.7 to 1.2).
A, B, C = 3.4445, -4.7750, 2.0315
N_ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Muon for the matrices of linear layers that are stacked (in `layers`), AdamW for the rest of a model."""

    def __init__(
        self, model: nn.Module, learning_rate: float, weight_decay: float, dtype: torch.dtype = torch.float32
    ) -> None:
        self.dtype = dtype  # in which momenta are made orthogonal
        matrices = {id(weight) for weight in stacked_matrices(model)}
        learning = [weight for weight in model.parameters() if weight.requires_grad]
        groups = [
            {"params": [weight for weight in learning if id(weight) in matrices], "orthogonal": True},
            {"params": [weight for weight in learning if id(weight) not in matrices], "orthogonal": False},
        ]
        super().__init__([group for group in groups if group["params"]], {"lr": learning_rate, "decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            update = self._update_matrices if group["orthogonal"] else self._update_others
            update(weights, group["lr"], group["decay"])

    def _update_matrices(self, weights: list[Tensor], rate: float, decay: float) -> None:
        by_shape: dict[torch.Size, list[Tensor]] = {}
        for weight in weights:
            by_shape.setdefault(weight.shape, []).append(weight)
        for shape, alike in by_shape.items():
            momenta = torch.stack([self._momentum(weight) for weight in alike])
            directions = orthogonalize(momenta.to(self.dtype)).to(momenta)
            # An orthogonal matrix has a root mean square of 1 / sqrt(its longer side).
            scale = rate * RMS_RATIO * max(shape) ** 0.5
            for weight, direction in zip(alike, directions, strict=True):
                weight.mul_(1 - rate * decay).add_(direction, alpha=-scale)

    def _momentum(self, weight: Tensor) -> Tensor:
        """Return Nesterov's momentum: a step further than the mean of the gradients so far."""
        state, gradient = self.state[weight], weight.grad
        assert gradient is not None
        if not state:
            state["momentum"] = torch.zeros_like(weight)
        state["momentum"].lerp_(gradient, 1 - MOMENTUM)
        return gradient.lerp(state["momentum"], MOMENTUM)

    def _update_others(self, weights: list[Tensor], rate: float, decay: float) -> None:
        for weight in weights:
            if not self.state[weight]:
                first, second = torch.zeros_like(weight), torch.zeros_like(weight)
                self.state[weight] |= {"step": torch.zeros(()), "exp_avg": first, "exp_avg_sq": second}
        states = [self.state[weight] for weight in weights]
        adamw(
            weights,
            [weight.grad for weight in weights if weight.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            amsgrad=False,
            beta1=BETAS[0],
            beta2=BETAS[1],
            lr=rate,
            weight_decay=decay,
            eps=EPSILON,
            maximize=False,
        )


def stacked_matrices(model: nn.Module) -> Iterable[Tensor]:
    """Yield the weights of the linear layers of every module list called `layers`."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and ".layers." in f".{name}":
            yield module.weight


def orthogonalize(matrices: Tensor) -> Tensor:
    """(n, rows, columns) U S V^T -> about U V^T, of each (Newton-Schulz iteration).

    With the shorter side first and G = X X^T, an iteration is X <- q X, where q = a + b G + c G^2. All q are
    polynomials of the first G, so they commute: G <- q G q, and X itself is needed only once, in the end. For matrices
    that are four times as long as wide, that takes half the time. But rounding makes small eigenvalues of G negative,
    and these grow in each iteration; in bfloat16 they would take over, so there G is computed from X each time.
    """
    rows, columns = matrices.shape[1:]
    x: Tensor = matrices.transpose(1, 2) if rows > columns else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    if x.dtype == torch.bfloat16 or max(rows, columns) < 2 * min(rows, columns):
        for _ in range(N_ITERATIONS):
            gram = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=B, alpha=C), x, beta=A)
    else:
        gram = x @ x.mT
        product = factor = _factor(gram)
        for _ in range(N_ITERATIONS - 1):
            gram = factor @ gram @ factor
            factor = _factor(gram)
            product = factor @ product
        x = product @ x
    return x.transpose(1, 2) if rows > columns else x


def _factor(gram: Tensor) -> Tensor:
    """q: (n, side, side) -> (n, side, side)."""
    factor = torch.baddbmm(gram, gram, gram, beta=B, alpha=C)
    factor.diagonal(dim1=1, dim2=2).add_(A)
    return factor
