"""Training checkpoints: safetensors, nothing that could run code when it is read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from sortk.formats.model_folder import load_tensors, save_tensors


@dataclass
class Progress:
    """Where a training run stands; with the states below, all that it needs to go on as if it had never stopped."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # of the epoch, the next one
    validations_since_best: int = 0
    best_score: float | None = None
    scaler: dict[str, Any] = field(default_factory=dict)  # of half precision: what gradients are multiplied by


class Checkpoints:
    """The checkpoints of one run: the latest for going on, and the weights of the best for the end."""

    def __init__(self, folder: Path, keep_best: int) -> None:
        self.folder, self.keep_best = folder, keep_best

    def save(self, progress: Progress, model: nn.Module, optimizer: torch.optim.Optimizer, writes: bool = True) -> None:
        """One file, which replaces the one before it when it is whole. It does not tell how many processes there were.

        All processes must call this, for each may have a part of a tensor; one of them `writes`.
        """
        tensors = {f"model.{name}": whole(tensor) for name, tensor in model.state_dict().items()}
        for index, state in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": whole(torch.as_tensor(value)) for name, value in state.items()}
        if not writes:
            return
        save_tensors(self.folder / "last.safetensors", tensors, {"progress": json.dumps(vars(progress))})

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
        """Puts everything back to where the last checkpoint was taken; a new run starts from nothing."""
        path = self.folder / "last.safetensors"
        if not path.exists():
            return Progress()
        tensors = load_tensors(path)
        with safe_open(path, framework="pt") as file:
            progress = Progress(**json.loads(file.metadata()["progress"]))
        now = model.state_dict()
        model.load_state_dict({name: spread(t, now[name]) for name, t in _with_prefix(tensors, "model.").items()})
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in _with_prefix(tensors, "optimizer.").items():
            index, _, key = name.partition(".")
            state.setdefault(int(index), {})[key] = spread(tensor, weights[int(index)])
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        return progress

    def keep(self, step: int, score: float, model: nn.Module) -> None:
        """Keeps these weights if they are among the best (lowest scores), and drops those that no longer are."""
        save_tensors(self.folder / "best" / f"{score:.6f}-{step:08d}.safetensors", model.state_dict())
        for path in self.best()[self.keep_best :]:
            path.unlink()

    def best(self) -> list[Path]:
        """The kept weights, the best first."""
        return sorted((self.folder / "best").glob("[!.]*.safetensors"), key=lambda path: path.name)

    def average_best(self) -> dict[str, Tensor]:
        """The mean of the best weights, which is better than any of them."""
        return average([load_tensors(path) for path in self.best()])


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, of which each process may have a part."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def spread(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor over the processes as another one of its shape is; a number, such as a count of steps, stays."""
    if not isinstance(like, DTensor) or tensor.shape != like.shape:
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)


def average(models: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of each tensor; counters (whole numbers) are the first model's."""
    first, *others = models
    return {
        name: torch.stack([tensor, *(other[name] for other in others)]).mean(dim=0)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in first.items()
    }


def _with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
