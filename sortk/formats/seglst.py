"""SegLST, who said what when (meeteval, CHiME): a JSON list with one object per segment, or per word.

    [
    {"session_id": "meeting1", "speaker": "alice", "start_time": 12.34, "end_time": 13.84, "words": "shall we start"}
    ]

Times may be numbers or, as meeteval writes them, numbers in quotes. `words` may be missing; other keys are ignored.
Corpora also publish SegLST without times, or with null instead: a reader must ask for it with `untimed="keep"`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import nan
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from sortk.formats.files import (
    CONTROL_CHARACTERS,
    MAX_SECONDS,
    FormatError,
    Lines,
    ZeroDuration,
    atomic_text,
    check_ids,
    check_times,
    parse_seconds,
    quote,
    read_lines,
    span_fault,
)
from sortk.formats.objects import Entry, decode
from sortk.records import Segment

_PLAIN_KEYS = itemgetter("session_id", "speaker", "start_time", "end_time", "words")
_json_text = json.JSONEncoder(ensure_ascii=False).encode


Untimed = Literal["error", "keep"]
"""How an entry without start_time or end_time is read: as an error, or as a segment whose times are nan."""


def read(path: Path, zero_duration: ZeroDuration = "error", untimed: Untimed = "error") -> list[Segment]:
    """Return all segments, in the order of the file."""
    return list(parse(read_lines(path), path, zero_duration, untimed))


def parse(
    lines: Lines, path: Path, zero_duration: ZeroDuration = "error", untimed: Untimed = "error"
) -> Iterator[Segment]:
    """Yield the segments of a file, given as numbered lines; `path` is only for messages."""
    value = decode("\n".join(line for _, line in lines), path, None)
    if not isinstance(value, list):
        raise FormatError(path, None, f"SegLST must be a JSON list, got {quote(value)}")
    for number, item in enumerate(value, start=1):
        yield _plain_segment(item) or _segment(
            Entry.of(item, path, None, label=f"entry {number}: "), zero_duration, untimed
        )


def _plain_segment(item: Any) -> Segment | None:
    """Return the segment of an entry as `write` makes it, quickly; None for other entries."""
    try:
        session_id, speaker, start, end, words = _PLAIN_KEYS(item)
    except (KeyError, TypeError):
        return None
    if not (type(start) is type(end) is float and type(session_id) is type(speaker) is type(words) is str):
        return None
    if "channel" in item or not (0 <= start < end <= MAX_SECONDS and _is_name(session_id) and _is_name(speaker)):
        return None
    return Segment(session_id, speaker, start, end, words)


def _is_name(text: str) -> bool:
    return text.isprintable() and bool(text.strip())


def _segment(entry: Entry, zero_duration: ZeroDuration, untimed: Untimed) -> Segment:
    if untimed == "keep" and None in (entry.values.get("start_time"), entry.values.get("end_time")):
        start = end = nan
    else:
        start, end = _time(entry, "start_time"), _time(entry, "end_time")
    if fault := span_fault(start, end, zero_duration):
        raise entry.error(fault)
    session_id, speaker, text = _name(entry, "session_id"), _name(entry, "speaker"), entry.text("words") or ""
    channel = entry.values.get("channel", "1")
    if isinstance(channel, bool) or not isinstance(channel, str | int):
        raise entry.error(f"channel is neither text nor a number: {quote(channel)}")
    return Segment(session_id, speaker, start, end, text, str(channel))


def _time(entry: Entry, key: str) -> float:
    value = entry.values.get(key)
    if isinstance(value, str):
        return parse_seconds(entry.path, entry.line, f"{entry.label}{key}", value)
    return entry.need(entry.seconds, key)


def _name(entry: Entry, key: str) -> str:
    # Blanks inside are allowed in JSON; formats that cannot hold them raise an error when they write.
    name = entry.need(entry.text, key)
    if not name.strip():
        raise entry.error(f"{key} is empty")
    check_ids(entry.path, entry.line, name)
    return name


def write(path: Path, segments: Iterable[Segment]) -> None:
    """Write one entry per line, in the order given; raise ValueError for one that could not be read back."""
    text = "".join(format_lines(segments))
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{path}: cannot be written as UTF-8: {quote(text[error.start - 20 : error.end])}") from None
    with atomic_text(path) as file:
        file.write(text)


def format_lines(segments: Iterable[Segment]) -> Iterator[str]:
    """Yield what `write` writes: the opening bracket, then the entries, then the closing bracket."""
    lines = []
    for segment in segments:
        start, end = round(segment.start, 6), round(segment.end, 6)
        if not 0 <= start < end <= MAX_SECONDS:
            check_times(segment)
        names = f'"session_id": {_json_name(segment.session_id)}, "speaker": {_json_name(segment.speaker)}'
        times = f'"start_time": {float(start)}, "end_time": {float(end)}'
        channel = "" if segment.channel == "1" else f', "channel": {_json_text(segment.channel)}'
        lines.append(f'{{{names}, {times}, "words": {_json_text(segment.text)}{channel}}}')
    yield "[\n"
    yield ",\n".join(lines)
    yield "\n]\n"


@lru_cache(maxsize=1024)
def _json_name(name: str) -> str:
    if not name.strip():
        raise ValueError("a session id or a speaker is empty")
    if CONTROL_CHARACTERS.search(name):
        raise ValueError(f"the id {quote(name)} holds control characters")
    return _json_text(name)
