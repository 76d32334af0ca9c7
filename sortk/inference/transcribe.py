"""Who said what, in recordings of any length: the multi-speaker ASR as users meet it.

    diarize    the whole recording, so that a speaker is the same from its beginning to its end
    cut        into pieces as long as the training samples, at the silences that the diarizer hears (stage 2's rule)
    write      the SST of each piece, the diarizer's posteriors as speaker kernels. In a piece speakers are numbered by
               their arrival in it, so the columns of the posteriors are sorted that way: <spk0> is then a known speaker
    lay out    a speaker's words over the time in which the diarizer hears that speaker, as stage 3 does

A model without a diarizer inside (systems 1 and, in training, 4) needs one from outside for recordings that are longer
than a piece. Without any, pieces are cut at the silences of a speech detector, and speakers are those of a piece.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from sortk.formats import audio
from sortk.formats.files import FormatError
from sortk.formats.model_folder import read_sst_level
from sortk.formats.posteriors import find_active_spans
from sortk.formats.sst import GRAMMARS, Level, parse_any, speaker_number
from sortk.formats.tokens import Tokenizer
from sortk.inference.diarize import DiarizeOptions, Diarizer, Posteriors, load, measure_seconds
from sortk.inference.load import LoadedDiarizer, load_asr
from sortk.models.canary import Canary
from sortk.models.decoding import Decoding, DecodingOptions, SstConstraint, search
from sortk.models.frames import FRAME_SECONDS, HOP_SAMPLES, SAMPLE_RATE, count_frames
from sortk.models.msasr import MsAsr, MsAsrOptions
from sortk.prepare.activity import DetectorOptions, detect_speech
from sortk.prepare.syllables import approximate_word_times
from sortk.prepare.windows import cut_windows
from sortk.records import Segment, Session
from sortk.spans import Profile, Span, clip, gaps, merge, to_seconds, to_us

log = logging.getLogger(__name__)

OnError = Callable[[Session, Exception], None]
POOL = 64  # sessions whose pieces of like length are decoded together
BATCH_SECONDS = {"cpu": 80.0, "cuda": 1600.0}  # of padded audio
# The longest piece if config.json does not say it: the paper's samples, and what NVIDIA's Canary was trained on.
PIECE_SECONDS = {"msasr": 20.0, "canary": 40.0}
MIN_PIECE_SECONDS = 1.0
SEARCH_SHARE = 0.5  # of a piece, at its end, in which the best silence to cut at is looked for
MIN_WORD_US = 1000
FRAME_US = to_us(FRAME_SECONDS)


@dataclass(frozen=True)
class TranscribeOptions:
    """How recordings are cut and written."""

    piece_seconds: float = 0.0  # longest piece; 0: as long as what the model has learned from
    threshold: float = 0.5  # posterior from which on a speaker speaks
    lang: str = "en_US"  # whose words get times, as pyphen names it
    decoding: Decoding = "valid"  # nothing but SSTs of the model's level; free: whatever the decoder prefers
    search: DecodingOptions = field(default_factory=DecodingOptions)

    def __post_init__(self) -> None:
        if not (self.piece_seconds == 0 or self.piece_seconds >= MIN_PIECE_SECONDS):
            raise ValueError(f"piece_seconds must be at least {MIN_PIECE_SECONDS:g}, not {self.piece_seconds:g}")
        if not 0 < self.threshold < 1:
            raise ValueError(f"threshold must lie between 0 and 1, not {self.threshold}")
        if self.decoding not in get_args(Decoding):
            raise ValueError(f"decoding must be free or valid, got {self.decoding!r}")


class Piece(NamedTuple):
    """A stretch of a recording that is written at a time; times count from the start of the session."""

    session: Session
    span: Span  # microseconds
    probs: Posteriors | None  # (frames, speakers), columns by arrival in the piece; None: nobody was asked
    speakers: tuple[str, ...]  # the name of each column

    @property
    def seconds(self) -> float:
        return to_seconds(self.span[1] - self.span[0])


class Transcriber:
    """A trained model with all that it takes to use it."""

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
        self.model, self.tokenizer, self.level = model.eval(), tokenizer, level
        self.options = options or TranscribeOptions()
        self._piece_seconds = self.options.piece_seconds or PIECE_SECONDS["msasr"]
        if model.diarizer is not None and model.options.supervision == "finetuned" and diarizer is not None:
            raise ValueError("this model has its own fine-tuned Sortformer inside: leave out the other diarizer")
        if diarizer is None and model.diarizer is not None:
            diarizer = Diarizer(LoadedDiarizer(model.diarizer))
        if model.kernels is not None and diarizer is None:
            raise ValueError("this model has to be told who speaks, and has no diarizer inside: give one (--diarizer)")
        n_speakers = model.options.n_speakers
        if model.kernels is not None and diarizer is not None and diarizer.model.options.n_speakers != n_speakers:
            n_given = diarizer.model.options.n_speakers
            raise ValueError(f"the diarizer tells {n_given} speakers apart, but the ASR is for {n_speakers}")
        self.diarizer = diarizer
        grammar = GRAMMARS[level] if level is not None else None
        self._is_named = grammar is not None and grammar.named
        self._constraint = None
        if grammar is not None and self.options.decoding == "valid":
            self._constraint = SstConstraint(tokenizer, model.options.asr.n_tokens, grammar, self.device)

    @property
    def device(self) -> torch.device:
        return self.model.asr.features.window.device

    def __call__(self, source: str | Path | Session) -> list[Segment]:
        """The words of a recording, one segment each, in the order of their starts; times count from its file's."""
        session = source if isinstance(source, Session) else Session(Path(source).stem, Path(source))
        [(_, words)] = self.transcribe([session])
        return words

    def transcribe(
        self, sessions: Sequence[Session], on_error: OnError | None = None
    ) -> Iterator[tuple[Session, list[Segment]]]:
        """The words of each session, in order.

        With `on_error`, it is told of a session whose audio cannot be read, and the others go on.
        """
        for session, written in self._write_all(sessions, on_error):
            words = [
                word
                for number, (piece, text) in enumerate(written)
                for word in self.lay_out(piece, text, number, len(written))
            ]
            yield session, sorted(words, key=lambda word: (word.start, word.end))

    def transcribe_samples(self, samples: Sequence[Session]) -> Iterator[tuple[Session, str, list[Segment]]]:
        """The SST and the words of each sample, which is one piece, however long."""
        for sample, written in self._write_all(samples, whole=True):
            words = [word for piece, text in written for word in self.lay_out(piece, text, 0, 1)]
            yield sample, " ".join(text for _, text in written), words

    def _write_all(
        self, sessions: Sequence[Session], on_error: OnError | None = None, whole: bool = False
    ) -> Iterator[tuple[Session, list[tuple[Piece, str]]]]:
        """The pieces of each session and their SSTs; pieces of like length are written together."""
        for first in range(0, len(sessions), POOL):
            cut = self.cut(sessions[first : first + POOL], on_error, whole)
            pieces_of = {session.session_id: own for session, own in cut}
            texts: dict[tuple[str, Span], str] = {}
            pieces = [piece for own in pieces_of.values() for piece in own]
            for batch in _split_batches(pieces, BATCH_SECONDS.get(self.device.type, BATCH_SECONDS["cpu"])):
                keys = [(piece.session.session_id, piece.span) for piece in batch]
                texts |= zip(keys, self.write(batch), strict=True)
            for session in sessions[first : first + POOL]:
                if session.session_id in pieces_of:
                    own = pieces_of[session.session_id]
                    yield session, [(piece, texts[session.session_id, piece.span]) for piece in own]

    # -----------------------------------------------------------------------------------------------------------------

    def cut(
        self, sessions: Sequence[Session], on_error: OnError | None = None, whole: bool = False
    ) -> Iterator[tuple[Session, list[Piece]]]:
        """The pieces of each session, cut where it is quiet, or `whole`; none if it is shorter than 10 ms."""
        if self.diarizer is not None:
            for session, rows in self.diarizer.hear(sessions, on_error):
                probs = self.diarizer.average_rows(rows)
                yield session, self._cut_heard(session, probs, whole)
            return
        for session in sessions:
            try:
                spans = self._cut_unheard(session, whole)
            except (ValueError, OSError) as error:
                if on_error is None:
                    raise
                on_error(session, error)
            else:
                yield session, [Piece(session, span, None, ()) for span in spans]

    def _cut_heard(self, session: Session, probs: Posteriors, whole: bool) -> list[Piece]:
        if len(probs) == 0:
            return []
        active = find_active_spans(probs, self.options.threshold)
        end = to_us(measure_seconds(session))
        spans = [(0, end)] if whole else self._cut_at_silence([span for own in active for span in own], end)
        if len(spans) == 1:  # its speakers are sorted, better than by a threshold
            return [Piece(session, spans[0], probs, _name_columns(range(probs.shape[1])))]
        return [self._take_piece(session, span, probs) for span in spans]

    def _cut_unheard(self, session: Session, whole: bool) -> list[Span]:
        end = to_us(measure_seconds(session))
        if end < to_us(HOP_SAMPLES / SAMPLE_RATE):
            return []
        if whole or end <= to_us(self._piece_seconds):
            return [(0, end)]
        if self.level is not None:
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

    def _take_piece(self, session: Session, span: Span, probs: Posteriors) -> Piece:
        first = span[0] // FRAME_US
        n_frames = count_frames(_count_samples(span))
        own = probs[first : first + n_frames]
        order = order_by_arrival(own, self.options.threshold)
        return Piece(session, span, own[:, order], _name_columns(order))

    # -----------------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def write(self, pieces: Sequence[Piece]) -> list[str]:
        """The SST of each piece."""
        clips = [torch.from_numpy(_read(piece)) for piece in pieces]
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

    # -----------------------------------------------------------------------------------------------------------------

    def lay_out(self, piece: Piece, text: str, number: int, n_pieces: int) -> list[Segment]:
        """The words of a piece with speakers and approximate times; it is the `number`-th of `n_pieces`."""
        spoken: dict[str, list[str]] = {}
        for turn in parse_any(text):
            spoken.setdefault(turn.speaker, []).extend(turn.text.split())
        start = to_us(piece.session.offset) + piece.span[0]
        words = []
        for speaker, own in spoken.items():
            name, column = self._name_speaker(piece, speaker, number, n_pieces), speaker_number(speaker)
            spans = self._find_spans(piece, column if self._is_named else None)
            for word, (first, last) in zip(own, lay_words(own, spans, self.options.lang), strict=True):
                times = to_seconds(start + first), to_seconds(start + last)
                words.append(Segment(piece.session.session_id, name, *times, word))
        return words

    def _name_speaker(self, piece: Piece, speaker: str, number: int, n_pieces: int) -> str:
        """Speakers of the whole recording if the diarizer knows them, else of the piece, or turns (SOT). All words of a
        model that knows no speakers have one."""
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
        """Where the speaker is heard in the piece, from its start on; else where anybody is; else all of it."""
        whole = (0, piece.span[1] - piece.span[0])
        if piece.probs is None:
            return [whole]
        own = piece.probs if speaker is None else piece.probs[:, speaker : speaker + 1]
        for heard in (own, piece.probs):
            active = find_active_spans(heard, self.options.threshold)
            if spans := clip(merge(chain.from_iterable(active)), *whole):
                return spans
        return [whole]


def order_by_arrival(probs: Posteriors, threshold: float) -> list[int]:
    """Columns in the order in which they are first above the threshold; those that never are stay behind, as given."""
    active = probs > threshold
    first = np.where(active.any(axis=0), active.argmax(axis=0) if len(active) else 0, len(probs))
    return [int(column) for column in np.argsort(first, kind="stable")]


def lay_words(words: Sequence[str], spans: Sequence[Span], lang: str = "en_US") -> list[Span]:
    """Approximate times of words that are said, one after the other, in stretches of speech, in microseconds.

    On a clock that stands still between the stretches they share the time as stage 3 says; each word then lies in the
    stretch in which its middle is.
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


def _name_columns(columns: Iterable[int]) -> tuple[str, ...]:
    return tuple(f"speaker_{column}" for column in columns)


def _count_samples(span: Span) -> int:
    return round(to_seconds(span[1] - span[0]) * SAMPLE_RATE)


def _read(piece: Piece) -> audio.Samples:
    samples = audio.read(piece.session.audio_path, piece.session.offset + to_seconds(piece.span[0]), piece.seconds)
    return samples if len(samples) >= HOP_SAMPLES else np.pad(samples, (0, HOP_SAMPLES - len(samples)))


def _split_batches(pieces: Sequence[Piece], batch_seconds: float) -> Iterator[list[Piece]]:
    """Pieces of like length, as many as may be padded to the longest of them."""
    batch: list[Piece] = []
    for piece in sorted(pieces, key=lambda piece: piece.seconds):
        if batch and piece.seconds * (len(batch) + 1) > batch_seconds:
            yield batch
            batch = []
        batch.append(piece)
    if batch:
        yield batch


# ---------------------------------------------------------------------------------------------------------------------
# Models from disk


def load_transcriber(
    path: Path,
    diarizer_path: Path | None = None,
    options: TranscribeOptions | None = None,
    device: str | None = None,
) -> Transcriber:
    """A transcriber from a model folder or a `.nemo` file, on the GPU if there is one."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    loaded = load_asr(path)
    tokenizer, config = loaded.tokenizer, loaded.config
    # A Canary is as NVIDIA trained it: no diarizer supervises it.
    asr = loaded.model
    model = MsAsr(MsAsrOptions(asr.options, "none"), asr) if isinstance(asr, Canary) else asr
    if not isinstance(model, MsAsr):
        raise FormatError(path, None, f"holds the model {config['model']!r}; transcribe supports msasr and canary")
    n_tokens = model.options.asr.n_tokens
    if tokenizer.n_tokens > n_tokens:
        raise FormatError(path, None, f"{tokenizer.n_tokens} tokens are more than the {n_tokens} of the model")
    if model.diarizer is not None:
        model.diarizer.freeze_for_inference()
    try:
        level = read_sst_level(config)
    except ValueError as error:
        raise FormatError(path, None, str(error)) from None
    diarizer = load(diarizer_path, DiarizeOptions(), device) if diarizer_path else None
    options = options or TranscribeOptions()
    if options.piece_seconds == 0:
        try:
            learned = float(config.get("piece_seconds", PIECE_SECONDS[config["model"]]))
            options = replace(options, piece_seconds=max(learned, MIN_PIECE_SECONDS))
        except (TypeError, ValueError) as error:
            raise FormatError(path, None, f"its config.json: piece_seconds: {error}") from None
    return Transcriber(model.to(device), tokenizer, level, options, diarizer)
