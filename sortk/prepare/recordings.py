"""Read what is known of a recording before it is cut: its span, its speakers' turns, its words. Repairs are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from sortk.formats import audio
from sortk.formats.annotation import own_names, prefer_rttm, recorded_segments, session_regions, session_segments
from sortk.formats.files import FormatError, is_file
from sortk.prepare.timestamps import MIN_WORD_SECONDS, TimestampOptions, split_segment
from sortk.records import Segment, Session
from sortk.spans import Span, clip, length, merge, to_seconds, to_us

DURATION_ROUNDING_US = 1_000  # a manifest may round the duration to milliseconds

REPAIRS = {
    "duration_cut": "sessions whose duration in the manifest exceeds the audio",
    "rttm_of_other_id": "sessions whose RTTM has another session id",
    "rttm_cut_at_end": "annotated segments cut at the end of the audio",
    "rttm_after_end": "annotated segments after the end of the audio, left out",
    "rttm_merged": "annotated segments that overlap or touch another of their speaker, joined",
    "transcript_cut_at_end": "entries of the transcript cut at the end of the audio",
    "transcript_after_end": "entries of the transcript after the end of the audio, left out",
    "transcript_empty": "entries of the transcript without a word",
    "speakers_without_rttm": "speakers of the transcript who are not in the annotation",
    "no_speech_kept": "turns in which no speech was detected, kept as annotated",  # see refine.py
    "words_outside_uem": "words that the UEM leaves out",
    "word_cut_by_window": "windows that end inside a word",  # there is no gap between words (see windows.py)
    # The word belongs to the sample that contains its middle.
    "word_cut_by_scored": "samples to be scored that end inside a word",
}
"""What each repair means that `Recording.repairs` and the summary count."""

Turns = dict[str, list[Span]]
"""The turns of each speaker, in order and without overlaps."""


class TimedWord(NamedTuple):
    """One word of the transcript; times in microseconds."""

    start: int
    end: int
    speaker: str
    text: str

    def is_in(self, span: Span) -> bool:
        """Return whether the word belongs to the span: its middle is in it."""
        return span[0] <= (self.start + self.end) / 2 < span[1]


@dataclass(frozen=True, slots=True)
class Recording:
    """A session, ready to be cut; all times are those of the audio file, in microseconds."""

    session_id: str
    session_span: Span
    span: Span  # the session between the first start and the last end of its UEM; all of it without a UEM
    turns: Turns
    entries: Sequence[Segment] | None  # of the transcript; None if there is no transcript
    words: Sequence[TimedWord]  # of all speakers, in the order of their start
    repairs: Counter[str]

    @property
    def outside(self) -> list[Span]:
        """The parts of the session that its UEM leaves out."""
        (first, last), (start, end) = self.session_span, self.span
        return [part for part in ((first, start), (end, last)) if part[0] < part[1]]


def load_recording(session: Session, word_options: TimestampOptions, check_audio: bool = True) -> Recording:
    """Read the files that the session names, and only the header of the audio.

    Without `check_audio`, the audio may be missing if the session has a duration.
    """
    repairs: Counter[str] = Counter()
    if check_audio and not is_file(session.audio_path):
        raise FormatError(session.audio_path, None, f"no such audio file, but session {session.session_id} names it")
    session_span, audio_end = _find_span(session, repairs)
    span = session_span
    if regions := session_regions(session):
        start = max(span[0], to_us(min(region.start for region in regions)))
        end = min(span[1], to_us(max(region.end for region in regions)))
        span = (start, end) if start < end else (span[0], span[0])  # empty if all regions are outside of the session
    turns = _read_turns(session, span, audio_end, repairs)
    entries = None
    if session.seglst_path is not None or session.ctm_path is not None:
        all_segments = session_segments(replace(session, offset=0.0, duration=None, rttm_path=None))
        entries = [
            entry
            for entry in cut_at_end(all_segments, audio_end, "transcript", repairs)
            if _overlaps(entry, session_span)
        ]
        outside = [entry for entry in entries if not _overlaps(entry, span)]
        repairs["words_outside_uem"] += sum(len(entry.text.split()) for entry in outside)
        entries = [entry for entry in entries if _overlaps(entry, span)]
        repairs["transcript_empty"] += sum(not entry.text.split() for entry in entries)
    words = sorted(time_words(entries or [], word_options), key=lambda word: word.start)
    repairs["words_outside_uem"] += sum(word.is_in(session_span) and not word.is_in(span) for word in words)
    repairs["speakers_without_rttm"] += len({word.speaker for word in words} - turns.keys())
    return Recording(session.session_id, session_span, span, turns, entries, words, +repairs)


def _find_span(session: Session, repairs: Counter[str]) -> tuple[Span, int]:
    """Return the span of the session in the audio, and where the audio ends."""
    start = to_us(session.offset)
    if session.duration is not None and not is_file(session.audio_path):
        end = to_us(session.offset + session.duration)
        return (start, end), end
    audio_end = to_us(audio.info(session.audio_path).seconds)
    if audio_end <= start:
        reason = f"session {session.session_id} starts at {session.offset} s, but the audio ends at"
        raise FormatError(session.audio_path, None, f"{reason} {to_seconds(audio_end)} s")
    if session.duration is None:
        return (start, audio_end), audio_end
    end = to_us(session.offset + session.duration)
    repairs["duration_cut"] += end > audio_end + DURATION_ROUNDING_US
    return (start, min(end, audio_end)), audio_end


def _read_turns(session: Session, span: Span, audio_end: int, repairs: Counter[str]) -> Turns:
    if session.rttm_path is None:
        raise ValueError(f"session {session.session_id}: has no rttm_filepath, which stage 2 requires")
    if not session.rttm_path.is_file():
        raise ValueError(f"session {session.session_id}: its RTTM file does not exist: {session.rttm_path}")
    segments = recorded_segments(prefer_rttm(session))
    repairs["rttm_of_other_id"] += any(segment.session_id not in own_names(session) for segment in segments[:1])
    by_speaker: Turns = {}
    for segment in cut_at_end(segments, audio_end, "rttm", repairs):
        by_speaker.setdefault(segment.speaker, []).append((to_us(segment.start), to_us(segment.end)))
    turns = {}
    for speaker, spans in by_speaker.items():
        merged = merge(spans)
        repairs["rttm_merged"] += len(spans) - len(merged)
        inside = clip(merged, *span)
        if length(inside):
            turns[speaker] = inside
    return turns


def _overlaps(entry: Segment, span: Span) -> bool:
    return to_us(entry.start) < span[1] and to_us(entry.end) > span[0]


def cut_at_end(segments: Iterable[Segment], audio_end: int, source: str, repairs: Counter[str]) -> Iterator[Segment]:
    """Yield segments cut to the audio's length; those with no time left are left out. Both are counted as repairs."""
    for segment in segments:
        left = audio_end - to_us(segment.start)
        if to_us(segment.end) <= audio_end:
            yield segment
        elif left >= to_us(MIN_WORD_SECONDS) * max(1, len(segment.text.split())):
            repairs[f"{source}_cut_at_end"] += 1
            yield replace(segment, end=to_seconds(audio_end))
        else:
            repairs[f"{source}_after_end"] += 1


def time_words(entries: Iterable[Segment], options: TimestampOptions) -> Iterator[TimedWord]:
    """Yield the words of the transcript. An entry of one word has its times; longer ones get them by their syllables.

    Stage 3 does the same with the same entries (`timestamps.split_segment`), so a cut between two words here is one
    between two words there.
    """
    for entry in entries:
        for word in split_segment(entry, options):
            yield TimedWord(to_us(word.start), to_us(word.end), word.speaker, word.text)
