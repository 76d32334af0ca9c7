"""Manifests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortk.formats import manifest
from sortk.formats.files import FormatError, read_lines
from sortk.records import Session

from .strategies import names, paths, sessions

HERE = Path("/data/train.jsonl")
GOOD: dict[str, Any] = {"audio_filepath": "a.wav", "duration": 9}


def parse(*lines: str) -> list[Session]:
    return [session for _, session in manifest.parse(enumerate(lines, start=1), HERE)]


def test_all_keys() -> None:
    line = {
        "session_id": "s",
        "audio_filepath": "audio/a.flac",
        "offset": 3,
        "duration": 90.5,
        "text": "hello",
        "num_speakers": 2,
        "rttm_filepath": "../rttm/a.rttm",
        "uem_filepath": "/else/a.uem",
        "ctm_filepath": "a.ctm",
        "seglst_filepath": "a.json",
        "label": "infer",
        "nested": {"a": [1]},
    }
    assert parse(json.dumps(line)) == [
        Session(
            session_id="s",
            audio_path=Path("/data/audio/a.flac"),
            duration=90.5,
            offset=3.0,
            text="hello",
            num_speakers=2,
            rttm_path=Path("/rttm/a.rttm"),
            uem_path=Path("/else/a.uem"),
            ctm_path=Path("/data/a.ctm"),
            seglst_path=Path("/data/a.json"),
            extra={"label": "infer", "nested": {"a": [1]}},
        )
    ]


def test_only_the_audio_is_required() -> None:
    assert parse('{"audio_filepath": "a.wav"}', "") == [Session("a", Path("/data/a.wav"))]


@pytest.mark.parametrize("absent", [None, "", "-"])
def test_how_nemo_writes_that_there_is_no_file(absent: str | None) -> None:
    nemo = {"offset": None, "duration": None, "text": "-", "num_speakers": None, "label": "infer"}
    files = dict.fromkeys(["rttm_filepath", "uem_filepath", "ctm_filepath"], absent)
    (session,) = parse(json.dumps({"audio_filepath": "a.wav", **nemo, **files}))
    assert session == Session("a", Path("/data/a.wav"), extra={"label": "infer"})


def test_an_empty_text_is_a_transcript() -> None:
    assert parse(json.dumps(GOOD | {"text": ""}))[0].text == ""


@pytest.mark.parametrize(
    ("audio", "offset", "name"),
    [("a.b.wav", 0, "a.b"), ("a.wav", 1.2345, "a-1234"), ("my talk.wav", 90, "my_talk-90000")],
)
def test_names_from_the_audio(audio: str, offset: float, name: str) -> None:
    assert parse(json.dumps({"audio_filepath": audio, "offset": offset}))[0].session_id == name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"audio_filepath": None}, "audio_filepath is missing"),
        ({"audio_filepath": ""}, "audio_filepath is missing"),
        ({"audio_filepath": 7}, "audio_filepath is not text: 7"),
        ({"audio_filepath": "a\0.wav"}, "audio_filepath cannot be a path: 'a\\x00.wav'"),
        ({"audio_filepath": "/"}, "audio_filepath does not name a file: '/'"),
        ({"duration": float("nan")}, "duration is not finite: 'nan'"),
        ({"duration": -1}, "duration is negative: '-1'"),
        ({"duration": 0}, "duration is zero"),
        ({"duration": True}, "duration is not a number: True"),
        ({"duration": "9"}, "duration is not a number: '9'"),
        ({"duration": 10**400}, "duration is not finite: '1000"),
        ({"offset": -0.5}, "offset is negative: '-0.5'"),
        ({"offset": [0]}, "offset is not a number: [0]"),
        ({"text": 3}, "text is not text: 3"),
        ({"num_speakers": 2.5}, "num_speakers is not a whole number: 2.5"),
        ({"num_speakers": True}, "num_speakers is not a whole number: True"),
        ({"num_speakers": -1}, "num_speakers is not a whole number: -1"),
        ({"session_id": "a b"}, "session_id is empty or holds white space: 'a b'"),
        ({"session_id": 4}, "session_id is not text: 4"),
        ({"label": float("inf")}, "cannot be written as JSON"),
    ],
)
def test_errors_name_line_key_and_value(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse(json.dumps(GOOD | {"session_id": "first"}), json.dumps(GOOD | changes))
    assert str(caught.value).startswith(f"/data/train.jsonl, line 2: {message}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[]", "not a JSON object: []"),
        ("{", "broken JSON"),
        ('{"audio_filepath": "\\ud800.wav"}', "half of a surrogate pair"),
        ('{"audio_filepath": "a.wav", "x": ' + "[" * 100_000, "JSON is nested too deeply"),
    ],
)
def test_lines_that_are_no_objects(line: str, message: str) -> None:
    with pytest.raises(FormatError, match=r"line 2: ") as caught:
        parse("", line)
    assert message in str(caught.value)


DERIVED = "; it comes from the name of the audio, so give every line its own session_id"


@pytest.mark.parametrize(("second", "advice"), [({"session_id": "a"}, ""), ({"audio_filepath": "b/a.flac"}, DERIVED)])
def test_a_session_that_appears_twice_names_both_lines(second: dict[str, Any], advice: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse(json.dumps(GOOD), "", json.dumps(GOOD | second))
    assert str(caught.value) == f"/data/train.jsonl, line 3: session_id 'a' stands in line 1 already{advice}"


def test_files_are_only_looked_at_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    (tmp_path / "a.wav").touch()
    path.write_text('{"audio_filepath": "a.wav"}\n\n{"audio_filepath": "a.wav", "offset": 1, "rttm_filepath": "x"}\n')
    assert len(manifest.read(path)) == 2
    with pytest.raises(FormatError) as caught:
        manifest.check_files(manifest.parse(read_lines(path), path), path)
    assert str(caught.value) == f"{path}, line 3: rttm_filepath names a file that does not exist: {tmp_path / 'x'}"


def test_paths_are_written_relative(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    manifest.write(path, [Session("s", tmp_path / "audio" / "s.flac", 9.0, rttm_path=tmp_path.parent / "s.rttm")])
    assert json.loads(path.read_text()) == {
        "session_id": "s",
        "audio_filepath": "audio/s.flac",
        "offset": 0.0,
        "duration": 9.0,
        "rttm_filepath": "../s.rttm",
    }


@pytest.mark.parametrize(
    "session",
    [
        Session("a b", Path("a")),
        Session("s", Path("a"), duration=0),
        Session("s", Path("a"), offset=float("nan")),
        Session("s", Path("a"), extra={"duration": 3}),
        Session("s", Path("a"), extra={"x": Path("a")}),
        Session("s", Path("\udcff.wav")),
        Session("first", Path("a")),
    ],
)
def test_what_cannot_be_written(tmp_path: Path, session: Session) -> None:
    with pytest.raises(ValueError):
        manifest.write(tmp_path / "a.jsonl", [Session("first", Path("a")), session])
    assert list(tmp_path.iterdir()) == []


@given(data=st.data(), ids=st.lists(names, unique=True, max_size=3))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, ids: list[str]) -> None:
    folder = tmp_path_factory.getbasetemp()
    items = [data.draw(sessions(paths(folder), name)) for name in ids]
    manifest.write(folder / "round.jsonl", items)
    assert manifest.read(folder / "round.jsonl") == items
