"""From one format to another."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sortk.formats import audio, ctm, kaldi, manifest, rttm, seglst, stm
from sortk.formats.convert import convert
from sortk.formats.files import FormatError
from sortk.records import Segment, Session

WORDS = [Segment("s", "a", 0, 1, "hello"), Segment("s", "b", 0.5, 2, "you")]
TIMES = [Segment("s", "a", 0, 1), Segment("s", "b", 0.5, 2)]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A manifest with audio and words."""
    audio.write_flac(tmp_path / "s.flac", np.ones(48_000, dtype=np.int16))
    seglst.write(tmp_path / "s.json", WORDS)
    path = tmp_path / "in.jsonl"
    manifest.write(path, [Session("s", tmp_path / "s.flac", 3.0, seglst_path=tmp_path / "s.json")])
    return path


def test_every_way_between_the_formats_of_words(tmp_path: Path) -> None:
    rooms = {"stm": stm, "ctm": ctm, "seglst": seglst}
    for source, room in rooms.items():
        room.write(tmp_path / source, WORDS)
        for target, other in rooms.items():
            convert(tmp_path / source, tmp_path / "out", target)
            assert other.read(tmp_path / "out") == WORDS
        convert(tmp_path / source, tmp_path / "out.rttm", "rttm")
        assert rttm.read(tmp_path / "out.rttm") == TIMES


def test_rttm_has_no_text_to_give(tmp_path: Path) -> None:
    rttm.write(tmp_path / "a.rttm", TIMES)
    convert(tmp_path / "a.rttm", tmp_path / "a.stm", "stm")
    assert stm.read(tmp_path / "a.stm") == TIMES
    with pytest.raises(
        ValueError,
        match=r"a\.rttm: cannot be written as ctm: that needs one word per segment; `sortk timestamps` splits",
    ):
        convert(tmp_path / "a.rttm", tmp_path / "a.ctm", "ctm")
    for to in ("manifest", "kaldi"):
        with pytest.raises(ValueError, match=f"{to} needs audio, and none is known for session 's'"):
            convert(tmp_path / "a.rttm", tmp_path / "out", to)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", ["kaldi", "lhotse"])
def test_tables_of_the_users_own_stay(corpus: Path, tmp_path: Path, to: str) -> None:
    own = tmp_path / "own" / ("text" if to == "kaldi" else "recordings.jsonl.gz")
    own.parent.mkdir()
    own.write_text("by hand")
    with pytest.raises(ValueError, match=rf"{own.name} exists, and was not made by sortk"):
        convert(corpus, own.parent, to)
    assert own.read_text() == "by hand" and [*own.parent.iterdir()] == [own]
    convert(corpus, own.parent, to, force=True)
    convert(corpus, own.parent, to)  # what sortk has made may be made again
    assert own.read_bytes() != b"by hand"


def test_a_file_is_not_converted_into_itself(tmp_path: Path) -> None:
    rttm.write(tmp_path / "a.rttm", TIMES)
    (tmp_path / "link").symlink_to("a.rttm")
    for target in ("a.rttm", "link"):
        with pytest.raises(ValueError, match="is the input .*, which would be replaced"):
            convert(tmp_path / "a.rttm", tmp_path / target, "stm")
    assert rttm.read(tmp_path / "a.rttm") == TIMES
    convert(tmp_path / "a.rttm", tmp_path / "a.rttm", "stm", force=True)
    assert stm.read(tmp_path / "a.rttm") == TIMES


def test_folders_of_files(tmp_path: Path) -> None:
    rttm.write(tmp_path / "in" / "a.rttm", TIMES[:1])
    rttm.write(tmp_path / "in" / "b.rttm", TIMES[1:])
    convert(tmp_path / "in", tmp_path / "all.rttm", "rttm")
    assert rttm.read(tmp_path / "all.rttm") == TIMES


def test_a_manifest_is_followed(tmp_path: Path, corpus: Path) -> None:
    convert(corpus, tmp_path / "out.stm", "stm")
    assert stm.read(tmp_path / "out.stm") == WORDS


def test_a_manifest_moves(tmp_path: Path, corpus: Path) -> None:
    convert(corpus, tmp_path / "deeper" / "out.jsonl", "manifest")
    assert manifest.read(tmp_path / "deeper" / "out.jsonl") == manifest.read(corpus)
    assert json.loads((tmp_path / "deeper" / "out.jsonl").read_text())["audio_filepath"] == "../s.flac"


def test_a_manifest_without_segments(tmp_path: Path) -> None:
    manifest.write(tmp_path / "in.jsonl", [Session("s", tmp_path / "s.flac")])
    with pytest.raises(ValueError, match=r"in\.jsonl: cannot be written as stm: it names audio, but no segments"):
        convert(tmp_path / "in.jsonl", tmp_path / "out.stm", "stm")


def test_to_kaldi_and_back(tmp_path: Path, corpus: Path) -> None:
    convert(corpus, tmp_path / "kaldi", "kaldi")
    data = kaldi.read(tmp_path / "kaldi")
    assert (data.segments, data.durations) == (WORDS, {"s": 3.0})
    convert(tmp_path / "kaldi", tmp_path / "back" / "out.jsonl", "manifest")
    folder = tmp_path / "back"
    assert manifest.read(folder / "out.jsonl") == [
        Session(
            "s",
            tmp_path / "s.flac",
            3.0,
            rttm_path=folder / "rttm" / "s.rttm",
            seglst_path=folder / "seglst" / "s.json",
        )
    ]
    assert rttm.read(folder / "rttm" / "s.rttm") == TIMES
    assert seglst.read(folder / "seglst" / "s.json") == WORDS


@pytest.mark.parametrize("name", ["rttm/s.rttm", "seglst/s.json"])
def test_annotations_beside_a_manifest_are_not_replaced(tmp_path: Path, corpus: Path, name: str) -> None:
    convert(corpus, tmp_path / "kaldi", "kaldi")
    target, by_hand = tmp_path / "back" / "out.jsonl", tmp_path / "back" / name
    by_hand.parent.mkdir(parents=True)
    by_hand.write_text("by hand", encoding="utf-8")
    with pytest.raises(ValueError, match=rf"{name}: exists and would be replaced for .*out.jsonl; .*--force"):
        convert(tmp_path / "kaldi", target, "manifest")
    assert [path for path in (tmp_path / "back").rglob("*") if path.is_file()] == [by_hand]
    assert by_hand.read_text(encoding="utf-8") == "by hand"
    convert(tmp_path / "kaldi", target, "manifest", force=True)
    convert(tmp_path / "kaldi", target, "manifest")  # the same again
    assert by_hand.read_text(encoding="utf-8") != "by hand"


def test_a_name_that_cannot_be_a_file(tmp_path: Path) -> None:
    kaldi.write(tmp_path / "kaldi", {"a/b": Path("/x.wav")}, [Segment("a/b", "x", 0, 1)])
    with pytest.raises(ValueError, match="session id 'a/b' cannot be the name of a file"):
        convert(tmp_path / "kaldi", tmp_path / "out.jsonl", "manifest")


def test_what_cannot_be_converted(tmp_path: Path) -> None:
    (tmp_path / "a.uem").write_text("s 1 0 1\n")
    with pytest.raises(ValueError, match=r"a\.uem: uem cannot be converted, only rttm, stm"):
        convert(tmp_path / "a.uem", tmp_path / "out", "rttm")
    with pytest.raises(ValueError, match="cannot convert to 'mp3', only to rttm, stm"):
        convert(tmp_path / "a.uem", tmp_path / "out", "mp3")
    (tmp_path / "a.rttm").write_text("SPEAKER s 1 0 0 <NA> <NA> a <NA> <NA>\n")
    with pytest.raises(FormatError, match=r"a\.rttm, line 1: duration is zero"):
        convert(tmp_path / "a.rttm", tmp_path / "out", "stm")
    seglst.write(tmp_path / "a.json", [Segment("s", "Ann Smith", 0, 1)])
    with pytest.raises(ValueError, match="speaker 'Ann Smith' is empty or holds white space"):
        convert(tmp_path / "a.json", tmp_path / "out", "rttm")
