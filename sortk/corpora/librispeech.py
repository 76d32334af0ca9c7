"""LibriSpeech as it is unpacked; the audio stays where it is.

LibriSpeech/<subset>/<speaker>/<chapter>/<speaker>-<chapter>.trans.txt   lines: <utterance id> <TEXT>
LibriSpeech/<subset>/<speaker>/<chapter>/<utterance id>.flac
LibriSpeech/SPEAKERS.TXT                                                 lines: <speaker> | <F or M> | ...; optional
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sortk.corpora.splits import TEST, TRAIN, VALID
from sortk.formats import audio
from sortk.formats.files import FormatError, read_lines
from sortk.records import RunJobs, Source

SPLIT_OF_PREFIX = {"train": TRAIN, "dev": VALID, "test": TEST}


@dataclass(frozen=True, slots=True)
class Chapter:
    """One chapter of a book, read by one speaker."""

    transcript: Path
    speaker: str
    gender: str
    split: str


def prepare(corpus_dir: Path, run_jobs: RunJobs) -> list[Source]:
    """Return all utterances of the subsets that are on disk."""
    chapters = find_chapters(corpus_dir)
    return [source for utterances in run_jobs(read_chapter, chapters) for source in utterances]


def find_chapters(corpus_dir: Path) -> list[Chapter]:
    """Return the chapters of every subset, by name; `corpus_dir` is LibriSpeech itself or the folder that holds it."""
    root = corpus_dir / "LibriSpeech" if (corpus_dir / "LibriSpeech").is_dir() else corpus_dir
    genders = _read_genders(root / "SPEAKERS.TXT")
    chapters = []
    for subset in sorted(root.iterdir()):
        split = SPLIT_OF_PREFIX.get(subset.name.split("-")[0])
        if split is None or not subset.is_dir():
            continue
        for transcript in sorted(subset.glob("*/*/*.trans.txt")):
            speaker = transcript.parent.parent.name
            chapters.append(Chapter(transcript, speaker, genders.get(speaker, ""), split))
    if not chapters:
        raise FileNotFoundError(
            f"{root}: no transcript (<subset>/<speaker>/<chapter>/*.trans.txt) of a train, dev or test subset here"
        )
    return chapters


def read_chapter(chapter: Chapter) -> list[Source]:
    """Return the utterances of a chapter; their lengths come from the FLAC headers."""
    utterances = []
    for number, line in read_lines(chapter.transcript):
        if not line.strip():
            continue
        utterance_id, _, text = line.partition(" ")
        if not text.strip():
            raise FormatError(chapter.transcript, number, f"no text after the utterance id {utterance_id!r}")
        path = chapter.transcript.parent / f"{utterance_id}.flac"
        if not path.is_file():
            raise FormatError(chapter.transcript, number, f"{path} is missing; unpack this subset of LibriSpeech again")
        utterances.append(
            Source(
                utterance_id=utterance_id,
                audio_path=path,
                offset=0.0,
                duration=audio.info(path).seconds,
                speaker=chapter.speaker,
                text=text.strip().lower(),
                gender=chapter.gender,
                split=chapter.split,
            )
        )
    return utterances


def _read_genders(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    columns = [line.split("|") for _, line in read_lines(path) if not line.startswith(";") and "|" in line]
    return {speaker.strip(): gender.strip().lower() for speaker, gender, *_ in columns}
