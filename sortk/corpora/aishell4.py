"""AISHELL-4: Mandarin meetings, recorded by a circular array of eight microphones, and a TextGrid for each.

    train_L/wav/<session>.flac    train_L/TextGrid/<session>.TextGrid    train_M/ and train_S/ alike
    test/wav/<session>.flac       test/TextGrid/<session>.TextGrid

A tier is a speaker, an interval with words an utterance. The rooms L, M and S (large, medium, small) are one part,
train. The channels are averaged when the audio is read.
"""

from __future__ import annotations

import re
from pathlib import Path

from sortk.corpora.sessions import Parts, Published, RecordedSession, find_parts, need_file, read_sessions
from sortk.formats import audio, textgrid
from sortk.records import RunJobs, Segment

FOLDERS = {"train": ("train_L", "train_M", "train_S"), "test": ("test",)}

PUBLISHED = {"train": Published(191, 107.5), "test": Published(20, 12.72)}

_MARK = re.compile(r"<[^>]*>|[`&]")  # <sil>, <%>, <$>, ...: not words


def read(corpus_dir: Path, run_jobs: RunJobs) -> Parts:
    """Return the sessions of the parts that are on disk."""
    audio_of = {part: _find_sessions(corpus_dir, part) for part in FOLDERS}
    if not any(audio_of.values()):
        raise FileNotFoundError(f"{corpus_dir / 'test' / 'wav'}: no .flac file here; unpack test.tar.gz there")
    return read_sessions(read_session, find_parts(audio_of), run_jobs)


def read_session(session: str, audio_path: Path) -> RecordedSession:
    """Read one meeting. A tier's name means another person in each meeting, so the meeting is put before it."""
    grid = need_file(audio_path.parents[1] / "TextGrid" / f"{session}.TextGrid", "the transcript of the meeting")
    utterances = [
        Segment(session, f"{session}-{'_'.join(tier.name.split())}", interval.start, interval.end, text)
        for tier in textgrid.read(grid)
        for interval in tier.intervals
        if (text := clean_text(interval.text)) and interval.start < interval.end
    ]
    ordered = tuple(sorted(utterances, key=lambda utterance: (utterance.start, utterance.end)))
    return RecordedSession(session, audio_path, audio.info(audio_path).seconds, segments=ordered, transcript=ordered)


def clean_text(text: str) -> str:
    """Return the words without marks of noises; empty if there are only marks."""
    spoken = " ".join(_MARK.sub(" ", text).split())
    return spoken if any(map(str.isalnum, spoken)) else ""


def _find_sessions(corpus_dir: Path, part: str) -> dict[str, Path]:
    """Return the sessions with audio or a TextGrid, and where their audio is or should be."""
    found: dict[str, Path] = {}
    for folder in (corpus_dir / name for name in FOLDERS[part]):
        paths = [*(folder / "wav").glob("*.flac"), *(folder / "TextGrid").glob("*.TextGrid")]
        found |= {name: folder / "wav" / f"{name}.flac" for name in sorted({path.stem for path in paths})}
    return found
