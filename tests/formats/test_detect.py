"""Telling formats apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from sortk.formats.convert import detect, lists_in
from sortk.formats.files import FormatError, atomic_text


@pytest.mark.parametrize(
    ("name", "found"),
    [("a.rttm", "rttm"), ("a.RTTM", "rttm"), ("a.b.stm.gz", "stm"), ("a.ctm", "ctm"), ("a.uem", "uem")],
)
def test_by_name(name: str, found: str) -> None:
    assert detect(Path("nowhere") / name) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("\n;; comment\nSPEAKER s 1 0 1 <NA> <NA> a <NA> <NA>\n", "rttm"),
        ("SPKR-INFO s 1 <NA> <NA> <NA> unknown a <NA> <NA>\n", "rttm"),
        ("s 1 0 10\n", "uem"),
        ("s 1 a 0 10 hello\n", "stm"),
        ("s 1 a 0 10\n", "stm"),
        ("s 1 7 0 10 hello there you\n", "stm"),
        ("s a 0 1 hello\n", "ctm"),
        ("s a 0 1 hello 0.9\n", "ctm"),
        ("s a 0 1 7 0.9\n", "ctm"),
        ("s 1 0 1 hello NA lex a\n", "ctm"),
        ("[]", "seglst"),
        ('\n[\n{"session_id": "s"}]', "seglst"),
        ('{"audio_filepath": "a"}\n', "manifest"),
        ('{"audio_filepath": "a", "speaker": "x", "session_id": "s"}\n', "manifest"),
        ('{"audio_filepath": "a", "speaker": "x", "text": ""}\n', "sources"),
        ('{"session_id": "s", "text": "<spk0> hi"}\n', "sst"),
        ('{"id": "m", "wavs": [], "delays": [], "durations": [], "speakers": [], "texts": []}\n', "mixlist"),
        ('{"id": "a", "recording_id": "r", "start": 0, "duration": 1}\n', "lhotse"),
    ],
)
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl.gz"])
def test_by_content(tmp_path: Path, text: str, found: str, name: str) -> None:
    with atomic_text(tmp_path / name) as file:
        file.write(text)
    assert detect(tmp_path / name) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no lines, so its format is unknown"),
        ("hello\n", "line 1: has an unknown format"),
        ('\n{"id": 1}\n', "line 2: has an unknown format"),
        ('{\n "key": 1,\n "settings": {}\n}\n', "line 1: has an unknown format"),
        ("{\n", "line 1: broken JSON"),
    ],
)
def test_nothing_known(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(FormatError, match=message):
        detect(tmp_path / "a.txt")


def test_folders(tmp_path: Path) -> None:
    (tmp_path / "none-of-ours").mkdir()
    for folder, file, text in (
        ("kaldi", "wav.scp", ""),
        ("lhotse", "supervisions.jsonl.gz", ""),
        ("rttm", "a.rttm", ""),
        ("seglst", "a.json", "[]"),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / file).write_text(text)
        assert detect(tmp_path / folder) == folder
    (tmp_path / "rttm" / "b.stm").touch()
    with pytest.raises(FormatError, match="holds files of several formats: rttm, stm"):
        detect(tmp_path / "rttm")
    with pytest.raises(FileNotFoundError, match="file in this folder"):
        detect(tmp_path / "none-of-ours")
    (tmp_path / "seglst" / "done.json").write_text("{}")
    (tmp_path / "seglst" / "manifest.jsonl").touch()
    assert detect(tmp_path / "seglst") == "seglst"
    (tmp_path / "lists" / "diar").mkdir(parents=True)
    (tmp_path / "lists" / "done.json").write_text("{}")
    (tmp_path / "lists" / "rejected.jsonl").touch()
    (tmp_path / "lists" / "diar" / "train.jsonl").touch()
    assert detect(tmp_path / "lists") == "lists"
    assert lists_in(tmp_path / "lists") == [tmp_path / "lists" / "diar" / "train.jsonl"]
