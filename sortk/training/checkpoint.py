"""Model folders and training checkpoints: safetensors and JSON, nothing that could run code when it is read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from sortk.formats.files import FormatError, atomic_path, atomic_text

WEIGHTS_NAME, CONFIG_NAME = "model.safetensors", "config.json"


def save_model(folder: Path, weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """A model folder: what to build, and its weights."""
    _save(folder / WEIGHTS_NAME, weights, {})
    with atomic_text(folder / CONFIG_NAME) as file:  # last: where it is, the folder is whole
        json.dump(config, file, indent=1)
        file.write("\n")


def load_model(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights and config of a model folder."""
    config_path = folder / CONFIG_NAME
    if not config_path.is_file():
        raise FormatError(folder, None, f"not a model folder: no {CONFIG_NAME} in it")
    try:
        config = json.loads(config_path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FormatError(config_path, None, f"broken JSON ({error})") from None
    return _load(folder / WEIGHTS_NAME), config


@dataclass
class Progress:
    """Where a training run stands; with the states below, all that it needs to go on as if it had never stopped."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # of the epoch, the next one
    validations_since_best: int = 0
    best_score: float | None = None


class Checkpoints:
    """The checkpoints of one run: the latest for going on, and the weights of the best for the end."""

    def __init__(self, folder: Path, keep_best: int) -> None:
        self.folder, self.keep_best = folder, keep_best

    def save(self, progress: Progress, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """One file, which replaces the one before it when it is whole."""
        tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
        for index, state in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": torch.as_tensor(value) for name, value in state.items()}
        tensors["random.cpu"] = torch.get_rng_state()
        if torch.cuda.is_available():
            tensors["random.cuda"] = torch.cuda.get_rng_state()
        _save(self.folder / "last.safetensors", tensors, {"progress": json.dumps(vars(progress))})

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
        """Puts everything back to where the last checkpoint was taken; a new run starts from nothing."""
        path = self.folder / "last.safetensors"
        if not path.exists():
            return Progress()  # the random numbers go on from where the phase before left them
        tensors = _load(path)
        with safe_open(path, framework="pt") as file:
            progress = Progress(**json.loads(file.metadata()["progress"]))
        model.load_state_dict(_with_prefix(tensors, "model."))
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in _with_prefix(tensors, "optimizer.").items():
            index, _, key = name.partition(".")
            state.setdefault(int(index), {})[key] = tensor
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        torch.set_rng_state(tensors["random.cpu"].cpu())
        if "random.cuda" in tensors and torch.cuda.is_available():
            torch.cuda.set_rng_state(tensors["random.cuda"].cpu())
        return progress

    def keep(self, step: int, score: float, model: nn.Module) -> None:
        """Keeps these weights if they are among the best (lowest scores), and drops those that no longer are."""
        _save(self.folder / "best" / f"{score:.6f}-{step:08d}.safetensors", model.state_dict(), {})
        for path in self.best()[self.keep_best :]:
            path.unlink()

    def best(self) -> list[Path]:
        """The kept weights, the best first."""
        return sorted((self.folder / "best").glob("[!.]*.safetensors"), key=lambda path: path.name)

    def average_best(self) -> dict[str, Tensor]:
        """The mean of the best weights, which is better than any of them."""
        return average([_load(path) for path in self.best()])


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


def _save(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    with atomic_path(path) as temporary:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, temporary, metadata)


def _load(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except FileNotFoundError:
        raise FormatError(path, None, "no such file") from None
    except SafetensorError as error:
        raise FormatError(path, None, f"damaged safetensors ({error})") from None
