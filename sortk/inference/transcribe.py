"""Who said what with a multi-speaker ASR of sortk's own: its speaker tokens name the speakers.

    write      the SST of each piece, the diarizer's posteriors as speaker kernels. In a piece speakers are numbered by
               their arrival in it, so the columns of the posteriors are sorted that way: <spk0> is then a known speaker
    segments   a speaker's words over the time in which the diarizer finds that speaker, as stage 3 does

A model without a diarizer inside (systems 1 and, in training, 4) needs one from outside for recordings that are longer
than a piece. Without any, pieces are cut at the silences of a speech detector, and speakers are those of a piece.

`load_transcriber` gives the transcriber of any ASR; cascade.py has those that know no speakers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from sortk.formats.files import FormatError
from sortk.formats.hub import find_model
from sortk.formats.model_folder import read_sst_level
from sortk.formats.posteriors import Probs, find_active_spans
from sortk.formats.sst import GRAMMARS, Level, parse_any, speaker_number
from sortk.formats.tokens import Tokenizer
from sortk.inference.cascade import Cascade, MultitalkerTranscriber
from sortk.inference.diarize import DiarizeOptions, Diarizer, load
from sortk.inference.load import LoadedAsr, LoadedDiarizer, load_asr
from sortk.inference.pieces import (
    MIN_PIECE_SECONDS,
    Piece,
    TranscribeOptions,
    Transcriber,
    approximate_times,
    name_columns,
    order_by_arrival,
    read_piece,
    slice_posteriors,
)
from sortk.inference.recognize import CanaryRecognizer, ParakeetRecognizer, RecognizeOptions, Recognizer
from sortk.models.canary import Canary
from sortk.models.decoding import SstConstraint, search
from sortk.models.frames import count_frames
from sortk.models.memory import keep_freed_memory
from sortk.models.msasr import MsAsr
from sortk.models.multitalker import Multitalker
from sortk.models.parakeet import Parakeet
from sortk.records import Segment, Session
from sortk.spans import Span, clip, merge, to_seconds, to_us

PIECE_SECONDS = 20.0  # the longest piece if config.json does not say it: the paper's samples


class MsAsrTranscriber(Transcriber[str]):
    """A multi-speaker ASR."""

    averages_rows = True

    def __init__(
        self,
        model: MsAsr,
        tokenizer: Tokenizer,
        level: Level | None,
        options: TranscribeOptions | None = None,
        diarizer: Diarizer | None = None,
    ) -> None:
        """`level` of the transcripts that the model has learned; None: words alone, which it decodes freely.

        `diarizer` takes the place of the one inside the model, if that was not fine-tuned with the model.
        """
        super().__init__(model.asr.features.window.device, PIECE_SECONDS, options or TranscribeOptions())
        self.model, self.tokenizer, self.level = model.eval(), tokenizer, level
        self.has_speakers = level is not None
        if model.diarizer is not None and model.options.supervision == "finetuned" and diarizer is not None:
            raise ValueError("this model has its own fine-tuned Sortformer inside: leave out the other diarizer")
        if diarizer is None and model.diarizer is not None:
            diarizer = Diarizer(LoadedDiarizer(model.diarizer))
        if model.kernels is not None and diarizer is None:
            raise ValueError("this model needs a diarizer and has none inside: give one (--diarizer)")
        n_speakers = model.options.n_speakers
        if model.kernels is not None and diarizer is not None and diarizer.n_speakers != n_speakers:
            n_given = diarizer.n_speakers
            raise ValueError(f"the diarizer has {n_given} outputs, but the ASR is for {n_speakers} speakers")
        self.diarizer = diarizer
        grammar = GRAMMARS[level] if level is not None else None
        self._is_named = grammar is not None and grammar.named
        self._constraint = None
        if grammar is not None and self.options.decoding == "valid":
            self._constraint = SstConstraint(tokenizer, model.options.asr.n_tokens, grammar, self.device)

    def to_text(self, written: str) -> str:
        return written

    def take_piece(self, session: Session, span: Span, probs: Probs, n_pieces: int) -> Piece:
        if n_pieces == 1:  # its speakers are sorted, better than by a threshold
            return Piece(session, span, probs, name_columns(range(probs.shape[1])))
        own = slice_posteriors(probs, span)
        order = order_by_arrival(own, self.options.threshold)
        return Piece(session, span, own[:, order], name_columns(order))

    @torch.inference_mode()
    def write(self, pieces: Sequence[Piece]) -> list[str]:
        """Return the SST of each piece."""
        clips = [torch.from_numpy(read_piece(piece)) for piece in pieces]
        samples = pad_sequence(clips, batch_first=True).to(self.device)
        lengths = torch.tensor([len(clip) for clip in clips], device=self.device)
        probs = self._pad_posteriors(pieces, count_frames(samples.shape[1]))
        states, n_frames = self.model.encode(samples, None if len({*lengths.tolist()}) == 1 else lengths, probs)
        options, tokenizer, decoder = self.options.search, self.tokenizer, self.model.asr.decoder
        limits = [options.limit_tokens(piece.seconds) for piece in pieces]
        steps = decoder.start(states, n_frames, options.beam, len(tokenizer.prompt) + max(limits))
        found = search(steps, tokenizer.prompt, tokenizer.end, limits, options, self._constraint, self.device)
        return [tokenizer.decode(hypothesis.tokens) for hypothesis in found]

    def _pad_posteriors(self, pieces: Sequence[Piece], n_frames: int) -> torch.Tensor | None:
        if self.model.kernels is None:
            return None
        padded = torch.zeros(len(pieces), n_frames, self.model.options.n_speakers)
        for row, piece in zip(padded, pieces, strict=True):
            assert piece.probs is not None
            row[: len(piece.probs)] = torch.from_numpy(piece.probs)
        return padded.to(self.device)

    def to_segments(self, piece: Piece, text: str, number: int, n_pieces: int) -> list[Segment]:
        """Return the words of a piece with speakers and approximate times; it is the `number`-th of `n_pieces`."""
        spoken: dict[str, list[str]] = {}
        for turn in parse_any(text):
            spoken.setdefault(turn.speaker, []).extend(turn.text.split())
        start = to_us(piece.session.offset) + piece.span[0]
        words = []
        for speaker, own in spoken.items():
            name, column = self._name_speaker(piece, speaker, number, n_pieces), speaker_number(speaker)
            spans = self._find_spans(piece, column if self._is_named else None)
            for word, (first, last) in zip(own, approximate_times(own, spans, self.options.lang), strict=True):
                times = to_seconds(start + first), to_seconds(start + last)
                words.append(Segment(piece.session.session_id, name, *times, word))
        return words

    def _name_speaker(self, piece: Piece, speaker: str, number: int, n_pieces: int) -> str:
        """Return a speaker of the recording if the diarizer has one, else of the piece, or a turn (SOT). A model
        without speaker tokens has one speaker."""
        if self.level is None:
            return "speaker_0"
        column = speaker_number(speaker)
        if self._is_named and column is not None and column < len(piece.speakers):
            return piece.speakers[column]
        if self._is_named:
            name = speaker if column is None else f"speaker_{column}"
        else:
            name = f"turn_{speaker.removeprefix('turn')}" if column is None else f"turn_{column}"
        return name if n_pieces == 1 else f"piece_{number}_{name}"

    def _find_spans(self, piece: Piece, speaker: int | None) -> list[Span]:
        """Return where the speaker is active in the piece, else where any speaker is, else all of it."""
        everything = (0, piece.span[1] - piece.span[0])
        if piece.probs is None:
            return [everything]
        own = piece.probs if speaker is None else piece.probs[:, speaker : speaker + 1]
        for probs in (own, piece.probs):
            active = find_active_spans(probs, self.options.threshold)
            if spans := clip(merge(chain.from_iterable(active)), *everything):
                return spans
        return [everything]


# ---------------------------------------------------------------------------------------------------------------------
# Models from disk


def load_transcriber(
    path: str | Path,
    diarizer: str | Path | Diarizer | None = None,
    options: TranscribeOptions | None = None,
    device: str | None = None,
    diarize_options: DiarizeOptions | None = None,
) -> Transcriber[Any]:
    """Return a transcriber for any ASR (a model folder, a `.nemo` file or a name) and, if it needs one, a diarizer.

    Both are on the GPU if there is one. A multi-speaker ASR of sortk's own names speakers itself.
    """
    path, options = find_model(path), options or TranscribeOptions()
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    keep_freed_memory()
    loaded = load_asr(path)
    if isinstance(diarizer, str | Path):
        diarizer = load(diarizer, diarize_options or DiarizeOptions(), device)
    try:
        loaded.model.to(device)
    except (RuntimeError, NotImplementedError) as error:
        raise ValueError(f"device {device!r} cannot be used: {str(error).splitlines()[0]}") from None
    if torch.device(device).type == "meta":
        raise ValueError("device 'meta' cannot be used: it computes nothing")
    try:
        return _build_transcriber(loaded, options, diarizer)
    except ValueError as error:
        raise FormatError(path, None, str(error)) from None


def _build_transcriber(loaded: LoadedAsr, options: TranscribeOptions, diarizer: Diarizer | None) -> Transcriber[Any]:
    model, tokenizer, config = loaded.model, loaded.tokenizer, loaded.config
    if not isinstance(model, MsAsr | Multitalker | Parakeet | Canary):
        raise ValueError(f"holds the model {config['model']!r}, which transcribe does not support")
    n_tokens = model.options.asr.n_tokens if isinstance(model, MsAsr) else model.options.n_tokens
    if tokenizer.n_tokens > n_tokens:
        raise ValueError(f"{tokenizer.n_tokens} tokens are more than the {n_tokens} of the model")
    if options.piece_seconds == 0 and "piece_seconds" in config:
        try:
            learned = float(config["piece_seconds"])
        except (TypeError, ValueError) as error:
            raise ValueError(f"its config.json: piece_seconds: {error}") from None
        options = replace(options, piece_seconds=max(learned, MIN_PIECE_SECONDS))
    if isinstance(model, MsAsr):
        if options.overlap is not None:
            raise ValueError("a multi-speaker ASR transcribes overlapping speech anyway: leave out --overlap")
        if model.diarizer is not None:
            model.diarizer.freeze_for_inference()
        return MsAsrTranscriber(model, tokenizer, read_sst_level(config), options, diarizer)
    if isinstance(model, Multitalker):
        return MultitalkerTranscriber(model, tokenizer, options, diarizer)
    wanted = RecognizeOptions(options.lang, options.punctuation, options.head, search=options.search)
    if config.get("writes_times") is False:
        wanted = replace(wanted, timestamps="approximate")
    model.encoder.freeze_for_inference()
    recognizer: Recognizer
    if isinstance(model, Parakeet):
        recognizer = ParakeetRecognizer(model, tokenizer, wanted)
    else:
        recognizer = CanaryRecognizer(model, tokenizer, wanted)
    return Cascade(recognizer, options, diarizer)
