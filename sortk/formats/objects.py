"""What the formats in JSON and TOML share: strict decoding, and typed fields whose errors name key and value."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sortk.formats.files import (
    CONTROL_CHARACTERS,
    FormatError,
    Lines,
    atomic_text,
    is_id,
    is_token,
    parse_seconds,
    quote,
    read_lines,
    resolve_path,
)

Value = TypeVar("Value")

MAX_TOML = 1_000_000  # characters of a file of settings
MAX_KEYS = 100  # in a dotted key; tomllib needs memory for the square of their number
_KEY = r"""(?:[\w-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
LONG_KEY = re.compile(rf"(?<![\w\\-])(?:{_KEY}[ \t]*\.[ \t]*){{{MAX_KEYS}}}")


def decode(text: str, path: Path, line: int | None) -> Any:
    """Return the JSON value; FormatError for text that is not JSON, or that could not be written back."""
    try:
        value = json.loads(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise FormatError(path, line or error.lineno, f"broken JSON ({error.msg})") from None
    except UnicodeEncodeError:
        raise FormatError(path, line, "half of a surrogate pair in a JSON string") from None
    except RecursionError:
        raise FormatError(path, line, "JSON is nested too deeply") from None
    except ValueError as error:  # Python does not read integers of thousands of digits
        raise FormatError(path, line, f"broken JSON ({error})") from None
    return value


def read_own(path: Path, parse: Callable[[Any], Value]) -> Value:
    """Return what `parse` makes of a JSON file that sortk wrote; FormatError that names the file if it is damaged."""
    try:
        return parse(decode(path.read_text(encoding="utf-8"), path, None))
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError):
        raise FormatError(path, None, "is damaged; remove it and run the same command again") from None


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file."""
    lines, n_characters = [], 0
    for _, line in read_lines(path):
        lines.append(line)
        n_characters += len(line)
        if n_characters > MAX_TOML:
            raise FormatError(path, None, f"has more than {MAX_TOML} characters, which no file of settings has")
    text = "\n".join(lines)
    if LONG_KEY.search(text):
        raise FormatError(path, None, f"not valid TOML: a key of more than {MAX_KEYS} parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise FormatError(path, None, "not valid TOML: nested too deeply") from None
    except ValueError as error:  # not TOML, or an integer of thousands of digits
        raise FormatError(path, None, f"not valid TOML: {error}") from None


def encode(value: Any) -> str:
    """Return the value as one line of JSON; ValueError if JSON cannot hold it."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError as error:
        shown = error.object[max(0, error.start - 120) : error.end + 40]
        raise ValueError(
            f"a name is not UTF-8: {shown!r} cannot be written as JSON; rename the file or folder"
        ) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"cannot be written as JSON ({error}): {quote(value)}") from None
    return text


@dataclass(frozen=True, slots=True)
class Entry:
    """One JSON object of a file, and where it stands there. A key that is absent or null gives None."""

    values: dict[str, Any]
    path: Path
    line: int | None
    label: str = ""

    @classmethod
    def of(cls, value: Any, path: Path, line: int | None, label: str = "") -> Entry:
        if not isinstance(value, dict):
            raise FormatError(path, line, f"{label}not a JSON object: {quote(value)}")
        return cls(value, path, line, label)

    def error(self, reason: str) -> FormatError:
        return FormatError(self.path, self.line, f"{self.label}{reason}")

    def need(self, getter: Callable[[str], Value | None], key: str) -> Value:
        """Return the value that a getter finds, which must be there: `entry.need(entry.name, "speaker")`."""
        value = getter(key)
        if value is None:
            raise self.error(f"{key} is missing")
        return value

    def check_new(self, key: str, name: str, line_of: dict[str, int | None]) -> None:
        """Raise an error if an earlier line has the same id; else record its line in `line_of`."""
        first = line_of.setdefault(name, self.line)
        if first == self.line:
            return
        fault = f"{key} {quote(name)} stands in line {first} already"
        if self.values.get(key) is None:
            fault += f"; it comes from the name of the audio, so give every line its own {key}"
        raise self.error(fault)

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            raise self.error(f"{key} is not text: {quote(value)}")
        return value

    def name(self, key: str) -> str | None:
        """Return text that can be an id in every format: not empty, no white space, no control characters."""
        value = self.text(key)
        if value is not None and not is_id(value):
            fault = "is empty or holds white space" if not is_token(value) else "holds control characters"
            raise self.error(f"{key} {fault}: {quote(value)}")
        return value

    def seconds(self, key: str) -> float | None:
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(f"{key} is not a number: {quote(value)}")
        # Through text, because an integer can be too large for a float.
        return parse_seconds(self.path, self.line, f"{self.label}{key}", str(value))

    def duration(self, key: str) -> float | None:
        """Seconds, more than zero."""
        value = self.seconds(key)
        if value == 0:
            raise self.error(f"{key} is zero")
        return value

    def count(self, key: str) -> int | None:
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.error(f"{key} is not a whole number: {quote(value)}")
        return value

    def file(self, key: str) -> Path | None:
        """A path, relative to the file that names it; "" and "-" are how NeMo writes that there is none."""
        value = self.text(key)
        if value in (None, "", "-"):
            return None
        if "\0" in value:
            raise self.error(f"{key} cannot be a path: {quote(value)}")
        return resolve_path(value, self.path)


def entries(lines: Lines, path: Path) -> Iterator[tuple[int, Entry]]:
    """Yield line number and object of each line of JSON Lines; empty lines are skipped."""
    for number, line in lines:
        if line.strip():
            yield number, Entry.of(decode(line, path, number), path, number)


def write_lines(path: Path, values: Iterable[Any], parse: Callable[[Lines, Path], Iterable[object]]) -> None:
    """Write a JSON Lines file from any iterator. ValueError, and no file, if `parse` could not read it back."""
    with atomic_text(path) as file:

        def write_all() -> Iterator[tuple[int, str]]:
            for number, value in enumerate(values, start=1):
                line = encode(value)
                file.write(f"{line}\n")
                yield number, line

        for _ in parse(write_all(), path):
            pass


def id_of(audio: Path) -> str:
    """Return the name that an audio file gives to what is in it: its stem, blanks and control characters replaced."""
    return CONTROL_CHARACTERS.sub("_", "_".join(audio.stem.split()))
