"""TextGrid (Praat), what is marked on tiers of a recording:

    File type = "ooTextFile"
    Object class = "TextGrid"

    xmin = 0
    xmax = 2.5
    tiers? <exists>
    size = 1
    item []:
        item [1]:
            class = "IntervalTier"
            name = "alice"
            xmin = 0
            xmax = 2.5
            intervals: size = 1
            intervals [1]:
                xmin = 0
                xmax = 2.5
                text = "shall we start"

As Praat does, we look at the numbers and strings only, so that the short form, without names, is read as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sortk.formats.files import MAX_SECONDS, FormatError, is_device, quote

_VALUE = re.compile(r'"((?:[^"]|"")*)"|(?<!\S)(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)(?!\S)|(?<!\S)(<exists>|<absent>)')
MAX_DIGITS = 12  # of a number of tiers or intervals


@dataclass(frozen=True, slots=True)
class Interval:
    """A stretch of a tier, with or without text; `end` is not checked against `start`."""

    start: float
    end: float
    text: str


@dataclass(frozen=True, slots=True)
class Tier:
    """A tier of intervals."""

    name: str
    intervals: tuple[Interval, ...]


def read(path: Path) -> list[Tier]:
    """Return the tiers of intervals, in the order of the file; those of points are left out."""
    return parse(_decode(path), path)


def parse(text: str, path: Path) -> list[Tier]:
    """Return the tiers of a file; `path` is only for messages."""
    values = _Values(text, path)
    if (values.string("File type"), values.string("Object class")) != ("ooTextFile", "TextGrid"):
        raise FormatError(path, 1, "not a TextGrid in Praat's text format")
    values.number("xmin")
    values.number("xmax")
    if not values.flag("tiers"):
        return []
    tiers = [_tier(values) for _ in range(values.count("number of tiers"))]
    return [tier for tier in tiers if tier is not None]


def _tier(values: _Values) -> Tier | None:
    kind, name = values.string("class of a tier"), values.string("name of a tier")
    values.number("xmin")
    values.number("xmax")
    n_items = values.count("number of intervals")
    if kind == "TextTier":
        for _ in range(n_items):
            values.number("time of a point")
            values.string("mark of a point")
        return None
    if kind != "IntervalTier":
        raise values.error(f"a tier is an IntervalTier or a TextTier, not {quote(kind)}")
    return Tier(name, tuple(_interval(values) for _ in range(n_items)))


def _interval(values: _Values) -> Interval:
    start, end = values.number("xmin"), values.number("xmax")
    return Interval(start, end, values.string("text"))


class _Values:
    """The numbers, strings and flags of a file one after the other; a wrong one is an error that names its line."""

    def __init__(self, text: str, path: Path) -> None:
        self._text, self._path, self._position = text, path, 0
        self._matches: Iterator[re.Match[str]] = _VALUE.finditer(text)

    def error(self, reason: str) -> FormatError:
        return FormatError(self._path, self._text.count("\n", 0, self._position) + 1, reason)

    def string(self, what: str) -> str:
        return self._next(what, 1, "a string").replace('""', '"')

    def number(self, what: str) -> float:
        seconds = float(self._next(what, 2, "a number"))
        if not 0 <= seconds <= MAX_SECONDS:
            raise self.error(f"the {what} cannot be a time: {seconds}")
        return seconds

    def count(self, what: str) -> int:
        text = self._next(what, 2, "a number")
        if not text.isdecimal() or len(text) > MAX_DIGITS:
            raise self.error(f"the {what} must be an integer, got {quote(text)}")
        return int(text)

    def flag(self, what: str) -> bool:
        return self._next(what, 3, "<exists> or <absent>") == "<exists>"

    def _next(self, what: str, group: int, kind: str) -> str:
        match = next(self._matches, None)
        if match is None:
            self._position = len(self._text)
            raise self.error(f"ends before the {what}")
        self._position = match.start()
        value = match.group(group)
        if value is None:
            raise self.error(f"the {what} should be {kind}, not {quote(match.group())}")
        return str(value)


def _decode(path: Path) -> str:
    if is_device(path):
        raise OSError(f"{path}: is a device, not a file")
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such file") from None
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise FormatError(path, None, f"not {encoding.removesuffix('-sig').upper()} text ({error.reason})") from None
