"""Models to damage: a tiny one of every kind that sortk reads, in every form in which it comes.

archive    a .nemo file as bytes, packed or not
members    its config, its tokenizers, and each record of its weights as a part of its own
folder     config.json and model.safetensors, ours or Hugging Face's
"""

from __future__ import annotations

import gzip
import io
import json
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuzz.mutate import Parts

if TYPE_CHECKING:
    from sortk.models.nemotron import Nemotron

FILE = "input"  # the part of an input that has only one
CONFIG, WEIGHTS = "model_config.yaml", "model_weights.ckpt"
TESTS = Path(__file__).resolve().parents[1]


def write_parts(parts: Parts, folder: Path) -> None:
    for name, data in parts.items():
        (folder / name).write_bytes(data)


@cache
def _tiny_sortformer() -> Any:
    from nemo_models import random_sortformer

    from sortk.models.fastconformer import FastConformerOptions
    from sortk.models.features import FeatureOptions
    from sortk.models.sortformer import SortformerOptions
    from sortk.models.transformer import TransformerOptions

    encoder = FastConformerOptions(d_model=8, n_layers=1, n_heads=2, subsampling_channels=4, conv_kernel=3)
    transformer = TransformerOptions(d_model=4, n_layers=1, n_heads=2, d_inner=8, dropout=0.0)
    return random_sortformer(SortformerOptions(2, 0.0, FeatureOptions(n_mels=16), encoder, transformer))


# ---------------------------------------------------------------------------------------------------------------------
# Folders


def folder_seeds() -> list[Parts]:
    from safetensors.torch import save

    from sortk.models.diarizer import StreamingOptions

    model = _tiny_sortformer()
    weights = save(model.state_dict())
    config = {"model": "sortformer", "options": model.options.to_json()}
    configs = (config, config | {"streaming": vars(StreamingOptions())})
    return [{"config.json": json.dumps(config).encode(), "model.safetensors": weights} for config in configs]


def huggingface_seeds() -> list[Parts]:
    """A tiny Nemotron under the names of transformers, whose queries, keys and values are matrices of their own."""
    from safetensors.torch import save

    from sortk.models.huggingface import NEMOTRON_NAMES
    from sortk.models.options import name_tensor

    model = _tiny_nemotron()
    tensors = {}
    for own, tensor in model.state_dict().items():
        name = name_tensor(own, NEMOTRON_NAMES)
        parts = tensor.chunk(3) if ".qkv_proj." in name else (tensor,)
        for part, letter in zip(parts, "qkv", strict=False):
            tensors[name.replace(".qkv_proj.", f".{letter}_proj.")] = part.contiguous()
    options, published = model.options, TESTS / "fixtures" / "nemo2" / "tiny_nemotron_hf" / "config.json"
    config = json.loads(published.read_text(encoding="utf-8"))
    config["audio_config"] |= {
        "hidden_size": options.d_model,
        "intermediate_size": options.d_inner,
        "num_attention_heads": options.n_heads,
        "num_key_value_heads": options.n_heads,
        "num_hidden_layers": options.n_layers,
        "num_mel_bins": options.features.n_mels,
    }
    config["head_config"] |= {
        "audio_hidden_size": options.d_model,
        "hidden_size": options.d_head,
        "num_speakers": options.n_speakers,
    }
    config["streaming_config"] |= {"num_speakers": options.n_speakers}
    return [{"config.json": json.dumps(config).encode(), "model.safetensors": save(tensors)}]


def huggingface_asr_seeds() -> list[Parts]:
    """A Parakeet with its tokenizer.json, with a TDT and with a CTC head."""
    import tempfile

    _find_test_modules()
    from test_huggingface import write_folder

    found = []
    with tempfile.TemporaryDirectory() as temporary:
        for kind in ("parakeet_tdt", "parakeet_ctc"):
            folder = write_folder(Path(temporary) / kind, kind, TESTS / "fixtures" / "nemo2" / "tiny_tdt_ctc.nemo")
            found.append({path.name: path.read_bytes() for path in folder.iterdir()})
    return found


def read_asr_folder(parts: Parts, folder: Path) -> object:
    from sortk.inference.load import load_asr

    write_parts(parts, folder)
    return load_asr(folder)


def read_folder(parts: Parts, folder: Path) -> object:
    from sortk.inference.load import load_diarizer

    write_parts(parts, folder)
    return load_diarizer(folder)


@cache
def _tokenizer() -> bytes:
    from sortk.formats.tokens import FILE_NAME, train_tokenizer

    return train_tokenizer(["<spk0> well i <spk1> yes", "no <spk0> never"], 30, 2).contents[FILE_NAME]


def tokenizer_seeds() -> list[Parts]:
    from sortk.formats.tokens import FILE_NAME, TokenizerSettings

    config = {"tokenizer": TokenizerSettings().to_json()}
    return [{"config.json": json.dumps(config).encode(), FILE_NAME: _tokenizer(), FILE: b"<spk0> yes <spk1> well no"}]


def read_tokenizer(parts: Parts, folder: Path) -> object:
    from sortk.formats.objects import decode
    from sortk.formats.tokens import load_tokenizer

    write_parts(parts, folder)
    config = decode(parts["config.json"].decode("utf-8", "replace"), folder, None)
    tokenizer = load_tokenizer(folder, config if isinstance(config, dict) else {})
    try:
        return tokenizer.decode(tokenizer.encode(parts[FILE].decode("utf-8", "replace")))
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from None  # the caller knows which line of which file the text is of


@cache
def _training() -> Any:
    """A model with its optimizer, after a step."""
    import torch

    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def checkpoint_seeds() -> list[Parts]:
    import tempfile

    from sortk.training.checkpoint import Checkpoints, TrainingProgress

    with tempfile.TemporaryDirectory() as temporary:
        for step in (1, 2):
            Checkpoints(Path(temporary), 1).save(TrainingProgress(step), *_training())
        return [{path.name: path.read_bytes() for path in Path(temporary).glob("*.safetensors")}]


def resume_training(parts: Parts, folder: Path) -> object:
    """From the last checkpoint, or from the one before it."""
    from sortk.training.checkpoint import Checkpoints

    write_parts(parts, folder)
    return Checkpoints(folder, 1).restore(*_training())


# ---------------------------------------------------------------------------------------------------------------------
# Archives


def _parts_of(config: Mapping[str, Any], tensors: Mapping[str, Any], **tokenizers: bytes) -> Parts:
    """An archive as its config, its weights (a file of torch.save) and its tokenizers."""
    import torch
    import yaml

    file = io.BytesIO()
    torch.save(dict(tensors), file)
    plain = json.loads(json.dumps(config))  # no list is in it twice: it would be written as an alias
    return {CONFIG: yaml.safe_dump(plain).encode(), WEIGHTS: file.getvalue(), **tokenizers}


def pack(parts: Parts) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, data in parts.items():
            header = tarfile.TarInfo(name)
            header.size = len(data)
            tar.addfile(header, io.BytesIO(data))
    return archive.getvalue()


def _sortformer_parts() -> Parts:
    from nemo_models import sortformer_config, sortformer_tensors

    model = _tiny_sortformer()
    return _parts_of(sortformer_config(model.options), sortformer_tensors(model))


def archive_seeds() -> list[Parts]:
    whole = pack(_sortformer_parts())
    return [{FILE: whole}, {FILE: gzip.compress(whole)}]


def read_archive(path: Path) -> object:
    from sortk.inference.load import load_diarizer

    return load_diarizer(path)


def member_seeds() -> list[Parts]:
    parts = _sortformer_parts()
    with zipfile.ZipFile(io.BytesIO(parts[WEIGHTS])) as records:
        data = {name.partition("/")[2]: records.read(name) for name in records.namelist()}
    return [{CONFIG: parts[CONFIG], **data}]


def read_members(parts: Parts, folder: Path) -> object:
    """The records of the weights as torch packs them, in an archive as NVIDIA does."""
    records = io.BytesIO()
    with zipfile.ZipFile(records, "w") as file:
        for name, data in parts.items():
            if name != CONFIG:
                file.writestr(f"archive/{name}", data)
    path = folder / "model.nemo"
    path.write_bytes(pack({CONFIG: parts[CONFIG], WEIGHTS: records.getvalue()}))
    return read_archive(path)


@cache
def _tiny_nemotron() -> Nemotron:
    from sortk.models.features import FeatureOptions
    from sortk.models.nemotron import Nemotron, NemotronOptions

    features = FeatureOptions(n_mels=16, gain=False, normalize="none", dither=NemotronOptions().features.dither)
    return Nemotron(NemotronOptions(3, d_model=16, n_layers=1, n_heads=2, d_inner=32, d_head=8, features=features))


def nemotron_seeds() -> list[Parts]:
    _find_test_modules()
    from test_nemotron import nemo_config, nemo_tensors

    model = _tiny_nemotron()
    return [_parts_of(nemo_config(model.options), nemo_tensors(model))]


def read_diarizer_parts(parts: Parts, folder: Path) -> object:
    path = folder / "model.nemo"
    path.write_bytes(pack(parts))
    return read_archive(path)


def asr_seeds() -> list[Parts]:
    """Parakeet with TDT and CTC, with RNNT, with CTC alone; multitalker Parakeet; Canary."""
    from dataclasses import replace

    _find_test_modules()
    from nemo_models import canary_config, canary_tensors, parakeet_config, parakeet_tensors
    from test_load import CANARY, SPECIAL, sentencepiece_model
    from test_multitalker import SMALL as MULTITALKER
    from test_multitalker import config_of, tensors_of
    from test_parakeet import RNNT, SMALL

    from sortk.models.canary import Canary
    from sortk.models.multitalker import Multitalker
    from sortk.models.parakeet import Parakeet

    words = ["one two three four five", "six seven eight nine"] * 3
    pieces = sentencepiece_model(words, 30, [])
    tokenizer, n_tokens = {"0_tokenizer.model": pieces}, _count_pieces(pieces)
    parakeets = (
        replace(SMALL, n_tokens=n_tokens),
        replace(SMALL, n_tokens=n_tokens, transducer=RNNT, ctc=False),
        replace(SMALL, n_tokens=n_tokens, transducer=None),
    )
    found = [_parts_of(parakeet_config(one), parakeet_tensors(Parakeet(one)), **tokenizer) for one in parakeets]
    multitalker = replace(MULTITALKER, n_tokens=n_tokens)
    found.append(_parts_of(config_of(multitalker), tensors_of(Multitalker(multitalker)), **tokenizer))
    tokenizers = {"0_tokenizer.model": sentencepiece_model(["a"], 12, SPECIAL), "1_tokenizer.model": pieces}
    found.append(_parts_of(canary_config(CANARY), canary_tensors(Canary(CANARY)), **tokenizers))
    return found


def _count_pieces(model: bytes) -> int:
    import sentencepiece

    return int(sentencepiece.SentencePieceProcessor(model_proto=model).get_piece_size())


def read_asr_parts(parts: Parts, folder: Path) -> object:
    from sortk.inference.load import load_asr

    path = folder / "asr.nemo"
    path.write_bytes(pack(parts))
    return load_asr(path)


def _find_test_modules() -> None:
    """Tests of models write configs as NVIDIA has them; the fuzzer damages these."""
    folders = [str(TESTS), str(TESTS / "models"), str(TESTS / "inference")]
    sys.path.extend(folder for folder in folders if folder not in sys.path)
