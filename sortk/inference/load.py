"""Trained models from disk, in whatever form: a model folder of ours or of Hugging Face, or a `.nemo` file.

Every path may also be the name of a published model (`formats/hub.py`).
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from sortk.formats import nemo
from sortk.formats.audio import Samples
from sortk.formats.files import FormatError, follow_links
from sortk.formats.hub import find_model
from sortk.formats.model_folder import (
    CONFIG_NAME,
    WEIGHTS_NAME,
    load_config,
    load_model,
    load_tensors,
    read_huggingface_config,
    read_huggingface_processor,
    save_model,
)
from sortk.formats.tokens import (
    Tokenizer,
    load_tokenizer,
    read_huggingface_tokenizer,
    save_tokenizer,
    settings_of_canary,
    settings_of_parakeet,
)
from sortk.inference.linking import VOICES_NAME, Floats, LinkingOptions, VoiceSpace, read_voices
from sortk.models import huggingface
from sortk.models.diarizer import DiarizerModel, StreamingOptions
from sortk.models.frames import FRAME_SECONDS, SpeakerOutput, count_rows
from sortk.models.memory import give_back_freed_memory
from sortk.models.nemo import Converted, convert, convert_config
from sortk.models.options import options_from_json
from sortk.models.registry import Kind, build_from, find_kind
from sortk.models.wavlm import convert_weights, guess_options
from sortk.options import read_options

log = logging.getLogger(__name__)

TORCH_SUFFIXES = (".pt", ".pth", ".bin")


@dataclass(frozen=True)
class LoadedDiarizer:
    """A diarizer that is ready to run. Its sizes and feature settings are `model.options`."""

    model: DiarizerModel  # in eval mode, on its device
    streaming: StreamingOptions | None = None  # of a model that is made for streaming: its own settings
    linking: LinkingOptions | None = None  # of a model that learned from short windows
    voices: VoiceSpace | None = None  # in which these are linked

    @property
    def n_speakers(self) -> int:
        return self.model.options.n_speakers

    @property
    def rows_per_frame(self) -> int:
        return self.model.rows_per_frame

    @property
    def embedding_size(self) -> int:
        return self.model.embedding_size

    @property
    def device(self) -> str:
        return str(self.model.features.window.device)

    @torch.inference_mode()
    def run_clips(self, clips: Sequence[Samples]) -> tuple[list[Floats], Tensor]:
        """Return the posteriors of clips that are processed in one pass, (rows, speakers) each, and the embeddings of
        all, (clips, frames, d). They do not depend on the other clips."""
        samples = pad_sequence([torch.from_numpy(clip) for clip in clips], batch_first=True).to(self.device)
        lengths = torch.tensor([len(clip) for clip in clips], device=self.device)
        output: SpeakerOutput = self.model(samples, None if len({*lengths.tolist()}) == 1 else lengths)
        n_rows = (count_rows(len(clip), self.rows_per_frame) for clip in clips)
        probs = output.speaker_probs.float().cpu().numpy()
        return [own[:n] for own, n in zip(probs, n_rows, strict=True)], output.embeddings

    def run_windows(self, windows: Sequence[Samples]) -> Iterator[tuple[Floats, Floats]]:
        """Yield posteriors, (frames, speakers), and embeddings of length 1, (frames, d), of each window."""
        probs, frames = self.run_clips(windows)
        embeddings = functional.normalize(frames.float(), dim=2).cpu().numpy()
        yield from ((own, frames[: len(own)]) for own, frames in zip(probs, embeddings, strict=True))


def load_diarizer(path: Path, device: torch.device | str = "cpu") -> LoadedDiarizer:
    """Return the diarizer in a model folder or a `.nemo` file."""
    path = find_model(path)
    weights, config = read_model(path)
    try:
        if not find_kind(config).is_diarizer:
            raise ValueError(f"holds the model {config['model']!r}, which is not a diarizer")
        model, streaming = build_from(config, weights), _streaming_options(config)
        linking = read_options(LinkingOptions, config["linking"], "linking") if "linking" in config else None
        assert isinstance(model, DiarizerModel)
        if streaming is not None:
            streaming.check_cache(model.options.n_speakers)
        if linking is not None and model.rows_per_frame > 1:
            raise ValueError(f"has linking, which the model {config['model']!r} cannot use: its rows are not of 80 ms")
    except ValueError as error:
        raise FormatError(path, None, str(error)) from None
    if streaming is not None:  # NVIDIA's rule: such a model is trained and streamed without gain, but not run offline
        model.features.gain = True
    voices_path = path / VOICES_NAME
    voices = read_voices(voices_path, model.embedding_size) if linking and voices_path.exists() else None
    return LoadedDiarizer(model.to(device), streaming, linking, voices)


@dataclass(frozen=True)
class LoadedAsr:
    """An ASR that is ready to run."""

    model: nn.Module  # in eval mode, on its device
    tokenizer: Tokenizer
    config: Mapping[str, Any]


def load_asr(path: Path, device: torch.device | str = "cpu") -> LoadedAsr:
    """Return the ASR in a model folder or a `.nemo` file."""
    weights, config, tokenizer = read_asr(path)
    try:
        model = build_from(config, weights)
    except ValueError as error:
        raise FormatError(path, None, str(error)) from None
    return LoadedAsr(model.to(device), tokenizer, config)


def read_model(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return weights and config of a model, as a model folder has them."""
    path = find_model(path)
    published = _read_published(path)
    if published is None:
        return load_model(path)
    return published[0].weights, published[0].config


def read_frame_seconds(path: Path) -> float:
    """Return how long a row of a diarizer's posteriors is; its weights are not read."""
    module = read_kind(path).module
    return FRAME_SECONDS / module.rows_per_frame if issubclass(module, DiarizerModel) else FRAME_SECONDS


def read_kind(path: Path) -> Kind:
    """Return what kind of model it is; its weights are not read."""
    path = find_model(path)
    theirs = read_huggingface_config(path) if path.is_dir() else nemo.read_config(path)
    try:
        if theirs is None:
            config = load_config(path)
        else:
            config = huggingface.convert_config(theirs) if path.is_dir() else convert_config(theirs)
        return find_kind(config)
    except ValueError as error:
        raise FormatError(path, None, str(error)) from None


def read_asr(path: Path) -> tuple[dict[str, Tensor], dict[str, Any], Tokenizer]:
    """Return the same with the tokenizer that an ASR has."""
    path, tokenizer = find_model(path), None
    published = _read_published(path)
    if published is None:
        weights, config = load_model(path)
    else:
        model, tokenizer = published
        weights, config = model.weights, model.config
    try:
        if not find_kind(config).is_asr:
            raise ValueError(f"holds the model {config['model']!r}, which is not an ASR")
    except ValueError as error:
        raise FormatError(path, None, str(error)) from None
    return weights, config, tokenizer or load_tokenizer(path, config)


def import_nemo(path: Path, out: Path) -> None:
    """`sortk import-nemo`: write a published model as a model folder, which appears only if all is well."""
    place = follow_links(out.absolute())
    if place.exists() and not (place.is_dir() and not any(place.iterdir()) and not place.is_mount()):
        raise FileExistsError(f"{out}: is there already; remove it, or give another folder")
    unfinished = place.with_name(f".{place.name}.importing")  # what a killed import leaves
    if unfinished.is_symlink() or not all(map(_is_of_a_model, unfinished.glob("*"))):
        raise FileExistsError(f"{unfinished}: exists and is not a model folder; move it away, or give another --out")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        _convert_file(path, unfinished, out)
        unfinished.replace(place)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    give_back_freed_memory()


def _is_of_a_model(file: Path) -> bool:
    """Return whether it can be a file of a model folder, finished or half-written."""
    return file.name in (CONFIG_NAME, WEIGHTS_NAME) or file.suffix == ".model" or file.match(".*.tmp")


def _convert_file(path: Path, folder: Path, out: Path) -> None:
    published = _read_published(find_model(path))
    if published is None:
        raise FormatError(path, None, "is a model folder of sortk already")
    model, tokenizer = published
    if tokenizer is not None:
        save_tokenizer(folder, tokenizer)
    save_model(folder, model.weights, model.config)
    n_weights = sum(tensor.numel() for tensor in model.weights.values() if tensor.is_floating_point())
    log.info("%s: %s with %.1fM weights", out, model.config["model"], n_weights / 1e6)
    for why in sorted(set(model.left_out.values())):
        names = [name for name, reason in model.left_out.items() if reason == why]
        log.info("left out (%s): %s", why, ", ".join(names))


def _read_published(path: Path) -> tuple[Converted, Tokenizer | None] | None:
    """Return the model of a `.nemo` file, of a file with WavLM's weights, or of a folder in Hugging Face's form; None
    for a folder of ours."""
    if path.suffix in (".safetensors", *TORCH_SUFFIXES):
        return _read_wavlm(path), None
    tokenizer = None
    config = read_huggingface_config(path) if path.is_dir() else {}
    if config is None:
        return None
    try:
        if path.is_dir():
            model = huggingface.convert(config, load_tensors(path / WEIGHTS_NAME), read_huggingface_processor(path))
            if find_kind(model.config).is_asr:
                tokenizer = read_huggingface_tokenizer(path, model.config["options"]["n_tokens"])
        else:
            archive = nemo.read(path)
            model = convert(archive.config, archive.tensors)
            _streaming_options(model.config)
            if model.files:
                tokenizer = _find_tokenizer(archive, model)
            if archive.has_aligner:  # canary-1b-v2: it was not trained to write times, whatever its tokenizer has
                model = replace(model, config=model.config | {"writes_times": False})
    except FormatError:
        raise
    except ValueError as error:
        raise FormatError(path, None, str(error)) from None
    if tokenizer is not None:
        model = replace(model, config=model.config | {"tokenizer": tokenizer.settings.to_json()})
    return model, tokenizer


def _read_wavlm(path: Path) -> Converted:
    """Return the weights of a WavLM, which training can start from, out of a safetensors file or a torch file."""
    if path.suffix in TORCH_SUFFIXES:
        with path.open("rb") as file:
            state = nemo.load_torch(file, path.stat().st_size, path, path.name)
    else:
        state = load_tensors(path)
    try:
        weights = convert_weights(state)
        config = {"model": "wavlm", "options": guess_options(weights).to_json()}
    except ValueError as error:
        raise FormatError(path, None, str(error)) from None
    return Converted(config, {f"front_end.wavlm.{name}": tensor for name, tensor in weights.items()}, {}, {})


def _find_tokenizer(archive: nemo.NemoArchive, model: Converted) -> Tokenizer:
    contents = {ours: archive.files[theirs] for ours, theirs in model.files.items()}
    if model.config["model"] == "canary":
        settings = settings_of_canary(list(contents), str(archive.config.get("prompt_format", "canary")))
    else:
        settings = settings_of_parakeet(list(contents))
    tokenizer = Tokenizer(contents, settings)
    n_rows = model.config["options"]["n_tokens"]
    if tokenizer.n_tokens > n_rows:
        raise ValueError(f"the tokenizers have {tokenizer.n_tokens} tokens, but the model knows only {n_rows}")
    return tokenizer


def _streaming_options(config: Mapping[str, Any]) -> StreamingOptions | None:
    settings = config.get("streaming")
    return None if settings is None else options_from_json(StreamingOptions, settings, "a streaming model")
