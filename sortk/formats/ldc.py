"""Transcripts of telephone calls as the LDC publishes them (Fisher, CALLHOME): times in seconds, side, what was said.

    # fe_03_00001.sph
    3.76 5.54 A: and i generally prefer [laughter]

    5.40 9.21 B1: %um, I met ((somebody)) in &Boston {breath}
    last week.

A second person on a side is A1 or B1. A line that does not begin with a number goes on with the turn above it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from sortk.formats.files import FormatError, Lines, parse_seconds, quote, read_lines
from sortk.records import Segment

log = logging.getLogger(__name__)

_TURN = re.compile(r"(\S+)\s+(\S+)\s+([A-Z]\d*)\s*:\s*(.*)")
# {laugh} is made by a speaker, [static] is not, [[...]] is a remark; each run of brackets is looked at once.
_SOUND = re.compile(r"\{[^{}]*\}|(?<!\[)\[+[^\[\]]*\]+")
_LANGUAGE = re.compile(r"</?[\w?]+>?")  # <Spanish hola> is Spanish, <as> an aside </as>
# Punctuation; the (( of what is unclear, the & of names, the % of hesitations, the _ of t._v.
_NO_LETTER = re.compile(r"--|[^\w'-]|_")


def read(path: Path, session_id: str) -> list[Segment]:
    """Return all turns, in the order of the file, with their original text."""
    return list(parse(read_lines(path), path, session_id))


def parse(lines: Lines, path: Path, session_id: str) -> Iterator[Segment]:
    """Yield the turns of numbered lines. A turn that does not end after its start is left out."""
    turn: Segment | None = None
    more: list[str] = []  # lines that go on with the turn
    for number, line in lines:
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if not text[0].isdigit():
            if turn is None:
                raise FormatError(
                    path, number, f"neither a turn, <start> <end> A: <words>, nor after one: {quote(line)}"
                )
            more.append(text)
            continue
        yield from _with_duration(turn, more, path)
        fields = _TURN.fullmatch(text)
        if fields is None:
            reason = f"begins with a number, but is not a turn, <start> <end> A: <words>: {quote(text)}"
            raise FormatError(path, number, reason)
        start = parse_seconds(path, number, "start", fields[1])
        end = parse_seconds(path, number, "end", fields[2])
        turn, more = Segment(session_id, fields[3], start, end, fields[4]), []
    yield from _with_duration(turn, more, path)


def _with_duration(turn: Segment | None, more: Sequence[str], path: Path) -> Iterator[Segment]:
    if turn is not None and turn.start < turn.end:
        yield replace(turn, text=" ".join([turn.text, *more]).strip()) if more else turn
    elif turn is not None:
        log.warning(
            "%s: a turn of %s ends at %s, not after its start %s: left out", path, turn.speaker, turn.end, turn.start
        )


def spoken_words(text: str) -> str:
    """Return the words in lower case, without sounds, remarks, punctuation and signs.

    Uncertain words, ((so)), are words. A word that is broken off keeps its hyphen: bos-.
    """
    return plain_words(_LANGUAGE.sub(" ", _SOUND.sub(" ", text)))


def plain_words(text: str) -> str:
    """Return the words in lower case, without punctuation; what holds no letter or digit is not a word."""
    words = _NO_LETTER.sub(" ", text).lower().split()
    return " ".join(word for word in words if any(character.isalnum() for character in word))


def has_speech(text: str) -> bool:
    """Return whether a turn has speech: words, unintelligible words, (( )), or laughter."""
    return "((" in text or "laugh" in text or bool(spoken_words(text))
