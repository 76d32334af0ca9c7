"""Stage 5: train a diarizer, phase after phase, and write its best weights as a model folder.

It learns who speaks when, and in which order they arrived.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sortk.formats.model_folder import save_model
from sortk.models import aed_eend, eend, eend_gla, eend_vc, registry
from sortk.models.blocks import Blocks
from sortk.models.diarizer import DiarizerModel
from sortk.models.eend_vc import EendVc
from sortk.models.frames import SpeakerOutput, valid_frames
from sortk.models.sortformer import SIZES
from sortk.records import Counts
from sortk.training.data import (
    Batch,
    BatchLoader,
    ExampleSource,
    Pretrained,
    RecordedSource,
    TrainingData,
    check_data,
    recorded_source,
    simulated_source,
)
from sortk.training.loop import TrainingTask, run_phases
from sortk.training.losses import (
    VECTOR_WEIGHT,
    SpeakerDictionary,
    arrival_order,
    best_permutation,
    diarization_loss,
    permute_speakers,
    share_in_order,
)
from sortk.training.options import DiarPhaseOptions, PhaseOptions, TrainDiarOptions, WarmupPhase
from sortk.training.processes import current_processes, sum_numbers
from sortk.training.small_scale import (
    FIT_BATCHES,
    fit_identities,
    number_voices,
    read_teacher,
    speaker_loss,
    start_by_comparing,
)
from sortk.training.targets import DiarizerLabels

log = logging.getLogger(__name__)

THRESHOLD = 0.5  # above it a speaker speaks; stage 7 tunes it
OUTPUT_LAYER = "speakers."  # how the names of the weights with one row for each speaker begin


def train_diarizer(
    data: TrainingData, options: TrainDiarOptions, seed: int, out: Path, initial: Pretrained | None = None
) -> dict[str, float]:
    """Fill `out` with checkpoints/<phase>/, log.jsonl and model/; continue where an earlier run stopped.

    `initial` is a model to start from, or an encoder alone. Returns the scores of the model that is written. Several
    processes may do it together (see `processes`).
    """
    warmup = [options.encoder_warmup.as_phase()] if options.encoder_warmup.steps else []
    phases: list[DiarPhaseOptions] = [*warmup, *options.phases]
    check_data(data, phases)
    seed += options.seed_offset
    torch.manual_seed(seed)
    model, config = build_diarizer(options, initial.config if initial else None)
    if warmup:
        start_by_comparing(model)
    if initial is not None:
        start_from(model, initial.weights)
    speeds = {speed for phase in phases for speed in phase.speeds}
    number_of = number_voices(data.train, data.speakers, speeds) if options.global_speakers else {}
    teacher: Tensor | None = None
    if options.encoder_warmup.teacher:
        teacher, number_of = read_teacher(Path(options.encoder_warmup.teacher), number_of)
    labels = DiarizerLabels(model.options.n_speakers, number_of, model.rows_per_frame)
    held_out = RecordedSource(data.valid, replace(labels, number_of={}), options.validation_seconds, seed)
    validation = BatchLoader([held_out], phases[-1].batch_limit, seed)
    task = DiarizerTask(model, options.alpha, validation, len(number_of), teacher)
    n_weights = sum(weight.numel() for weight in model.parameters())
    device = current_processes().choose_device()
    log.info("%s with %.2fM parameters, on %s", options.model, n_weights / 1e6, device)

    def sources_of(phase: DiarPhaseOptions) -> list[ExampleSource]:
        simulated = simulated_source(data, phase, labels, f"fly-{phase.name}", seed)
        return [*recorded_source(data, phase, labels, phase.seconds, seed), *simulated]

    if initial is not None and teacher is not None and phases:
        loader = BatchLoader(sources_of(phases[0]), phases[0].batch_limit, seed)
        batches = itertools.islice(loader.load_epoch(0), FIT_BATCHES)
        fitted = fit_identities(model.to(device), teacher.to(device), (batch.to(device) for batch in batches))
        task.identities = nn.Parameter(fitted.clone())
    scores = run_phases(task, phases, sources_of, seed, out)
    if current_processes().leads:
        save_model(out / "model", model.state_dict(), config)
    return scores


class DiarizerTask(TrainingTask):
    """A diarizer of `models`, its loss and its validation.

    Its frames can also be made to name the speaker among all those of the training data (see `small_scale`): as the
    only task in the encoder warm-up, and then beside diarization (`speaker_weight`).

    A speaker is represented by a learned vector; or, with `teacher`, the embedding of each voice by another model,
    (identities, d), times a learned matrix. Then frames are also drawn to their speaker's vector (1 - cos): they learn
    the geometry of a large space of voices, and not a few names.
    """

    model: DiarizerModel
    teacher: Tensor | None

    def __init__(
        self,
        model: DiarizerModel,
        alpha: float,
        validation: BatchLoader,
        n_identities: int = 0,
        teacher: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.model, self.alpha, self.validation = model, alpha, validation
        self.register_buffer("teacher", teacher, persistent=False)
        self.identities: nn.Parameter | None
        if teacher is not None:
            self.identities = nn.Parameter(nn.init.orthogonal_(torch.empty(teacher.shape[1], model.embedding_size)))
        else:
            self.identities = nn.Parameter(torch.randn(n_identities, model.embedding_size)) if n_identities else None
        self.dictionary: SpeakerDictionary | None = None
        if isinstance(model, EendVc) and n_identities > 0:
            self.dictionary = SpeakerDictionary(n_identities, model.options.vector_size)
        self._names_speakers_only, self._layer_weight = False, 0.0
        self._speaker_weights = (0.0, 0.0)  # at the start of the phase and at its end

    def begin(self, phase: PhaseOptions) -> None:
        assert isinstance(phase, DiarPhaseOptions)
        self._names_speakers_only = isinstance(phase, WarmupPhase)
        self._speaker_weights = (phase.speaker_weight, phase.final_speaker_weight)
        self._layer_weight = phase.layer_weight
        self.model.by_layer = phase.layer_weight > 0

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        if self._names_speakers_only:
            return self._name_speakers(self.model.embed(batch.samples, batch.lengths), batch.speakers)
        reference = (batch.targets,) if self.model.teacher_forcing else ()
        output: SpeakerOutput = self.model(batch.samples, batch.lengths, *reference)
        about: dict[str, Tensor] = {}
        naming: Tensor | None = None
        if self.identities is not None and any(self._speaker_weights):
            naming, about = self._name_speakers(output.embeddings, batch.speakers)
        loss = diarization_loss(output, batch.targets, self.alpha)
        about |= {"sort": loss.sort, "pil": loss.pil, "arrival_accuracy": loss.arrival_accuracy}
        total = loss.total
        if self.dictionary is not None and isinstance(output.for_loss, Blocks):
            vectors = self.dictionary(output.for_loss, loss.permutation, batch.targets, batch.speakers)
            about["vector"] = vectors.detach()
            total = (1 - VECTOR_WEIGHT) * total + VECTOR_WEIGHT * vectors
        for logits in output.earlier:
            below = diarization_loss(output._replace(logits=logits), batch.targets, self.alpha).total
            total = total + self._layer_weight / len(output.earlier) * below
        if naming is not None:
            first, last = self._speaker_weights
            total = total + ((1 - self.progress) * first + self.progress * last) * naming
        return total, about

    def _name_speakers(self, embeddings: Tensor, speakers: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """(batch, frames, d), (batch, frames) -> the loss of naming speakers, and what to log about it."""
        assert self.identities is not None
        vectors = self.identities if self.teacher is None else self.teacher @ self.identities
        loss, accuracy, cosine = speaker_loss(embeddings, vectors, speakers)
        about = {"speaker": loss.detach(), "speaker_accuracy": accuracy}
        if self.teacher is not None:
            about["cosine"] = cosine.detach()
            loss = loss + 1 - cosine
        return loss, about

    def validate(self, device: torch.device) -> dict[str, float]:
        """Return DER with the best mapping, DER with output k taken for the k-th speaker to arrive, and how often the
        speakers are in the order of arrival.

        Both count rows of the model's output without a collar, at threshold 0.5.
        """
        total = FrameErrors()
        processes = current_processes()
        for cpu_batch in self.validation.load_part(processes.rank, processes.n):
            batch = cpu_batch.to(device)
            output: SpeakerOutput = self.model(batch.samples, batch.lengths)
            total += count_errors(output, batch.targets)
        total = FrameErrors(**sum_numbers(asdict(total), device))
        in_order = total.n_in_order / max(total.n_sessions, 1.0)
        return {
            "score": total.der,
            "der": total.der,
            "der_unmapped": total.der_unmapped,
            "arrival_accuracy": in_order,
        }


@dataclass(frozen=True)
class FrameErrors(Counts):
    """Counts that add up over sessions."""

    spoken: float = 0.0  # speaker frames in the reference
    wrong: float = 0.0  # missed, false or confused, with the best mapping
    wrong_unmapped: float = 0.0  # with output k taken for the k-th speaker to arrive
    n_sessions: float = 0.0
    n_in_order: float = 0.0

    @property
    def der(self) -> float:
        return self.wrong / max(self.spoken, 1.0)

    @property
    def der_unmapped(self) -> float:
        return self.wrong_unmapped / max(self.spoken, 1.0)


def count_errors(output: SpeakerOutput, targets: Tensor) -> FrameErrors:
    """Count the errors of a batch; targets are (batch, frames, speakers)."""
    decided = (output.speaker_probs > THRESHOLD).float()
    # A model that counts its speakers may find more than the targets have columns.
    targets = functional.pad(targets, (0, max(decided.shape[2] - targets.shape[2], 0)))
    ordered = permute_speakers(targets, arrival_order(targets, output.lengths))
    valid = valid_frames(output.lengths, targets.shape[1])
    if valid is not None:
        ordered = ordered * valid[:, :, None]
    best = best_permutation(ordered.transpose(1, 2) @ decided)  # the mapping with the most frames in common
    n_right = share_in_order(best, (ordered != 0).any(dim=1)) * len(targets)
    return FrameErrors(
        spoken=float(ordered.sum()),
        wrong=_count_wrong(permute_speakers(ordered, best), decided),
        wrong_unmapped=_count_wrong(ordered, decided),
        n_sessions=float(len(targets)),
        n_in_order=float(n_right),
    )


def _count_wrong(reference: Tensor, decided: Tensor) -> float:
    """max(speakers there, speakers found) - those found rightly, summed over frames: NIST's DER."""
    n_reference, n_decided, n_right = reference.sum(2), decided.sum(2), (reference * decided).sum(2)
    return float((torch.maximum(n_reference, n_decided) - n_right).sum())


# ---------------------------------------------------------------------------------------------------------------------
# The model


def build_diarizer(
    options: TrainDiarOptions, initial: Mapping[str, Any] | None = None
) -> tuple[DiarizerModel, dict[str, Any]]:
    """Return the model, with new weights, and the config from which it can be built again.

    The number of speakers is that of the model to start from, with the config `initial`, unless the options set it.
    """
    kind, built = choose_model(options, initial)
    if options.n_speakers:
        built = replace(built, n_speakers=options.n_speakers)
    config = {"model": kind, "options": built.to_json()}
    config |= {key: initial[key] for key in ("streaming", "linking") if initial and key in initial}
    model = registry.build(config)
    assert isinstance(model, DiarizerModel)
    return model, config


def choose_model(options: TrainDiarOptions, initial: Mapping[str, Any] | None) -> tuple[str, Any]:
    """Return kind and options of the model to train.

    They are those of the diarizer to start from; of an encoder alone (NEST), as far as it goes.
    """
    if initial is not None and initial["model"] == options.model:
        return options.model, registry.find_kind(initial).options.from_json(initial["options"])
    if options.model != "sortformer":
        found = _find_size(options.model, options.size)
        if initial is not None and initial["model"] == "wavlm" and options.model == "wavlm-eend-vc":
            found = replace(found, wavlm=registry.find_kind(initial).options.from_json(initial["options"]))
        return options.model, found
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


def _find_size(model: str, size: str) -> Any:
    """Return the options of an EEND model that has named sizes."""
    named: dict[tuple[str, str], Any] = {**eend.SIZES, **eend_gla.SIZES, **aed_eend.SIZES, **eend_vc.SIZES}
    sizes = {name: found for (kind, name), found in named.items() if kind == model}
    if size not in sizes:
        raise ValueError(f"{model} has no size {size}; set train_diar.size to {' or '.join(sizes)}")
    return sizes[size]


def start_from(model: nn.Module, initial: Mapping[str, Tensor]) -> None:
    """Load weights of another model, or of its encoder alone, and log which parts keep their random weights.

    If the number of speakers differs, the output layer keeps the rows that both have.
    """
    own = model.state_dict()
    unknown = [name for name in initial if name not in own]
    if unknown:
        raise ValueError(f"the initial weights do not fit this model: it has no {unknown[0]!r}")
    fitting = {name: tensor for name, tensor in initial.items() if tensor.shape == own[name].shape}
    n_old, n_new = 0, 0
    for name in sorted(initial.keys() - fitting.keys()):
        given, wanted = initial[name], own[name]
        if not name.startswith(OUTPUT_LAYER) or given.shape[1:] != wanted.shape[1:]:
            shapes = f"{tuple(given.shape)} instead of {tuple(wanted.shape)}"
            raise ValueError(f"the initial weights do not fit this model: {name!r} is {shapes}")
        n_old, n_new = len(given), len(wanted)
        kept = min(n_old, n_new)
        fitting[name] = torch.cat([given[:kept].to(wanted), wanted[kept:]])
    model.load_state_dict(fitting, strict=False)
    if n_old != n_new:
        log.warning(
            "the initial model has %d speakers and this one %d: the first %d outputs are kept, %s",
            n_old,
            n_new,
            min(n_old, n_new),
            f"{n_new - n_old} are new" if n_new > n_old else f"{n_old - n_new} are left out",
        )
    new = sorted({name.split(".")[0] for name in own.keys() - fitting.keys()})
    log.info("loaded %d initial tensors; random weights in: %s", len(fitting), ", ".join(new) or "none")
