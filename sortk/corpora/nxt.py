"""Words in the NITE XML format of AMI and ICSI: <corpus>/words/<meeting>.<agent>.words.xml.

    <nite:root nite:id="ES2002a.A.words" xmlns:nite="http://nite.sourceforge.net/">
       <w nite:id="ES2002a.A.words0" starttime="77.44" endtime="77.74">Okay</w>
       <w nite:id="ES2002a.A.words1" starttime="77.74" endtime="77.74" punc="true">.</w>
       <vocalsound nite:id="ES2002a.A.words2" starttime="79.1" endtime="79.6" type="laugh"/>
    </nite:root>

Only `<w>` counts: no vocal sounds, no punctuation.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from sortk.formats.files import FormatError, parse_seconds
from sortk.records import Segment, Word


def read_root(path: Path) -> ET.Element:
    """The root element; FormatError if the file is no XML."""
    try:
        return ET.parse(path).getroot()
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such file; is the corpus complete?") from None
    except ET.ParseError as error:
        raise FormatError(path, error.position[0], f"broken XML ({error})") from None


def read_words(path: Path) -> list[Word]:
    """The words of one speaker. Those without times, or without a length, are left out: nobody knows when they were.

    A word may come in pieces ("cross", "-", "talk"), the first of which has a start and the last an end.
    """
    words: list[Word] = []
    begun: tuple[float, str] | None = None
    for element in read_root(path).iter("w"):
        text = " ".join((element.text or "").replace("_", " ").split())  # L_C_D_ is spelt: L C D
        start, end = _time(element, "starttime", path), _time(element, "endtime", path)
        if start is not None:
            begun = (start, text)
        elif begun:
            begun = (begun[0], begun[1] + text)
        if begun and end is not None:
            words.append(Word(begun[1], begun[0], end))
            begun = None
    return [word for word in words if word.start < word.end and any(map(str.isalnum, word.text))]


def _time(element: ET.Element, key: str, path: Path) -> float | None:
    value = element.get(key)
    return parse_seconds(path, None, key, value) if value else None


def as_segments(session_id: str, speaker: str, words: Iterable[Word]) -> list[Segment]:
    """The words as entries of a transcript."""
    return [Segment(session_id, speaker, word.start, word.end, word.text) for word in words]


def join_words(words: Iterable[Segment]) -> Iterator[Segment]:
    """Who speaks when: words of a speaker without a pause between them are one segment; a pause, however short, is one.

    That is the rule of the "only words" reference of Landini et al. for AMI.
    """
    by_speaker: dict[str, list[Segment]] = {}
    for word in words:
        by_speaker.setdefault(word.speaker, []).append(word)
    for own in by_speaker.values():
        ordered = sorted(own, key=lambda word: word.start)
        current = replace(ordered[0], text="")
        for word in ordered[1:]:
            if word.start > current.end:
                yield current
                current = replace(word, text="")
            else:
                current = replace(current, end=max(current.end, word.end))
        yield current
