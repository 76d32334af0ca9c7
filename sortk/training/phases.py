"""Phase after phase on one path for both models: find the examples, train, keep the best weights, validate."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sortk.formats.audio import import_torchaudio
from sortk.formats.tokens import Tokenizer
from sortk.prepare.librispeechmix import ListedMixtures
from sortk.prepare.pieces import SpeakerIndex
from sortk.prepare.simulate import SimulateOptions, Simulator
from sortk.records import Session
from sortk.training.checkpoint import Checkpoints
from sortk.training.data import BatchLoader, MixtureSource, RecordedSource, SimulatedSource, Source
from sortk.training.loop import Task, train
from sortk.training.options import PhaseOptions
from sortk.training.processes import current_processes, wait_for_all
from sortk.training.targets import Labels

log = logging.getLogger(__name__)

SIMULATED_SECONDS_PER_EPOCH = 36_000.0  # where no recorded sessions determine how long an epoch is


@dataclass(frozen=True)
class TrainingData:
    """What there is to learn from."""

    train: Sequence[Session]  # may be empty if all phases simulate
    valid: Sequence[Session]
    speakers: Sequence[SpeakerIndex] = ()  # sources of conversations on the fly
    simulate: SimulateOptions | None = None  # their ratios and levels
    mixtures: ListedMixtures | None = None  # rendered on the fly; they count as recorded


@dataclass(frozen=True)
class Pretrained:
    """A trained model, as its folder has it."""

    weights: Mapping[str, Tensor]
    config: Mapping[str, Any]
    tokenizer: Tokenizer | None = None  # of an ASR


def run_phases(
    task: Task,
    phases: Sequence[PhaseOptions],
    sources_of: Callable[[Any], list[Source]],
    seed: int,
    out: Path,
    frozen: Sequence[str] = (),
) -> dict[str, float]:
    """Train the task's model through all phases, on the examples that `sources_of(phase)` gives.

    Fills `out` with checkpoints/<phase>/ and log.jsonl; continues where an earlier run stopped. At the end the model
    has the best weights of the last phase (the average of the `keep_best` best); returns its scores. `frozen` are parts
    of the model that learn in no phase.
    """
    device = current_processes().choose_device()
    for phase in phases:
        task.begin(phase)
        loader = BatchLoader(sources_of(phase), phase.batch_limit, seed, phase.loop.workers)
        loop = replace(phase.loop, freeze=tuple(dict.fromkeys((*frozen, *phase.loop.freeze))))
        train(task, loader, loop, out, device, phase.name, seed)
    wait_for_all()  # rank 0 may still be writing the last weights
    last = phases[-1]
    task.model.load_state_dict(Checkpoints(out / "checkpoints" / last.name, last.loop.keep_best).average_best())
    task.eval()
    with torch.inference_mode():
        scores = task.validate(device)
    log.info("the model that is kept: %s", ", ".join(f"{name} {value:.4f}" for name, value in scores.items()))
    return scores


def check_data(data: TrainingData, phases: Sequence[PhaseOptions]) -> None:
    """Raise ValueError if there is nothing to validate on, or a phase has nothing to learn from."""
    if not data.valid:
        raise ValueError("the validation manifest is empty")
    for phase in phases:
        if phase.recorded and not data.train and not data.mixtures:
            raise ValueError(
                f"phase {phase.name!r} learns from the training manifest, which is empty; give one, or set "
                "recorded = false and simulated = 1"
            )
        if phase.simulated > 0 and (not data.speakers or data.simulate is None):
            raise ValueError(f"phase {phase.name!r} simulates on the fly, but there are no sources (--sources)")
        if phase.simulated > 0 and any(speed != 1 for speed in phase.speeds):
            import_torchaudio(f"phase {phase.name!r}, which plays its sources at {len(phase.speeds)} speeds,")


def recorded_source(
    data: TrainingData, phase: PhaseOptions, labels: Labels, max_seconds: float, seed: int
) -> list[Source]:
    """Return the phase's part of the training manifest and of the list of mixtures, if it reads them."""
    sources: list[Source] = []
    if phase.recorded and data.train:
        sources.append(RecordedSource(data.train, labels, max_seconds, seed))
    if phase.recorded and data.mixtures:
        sources.append(MixtureSource(data.mixtures, labels, max_seconds))
    return sources


def simulated_source(
    data: TrainingData, phase: PhaseOptions, labels: Labels, set_name: str, seed: int, min_seconds: float = 0.0
) -> list[Source]:
    """Return the phase's conversations on the fly, if it has any; their names begin with `set_name`."""
    if phase.simulated == 0:
        return []
    assert data.simulate is not None
    simulated = replace(
        data.simulate,
        seconds=phase.seconds,
        min_speakers=phase.min_speakers,
        max_speakers=phase.max_speakers,
        speeds=phase.speeds,
    )
    simulator = Simulator(data.speakers, simulated, seed, set_name)
    n_recorded = sum(len(source) for source in recorded_source(data, phase, labels, phase.seconds, seed))
    n_simulated = count_simulated(phase, n_recorded)
    return [SimulatedSource(simulator, n_simulated, labels, min_seconds, phase.window_seconds)]


def count_simulated(phase: PhaseOptions, n_recorded: int) -> int:
    """Return how many simulated examples of an epoch make the wanted share of all; at least one."""
    if not phase.recorded or phase.simulated == 1:
        return round(SIMULATED_SECONDS_PER_EPOCH / (phase.window_seconds or phase.seconds))
    return max(1, round(n_recorded * phase.simulated / (1 - phase.simulated)))
