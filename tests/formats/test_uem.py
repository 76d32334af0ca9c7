"""UEM."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortk.formats import uem
from sortk.formats.files import FormatError
from sortk.records import Region

from .strategies import regions


def parse(*lines: str) -> list[Region]:
    return list(uem.parse(enumerate(lines, start=1), Path("a.uem")))


def test_lines_and_comments() -> None:
    assert parse(";; comment", "s 1 0 10.5", "", "; dscore's comment", "s\t2  1 2") == [
        Region("s", 0, 10.5),
        Region("s", 1, 2, "2"),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("s 1 0", "a UEM line has 4 fields, not 3"),
        ("s 1 0 1 x", "a UEM line has 4 fields, not 5"),
        ("s 1 x 1", "start is not a number: 'x'"),
        ("s 1 0 -1", "end is negative: '-1'"),
        ("s 1 2 1", "ends at 1.0 before it starts at 2.0"),
        ("s 1 1 1", "duration is zero: 1.0 to 1.0"),
    ],
)
def test_errors_name_the_line_and_the_value(line: str, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse("s 1 0 1", line)
    assert str(caught.value) == f"a.uem, line 2: {message}"


@pytest.mark.parametrize("region", [Region("", 0, 1), Region(";s", 0, 1), Region("s", 1, 0), Region("s", 0, 1, "a b")])
def test_what_cannot_be_written(tmp_path: Path, region: Region) -> None:
    with pytest.raises(ValueError):
        uem.write(tmp_path / "a.uem", [region])
    assert list(tmp_path.iterdir()) == []


@given(items=st.lists(regions()))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, items: list[Region]) -> None:
    path = tmp_path_factory.getbasetemp() / "round.uem"
    uem.write(path, items)
    assert uem.read(path) == sorted(items, key=lambda item: (item.session_id, item.start, item.end))
