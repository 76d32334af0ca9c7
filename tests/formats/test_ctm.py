"""CTM."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortk.formats import ctm
from sortk.formats.files import FormatError
from sortk.records import Segment

from .strategies import segments, words


def parse(*lines: str) -> list[Segment]:
    return list(ctm.parse(enumerate(lines, start=1), Path("a.ctm")))


@pytest.mark.parametrize(
    "line",
    ["s alice 0.5 0.25 hello", "s alice 0.5 0.25 hello 0.98", "s alice .5 .25 hello NA", " s\talice .5 .25 hello"],
)
def test_the_second_column_is_the_speaker(line: str) -> None:
    assert parse(";; comment", line) == [Segment("s", "alice", 0.5, 0.75, "hello")]


def test_the_long_form_names_speaker_and_channel() -> None:
    assert parse("s 2 0.5 0.25 hello NA lex alice") == [Segment("s", "alice", 0.5, 0.75, "hello", "2")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("s a 0 1", "a CTM line has 5, 6 or 8 fields, not 4"),
        ("s a 0 1 hello there you", "a CTM line has 5, 6 or 8 fields, not 7"),
        ("s a 0 1 hello there", "confidence is not a number: 'there'"),
        ("s a * 1 hello", "start is not a number: '*'"),
        ("s a 0 -1 hello", "duration is negative: '-1'"),
        ("s a 1 0 hello", "duration is zero: 1.0 to 1.0"),
    ],
)
def test_errors_name_the_line_and_the_value(line: str, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse("s a 0 1 hello", line)
    assert str(caught.value) == f"a.ctm, line 2: {message}"


def test_zero_duration_can_be_kept() -> None:
    assert list(ctm.parse([(1, "s a 1 0 x")], Path("a"), "keep")) == [Segment("s", "a", 1, 1, "x")]


@pytest.mark.parametrize("text", ["", "two words"])
def test_only_words_are_written(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match="CTM holds one word per line, not"):
        ctm.write(tmp_path / "a.ctm", [Segment("s", "a", 0, 1, text)])


@given(items=st.lists(segments(text=words, channel=st.just("1"))))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, items: list[Segment]) -> None:
    path = tmp_path_factory.getbasetemp() / "round.ctm"
    ctm.write(path, items)
    assert ctm.read(path) == sorted(items, key=lambda item: (item.session_id, item.start, item.end, item.speaker))
