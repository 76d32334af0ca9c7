"""Kaldi data directories."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortk.formats import audio, kaldi
from sortk.formats.files import FormatError
from sortk.records import Segment

from .strategies import names, segments

GOOD = {
    "wav.scp": "r1 /corpus/r1.flac\nr2 sub/my file.wav\n",
    "segments": "a-u1 r1 0.5 1.5\nb-u2 r2 0 2.25\n",
    "utt2spk": "a-u1 a\nb-u2 b\n",
    "text": "a-u1 hello  there\nb-u2\n",
    "reco2dur": "r1 10\nr2 20.5\n",
}


def folder_of(path: Path, tables: dict[str, str]) -> Path:
    for name, text in tables.items():
        (path / name).write_text(text)
    return path


def test_all_tables(tmp_path: Path) -> None:
    data = kaldi.read(folder_of(tmp_path, GOOD))
    assert data.recordings == {"r1": Path("/corpus/r1.flac"), "r2": tmp_path / "sub" / "my file.wav"}
    assert data.segments == [Segment("r1", "a", 0.5, 1.5, "hello  there"), Segment("r2", "b", 0, 2.25)]
    assert data.durations == {"r1": 10, "r2": 20.5}


def test_required_tables_only(tmp_path: Path) -> None:
    audio.write_flac(tmp_path / "r2.flac", np.ones(8000, dtype=np.int16))
    tables = {"wav.scp": "r1 x.wav\nr2 r2.flac\n", "utt2spk": "r1 a\nr2 b\n", "reco2dur": "r1 3\n"}
    data = kaldi.read(folder_of(tmp_path, tables))
    assert data.segments == [Segment("r1", "a", 0, 3), Segment("r2", "b", 0, 0.5)]


def test_paths_from_the_folder_where_kaldi_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "r1.wav").touch()
    monkeypatch.chdir(tmp_path)
    tables = {"wav.scp": "r1 r1.wav\n", "utt2spk": "", "segments": ""}
    assert kaldi.read(folder_of(tmp_path / "data", tables)).recordings == {"r1": Path("r1.wav")}


@pytest.mark.parametrize(
    ("table", "text", "message"),
    [
        ("wav.scp", "r1 sph2pipe -f wav r1.sph |\nr2 x\n", "line 1: a pipe, 'sph2pipe -f wav r1.sph |': sortk runs no"),
        ("wav.scp", "r1\nr2 x\n", "line 1: names no audio file: ''"),
        ("wav.scp", "r1 x\nr1 y\nr2 z\n", "line 2: 'r1' is in line 1 already"),
        ("segments", "a-u1 r1 0.5 1.5\n", "utt2spk, line 2: 'b-u2' is not in segments"),
        ("segments", GOOD["segments"] + "c-u3 r1 3 4\n", "segments, line 3: 'c-u3' is not in utt2spk"),
        ("segments", "a-u1 r1 0.5 1.5\nb-u2 r3 0 2\n", "segments, line 2: recording 'r3' is not in wav.scp"),
        ("segments", "a-u1 r1 0.5 1.5\nb-u2 r2 2\n", "line 2: a line of segments must have 4 or 5 fields, got 3"),
        ("segments", "a-u1 r1 0.5 x\nb-u2 r2 0 2\n", "segments, line 1: end is not a number: 'x'"),
        ("segments", "a-u1 r1 2 1\nb-u2 r2 0 2\n", "segments, line 1: ends at 1.0 before it starts at 2.0"),
        ("segments", "a-u1 r1 0 1\na-u1 r1 0 2\n", "segments, line 2: 'a-u1' is in line 1 already"),
        ("utt2spk", "a-u1 a\nb-u2 b c\n", "utt2spk, line 2: an utterance must have one speaker, got 'b c'"),
        ("utt2spk", "a-u1 a\nb-u2\n", "utt2spk, line 2: an utterance must have one speaker, got ''"),
        ("utt2spk", "a-u1 a\n", "segments, line 2: 'b-u2' is not in utt2spk"),
        ("text", "a-u1 x\nc-u3 y\n", "text, line 2: 'c-u3' is not in segments"),
        ("text", "a-u1 x\n", "segments, line 2: 'b-u2' is not in text"),
        ("reco2dur", "r1 10\nr3 10\n", "reco2dur, line 2: 'r3' is not in wav.scp"),
        ("reco2dur", "r1 0\n", "reco2dur, line 1: duration is zero"),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, table: str, text: str, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        kaldi.read(folder_of(tmp_path, GOOD | {table: text}))
    assert message in str(caught.value)


@pytest.mark.parametrize("table", ["wav.scp", "utt2spk"])
def test_missing_tables(tmp_path: Path, table: str) -> None:
    folder_of(tmp_path, GOOD)
    (tmp_path / table).unlink()
    with pytest.raises(FileNotFoundError, match=rf"{table}: no such file"):
        kaldi.read(tmp_path)


def test_written_tables(tmp_path: Path) -> None:
    spoken = [
        Segment("r1", "b", 1.234, 2.5, "second"),
        Segment("r1", "a", 0.5, 1.5),
        Segment("r1", "b", 1.2341, 2.5001, "same centiseconds"),
    ]
    kaldi.write(tmp_path, {"r1": Path("/corpus/r1.flac")}, spoken, {"r1": 10.0})
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "wav.scp": "r1 /corpus/r1.flac\n",
        "segments": "a-r1-0000050-0000150 r1 0.500 1.500\n"
        "b-r1-0000123-0000250 r1 1.234 2.500\n"
        "b-r1-0000123-0000250-2 r1 1.2341 2.5001\n",
        "utt2spk": "a-r1-0000050-0000150 a\nb-r1-0000123-0000250 b\nb-r1-0000123-0000250-2 b\n",
        "spk2utt": "a a-r1-0000050-0000150\nb b-r1-0000123-0000250 b-r1-0000123-0000250-2\n",
        "text": "a-r1-0000050-0000150\nb-r1-0000123-0000250 second\nb-r1-0000123-0000250-2 same centiseconds\n",
        "reco2dur": "r1 10.000\n",
    }


def test_tables_of_an_earlier_conversion_do_not_stay(tmp_path: Path) -> None:
    kaldi.write(tmp_path, {"r": Path("/r.wav")}, [Segment("r", "a", 0, 1, "text")], {"r": 1.0})
    kaldi.write(tmp_path, {"q": Path("/q.wav")}, [Segment("q", "a", 0, 1)])
    assert not (tmp_path / "text").exists()
    assert not (tmp_path / "reco2dur").exists()


@pytest.mark.parametrize(
    ("recordings", "segment", "message"),
    [
        ({"r": Path("/r.wav")}, Segment("q", "a", 0, 1), "no audio is known for session 'q'"),
        ({"r": Path("/r.wav|")}, Segment("r", "a", 0, 1), r"r: wav.scp cannot hold the path '/r.wav|'"),
        ({"r": Path("/r\n.wav")}, Segment("r", "a", 0, 1), "wav.scp cannot hold the path"),
        ({"r": Path("/r.wav")}, Segment("r", "a b", 0, 1), "speaker 'a b' is empty or holds white space"),
    ],
)
def test_what_cannot_be_written(tmp_path: Path, recordings: dict[str, Path], segment: Segment, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        kaldi.write(tmp_path, recordings, [segment])
    assert message in str(caught.value)


@given(
    recordings=st.dictionaries(
        st.sampled_from(["r1", "r2", "ü"]), names.filter(lambda n: not n.endswith("|")), min_size=1
    ),
    data=st.data(),
)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, recordings: dict[str, str], data: st.DataObject) -> None:
    folder = tmp_path_factory.getbasetemp() / "kaldi"
    files = {key: Path("/corpus") / name.replace("/", "_") / "a.wav" for key, name in recordings.items()}
    spoken = data.draw(st.lists(segments(session_id=st.sampled_from(sorted(files)), channel=st.just("1"))))
    durations = dict.fromkeys(files, 1.5)
    kaldi.write(folder, files, spoken, durations)
    back = kaldi.read(folder)
    assert (back.recordings, back.durations) == (files, durations)
    assert sorted(back.segments, key=repr) == sorted(spoken, key=repr)
