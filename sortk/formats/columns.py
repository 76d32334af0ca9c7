"""What the column formats share: rows of fields to read, checked and sorted segments to write."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from sortk.formats.files import MAX_SECONDS, Lines, format_seconds, is_id, is_token, quote
from sortk.records import Region, Segment


def rows(lines: Lines, max_splits: int = 16) -> Iterator[tuple[int, list[str]]]:
    """Number and fields of each line that is neither empty nor a comment (`;; ...`)."""
    for number, line in lines:
        fields = line.split(None, max_splits)
        if fields and not fields[0].startswith(";"):
            yield number, fields


def writable(segments: Iterable[Segment]) -> list[Segment]:
    """Sorted by session, start, end, speaker; ValueError for a segment that columns cannot hold."""
    ordered = sorted(segments, key=lambda segment: (segment.session_id, segment.start, segment.end, segment.speaker))
    for segment in ordered:
        check_segment(segment)
    return ordered


def check_segment(segment: Segment) -> None:
    """ValueError for a segment that columns cannot hold."""
    check_name("session id", segment.session_id)
    check_name("speaker", segment.speaker)
    check_name("channel", segment.channel)
    check_times(segment)


def check_name(kind: str, name: str) -> None:
    """ValueError for a name that would not come back as one field."""
    if not is_token(name):
        raise ValueError(f"{kind} {quote(name)} is empty or holds white space")
    if not is_id(name):
        raise ValueError(f"{kind} {quote(name)} holds control characters")
    if name.startswith((";", "\ufeff")):  # at the start of a line these would be a comment and a byte order mark
        raise ValueError(f"{kind} {quote(name)} starts with a character that columns cannot hold")


def check_times(item: Segment | Region) -> None:
    """ValueError for times that are no times, or that leave no duration when they are written."""
    if 0 <= round(item.start, 6) < round(item.end, 6) <= MAX_SECONDS:
        return
    raise ValueError(f"{item.session_id}: {item.start} to {item.end} {_time_fault(item.start, item.end)}")


def _time_fault(start: float, end: float) -> str:
    if not (math.isfinite(start) and math.isfinite(end)):
        return "is not finite"
    if start < 0:
        return "starts before 0"
    if end > MAX_SECONDS:
        return "is too long for a recording"
    return "has no duration"


def start_and_duration(segment: Segment) -> tuple[str, str]:
    """As written: the duration lies between the rounded times, so that start + duration gives the end again."""
    start, end = round(float(segment.start), 6), round(float(segment.end), 6)
    return format_seconds(start), format_seconds(end - start)
