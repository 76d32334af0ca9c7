"""STM."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortk.formats import stm
from sortk.formats.files import FormatError
from sortk.records import Segment

from .strategies import segments, texts_with_labels


def parse(*lines: str) -> list[Segment]:
    return list(stm.parse(enumerate(lines, start=1), Path("a.stm")))


@pytest.mark.parametrize(
    ("rest", "text"),
    [
        ("", ""),
        ("  ", ""),
        (" hello there ", "hello there"),
        (" <o,f0,male> hello", "hello"),
        (" <NA> hello", "hello"),
        (" <> hello", "hello"),
        (" <o,f0,male>", ""),
        (" <spk0> hello", "<spk0> hello"),
        (" <unk>", "<unk>"),
        (" hello <o,f0,male>", "hello <o,f0,male>"),
        (" <o, f0> hello", "<o, f0> hello"),
    ],
)
def test_label_and_text(rest: str, text: str) -> None:
    assert parse(";; comment", f"s 1 alice 0.5 1.5{rest}") == [Segment("s", "alice", 0.5, 1.5, text)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("s 1 alice 0", "an STM line must have at least 5 fields, got 4"),
        ("s 1 alice 0 x hello", "end is not a number: 'x'"),
        ("s 1 alice 2 1 hello", "ends at 1.0 before it starts at 2.0"),
        ("s 1 alice 1 1 hello", "duration is zero: 1.0 to 1.0"),
    ],
)
def test_errors_name_the_line_and_the_value(line: str, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse("s 1 alice 0 1 hello", line)
    assert str(caught.value) == f"a.stm, line 2: {message}"


def test_zero_duration_can_be_kept() -> None:
    assert list(stm.parse([(1, "s 1 a 1 1 x")], Path("a"), "keep")) == [Segment("s", "a", 1, 1, "x")]


def test_a_text_that_starts_like_a_label_gets_one(tmp_path: Path) -> None:
    path = tmp_path / "a.stm"
    stm.write(path, [Segment("s", "a", 0, 1, "<x,y>  z\nw")])
    assert path.read_text() == "s 1 a 0.000 1.000 <NA> <x,y> z w\n"
    assert stm.read(path)[0].text == "<x,y> z w"


def test_a_session_that_would_be_a_comment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="session id ';;s' starts with a character that columns cannot hold"):
        stm.write(tmp_path / "a.stm", [Segment(";;s", "a", 0, 1)])


@given(items=st.lists(segments(text=texts_with_labels)))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, items: list[Segment]) -> None:
    path = tmp_path_factory.getbasetemp() / "round.stm"
    stm.write(path, items)
    assert stm.read(path) == sorted(items, key=lambda item: (item.session_id, item.start, item.end, item.speaker))
