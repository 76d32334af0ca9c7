"""Shared by the column formats: rows of fields to read, checked and sorted segments to write."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from sortk.formats.files import MAX_SECONDS, Lines, format_seconds, is_id, is_token, quote
from sortk.records import Region, Segment


def rows(lines: Lines, max_splits: int = 16) -> Iterator[tuple[int, list[str]]]:
    """Yield number and fields of each line that is neither empty nor a comment (`;; ...`)."""
    for number, line in lines:
        fields = line.split(None, max_splits)
        if fields and not fields[0].startswith(";"):
            yield number, fields


def writable(segments: Iterable[Segment]) -> list[Segment]:
    """Return the segments by session, start, end, speaker; raise ValueError for one that columns cannot hold."""
    ordered = sorted(segments, key=lambda segment: (segment.session_id, segment.start, segment.end, segment.speaker))
    for segment in ordered:
        check_segment(segment)
    return ordered


def check_segment(segment: Segment) -> None:
    """Raise a ValueError for a segment that columns cannot hold."""
    check_name("session id", segment.session_id)
    check_name("speaker", segment.speaker)
    check_name("channel", segment.channel)
    check_times(segment)


def check_name(kind: str, name: str) -> None:
    """Raise a ValueError for a name that would not be read back as one field."""
    if not is_token(name):
        raise ValueError(f"{kind} {quote(name)} is empty or holds white space")
    if not is_id(name):
        raise ValueError(f"{kind} {quote(name)} holds control characters")
    if name.startswith((";", "\ufeff")):  # at the start of a line these would be a comment and a byte order mark
        raise ValueError(f"{kind} {quote(name)} starts with a character that columns cannot hold")


def check_times(item: Segment | Region) -> None:
    """Raise a ValueError for invalid times, or times without a duration when they are rounded."""
    start, end = item.start, item.end
    if 0 <= round(start, 6) < round(end, 6) <= MAX_SECONDS:
        return
    fault = "has no duration"
    if not (math.isfinite(start) and math.isfinite(end)):
        fault = "is not finite"
    elif start < 0:
        fault = "starts before 0"
    elif end > MAX_SECONDS:
        fault = "is too long for a recording"
    raise ValueError(f"{item.session_id}: {start} to {end} {fault}")


def start_and_duration(segment: Segment) -> tuple[str, str]:
    """Return both as text: the duration is that of the rounded times, so that start + duration is the end again."""
    start, end = round(float(segment.start), 6), round(float(segment.end), 6)
    return format_seconds(start), format_seconds(end - start)
