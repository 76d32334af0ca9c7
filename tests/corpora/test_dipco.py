from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from miniatures import write_audio, write_text

from sortk.cli import main
from sortk.corpora.dipco import SESSIONS, read
from sortk.formats import manifest, seglst


def utterance(speaker: str, start: str, end: str, words: str) -> dict[str, Any]:
    """As the corpus has them; by the headsets' clock everything is one second later."""
    late = {"U02": "00:00:09.99", "U03": "00:00:09.99", "U04": "00:00:09.99", "U05": "00:00:09.99"}
    return {
        "end_time": {"U01": end} | late | {"close-talk": end[:-5] + "9.00"},
        "gender": "female",
        "mother_tongue": "U.S. English",
        "nativeness": "native",
        "ref": "U02",
        "session_id": "S01",
        "speaker_id": speaker,
        "start_time": {"U01": start} | late | {"close-talk": start[:-5] + "8.00"},
        "words": words,
    }


S01 = [
    utterance("P02", "00:00:01.50", "00:00:02.25", "are you [laugh] sure"),
    utterance("P01", "00:00:00.10", "00:00:01.75", "this is good"),
    utterance("P01", "00:00:02.50", "00:00:02.75", "[noise]"),
]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """The evaluation part; only S01 has something to eat and to say."""
    root = tmp_path / "corpora" / "Dipco"
    for session in SESSIONS["eval"]:
        write_audio(root / "audio" / "eval" / f"{session}_U01.CH1.wav", 3.0)
        transcript = S01 if session == "S01" else []
        write_text(root / "transcriptions" / "eval" / f"{session}.json", json.dumps(transcript, indent=4))
    return root.parent


def test_utterances_have_the_times_of_the_array(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = CliRunner().invoke(main, ["prepare", "dipco", "--corpus-dir", str(corpus), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "dipco eval: 5 sessions, 0.00 h, but published are 5 sessions, 2.60 h" in result.stderr
    session = manifest.read(out / "eval.jsonl")[0]
    assert session.session_id == "dipco-S01" and session.audio_path.name == "S01_U01.CH1.wav"
    assert session.rttm_path and session.rttm_path.read_text() == (
        "SPEAKER dipco-S01 1 0.100 1.650 <NA> <NA> dipco-P01 <NA> <NA>\n"
        "SPEAKER dipco-S01 1 1.500 0.750 <NA> <NA> dipco-P02 <NA> <NA>\n"
        "SPEAKER dipco-S01 1 2.500 0.250 <NA> <NA> dipco-P01 <NA> <NA>\n"
    )
    assert session.seglst_path
    assert [entry.text for entry in seglst.read(session.seglst_path)] == ["this is good", "are you sure"]


@pytest.mark.parametrize("name", ["audio/eval/S07_U01.CH1.wav", "transcriptions/eval/S03.json"])
def test_the_first_missing_file_is_named(corpus: Path, name: str) -> None:
    (corpus / "Dipco" / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"Dipco/{name}: no such file"):
        read(corpus, map)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"start_time": {"U02": "00:00:01.00"}}, r"S03\.json: entry 1: start_time is not of the form"),
        ({"start_time": {"U01": "12.5"}}, "start_time is not of the form"),
        ({"end_time": {"U01": "00:00:00.05"}}, "ends at 0.05 before it starts at 0.1"),
        ({"speaker_id": None}, "speaker_id is missing"),
    ],
)
def test_a_broken_transcript_is_named(corpus: Path, change: dict[str, Any], sentence: str) -> None:
    path = corpus / "Dipco" / "transcriptions" / "eval" / "S03.json"
    write_text(path, json.dumps([S01[1] | change]))
    with pytest.raises(ValueError, match=sentence):
        read(corpus, map)
    write_text(path, "{}")
    with pytest.raises(ValueError, match="a transcript must be a JSON list"):
        read(corpus, map)


def test_hours_and_minutes_count(corpus: Path) -> None:
    path = corpus / "Dipco" / "transcriptions" / "eval" / "S01.json"
    write_text(path, json.dumps([utterance("P01", "01:02:03.40", "01:02:04.00", "late")]))
    assert read(corpus, map)["eval"][0].segments[0].start == pytest.approx(3600 + 120 + 3.4)
