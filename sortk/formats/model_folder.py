"""Model folders: config.json (what to build) and model.safetensors (its weights); nothing that could run code.

config.json also holds what only this module uses: `format`, the version of such folders, `sha256` of the weights' file,
and `files_sha256` of tokenizers and of the graph. Older folders lack them and are read without these checks.

The folder of the diarizer that comes with sortk also has the graph windows.onnx, whose weights are those in
model.safetensors (`inference/export.py` writes it). Graphs in other folders are not run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy.typing as npt
import safetensors.numpy
from safetensors import SafetensorError

from sortk.formats.files import FormatError, atomic_path, atomic_text, is_file, quote
from sortk.formats.sst import LEVELS, Level

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS_NAME, CONFIG_NAME, GRAPH_NAME = "model.safetensors", "config.json", "windows.onnx"
FORMAT = 1
OWN_KEYS = ("format", "sha256", "files_sha256")
MAX_CONFIG_BYTES = 16 << 20
AnyTensor = TypeVar("AnyTensor")
SST_LEVEL = "sst_level"  # in config.json of an ASR: the level of the transcripts it has learned; null: words alone


def save_model(folder: Path, weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """Write a model folder. The tokenizers of an ASR must be there already: config.json holds their sha256, too."""
    save_tensors(folder / WEIGHTS_NAME, weights)
    write_config(folder, config, sorted(folder.glob("*.model")))  # last: when it is there, the folder is complete


def write_config(folder: Path, config: Mapping[str, Any], others: Iterable[Path] = ()) -> None:
    """Write config.json with the sha256 of the weights, which are there already, and of other files of the folder."""
    hashes = {path.name: _hash_file(path) for path in others if path.is_file()}
    own = {"format": FORMAT, "sha256": _hash_file(folder / WEIGHTS_NAME)}
    own |= {"files_sha256": hashes} if hashes else {}
    with atomic_text(folder / CONFIG_NAME) as file:
        json.dump({**config, **own}, file, indent=1)
        file.write("\n")


def load_model(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return weights and config of a model folder."""
    config, weights = _read_config(folder), load_tensors(folder / WEIGHTS_NAME)
    _check_files(folder, config)
    return weights, _without_own_keys(config)


def load_checked_config(folder: Path) -> dict[str, Any]:
    """Return the config of a model folder whose files are those that it was written with, without reading weights."""
    config = _read_config(folder)
    _check_files(folder, config)
    return _without_own_keys(config)


def _check_files(folder: Path, config: Mapping[str, Any]) -> None:
    hashes = config.get("files_sha256", {})
    if not isinstance(hashes, dict):
        raise FormatError(folder / CONFIG_NAME, None, f"files_sha256 is {quote(hashes)}, not a table")
    for name, expected in {WEIGHTS_NAME: config.get("sha256", ""), **hashes}.items():
        file = folder / Path(str(name)).name
        if expected != "" and (not is_file(file) or expected != _hash_file(file)):
            reason = f"is not the file that {CONFIG_NAME} was written with (sha256); copy the model folder again"
            raise FormatError(file, None, reason)


def load_config(folder: Path) -> dict[str, Any]:
    """Return the config of a model folder: `model`, which one it is, and `options`, what it is built from."""
    return _without_own_keys(_read_config(folder))


def read_huggingface_config(folder: Path) -> dict[str, Any] | None:
    """Return the config of a folder in Hugging Face's form; None if it is not one."""
    config = _read_json(folder)
    return config if "model_type" in config and "model" not in config else None


def read_huggingface_processor(folder: Path) -> dict[str, Any]:
    """Return the settings of the features in a folder in Hugging Face's form; empty if it has none."""
    for name in ("processor_config.json", "preprocessor_config.json"):
        if (folder / name).is_file():
            return _read_json(folder, name)
    return {}


def _read_config(folder: Path) -> dict[str, Any]:
    path, config = folder / CONFIG_NAME, _read_json(folder)
    if not isinstance(config.get("options"), dict) or "model" not in config:
        raise FormatError(path, None, "not the config of a model: no 'model' and 'options' in it")
    version = config.get("format", 0)  # an older one is read
    if type(version) is not int or version < 0:
        raise FormatError(path, None, f"the format of a model folder is a number, not {quote(version)}")
    if version > FORMAT:
        reason = f"was written by a newer sortk: format {version}, this one reads up to {FORMAT}; update sortk"
        raise FormatError(path, None, reason)
    return config


def _read_json(folder: Path, name: str = CONFIG_NAME) -> dict[str, Any]:
    path = folder / name
    if not path.is_file():
        raise FormatError(folder, None, f"not a model folder: no {name} in it")
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise FormatError(path, None, f"has {path.stat().st_size} bytes, more than the {MAX_CONFIG_BYTES} allowed")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise FormatError(path, None, "JSON is nested too deeply") from None
    except ValueError as error:
        raise FormatError(path, None, f"broken JSON ({error})") from None
    if not isinstance(config, dict):
        raise FormatError(path, None, "not the config of a model: no 'model' and 'options' in it")
    return config


def _without_own_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in OWN_KEYS}


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file, which appears complete or not at all."""
    from safetensors.torch import save_file  # noqa: PLC0415 - torch takes seconds, and not all models need it

    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        with atomic_path(path) as temporary:
            save_file(contiguous, temporary, metadata)
    except SafetensorError as error:  # such as a full disk
        raise OSError(f"{path}: cannot be written ({error})") from None


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Return all tensors of a safetensors file."""
    from safetensors.torch import load_file  # noqa: PLC0415

    return _load(path, load_file)


def find_tensors(path: Path) -> dict[str, tuple[int, int]]:
    """Return the first byte of each tensor in a safetensors file, and its number of bytes."""
    with path.open("rb") as file:
        n_bytes = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(n_bytes))
    header.pop("__metadata__", None)
    spans = {name: about["data_offsets"] for name, about in header.items()}
    return {name: (8 + n_bytes + start, end - start) for name, (start, end) in spans.items()}


def load_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return all tensors of a safetensors file as NumPy arrays, without torch."""
    return _load(path, safetensors.numpy.load_file)


def _load(path: Path, load_file: Callable[[Path], dict[str, AnyTensor]]) -> dict[str, AnyTensor]:
    if path.exists() and not is_file(path):  # reading a pipe could block for ever
        raise FormatError(path, None, "is not a plain file")
    try:
        return load_file(path)
    except FileNotFoundError:
        raise FormatError(path, None, "no such file") from None
    except SafetensorError as error:
        raise FormatError(path, None, f"damaged safetensors ({error})") from None


def read_sst_level(config: Mapping[str, Any]) -> Level | None:
    """Return the level of the transcripts that an ASR has learned to write; None: it knows no speaker tokens, as
    NVIDIA's Canary. ValueError for an unknown one.

    Folders written before there was a token before every word have `level` instead: their `word` and `segment` had
    tokens only where the speaker changes, which is the grammar of `change`.
    """
    level = config.get(SST_LEVEL)
    if SST_LEVEL not in config and "level" in config:
        level = {"word": "change", "segment": "change"}.get(str(config["level"]), config["level"])
    if level is not None and level not in LEVELS:
        raise ValueError(f"its transcripts are of an unknown level, {quote(level)}")
    return level
