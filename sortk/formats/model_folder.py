"""Model folders: config.json (what to build) and model.safetensors (its weights); nothing that could run code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from sortk.formats.files import FormatError, atomic_path, atomic_text

WEIGHTS_NAME, CONFIG_NAME = "model.safetensors", "config.json"


def save_model(folder: Path, weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """Writes a model folder."""
    save_tensors(folder / WEIGHTS_NAME, weights)
    with atomic_text(folder / CONFIG_NAME) as file:  # last: where it is, the folder is whole
        json.dump(config, file, indent=1)
        file.write("\n")


def load_model(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights and config of a model folder."""
    config = load_config(folder)
    return load_tensors(folder / WEIGHTS_NAME), config


def load_config(folder: Path) -> dict[str, Any]:
    """The config of a model folder: `model`, which one it is, and `options`, what it is built from."""
    path = folder / CONFIG_NAME
    if not path.is_file():
        raise FormatError(folder, None, f"not a model folder: no {CONFIG_NAME} in it")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FormatError(path, None, f"broken JSON ({error})") from None
    if not isinstance(config, dict) or not isinstance(config.get("options"), dict) or "model" not in config:
        raise FormatError(path, None, "not the config of a model: no 'model' and 'options' in it")
    return config


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """A safetensors file that appears whole or not at all."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        with atomic_path(path) as temporary:
            save_file(contiguous, temporary, metadata)
    except SafetensorError as error:  # such as a full disk
        raise OSError(f"{path}: cannot be written ({error})") from None


def load_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file."""
    try:
        return load_file(path)
    except FileNotFoundError:
        raise FormatError(path, None, "no such file") from None
    except SafetensorError as error:
        raise FormatError(path, None, f"damaged safetensors ({error})") from None
