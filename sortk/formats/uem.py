"""UEM, the parts of recordings that are scored: one region per line.

    meeting1 1 0.000 1800.000

The fields are session, channel, start and end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from sortk.formats.files import (
    FormatError,
    Lines,
    atomic_text,
    check_ids,
    check_name,
    check_span,
    check_times,
    format_seconds,
    parse_seconds,
    read_columns,
    read_lines,
)
from sortk.records import Region


def read(path: Path) -> list[Region]:
    """Return all regions, in the order of the file."""
    return list(parse(read_lines(path), path))


def parse(lines: Lines, path: Path) -> Iterator[Region]:
    """Yield the regions of numbered lines; `path` is only for messages."""
    for number, fields in read_columns(lines):
        if len(fields) != 4:
            raise FormatError(path, number, f"a UEM line has 4 fields, not {len(fields)}")
        check_ids(path, number, *fields[:2])
        start = parse_seconds(path, number, "start", fields[2])
        end = parse_seconds(path, number, "end", fields[3])
        check_span(path, number, start, end)
        yield Region(fields[0], start, end, fields[1])


def write(path: Path, regions: Iterable[Region]) -> None:
    """Write regions by session, start and end; raise ValueError for one that the format cannot hold."""
    with atomic_text(path) as file:
        for region in sorted(regions, key=lambda region: (region.session_id, region.start, region.end)):
            check_name("session id", region.session_id)
            check_name("channel", region.channel)
            check_times(region)
            start, end = format_seconds(region.start), format_seconds(region.end)
            file.write(f"{region.session_id} {region.channel} {start} {end}\n")
