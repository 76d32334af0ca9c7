"""Valid files, damaged: bytes, fields of columns, values of JSON, lines of TOML and YAML, numbers in headers.

An input is a set of named parts, such as the files of a folder; one of them is damaged at a time. The same random
generator gives the same input.
"""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Parts = Mapping[str, bytes]

WORDS = (
    "0", "-1", "1e5", "0.5", "-0.0", "nan", "inf", "-inf", "1e999", "1_0", "9" * 25, "9" * 5000, "0x10", "<NA>",
    ";;", "SPEAKER", "#", '"', "'", "[", "]", "{", "}", "((",
    "\\", "%s", "$(id)", "`id`", "\t", "\x00", "\x15", "\x1c", "\u3000",
    "\u0663", "\ufeff", "\ud7ff", "..", "../" * 40, "/", "/dev/zero", "file:///etc/passwd", "a" * 300, "é" * 200, "&x;",
    "<!--", "<spk0>", "<spk99999999999>", "<cs>", "nemo:x", "!!python/object/apply:os.system", "&a [*a, *a]",
    "true", "null",
)  # fmt: skip
VALUES = (
    "null", "true", "false", "0", "-1", "-0.0", "1e999", "NaN", "Infinity", "0.5", "9" * 400, "9" * 5000, "[]",
    "{}", '""', '" "', '"\\ud800"', '"\\u0000"', '"a b"', '"../../x"', '"/dev/zero"', "[[[]]]",
    '[1, "a", null]', '{"a": {"b": []}}', "1e308", "2147483648", "9223372036854775808", "1000000000",
    '"\u2028"', '"\u2028x"', "[0.5, 1.5]", '["x", 0.5, 1.5]', "16", "-5",
)  # fmt: skip
NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
REPEATS = (2, 10, 100, 3000)  # of a piece of the file: enough for a slow pattern to be noticed
DEEP = 3000
FIELD = re.compile(rb"[^\s=:,\"<>]+")
LONGEST_SEARCH = 20_000  # bytes

Damage = Callable[[random.Random, bytes], bytes]


def mutate(rng: random.Random, seeds: Sequence[Parts]) -> dict[str, bytes]:
    """One of the seeds with one to four injuries to one of its parts; now and then one is left whole."""
    parts = dict(rng.choice(seeds))
    name = rng.choice(sorted(parts))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3, 4))):
        parts[name] = rng.choice(DAMAGES)(rng, parts[name])
    if len(seeds) > 1 and rng.random() < 0.05:
        parts[name] = _cut(rng, parts[name]) + _cut(rng, rng.choice(seeds).get(name, b""))
    return parts


def _flip(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4) if data else 0):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _cut(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randint(0, len(data))]


def _drop(rng: random.Random, data: bytes) -> bytes:
    start, stop = _span(rng, data)
    return data[:start] + data[stop:]


def _repeat(rng: random.Random, data: bytes) -> bytes:
    start, stop = _span(rng, data)
    return data[:stop] + data[start:stop] * rng.choice(REPEATS) + data[stop:]


def _span(rng: random.Random, data: bytes) -> tuple[int, int]:
    start = rng.randint(0, len(data))
    return start, min(len(data), start + rng.choice((1, 2, 4, 8, 40)))


def _insert_word(rng: random.Random, data: bytes) -> bytes:
    place = rng.randint(0, len(data))
    return data[:place] + rng.choice(WORDS).encode() + data[place:]


def _insert_noise(rng: random.Random, data: bytes) -> bytes:
    place = rng.randint(0, len(data))
    return data[:place] + rng.randbytes(rng.randint(1, 40)) + data[place:]


def _change_field(rng: random.Random, data: bytes) -> bytes:
    """A field of columns, or a word of any text; of a large file, somewhere in a part of it."""
    start = rng.randint(0, max(0, len(data) - LONGEST_SEARCH))
    fields = list(FIELD.finditer(data, start, start + LONGEST_SEARCH))
    if not fields:
        return data
    field = rng.choice(fields)
    return data[: field.start()] + rng.choice(WORDS).encode() + data[field.end() :]


def _change_lines(rng: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    place, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.randrange(5)
    if kind == 0:
        lines.insert(place, lines[other])
    elif kind == 1:
        del lines[place]
    elif kind == 2:
        lines[place], lines[other] = lines[other], lines[place]
    elif kind == 3:
        lines[place] = b" ".join(sorted(lines[place].split(), key=lambda _: rng.random()))
    else:
        lines[place] += b" " + lines[other]
    return b"\n".join(lines)


def _change_value(rng: random.Random, data: bytes) -> bytes:
    """The right side of a line of TOML, YAML or a table of settings."""
    lines = data.split(b"\n")
    places = [place for place, line in enumerate(lines) if b"=" in line or b": " in line]
    if not places:
        return _change_field(rng, data)
    place = rng.choice(places)
    key, sign, _ = re.split(rb"(=|: )", lines[place], maxsplit=1)
    lines[place] = key + sign + b" " + rng.choice((*VALUES, *WORDS)).encode()
    return b"\n".join(lines)


def _change_number(rng: random.Random, data: bytes) -> bytes:
    """A number in a binary header, which mostly stands in the beginning."""
    width, order = rng.choice((1, 2, 4, 8)), rng.choice("<>")
    reach = min(len(data), rng.choice((64, 256, len(data)))) - width
    if reach < 0:
        return data
    place = rng.randint(0, reach)
    number = rng.choice(NUMBERS) & (256**width - 1)
    packed = struct.pack(order + {1: "B", 2: "H", 4: "I", 8: "Q"}[width], number)
    return data[:place] + packed + data[place + width :]


def _change_json(rng: random.Random, data: bytes) -> bytes:
    """Still JSON, with something else in one place; a line of it if it is JSON Lines."""
    lines = data.split(b"\n")
    whole = not data.startswith(b"{") or len([line for line in lines if line.strip()]) == 1
    place = rng.randrange(len(lines))
    try:
        value = json.loads(data if whole else lines[place])
    except (ValueError, RecursionError):
        return _change_field(rng, data)
    text = _write_json(rng, value)
    if whole:
        return text
    lines[place] = text
    return b"\n".join(lines)


def _write_json(rng: random.Random, value: Any) -> bytes:
    mark = "\x00mark\x00"
    text = json.dumps(_with_mark(rng, value, mark))
    if rng.random() < 0.02:
        return text.replace(json.dumps(mark), "[" * DEEP + "]" * DEEP).encode()
    return text.replace(json.dumps(mark), rng.choice(VALUES)).encode()


def _with_mark(rng: random.Random, value: Any, mark: str) -> Any:
    """The value with a mark somewhere in it: deeper or not, by chance."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(sorted(value))
        rest = {name: inner for name, inner in value.items() if name != key}
        if rng.random() < 0.1:
            return rest
        return {key: _with_mark(rng, value[key], mark)} | rest
    if isinstance(value, list) and value and rng.random() < 0.9:
        place = rng.randrange(len(value))
        return [*value[:place], _with_mark(rng, value[place], mark), *value[place + 1 :]]
    return mark


DAMAGES: tuple[Damage, ...] = (
    _flip, _cut, _drop, _repeat, _insert_word, _insert_noise, _change_field, _change_field, _change_lines,
    _change_value, _change_number, _change_number, _change_json, _change_json,
)  # fmt: skip
