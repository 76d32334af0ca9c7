"""CHAT, the transcripts of TalkBank (.cha): a tier per utterance, with its times in milliseconds between two bullets.

    @Begin
    @Media:     4065, audio
    *A:         well &-uh I met <him> [//] her in Boston .  \\x15545250_548020\\x15
    *B:         &=laughs xxx yeah !  \\x15547430_549360\\x15
    %com:       a remark on the utterance above
    @End

Fields are parted by a tab; a line that begins with one goes on with the line above it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from sortk.formats.files import FormatError, Lines, is_token, parse_seconds, quote, read_lines
from sortk.formats.ldc import plain_words
from sortk.records import Segment

BULLET = "\x15"
FILLER = "&-"

_TIMES = re.compile(rf"{BULLET}([^{BULLET}]*){BULLET}")
_PAUSE_OR_CODE = re.compile(r"\((?:\.+|\d[\d.:]*)\)|\[[^\[\]]*\]")  # (.), (1.5); [//], [=! sings]
# &=laughs, but not &-uh; +...; 0omitted; unintelligible or anonymized words; the language of a word, @s:spa
_NO_WORD = re.compile(r"&(?!-)\S*|\+\S*|\b0\S+|\b(?:xxx|yyy|www)\b|@\S*")
_NOT_SPOKEN = re.compile(r"[()]")  # (be)cause


def read(path: Path, session_id: str) -> list[Segment]:
    """Return all utterances with times, in the order of the file, with their original text."""
    return list(parse(read_lines(path), path, session_id))


def parse(lines: Lines, path: Path, session_id: str) -> Iterator[Segment]:
    """Yield the utterances of numbered lines; one without times, or without duration, is left out."""
    for number, tier in _tiers(lines):
        if not tier.startswith("*"):
            continue
        speaker, colon, text = tier[1:].partition(":")
        if not colon or not is_token(speaker):
            raise FormatError(path, number, f"no speaker, *A:, before the utterance: {quote(tier)}")
        times = [_span(path, number, match[1]) for match in _TIMES.finditer(text)]
        if times and times[0][0] < times[-1][1]:
            words = " ".join(_TIMES.sub(" ", text).split())
            yield Segment(session_id, speaker, times[0][0], times[-1][1], words)


def _tiers(lines: Lines) -> Iterator[tuple[int, str]]:
    """Yield complete tiers, with the numbers of their first lines."""
    first, tier = 0, ""
    for number, line in lines:
        if line.startswith("\t"):
            tier += " " + line.strip()
            continue
        yield first, tier
        first, tier = number, line
    yield first, tier


def _span(path: Path, number: int, text: str) -> tuple[float, float]:
    start, _, end = text.partition("_")
    return _seconds(path, number, "start", start), _seconds(path, number, "end", end)


def _seconds(path: Path, number: int, name: str, text: str) -> float:
    if not (text.isascii() and text.isdigit()):
        raise FormatError(path, number, f"{name} is not a number of milliseconds: {quote(text)}")
    return parse_seconds(path, number, name, text) / 1000


def spoken_words(text: str) -> str:
    """Return the words in lower case, without pauses, codes, sounds and punctuation; hesitations are words.

    Words that a speaker takes back, <him> [//], are kept. Parts that were not spoken, (be)cause, are filled in.
    """
    said = _NOT_SPOKEN.sub("", _NO_WORD.sub(" ", _PAUSE_OR_CODE.sub(" ", text)))
    return plain_words(said.replace(FILLER, " "))
