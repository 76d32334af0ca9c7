"""Silent miniatures of corpora for the tests of their readers; the layouts are those of sortk/corpora/miniature.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
import soundfile

from sortk.corpora.miniature import ami_audio_path, write_ami_annotations


def write_audio(path: Path, seconds: float, channels: int = 1, sample_rate: int = 16_000) -> None:
    """Silence."""
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.zeros((round(seconds * sample_rate), channels), np.int16), sample_rate)


def write_text(path: Path, text: str, encoding: str = "utf-8") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding=encoding)


def word(text: str, start: float, end: float, more: str = "") -> str:
    return f'<w starttime="{start}" endtime="{end}"{more}>{escape(text)}</w>'


def write_ami(
    folder: Path,
    meetings: Mapping[str, Mapping[str, Iterable[str]]],
    seconds: float = 3.0,
    signal: str = "Mix-Headset",
) -> None:
    """AMI as it is downloaded: meeting -> agent -> the elements of its words; agents who say nothing have a file."""
    for meeting in meetings:
        write_audio(ami_audio_path(folder, meeting, signal), seconds)
    words = {meeting: {agent: words_of.get(agent, ()) for agent in "ABCD"} for meeting, words_of in meetings.items()}
    names = {meeting: {agent: f"FEE00{number}" for number, agent in enumerate("ABCD")} for meeting in meetings}
    write_ami_annotations(folder, words, names)
