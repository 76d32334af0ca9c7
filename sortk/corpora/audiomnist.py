"""AudioMNIST: 60 speakers say the digits, 50 times each. The layout of its git checkout:

    data/01/0_01_0.wav        digit, speaker, repetition; 48 kHz
    data/audioMNIST_meta.txt  JSON: {"01": {"gender": "male", ...}, ...}

A folder with a sources.jsonl of AudioMNIST is accepted, too. The audio stays where it is.
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from pathlib import Path

from sortk.corpora.splits import find_sources, read_existing, split_speakers
from sortk.formats import audio
from sortk.formats.files import FormatError
from sortk.options import Options, option
from sortk.records import RunJobs, Source

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
META_NAME = "audioMNIST_meta.txt"
GENDERS = {"female": "f", "male": "m"}

_WAV_NAME = re.compile(r"(\d)_(\d+)_(\d+)\.wav")


@dataclass(frozen=True)
class AudioMnistOptions(Options):
    """Sizes of the splits; the seed of a recipe does not move a test speaker."""

    valid_speakers: int = option(6, at_least=0)
    test_speakers: int = option(6, at_least=0)


@dataclass(frozen=True, slots=True)
class SpeakerFolder:
    """The recordings of one speaker."""

    folder: Path
    gender: str


def prepare(corpus_dir: Path, options: AudioMnistOptions, run_jobs: RunJobs) -> list[Source]:
    """Return all recordings, split by speaker."""
    path = find_sources(corpus_dir)
    utterances = read_existing(path) if path else _read_checkout(corpus_dir, run_jobs)
    genders = {source.speaker: source.gender for source in utterances}
    splits = split_speakers(genders, options.valid_speakers, options.test_speakers)
    return [dataclasses.replace(source, split=splits[source.speaker]) for source in utterances]


def read_speaker(speaker: SpeakerFolder) -> list[Source]:
    """Return the recordings of one speaker, by digit and repetition."""
    paths = sorted(speaker.folder.glob("*.wav"))
    if not paths:
        raise FileNotFoundError(f"{speaker.folder}: no .wav file here; is the checkout of AudioMNIST complete?")
    return sorted((_read_recording(path, speaker.gender) for path in paths), key=lambda source: source.utterance_id)


def _read_checkout(corpus_dir: Path, run_jobs: RunJobs) -> list[Source]:
    data = corpus_dir / "data" if (corpus_dir / "data").is_dir() else corpus_dir
    genders = _read_genders(data / META_NAME)
    folders = sorted(folder for folder in data.iterdir() if folder.is_dir() and folder.name.isdigit())
    if not folders:
        raise FileNotFoundError(f"{data}: no folder of a speaker (01, 02, ...) here; is the checkout complete?")
    speakers = [SpeakerFolder(folder, genders.get(folder.name, "")) for folder in folders]
    return [source for recordings in run_jobs(read_speaker, speakers) for source in recordings]


def _read_genders(path: Path) -> dict[str, str]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: not found; --corpus-dir must be a git checkout of AudioMNIST")
    try:
        speakers = json.loads(path.read_text(encoding="utf-8"))
        return {name: GENDERS.get(about["gender"], "") for name, about in speakers.items()}
    except (ValueError, AttributeError, KeyError, TypeError):
        raise FormatError(path, None, 'not of the form {"01": {"gender": "male"}, ...}') from None


def _read_recording(path: Path, gender: str) -> Source:
    name = _WAV_NAME.fullmatch(path.name)
    if name is None:
        raise FormatError(path, None, "its name is not <digit>_<speaker>_<repetition>.wav")
    digit, speaker, repetition = name.groups()
    return Source(
        utterance_id=f"am{speaker}-d{digit}-r{repetition:0>2}",
        audio_path=path,
        offset=0.0,
        duration=audio.info(path).seconds,
        speaker=f"am{speaker}",
        text=DIGITS[int(digit)],
        gender=gender,
    )
