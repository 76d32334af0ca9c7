"""RTTM, who speaks when (NIST RT-09): one segment per line.

    SPEAKER meeting1 1 12.340 1.500 <NA> <NA> alice <NA> <NA>

The fields are type, session, channel, start, duration, orthography, subtype, speaker, confidence and look-ahead;
older files lack the last one or two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sortk.formats.files import (
    FormatError,
    Lines,
    ZeroDuration,
    atomic_text,
    check_ids,
    check_span,
    parse_seconds,
    quote,
    read_lines,
    start_and_duration,
    writable_segments,
)
from sortk.records import Region, Segment

# What else RT-09 lets an RTTM file say; none of it is a speaker's segment.
# fmt: off
OTHER_TYPES = frozenset({
    "SEGMENT", "NOSCORE", "NO_RT_METADATA", "LEXEME", "NON-LEX", "NON-SPEECH", "FILLER",
    "EDIT", "IP", "SU", "CB", "A/P", "SPKR-INFO",
})
# fmt: on


def read(path: Path, zero_duration: ZeroDuration = "error") -> list[Segment]:
    """Return all segments, in the order of the file."""
    return list(stream(path, zero_duration))


def stream(path: Path, zero_duration: ZeroDuration = "error") -> Iterator[Segment]:
    """Yield the segments one by one, for files that are too large for a list."""
    return parse(read_lines(path), path, zero_duration)


def parse(lines: Lines, path: Path, zero_duration: ZeroDuration = "error") -> Iterator[Segment]:
    """Yield the segments of numbered lines; `path` is only for messages."""
    for number, line in lines:
        fields = line.split(None, 10)  # a line of 100 MB would become many times that in fields
        if not fields or fields[0].startswith(";") or fields[0] in OTHER_TYPES:
            continue
        if fields[0] != "SPEAKER":
            if fields[0][0] in "[{":
                raise FormatError(path, number, "is JSON, not RTTM; `sortk convert IN OUT.rttm --to rttm` converts it")
            raise FormatError(path, number, f"unknown RTTM type {quote(fields[0])}")
        if not 8 <= len(fields) <= 10:
            raise FormatError(path, number, f"a SPEAKER line must have 8 to 10 fields, got {len(fields)}")
        check_ids(path, number, fields[1], fields[7], fields[2])
        start = parse_seconds(path, number, "start", fields[3])
        duration = parse_seconds(path, number, "duration", fields[4])
        # Sums of decimal fractions are slightly off the decimal grid; rounding puts the end back on it.
        end = round(start + duration, 6)
        if end <= start:
            end = start
            check_span(path, number, start, end, zero_duration)
        yield Segment(fields[1], fields[7], start, end, "", fields[2])


NON_LEXICAL = frozenset({"laugh", "breath", "lipsmack", "cough", "sneeze", "other"})  # subtypes that md-eval leaves out


@dataclass
class Marks:
    """The lines of a session that are not about a speaker, as far as NIST's scorer uses them."""

    no_score: list[Region] = field(default_factory=list)  # NOSCORE: not evaluated
    non_lexical: list[Region] = field(default_factory=list)  # laughter, coughs and the like
    words: list[Region] = field(default_factory=list)


def read_marks(path: Path) -> dict[str, Marks]:
    """Return the NOSCORE, NON-LEX and LEXEME lines of each session."""
    found: dict[str, Marks] = {}
    for number, line in read_lines(path):
        fields = line.split(None, 10)
        if not fields or fields[0] not in ("NOSCORE", "NON-LEX", "LEXEME"):
            continue
        if len(fields) < 5:
            raise FormatError(path, number, f"a {fields[0]} line must have 8 to 10 fields, got {len(fields)}")
        start = parse_seconds(path, number, "start", fields[3])
        end = round(start + parse_seconds(path, number, "duration", fields[4]), 6)
        subtype = fields[6].lower() if len(fields) > 6 else "<na>"
        if start < end and (fields[0] != "NON-LEX" or subtype in NON_LEXICAL):
            marks = found.setdefault(fields[1], Marks())
            kinds = {"NOSCORE": marks.no_score, "NON-LEX": marks.non_lexical, "LEXEME": marks.words}
            kinds[fields[0]].append(Region(fields[1], start, end))
    return found


def write(path: Path, segments: Iterable[Segment]) -> None:
    """Write segments by session, start, end and speaker; raise ValueError for one that the format cannot hold."""
    with atomic_text(path) as file:
        file.writelines(format_lines(segments))


def format_lines(segments: Iterable[Segment]) -> Iterator[str]:
    """Yield the lines of a file, as `write` writes them."""
    for segment in writable_segments(segments):
        start, duration = start_and_duration(segment)
        yield (
            f"SPEAKER {segment.session_id} {segment.channel} {start} {duration} <NA> <NA> {segment.speaker} <NA> <NA>\n"
        )
