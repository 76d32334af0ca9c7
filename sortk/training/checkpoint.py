"""Training checkpoints: safetensors, nothing that could run code when it is read."""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from sortk.formats.files import FormatError
from sortk.formats.model_folder import load_tensors, save_tensors
from sortk.training.processes import current_processes, wait_for_all

log = logging.getLogger(__name__)

States = tuple[dict[str, Tensor], "TrainingProgress"]


@dataclass
class TrainingProgress:
    """How far a training run is; with the states of model and optimiser, all that it needs to resume exactly."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # of the epoch, the next one
    validations_since_best: int = 0
    best_score: float | None = None
    scaler: dict[str, Any] = field(default_factory=dict)  # of half precision: what gradients are multiplied by
    bad_updates: int = 0  # the last ones in a row that were skipped
    mean_loss: float | None = None  # over the last updates, roughly
    threads: int = 0  # that compute a step: another number changes the last bits; 0: not chosen yet

    def note_score(self, score: float) -> None:
        """Count the validations since the best one."""
        if self.best_score is None or score < self.best_score:
            self.best_score, self.validations_since_best = score, 0
        else:
            self.validations_since_best += 1


class Checkpoints:
    """The checkpoints of one run: the latest two to resume from, and the weights of the best for the end.

    The last one replaces the one before it when it is complete; between two renames it is `next`. A damaged one (a disk
    may lose what it has promised) is detected by its checksum, and the one before it is used.
    """

    def __init__(self, folder: Path, keep_best: int) -> None:
        self.folder, self.keep_best = folder, keep_best
        self._next, self._last, self._before = (
            folder / f"{name}.safetensors" for name in ("next", "last", "before-last")
        )
        self._is_last_damaged = False

    def save(
        self, progress: TrainingProgress, model: nn.Module, optimizer: torch.optim.Optimizer, writes: bool = True
    ) -> None:
        """Write one file, which does not depend on the number of processes.

        All processes must call this, for each may have a part of a tensor; one of them `writes`.
        """
        tensors = {f"model.{name}": full_tensor(tensor) for name, tensor in model.state_dict().items()}
        for index, state in optimizer.state_dict()["state"].items():
            tensors |= {
                f"optimizer.{index}.{name}": full_tensor(torch.as_tensor(value)) for name, value in state.items()
            }
        if not writes:
            return
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        about = {"progress": json.dumps(vars(progress)), "crc32": _checksum(tensors)}
        save_tensors(self._next, tensors, about)
        self._promote()

    def _promote(self) -> None:
        """Make the next checkpoint the last one, and that the one before it."""
        if self._last.exists() and not self._is_last_damaged:
            self._last.replace(self._before)
        self._next.replace(self._last)
        self._is_last_damaged = False

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> TrainingProgress:
        """Put everything back to where the last checkpoint was taken; a new run starts at step 0."""
        states = self._load_newest()
        if states is None:
            return TrainingProgress()
        path, tensors, progress = states
        wait_for_all()  # all have read it
        if path == self._next and current_processes().leads:
            self._promote()  # as the run would have done that was killed before it
        now = model.state_dict()
        model.load_state_dict({name: shard_like(t, now[name]) for name, t in with_prefix(tensors, "model.").items()})
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in with_prefix(tensors, "optimizer.").items():
            index, _, key = name.partition(".")
            state.setdefault(int(index), {})[key] = shard_like(tensor, weights[int(index)])
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        return progress

    def _load_newest(self) -> tuple[Path, dict[str, Tensor], TrainingProgress] | None:
        """Return the newest checkpoint that is complete; None if there is none at all."""
        found = [path for path in (self._next, self._last, self._before) if path.exists()]
        for path in found:
            try:
                return path, *_load_states(path)
            except FormatError as error:
                self._is_last_damaged |= path == self._last
                if path == found[-1]:
                    raise FormatError(
                        path, None, f"{error.reason}, and there is no other checkpoint; --force starts over"
                    ) from None
                if current_processes().leads:
                    log.warning("%s; resuming from the checkpoint before it", error)
        return None

    def keep(self, step: int, score: float, model: nn.Module) -> None:
        """Keep these weights if they are among the best (lowest scores), and drop those that no longer are."""
        save_tensors(self.folder / "best" / f"{score:.6f}-{step:08d}.safetensors", model.state_dict())
        for path in self.best()[self.keep_best :]:
            path.unlink()

    def best(self) -> list[Path]:
        """Return the files of the kept weights, the best first."""
        return sorted((self.folder / "best").glob("[!.]*.safetensors"), key=lambda path: path.name)

    def average_best(self) -> dict[str, Tensor]:
        """Return the mean of the best weights; with `keep_best = 1`, the best."""
        return average([load_tensors(path) for path in self.best()])


def _load_states(path: Path) -> States:
    tensors = load_tensors(path)
    with safe_open(path, framework="pt") as file:
        about = file.metadata() or {}
    if about.get("crc32", "") not in ("", _checksum(tensors)):
        raise FormatError(path, None, "damaged: its tensors are not those that were written (crc32)")
    try:
        return tensors, TrainingProgress(**json.loads(about["progress"]))
    except (KeyError, ValueError, TypeError):
        raise FormatError(path, None, "not a checkpoint that this version of sortk can resume from") from None


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    """Return the CRC-32 of names and values; tensors must be on the CPU and contiguous."""
    crc = 0
    for name, tensor in sorted(tensors.items()):
        crc = zlib.crc32(tensor.flatten().view(torch.uint8).numpy().data, zlib.crc32(name.encode(), crc))
    return f"{crc:08x}"


def full_tensor(tensor: Tensor) -> Tensor:
    """Return all of a tensor, of which each process may have a part."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Shard a full tensor as another one of its shape is; a number, such as a count of steps, stays."""
    if not isinstance(like, DTensor) or tensor.shape != like.shape:
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)


def average(models: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of each tensor; counters (integers) are the first model's."""
    first, *others = models
    return {
        name: torch.stack([tensor, *(other[name] for other in others)]).mean(dim=0)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in first.items()
    }


def with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with the prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
