"""Models by the names that they have on Hugging Face, such as nvidia/diar_sortformer_4spk-v1, or NAME@REVISION.

sortk/small is the model that comes with sortk. Other names are looked up here, in this order:

    ./models              models/NAME.nemo, or the folder models/NAME; not for a name with a revision
    Hugging Face's cache  $HF_HUB_CACHE, or $HF_HOME/hub (~/.cache/huggingface/hub), in which

        models--OWNER--NAME/refs/REVISION       the commit that a branch or tag was at the last download
        models--OWNER--NAME/snapshots/COMMIT/   the files, as links to models--OWNER--NAME/blobs

    the network           if `huggingface_hub` is installed and HF_HUB_OFFLINE is not set; it sends HF_TOKEN

Reading the cache needs no `huggingface_hub`. Without a revision, it is `main`.
"""

from __future__ import annotations

import logging
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from sortk.formats.files import is_file

log = logging.getLogger(__name__)

SHIPPED_NAME = "sortk/small"
SHIPPED_MODEL = Path(__file__).resolve().parents[1] / "data" / "diarizer"
"""The model folder of the diarizer that comes with sortk."""
DEMO_AUDIO = SHIPPED_MODEL.parent / "demo.ogg"
"""A short conversation of espeak voices; who speaks when is in the .rttm file beside it."""
BETTER_MODEL = "nvidia/diar_sortformer_4spk-v1"
LOCAL_FOLDER = Path("models")
FOLDER_FILES = ("config.json", "model.safetensors")  # of a model that is not a .nemo file
MORE_FOLDER_FILES = ("processor_config.json", "preprocessor_config.json", "tokenizer.json")  # which it may have

_NAME = re.compile(
    r"(?P<repository>\w[\w.-]{0,95}/(?P<model>\w[\w.-]{0,95}))(?:@(?P<revision>\w[\w./-]{0,199}))?", re.ASCII
)
MAX_REF_BYTES = 200  # a commit has 40
_COMMIT = re.compile(r"\w+", re.ASCII)


@dataclass(frozen=True)
class KnownModel:
    """Facts about a published model that sortk reads (sources: docs/models.md); an empty text is unknown."""

    name: str
    kind: str
    parameters: str = ""
    licence: str = ""
    speakers: str = ""
    latency: str = ""  # that it was trained for


_CC_BY, _CC_BY_NC, _NVIDIA, _MDW = "CC-BY-4.0", "CC-BY-NC-4.0", "NVIDIA Open Model License", "OpenMDW-1.1"
KNOWN_MODELS = (
    KnownModel("nvidia/diar_sortformer_4spk-v1", "Sortformer", "123M", _CC_BY_NC, "4", "offline"),
    KnownModel("nvidia/diar_streaming_sortformer_4spk-v2", "Sortformer", "117M", _CC_BY, "4", "0.32-30.4 s"),
    KnownModel("nvidia/diar_streaming_sortformer_4spk-v2.1", "Sortformer", "117M", _NVIDIA, "4", "0.32-30.4 s"),
    KnownModel("nvidia/Nemotron-3-Diarization", "Nemotron", "99M", _MDW, "8", "0.32-30.4 s"),
    KnownModel("nvidia/canary-180m-flash", "Canary", "182M", _CC_BY, "", "offline"),
    KnownModel("nvidia/canary-1b-flash", "Canary", "883M", _CC_BY, "", "offline"),
    KnownModel("nvidia/canary-1b-v2", "Canary", "1B", _CC_BY, "", "offline"),
    KnownModel("nvidia/canary-1b", "Canary", "1B", _CC_BY_NC, "", "offline"),
    KnownModel("nvidia/parakeet-tdt-0.6b-v2", "Parakeet TDT", "0.6B", _CC_BY, "", "offline"),
    KnownModel("nvidia/parakeet-tdt-0.6b-v3", "Parakeet TDT", "0.6B", _CC_BY, "", "offline"),
    KnownModel("nvidia/parakeet-tdt-1.1b", "Parakeet TDT", "1.1B", _CC_BY, "", "offline"),
    KnownModel("nvidia/parakeet-tdt_ctc-110m", "Parakeet TDT, CTC", "114M", _CC_BY, "", "offline"),
    KnownModel("nvidia/parakeet-tdt_ctc-1.1b", "Parakeet TDT, CTC", "1.1B", _CC_BY, "", "offline"),
    KnownModel("nvidia/parakeet-ctc-0.6b", "Parakeet CTC", "0.6B", _CC_BY, "", "offline"),
    KnownModel("nvidia/parakeet-ctc-1.1b", "Parakeet CTC", "1.1B", _CC_BY, "", "offline"),
    KnownModel("nvidia/parakeet-rnnt-0.6b", "Parakeet RNNT", "0.6B", _CC_BY, "", "offline"),
    KnownModel("nvidia/parakeet-rnnt-1.1b", "Parakeet RNNT", "1.1B", _CC_BY, "", "offline"),
    KnownModel(
        "nvidia/multitalker-parakeet-streaming-0.6b-v1", "multitalker Parakeet", "0.6B", _NVIDIA, "", "streaming"
    ),
    KnownModel("nvidia/ssl_en_nest_large_v1.0", "NEST encoder", "115M"),
    KnownModel("nvidia/ssl_en_nest_xlarge_v1.0", "NEST encoder", "0.6B", _CC_BY),
)


def find_model(name_or_path: str | Path) -> Path:
    """Return the model folder or `.nemo` file of a path or name; download it if it is not here.

    FileNotFoundError if there is none: it says how to get the file.
    """
    if (found := find_local(name_or_path)) is not None:
        return found
    named = _NAME.fullmatch(str(name_or_path))
    # A path such as exp/model looks like a name; where there is a folder exp, or a suffix, it is a path.
    if named is None or str(name_or_path).endswith(".nemo") or Path(str(name_or_path)).parent.is_dir():
        raise FileNotFoundError(f"{name_or_path}: no such model folder or .nemo file")
    missing = f"{name_or_path}: no such model folder or .nemo file, and no model of this name in {_cache_folder()}"
    offline = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    if offline.upper() in ("1", "ON", "YES", "TRUE"):
        raise FileNotFoundError(f"{missing}; HF_HUB_OFFLINE is set, so nothing is downloaded: {_say_how(named)}")
    try:
        hub = import_module("huggingface_hub")
    except ImportError:
        how = f"pip install 'sortk[hub]' to download models by name, or {_say_how(named)}"
        raise FileNotFoundError(f"{missing}; {how}") from None
    try:
        _download(hub, named["repository"], named["revision"])
    except Exception as error:  # of its own, of the network library below it, of the disk
        about = str(error).strip().partition("\n")[0].rstrip(".")  # the type says which: no such repository, gated, ...
        why = f"{type(error).__name__}: {about}" if about else type(error).__name__
        raise FileNotFoundError(f"{missing}; it cannot be downloaded ({why}): {_say_how(named)}") from None
    if (found := find_local(name_or_path)) is None:
        what = "a .nemo file, nor config.json and model.safetensors"
        raise FileNotFoundError(f"{name_or_path}: the repository on Hugging Face does not have {what}")
    return found


def find_local(name_or_path: str | Path) -> Path | None:
    """Return the model of a path or name if it is on this machine."""
    with suppress(OSError):  # a name that no disk can hold
        if Path(name_or_path).exists():
            return Path(name_or_path)
    if str(name_or_path) == SHIPPED_NAME:
        return SHIPPED_MODEL
    named = _NAME.fullmatch(str(name_or_path))
    if named is None or ".." in str(name_or_path):
        return None
    if named["revision"] is None:
        archive, folder = LOCAL_FOLDER / f"{named['model']}.nemo", LOCAL_FOLDER / named["model"]
        if archive.is_file():
            return archive
        if (found := _find_in(folder, named["model"])) is not None:
            return found
    cached = _cache_folder() / f"models--{named['repository'].replace('/', '--')}"
    revision = named["revision"] or "main"
    commit = _read_ref(cached / "refs" / revision) or revision
    return _find_in(cached / "snapshots" / commit, named["model"]) if _COMMIT.fullmatch(commit) else None


def _read_ref(path: Path) -> str:
    """Return the commit that a branch or tag stands for; empty if there is no such file."""
    if not is_file(path):  # a pipe would never end
        return ""
    with path.open("rb") as file:
        return file.read(MAX_REF_BYTES).decode("ascii", "replace").strip()


def _find_in(folder: Path, model: str) -> Path | None:
    """Return the model in a folder with the files of a repository. Of both forms, it is the .nemo file."""
    archives = sorted(path for path in folder.glob("*.nemo") if path.is_file())  # not a link to a blob that is gone
    if len(archives) > 1:
        own = [path for path in archives if path.stem == model]
        if not own:
            names = ", ".join(path.name for path in archives)
            raise ValueError(f"{folder}: has several .nemo files ({names}); give the path of one of them")
        archives = own
    if archives:
        return archives[0]
    return folder if all((folder / name).is_file() for name in FOLDER_FILES) else None


def _download(hub: Any, repository: str, revision: str | None) -> None:
    """Put the model's files into Hugging Face's cache: the .nemo files, or if there are none, those of a folder."""
    names = hub.HfApi().list_repo_files(repository, revision=revision)
    archives = [name for name in names if name.endswith(".nemo") and "/" not in name]
    own = f"{repository.split('/')[1]}.nemo"
    log.info("downloading %s from Hugging Face", repository)
    wanted = [own] if own in archives else archives or [*FOLDER_FILES, *MORE_FOLDER_FILES]
    hub.snapshot_download(repository, revision=revision, allow_patterns=wanted)


def _cache_folder() -> Path:
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    folder = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or Path(home, "hub")
    return Path(os.path.expandvars(folder)).expanduser()


def _say_how(named: re.Match[str]) -> str:
    revision = f" --revision {named['revision']}" if named["revision"] else ""
    if revision:
        return f"run `hf download {named['repository']}{revision}` where there is a network"
    folder = LOCAL_FOLDER / named["model"]
    return f"run `hf download {named['repository']} --local-dir {folder}`, or put its .nemo file into {folder}"
