"""Sources."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortk.formats import sources
from sortk.formats.files import FormatError, read_lines
from sortk.records import Source, Word

from .strategies import names, paths
from .strategies import sources as random_sources

HERE = Path("/data/sources.jsonl")
GOOD: dict[str, Any] = {"audio_filepath": "flac/a.flac", "duration": 2, "speaker": "ann", "text": "one two"}


def parse(*lines: str) -> list[Source]:
    return [source for _, source in sources.parse(enumerate(lines, start=1), HERE)]


def test_defaults() -> None:
    source = Source("ann-a-0", Path("/data/flac/a.flac"), 0.0, 2.0, "ann", "one two")
    assert parse(json.dumps(GOOD | {"unknown": 1, "words": None, "gender": None})) == [source]
    assert parse(json.dumps(GOOD | {"offset": 1.5}))[0].utterance_id == "ann-a-1500"


def test_all_keys() -> None:
    more = {"utterance_id": "u", "offset": 4, "words": [["one", 0.1, 0.5], ["two", 0.5, 2.0005]], "text": ""}
    edges = {"speech_start": 0.1, "speech_end": 2.0, "gender": "f", "split": "train"}
    assert parse(json.dumps(GOOD | more | edges)) == [
        Source(
            utterance_id="u",
            audio_path=Path("/data/flac/a.flac"),
            offset=4.0,
            duration=2.0,
            speaker="ann",
            text="",
            words=(Word("one", 0.1, 0.5), Word("two", 0.5, 2.0005)),
            speech_start=0.1,
            speech_end=2.0,
            gender="f",
            split="train",
        )
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"audio_filepath": None}, "audio_filepath is missing"),
        ({"duration": None}, "duration is missing"),
        ({"duration": 0}, "duration is zero"),
        ({"speaker": None}, "speaker is missing"),
        ({"speaker": "a b"}, "speaker is empty or holds white space: 'a b'"),
        ({"text": None}, "text is missing"),
        ({"utterance_id": ""}, "utterance_id is empty or holds white space: ''"),
        ({"offset": "0"}, "offset is not a number: '0'"),
        ({"gender": 1}, "gender is not text: 1"),
        ({"speech_start": 1, "speech_end": 1}, "speech_start 1.0 is not before speech_end 1.0"),
        ({"speech_end": 2.1}, "speech_end 2.1 is after the utterance, which lasts 2.0 s"),
        ({"words": "one"}, "words is not a list: 'one'"),
        ({"words": [["one", 0]]}, "word 1 is not [word, start, end]: ['one', 0]"),
        ({"words": [["one", 0, "1"]]}, "word 1: end is not a number: '1'"),
        ({"words": [["one two", 0, 1]]}, "word 1: text is empty or holds white space: 'one two'"),
        ({"words": [["one", 1, 1]]}, "word 1: duration is zero: 1.0 to 1.0"),
        ({"words": [["one", 1, 0.5]]}, "word 1: ends at 0.5 before it starts at 1.0"),
        ({"words": [["one", -0.1, 0.5]]}, "word 1: start is negative: '-0.1'"),
        ({"words": [["one", 1, 2], ["two", 0.5, 2]]}, "word 2: starts at 0.5, before the word in front of it"),
        ({"words": [["one", 1, 2.1]]}, "word 1: ends at 2.1, after the utterance, which lasts 2.0 s"),
    ],
)
def test_errors_name_line_key_and_value(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse(json.dumps(GOOD | {"utterance_id": "first"}), json.dumps(GOOD | changes))
    assert str(caught.value) == f"/data/sources.jsonl, line 2: {message}"


def test_an_utterance_that_appears_twice_names_both_lines() -> None:
    with pytest.raises(FormatError) as caught:
        parse(json.dumps(GOOD), json.dumps(GOOD | {"audio_filepath": "b/a.wav"}))
    assert str(caught.value) == (
        "/data/sources.jsonl, line 2: utterance_id 'ann-a-0' stands in line 1 already; "
        "it comes from the name of the audio, so give every line its own utterance_id"
    )


def test_missing_audio(tmp_path: Path) -> None:
    path = tmp_path / "sources.jsonl"
    (tmp_path / "flac").mkdir()
    (tmp_path / "flac" / "a.flac").touch()
    lines = [GOOD, GOOD | {"offset": 2}, GOOD | {"audio_filepath": "b.flac"}]
    path.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(FormatError, match=r"line 3: audio_filepath names a file that does not exist: .*b\.flac"):
        sources.check_files(sources.parse(read_lines(path), path), path)


def test_what_cannot_be_written(tmp_path: Path) -> None:
    good = Source("u", tmp_path / "a.flac", 0.0, 1.0, "ann", "")
    with pytest.raises(FormatError, match="utterance_id 'u' stands in line 1 already"):
        sources.write(tmp_path / "a.jsonl", [good, good])
    assert list(tmp_path.iterdir()) == []


@given(data=st.data(), ids=st.lists(names, unique=True, max_size=3))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, ids: list[str]) -> None:
    folder = tmp_path_factory.getbasetemp()
    items = [data.draw(random_sources(paths(folder), name)) for name in ids]
    sources.write(folder / "round_sources.jsonl", items)
    assert sources.read(folder / "round_sources.jsonl") == items
