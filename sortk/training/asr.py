"""Stage 6: train a multi-speaker ASR, phase after phase, and write its best weights as a model folder.

It learns to write sorted serialized transcripts, by plain cross-entropy. The folder has config.json, model.safetensors
and the tokenizer; the diarizer is inside.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

from sortk.edits import count_edits, match_speakers
from sortk.formats.mixlist import Mixture
from sortk.formats.model_folder import SST_LEVEL, save_model
from sortk.formats.sst import GRAMMARS, Level, SstOptions, parse_any, parse_sst, strip_tokens
from sortk.formats.tokens import (
    FILE_NAME,
    Tokenizer,
    TokenizerSettings,
    load_tokenizer,
    save_tokenizer,
    train_tokenizer,
)
from sortk.models.canary import SIZES, CanaryOptions, extend_vocabulary
from sortk.models.decoding import Constraint, DecodingOptions, SstConstraint, search
from sortk.models.frames import SAMPLE_RATE
from sortk.models.kernels import KernelOptions
from sortk.models.msasr import MsAsr, MsAsrOptions
from sortk.models.options import check_weights
from sortk.models.sortformer import SortformerOptions
from sortk.prepare.pieces import read_index
from sortk.records import Counts, Session
from sortk.training.checkpoint import with_prefix
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
from sortk.training.options import PAPER_SPEAKERS, AsrPhaseOptions, PhaseOptions, TrainAsrOptions
from sortk.training.processes import current_processes, rank0_first, sum_numbers
from sortk.training.small_scale import alignment_losses, build_token_head
from sortk.training.targets import NO_SPAN, NOT_KNOWN, AsrLabels

log = logging.getLogger(__name__)

VALIDATION_BATCHES = 4  # batches of training in one of validation
ASR, DIARIZER = "asr.", "diarizer."  # how the names of an MS-ASR's weights begin


def train_asr(
    data: TrainingData,
    sst: SstOptions,
    options: TrainAsrOptions,
    seed: int,
    out: Path,
    initial: Pretrained | None = None,
    diarizer: Pretrained | None = None,
) -> dict[str, float]:
    """Fill `out` with checkpoints/<phase>/, log.jsonl and model/; continue where an earlier run stopped.

    The sessions are samples of stage 4, whose texts were written as `sst` says. `initial` is an ASR to start from,
    `diarizer` a trained Sortformer. Returns the scores of the model that is written. Several processes may do it
    together (see `processes`).
    """
    check_data(data, options.phases)
    seed += options.seed_offset
    torch.manual_seed(seed)
    tokenizer = initial.tokenizer if initial else _find_tokenizer(data, options, out)
    if tokenizer is None:
        raise ValueError("the model to start from is not an ASR: it has no tokenizer")
    model, tokenizer = build_asr(options, tokenizer, initial, diarizer)
    level = sst.level if options.speaker_tokens else None
    labels = AsrLabels(
        tokenizer,
        model.options.n_speakers,
        sst,
        options.speaker_tokens,
        model.options.asr.max_tokens,
        needs_turns=options.supervision == "truth",
    )
    validated = data.valid[: options.validation_samples]
    _check_transcripts(validated, level)
    # Without a diarizer inside, who speaks comes from the annotation in validation, too.
    needs_turns = options.supervision != "none" and model.diarizer is None
    held_out = RecordedSource(validated, replace(labels, needs_turns=needs_turns))
    last = options.phases[-1]
    # Decoding keeps no gradients, and a step costs much the same for many clips as for few.
    validation = BatchLoader([held_out], last.batch_limit.times(VALIDATION_BATCHES), seed)
    names_tokens = any(phase.word_weight > 0 for phase in options.phases)
    task = AsrTask(model, tokenizer, level, validation, options.label_smoothing, names_tokens)
    n_weights = sum(weight.numel() for weight in model.parameters())
    log.info(
        "MS-ASR, supervision %s, %.2fM parameters, %d tokens", options.supervision, n_weights / 1e6, tokenizer.n_tokens
    )

    def sources_of(phase: AsrPhaseOptions) -> list[ExampleSource]:
        simulated = simulated_source(data, phase, labels, f"asr-{phase.name}", seed, phase.min_seconds)
        return [*recorded_source(data, phase, labels, math.inf, seed), *simulated]

    scores = run_phases(task, options.phases, sources_of, seed, out, model.frozen_parts)
    if current_processes().leads:
        save_asr(out / "model", model, tokenizer, level, _find_longest(data, last))
    return scores


def _check_transcripts(sessions: Sequence[Session], level: Level | None) -> None:
    """Raise ValueError, before hours of training, for a text that is not an SST of that level: it cannot be scored."""
    for session in sessions:
        if session.text and level is not None:
            try:
                parse_sst(session.text, level)
            except ValueError as error:
                raise ValueError(f"session {session.session_id}: {error} (level {level})") from None


def _find_longest(data: TrainingData, phase: AsrPhaseOptions) -> float:
    """Return the seconds of the longest example of a phase."""
    recorded = [session.duration or 0.0 for session in data.train] if phase.recorded else []
    recorded += [mixture.duration for mixture in _some_mixtures(data)] if phase.recorded else []
    return max([*recorded, phase.seconds if phase.simulated > 0 else 0.0])


def _some_mixtures(data: TrainingData) -> Iterator[Mixture]:
    """Yield the first mixtures of the list, which may be of millions: enough to know their lengths and words."""
    return itertools.islice(data.mixtures.mixtures, 50_000) if data.mixtures else iter(())


def _find_tokenizer(data: TrainingData, options: TrainAsrOptions, out: Path) -> Tokenizer:
    """Return the tokenizer of this training run: made once, and read again when the run is resumed."""
    with rank0_first():
        if not (out / FILE_NAME).exists():
            n_speakers = options.n_speakers or PAPER_SPEAKERS
            save_tokenizer(out, train_tokenizer(_find_texts(data), options.n_tokens, n_speakers))
        return load_tokenizer(out, {"tokenizer": TokenizerSettings().to_json()})


def _find_texts(data: TrainingData) -> Iterator[str]:
    """Yield the texts of the training manifest, and of the sources of speech on the fly."""
    for session in data.train:
        yield session.text or ""
    for mixture in _some_mixtures(data):
        yield from (utterance.text for utterance in mixture.utterances)
    for speaker in data.speakers:
        for utterance in read_index(speaker.path):
            yield " ".join(word.text for piece in utterance for word in piece.words)


def save_asr(folder: Path, model: MsAsr, tokenizer: Tokenizer, level: Level | None, piece_seconds: float) -> None:
    """Write a model folder that `sortk transcribe` reads; it cuts recordings into pieces of so many seconds.

    A level of None is a model that has learned words alone.
    """
    save_tokenizer(folder, tokenizer)
    config = {"model": "msasr", "options": model.options.to_json(), "tokenizer": tokenizer.settings.to_json()}
    save_model(folder, model.state_dict(), config | {SST_LEVEL: level, "piece_seconds": piece_seconds})


class AsrTask(TrainingTask):
    """A multi-speaker ASR model, its loss and its validation.

    From scratch the decoder has to find out by itself where in the sound a word is. It learns that much faster if the
    states also have to name, frame by frame, the token that is spoken: `word_weight` times that loss (`small_scale`).
    """

    model: MsAsr

    def __init__(
        self,
        model: MsAsr,
        tokenizer: Tokenizer,
        level: Level | None,
        validation: BatchLoader,
        label_smoothing: float = 0.0,
        names_tokens: bool = False,
    ) -> None:
        super().__init__()
        self.model, self.tokenizer, self.level, self.validation = model, tokenizer, level, validation
        self.label_smoothing, self._word_weight, self._alignment_weight = label_smoothing, 0.0, 0.0
        d_model = model.options.asr.decoder.d_model
        self.words = build_token_head(d_model, model.options.asr.n_tokens) if names_tokens else None

    def begin(self, phase: PhaseOptions) -> None:
        assert isinstance(phase, AsrPhaseOptions)
        self._word_weight, self._alignment_weight = phase.word_weight, phase.alignment_weight

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        assert batch.tokens is not None and batch.frame_tokens is not None and batch.token_spans is not None
        truth = batch.targets if self.model.options.supervision == "truth" else None
        states, n_frames = self.model.encode(batch.samples, batch.lengths, truth)
        given, wanted = self._shift(batch.tokens)
        alignments: list[Tensor] | None = [] if self._alignment_weight > 0 else None
        logits = self.model.asr.decoder(given, states, n_frames, alignments)
        loss = mean_of_clips(token_losses(logits, wanted, self.label_smoothing), wanted != NOT_KNOWN)
        right = mean_of_clips((logits.argmax(dim=2) == wanted).float(), wanted != NOT_KNOWN)
        about = {"text": loss.detach(), "token_accuracy": right}
        if self.words is not None and self._word_weight > 0:
            frames = batch.frame_tokens[:, : states.shape[1]]
            word_loss = mean_of_clips(token_losses(self.words(states), frames), frames != NOT_KNOWN)
            about["words"] = word_loss.detach()
            loss = loss + self._word_weight * word_loss
        if alignments:
            spans = batch.token_spans[:, 1:]
            upper = alignments[len(alignments) // 2 :]
            losses = torch.stack([alignment_losses(attention, spans) for attention in upper]).mean(dim=0)
            alignment_loss = mean_of_clips(losses, spans[:, :, 0] != NO_SPAN)
            about["alignment"] = alignment_loss.detach()
            loss = loss + self._alignment_weight * alignment_loss
        return loss, about

    def _shift(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """(batch, n) -> the tokens that are given, and those that are to follow; the prompt is not learned."""
        given = tokens[:, :-1].masked_fill(tokens[:, :-1] == NOT_KNOWN, self.tokenizer.pad)
        wanted = tokens[:, 1:].clone()
        wanted[:, : len(self.tokenizer.prompt) - 1] = NOT_KNOWN
        return given, wanted

    def validate(self, device: torch.device) -> dict[str, float]:
        """Return WER, of all words without their speakers, and cpWER (Appendix D); texts are decoded greedily."""
        processes = current_processes()
        constraint = None
        if self.level is not None:
            grammar, n_tokens = GRAMMARS[self.level], self.model.options.asr.n_tokens
            constraint = SstConstraint(self.tokenizer, n_tokens, grammar, device)
        total = TextErrors()
        for batch in self.validation.load_part(processes.rank, processes.n):
            found = self.transcribe(batch.to(device), constraint)
            for reference, hypothesis in zip(batch.texts, found, strict=True):
                # For a model that learns words alone, speaker tokens are noise.
                total += count_text_errors(reference, hypothesis if self.level else strip_tokens(hypothesis))
        total = TextErrors(**sum_numbers(asdict(total), device))
        return {"score": total.cpwer, "wer": total.wer, "cpwer": total.cpwer}

    def transcribe(self, batch: Batch, constraint: Constraint | None) -> list[str]:
        """Return the text of each clip; who speaks comes from the annotation if there is no diarizer."""
        model, options = self.model, DecodingOptions()
        states, n_frames = model.encode(batch.samples, batch.lengths, batch.targets if model.diarizer is None else None)
        n_samples = [batch.samples.shape[1]] * len(states) if batch.lengths is None else batch.lengths.tolist()
        limits = [options.limit_tokens(n / SAMPLE_RATE) for n in n_samples]
        steps = model.asr.decoder.start(states, n_frames, max_tokens=len(self.tokenizer.prompt) + max(limits))
        found = search(steps, self.tokenizer.prompt, self.tokenizer.end, limits, options, constraint, states.device)
        return [self.tokenizer.decode(hypothesis.tokens) for hypothesis in found]


def token_losses(logits: Tensor, tokens: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """(batch, n, n_tokens), (batch, n) -> (batch, n); 0 where a token is NOT_KNOWN."""
    return functional.cross_entropy(
        logits.float().transpose(1, 2),
        tokens,
        ignore_index=NOT_KNOWN,
        reduction="none",
        label_smoothing=label_smoothing,
    )


def mean_of_clips(values: Tensor, known: Tensor) -> Tensor:
    """Return means over the known values of each clip, then over clips: a batch in parts has the loss of all of it."""
    return ((values * known).sum(dim=1) / known.sum(dim=1).clamp(min=1)).mean()


@dataclass(frozen=True)
class TextErrors(Counts):
    """Counts that add up over clips."""

    n_words: float = 0.0  # of the references
    wrong: float = 0.0  # substituted, inserted or deleted, speakers aside
    wrong_by_speaker: float = 0.0  # with each speaker's words by themselves, speakers mapped as is best

    @property
    def wer(self) -> float:
        return self.wrong / max(self.n_words, 1.0)

    @property
    def cpwer(self) -> float:
        return self.wrong_by_speaker / max(self.n_words, 1.0)


def count_text_errors(reference: str, hypothesis: str) -> TextErrors:
    """Count the errors of one clip; both are SST of any level, or empty."""
    plain = count_edits(strip_tokens(reference).split(), strip_tokens(hypothesis).split())
    by_speaker, _ = match_speakers(_split(reference), _split(hypothesis), count_edits, [])
    return TextErrors(float(plain.words), float(plain.wrong), float(by_speaker.wrong))


def _split(text: str) -> dict[str, list[str]]:
    """Return the words of each speaker."""
    words: dict[str, list[str]] = {}
    for turn in parse_any(text):
        words.setdefault(turn.speaker, []).extend(turn.text.split())
    return words


# ---------------------------------------------------------------------------------------------------------------------
# The model


def build_asr(
    options: TrainAsrOptions, tokenizer: Tokenizer, initial: Pretrained | None, diarizer: Pretrained | None
) -> tuple[MsAsr, Tokenizer]:
    """Return the model, from pretrained parts or with new weights, and a tokenizer with a token for each speaker."""
    asr, asr_weights = _read_asr(initial) if initial else (SIZES[options.size], {})
    diarizer = diarizer or _find_inner_diarizer(initial)
    sorted_by = None
    if diarizer and options.supervision != "none":
        if diarizer.config["model"] != "sortformer":
            raise ValueError(f"the diarizer is {diarizer.config['model']!r}; only a Sortformer sorts by arrival")
        sorted_by = SortformerOptions.from_json(diarizer.config["options"])
    n_initial = MsAsrOptions.from_json(initial.config["options"]).n_speakers if _is_msasr(initial) else 0
    n_speakers = sorted_by.n_speakers if sorted_by else options.n_speakers or n_initial or PAPER_SPEAKERS
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


def _is_msasr(initial: Pretrained | None) -> TypeGuard[Pretrained]:
    return initial is not None and initial.config["model"] == "msasr"


def _load(part: nn.Module, weights: Mapping[str, Tensor], what: str) -> None:
    try:
        check_weights(part.state_dict(), weights)
    except ValueError as error:
        raise ValueError(f"{what} does not fit its own config: {error}") from None
    part.load_state_dict(dict(weights))


def _read_asr(initial: Pretrained) -> tuple[CanaryOptions, dict[str, Tensor]]:
    """Return options and weights of Canary, alone or inside an MS-ASR (without adapters, which would be lost)."""
    options = initial.config["options"]
    if initial.config["model"] == "canary":
        return CanaryOptions.from_json(options), dict(initial.weights)
    if initial.config["model"] == "msasr":
        built = MsAsrOptions.from_json(options)
        if built.adapters:
            raise ValueError("the model to start from has adapters; start from the one that it was trained from")
        return built.asr, with_prefix(initial.weights, ASR)
    raise ValueError(f"the model to start from is {initial.config['model']!r}, not an ASR (canary or msasr)")


def _find_inner_diarizer(initial: Pretrained | None) -> Pretrained | None:
    """Return the diarizer inside the MS-ASR that training starts from, if there is one."""
    if not _is_msasr(initial) or initial.config["options"].get("diarizer") is None:
        return None
    weights = with_prefix(initial.weights, DIARIZER)
    return Pretrained(weights, {"model": "sortformer", "options": initial.config["options"]["diarizer"]})
