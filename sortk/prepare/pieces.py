"""Sources -> pieces: the spans of speech, without long pauses, from which conversations are built.

A source is trimmed to its speech (by its word times, else by speech_start/speech_end, else by energy) and cut at its
long pauses, so that the segment of a piece marks speech and not silence. A source without word times gets approximate
ones (Appendix C of the paper), over its speech only.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sortk.formats import audio
from sortk.formats.audio import Samples
from sortk.formats.files import FormatError, atomic_text, path_text, resolve_path
from sortk.formats.objects import read_own
from sortk.prepare.syllables import approximate_word_times
from sortk.records import SAMPLE_RATE, Source, Word

SPLIT_PAUSE_SECONDS = 0.3  # a longer silence is a pause between pieces, a shorter one belongs to speech
MIN_PIECE_SECONDS = 0.1  # shorter bursts are clicks
MARGIN_SECONDS = 0.05  # room tone kept around a piece, over which it fades in and out
LEVEL_SECONDS = 0.01  # of a frame in which the level is measured
PITCH_HZ = (60.0, 420.0)  # of the voices of adults and children
PITCH_SECONDS = 3.0  # of a speaker's speech in which it is measured
VOICED = 0.5  # normalised autocorrelation above which a frame has a pitch
LEVEL_RANGE_DB = 35.0  # speech is within this range below the loud frames of its utterance ...
NOISE_MARGIN_DB = 8.0  # ... and this much above its quietest frames

TimeRange = tuple[float, float]  # start and end in seconds, from the start of the utterance


@dataclass(frozen=True, slots=True)
class SpeechPiece:
    """A span of speech in an audio file, `duration_ms` from `start` seconds on.

    Its length is an integer number of milliseconds, the grid on which sessions are planned. Word times count from its
    start; `lead_ms` and `tail_ms` are how much room tone may be taken before and after it.
    """

    speaker: str
    utterance_id: str
    audio_path: Path
    start: float
    duration_ms: int
    lead_ms: int
    tail_ms: int
    energy: float  # mean square of its samples
    words: tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class SpeakerIndex:
    """The index file with the pieces of one speaker, and statistics of the speaker."""

    speaker: str
    path: Path
    energy: float  # mean square over all pieces
    shortest_ms: int
    collection: Path  # the folder of the audio: its speakers have similar microphones and rooms
    utterance_ms: int  # mean length of an utterance
    pitch_hz: float  # median pitch; 0: not measured, because there is no voiced speech or the index is old


def index_speaker(sources: Sequence[Source], path: Path, sample_rate: int) -> SpeakerIndex | None:
    """Find the pieces of all `sources` (of one speaker) and write them to `path`; return None without speech."""
    utterances = [pieces for pieces in _find_pieces(sources, sample_rate) if pieces]
    files = sorted({pieces[0].audio_path for pieces in utterances})
    content = {
        "speaker": sources[0].speaker,
        "pitch_hz": measure_pitch(utterances),
        "audio": [path_text(file, path) for file in files],
        "utterances": [
            [pieces[0].utterance_id, files.index(pieces[0].audio_path), list(map(_piece_to_json, pieces))]
            for pieces in utterances
        ],
    }
    with atomic_text(path) as file:
        file.write(json.dumps(content))
    return summarize_index(path)


def summarize_index(path: Path) -> SpeakerIndex | None:
    """Return the statistics of an index file; None if its speaker has no speech."""
    utterances = read_index(path)
    pitch_hz = read_own(path, lambda content: float(content.get("pitch_hz", 0.0)))
    pieces = [piece for utterance in utterances for piece in utterance]
    if not pieces:
        return None
    total_ms = sum(piece.duration_ms for piece in pieces)
    return SpeakerIndex(
        speaker=pieces[0].speaker,
        path=path,
        energy=sum(piece.energy * piece.duration_ms for piece in pieces) / total_ms,
        shortest_ms=min(piece.duration_ms for piece in pieces),
        collection=pieces[0].audio_path.parent,
        utterance_ms=total_ms // len(utterances),
        pitch_hz=pitch_hz,
    )


def measure_pitch(utterances: Iterable[Sequence[SpeechPiece]]) -> float:
    """Return the median pitch of some pieces in Hz; 0 without voiced speech.

    The pitch of a frame is where its autocorrelation, from an FFT of twice its length, is highest.
    """
    pieces = sorted((piece for own in utterances for piece in own), key=lambda piece: -piece.duration_ms)
    frame, found, seconds = round(0.064 * SAMPLE_RATE), [], 0.0
    shortest, longest = (round(SAMPLE_RATE / pitch) for pitch in reversed(PITCH_HZ))
    for piece in pieces:
        if seconds >= PITCH_SECONDS or piece.duration_ms * SAMPLE_RATE < 1000 * frame:
            break
        samples = audio.read(piece.audio_path, piece.start, min(piece.duration_ms / 1000, PITCH_SECONDS), SAMPLE_RATE)
        seconds += piece.duration_ms / 1000
        frames = np.lib.stride_tricks.sliding_window_view(samples, frame)[:: frame // 2] * np.hanning(frame)
        power = np.abs(np.fft.rfft(frames - frames.mean(axis=1, keepdims=True), 2 * frame)) ** 2
        alike = np.fft.irfft(power)[:, :longest]
        alike /= np.maximum(alike[:, :1], 1e-9)
        lags = shortest + alike[:, shortest:].argmax(axis=1)
        found += (SAMPLE_RATE / lags[alike[np.arange(len(lags)), lags] > VOICED]).tolist()
    return round(float(np.median(found)), 1) if found else 0.0


def read_index(path: Path) -> list[list[SpeechPiece]]:
    """Return the pieces of each utterance, as `index_speaker` wrote them."""

    def parse(content: Any) -> list[list[SpeechPiece]]:
        speaker, files = content["speaker"], [resolve_path(file, path) for file in content["audio"]]
        utterances = []
        for name, file, rows in content["utterances"]:
            pieces = []
            for *numbers, spoken in rows:
                start, duration_ms, lead_ms, tail_ms, energy = numbers
                if not all(math.isfinite(number) for number in numbers) or duration_ms < 1:
                    raise ValueError(f"not a piece of speech: {numbers}")
                words = tuple(Word(*word) for word in spoken)
                pieces.append(
                    SpeechPiece(speaker, name, files[file], start, duration_ms, lead_ms, tail_ms, energy, words)
                )
            utterances.append(pieces)
        return utterances

    return read_own(path, parse)


def _piece_to_json(piece: SpeechPiece) -> list[Any]:
    words = [[word.text, word.start, word.end] for word in piece.words]
    return [piece.start, piece.duration_ms, piece.lead_ms, piece.tail_ms, piece.energy, words]


def at_speed(piece: SpeechPiece, speaker: str, speed: float) -> SpeechPiece:
    """Return the piece as played at a speed, under another speaker name; `start` stays that in the source."""
    if speed == 1:
        return piece
    duration_ms = round(piece.duration_ms / speed)
    return replace(
        piece,
        speaker=speaker,
        duration_ms=duration_ms,
        lead_ms=int(piece.lead_ms / speed),
        tail_ms=int(piece.tail_ms / speed),
        words=tuple(
            _shift_into(Word(w.text, w.start / speed, w.end / speed), 0.0, duration_ms / 1000) for w in piece.words
        ),
    )


def cut_piece(piece: SpeechPiece, longest_ms: int, speed: float = 1.0) -> list[SpeechPiece]:
    """Return the piece in equal parts of at most `longest_ms`, played at `speed`; a word goes where its middle is."""
    n_parts = math.ceil(piece.duration_ms / longest_ms)
    if n_parts == 1:
        return [piece]
    edges_ms = [round(piece.duration_ms * number / n_parts) for number in range(n_parts + 1)]
    return [
        replace(
            piece,
            start=round(piece.start + start_ms * speed / 1000, 6),
            duration_ms=end_ms - start_ms,
            lead_ms=piece.lead_ms if start_ms == 0 else 0,
            tail_ms=piece.tail_ms if end_ms == piece.duration_ms else 0,
            words=tuple(
                _shift_into(word, start_ms / 1000, (end_ms - start_ms) / 1000)
                for word in piece.words
                if start_ms <= 500 * (word.start + word.end) < end_ms
            ),
        )
        for start_ms, end_ms in itertools.pairwise(edges_ms)
    ]


def shorten_piece(piece: SpeechPiece, longest_ms: int) -> SpeechPiece:
    """Return the first `longest_ms` of the piece, with the words that end in it."""
    if piece.duration_ms <= longest_ms:
        return piece
    words = tuple(word for word in piece.words if word.end <= longest_ms / 1000)
    return replace(piece, duration_ms=longest_ms, tail_ms=0, words=words)


def _find_pieces(sources: Iterable[Source], sample_rate: int) -> Iterator[list[SpeechPiece]]:
    """Yield the pieces of each source; a file with several sources in a row is decoded once."""
    for path, in_file in itertools.groupby(sources, key=lambda source: source.audio_path):
        samples = audio.read(path, sample_rate=sample_rate)
        for source in in_file:
            first, last = round(source.offset * sample_rate), round((source.offset + source.duration) * sample_rate)
            if last > len(samples) + sample_rate * MARGIN_SECONDS:
                reason = f"utterance {source.utterance_id!r} ends at {source.offset + source.duration:.3f} s"
                raise FormatError(path, None, f"{reason}, after the audio's end ({len(samples) / sample_rate:.3f} s)")
            yield _cut(source, samples[first:last], sample_rate)


def _cut(source: Source, samples: Samples, sample_rate: int) -> list[SpeechPiece]:
    """Return the pieces of one utterance, given its samples."""
    if source.words:
        groups = _group_words(source.words)
    else:
        intervals = _speech_by_energy(samples, sample_rate, source.speech_start, source.speech_end)
        groups = _assign_words(source.text.split(), intervals)
    pieces = [_make_piece(source, samples, sample_rate, interval, words) for interval, words in groups]
    return [piece for piece in pieces if piece.duration_ms >= 1000 * MIN_PIECE_SECONDS and piece.energy > 0]


def _make_piece(
    source: Source, samples: Samples, sample_rate: int, interval: TimeRange, words: Sequence[Word]
) -> SpeechPiece:
    total_ms = 1000 * len(samples) // sample_rate
    start_ms = max(0, math.floor(1000 * interval[0]))
    end_ms = min(total_ms, math.ceil(1000 * interval[1]))
    speech = samples[start_ms * sample_rate // 1000 : end_ms * sample_rate // 1000]
    margin_ms = round(1000 * MARGIN_SECONDS)
    return SpeechPiece(
        speaker=source.speaker,
        utterance_id=source.utterance_id,
        audio_path=source.audio_path,
        start=round(source.offset + start_ms / 1000, 6),
        duration_ms=end_ms - start_ms,
        lead_ms=min(margin_ms, start_ms),
        tail_ms=min(margin_ms, total_ms - end_ms),
        energy=float(np.mean(np.square(speech, dtype=np.float64))) if len(speech) else 0.0,
        words=tuple(_shift_into(word, start_ms / 1000, (end_ms - start_ms) / 1000) for word in words),
    )


def _shift_into(word: Word, piece_start: float, piece_seconds: float) -> Word:
    """Return the word with times from the start of its piece, rounded to milliseconds, inside it and never empty."""
    start = min(max(round(word.start - piece_start, 3), 0.0), round(piece_seconds - 0.001, 3))
    end = min(max(round(word.end - piece_start, 3), round(start + 0.001, 3)), piece_seconds)
    return Word(word.text, start, end)


def _group_words(words: Sequence[Word]) -> list[tuple[TimeRange, list[Word]]]:
    """Return words with known times in groups, separated by long pauses."""
    groups: list[list[Word]] = []
    end = -math.inf
    for word in words:
        if groups and word.start - end < SPLIT_PAUSE_SECONDS:
            groups[-1].append(word)
        else:
            groups.append([word])
        end = max(end, word.end)
    return [((group[0].start, max(word.end for word in group)), group) for group in groups]


def _speech_by_energy(
    samples: Samples, sample_rate: int, speech_start: float | None, speech_end: float | None
) -> list[TimeRange]:
    """Return the spans with energy inside the given limits, joined over short pauses. Empty for digital silence."""
    frame = round(LEVEL_SECONDS * sample_rate)
    n_frames = len(samples) // frame
    first = 0 if speech_start is None else round(speech_start / LEVEL_SECONDS)
    last = n_frames if speech_end is None else min(n_frames, round(speech_end / LEVEL_SECONDS))
    if last <= first:
        return []
    power = np.square(samples[: n_frames * frame].reshape(n_frames, frame)).mean(axis=1)[first:last]
    level_db = 10 * np.log10(power + 1e-12)
    quiet, loud = np.percentile(level_db, [5, 95])
    threshold_db = max(loud - LEVEL_RANGE_DB, min(quiet + NOISE_MARGIN_DB, loud - 15))
    active = np.flatnonzero((level_db > threshold_db) & (power > 0)) + first
    if not len(active):
        return []
    breaks = np.flatnonzero(np.diff(active) > SPLIT_PAUSE_SECONDS / LEVEL_SECONDS)
    starts = active[np.concatenate(([0], breaks + 1))] * LEVEL_SECONDS
    ends = (active[np.concatenate((breaks, [len(active) - 1]))] + 1) * LEVEL_SECONDS
    return [
        (start, end)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        if end - start >= MIN_PIECE_SECONDS
    ]


def _assign_words(words: Sequence[str], intervals: Sequence[TimeRange]) -> list[tuple[TimeRange, list[Word]]]:
    """Return approximate times for words: each word in one span of speech, none in a pause.

    A span without a word would be speech without a transcript: it takes one from a neighbour that has several, and
    is left out if none has.
    """
    if not words or not intervals:
        return [(interval, []) for interval in intervals]
    # On a clock that stops during pauses, speech is one span; a word goes where its middle is.
    elapsed_at = np.cumsum([0.0, *(end - start for start, end in intervals)])
    texts: list[list[str]] = [[] for _ in intervals]
    for word in approximate_word_times(words, 0.0, float(elapsed_at[-1])):
        middle = (word.start + word.end) / 2
        texts[min(int(np.searchsorted(elapsed_at, middle, side="right")) - 1, len(intervals) - 1)].append(word.text)
    for index, text in enumerate(texts):
        if not text and index > 0 and len(texts[index - 1]) > 1:
            text.append(texts[index - 1].pop())
        elif not text and index + 1 < len(texts) and len(texts[index + 1]) > 1:
            text.append(texts[index + 1].pop(0))
    return [
        (interval, approximate_word_times(text, *interval))
        for interval, text in zip(intervals, texts, strict=True)
        if text
    ]
