"""What is scored in words: transcripts of sessions, from files of any format that holds words.

SegLST, STM and CTM name speakers and times. An SST (sorted serialized transcript) names speakers, by tokens, and the
order of words, but no times: its segments count words instead of seconds, so that their order is right. So do those of
a session of SegLST in which any entry has no times: its words are in the order of the file, as meeteval takes them.

What a decoder writes need not be an SST: any text is taken, by the rules of `formats.sst.parse_any`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import isnan, nan
from operator import attrgetter
from pathlib import Path

from sortk.formats import ctm, manifest, seglst, stm
from sortk.formats.convert import detect, lists_in
from sortk.formats.files import FormatError, files_in, quote, read_lines
from sortk.formats.objects import entries
from sortk.formats.sst import TOKEN, parse_any, speaker_number
from sortk.records import Region, Segment
from sortk.scoring.sessions import name_sessions

READERS: Mapping[str, Callable[[Path], list[Segment]]] = {
    "seglst": lambda path: seglst.read(path, zero_duration="keep", untimed="keep"),
    "stm": lambda path: stm.read(path, zero_duration="keep"),
    "ctm": lambda path: ctm.read(path, zero_duration="keep"),
}
SUFFIXES = {"seglst": ".json", "stm": ".stm", "ctm": ".ctm"}


@dataclass(frozen=True, slots=True)
class Transcripts:
    """Who said what in each session; a session in which nothing is said has no segments."""

    sessions: Mapping[str, Sequence[Segment]]
    untimed: frozenset[str] = frozenset()  # sessions whose starts and ends count words
    names_speakers: bool = True  # False: one stream of words, as a monaural ASR writes it
    notes: tuple[str, ...] = ()  # sentences about what was odd
    ignored: Mapping[str, Sequence[Region]] = field(default_factory=dict)  # time that an STM says not to score

    @classmethod
    def of(cls, segments: Iterable[Segment]) -> Transcripts:
        """From segments, or words, with times."""
        return cls._of_sessions(_by_session(segments))

    @classmethod
    def of_sst(cls, texts: Mapping[str, str]) -> Transcripts:
        """From the SST of each session, or whatever a decoder wrote in its place."""
        sessions = {name: _count_words(_segments(name, text)) for name, text in texts.items()}
        names_speakers = any(TOKEN.search(text) for text in texts.values())
        return cls(sessions, frozenset(sessions), names_speakers, tuple(_notes(texts)))

    @classmethod
    def read(cls, path: Path, predicted: bool = False) -> Transcripts:
        """A SegLST, STM or CTM file, a folder of them, or SST: lines, or a manifest, with `session_id` and `text`.

        In a folder, a SegLST without entries is a session in which nothing is said, named after the file. A session is
        in one file; only CTM may have a file for each speaker, as meeteval takes it. `predicted`: lines that have
        NeMo's `pred_text` say there what was recognised, and what was said in `text`.
        """
        found = detect(path)
        if found in READERS:
            transcripts = cls._of_sessions(_read_segments(path, found))
            return replace(transcripts, ignored=_read_ignored(path)) if found == "stm" else transcripts
        texts: dict[str, str] = {}
        for file in lists_in(path) if found == "lists" else [path]:
            for session_id, text in _read_texts(file, predicted):
                if session_id in texts:
                    raise ValueError(f"session {quote(session_id)} is in two files; the second is {file}")
                texts[session_id] = text
        return cls.of_sst(texts)

    @classmethod
    def _of_sessions(cls, sessions: Mapping[str, Sequence[Segment]]) -> Transcripts:
        for segment in (segment for own in sessions.values() for segment in own if "<" in segment.text):
            if token := TOKEN.search(segment.text):
                time = "" if isnan(segment.start) else f" at {segment.start:.3f} s"
                where = f"session {quote(segment.session_id)}, {segment.speaker}{time}"
                raise ValueError(
                    f"{where}: {quote(token[0])} in the words would count as a word; "
                    'give such text as lines {"session_id", "text"}'
                )
        names_speakers = any(len({segment.speaker for segment in own}) > 1 for own in sessions.values())
        untimed = frozenset(name for name, own in sessions.items() if any(isnan(segment.start) for segment in own))
        ordered = {name: _count_words(own) if name in untimed else own for name, own in sessions.items()}
        notes = (f"without times, words are in the order of the file: {name_sessions(untimed)}",) if untimed else ()
        return cls(ordered, untimed, names_speakers, notes)

    def without(self, ignored: Mapping[str, Sequence[Region]]) -> Transcripts:
        """Return the transcripts without the segments, or words, whose middle is in a region that is not scored."""

        def is_kept(segment: Segment, regions: Sequence[Region]) -> bool:
            middle = (segment.start + segment.end) / 2
            return not any(region.start <= middle < region.end for region in regions)

        kept = {
            name: [segment for segment in own if is_kept(segment, ignored[name])]
            for name, own in self.sessions.items()
            if name in ignored and name not in self.untimed
        }
        return replace(self, sessions={**self.sessions, **kept}) if kept else self


# ---------------------------------------------------------------------------------------------------------------------
# SST


def _segments(name: str, text: str) -> Iterator[Segment]:
    """What is said until another speaker speaks is a segment, so that every level of an SST is scored alike."""
    for speaker, turns in groupby(parse_any(text), key=attrgetter("speaker")):
        yield Segment(name, speaker, nan, nan, " ".join(turn.text for turn in turns))


def _count_words(segments: Iterable[Segment]) -> list[Segment]:
    """Return the segments in the order given, with the number of words before and after each in place of times."""
    counted = []
    n_words = 0
    for segment in segments:
        start, n_words = n_words, n_words + len(segment.text.split())
        counted.append(replace(segment, start=float(start), end=float(n_words)))
    return counted


def _notes(texts: Mapping[str, str]) -> list[str]:
    early = [session_id for session_id, text in texts.items() if _has_early_words(text)]
    unknown = [
        session_id
        for session_id, text in texts.items()
        if any(speaker_number(name) is None for name in TOKEN.findall(text) if name.lower() != "cs")
    ]
    notes = {
        "words before the first speaker token, taken as <spk0>'s": early,
        "a speaker token without a number, taken as a speaker of that name": unknown,
    }
    return [f"{what}: {name_sessions(found)}" for what, found in notes.items() if found]


def _has_early_words(text: str) -> bool:
    token = TOKEN.search(text)
    return token is not None and token[1].lower() != "cs" and bool(text[: token.start()].strip())


# ---------------------------------------------------------------------------------------------------------------------
# Files


def _read_segments(path: Path, found: str) -> dict[str, list[Segment]]:
    parts = [(file, _by_session(READERS[found](file))) for file in files_in(path, SUFFIXES[found])]
    if path.is_dir():
        parts = [(file, part or {file.stem: []}) for file, part in parts]
    n_files = Counter(session_id for _, part in parts for session_id in part)
    sessions: dict[str, list[Segment]] = {}
    for file, part in parts:
        for session_id, segments in part.items():
            if session_id in sessions and found != "ctm":
                raise ValueError(f"session {quote(session_id)} is in two files; the second is {file}")
            prefix = f"{file.stem}:" if n_files[session_id] > 1 else ""
            named = [replace(segment, speaker=prefix + segment.speaker) for segment in segments]
            sessions.setdefault(session_id, []).extend(named)
    return sessions


def _read_ignored(path: Path) -> dict[str, list[Region]]:
    ignored: dict[str, list[Region]] = {}
    for file in files_in(path, SUFFIXES["stm"]):
        for region in stm.read_ignored(file):
            ignored.setdefault(region.session_id, []).append(region)
    return ignored


def _by_session(segments: Iterable[Segment]) -> dict[str, list[Segment]]:
    sessions: dict[str, list[Segment]] = {}
    for segment in segments:
        sessions.setdefault(segment.session_id, []).append(segment)
    return sessions


def _read_texts(path: Path, predicted: bool) -> Iterator[tuple[str, str]]:
    found = detect(path)
    if found == "manifest":
        for number, session in manifest.parse(read_lines(path), path):
            text = session.extra.get("pred_text", session.text) if predicted else session.text
            if not isinstance(text, str):
                raise FormatError(path, number, "has no text, so that its words are not known")
            yield session.session_id, text
        return
    if found != "sst":
        raise FormatError(path, None, f"is {found}, which holds no words; give SegLST, STM, CTM or SST")
    line_of: dict[str, int | None] = {}
    for _, entry in entries(read_lines(path), path):
        session_id = entry.need(entry.name, "session_id")
        entry.check_new("session_id", session_id, line_of)
        yield session_id, entry.need(entry.text, "pred_text" if predicted and "pred_text" in entry.values else "text")
