"""SegLST."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortk.formats import seglst
from sortk.formats.files import FormatError
from sortk.records import Segment

from .strategies import segments, texts

GOOD: dict[str, Any] = {"session_id": "s", "speaker": "a", "start_time": 0.5, "end_time": 1.5, "words": "hello"}


def parse(text: str) -> list[Segment]:
    return list(seglst.parse(enumerate(text.split("\n"), start=1), Path("a.json")))


def entry(**changes: Any) -> str:
    return json.dumps([GOOD, GOOD | changes])


def test_entries_with_numbers_and_numeric_strings() -> None:
    expected = Segment("s", "a", 0.5, 1.5, "hello")
    assert parse(entry(start_time="0.5", end_time="1.50", custom=[1])) == [expected, expected]


def test_words_and_channel_are_optional_and_names_may_hold_blanks() -> None:
    text = json.dumps([{"session_id": "s 1", "speaker": "a b", "start_time": 0, "end_time": 1, "channel": 2}])
    assert parse(text) == [Segment("s 1", "a b", 0, 1, "", "2")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speaker": None}, "speaker is missing"),
        ({"speaker": ""}, "speaker is empty"),
        ({"session_id": 3}, "session_id is not text: 3"),
        ({"words": ["a"]}, "words is not text: ['a']"),
        ({"start_time": None}, "start_time is missing"),
        ({"start_time": True}, "start_time is not a number: True"),
        ({"start_time": "x"}, "start_time is not a number: 'x'"),
        ({"start_time": -1}, "start_time is negative: '-1'"),
        ({"end_time": "inf"}, "end_time is not finite: 'inf'"),
        ({"end_time": 10**400}, "end_time is not finite"),
        ({"end_time": 0.25}, "ends at 0.25 before it starts at 0.5"),
        ({"end_time": 0.5}, "duration is zero: 0.5 to 0.5"),
        ({"channel": 1.5}, "channel is neither text nor a number: 1.5"),
    ],
)
def test_errors_name_the_entry_and_the_value(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse(entry(**changes))
    assert str(caught.value).startswith(f"a.json: entry 2: {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[\n{"session_id": "s",\n"words"}]', "a.json, line 3: broken JSON (Expecting ':' delimiter"),
        ("{}", "a.json: SegLST must be a JSON list, got {}"),
        ("[1]", "a.json: entry 1: not a JSON object: 1"),
        ("", "a.json, line 1: broken JSON (Expecting value)"),
        ("[" * 100_000, "a.json: JSON is nested too deeply"),
        ("[" + "1" * 10_000 + "]", "a.json: broken JSON (Exceeds the limit"),
        (entry(words="\ud800"), "a.json: half of a surrogate pair in a JSON string"),
    ],
)
def test_broken_json(text: str, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse(text)
    assert str(caught.value).startswith(message)


def test_zero_duration_can_be_kept() -> None:
    text = json.dumps([GOOD | {"end_time": 0.5}])
    (segment,) = seglst.parse([(1, text)], Path("a"), "keep")
    assert segment.end == 0.5


def test_written_file_has_an_entry_per_line_and_is_json(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    seglst.write(path, [Segment("s", "ä", 0.1 + 0.2, 1, "x\ny"), Segment("s", "b", 0, 2, channel="2")])
    assert path.read_text(encoding="utf-8").split("\n") == [
        "[",
        '{"session_id": "s", "speaker": "ä", "start_time": 0.3, "end_time": 1.0, "words": "x\\ny"},',
        '{"session_id": "s", "speaker": "b", "start_time": 0.0, "end_time": 2.0, "words": "", "channel": "2"}',
        "]",
        "",
    ]
    assert len(json.loads(path.read_text(encoding="utf-8"))) == 2


def test_no_segments(tmp_path: Path) -> None:
    seglst.write(tmp_path / "a.json", [])
    assert seglst.read(tmp_path / "a.json") == []


@pytest.mark.parametrize(
    "segment",
    [Segment("s", "", 0, 1), Segment("s", "a", 1, 1), Segment("s", "a", 0, 1, "\ud800"), Segment("", "a", 0, 1)],
)
def test_what_cannot_be_written(tmp_path: Path, segment: Segment) -> None:
    with pytest.raises(ValueError):
        seglst.write(tmp_path / "a.json", [segment])
    assert list(tmp_path.iterdir()) == []


@given(items=st.lists(segments(text=texts | st.text(st.characters(codec="utf-8")))))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, items: list[Segment]) -> None:
    path = tmp_path_factory.getbasetemp() / "round.json"
    seglst.write(path, items)
    assert seglst.read(path) == items
