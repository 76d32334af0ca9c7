"""Words in the NITE XML format of AMI and ICSI, a file for each participant: words/<meeting>.<agent>.words.xml.

    <nite:root nite:id="ES2002a.A.words" xmlns:nite="http://nite.sourceforge.net/">
       <w nite:id="ES2002a.A.words0" starttime="77.44" endtime="77.74">Okay</w>
       <w nite:id="ES2002a.A.words1" starttime="77.74" endtime="77.74" punc="true">.</w>
       <vocalsound nite:id="ES2002a.A.words2" starttime="79.1" endtime="79.6" type="laugh"/>
    </nite:root>

Only `<w>` counts: no vocal sounds, no punctuation.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from sortk.formats.files import FormatError, parse_seconds
from sortk.records import Segment, Word

ID = "{http://nite.sourceforge.net/}id"
_CLITIC = re.compile(r"'(s|re|ve|ll|d|m|t)", re.IGNORECASE)  # ICSI cuts "you're" in two


@dataclass(frozen=True, slots=True)
class Token:
    """An element of a file of words; a time that the file does not give is None."""

    token_id: str
    text: str  # empty if it is not `<w>`
    start: float | None
    end: float | None

    @property
    def is_spoken(self) -> bool:
        """A word, or "@@" for unintelligible words; not punctuation."""
        return "@" in self.text or any(map(str.isalnum, self.text))


def read_root(path: Path) -> ET.Element:
    """Return the root element; raise FormatError if the file is not XML."""
    try:
        return ET.parse(path).getroot()
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such file; is the corpus complete?") from None
    except ET.ParseError as error:
        raise FormatError(path, error.position[0], f"broken XML ({error})") from None
    except (LookupError, ValueError) as error:  # an encoding that does not exist, or that XML cannot have
        raise FormatError(path, 1, f"broken XML ({error})") from None


def read_tokens(path: Path) -> list[Token]:
    """Return all elements of a file of words, in its order."""
    return [
        Token(
            element.get(ID, ""),
            # L_C_D_ is spelt: L C D
            " ".join((element.text or "").replace("_", " ").split()) if element.tag == "w" else "",
            read_time(element, "starttime", path),
            read_time(element, "endtime", path),
        )
        for element in read_root(path)
    ]


def read_time(element: ET.Element, key: str, path: Path) -> float | None:
    """Return a time in seconds; None if it is missing or empty."""
    value = element.get(key)
    return parse_seconds(path, None, f"{key} of {element.get(ID)}", value) if value else None


def find_words(tokens: Iterable[Token]) -> tuple[list[Word], bool]:
    """Return the words with times, and whether there are others.

    Several tokens may share their times, which are then on the outer ones: "two" (start), "hour", "long" (end).
    """
    words: list[Word] = []
    begun: tuple[float, str] | None = None
    after_hyphen, lost = False, False
    for token in tokens:
        if token.start is not None:
            lost |= begun is not None
            begun = (token.start, token.text)
        elif begun is not None:
            begun = (begun[0], glue(begun[1], token.text))
        else:
            lost |= token.is_spoken
        if begun is not None and token.end is not None:
            _append(words, Word(begun[1], begun[0], token.end), after_hyphen)
            begun = None
        after_hyphen = token.text == "-"
    return words, lost or begun is not None


def _append(words: list[Word], word: Word, after_hyphen: bool) -> None:
    """Append the word, or join it to the last one if it is a part of that."""
    if word.start >= word.end or not any(map(str.isalnum, word.text)):
        return
    last = words[-1] if words else None
    if last and last.end == word.start and (after_hyphen or _CLITIC.fullmatch(word.text)):
        words[-1] = Word(f"{last.text}{'-' if after_hyphen else ''}{word.text}", last.start, word.end)
    else:
        words.append(word)


def glue(before: str, text: str) -> str:
    """Return two tokens as text: "you" + "'re", "mm" + "-" + "hmm", "two" + "hour"; punctuation is left out."""
    if text == "-" or before.endswith("-") or _CLITIC.fullmatch(text):
        return before + text
    return f"{before} {text}".strip() if any(map(str.isalnum, text)) else before


def as_segments(session_id: str, speaker: str, words: Iterable[Word]) -> list[Segment]:
    """Return the words as entries of a transcript."""
    return [Segment(session_id, speaker, word.start, word.end, word.text) for word in words]


def join_words(words: Iterable[Segment]) -> Iterator[Segment]:
    """Yield segments: words of a speaker without a pause between them are one; any pause, however short, separates.

    This is the rule of the "only words" reference of Landini et al. for AMI.
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
