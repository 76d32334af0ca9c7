"""Stage 4: words with times -> a sorted serialized transcript (SST), and exactly back.

Speakers are numbered by arrival: <spk0> is who says the first word. Four levels, of a session in which one speaker says
"well i think so" and another "yes" during "i":

    word     <spk0> well i <spk1> yes <spk0> think so    words in the order of their starts
    segment  <spk0> well i think so <spk1> yes           segments in the order of their starts
    sot      well i think so <cs> yes                    first in, first out, nameless (Kanda et al., 2020)
    dom-sot  well i think so <cs> yes                    speaker by speaker, who speaks longest first

Who starts together: words and segments go by the arrival of their speaker, then as given; speakers by the order in
which their first words are given. A token stands only where the speaker changes. (The paper describes a token in front
of every word; it would say the same, since a word belongs to the token before it, with about twice the tokens.)

`parse_sst` is the inverse: for every text that `build_sst` makes, serialize(parse_sst(text, level), level) == text, and
it accepts no others (white space aside). SOT does not tell who speaks, so there each turn comes back as a speaker of
its own.
"""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, get_args

from sortk.formats import objects, seglst
from sortk.formats.files import FormatError, files_in, quote
from sortk.prepare.timestamps import group_sessions
from sortk.records import RunJobs, Segment, Session

Level = Literal["word", "segment", "sot", "dom-sot"]

SpokenWord = tuple[int, str]
"""Number of the speaker, and what is said."""

SPEAKER_CHANGE = "<cs>"
SPEAKER_TOKEN = re.compile(r"<spk(0|[1-9]\d*)>", re.ASCII)
RESERVED = re.compile(r"<(?:spk[^<>\s]*|cs)>", re.IGNORECASE)  # anything that a tokenizer might take for a token

EDGE_SECONDS = 0.001  # a word that sticks out of a window by less is rounded, not cut


@dataclass(frozen=True)
class SstOptions:
    """What a sorted serialized transcript looks like."""

    level: Level = "word"  # word, segment, sot or dom-sot
    segment_gap: float = 0.5  # seconds; words of a speaker with no longer pause between them are one segment

    def __post_init__(self) -> None:
        if self.level not in get_args(Level):
            raise ValueError(f"unknown level {self.level!r} of SST; levels: {', '.join(get_args(Level))}")
        if not self.segment_gap >= 0:
            raise ValueError(f"segment_gap must not be negative, not {self.segment_gap}")


# ---------------------------------------------------------------------------------------------------------------------
# One session


def build_sst(words: Sequence[Segment], level: Level = "word", segment_gap: float = SstOptions.segment_gap) -> str:
    """The SST of one session; empty if nothing is said. `words` are entries of one word each.

    From entries that hold several words, levels other than `word` can be built as well: such entries are segments as
    they stand, whereas from single words segments are joined again.
    """
    return serialize(order_words(words, level, segment_gap), level)


def order_words(words: Sequence[Segment], level: Level, segment_gap: float) -> list[SpokenWord]:
    """Who says what, in the order of the SST."""
    spoken = [segment for segment in words if segment.text and not segment.text.isspace()]
    check_words(spoken)
    arrival_order = number_speakers(spoken)
    if level == "word":
        return _order_by_onset(spoken, arrival_order)
    if level == "dom-sot":
        return _order_by_dominance(spoken, arrival_order)
    return _order_by_segment(spoken, arrival_order, segment_gap)


def check_words(words: Sequence[Segment]) -> None:
    """ValueError for words that would be read back as tokens, and for a mixture of sessions."""
    for word in words:
        if "<" in word.text and (found := RESERVED.search(word.text)):
            where = f"session {word.session_id}, {word.speaker} at {word.start:.3f} s"
            raise ValueError(f"{where}: the transcript holds {quote(found[0])}, which is a token of SST")
    if len({word.session_id for word in words}) > 1:
        raise ValueError(f"an SST is of one session, not of {words[0].session_id} and others")


def number_speakers(words: Iterable[Segment]) -> dict[str, int]:
    """arrival_order: 0 for the speaker of the first word, and so on; of two who start together, the one given first."""
    by_onset = sorted(words, key=attrgetter("start"))
    return {speaker: number for number, speaker in enumerate(dict.fromkeys(word.speaker for word in by_onset))}


def _order_by_onset(words: Sequence[Segment], arrival_order: Mapping[str, int]) -> list[SpokenWord]:
    # The sort is stable, so that words of one speaker that start together stay as given.
    in_order = sorted(words, key=lambda word: (word.start, arrival_order[word.speaker]))
    for word in in_order:
        if len(word.text.split()) > 1:
            where = f"session {word.session_id}, {word.speaker} at {word.start:.3f} s"
            raise ValueError(f"{where}: {quote(word.text)} is more than one word; `sortk timestamps` makes words of it")
    return [(arrival_order[word.speaker], word.text.strip()) for word in in_order]


def _order_by_segment(
    words: Sequence[Segment], arrival_order: Mapping[str, int], segment_gap: float
) -> list[SpokenWord]:
    segments = join_words(words, segment_gap)
    in_order = sorted(segments, key=lambda segment: (segment.start, arrival_order[segment.speaker]))
    return [(arrival_order[segment.speaker], word) for segment in in_order for word in segment.text.split()]


def _order_by_dominance(words: Sequence[Segment], arrival_order: Mapping[str, int]) -> list[SpokenWord]:
    by_speaker = _group_speakers(words)
    seconds = {speaker: _measure_speech(own) for speaker, own in by_speaker.items()}
    dominance = sorted(by_speaker, key=lambda speaker: (-seconds[speaker], arrival_order[speaker]))
    return [
        (number, word)
        for number, speaker in enumerate(dominance)
        for segment in by_speaker[speaker]
        for word in segment.text.split()
    ]


def join_words(words: Sequence[Segment], segment_gap: float) -> list[Segment]:
    """Segments of single words: a speaker's words with pauses of at most `segment_gap` seconds between them.

    If any entry holds more than one word, the entries are segments already and stay as they are.
    """
    if any(len(word.text.split()) > 1 for word in words):
        return list(words)
    return [segment for own in _group_speakers(words).values() for segment in _join_own_words(own, segment_gap)]


def _join_own_words(words: Sequence[Segment], segment_gap: float) -> list[Segment]:
    groups: list[list[Segment]] = []
    end = -math.inf
    for word in words:
        if groups and word.start - end <= segment_gap:
            groups[-1].append(word)
        else:
            groups.append([word])
        end = max(end, word.end)
    return [
        replace(group[0], end=max(word.end for word in group), text=" ".join(word.text.strip() for word in group))
        for group in groups
    ]


def _group_speakers(words: Iterable[Segment]) -> dict[str, list[Segment]]:
    """The words of each speaker in the order of their starts."""
    by_speaker: dict[str, list[Segment]] = {}
    for word in sorted(words, key=attrgetter("start")):
        by_speaker.setdefault(word.speaker, []).append(word)
    return by_speaker


def _measure_speech(words: Sequence[Segment]) -> float:
    """Seconds in which a speaker speaks: where own words overlap, once. To the microsecond, so that ties are ties."""
    seconds, end = 0.0, 0.0
    for word in words:
        seconds += max(0.0, word.end - max(word.start, end))
        end = max(end, word.end)
    return round(seconds, 6)


def serialize(words: Iterable[SpokenWord], level: Level = "word") -> str:
    """The text: words, with a token wherever the speaker changes."""
    named = level in ("word", "segment")
    tokens: list[str] = []
    previous = -1
    for speaker, word in words:
        if speaker != previous and named:
            tokens.append(f"<spk{speaker}>")
        elif speaker != previous and tokens:
            tokens.append(SPEAKER_CHANGE)
        tokens.append(word)
        previous = speaker
    return " ".join(tokens)


# ---------------------------------------------------------------------------------------------------------------------
# Back


def parse_sst(text: str, level: Level = "word") -> list[SpokenWord]:
    """Number of the speaker and word, for each word. ValueError, which tells where, for what is no SST of that level.

    At levels `word` and `segment` the number is the speaker's place by arrival, at `dom-sot` by dominance; at `sot` it
    is the number of the turn.
    """
    tokens = text.split()
    named = level in ("word", "segment")
    words: list[SpokenWord] = []
    speaker, n_speakers = (-1, 0) if named else (0, 1)
    for place, token in enumerate(tokens, start=1):
        if not RESERVED.search(token):
            if speaker < 0:
                raise _sst_error(place, token, "is a word before any speaker token")
            words.append((speaker, token))
            continue
        speaker = _parse_token(place, token, named, speaker, n_speakers)
        n_speakers = max(n_speakers, speaker + 1)
        if place == len(tokens) or RESERVED.search(tokens[place]):
            raise _sst_error(place, token, "has no word after it")
        if not words and not named:
            raise _sst_error(place, token, "has no word before it")
    if not words:
        raise ValueError("SST is empty")
    return words


def _parse_token(place: int, token: str, named: bool, speaker: int, n_speakers: int) -> int:
    """The speaker that a token announces."""
    if not named:
        if token != SPEAKER_CHANGE:
            raise _sst_error(place, token, f"is no token of this level, which has only {SPEAKER_CHANGE}")
        return speaker + 1
    match = SPEAKER_TOKEN.fullmatch(token)
    if match is None:
        raise _sst_error(place, token, "is no speaker token; they are <spk0>, <spk1> and so on")
    number = int(match[1])
    if number > n_speakers:
        raise _sst_error(place, token, f"comes before <spk{n_speakers}>, but speakers are numbered by arrival")
    if number == speaker:
        raise _sst_error(place, token, "is speaking already; a token stands only where the speaker changes")
    return number


def _sst_error(place: int, token: str, fault: str) -> ValueError:
    return ValueError(f"no SST: token {place}, {quote(token)}, {fault}")


# ---------------------------------------------------------------------------------------------------------------------
# Windows


CutWords = Literal["error", "middle"]
"""What becomes of a word that an edge of a window cuts: an error, or it belongs to the window that its middle is in."""


def cut_window(
    words: Iterable[Segment], offset: float, duration: float | None = None, cut_words: CutWords = "error"
) -> list[Segment]:
    """The words inside a window of a recording, with their times in the recording; no duration: up to its end.

    Their SST numbers the speakers anew: <spk0> is who speaks first in the window. A word that the window's edge cuts
    is an error, for its sound would be in the window and its text not, or the other way around; a test set must lose no
    word, so there `cut_words="middle"`.
    """
    end = math.inf if duration is None else offset + duration
    if cut_words == "middle":
        return [word for word in words if offset <= (word.start + word.end) / 2 < end]
    inside = []
    for word in words:
        if word.start >= offset - EDGE_SECONDS and word.end <= end + EDGE_SECONDS:
            inside.append(word)
        elif word.end > offset + EDGE_SECONDS and word.start < end - EDGE_SECONDS:
            raise ValueError(
                f"session {word.session_id}: the window from {offset:.3f} to {end:.3f} s cuts {quote(word.text)} of "
                f"{word.speaker}, {word.start:.3f} to {word.end:.3f} s"
            )
    return inside


# ---------------------------------------------------------------------------------------------------------------------
# Files


@dataclass(frozen=True, slots=True)
class SstSummary:
    """What was serialized; summaries add up."""

    sessions: int = 0
    words: int = 0
    empty_sessions: tuple[str, ...] = ()  # left out: nothing is said in them

    def __add__(self, other: SstSummary) -> SstSummary:
        return SstSummary(
            self.sessions + other.sessions, self.words + other.words, self.empty_sessions + other.empty_sessions
        )

    def to_json(self) -> dict[str, Any]:
        return {"sessions": self.sessions, "words": self.words, "empty_sessions": list(self.empty_sessions)}

    def __str__(self) -> str:
        written = f"{self.sessions} sessions, {self.words} words"
        if not self.empty_sessions:
            return written
        names = ", ".join(self.empty_sessions[:5]) + (", ..." if len(self.empty_sessions) > 5 else "")
        return f"{written}; {len(self.empty_sessions)} left out, without any word: {names}"


def write_sst(
    seglst_path: Path, out_path: Path, options: SstOptions | None = None, run_jobs: RunJobs = map
) -> SstSummary:
    """From a SegLST file, or a folder of them, to one line {"session_id", "text"} per session; a job is one file."""
    files = files_in(seglst_path, ".json")
    results = run_jobs(partial(_serialize_file, options or SstOptions()), files)
    texts: dict[str, str] = {}
    for path, found in zip(files, results, strict=True):
        for session_id, text in found.items():
            if session_id in texts:
                raise ValueError(f"session {quote(session_id)} is in two files; the second is {path}")
            texts[session_id] = text
    lines = [{"session_id": session_id, "text": text} for session_id, text in texts.items() if text]
    objects.write_lines(out_path, lines, objects.entries)
    return _summarize(texts)


def _serialize_file(options: SstOptions, path: Path) -> dict[str, str]:
    sessions = group_sessions(seglst.read(path, zero_duration="keep"), path)
    return {session_id: build_sst(words, options.level, options.segment_gap) for session_id, words in sessions.items()}


def serialize_sessions(
    sessions: Sequence[Session],
    options: SstOptions | None = None,
    run_jobs: RunJobs = map,
    cut_words: CutWords = "error",
) -> tuple[list[Session], SstSummary]:
    """The sessions of a manifest with their SST as `text`, and `num_speakers`; in the same order, without empty ones.

    A session may be a window of a recording (offset, duration); its `seglst_path` names the words of the recording.
    A job is one recording with all its windows.
    """
    recordings: dict[Path, list[Session]] = {}
    for session in sessions:
        if session.seglst_path is None:
            raise ValueError(f"session {quote(session.session_id)} names no SegLST, so its words are not known")
        recordings.setdefault(session.seglst_path, []).append(session)
    results = run_jobs(partial(_serialize_recording, options or SstOptions(), cut_words), list(recordings.items()))
    serialized = {session.session_id: session for part in results for session in part}
    in_order = [serialized[session.session_id] for session in sessions]
    summary = _summarize({session.session_id: session.text or "" for session in in_order})
    return [session for session in in_order if session.text], summary


def _serialize_recording(
    options: SstOptions, cut_words: CutWords, recording: tuple[Path, Sequence[Session]]
) -> list[Session]:
    path, sessions = recording
    words_of = group_sessions(seglst.read(path, zero_duration="keep"), path)
    tracks = {session_id: Track.of(words) for session_id, words in words_of.items()}
    return [_serialize_session(session, _find_track(session, tracks, path), options, cut_words) for session in sessions]


def _serialize_session(session: Session, track: Track, options: SstOptions, cut_words: CutWords) -> Session:
    nearby = track.find(session.offset, session.duration)
    inside = cut_window(nearby, session.offset, session.duration, cut_words)
    spoken = order_words(inside, options.level, options.segment_gap)
    n_speakers = len({speaker for speaker, _ in spoken})
    return replace(session, text=serialize(spoken, options.level), num_speakers=n_speakers)


def _find_track(session: Session, tracks: Mapping[str, Track], path: Path) -> Track:
    """A file of one session is the recording's; of several, the one with the name of the session or of its audio."""
    if len(tracks) == 1:
        return next(iter(tracks.values()))
    for name in (session.session_id, objects.id_of(session.audio_path)):
        if name in tracks:
            return tracks[name]
    raise FormatError(path, None, f"none of its {len(tracks)} sessions is {quote(session.session_id)}")


@dataclass(frozen=True, slots=True)
class Track:
    """The words of a recording by their starts, so that each of its hundreds of windows looks at its own words only."""

    words: list[Segment]
    longest: float  # seconds

    @classmethod
    def of(cls, words: Iterable[Segment]) -> Track:
        by_onset = sorted(words, key=attrgetter("start"))
        return cls(by_onset, max((word.duration for word in by_onset), default=0.0))

    def find(self, offset: float, duration: float | None) -> list[Segment]:
        """All words that may reach into the window, and few others."""
        first = bisect.bisect_left(self.words, offset - self.longest - EDGE_SECONDS, key=attrgetter("start"))
        if duration is None:
            return self.words[first:]
        return self.words[first : bisect.bisect_right(self.words, offset + duration, key=attrgetter("start"))]


def _summarize(texts: Mapping[str, str]) -> SstSummary:
    n_words = sum(len(text.split()) - len(RESERVED.findall(text)) for text in texts.values())
    empty = tuple(session_id for session_id, text in texts.items() if not text)
    return SstSummary(len(texts) - len(empty), n_words, empty)
