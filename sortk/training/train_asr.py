"""Stage 6: trains a multi-speaker ASR, phase after phase, and leaves the average of its best weights as a model folder.

The folder has config.json, model.safetensors and the tokenizer; the diarizer is inside.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sortk.formats.model_folder import SST_LEVEL, save_model
from sortk.formats.sst import Level, SstOptions, parse_sst
from sortk.formats.tokens import (
    FILE_NAME,
    Tokenizer,
    TokenizerSettings,
    load_tokenizer,
    save_tokenizer,
    train_tokenizer,
)
from sortk.models.canary import SIZES, CanaryOptions, extend_vocabulary
from sortk.models.kernels import KernelOptions
from sortk.models.msasr import MsAsr, MsAsrOptions
from sortk.models.sortformer import SortformerOptions
from sortk.models.weights import check_weights
from sortk.prepare.pieces import SpeakerIndex, read_index
from sortk.prepare.simulate import SimulateOptions, Simulator
from sortk.records import Session
from sortk.training.asr import AsrTask
from sortk.training.asr_batches import AsrLoader, AsrSource, SampleSource, SpokenSource, Transcription
from sortk.training.asr_options import AsrPhaseOptions, TrainAsrOptions
from sortk.training.checkpoint import Checkpoints
from sortk.training.loop import train
from sortk.training.processes import current_processes, leader_first, wait_for_all

log = logging.getLogger(__name__)

SIMULATED_SECONDS_AN_EPOCH = 36_000.0  # where nothing recorded says how long an epoch is
VALIDATION_BATCHES = 4  # batches of training in one of validation
ASR, DIARIZER = "asr.", "diarizer."  # how the names of an MS-ASR's weights begin


@dataclass(frozen=True)
class AsrData:
    """What there is to learn from."""

    train: Sequence[Session]  # samples of stage 4, with text
    valid: Sequence[Session]
    sst: SstOptions  # how those texts were written
    speakers: Sequence[SpeakerIndex] = ()  # sources of speech on the fly
    simulate: SimulateOptions | None = None  # their ratios and levels


@dataclass(frozen=True)
class Pretrained:
    """A trained model, as its folder has it."""

    weights: Mapping[str, Tensor]
    config: Mapping[str, Any]
    tokenizer: Tokenizer | None = None  # of an ASR


def train_asr(
    data: AsrData,
    options: TrainAsrOptions,
    seed: int,
    out: Path,
    initial: Pretrained | None = None,
    diarizer: Pretrained | None = None,
) -> dict[str, float]:
    """Fills `out` with checkpoints/<phase>/, log.jsonl and model/; goes on where an earlier run stopped.

    `initial` is an ASR to start from, `diarizer` a trained Sortformer. Returns the scores of the model that it leaves.
    Several processes may do it together (see `processes`).
    """
    processes = current_processes()
    device = processes.choose_device()
    if not data.train or not data.valid:
        raise ValueError("there is nothing to learn from, or nothing to validate on: a manifest is empty")
    torch.manual_seed(seed)
    tokenizer = initial.tokenizer if initial else _find_tokenizer(data, options, out)
    if tokenizer is None:
        raise ValueError("the model to start from is not an ASR: it has no tokenizer")
    model, tokenizer = build_asr(options, tokenizer, initial, diarizer)
    level = data.sst.level if options.speaker_tokens else None
    writing = Transcription(
        tokenizer, model.options.n_speakers, data.sst, options.speaker_tokens, model.options.asr.max_tokens
    )
    _check_transcripts(data.valid[: options.validation_samples], level)
    task = _build_task(model, writing, level, data, options, seed)
    n_weights = sum(weight.numel() for weight in model.parameters())
    log.info(
        "MS-ASR, supervision %s, %.2fM parameters, %d tokens", options.supervision, n_weights / 1e6, tokenizer.n_tokens
    )
    for phase in options.phases:
        log.info("phase %s: %d steps", phase.name, phase.loop.steps)
        task.word_weight = phase.word_weight
        sources = find_sources(data, phase, options, writing, seed)
        loader = AsrLoader(sources, phase.loop.batch_seconds, seed, phase.loop.workers)
        loop = replace(phase.loop, freeze=tuple(dict.fromkeys((*model.frozen_parts, *phase.loop.freeze))))
        train(task, loader, loop, out, device, phase.name, seed)
    wait_for_all()  # the leading process may still be writing the last weights
    last = options.phases[-1]
    model.load_state_dict(Checkpoints(out / "checkpoints" / last.name, last.loop.keep_best).average_best())
    task.eval()
    with torch.inference_mode():
        scores = task.validate(device)
    if processes.leads:
        save_asr(out / "model", model, tokenizer, level, _find_longest(data, last))
    log.info("average of the best: %s", ", ".join(f"{name} {value:.4f}" for name, value in scores.items()))
    return scores


def _check_transcripts(sessions: Sequence[Session], level: Level | None) -> None:
    """Before hours of training: what cannot be read as an SST of that level cannot be scored."""
    for session in sessions:
        if session.text and level is not None:
            try:
                parse_sst(session.text, level)
            except ValueError as error:
                raise ValueError(f"session {session.session_id}: {error} (level {level})") from None


def _build_task(
    model: MsAsr, writing: Transcription, level: Level | None, data: AsrData, options: TrainAsrOptions, seed: int
) -> AsrTask:
    # Without a diarizer inside, the annotation tells who speaks in validation, too.
    needs_truth = options.supervision != "none" and model.diarizer is None
    held_out = SampleSource(data.valid[: options.validation_samples], writing, needs_truth)
    # Decoding keeps no gradients, and a step costs much the same for many clips as for few.
    validation = AsrLoader([held_out], VALIDATION_BATCHES * options.phases[-1].loop.batch_seconds, seed)
    names_words = any(phase.word_weight > 0 for phase in options.phases)
    return AsrTask(model, writing.tokenizer, level, validation, options.label_smoothing, names_words)


def save_asr(folder: Path, model: MsAsr, tokenizer: Tokenizer, level: Level | None, piece_seconds: float) -> None:
    """Write a model folder that `sortk transcribe` reads; it will cut recordings into such pieces. A level of None is
    a model that has learned words alone."""
    save_tokenizer(folder, tokenizer)
    config = {"model": "msasr", "options": model.options.to_json(), "tokenizer": tokenizer.settings.to_json()}
    save_model(folder, model.state_dict(), config | {SST_LEVEL: level, "piece_seconds": piece_seconds})


def _find_longest(data: AsrData, phase: AsrPhaseOptions) -> float:
    """Seconds of the longest example of a phase."""
    recorded = [session.duration or 0.0 for session in data.train] if phase.recorded else []
    return max([*recorded, phase.seconds if phase.simulated > 0 else 0.0])


# ---------------------------------------------------------------------------------------------------------------------
# The model


def build_asr(
    options: TrainAsrOptions, tokenizer: Tokenizer, initial: Pretrained | None, diarizer: Pretrained | None
) -> tuple[MsAsr, Tokenizer]:
    """The model, from pretrained parts or with new weights, and a tokenizer that knows all its speakers."""
    asr, asr_weights = _read_asr(initial) if initial else (SIZES[options.size], {})
    diarizer = diarizer or _find_inner_diarizer(initial)
    sorted_by = _read_diarizer(diarizer) if diarizer and options.supervision != "none" else None
    n_speakers = sorted_by.n_speakers if sorted_by else options.n_speakers
    n_rows = asr.n_tokens if initial else tokenizer.n_tokens
    tokenizer = tokenizer.with_speakers(n_speakers, n_rows)
    asr = replace(asr, n_tokens=max(n_rows, tokenizer.n_tokens))
    kernels = KernelOptions(options.kernel, options.kernel_scale, options.keep_norm)
    built = MsAsrOptions(asr, options.supervision, n_speakers, sorted_by, kernels, options.adapters)
    model = MsAsr(built)
    if asr_weights:
        asr_weights = extend_vocabulary(asr_weights, asr.n_tokens)
        _load(model.asr, asr_weights, "the ASR to start from")
    if diarizer and model.diarizer is not None:
        _load(model.diarizer, diarizer.weights, "the diarizer")
    return model, tokenizer


def _load(part: torch.nn.Module, weights: Mapping[str, Tensor], what: str) -> None:
    try:
        check_weights(part.state_dict(), weights)
    except ValueError as error:
        raise ValueError(f"{what} does not fit its own config: {error}") from None
    part.load_state_dict(dict(weights))


def _read_asr(initial: Pretrained) -> tuple[CanaryOptions, dict[str, Tensor]]:
    """Options and weights of Canary, alone or inside an MS-ASR; adapters of that one would be lost."""
    options = initial.config["options"]
    if initial.config["model"] == "canary":
        return CanaryOptions.from_json(options), dict(initial.weights)
    if initial.config["model"] == "msasr":
        built = MsAsrOptions.from_json(options)
        if built.adapters:
            raise ValueError("the model to start from has adapters; start from the one that it was trained from")
        return built.asr, _with_prefix(initial.weights, ASR)
    raise ValueError(f"the model to start from is {initial.config['model']!r}, not an ASR (canary or msasr)")


def _find_inner_diarizer(initial: Pretrained | None) -> Pretrained | None:
    """The diarizer inside the MS-ASR that training starts from."""
    if initial is None or initial.config["model"] != "msasr" or initial.config["options"].get("diarizer") is None:
        return None
    weights = _with_prefix(initial.weights, DIARIZER)
    return Pretrained(weights, {"model": "sortformer", "options": initial.config["options"]["diarizer"]})


def _read_diarizer(diarizer: Pretrained) -> SortformerOptions:
    if diarizer.config["model"] != "sortformer":
        raise ValueError(f"the diarizer is {diarizer.config['model']!r}; only a Sortformer sorts by arrival")
    return SortformerOptions.from_json(diarizer.config["options"])


def _with_prefix(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}


# ---------------------------------------------------------------------------------------------------------------------
# Tokens and data


def _find_tokenizer(data: AsrData, options: TrainAsrOptions, out: Path) -> Tokenizer:
    """The tokenizer of this training run: made once, and found again when the run goes on."""
    with leader_first():
        if not (out / FILE_NAME).exists():
            save_tokenizer(out, train_tokenizer(_texts(data), options.n_tokens, options.n_speakers))
        return load_tokenizer(out, {"tokenizer": TokenizerSettings().to_json()})


def _texts(data: AsrData) -> Iterator[str]:
    for session in data.train:
        yield session.text or ""
    for speaker in data.speakers:
        for utterance in read_index(speaker.path):
            yield " ".join(word.text for piece in utterance for word in piece.words)


def find_sources(
    data: AsrData, phase: AsrPhaseOptions, options: TrainAsrOptions, writing: Transcription, seed: int
) -> list[AsrSource]:
    """What a phase learns from: samples of the manifest, speech on the fly, or both."""
    sources: list[AsrSource] = []
    if phase.recorded:
        sources.append(SampleSource(data.train, writing, needs_truth=options.supervision == "truth"))
    if phase.simulated > 0:
        if not data.speakers or data.simulate is None:
            raise ValueError(f"phase {phase.name!r} simulates on the fly, but there are no sources (--sources)")
        simulated = replace(
            data.simulate,
            seconds=phase.seconds,
            min_speakers=phase.min_speakers,
            max_speakers=phase.max_speakers,
            speeds=phase.speeds,
        )
        simulator = Simulator(data.speakers, simulated, seed, f"asr-{phase.name}")
        n_simulated = _count_simulated(phase, len(data.train))
        sources.append(SpokenSource(simulator, n_simulated, writing, phase.min_seconds))
    return sources


def _count_simulated(phase: AsrPhaseOptions, n_recorded: int) -> int:
    """So that the simulated examples of an epoch are the wanted share of all."""
    if not phase.recorded or phase.simulated == 1:
        return round(SIMULATED_SECONDS_AN_EPOCH / phase.seconds)
    return max(1, round(n_recorded * phase.simulated / (1 - phase.simulated)))
