"""Whatever the bytes, a parser says FormatError or parses: 100,000 random files."""

from __future__ import annotations

import gzip
import io
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sortk.formats import ctm, kaldi, lhotse, manifest, rttm, seglst, sources, stm, uem
from sortk.formats.convert import detect
from sortk.formats.files import FormatError, Lines, decode_lines, read_lines

HERE = Path("random")

WORDS = [
    "s",
    "1",
    "0.5",
    "1e5",
    "-1",
    "nan",
    "inf",
    "1e999",
    "1_0",
    "<NA>",
    ";;",
    "SPEAKER",
    "LEXEME",
    "\u3000",
    "\x1c",
]
VALUES = ["null", "true", "-0.0", "NaN", "Infinity", "9" * 400, "9" * 5000, "1e999", '"\\ud800"', '"\\u0000"', "[[[]]]"]

SESSION = {"session_id": "s", "audio_filepath": "a.wav", "offset": 1.5, "duration": 9, "text": "x", "num_speakers": 2}
SOURCE = {"audio_filepath": "a.wav", "duration": 9, "speaker": "a", "text": "x", "words": [["x", 0.5, 1.5]]}
SEGLST = {"session_id": "s", "speaker": "a", "start_time": "0.5", "end_time": 1.5, "words": "hello"}

PARSERS: dict[str, tuple[Callable[[Lines, Path], Iterator[Any]], str]] = {
    "rttm": (rttm.parse, "SPEAKER s 1 0.5 1.25 <NA> <NA> alice <NA> <NA>\nSPKR-INFO s 1 <NA> <NA> <NA> adult a <NA>\n"),
    "uem": (uem.parse, "s 1 0.5 1.25\n;; comment\ns 2 0 10\n"),
    "stm": (stm.parse, "s 1 alice 0.5 1.25 <o,f0,male> hello you\ns 1 bob 1 2\n"),
    "ctm": (ctm.parse, "s alice 0.5 0.25 hello 0.9\ns 1 1 2 you NA lex bob\n"),
    "seglst": (seglst.parse, json.dumps([SEGLST, SEGLST])),
    "manifest": (manifest.parse, json.dumps(SESSION) + "\n" + json.dumps(SESSION | {"session_id": "t"})),
    "sources": (sources.parse, json.dumps(SOURCE) + "\n" + json.dumps(SOURCE | {"offset": 3})),
}


def noise(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randint(0, 60))


def tokens(rng: random.Random) -> bytes:
    return " ".join(rng.choices(WORDS, k=rng.randint(0, 12))).encode()


def mutated(rng: random.Random, good: str) -> bytes:
    data = bytearray(good.encode())
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(data))
        kind = rng.randrange(5)
        if kind == 0:
            data[place] = rng.randrange(256)
        elif kind == 1:
            del data[place : place + rng.randint(1, 8)]
        elif kind == 2:
            data[place:place] = noise(rng)
        elif kind == 3:
            data[place:place] = rng.choice(WORDS + VALUES).encode()
        else:
            data[place : place + 3] = rng.choice(VALUES).encode()
        if not data:
            break
    return bytes(data)


def with_other_value(rng: random.Random, good: str) -> bytes:
    """JSON that is still JSON, with one value replaced."""
    ends = [place + 1 for place, sign in enumerate(good) if sign == ":"]
    if not ends:
        return tokens(rng)
    start = rng.choice(ends)
    stop = min((good.find(sign, start) % (len(good) + 1) for sign in ",}"), default=len(good))
    return (good[:start] + rng.choice(VALUES) + good[stop:]).encode()


def random_file(rng: random.Random, good: str) -> bytes:
    kind = rng.randrange(6)
    if kind == 0:
        return noise(rng)
    if kind == 1:
        return tokens(rng)
    return with_other_value(rng, good) if kind == 2 else mutated(rng, good)


@pytest.mark.parametrize("name", PARSERS)
def test_parsers(name: str) -> None:
    parse, good = PARSERS[name]
    rng = random.Random(name)
    outcomes = {True: 0, False: 0}
    for _ in range(14_000):
        data = random_file(rng, good)
        try:
            list(parse(decode_lines(io.BytesIO(data), HERE), HERE))
            outcomes[True] += 1
        except FormatError as error:
            assert str(error).startswith("random")
            assert len(str(error)) < 1000
            outcomes[False] += 1
    assert outcomes[True] > 200, "the mutations should leave some files whole"
    assert outcomes[False] > 2000


def test_kaldi(tmp_path: Path) -> None:
    good = {
        "wav.scp": "r1 /r1.flac\nr2 a b.wav\n",
        "segments": "a-u1 r1 0.5 1.5\nb-u2 r2 0 2.25\n",
        "utt2spk": "a-u1 a\nb-u2 b\n",
        "text": "a-u1 hello there\nb-u2\n",
        "reco2dur": "r1 10\nr2 20.5\n",
    }
    rng = random.Random(0)
    for name, text in good.items():
        (tmp_path / name).write_text(text)
    for name, text in good.items():
        for _ in range(250):
            (tmp_path / name).write_bytes(random_file(rng, text))
            try:
                kaldi.read(tmp_path)
            except FormatError:
                continue
        (tmp_path / name).write_text(text)


def test_lhotse_and_detection_and_gzip(tmp_path: Path) -> None:
    good = json.dumps({"id": "u", "recording_id": "r", "start": 0.5, "duration": 1, "speaker": "a"})
    rng = random.Random(0)
    path = tmp_path / "supervisions.jsonl"
    packed = tmp_path / "packed.gz"
    for _ in range(750):
        data = random_file(rng, good)
        path.write_bytes(data)
        packed.write_bytes(mutated(rng, gzip.compress(data).decode("latin-1")))
        for check in (lhotse.read, detect):
            try:
                check(path)
            except FormatError:
                continue
        try:
            list(read_lines(packed))
        except FormatError:
            continue
