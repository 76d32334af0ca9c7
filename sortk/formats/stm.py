"""STM, who said what when (NIST sclite): one utterance per line.

    meeting1 1 alice 12.340 13.840 <o,f0,female> so shall we start

The fields are session, channel, speaker, start, end, an optional label and the text, which may be empty. A first
token in angle brackets is a label only if it looks like NIST's: with a comma, or `<>`, or `<NA>`. Anything else,
such as the speaker token `<spk0>`, is text.

A line whose text is IGNORE_TIME_SEGMENT_IN_SCORING is not an utterance: its time is not scored (`read_ignored`).
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
    format_seconds,
    parse_seconds,
    read_columns,
    read_lines,
    writable_segments,
)
from sortk.records import Region, Segment

IGNORED = "ignore_time_segment_in_scoring"  # in any case


def read(path: Path, zero_duration: ZeroDuration = "error") -> list[Segment]:
    """Return all utterances, in the order of the file."""
    return list(parse(read_lines(path), path, zero_duration))


def parse(lines: Lines, path: Path, zero_duration: ZeroDuration = "error") -> Iterator[Segment]:
    """Yield the utterances of numbered lines; `path` is only for messages."""
    return (segment for segment in _parse_all(lines, path, zero_duration) if not _is_ignored(segment))


def read_ignored(path: Path) -> list[Region]:
    """Return the time that is not scored."""
    return [
        Region(segment.session_id, segment.start, segment.end)
        for segment in _parse_all(read_lines(path), path, "keep")
        if _is_ignored(segment)
    ]


def _is_ignored(segment: Segment) -> bool:
    return segment.text.lower().split()[-1:] == [IGNORED]  # a label such as <O> may be before it


def _parse_all(lines: Lines, path: Path, zero_duration: ZeroDuration) -> Iterator[Segment]:
    for number, fields in read_columns(lines, max_splits=5):
        if len(fields) < 5:
            raise FormatError(path, number, f"an STM line must have at least 5 fields, got {len(fields)}")
        check_ids(path, number, *fields[:3])
        start = parse_seconds(path, number, "start", fields[3])
        end = parse_seconds(path, number, "end", fields[4])
        check_span(path, number, start, end, zero_duration)
        text = fields[5].strip() if len(fields) > 5 else ""
        first, *rest = text.split(None, 1) or [""]
        if _is_label(first):
            text = rest[0] if rest else ""
        yield Segment(fields[0], fields[2], start, end, text, fields[1])


def write(path: Path, segments: Iterable[Segment]) -> None:
    """Write utterances by session, start, end and speaker; white space in a text becomes single blanks."""
    with atomic_text(path) as file:
        file.writelines(format_lines(segments))


def format_lines(segments: Iterable[Segment]) -> Iterator[str]:
    """Yield what `write` writes, line by line."""
    for segment in writable_segments(segments):
        words = segment.text.split()
        if words and _is_label(words[0]):
            words.insert(0, "<NA>")  # a label of its own, or the text's first word would be read as one
        start, end = format_seconds(segment.start), format_seconds(segment.end)
        yield " ".join([segment.session_id, segment.channel, segment.speaker, start, end, *words]) + "\n"


def _is_label(token: str) -> bool:
    return token in ("<>", "<NA>") or (token.startswith("<") and token.endswith(">") and "," in token)
