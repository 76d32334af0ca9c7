from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from sortk.corpora.librispeech import prepare

SPEAKERS_TXT = """; This is a comment
;ID  |SEX| SUBSET           |MINUTES| NAME
14   | F | train-clean-360  | 25.03 | Kristin LeMoine
84   | M | dev-clean        | 8.02  | Somebody | with a bar
"""


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    """The folder into which three miniature subsets were unpacked."""
    root = tmp_path / "LibriSpeech"
    chapters = {"train-clean-360/14/208": ["HE'S HERE", "YES"], "dev-clean/84/121": ["NO"], "test-other/99/1": ["OH"]}
    for number, (chapter, texts) in enumerate(chapters.items(), start=1):
        folder = root / chapter
        folder.mkdir(parents=True)
        name = "-".join(folder.parts[-2:])
        lines = [f"{name}-{index:04d} {text}\n" for index, text in enumerate(texts)]
        (folder / f"{name}.trans.txt").write_text("".join(lines), encoding="utf-8")
        for index in range(len(texts)):
            soundfile.write(folder / f"{name}-{index:04d}.flac", np.zeros(8000 * number), 16_000)
    (root / "SPEAKERS.TXT").write_text(SPEAKERS_TXT, encoding="utf-8")
    (root / "README.TXT").write_text("not a subset", encoding="utf-8")
    return tmp_path


def test_transcripts_and_headers_become_sources(parent: Path) -> None:
    utterances = {source.utterance_id: source for source in prepare(parent, map)}
    assert list(utterances) == ["84-121-0000", "99-1-0000", "14-208-0000", "14-208-0001"]
    source = utterances["14-208-0000"]
    assert source.audio_path == parent / "LibriSpeech" / "train-clean-360" / "14" / "208" / "14-208-0000.flac"
    assert (source.text, source.duration, source.speaker, source.gender) == ("he's here", 0.5, "14", "f")
    assert utterances["84-121-0000"].gender == "m"
    assert [utterances[name].split for name in ("14-208-0001", "84-121-0000", "99-1-0000")] == [
        "train",
        "valid",
        "test",
    ]


def test_the_folder_itself_will_do_and_genders_are_optional(parent: Path) -> None:
    (parent / "LibriSpeech" / "SPEAKERS.TXT").unlink()
    utterances = prepare(parent / "LibriSpeech", map)
    assert len(utterances) == 4
    assert {source.gender for source in utterances} == {""}


def test_the_first_missing_audio_file_is_named(parent: Path) -> None:
    for path in (parent / "LibriSpeech" / "train-clean-360").rglob("*.flac"):
        path.unlink()
    with pytest.raises(ValueError, match=r"14-208\.trans\.txt, line 1: .*14-208-0000\.flac is missing"):
        prepare(parent, map)


def test_a_line_without_text_is_named(parent: Path) -> None:
    transcript = parent / "LibriSpeech" / "dev-clean" / "84" / "121" / "84-121.trans.txt"
    transcript.write_text("84-121-0000\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"84-121\.trans\.txt, line 1: no text"):
        prepare(parent, map)


def test_a_folder_without_subsets_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no transcript"):
        prepare(tmp_path, map)
