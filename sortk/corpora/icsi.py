"""ICSI meetings: the mix of the headsets, and words and segments of the core annotation.

    audio/<meeting>.interaction.wav, or <meeting>/Mix-Headset.wav
    ICSI/Words/<meeting>.<agent>.words.xml
    ICSI/Segments/<meeting>.<agent>.segs.xml    <segment starttime="" endtime="" participant="me011"> with its words

One word in twenty has no times, above all where digits are read. A segment of the annotators with such words is given
as one entry, any other one as words. The turns follow from both as for AMI (see formats/nxt.py). The parts are those
of Renals and Swietojanski (2014); they share speakers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path

from sortk.corpora.sessions import Parts, Published, RecordedSession, find_parts, need_file, read_sessions
from sortk.formats import audio
from sortk.formats.nxt import as_segments, find_words, glue, join_words, read_root, read_time, read_tokens
from sortk.records import RunJobs, Segment

ANNOTATION_FOLDERS = ("ICSI", "transcripts", "ICSIplus", ".")
AUDIO_NAMES = (
    "audio/{0}.interaction.wav",
    "{0}.interaction.wav",
    "{0}/{0}.interaction.wav",
    "speech/{0}/Mix-Headset.wav",
    "{0}/Mix-Headset.wav",
)
MAX_SEGMENT_SECONDS = 120.0  # a longer one is an error of the annotation

DEV = ("Bmr021", "Bns001")
TEST = ("Bmr013", "Bmr018", "Bro021")


def _meetings(series: str, numbers: str) -> tuple[str, ...]:
    return tuple(f"{series}{number:0>3}" for number in numbers.split())


ALL = (
    *_meetings("Bdb", "1"),
    *_meetings("Bed", "2 3 4 5 6 8 9 10 11 12 13 14 15 16 17"),
    *_meetings("Bmr", "1 2 3 5 6 7 8 9 10 11 12 13 14 15 16 18 19 20 21 22 23 24 25 26 27 28 29 30 31"),
    *_meetings("Bns", "1 2 3"),
    *_meetings("Bro", "3 4 5 7 8 10 11 12 13 14 15 16 17 18 19 21 22 23 24 25 26 27 28"),
    *_meetings("Bsr", "1"),
    *_meetings("Btr", "1 2"),
    *_meetings("Buw", "1"),
)
MEETINGS = {"train": tuple(name for name in ALL if name not in DEV + TEST), "dev": DEV, "test": TEST}

# Of the headset mixes. The recipe of Kaldi, from which the parts are, gives 67.5, 2.2 and 2.8 h.
PUBLISHED = {"train": Published(70, 66.65), "dev": Published(2, 2.28), "test": Published(3, 2.77)}

_HREF = re.compile(r"#id\(([^)]*)\)(?:\.\.id\(([^)]*)\))?")


@dataclass(frozen=True, slots=True)
class Utterance:
    """A segment of the annotators, with the first and the last of its tokens."""

    start: float
    end: float
    participant: str
    first_id: str
    last_id: str


def read(corpus_dir: Path, run_jobs: RunJobs) -> Parts:
    """Return the meetings of the parts that are on disk."""
    annotations = _find_annotations(corpus_dir)
    audio_of = {part: {name: _find_audio(corpus_dir, name) for name in names} for part, names in MEETINGS.items()}
    return read_sessions(partial(read_meeting, annotations), find_parts(audio_of), run_jobs)


def read_meeting(annotations: Path, meeting: str, audio_path: Path) -> RecordedSession:
    """Read one meeting with the words of its participants."""
    words_paths = sorted((annotations / "Words").glob(f"{meeting}.*.words.xml"))
    if not words_paths:
        need_file(annotations / "Words" / f"{meeting}.A.words.xml", "the words of a participant")
    entries = [entry for path in words_paths for entry in _read_participant(annotations, meeting, path)]
    return RecordedSession(
        meeting,
        audio_path,
        audio.info(audio_path).seconds,
        segments=tuple(join_words(entries)),
        transcript=tuple(sorted((e for e in entries if e.text), key=lambda entry: (entry.start, entry.end))),
    )


def _read_participant(annotations: Path, meeting: str, words_path: Path) -> Iterator[Segment]:
    """Yield words, and utterances whose words have no times; without text if they are unintelligible."""
    agent = words_path.name.split(".")[1]
    segments_path = need_file(annotations / "Segments" / f"{meeting}.{agent}.segs.xml", "the segments of a participant")
    tokens, utterances = read_tokens(words_path), _read_utterances(segments_path)
    speaker = next((utterance.participant for utterance in utterances if utterance.participant), f"{meeting}-{agent}")
    number_of = {token.token_id: number for number, token in enumerate(tokens)}
    untimed: set[int] = set()
    for utterance in utterances:
        first, last = number_of.get(utterance.first_id), number_of.get(utterance.last_id)
        if first is None or last is None or not find_words(tokens[first : last + 1])[1]:
            continue
        untimed.update(range(first, last + 1))
        text = reduce(glue, (token.text for token in tokens[first : last + 1]), "")
        yield Segment(meeting, speaker, utterance.start, utterance.end, text)
    words, _ = find_words(token for number, token in enumerate(tokens) if number not in untimed)
    yield from as_segments(meeting, speaker, words)


def _read_utterances(path: Path) -> list[Utterance]:
    """Return the segments with times and words."""
    found = []
    for element in read_root(path).iter("segment"):
        start, end = read_time(element, "starttime", path), read_time(element, "endtime", path)
        hrefs = [match for child in element if (match := _HREF.search(child.get("href", "")))]
        if element.get("type") == "supersegment" or start is None or end is None or not hrefs:
            continue
        if 0 < end - start <= MAX_SEGMENT_SECONDS:
            last_id = hrefs[-1].group(2) or hrefs[-1].group(1)
            found.append(Utterance(start, end, element.get("participant", ""), hrefs[0].group(1), last_id))
    return found


def _find_annotations(corpus_dir: Path) -> Path:
    for folder in ANNOTATION_FOLDERS:
        if (corpus_dir / folder / "Words").is_dir():
            return corpus_dir / folder
    raise FileNotFoundError(f"{corpus_dir / 'ICSI' / 'Words'}: no such folder; unpack ICSI_core_NXT.zip there")


def _find_audio(corpus_dir: Path, meeting: str) -> Path:
    """Return where the audio is, or should be."""
    paths = [corpus_dir / name.format(meeting) for name in AUDIO_NAMES]
    return next((path for path in paths if path.is_file()), paths[0])
