"""CTM, one word per line (NIST sclite), in NeMo's convention for several speakers.

    meeting1 alice 12.340 0.210 hello 0.98

The fields are session, channel, start, duration, word and an optional confidence. One channel cannot hold
overlapping speakers, so the speaker takes the place of the channel: the second field is written from and read as
`Segment.speaker`. Lines in the long form of RT-09, which NeMo's simulator writes, name the speaker themselves:

    meeting1 1 12.340 0.210 hello 0.98 lex alice
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from sortk.formats.files import (
    FormatError,
    Lines,
    ZeroDuration,
    atomic_text,
    check_ids,
    check_span,
    is_token,
    parse_seconds,
    quote,
    read_columns,
    read_lines,
    start_and_duration,
    writable_segments,
)
from sortk.records import Segment


def read(path: Path, zero_duration: ZeroDuration = "error") -> list[Segment]:
    """Return all words, in the order of the file."""
    return list(parse(read_lines(path), path, zero_duration))


def parse(lines: Lines, path: Path, zero_duration: ZeroDuration = "error") -> Iterator[Segment]:
    """Yield the words of numbered lines, a segment each; `path` is only for messages."""
    for number, fields in read_columns(lines):
        if len(fields) not in (5, 6, 8):
            raise FormatError(path, number, f"a CTM line has 5, 6 or 8 fields, not {len(fields)}")
        start = parse_seconds(path, number, "start", fields[2])
        duration = parse_seconds(path, number, "duration", fields[3])
        end = max(start, round(start + duration, 6))
        check_span(path, number, start, end, zero_duration)
        if len(fields) > 5 and fields[5] != "NA":
            parse_seconds(path, number, "confidence", fields[5])  # else a word with a blank in it would pass
        speaker, channel = (fields[7], fields[1]) if len(fields) == 8 else (fields[1], "1")
        check_ids(path, number, fields[0], speaker, channel)
        yield Segment(fields[0], speaker, start, end, fields[4], channel)


def write(path: Path, segments: Iterable[Segment]) -> None:
    """Write words by session, start, end and speaker; raise ValueError for a segment that is not one word."""
    with atomic_text(path) as file:
        file.writelines(format_lines(segments))


def format_lines(segments: Iterable[Segment]) -> Iterator[str]:
    """Yield the lines of a file, as `write` writes them."""
    for segment in writable_segments(segments):
        if not is_token(segment.text):
            raise ValueError(f"CTM holds one word per line, not {quote(segment.text)} ({segment.session_id})")
        start, duration = start_and_duration(segment)
        confidence = "" if segment.confidence is None else f" {segment.confidence:.4f}"
        yield f"{segment.session_id} {segment.speaker} {start} {duration} {segment.text}{confidence}\n"
