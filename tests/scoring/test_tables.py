from __future__ import annotations

import csv
import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortk.scoring.tables import format_table, percent

HEADER = ["session", "words", "assignment"]
ROWS = [["a", "10", "x"], ["long|name", "-", "y, z"]]


def test_a_rate_is_written_in_percent() -> None:
    assert percent(0.12345) == "12.35"
    assert percent(1.5) == "150.00"
    assert percent(math.inf) == "inf"


def test_text_aligns_numbers_to_the_right() -> None:
    assert format_table(HEADER, ROWS).split("\n") == [
        "session    words  assignment",
        "a             10  x",
        "long|name      -  y, z",
    ]


def test_markdown_escapes_what_ends_a_cell() -> None:
    assert format_table(HEADER, ROWS, "md").split("\n") == [
        "| session | words | assignment |",
        "| --- | ---: | --- |",
        "| a | 10 | x |",
        "| long\\|name | - | y, z |",
    ]


def test_a_table_without_rows_has_its_header() -> None:
    assert format_table(HEADER, [], "text") == "session  words  assignment"


@given(st.lists(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0\r")), min_size=3, max_size=3)))
def test_csv_can_be_read_back(rows: list[list[str]]) -> None:
    text = format_table(HEADER, rows, "csv")
    assert list(csv.reader(io.StringIO(text + "\n", newline=""))) == [HEADER, *rows]


def test_a_wrong_row_or_format_is_refused() -> None:
    with pytest.raises(ValueError, match="not as many cells"):
        format_table(HEADER, [["a"]])
    with pytest.raises(ValueError, match="unknown format 'html'"):
        format_table(HEADER, ROWS, "html")  # type: ignore[arg-type]
