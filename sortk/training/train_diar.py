"""Stage 5: trains a diarizer, phase after phase, and leaves the average of its best weights as a model folder."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sortk.formats.model_folder import save_model
from sortk.models import registry
from sortk.models.diarizer import DiarizerModel
from sortk.models.eend import EendOptions
from sortk.models.fastconformer import RelativeAttention
from sortk.models.sortformer import SIZES
from sortk.models.transformer import SelfAttention
from sortk.prepare.pieces import SpeakerIndex
from sortk.prepare.simulate import SimulateOptions, Simulator, name_voice
from sortk.records import Session
from sortk.training.batches import (
    BatchLoader,
    ConversationSource,
    SessionSource,
    Source,
    read_segments,
)
from sortk.training.checkpoint import Checkpoints
from sortk.training.diarizer import DiarizerTask
from sortk.training.loop import train
from sortk.training.options import PhaseOptions, TrainDiarOptions
from sortk.training.processes import current_processes, wait_for_all

log = logging.getLogger(__name__)

COMPARING_SCALE = 1.5  # of queries and keys, so that the resemblance of frames decides from the start
SIMULATED_SECONDS_AN_EPOCH = 36_000.0  # where nothing recorded says how long an epoch is


@dataclass(frozen=True)
class TrainingData:
    """What there is to learn from."""

    train: Sequence[Session]
    valid: Sequence[Session]
    speakers: Sequence[SpeakerIndex] = ()  # sources of conversations on the fly
    simulate: SimulateOptions | None = None  # their ratios and levels


def train_diarizer(
    data: TrainingData,
    options: TrainDiarOptions,
    seed: int,
    out: Path,
    initial: tuple[Mapping[str, Tensor], Mapping[str, Any]] | None = None,
) -> dict[str, float]:
    """Fills `out` with checkpoints/<phase>/, log.jsonl and model/; goes on where an earlier run stopped.

    `initial` are weights and config of a model to start from, or of an encoder alone. Returns the scores of the model
    that it leaves. Several processes may do it together (see `processes`).
    """
    processes = current_processes()
    device = processes.choose_device()
    seed += options.seed_offset
    torch.manual_seed(seed)
    model, config = build_diarizer(options, initial[1] if initial else None)
    if options.encoder_warmup.steps:
        compare_frames(model)
    if initial is not None:
        start_from(model, initial[0])
    number_of = number_speakers(data, options) if options.global_speakers else {}
    validation = BatchLoader(
        [SessionSource(data.valid, options.n_speakers, options.validation_seconds, seed)],
        options.phases[-1].loop.batch_seconds,
        seed,
    )
    task = DiarizerTask(model, options.alpha, validation, len(number_of))
    log.info("%s with %.2fM parameters, on %s", options.model, count_parameters(model) / 1e6, device)
    warmup = [options.encoder_warmup.as_phase()] if options.encoder_warmup.steps else []
    for phase in [*warmup, *options.phases]:
        log.info("phase %s: %d steps", phase.name, phase.loop.steps)
        task.identify, task.speaker_weight = phase in warmup, phase.speaker_weight
        sources = find_sources(data, phase, options, seed, number_of)
        loader = BatchLoader(sources, phase.loop.batch_seconds, seed, phase.loop.workers)
        train(task, loader, phase.loop, out, device, phase.name, seed)
    wait_for_all()  # the leading process may still be writing the last weights
    last = options.phases[-1]
    model.load_state_dict(Checkpoints(out / "checkpoints" / last.name, last.loop.keep_best).average_best())
    task.eval()
    with torch.inference_mode():
        scores = task.validate(device)
    if processes.leads:
        save_model(out / "model", model.state_dict(), config)
    log.info("average of the best: %s", ", ".join(f"{name} {value:.4f}" for name, value in scores.items()))
    return scores


def start_from(model: nn.Module, initial: Mapping[str, Tensor]) -> None:
    """Weights of another model, or of its encoder alone; says what has none and starts from random numbers.

    An output layer for another number of speakers starts anew, too.
    """
    own = model.state_dict()
    unknown = [name for name in initial if name not in own]
    if unknown:
        raise ValueError(f"the initial weights do not fit this model: it has no {unknown[0]!r}")
    fitting = {name: tensor for name, tensor in initial.items() if tensor.shape == own[name].shape}
    for name in initial.keys() - fitting.keys():
        if not name.startswith("speakers."):
            shapes = f"{tuple(initial[name].shape)} instead of {tuple(own[name].shape)}"
            raise ValueError(f"the initial weights do not fit this model: {name!r} is {shapes}")
    model.load_state_dict(fitting, strict=False)
    new = sorted({name.split(".")[0] for name in own.keys() - fitting.keys()})
    log.info("initial weights: %d tensors; new ones in: %s", len(fitting), ", ".join(new) or "nothing")


@torch.no_grad()
def compare_frames(model: nn.Module) -> None:
    """New attention starts with equal queries and keys: it looks at frames that resemble the one that asks. On top of
    frames that tell voices apart, that is a first guess of who speaks, from which sorting is learned sooner."""
    for part in model.modules():
        if isinstance(part, SelfAttention):
            query, key = part.query, part.key
        elif isinstance(part, RelativeAttention):
            query, key = part.linear_q, part.linear_k
        else:
            continue
        query.weight.mul_(COMPARING_SCALE)
        key.load_state_dict(query.state_dict())


def build_diarizer(
    options: TrainDiarOptions, initial: Mapping[str, Any] | None = None
) -> tuple[DiarizerModel, dict[str, Any]]:
    """Return the model, with new weights, and the config from which it can be built again."""
    kind, built = choose_model(options, initial)
    config = {"model": kind, "options": replace(built, n_speakers=options.n_speakers).to_json()}
    config |= {"streaming": initial["streaming"]} if initial and "streaming" in initial else {}
    model = registry.build(config)
    assert isinstance(model, DiarizerModel)
    return model, config


def choose_model(options: TrainDiarOptions, initial: Mapping[str, Any] | None) -> tuple[str, Any]:
    """Return kind and options of the model to train.

    They are those of the diarizer to start from; of an encoder alone (NEST), as far as it goes.
    """
    if options.model != "sortformer":
        return options.model, EendOptions(attractors=options.model == "eend-eda")
    sizes = SIZES[options.size]
    if initial is None:
        return options.model, sizes
    given = registry.find_kind(initial)
    if given.is_diarizer:
        return initial["model"], given.options.from_json(initial["options"])
    if initial["model"] == "encoder":
        encoder = given.options.from_json(initial["options"])
        features = replace(encoder.features, gain=sizes.features.gain)  # the diarizer's own, in the paper too
        return options.model, replace(sizes, features=features, encoder=encoder.encoder)
    return options.model, sizes


def count_parameters(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


def number_speakers(data: TrainingData, options: TrainDiarOptions) -> dict[str, int]:
    """A number for every speaker of the training data, and for each as heard at another speed."""
    names = {segment.speaker for session in data.train for segment in read_segments(session)}
    speeds = {1.0, *options.encoder_warmup.speeds, *(speed for phase in options.phases for speed in phase.speeds)}
    names |= {name_voice(speaker.speaker, speed) for speaker in data.speakers for speed in speeds}
    return {name: number for number, name in enumerate(sorted(names))}


def find_sources(
    data: TrainingData, phase: PhaseOptions, options: TrainDiarOptions, seed: int, number_of: Mapping[str, int]
) -> list[Source]:
    """What a phase learns from: recorded sessions, conversations on the fly, or both."""
    sources: list[Source] = []
    n_recorded = 0
    if phase.recorded:
        sources.append(SessionSource(data.train, options.n_speakers, phase.seconds, seed, number_of))
        n_recorded = len(data.train)
    if phase.simulated > 0:
        if not data.speakers or data.simulate is None:
            raise ValueError(f"phase {phase.name!r} simulates on the fly, but there are no sources (--sources)")
        n_simulated = _count_simulated(phase, n_recorded)
        simulated = replace(
            data.simulate,
            seconds=phase.seconds,
            min_speakers=phase.min_speakers,
            max_speakers=phase.max_speakers,
            speeds=phase.speeds,
        )
        simulator = Simulator(data.speakers, simulated, seed, f"fly-{phase.name}")
        sources.append(ConversationSource(simulator, n_simulated, options.n_speakers, number_of))
    return sources


def _count_simulated(phase: PhaseOptions, n_recorded: int) -> int:
    """So that the simulated examples of an epoch are the wanted share of all."""
    if not n_recorded or phase.simulated == 1:
        return round(SIMULATED_SECONDS_AN_EPOCH / phase.seconds)
    return round(n_recorded * phase.simulated / (1 - phase.simulated))
