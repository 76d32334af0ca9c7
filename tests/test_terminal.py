"""Control characters in files of others: shown on the terminal, never obeyed by it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from miniatures import write_audio, write_text

from sortk.formats.files import CONTROL_CHARACTERS

ESCAPE = "\x1b]0;owned\x07\x1b[2J"
PLAIN = "SPEAKER s 1 0.5 1.0 <NA> <NA> ann <NA> <NA>\n"


def sortk(folder: Path, *arguments: str, code: int) -> str:
    """All that the command prints, as a terminal would get it."""
    command = [sys.executable, "-m", "sortk", *arguments]
    ended = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    shown = (ended.stdout + ended.stderr).decode()
    assert ended.returncode == code, shown
    assert set(CONTROL_CHARACTERS.findall(shown)) <= {"\n", "\t"}, shown
    return shown


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_text(tmp_path / "ref.rttm", PLAIN)
    write_text(tmp_path / "bad.rttm", PLAIN.replace("ann", f"ann{ESCAPE}"))
    write_text(tmp_path / "c1.rttm", PLAIN.replace(" s ", " s\x9b2J "))
    write_text(tmp_path / "bad.stm", f"s{ESCAPE} 1 ann 0.5 1.5 hello\n")
    write_text(tmp_path / "bad.ctm", f"s ann{ESCAPE} 0.5 1.0 hello\n")
    write_text(tmp_path / "bad.uem", f"s{ESCAPE} 1 0.0 2.0\n")
    entry = {"session_id": "s", "speaker": f"ann{ESCAPE}", "start_time": 0.5, "end_time": 1.5, "words": "so"}
    write_text(tmp_path / "bad.json", json.dumps([entry]))
    line = {"session_id": f"s{ESCAPE}", "audio_filepath": "a.wav", "duration": 3.0, "rttm_filepath": "ref.rttm"}
    write_text(tmp_path / "bad.jsonl", json.dumps(line))
    write_text(tmp_path / f"x{ESCAPE}.rttm", PLAIN)
    return tmp_path


@pytest.mark.parametrize("name", ["bad.rttm", "c1.rttm", "bad.stm", "bad.ctm", "bad.uem", "bad.json", "bad.jsonl"])
def test_ids_with_control_characters_are_refused(folder: Path, name: str) -> None:
    assert "holds control characters" in sortk(folder, "validate", name, code=1)


def test_names_of_files_are_shown_not_obeyed(folder: Path) -> None:
    shown = sortk(folder, "validate", *(path.name for path in folder.iterdir()), code=1)
    assert "x\\u001b]0;owned\\u0007" in shown
    sortk(folder, "score", "der", "--ref", "ref.rttm", "--hyp", "bad.rttm", code=1)
    assert "\\u001b" in sortk(folder, "convert", f"x{ESCAPE}.rttm", "out", "--to", "kaldi", code=1)
    sortk(folder, "clean", "--manifest", "bad.jsonl", "--out", "out", code=1)


def test_words_are_shown_not_obeyed(folder: Path) -> None:
    """A word is not an id: a transcript with a control character in it, by mistake, can be scored."""
    for name, word in (("a.stm", f"so{ESCAPE}"), ("b.stm", "so")):
        write_text(folder / name, f"s 1 ann 0.5 1.5 {word} good\n")
    sortk(folder, "score", "wer", "--ref", "a.stm", "--hyp", "b.stm", code=0)


def test_what_is_logged_is_shown_not_obeyed(folder: Path) -> None:
    name = f"a{ESCAPE}"
    write_audio(folder / "in" / f"{name}.wav", 3.0)
    write_text(folder / "in" / f"{name}.rttm", PLAIN)
    sortk(folder, "prepare", "sessions", "--corpus-dir", "in", "--out", "out", code=1)
