"""What is read from each format, and that any text of a decoder is taken without losing a word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sortk.formats import ctm, seglst, stm
from sortk.formats.files import FormatError
from sortk.records import Segment
from sortk.scoring.wer import Transcripts

ALICE = Segment("s", "alice", 0.0, 2.0, "well i")
BOB = Segment("s", "bob", 1.0, 1.5, "yes")


def write_lines(path: Path, *entries: object) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    return path


def test_an_sst_counts_words_instead_of_seconds() -> None:
    transcripts = Transcripts.of_sst({"s": "<spk0> well i <spk1> yes"})
    assert list(transcripts.sessions["s"]) == [
        Segment("s", "spk0", 0.0, 2.0, "well i"),
        Segment("s", "spk1", 2.0, 3.0, "yes"),
    ]
    assert transcripts.untimed == {"s"}
    assert transcripts.names_speakers
    assert not Transcripts.of_sst({"s": "well i"}).names_speakers


def test_every_level_of_an_sst_is_scored_alike() -> None:
    """A token before each word, or only where the speaker changes: what is said until another speaks is one segment."""
    texts = ("<spk0> well <spk0> i <spk1> yes <spk0> so", "<spk0> well i <spk1> yes <spk0> so")
    word, change = (Transcripts.of_sst({"s": text}).sessions["s"] for text in texts)
    assert list(word) == list(change)
    assert [(turn.speaker, turn.text) for turn in word] == [("spk0", "well i"), ("spk1", "yes"), ("spk0", "so")]


def test_oddities_of_an_sst_are_told() -> None:
    notes = Transcripts.of_sst({"a": "hm <spk0> well", "b": "<spkx> yes", "c": "so <cs> yes", "d": "<spk1> so"}).notes
    assert notes == (
        "words before the first speaker token, taken as <spk0>'s: 1 session (a)",
        "a speaker token without a number, taken as a speaker of that name: 1 session (b)",
    )


@pytest.mark.parametrize(("module", "name"), [(seglst, "a.json"), (stm, "a.stm")])
def test_segments_of_a_file_or_a_folder(module: object, name: str, tmp_path: Path) -> None:
    module.write(tmp_path / name, [ALICE, BOB])  # type: ignore[attr-defined]
    for path in (tmp_path / name, tmp_path):
        assert Transcripts.read(path).sessions == {"s": [ALICE, BOB]}


def test_a_seglst_without_entries_in_a_folder_is_a_silent_session(tmp_path: Path) -> None:
    seglst.write(tmp_path / "s.json", [ALICE])
    seglst.write(tmp_path / "silent.json", [])
    assert Transcripts.read(tmp_path).sessions == {"s": [ALICE], "silent": []}


def test_ctm_files_of_one_session_are_speakers(tmp_path: Path) -> None:
    ctm.write(tmp_path / "h1.ctm", [Segment("s", "1", 0.0, 1.0, "well")])
    ctm.write(tmp_path / "h2.ctm", [Segment("s", "1", 0.5, 1.0, "yes")])
    assert {word.speaker: word.text for word in Transcripts.read(tmp_path).sessions["s"]} == {
        "h1:1": "well",
        "h2:1": "yes",
    }


def test_a_session_in_two_files_is_an_error(tmp_path: Path) -> None:
    seglst.write(tmp_path / "a.json", [ALICE])
    seglst.write(tmp_path / "b.json", [BOB])
    with pytest.raises(ValueError, match=r"session 's' is in two files; the second is .*b\.json"):
        Transcripts.read(tmp_path)


def test_sst_lines_and_manifests(tmp_path: Path) -> None:
    lines = write_lines(
        tmp_path / "sst.jsonl", {"session_id": "s", "text": "<spk0> well"}, {"session_id": "t", "text": ""}
    )
    assert {name: [turn.text for turn in turns] for name, turns in Transcripts.read(lines).sessions.items()} == {
        "s": ["well"],
        "t": [],
    }
    entry = {"audio_filepath": "s.wav", "session_id": "s", "text": "<spk0> well", "pred_text": "<spk0> wall"}
    manifest = write_lines(tmp_path / "manifest.jsonl", entry)
    assert Transcripts.read(manifest).sessions["s"][0].text == "well"
    assert Transcripts.read(manifest, predicted=True).sessions["s"][0].text == "wall"


def test_what_holds_no_words_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.rttm").write_text("SPEAKER s 1 0 1 <NA> <NA> alice <NA> <NA>\n", encoding="utf-8")
    with pytest.raises(FormatError, match="is rttm, which holds no words; give SegLST, STM, CTM or SST"):
        Transcripts.read(tmp_path / "a.rttm")
    without = write_lines(tmp_path / "m.jsonl", {"audio_filepath": "s.wav"})
    with pytest.raises(FormatError, match="line 1: has no text"):
        Transcripts.read(without)
    twice = write_lines(tmp_path / "t.jsonl", *[{"session_id": "s", "text": "a"}] * 2)
    with pytest.raises(FormatError, match="line 2: session_id 's' stands in line 1 already"):
        Transcripts.read(twice)


def test_speaker_tokens_among_timed_words_are_refused() -> None:
    with pytest.raises(ValueError, match="session 's', x at 0.000 s: '<spk1>' in the words would count as a word"):
        Transcripts.of([Segment("s", "x", 0.0, 1.0, "well <spk1> yes")])
