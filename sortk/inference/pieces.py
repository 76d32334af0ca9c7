"""What all transcribers share: recordings of any length, cut into pieces at silences, written in batches.

    diarize    the recording from beginning to end, so that a speaker is the same everywhere in it
    cut        into pieces, at the silences that the diarizer finds (stage 2's rule), or a speech detector
    write      pieces of like length together: what that means is the transcriber's
    segments   words with times and speakers

Audio is read piece by piece, so memory is bounded, and time is linear in the length of a recording.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Generic, Literal, NamedTuple, TypeVar, get_args

import numpy as np
import torch

from sortk.formats import audio
from sortk.formats.posteriors import Probs, find_active_spans
from sortk.inference.diarize import (
    UNNAMED,
    AudioSource,
    Diarizer,
    OnError,
    OnProgress,
    measure_seconds,
    name_session,
)
from sortk.inference.results import Transcript
from sortk.models.decoding import Decoding, DecodingOptions
from sortk.models.frames import FRAME_SECONDS, HOP_SAMPLES, SAMPLE_RATE, count_frames
from sortk.models.parakeet import Head
from sortk.prepare.activity import DetectorOptions, detect_speech
from sortk.prepare.syllables import approximate_word_times
from sortk.prepare.windows import cut_windows
from sortk.records import Segment, Session
from sortk.spans import Profile, Span, gaps, merge, to_seconds, to_us

log = logging.getLogger(__name__)

POOL = 64  # sessions whose pieces of like length are decoded together
BATCH_SECONDS = {"cpu": 80.0, "cuda": 1600.0}  # of padded audio
MIN_PIECE_SECONDS = 1.0
SEARCH_SHARE = 0.5  # of a piece, at its end, in which the best silence to cut at is looked for
MIN_WORD_US = 1000
FRAME_US = to_us(FRAME_SECONDS)

Written = TypeVar("Written")


def _ignore(_seconds: float) -> None:
    """Report no progress."""


@dataclass(frozen=True)
class TranscribeOptions:
    """How recordings are cut and written."""

    piece_seconds: float = 0.0  # longest piece; 0: as long as what the model has learned from
    threshold: float = 0.5  # posterior from which on a speaker speaks
    lang: str = "en_US"  # the language that is spoken; also for approximate word times, as pyphen names it
    decoding: Decoding = "valid"  # nothing but SSTs of the model's level; free: whatever the decoder prefers
    search: DecodingOptions = field(default_factory=DecodingOptions)
    punctuation: bool | None = None  # of a Canary; None: with punctuation and capitals
    head: Head | None = None  # of a Parakeet with two; None: the transducer
    overlap: Literal["mask"] | None = None  # mask: once per speaker, on audio in which the others are silenced
    latency: float | None = None  # seconds, of a multitalker Parakeet; None: its default

    def __post_init__(self) -> None:
        if not (self.piece_seconds == 0 or self.piece_seconds >= MIN_PIECE_SECONDS):
            raise ValueError(f"piece_seconds must be {MIN_PIECE_SECONDS:g} or more, got {self.piece_seconds:g}")
        if not 0 < self.threshold < 1:
            raise ValueError(f"threshold must be between 0 and 1, got {self.threshold}")
        if self.decoding not in get_args(Decoding):
            raise ValueError(f"decoding must be free or valid, got {self.decoding!r}")
        if self.overlap not in (None, "mask"):
            raise ValueError(f"overlap must be mask or nothing, got {self.overlap!r}")


class Piece(NamedTuple):
    """A stretch of a recording that is written at a time; times count from the start of the session."""

    session: Session
    span: Span  # microseconds
    probs: Probs | None  # (frames, speakers), columns by arrival in the piece; None: there is no diarizer
    speakers: tuple[str, ...]  # the name of each column

    @property
    def seconds(self) -> float:
        return to_seconds(self.span[1] - self.span[0])


class Transcriber(Generic[Written]):
    """A speech recogniser with all that it takes to use it: recordings in, words with times and speakers out.

    A subclass says what it writes of a piece (`write`), and which words that is (`to_segments`).
    """

    has_speakers = True  # it names speakers without a diarizer
    averages_rows = False  # it takes posteriors of 80 ms, whatever the diarizer's rows are

    def __init__(self, device: torch.device, piece_seconds: float, options: TranscribeOptions) -> None:
        self.device, self.options = device, options
        self.diarizer: Diarizer | None = None
        self._piece_seconds = options.piece_seconds or piece_seconds

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {'no diarizer' if self.diarizer is None else self.diarizer}, {self.device}>"

    def write(self, pieces: Sequence[Piece]) -> list[Written]:
        """Return what is said in each piece."""
        raise NotImplementedError

    def to_segments(self, piece: Piece, written: Written, number: int, n_pieces: int) -> list[Segment]:
        """Return the words of a piece, the `number`-th of `n_pieces`, one segment each."""
        raise NotImplementedError

    def to_text(self, written: Written) -> str:
        """Return what was written as one text."""
        raise NotImplementedError

    @property
    def frame_seconds(self) -> float:
        """Return the duration of a row of the posteriors."""
        return FRAME_SECONDS if self.diarizer is None or self.averages_rows else self.diarizer.frame_seconds

    @property
    def frame_us(self) -> int:
        return to_us(self.frame_seconds)

    def __call__(self, source: AudioSource, sample_rate: int = SAMPLE_RATE) -> Transcript:
        """Return the words of a recording in the order of their starts; times count from the start of its file.

        `source` is an audio file, a session of a manifest, or samples (`audio.from_array`) of the given rate.
        """
        if isinstance(source, str | PathLike):
            source = name_session(Path(source))
        if not isinstance(source, Session):
            # Pieces are read from a file, as those of any recording.
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / f"{UNNAMED}.wav"
                audio.write_wav(path, audio.from_array(source, sample_rate))
                return self(Session(UNNAMED, path))
        [(_, words)] = self.transcribe([source])
        return words

    def transcribe(
        self, sessions: Sequence[Session], on_error: OnError | None = None, on_done: OnProgress = _ignore
    ) -> Iterator[tuple[Session, Transcript]]:
        """Yield the words of each session, in order.

        With `on_error`, it is called for a session whose audio cannot be read, and the others continue. `on_done` is
        called with the seconds of audio that are newly diarized, and with those that are newly written.
        """
        for session, written in self._write_all(sessions, on_error, on_done=on_done):
            words = [
                word
                for number, (piece, result) in enumerate(written)
                for word in self.to_segments(piece, result, number, len(written))
            ]
            yield session, Transcript(sorted(words, key=lambda word: (word.start, word.end)))

    def transcribe_samples(self, samples: Sequence[Session]) -> Iterator[tuple[Session, str, list[Segment]]]:
        """Yield the text and the words of each sample, which is one piece, however long."""
        for sample, written in self._write_all(samples, whole=True):
            words = [word for piece, result in written for word in self.to_segments(piece, result, 0, 1)]
            yield sample, " ".join(self.to_text(result) for _, result in written), words

    def count_seconds(self, seconds: float) -> float:
        """Return the sum of all that `on_done` will be called with, given the duration of all recordings."""
        return seconds if self.diarizer is None else 2 * seconds

    def _write_all(
        self,
        sessions: Sequence[Session],
        on_error: OnError | None = None,
        whole: bool = False,
        on_done: OnProgress = _ignore,
    ) -> Iterator[tuple[Session, list[tuple[Piece, Written]]]]:
        """Yield the pieces of each session and what they say; pieces of like length are written together."""
        for first in range(0, len(sessions), POOL):
            cut = self.cut(sessions[first : first + POOL], on_error, whole, on_done)
            pieces_of = {session.session_id: own for session, own in cut}
            texts: dict[tuple[str, Span], Written] = {}
            pieces = [piece for own in pieces_of.values() for piece in own]
            batches = list(_split_batches(pieces, BATCH_SECONDS.get(self.device.type, BATCH_SECONDS["cpu"])))
            # The longest first: memory that they free is enough for all others, so the heap does not grow.
            for batch in reversed(batches):
                keys = [(piece.session.session_id, piece.span) for piece in batch]
                texts |= zip(keys, self.write(batch), strict=True)
                on_done(sum(piece.seconds for piece in batch))
            for session in sessions[first : first + POOL]:
                if session.session_id in pieces_of:
                    own = pieces_of[session.session_id]
                    yield session, [(piece, texts[session.session_id, piece.span]) for piece in own]

    # -----------------------------------------------------------------------------------------------------------------

    def cut(
        self,
        sessions: Sequence[Session],
        on_error: OnError | None = None,
        whole: bool = False,
        on_done: OnProgress = _ignore,
    ) -> Iterator[tuple[Session, list[Piece]]]:
        """Yield the pieces of each session, cut at silences, or as one; none if it is shorter than 10 ms."""
        if self.diarizer is not None:
            for session, rows in self.diarizer.posteriors_of(sessions, on_error, on_done):
                probs = self.diarizer.average_rows(rows) if self.averages_rows else rows
                yield session, self._cut_by_posteriors(session, probs, whole)
            return
        for session in sessions:
            try:
                spans = self._cut_without_posteriors(session, whole)
            except (ValueError, OSError) as error:
                if on_error is None:
                    raise
                on_error(session, error)
            else:
                yield session, [Piece(session, span, None, ()) for span in spans]

    def _cut_by_posteriors(self, session: Session, probs: Probs, whole: bool) -> list[Piece]:
        if len(probs) == 0:
            return []
        active = find_active_spans(probs, self.options.threshold, self.frame_seconds)
        end = to_us(measure_seconds(session))
        spans = [(0, end)] if whole else self._cut_at_silence([span for own in active for span in own], end)
        return [self.take_piece(session, span, probs, len(spans)) for span in spans]

    def take_piece(self, session: Session, span: Span, probs: Probs, n_pieces: int) -> Piece:
        """Return a piece of a recording with these posteriors."""
        raise NotImplementedError

    def _cut_without_posteriors(self, session: Session, whole: bool) -> list[Span]:
        end = to_us(measure_seconds(session))
        if end < to_us(HOP_SAMPLES / SAMPLE_RATE):
            return []
        if whole or end <= to_us(self._piece_seconds):
            return [(0, end)]
        if self.has_speakers:
            log.warning(
                "%s: without a diarizer, speakers of one piece of at most %g s are not those of the next",
                session.session_id,
                self._piece_seconds,
            )
        start = to_us(session.offset)
        speech = detect_speech(session.audio_path, (start, start + end), DetectorOptions())
        return self._cut_at_silence([(first - start, last - start) for first, last in speech], end)

    def _cut_at_silence(self, speech: Sequence[Span], end: int) -> list[Span]:
        longest = to_us(self._piece_seconds)
        search_us = round(SEARCH_SHARE * longest)
        quiet = gaps(merge(speech), 0, end)
        shortest = min(2 * FRAME_US, longest - search_us - 1)
        windows = cut_windows((0, end), quiet, Profile(speech), shortest, longest, search_us)
        # Between two frames, so that the posteriors of a piece are those of its frames.
        cuts = [0, *(last // FRAME_US * FRAME_US for _, last in windows[:-1]), end]
        return list(pairwise(cuts))


def order_by_arrival(probs: Probs, threshold: float) -> list[int]:
    """Return the columns by their first frame above the threshold; those without any come last, in their order."""
    active = probs > threshold
    first = np.where(active.any(axis=0), active.argmax(axis=0) if len(active) else 0, len(probs))
    return [int(column) for column in np.argsort(first, kind="stable")]


def approximate_times(words: Sequence[str], spans: Sequence[Span], lang: str = "en_US") -> list[Span]:
    """Return approximate times of words that are said, one after the other, in stretches of speech, in microseconds.

    They share the time of all stretches by the rule of stage 3; each word is then in the stretch that has its middle.
    """
    elapsed = np.cumsum([0, *(end - start for start, end in spans)])
    times = []
    for word in approximate_word_times(words, 0.0, to_seconds(int(elapsed[-1])), lang):
        first, last = to_us(word.start), to_us(word.end)
        place = min(int(np.searchsorted(elapsed, (first + last) / 2, side="right")) - 1, len(spans) - 1)
        start, end = spans[place]
        shift = start - int(elapsed[place])
        begin = min(max(first + shift, start), end - MIN_WORD_US)
        times.append((begin, max(min(last + shift, end), begin + MIN_WORD_US)))
    return times


def name_columns(columns: Iterable[int]) -> tuple[str, ...]:
    return tuple(f"speaker_{column}" for column in columns)


def slice_posteriors(probs: Probs, span: Span) -> Probs:
    """Return the rows of 80 ms that a span has, from a beginning that is between two of them."""
    first = span[0] // FRAME_US
    return probs[first : first + count_frames(round(to_seconds(span[1] - span[0]) * SAMPLE_RATE))]


def read_piece(piece: Piece) -> audio.Samples:
    """Return the samples of a piece, one mel frame at least."""
    session, start = piece.session, piece.session.offset + to_seconds(piece.span[0])
    samples = audio.read(session.audio_path, start, piece.seconds, channel=session.channel)
    return samples if len(samples) >= HOP_SAMPLES else np.pad(samples, (0, HOP_SAMPLES - len(samples)))


def _split_batches(pieces: Sequence[Piece], batch_seconds: float) -> Iterator[list[Piece]]:
    """Yield pieces of like length, as many as may be padded to the longest of them."""
    batch: list[Piece] = []
    for piece in sorted(pieces, key=lambda piece: piece.seconds):
        if batch and piece.seconds * (len(batch) + 1) > batch_seconds:
            yield batch
            batch = []
        batch.append(piece)
    if batch:
        yield batch
