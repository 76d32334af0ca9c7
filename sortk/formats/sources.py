"""Sources, the single-speaker utterances that conversations are simulated from: JSON Lines, one utterance per line.

    {"utterance_id": "am01-0", "audio_filepath": "flac/am01.flac", "offset": 0.0, "duration": 0.75, "speaker": "am01",
     "text": "zero", "words": [["zero", 0.11, 0.67]], "speech_start": 0.11, "speech_end": 0.67, "gender": "f"}

(on one line). `audio_filepath`, `duration`, `speaker` and `text` are required; times inside the utterance count
from its start. An utterance without an id is called `<speaker>-<audio stem>-<offset in milliseconds>`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sortk.formats.files import FormatError, Lines, is_file, path_text, quote, read_lines, span_fault
from sortk.formats.objects import Entry, entries, id_of, write_lines
from sortk.records import Source, Word

TOLERANCE = 1e-3
"""Seconds by which a word may leave the utterance: aligners round."""


def read(path: Path) -> list[Source]:
    """Return all utterances, in the order of the file; the audio is not opened."""
    return [source for _, source in parse(read_lines(path), path)]


def parse(lines: Lines, path: Path) -> Iterator[tuple[int, Source]]:
    """Yield line number and utterance of each line; relative paths count from the folder of `path`."""
    line_of: dict[str, int | None] = {}
    for number, entry in entries(lines, path):
        source = _source(entry)
        entry.check_new("utterance_id", source.utterance_id, line_of)
        yield number, source


def check_files(numbered: Iterable[tuple[int, Source]], path: Path) -> None:
    """Raise a FormatError for the first utterance whose audio is missing."""
    found: set[Path] = set()
    for number, source in numbered:
        if source.audio_path not in found and not is_file(source.audio_path):
            raise FormatError(path, number, f"audio_filepath names a file that does not exist: {source.audio_path}")
        found.add(source.audio_path)


def _source(entry: Entry) -> Source:
    audio_path = entry.need(entry.file, "audio_filepath")
    offset = entry.seconds("offset") or 0.0
    duration = entry.need(entry.duration, "duration")
    speaker = entry.need(entry.name, "speaker")
    speech_start, speech_end = entry.seconds("speech_start"), entry.seconds("speech_end")
    if speech_start is not None and speech_end is not None and speech_start >= speech_end:
        raise entry.error(f"speech_start {speech_start} is not before speech_end {speech_end}")
    for key, time in (("speech_start", speech_start), ("speech_end", speech_end)):
        if time is not None and time > duration + TOLERANCE:
            raise entry.error(f"{key} {time} is after the utterance, which lasts {duration} s")
    return Source(
        utterance_id=entry.name("utterance_id") or f"{speaker}-{id_of(audio_path)}-{round(offset * 1000)}",
        audio_path=audio_path,
        offset=offset,
        duration=duration,
        speaker=speaker,
        text=entry.need(entry.text, "text"),
        words=tuple(_words(entry, duration)),
        speech_start=speech_start,
        speech_end=speech_end,
        gender=entry.text("gender") or "",
        split=entry.text("split") or "",
    )


def _words(entry: Entry, duration: float) -> Iterator[Word]:
    words = entry.values.get("words")
    if words is None:
        return
    if not isinstance(words, list):
        raise entry.error(f"words is not a list: {quote(words)}")
    earliest = 0.0
    for number, item in enumerate(words, start=1):
        if not isinstance(item, list) or len(item) != 3:
            raise entry.error(f"word {number} is not [word, start, end]: {quote(item)}")
        named = dict(zip(("text", "start", "end"), item, strict=True))
        word = Entry(named, entry.path, entry.line, f"word {number}: ")
        text = word.need(word.name, "text")
        start, end = word.need(word.seconds, "start"), word.need(word.seconds, "end")
        if fault := span_fault(start, end):
            raise word.error(fault)
        if start < earliest:
            raise word.error(f"starts at {start}, before the word in front of it")
        if end > duration + TOLERANCE:
            raise word.error(f"ends at {end}, after the utterance, which lasts {duration} s")
        earliest = start
        yield Word(text, start, end)


def write(path: Path, sources: Iterable[Source]) -> None:
    """Write one line per utterance, in the order given; raise ValueError for one that could not be read back."""
    write_lines(path, (_as_object(source, path) for source in sources), parse)


def _as_object(source: Source, path: Path) -> dict[str, Any]:
    optional = {
        "words": [[word.text, word.start, word.end] for word in source.words] or None,
        "speech_start": source.speech_start,
        "speech_end": source.speech_end,
        "gender": source.gender or None,
        "split": source.split or None,
    }
    return {
        "utterance_id": source.utterance_id,
        "audio_filepath": path_text(source.audio_path, path),
        "offset": source.offset,
        "duration": source.duration,
        "speaker": source.speaker,
        "text": source.text,
        **{key: value for key, value in optional.items() if value is not None},
    }
