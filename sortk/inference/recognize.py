"""Speech recognisers of one speaker: clips in, words with times and confidences out.

`Recognizer` is what the cascade (cascade.py) requires of any ASR. Times are the model's own, in seconds from the start
of the clip; a Canary that writes none gets approximate ones, as stage 3 makes them.

A token of a Parakeet spans, in frames, by the rules of NVIDIA's NeMo:

    TDT     from its frame t to t + duration
    RNNT    from t to t + 1
    CTC     from the frame of the token before to its own (the first: from one frame before)

A punctuation mark takes no time: in TDT it is at the end of the token before, in CTC at its own start. A word begins
with a piece that begins with the word mark, and lasts from the start of its first token to the end of its last.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from sortk.formats.tokens import WORD_MARK, Tokenizer, prompt_of_canary
from sortk.inference.pieces import approximate_times
from sortk.models.canary import Canary
from sortk.models.decoding import DecodingOptions, search
from sortk.models.frames import FRAME_SECONDS, HOP_SAMPLES, SAMPLE_RATE
from sortk.models.parakeet import Head, Parakeet
from sortk.models.rnnt import TimedTokens
from sortk.spans import to_us

SpanSeconds = tuple[float, float]


class RecognizedWord(NamedTuple):
    """A word with its times in seconds."""

    text: str
    start: float
    end: float
    confidence: float  # 0 to 1


@dataclass(frozen=True)
class RecognizeOptions:
    """What a recogniser is asked for."""

    lang: str = "en_US"  # the language that is spoken; also for approximate times, as pyphen names it
    punctuation: bool | None = None  # and capitals; None: as the model does it, with them if it has the choice
    head: Head | None = None  # of a Parakeet with two
    timestamps: Literal["auto", "model", "approximate"] = "auto"  # the model's own if it has any
    search: DecodingOptions = field(default_factory=DecodingOptions)  # of a Canary

    @property
    def language(self) -> str:
        """Return the language as NVIDIA names it: en."""
        return self.lang.replace("-", "_").partition("_")[0].lower()


class Recognizer(Protocol):
    """Clips of one or several speakers -> words, whoever says them."""

    piece_seconds: float  # the longest clip to give it

    @property
    def device(self) -> torch.device: ...

    def recognize(
        self, clips: Sequence[Tensor], speech: Sequence[Sequence[SpanSeconds]] | None = None
    ) -> list[list[RecognizedWord]]:
        """Return the words of each clip of (samples,) at 16 kHz. `speech` says where speech is in each clip."""


class ParakeetRecognizer:
    """A Parakeet with CTC, RNNT or TDT."""

    piece_seconds = 40.0

    def __init__(self, model: Parakeet, tokenizer: Tokenizer, options: RecognizeOptions | None = None) -> None:
        self.model, self.tokenizer = model.eval(), tokenizer
        options = options or RecognizeOptions()
        self.head = options.head or model.heads[0]
        if self.head not in model.heads:
            raise ValueError(f"this Parakeet has no {self.head} head, but {' and '.join(model.heads)}")
        if options.punctuation is not None:
            raise ValueError("a Parakeet writes punctuation as it was trained to; leave out --pnc and --no-pnc")
        self.kind = kind_of(model, self.head)
        self._marks = find_marks(tokenizer)

    @property
    def device(self) -> torch.device:
        return self.model.features.window.device

    @torch.inference_mode()
    def recognize(
        self, clips: Sequence[Tensor], speech: Sequence[Sequence[SpanSeconds]] | None = None
    ) -> list[list[RecognizedWord]]:
        frames, lengths = self.model.encode(*pad_clips(clips, self.device))
        return [
            to_seconds(find_words(tokens, self.tokenizer, self.kind, self._marks))
            for tokens in self.model.decode(frames, lengths, self.head)
        ]


class CanaryRecognizer:
    """A Canary; a flash one writes times of its own."""

    piece_seconds = 40.0  # what NVIDIA's were trained on

    def __init__(self, model: Canary, tokenizer: Tokenizer, options: RecognizeOptions | None = None) -> None:
        self.model, self.options = model.eval(), options or RecognizeOptions()
        self.tokenizer, self.has_times = tokenizer, False
        if "<|startoftranscript|>" not in tokenizer.settings.prompt:  # trained by sortk: one prompt for everything
            return
        language = f"<|{self.options.language}|>"
        if not tokenizer.knows(language):
            raise ValueError(
                f"this Canary does not know the language {self.options.lang!r}: it has no token {language}"
            )
        prompt_format = "canary2" if "<|startofcontext|>" in tokenizer.settings.prompt else "canary"
        can_time = prompt_format == "canary2" and tokenizer.knows("<|timestamp|>") and tokenizer.knows("<|0|>")
        if self.options.timestamps == "model" and not can_time:
            raise ValueError("this Canary writes no times; use approximate ones")
        self.has_times = can_time and self.options.timestamps != "approximate"
        punctuation = self.options.punctuation is not False
        self.tokenizer = tokenizer.with_prompt(
            *prompt_of_canary(prompt_format, self.options.language, punctuation, self.has_times)
        )

    @property
    def device(self) -> torch.device:
        return self.model.features.window.device

    def write(self, clips: Sequence[Tensor]) -> list[tuple[list[int], list[float]]]:
        """Return the tokens of each clip, without prompt and end, and their probabilities."""
        states, n_frames = self.model.encode(*pad_clips(clips, self.device))
        states = self.model.project(states, n_frames)
        prompt, options = self.tokenizer.prompt, self.options.search
        limits = [options.limit_tokens(len(clip) / SAMPLE_RATE) for clip in clips]
        steps = self.model.decoder.start(states, n_frames, options.beam, len(prompt) + max(limits))
        found = search(steps, prompt, self.tokenizer.end, limits, options, None, self.device)
        # The search keeps scores of texts; those of tokens are one more pass over all of them at once.
        texts = pad_sequence([torch.tensor([*prompt, *text.tokens]) for text in found], batch_first=True)
        texts = texts.to(self.device)
        log_probs = self.model.decoder(texts[:, :-1], states, n_frames).log_softmax(dim=2)
        probs = log_probs.gather(2, texts[:, 1:, None])[:, len(prompt) - 1 :, 0].exp().tolist()
        return [(list(text.tokens), own[: len(text.tokens)]) for text, own in zip(found, probs, strict=True)]

    @torch.inference_mode()
    def recognize(
        self, clips: Sequence[Tensor], speech: Sequence[Sequence[SpanSeconds]] | None = None
    ) -> list[list[RecognizedWord]]:
        words = []
        for place, (tokens, probs) in enumerate(self.write(clips)):
            timed = find_canary_words(tokens, probs, self.tokenizer) if self.has_times else []
            if timed:
                words.append(to_seconds(timed))
                continue
            spans = speech[place] if speech is not None and speech[place] else [(0.0, len(clips[place]) / SAMPLE_RATE)]
            words.append(self._approximate(tokens, probs, spans))
        return words

    def _approximate(
        self, tokens: list[int], probs: list[float], speech: Sequence[SpanSeconds]
    ) -> list[RecognizedWord]:
        confidence = sum(probs) / max(len(probs), 1)
        texts = self.tokenizer.decode(tokens).split()
        times = approximate_times(texts, [(to_us(start), to_us(end)) for start, end in speech], self.options.lang)
        return [
            RecognizedWord(text, start / 1e6, end / 1e6, confidence)
            for text, (start, end) in zip(texts, times, strict=True)
        ]


def kind_of(model: Parakeet, head: Head) -> TokenKind:
    """Return which rule gives the tokens of a head their times."""
    if head == "ctc":
        return "ctc"
    return "tdt" if model.options.transducer is not None and model.options.transducer.durations else "rnnt"


def find_marks(tokenizer: Tokenizer) -> frozenset[str]:
    """Return the punctuation marks of a tokenizer's vocabulary."""
    return find_punctuation(tokenizer.spell(token) for token in range(tokenizer.n_tokens))


def pad_clips(clips: Sequence[Tensor], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """(batch, samples), and (batch,) lengths if they differ. A clip has one mel frame at least."""
    padded = pad_sequence(list(clips), batch_first=True).to(device)
    padded = torch.nn.functional.pad(padded, (0, max(HOP_SAMPLES - padded.shape[1], 0)))
    lengths = torch.tensor([max(len(clip), HOP_SAMPLES) for clip in clips], device=device)
    return padded, (None if len({*lengths.tolist()}) == 1 else lengths)


def to_seconds(words: Sequence[FrameWord]) -> list[RecognizedWord]:
    """Return the words with times in seconds; words without letters are left out."""
    return [
        RecognizedWord(
            word.text, round(word.start * FRAME_SECONDS, 3), round(word.end * FRAME_SECONDS, 3), word.confidence
        )
        for word in words
        if word.text
    ]


# ---------------------------------------------------------------------------------------------------------------------
# Words from tokens

TIME = re.compile(r"<\|(\d{1,6})\|>", re.ASCII)  # a number of frames, as Canary writes it

TokenKind = Literal["tdt", "rnnt", "ctc"]


class FrameWord(NamedTuple):
    """A word with its times in frames, and how sure the model is of it, 0 to 1."""

    text: str
    start: int
    end: int
    confidence: float


def find_punctuation(pieces: Iterable[str]) -> frozenset[str]:
    """Return the punctuation marks that a vocabulary can write at the end of a word."""
    inner = (piece for piece in pieces if not piece.startswith(WORD_MARK))
    return frozenset(mark for piece in inner for mark in piece if unicodedata.category(mark).startswith("P"))


def find_spans(
    tokens: TimedTokens, texts: Sequence[str], kind: TokenKind, punctuation: frozenset[str]
) -> list[tuple[int, int]]:
    """Return the first frame of each token and the one after its last; `texts` are without word marks."""
    if kind == "tdt":
        spans = [(frame, frame + duration) for frame, duration in zip(tokens.frames, tokens.durations, strict=True)]
    elif kind == "rnnt":
        spans = [(frame, frame + 1) for frame in tokens.frames]
    else:
        before = [max(frame - 1, 0) for frame in tokens.frames[:1]] + tokens.frames[:-1]
        spans = list(zip(before, tokens.frames, strict=True))
    for place, text in enumerate(texts):
        if place and text in punctuation and kind != "rnnt":
            at = spans[place - 1][1] if kind == "tdt" else spans[place][0]
            spans[place] = (at, at)
    return spans


def find_words(tokens: TimedTokens, tokenizer: Tokenizer, kind: TokenKind, marks: frozenset[str]) -> list[FrameWord]:
    """Return the words of a clip; `marks` are from `find_punctuation`. Confidences are means over a word's tokens.

    A word mark alone is a word without letters, as in NeMo.
    """
    pieces = [tokenizer.spell(token) for token in tokens.ids]
    texts = [piece.removeprefix(WORD_MARK) for piece in pieces]
    spans = find_spans(tokens, texts, kind, marks)
    words: list[list[int]] = []  # the places of their tokens
    for place, (piece, text) in enumerate(zip(pieces, texts, strict=True)):
        if not words or (piece.startswith(WORD_MARK) and text not in marks):
            words.append([place])
        else:
            words[-1].append(place)
    return [
        FrameWord(
            tokenizer.decode(tokens.ids[place] for place in word),
            spans[word[0]][0],
            spans[word[-1]][1],
            sum(tokens.probs[place] for place in word) / len(word),
        )
        for word in words
    ]


def find_canary_words(tokens: Sequence[int], probs: Sequence[float], tokenizer: Tokenizer) -> list[FrameWord]:
    """Return the words of a text that Canary writes with times: `<|3|> School<|20|><|21|> night?<|40|>`, in frames.

    Times come in pairs; what is between the two of a pair is said in this time.
    """
    numbers = [TIME.fullmatch(tokenizer.spell(token)) for token in tokens]
    places = [place for place, number in enumerate(numbers) if number]
    words = []
    for first, last in zip(places[::2], places[1::2], strict=False):
        text = tokenizer.decode(tokens[first + 1 : last])
        start, end = numbers[first], numbers[last]
        if text and start and end:
            own = probs[first + 1 : last]
            words.append(FrameWord(text, int(start[1]), int(end[1]), sum(own) / len(own)))
    return words
