from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import soundfile

from sortk.corpora.audiomnist import AudioMnistOptions, prepare

SHARED = Path(__file__).parents[3] / "shared" / "data" / "audiomnist"
OPTIONS = AudioMnistOptions(valid_speakers=1, test_speakers=1)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Four speakers, two digits, in the layout of the git checkout."""
    about = {f"{number:02d}": {"gender": ["male", "female"][number % 2], "age": 30} for number in range(1, 5)}
    for speaker in about:
        (tmp_path / "data" / speaker).mkdir(parents=True)
        for digit in (0, 7):
            noise = np.random.default_rng(digit).uniform(-0.1, 0.1, 24_000)
            soundfile.write(tmp_path / "data" / speaker / f"{digit}_{speaker}_3.wav", noise, 48_000)
    (tmp_path / "data" / "audioMNIST_meta.txt").write_text(json.dumps(about), encoding="utf-8")
    return tmp_path


def test_recordings_become_sources_where_they_lie(checkout: Path) -> None:
    utterances = prepare(checkout, OPTIONS, map)
    assert len(utterances) == 8
    first = utterances[0]
    assert first.utterance_id == "am01-d0-r03"
    assert first.audio_path == checkout / "data" / "01" / "0_01_3.wav"
    assert (first.offset, first.duration, first.speaker, first.text) == (0.0, 0.5, "am01", "zero")
    assert (first.gender, utterances[2].gender) == ("f", "m")
    assert {source.text for source in utterances} == {"zero", "seven"}


def test_splits_are_by_speaker_and_the_data_folder_will_do(checkout: Path) -> None:
    utterances = prepare(checkout / "data", OPTIONS, map)
    split_of_speaker = {(source.speaker, source.split) for source in utterances}
    assert len(split_of_speaker) == 4
    assert Counter(split for _, split in split_of_speaker) == {"train": 2, "valid": 1, "test": 1}


def test_a_missing_meta_file_is_named(checkout: Path) -> None:
    (checkout / "data" / "audioMNIST_meta.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"audioMNIST_meta\.txt: not found"):
        prepare(checkout, OPTIONS, map)


@pytest.mark.parametrize("text", ["no json", "[]", '{"01": {}}', '{"01": 5}'])
def test_a_broken_meta_file_is_named(checkout: Path, text: str) -> None:
    (checkout / "data" / "audioMNIST_meta.txt").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"audioMNIST_meta\.txt: not of the form"):
        prepare(checkout, OPTIONS, map)


def test_an_empty_speaker_folder_is_named(checkout: Path) -> None:
    (checkout / "data" / "05").mkdir()
    with pytest.raises(FileNotFoundError, match=r"05: no \.wav"):
        prepare(checkout, OPTIONS, map)


def test_a_strange_recording_is_named(checkout: Path) -> None:
    (checkout / "data" / "02" / "hello.wav").write_bytes(b"")
    with pytest.raises(ValueError, match=r"hello\.wav: its name is not"):
        prepare(checkout, OPTIONS, map)


def test_a_folder_without_speakers_is_named(checkout: Path) -> None:
    for folder in (checkout / "data").glob("0*"):
        folder.rename(folder.with_name(f"x{folder.name}"))
    with pytest.raises(FileNotFoundError, match="no folder of a speaker"):
        prepare(checkout, OPTIONS, map)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data are not on this machine")
def test_the_shared_part_of_audiomnist_is_split_by_speaker() -> None:
    utterances = prepare(SHARED, AudioMnistOptions(), map)
    assert len(utterances) == 9600
    split_of_speaker = {(source.speaker, source.split, source.gender) for source in utterances}
    counts = Counter((split, gender) for _, split, gender in split_of_speaker)
    assert len(split_of_speaker) == 48
    for split in ("valid", "test"):
        assert counts[split, "f"] == 1
        assert counts[split, "m"] == 5
