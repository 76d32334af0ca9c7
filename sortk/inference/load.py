"""Trained models from disk, in whatever form: a model folder, or one of NVIDIA's `.nemo` files."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sortk.formats import nemo
from sortk.formats.files import FormatError, quote
from sortk.formats.model_folder import load_model, save_model
from sortk.formats.tokens import Tokenizer, load_tokenizer, save_tokenizer, settings_of_canary
from sortk.inference.memory import give_back_freed_memory
from sortk.inference.streaming import StreamingOptions
from sortk.models.eend import Eend, EendOptions
from sortk.models.features import LogMel
from sortk.models.nemo import Converted, convert
from sortk.models.sortformer import Sortformer, SortformerOptions
from sortk.models.weights import check_weights

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedDiarizer:
    """A diarizer that is ready to run. Its sizes and feature settings are `model.options`."""

    model: Sortformer | Eend  # in eval mode, on its device
    streaming: StreamingOptions | None = None  # of a model that is made for streaming: its own settings


def load_diarizer(path: Path, device: torch.device | str = "cpu") -> LoadedDiarizer:
    """The diarizer in a model folder or a `.nemo` file."""
    weights, config = read_model(path)
    try:
        _check_layers(config["options"], len(weights))
        with torch.device("meta"):  # no random numbers for weights that are there
            model = _build_diarizer(config)
        streaming = _streaming_options(config)
        check_weights(model.state_dict(), weights)
    except ValueError as error:
        raise FormatError(path, None, str(error)) from None
    model.load_state_dict(weights, assign=True)
    model.features = LogMel(model.options.features)  # constants, which no checkpoint holds
    return LoadedDiarizer(model.to(device).eval(), streaming)


def read_model(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights and config of a model, as a model folder has them."""
    if path.is_dir():
        return load_model(path)
    model, _ = _read_nemo(path)
    return model.weights, model.config


def read_asr(path: Path) -> tuple[dict[str, Tensor], dict[str, Any], Tokenizer]:
    """The same with the tokenizer that an ASR has."""
    if path.is_dir():
        weights, config = load_model(path)
        return weights, config, load_tokenizer(path, config)
    model, tokenizer = _read_nemo(path)
    if tokenizer is None:
        raise FormatError(path, None, f"holds the model {model.config['model']!r}, which is not an ASR")
    return model.weights, model.config, tokenizer


def import_nemo(path: Path, out: Path) -> None:
    """`sortk import-nemo`: a `.nemo` file as a model folder, which appears only if all is well."""
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise FileExistsError(f"{out}: is there already; remove it, or give another folder")
    _convert_file(path, out)
    give_back_freed_memory()


def _convert_file(path: Path, out: Path) -> None:
    model, tokenizer = _read_nemo(path)
    if tokenizer is not None:
        save_tokenizer(out, tokenizer)
    save_model(out, model.weights, model.config)
    n_weights = sum(tensor.numel() for tensor in model.weights.values() if tensor.is_floating_point())
    log.info("%s: %s with %.1fM weights", out, model.config["model"], n_weights / 1e6)
    for why in sorted(set(model.left_out.values())):
        names = [name for name, reason in model.left_out.items() if reason == why]
        log.info("left out (%s): %s", why, ", ".join(names))


def _read_nemo(path: Path) -> tuple[Converted, Tokenizer | None]:
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such model folder or .nemo file")
    archive = nemo.read(path)
    try:
        model = convert(archive.config, archive.tensors)
        _streaming_options(model.config)
        if not model.files:
            return model, None
        tokenizer = _find_tokenizer(archive, model)
    except ValueError as error:
        raise FormatError(path, None, str(error)) from None
    return replace(model, config=model.config | {"tokenizer": tokenizer.settings.to_json()}), tokenizer


def _find_tokenizer(archive: nemo.NemoArchive, model: Converted) -> Tokenizer:
    contents = {ours: archive.files[theirs] for ours, theirs in model.files.items()}
    settings = settings_of_canary(list(contents), str(archive.config.get("prompt_format", "canary")))
    tokenizer = Tokenizer(contents, settings)
    n_rows = model.config["options"]["n_tokens"]
    if tokenizer.n_tokens > n_rows:
        raise ValueError(f"the tokenizers have {tokenizer.n_tokens} tokens, but the model knows only {n_rows}")
    return tokenizer


def _check_layers(options: Mapping[str, Any], n_tensors: int) -> None:
    """A config may ask for more layers than anybody can build; each has tensors of its own."""
    for name, part in options.items():
        n_layers = part.get("n_layers") if isinstance(part, dict) else None
        if isinstance(n_layers, int) and n_layers > n_tensors:
            raise ValueError(f"{name}.n_layers is {quote(n_layers)}, but there are only {n_tensors} tensors")


def _build_diarizer(config: Mapping[str, Any]) -> Sortformer | Eend:
    if config["model"] == "sortformer":
        return Sortformer(SortformerOptions.from_json(config["options"]))
    if config["model"] in ("eend-sa", "eend-eda"):
        return Eend(EendOptions.from_json(config["options"]))
    raise ValueError(f"holds the model {config['model']!r}, which is not a diarizer")


def _streaming_options(config: Mapping[str, Any]) -> StreamingOptions | None:
    if "streaming" not in config:
        return None
    try:
        return StreamingOptions(**config["streaming"])
    except TypeError as error:
        raise ValueError(f"not the settings of a streaming model: {error}") from None
