"""AMI meetings: the mix of the headsets, or one microphone on the table, and the words of the manual annotation.

    amicorpus/<meeting>/audio/<meeting>.Mix-Headset.wav, or .Array1-01.wav
    ami_public_manual_1.6.2/words/<meeting>.<agent>.words.xml
    ami_public_manual_1.6.2/corpusResources/meetings.xml

Parts and references are those of Landini et al. (2022), "only words": a segment is a run of words without a pause,
vocal sounds do not count, and all of the meeting is scored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from sortk.corpora.sessions import Parts, Published, RecordedSession, find_parts, need_file, read_sessions
from sortk.formats import audio
from sortk.formats.files import FormatError
from sortk.formats.nxt import as_segments, find_words, join_words, read_root, read_tokens
from sortk.options import Options
from sortk.records import Region, RunJobs

ANNOTATIONS = "ami_public_manual_1.6.2"
SIGNAL_FOLDERS = ("amicorpus", "wav_db", ".")  # of the official download, of lhotse's, and none
SUFFIX = {"ihm-mix": "Mix-Headset", "sdm": "Array1-01"}
WITHOUT_ARRAY = ("IS1003b", "IS1007d")  # whose table microphones were never published

Agents = dict[str, str]
"""The letter of each participant in a meeting -> the name, which is the same in all meetings."""


@dataclass(frozen=True)
class AmiOptions(Options):
    """Settings of the AMI reader."""

    microphone: Literal["ihm-mix", "sdm"] = "ihm-mix"  # the headsets mixed, or the first of the array on the table


def _meetings(text: str) -> tuple[str, ...]:
    """ "ES2002:abcd IB4001" -> ES2002a, ..., ES2002d, IB4001."""
    groups = (word.partition(":") for word in text.split())
    return tuple(f"{group}{letter}" for group, _, letters in groups for letter in letters or [""])


MEETINGS = {
    "train": _meetings(
        "EN2001:abde EN2003:a EN2004:a EN2005:a EN2006:ab EN2009:bcd ES2002:abcd ES2003:abcd ES2005:abcd "
        "ES2006:abcd ES2007:abcd ES2008:abcd ES2009:abcd ES2010:abcd ES2012:abcd ES2013:abcd ES2014:abcd "
        "ES2015:abcd ES2016:abcd IN1001 IN1002 IN1005 IN1007 IN1008 IN1009 IN1012 IN1013 IN1014 IN1016 "
        "IS1000:abcd IS1001:abcd IS1002:bcd IS1003:abcd IS1004:abcd IS1005:abc IS1006:abcd IS1007:abcd "
        "TS3005:abcd TS3006:abcd TS3007:abcd TS3008:abcd TS3009:abcd TS3010:abcd TS3011:abcd TS3012:abcd"
    ),
    "dev": _meetings("ES2011:abcd IB4001 IB4002 IB4003 IB4004 IB4010 IB4011 IS1008:abcd TS3004:abcd"),
    "test": _meetings("EN2002:abcd ES2004:abcd IS1009:abcd TS3003:abcd"),
}

N_SPEAKERS = {"EN2001a": 5, "EN2001d": 5, "EN2001e": 5}  # the others have four, ...
N_SPEAKERS |= dict.fromkeys(("EN2002c", "EN2003a", "EN2009b", "EN2009c", "IN1001"), 3)  # ... and these three

PUBLISHED = {
    "ihm-mix": {"train": Published(136, 80.67), "dev": Published(18, 9.67), "test": Published(16, 9.06)},
    "sdm": {"train": Published(134, 79.65), "dev": Published(18, 9.67), "test": Published(16, 9.06)},
}


def read(corpus_dir: Path, run_jobs: RunJobs, options: AmiOptions | None = None) -> Parts:
    """Return the meetings of the parts that are on disk."""
    options = options or AmiOptions()
    annotations = _find_annotations(corpus_dir)
    agents_of = _read_agents(annotations / "corpusResources" / "meetings.xml")
    audio_of = {
        part: {
            name: _find_audio(corpus_dir, name, options)
            for name in names
            if options.microphone != "sdm" or name not in WITHOUT_ARRAY
        }
        for part, names in MEETINGS.items()
    }
    return read_sessions(partial(read_meeting, annotations, agents_of), find_parts(audio_of), run_jobs)


def read_meeting(annotations: Path, agents_of: Mapping[str, Agents], meeting: str, audio_path: Path) -> RecordedSession:
    """Read one meeting with the words of its participants."""
    agents = agents_of.get(meeting)
    if agents is None:
        raise FormatError(annotations / "corpusResources" / "meetings.xml", None, f"does not list meeting {meeting}")
    paths = {agent: annotations / "words" / f"{meeting}.{agent}.words.xml" for agent in sorted(agents)}
    if sum(path.is_file() for path in paths.values()) < N_SPEAKERS.get(meeting, 4):
        for path in paths.values():
            need_file(path, "the words of a participant")
    words = [
        word
        for agent, path in paths.items()
        if path.is_file()  # a headset that was not worn may have none
        for word in as_segments(meeting, agents[agent], find_words(read_tokens(path))[0])
    ]
    duration = audio.info(audio_path).seconds
    return RecordedSession(
        meeting,
        audio_path,
        duration,
        segments=tuple(join_words(words)),
        transcript=tuple(sorted(words, key=lambda word: (word.start, word.end))),
        regions=(Region(meeting, 0.0, duration),),
    )


def _find_annotations(corpus_dir: Path) -> Path:
    for folder in (corpus_dir / ANNOTATIONS, corpus_dir):
        if (folder / "words").is_dir():
            return folder
    raise FileNotFoundError(
        f"{corpus_dir / ANNOTATIONS / 'words'}: no such folder; unpack the manual annotations, {ANNOTATIONS}.zip, there"
    )


def _read_agents(path: Path) -> dict[str, Agents]:
    """Return the participants of every meeting."""
    agents_of: dict[str, Agents] = {}
    for meeting in read_root(path).iter("meeting"):
        speakers = {speaker.get("nxt_agent", ""): speaker.get("global_name", "") for speaker in meeting.iter("speaker")}
        if not all(speakers) or not all(speakers.values()):
            raise FormatError(path, None, f"a speaker of {meeting.get('observation')} has no nxt_agent or global_name")
        agents_of[meeting.get("observation", "")] = speakers
    return agents_of


def _find_audio(corpus_dir: Path, meeting: str, options: AmiOptions) -> Path:
    """Return where the audio is, or should be."""
    name = Path(meeting, "audio", f"{meeting}.{SUFFIX[options.microphone]}.wav")
    paths = [corpus_dir / folder / name for folder in SIGNAL_FOLDERS]
    return next((path for path in paths if path.is_file()), paths[0])
