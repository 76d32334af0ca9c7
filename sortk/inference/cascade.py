"""Who said what with any ASR and any diarizer: the ASR writes the words, the diarizer says who speaks.

    Cascade                 an ASR of one speaker. A word belongs to the speaker with the largest mean posterior over
                            the word's own frames; if no speaker is active there, to the nearest active one.
    Cascade, overlap mask   the ASR runs once for each speaker, on audio in which the others are silenced.
    MultitalkerTranscriber  a multitalker Parakeet: one pass for each speaker, all passes as one batch.

Words keep the times of the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from sortk.formats import audio
from sortk.formats.posteriors import Probs, find_active_spans
from sortk.formats.tokens import WORD_MARK, Tokenizer
from sortk.inference.diarize import Diarizer, OnError, OnProgress, measure_seconds
from sortk.inference.live import read_pcm
from sortk.inference.pieces import Piece, TranscribeOptions, Transcriber, name_columns, read_piece
from sortk.inference.recognize import RecognizedWord, Recognizer, find_marks, find_words, to_seconds
from sortk.inference.results import Transcript
from sortk.inference.streaming import MelStream
from sortk.models.fastconformer import Context
from sortk.models.frames import FRAME_SECONDS, HOP_SAMPLES, MEL_PER_FRAME, SAMPLE_RATE
from sortk.models.multitalker import Multitalker, MultitalkerStream, split_speakers
from sortk.models.rnnt import TimedTokens
from sortk.records import Segment, Session
from sortk.spans import Span, clip, merge
from sortk.spans import to_seconds as us_to_seconds

ONLY_SPEAKER = "speaker_0"  # the speaker of all words without a diarizer
MASK_MARGIN_SECONDS = 0.16  # of the audio around a speaker's own that the mask keeps
STEP_SECONDS = 20.0  # of a recording that a multitalker Parakeet takes at a time


def assign_speakers(
    words: Sequence[tuple[float, float]], probs: Probs, frame_seconds: float, threshold: float = 0.5
) -> list[int]:
    """Return the speaker of each word, a column of the posteriors; words are given by start and end in seconds.

    It is the column with the largest mean over the frames that the word touches, at least one. If no speaker is above
    the threshold in any of them, it is the likeliest one of the nearest active frame, the earlier of two.
    """
    if probs.shape[1] == 0:
        raise ValueError("there are no speakers to assign words to")
    active: npt.NDArray[np.intp] | None = None  # frames, if they are needed: the posteriors are those of the recording
    speakers = []
    for start, end in words:
        first = min(max(int(np.floor(start / frame_seconds + 1e-6)), 0), max(len(probs) - 1, 0))
        stop = min(max(int(np.ceil(end / frame_seconds - 1e-6)), first + 1), max(len(probs), first + 1))
        own = probs[first:stop]
        if len(own) and (own > threshold).any():
            speakers.append(int(own.mean(axis=0).argmax()))
            continue
        active = np.flatnonzero((probs > threshold).any(axis=1)) if active is None else active
        if len(active):
            place = int(np.searchsorted(active, first))
            near = active[max(place - 1, 0) : place + 1]
            distance = np.maximum(np.maximum(first - near, near - (stop - 1)), 0)
            speakers.append(int(probs[near[int(distance.argmin())]].argmax()))
        else:
            speakers.append(int(own.mean(axis=0).argmax()) if len(own) else 0)
    return speakers


class SpeakerWords(NamedTuple):
    """Words of a piece, and who says them: a column of the posteriors, or None where that is still to be found."""

    speaker: int | None
    words: list[RecognizedWord]


class Cascade(Transcriber[list[SpeakerWords]]):
    """An ASR that knows no speakers, and a diarizer."""

    has_speakers = False

    def __init__(self, recognizer: Recognizer, options: TranscribeOptions, diarizer: Diarizer | None = None) -> None:
        super().__init__(recognizer.device, recognizer.piece_seconds, options)
        self.recognizer, self.diarizer = recognizer, diarizer
        if options.overlap is not None and diarizer is None:
            raise ValueError("--overlap mask needs a diarizer (--diarizer)")

    def to_text(self, written: list[SpeakerWords]) -> str:
        return " ".join(word.text for own in written for word in own.words)

    def take_piece(self, session: Session, span: Span, probs: Probs, n_pieces: int) -> Piece:
        # Of the recording, not of the piece: the nearest speaker may be in the next one.
        return Piece(session, span, probs, name_columns(range(probs.shape[1])))

    def write(self, pieces: Sequence[Piece]) -> list[list[SpeakerWords]]:
        clips = [torch.from_numpy(read_piece(piece)) for piece in pieces]
        if self.options.overlap == "mask":
            return self._write_masked(pieces, clips)
        speech = [self._find_speech(piece, None) for piece in pieces]
        return [[SpeakerWords(None, words)] for words in self.recognizer.recognize(clips, speech)]

    def _write_masked(self, pieces: Sequence[Piece], clips: Sequence[torch.Tensor]) -> list[list[SpeakerWords]]:
        written: list[list[SpeakerWords]] = []
        for piece, samples in zip(pieces, clips, strict=True):
            assert piece.probs is not None
            spans = {column: self._find_speech(piece, column) for column in range(piece.probs.shape[1])}
            active = {column: own for column, own in spans.items() if own}
            masked = [_mask(samples, own) for own in active.values()]
            found = self.recognizer.recognize(masked, list(active.values())) if masked else []
            written.append(
                [
                    SpeakerWords(column, [word for word in words if _touches(word, active[column])])
                    for column, words in zip(active, found, strict=True)
                ]
            )
        return written

    def _find_speech(self, piece: Piece, column: int | None) -> list[tuple[float, float]]:
        """Return where a speaker, or with None any speaker, is active in a piece, in seconds from its start."""
        if piece.probs is None:
            return []
        first, last = piece.span
        rows = slice(first // self.frame_us, -(-last // self.frame_us))
        own = piece.probs[rows] if column is None else piece.probs[rows, column : column + 1]
        spans = chain.from_iterable(find_active_spans(own, self.options.threshold, self.frame_seconds))
        begin = first // self.frame_us * self.frame_us - first
        inside = clip(merge([(start + begin, end + begin) for start, end in spans]), 0, last - first)
        return [(us_to_seconds(start), us_to_seconds(end)) for start, end in inside]

    def to_segments(self, piece: Piece, written: list[SpeakerWords], number: int, n_pieces: int) -> list[Segment]:
        shift = us_to_seconds(piece.span[0])
        segments = []
        for speaker, words in written:
            times = [(word.start + shift, word.end + shift) for word in words]
            if piece.probs is None:
                names = [ONLY_SPEAKER] * len(words)
            elif speaker is not None:
                names = [piece.speakers[speaker]] * len(words)
            else:
                found = assign_speakers(times, piece.probs, self.frame_seconds, self.options.threshold)
                names = [piece.speakers[column] for column in found]
            for word, name, (start, end) in zip(words, names, times, strict=True):
                segments.append(to_segment(piece.session, name, word, start, end))
        return segments


def to_segment(session: Session, speaker: str, word: RecognizedWord, start: float, end: float) -> Segment:
    """Return a word at these seconds of a session, as a segment of its recording."""
    times = round(start + session.offset, 3), round(end + session.offset, 3)
    return Segment(session.session_id, speaker, *times, word.text, confidence=round(word.confidence, 4))


def _mask(samples: torch.Tensor, spans: Sequence[tuple[float, float]]) -> torch.Tensor:
    """Return the samples with silence outside of the spans and a margin."""
    masked = torch.zeros_like(samples)
    for start, end in spans:
        own = slice(
            max(round((start - MASK_MARGIN_SECONDS) * SAMPLE_RATE), 0), round((end + MASK_MARGIN_SECONDS) * SAMPLE_RATE)
        )
        masked[own] = samples[own]
    return masked


def _touches(word: RecognizedWord, spans: Sequence[tuple[float, float]]) -> bool:
    """Return whether a word overlaps the audio that the mask keeps; other words are not spoken."""
    margin = MASK_MARGIN_SECONDS
    return any(word.start < end + margin and word.end > start - margin for start, end in spans)


# ---------------------------------------------------------------------------------------------------------------------


class MultitalkerTranscriber(Transcriber[list[SpeakerWords]]):
    """A multitalker Parakeet and a diarizer: one pass for each speaker.

    Recordings are not cut: the model is causal and works step by step, with the same result as in one pass.
    """

    def __init__(
        self, model: Multitalker, tokenizer: Tokenizer, options: TranscribeOptions, diarizer: Diarizer | None = None
    ) -> None:
        super().__init__(model.features.window.device, STEP_SECONDS, options)
        if diarizer is None:
            raise ValueError("a multitalker Parakeet needs a diarizer: give one (--diarizer)")
        if options.overlap is not None:
            raise ValueError("a multitalker Parakeet transcribes overlapping speech anyway: leave out --overlap")
        if options.punctuation is not None:
            raise ValueError("a Parakeet writes punctuation as it was trained to; leave out --pnc and --no-pnc")
        self.model, self.tokenizer, self.diarizer = model.eval(), tokenizer, diarizer
        model.encoder.freeze_for_inference()
        self.context = _choose_context(model, options.latency)
        self._marks = find_marks(tokenizer)

    def transcribe(
        self, sessions: Sequence[Session], on_error: OnError | None = None, on_done: OnProgress = float
    ) -> Iterator[tuple[Session, Transcript]]:
        assert self.diarizer is not None
        for session, probs in self.diarizer.posteriors_of(sessions, on_error, on_done):
            words = self._write_session(session, self.diarizer.average_rows(probs), on_done)
            yield session, Transcript(sorted(words, key=lambda word: (word.start, word.end)))

    def transcribe_samples(self, samples: Sequence[Session]) -> Iterator[tuple[Session, str, list[Segment]]]:
        for session, words in self.transcribe(samples):
            yield session, " ".join(word.text for word in words), words

    def _write_session(self, session: Session, probs: Probs, on_done: OnProgress) -> list[Segment]:
        speakers = np.flatnonzero((probs > self.options.threshold).any(axis=0)).tolist()
        if not speakers:
            on_done(measure_seconds(session))
            return []
        steps = MultitalkerSteps(self.model, speakers, self.context, STEP_SECONDS)
        steps.add_posteriors(probs)
        for block in audio.read_blocks(session.audio_path, session.offset, session.duration, channel=session.channel):
            steps.add_samples(block)
            on_done(len(block) / SAMPLE_RATE)
        steps.finish()
        return [
            to_segment(session, f"speaker_{speaker}", word, word.start, word.end)
            for speaker, tokens in zip(speakers, steps.tokens, strict=True)
            for word in self.find_words(tokens)
        ]

    def find_words(self, tokens: TimedTokens) -> list[RecognizedWord]:
        """Return the words of one speaker."""
        return to_seconds(find_words(tokens, self.tokenizer, "rnnt", self._marks))

    def transcribe_pcm(self, file: BinaryIO, session_id: str = "stdin") -> Iterator[Segment]:
        """Yield the words in raw samples (signed 16 bits, little-endian, 16 kHz, mono), each as soon as it is final:
        when the same speaker's next word begins, or at the end. The words are those of the complete recording."""
        assert self.diarizer is not None
        session, stream = Session(session_id, Path("-")), self.diarizer.stream()
        n_known, at_most = self.diarizer.n_speakers, self.diarizer.options.max_speakers
        n_speakers = min(n_known, at_most or n_known)
        steps = MultitalkerSteps(self.model, list(range(n_speakers)), self.context)
        n_final = [0] * n_speakers  # tokens
        rows = _Rows(self.diarizer)

        def limit(probs: torch.Tensor, is_last: bool) -> Probs:
            assert self.diarizer is not None
            return rows.add(self.diarizer.limit_speakers(probs[0].float().cpu().numpy()), is_last)

        def find_final(is_last: bool) -> Iterator[Segment]:
            for speaker, tokens in enumerate(steps.tokens):
                stop = len(tokens.ids) if is_last else self._find_open_word(tokens, n_final[speaker])
                new = slice(n_final[speaker], stop)
                own = TimedTokens(tokens.ids[new], tokens.frames[new], [], tokens.probs[new])
                for word in self.find_words(own):
                    yield to_segment(session, f"speaker_{speaker}", word, word.start, word.end)
                n_final[speaker] = stop

        for samples in read_pcm(file):
            steps.add_posteriors(limit(stream.push(torch.from_numpy(samples)[None]), False))
            steps.add_samples(samples)
            yield from find_final(False)
        steps.add_posteriors(limit(stream.finish(), True))
        steps.finish()
        yield from find_final(True)

    def _find_open_word(self, tokens: TimedTokens, first: int) -> int:
        """Return the token from `first` on with which the last word begins; `first` if none does."""
        for place in range(len(tokens.ids) - 1, first, -1):
            piece = self.tokenizer.spell(tokens.ids[place])
            if piece.startswith(WORD_MARK) and piece.removeprefix(WORD_MARK) not in self._marks:
                return place
        return first


def _choose_context(model: Multitalker, latency: float | None) -> Context:
    """Return the context of a latency in seconds, which is the duration of a chunk; by default the model's own."""
    default = model.options.encoder.context
    assert default is not None
    if latency is None:
        return default
    contexts = [Context(*context) for context in model.options.contexts] or [default]
    for context in contexts:
        if abs(context.chunk * FRAME_SECONDS - latency) < FRAME_SECONDS / 2:
            return context
    known = ", ".join(f"{context.chunk * FRAME_SECONDS:g}" for context in contexts)
    raise ValueError(f"this model has no latency of {latency:g} s, only {known}")


class _Rows:
    """Posteriors as they come, of any frames, to those of 80 ms."""

    def __init__(self, diarizer: Diarizer) -> None:
        self._diarizer, self._n = diarizer, diarizer.rows_per_frame
        self._rest: Probs | None = None

    def add(self, probs: Probs, is_last: bool = False) -> Probs:
        known = probs if self._rest is None else np.concatenate([self._rest, probs])
        n_whole = len(known) if is_last else len(known) // self._n * self._n
        self._rest = known[n_whole:]
        return self._diarizer.average_rows(known[:n_whole])


class MultitalkerSteps:
    """A recording that comes in blocks, and its posteriors, through a `MultitalkerStream`.

    Frame t of the causal encoder sees the audio up to 80 t ms, which is the end of the diarizer's frame t - 1: that one
    belongs to it. Frame 0, which sees nothing but the first 10 ms, is the target's.
    """

    def __init__(
        self, model: Multitalker, speakers: Sequence[int], context: Context, step_seconds: float = 0.0
    ) -> None:
        """`speakers` are columns of the posteriors. Steps are as long as given, one chunk at least."""
        self._speakers = torch.tensor(list(speakers))
        self._device = model.features.window.device
        self._mel = MelStream(model.features)
        self._stream = MultitalkerStream(model, len(speakers), context)
        self._chunks = max(round(step_seconds / FRAME_SECONDS / context.chunk), 1)
        self._probs: Probs | None = None  # those that are still needed,
        self._n_forgotten = 0  # and how many rows came before them

    @property
    def tokens(self) -> list[TimedTokens]:
        """Return the tokens of each speaker so far."""
        return self._stream.state.tokens

    def add_posteriors(self, probs: Probs) -> None:
        """(frames of 80 ms, speakers) that follow on those before."""
        self._probs = probs if self._probs is None else np.concatenate([self._probs, probs])

    def add_samples(self, samples: audio.Samples) -> None:
        self._mel.push(torch.from_numpy(samples)[None])
        n_new = self._chunks * self._stream.context.chunk
        while self._count_ready() >= n_new:
            self._step(n_new, is_last=False)

    def finish(self) -> None:
        """Process the rest: the recording and its posteriors are complete."""
        n_mel, n_new = self._mel.n_samples // HOP_SAMPLES, self._chunks * self._stream.context.chunk
        while n_mel and self._stream.count_mel(self._stream.n_frames + n_new) < n_mel:
            self._step(n_new, is_last=False)
        if n_mel:
            self._step((n_mel + 14) // MEL_PER_FRAME - self._stream.n_frames, is_last=True)

    def _count_ready(self) -> int:
        n_rows = self._n_forgotten + (0 if self._probs is None else len(self._probs))
        return min(self._stream.count_ready(self._mel.n_settled), n_rows + 1 - self._stream.n_frames)

    def _step(self, n_new: int, is_last: bool) -> None:
        """Process the next `n_new` frames."""
        stream, first = self._stream, self._stream.n_frames
        stop = self._mel.n_samples // HOP_SAMPLES if is_last else stream.count_mel(first + n_new)
        mel = self._mel.cut(stream.first_mel, stop, is_last)[0]
        target, others = self._split(first, first + n_new)
        stream.step(mel, target, others, is_last)

    def _split(self, first: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return p and q of the frames from `first` to `stop`; drop rows that are no longer needed."""
        assert self._probs is not None
        start = max(first - 1, 0)
        self._probs = self._probs[start - self._n_forgotten :]
        self._n_forgotten = start
        p, q = split_speakers(torch.from_numpy(self._probs[: stop - 1 - start]), self._speakers)
        if first == 0:
            p, q = functional.pad(p, (1, 0), value=1.0), functional.pad(q, (1, 0))
        return p.to(self._device), q.to(self._device)
