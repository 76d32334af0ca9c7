"""SegLST, who said what when (meeteval, CHiME): a JSON list with one object per segment, or per word.

    [
    {"session_id": "meeting1", "speaker": "alice", "start_time": 12.34, "end_time": 13.84, "words": "shall we start"}
    ]

Times may be numbers or, as meeteval writes them, numbers in quotes. `words` may be missing; other keys are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sortk.formats import columns
from sortk.formats.files import (
    FormatError,
    Lines,
    ZeroDuration,
    atomic_text,
    files_in,
    parse_seconds,
    quote,
    read_lines,
    span_fault,
)
from sortk.formats.objects import Entry, decode, encode
from sortk.records import Segment


def read(path: Path, zero_duration: ZeroDuration = "error") -> list[Segment]:
    """All segments, in the order of the file."""
    return list(parse(read_lines(path), path, zero_duration))


def read_folder_or_file(path: Path, zero_duration: ZeroDuration = "error") -> list[Segment]:
    """The segments of a file, or of every `*.json` in a folder, sorted by name."""
    return [segment for file in files_in(path, ".json") for segment in read(file, zero_duration)]


def parse(lines: Lines, path: Path, zero_duration: ZeroDuration = "error") -> Iterator[Segment]:
    """The segments of a whole file, given as numbered lines; `path` is only for messages."""
    value = decode("\n".join(line for _, line in lines), path, None)
    if not isinstance(value, list):
        raise FormatError(path, None, f"SegLST is a JSON list, not {quote(value)}")
    for number, item in enumerate(value, start=1):
        yield _segment(Entry.of(item, path, None, label=f"entry {number}: "), zero_duration)


def _segment(entry: Entry, zero_duration: ZeroDuration) -> Segment:
    start, end = _time(entry, "start_time"), _time(entry, "end_time")
    if fault := span_fault(start, end, zero_duration):
        raise entry.error(fault)
    return Segment(
        session_id=_name(entry, "session_id"),
        speaker=_name(entry, "speaker"),
        start=start,
        end=end,
        text=entry.text("words") or "",
        channel=_channel(entry),
    )


def _time(entry: Entry, key: str) -> float:
    value = entry.values.get(key)
    if isinstance(value, str):
        return parse_seconds(entry.path, entry.line, f"{entry.label}{key}", value)
    return entry.need(entry.seconds, key)


def _name(entry: Entry, key: str) -> str:
    # Blanks inside are fine in JSON; the formats that cannot hold them refuse when they write.
    name = entry.need(entry.text, key)
    if not name.strip():
        raise entry.error(f"{key} is empty")
    return name


def _channel(entry: Entry) -> str:
    channel = entry.values.get("channel", "1")
    if isinstance(channel, bool) or not isinstance(channel, str | int):
        raise entry.error(f"channel is neither text nor a number: {quote(channel)}")
    return str(channel)


def write(path: Path, segments: Iterable[Segment]) -> None:
    """One entry per line, in the order given; ValueError for a segment that could not be read back."""
    entries = [encode(_as_object(segment)) for segment in segments]
    text = "[\n" + ",\n".join(entries) + "\n]\n"
    for _ in parse(enumerate(text.split("\n")), path):
        pass
    with atomic_text(path) as file:
        file.write(text)


def _as_object(segment: Segment) -> dict[str, Any]:
    columns.check_times(segment)
    return {
        "session_id": segment.session_id,
        "speaker": segment.speaker,
        "start_time": round(float(segment.start), 6),
        "end_time": round(float(segment.end), 6),
        "words": segment.text,
        **({} if segment.channel == "1" else {"channel": segment.channel}),
    }
