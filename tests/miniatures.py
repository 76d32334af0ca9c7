"""Miniatures of corpora, in the formats and with the names of the real ones, for the tests of their readers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
import soundfile

NXT_HEADER = '<?xml version="1.0" encoding="ISO-8859-1" standalone="yes"?>\n'
NITE = 'xmlns:nite="http://nite.sourceforge.net/"'


def write_audio(path: Path, seconds: float, channels: int = 1, sample_rate: int = 16_000) -> None:
    """Silence."""
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.zeros((round(seconds * sample_rate), channels), np.int16), sample_rate)


def write_text(path: Path, text: str, encoding: str = "utf-8") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding=encoding)


def write_words(path: Path, elements: Iterable[str]) -> None:
    """A file of NXT with these elements, given without their ids: `w starttime="1.0" endtime="1.5">Hi</w`."""
    name = path.name.removesuffix(".xml")
    lines = [
        f'   <{tag} nite:id="{name}{number}" {rest}>\n'
        for number, (tag, _, rest) in enumerate(element.partition(" ") for element in elements)
    ]
    body = f'<nite:root nite:id="{name}" {NITE}>\n{"".join(lines)}</nite:root>\n'
    write_text(path, NXT_HEADER + body, "iso-8859-1")


def word(text: str, start: float, end: float, more: str = "") -> str:
    return f'w starttime="{start}" endtime="{end}"{more}>{escape(text)}</w'


def write_ami(
    folder: Path,
    meetings: Mapping[str, Mapping[str, Iterable[str]]],
    seconds: float = 3.0,
    signal: str = "Mix-Headset",
) -> None:
    """AMI as it is downloaded: meeting -> agent -> the elements of its words; agents who say nothing have a file."""
    annotations = folder / "ami_public_manual_1.6.2"
    listed = []
    for meeting, words_of in meetings.items():
        write_audio(folder / "amicorpus" / meeting / "audio" / f"{meeting}.{signal}.wav", seconds)
        speakers = []
        for channel, agent in enumerate("ABCD"):
            write_words(annotations / "words" / f"{meeting}.{agent}.words.xml", words_of.get(agent, ()))
            speakers.append(
                f'<speaker nite:id="{meeting}_{channel}" channel="{channel}" nxt_agent="{agent}" '
                f'global_name="FEE00{channel}" role="PM"/>'
            )
        listed.append(f'<meeting nite:id="m_{meeting}" observation="{meeting}">{"".join(speakers)}</meeting>\n')
    body = f'<nite:root nite:id="meet.00" {NITE}>\n{"".join(listed)}</nite:root>\n'
    write_text(annotations / "corpusResources" / "meetings.xml", NXT_HEADER + body, "iso-8859-1")


def write_icsi_words(folder: Path, meeting: str, agent: str, words: str, segments: str) -> None:
    """One participant of an ICSI meeting, by the inner XML of both files; ids are given without the meeting."""
    for name, kind, body in (("Words", "words", words), ("Segments", "segs", segments)):
        text = f'<nite:root nite:id="{meeting}.{agent}.{kind}" {NITE}>\n{body.replace("@ID", meeting)}</nite:root>\n'
        write_text(folder / "ICSI" / name / f"{meeting}.{agent}.{kind}.xml", NXT_HEADER + text, "iso-8859-1")


def textgrid(tiers: Mapping[str, Iterable[tuple[float, float, str]]], seconds: float) -> str:
    """A TextGrid as Praat saves it."""
    lines = ['File type = "ooTextFile"', 'Object class = "TextGrid"', "", "xmin = 0", f"xmax = {seconds}"]
    lines += ["tiers? <exists>", f"size = {len(tiers)}", "item []:"]
    for number, (name, intervals) in enumerate(tiers.items(), start=1):
        rows = list(intervals)
        lines += [f"    item [{number}]:", '        class = "IntervalTier"', f'        name = "{name}"']
        lines += ["        xmin = 0", f"        xmax = {seconds}", f"        intervals: size = {len(rows)}"]
        for row, (start, end, text) in enumerate(rows, start=1):
            quoted = text.replace('"', '""')
            lines += [f"        intervals [{row}]:", f"            xmin = {start}", f"            xmax = {end}"]
            lines += [f'            text = "{quoted}"']
    return "\n".join(lines) + "\n"
