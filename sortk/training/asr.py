"""Stage 6's task: an ASR model learns to write sorted serialized transcripts, by plain cross-entropy."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import meeteval
import torch
from torch import Tensor, nn
from torch.nn import functional

from sortk.formats.sst import GRAMMARS, Level, parse_any, strip_tokens
from sortk.formats.tokens import Tokenizer
from sortk.models.decoding import Constraint, DecodingOptions, SstConstraint, search
from sortk.models.frames import SAMPLE_RATE
from sortk.models.msasr import MsAsr
from sortk.training.asr_batches import NOT_KNOWN, AsrBatch, AsrLoader
from sortk.training.batches import Batch
from sortk.training.processes import current_processes, sum_numbers


class AsrTask(nn.Module):
    """A multi-speaker ASR model, its loss and its validation.

    From scratch the decoder has to find out by itself where in the sound a word is. It learns that much faster if the
    states also have to name, frame by frame, the piece of a word that is spoken: `word_weight` times that loss.
    """

    def __init__(
        self,
        model: MsAsr,
        tokenizer: Tokenizer,
        level: Level | None,
        validation: AsrLoader,
        label_smoothing: float = 0.0,
        names_words: bool = False,
    ) -> None:
        super().__init__()
        self.model, self.tokenizer, self.level, self.validation = model, tokenizer, level, validation
        self.label_smoothing, self.word_weight, self.progress = label_smoothing, 0.0, 0.0
        d_model = model.options.asr.decoder.d_model
        head = nn.Sequential(nn.LayerNorm(d_model), nn.Linear(d_model, model.options.asr.n_tokens))
        self.words = head if names_words else None

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a batch, and what to log about it."""
        assert isinstance(batch, AsrBatch)
        truth = batch.targets if self.model.options.supervision == "truth" else None
        states, n_frames = self.model.encode(batch.samples, batch.lengths, truth)
        given, wanted = self._shift(batch.tokens)
        logits = self.model.asr.decoder(given, states, n_frames)
        loss = mean_of_clips(token_losses(logits, wanted, self.label_smoothing), wanted != NOT_KNOWN)
        right = mean_of_clips((logits.argmax(dim=2) == wanted).float(), wanted != NOT_KNOWN)
        about = {"text": loss.detach(), "tokens_right": right}
        if self.words is not None and self.word_weight > 0:
            frames = batch.frame_tokens[:, : states.shape[1]]
            word_loss = mean_of_clips(token_losses(self.words(states), frames), frames != NOT_KNOWN)
            about["words"] = word_loss.detach()
            loss = loss + self.word_weight * word_loss
        return loss, about

    def _shift(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """(batch, n) -> the tokens that are given, and those that are to follow; the prompt need not be learned."""
        given = tokens[:, :-1].masked_fill(tokens[:, :-1] == NOT_KNOWN, self.tokenizer.pad)
        wanted = tokens[:, 1:].clone()
        wanted[:, : len(self.tokenizer.prompt) - 1] = NOT_KNOWN
        return given, wanted

    def validate(self, device: torch.device) -> dict[str, float]:
        """WER, of all words without their speakers, and cpWER (Appendix D); texts are decoded greedily."""
        processes = current_processes()
        constraint = None
        if self.level is not None:
            grammar, n_tokens = GRAMMARS[self.level], self.model.options.asr.n_tokens
            constraint = SstConstraint(self.tokenizer, n_tokens, grammar, device)
        total = TextErrors()
        for batch in self.validation.load_part(processes.rank, processes.n):
            assert isinstance(batch, AsrBatch)
            found = self.transcribe(batch.to(device), constraint)
            for reference, hypothesis in zip(batch.texts, found, strict=True):
                # Of a model that learns words alone, speaker tokens are noise.
                total += count_text_errors(reference, hypothesis if self.level else strip_tokens(hypothesis))
        total = TextErrors(**sum_numbers(asdict(total), device))
        return {"score": total.cpwer, "wer": total.wer, "cpwer": total.cpwer}

    def transcribe(self, batch: AsrBatch, constraint: Constraint | None) -> list[str]:
        """The text of each clip; the annotation tells who speaks if there is no diarizer."""
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
    """Means over the known ones of each clip, then over clips: a batch in parts has the loss of the whole."""
    return ((values * known).sum(dim=1) / known.sum(dim=1).clamp(min=1)).mean()


@dataclass(frozen=True)
class TextErrors:
    """Counts that add up over clips."""

    n_words: float = 0.0  # of the references
    wrong: float = 0.0  # substituted, inserted or deleted, speakers aside
    wrong_by_speaker: float = 0.0  # with each speaker's words by themselves, speakers mapped as is best

    def __add__(self, other: TextErrors) -> TextErrors:
        return TextErrors(
            self.n_words + other.n_words,
            self.wrong + other.wrong,
            self.wrong_by_speaker + other.wrong_by_speaker,
        )

    @property
    def wer(self) -> float:
        return self.wrong / max(self.n_words, 1.0)

    @property
    def cpwer(self) -> float:
        return self.wrong_by_speaker / max(self.n_words, 1.0)


def count_text_errors(reference: str, hypothesis: str) -> TextErrors:
    """Count the errors of one clip; both are SST of any level, or empty."""
    plain = meeteval.wer.siso_word_error_rate(strip_tokens(reference), strip_tokens(hypothesis))
    by_speaker = meeteval.wer.cp_word_error_rate(
        _split(reference), _split(hypothesis), reference_sort=False, hypothesis_sort=False
    )
    return TextErrors(float(plain.length), float(plain.errors), float(by_speaker.errors))


def _split(text: str) -> dict[str, str]:
    """Return the words of each speaker."""
    words: dict[str, list[str]] = {}
    for turn in parse_any(text):
        words.setdefault(turn.speaker, []).append(turn.text)
    return {speaker: " ".join(own) for speaker, own in words.items()} or {"spk0": ""}
