"""What learns, by which rule and how fast."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from sortk.training.muon import Muon
from sortk.training.options import LoopOptions


def learning_rate(step: int, options: LoopOptions) -> float:
    """Of the step-th update, counted from 0: a linear rise over the warm-up, then down to the minimum.

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
        return Muon(module, options.learning_rate, options.weight_decay)
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    return torch.optim.AdamW(weights, lr=options.learning_rate, weight_decay=options.weight_decay)


def freeze_parts(model: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    """Only the other parts of the model learn; returns those that do not."""
    parts = dict(model.named_modules())
    for name in names:
        if name not in parts:
            known = ", ".join(child for child, _ in model.named_children())
            raise ValueError(f"freeze: the model has no part {name!r}; its parts are {known}")
    for weight_name, weight in model.named_parameters():
        weight.requires_grad_(not any(weight_name.startswith(f"{name}.") for name in names))
    return [parts[name] for name in names]
