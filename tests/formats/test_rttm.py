"""RTTM."""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortk.formats import rttm
from sortk.formats.files import FormatError
from sortk.records import Segment

from .strategies import segments

GOOD = "SPEAKER s 1 0.5 1.25 <NA> <NA> alice <NA> <NA>"


def parse(*lines: str) -> list[Segment]:
    return list(rttm.parse(enumerate(lines, start=1), Path("a.rttm")))


def test_a_line() -> None:
    assert parse(GOOD) == [Segment("s", "alice", 0.5, 1.75)]


@pytest.mark.parametrize(
    "line",
    [
        "SPEAKER s 1 0.5 1.25 <NA> <NA> alice",
        "SPEAKER s 1 0.5 1.25 <NA> <NA> alice <NA>",
        "  SPEAKER\ts   1 .5 125e-2 <NA> <NA>\t alice <NA> <NA>  ",
    ],
)
def test_shorter_lines_and_other_blanks(line: str) -> None:
    assert parse(line) == parse(GOOD)


def test_comments_empty_lines_and_other_types_are_skipped() -> None:
    others = [f"{name} s 1 0 1 <NA> <NA> alice <NA> <NA>" for name in sorted(rttm.OTHER_TYPES)]
    assert len(others) == 13
    assert parse("", ";; a comment", "   ", *others, "SPKR-INFO s 1 <NA> <NA> <NA> unknown alice <NA>", GOOD) == parse(
        GOOD
    )


def test_order_of_the_file_is_kept_and_overlap_is_fine() -> None:
    later = GOOD.replace("0.5", "9.5")
    assert parse(later, GOOD) == parse(later) + parse(GOOD)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("SPEAKER s 1 0.5 1.25 <NA> <NA>", "a SPEAKER line must have 8 to 10 fields, got 7"),
        (GOOD + " more", "a SPEAKER line must have 8 to 10 fields, got 11"),
        ("SPAEKER s 1 0.5 1.25 <NA> <NA> alice <NA> <NA>", "unknown RTTM type 'SPAEKER'"),
        (GOOD.replace("0.5", "x"), "start is not a number: 'x'"),
        (GOOD.replace("0.5", "-0.5"), "start is negative: '-0.5'"),
        (GOOD.replace("0.5", "nan"), "start is not finite: 'nan'"),
        (GOOD.replace("1.25", "inf"), "duration is not finite: 'inf'"),
        (GOOD.replace("1.25", "-1"), "duration is negative: '-1'"),
        (GOOD.replace("1.25", "0"), "duration is zero: 0.5 to 0.5"),
        (GOOD.replace("1.25", "1e-9"), "duration is zero: 0.5 to 0.5"),
        (GOOD.replace("1.25", "1e300"), "duration is too large: '1e300'"),
    ],
)
def test_errors_name_the_line_and_the_value(line: str, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse(GOOD, line)
    assert str(caught.value) == f"a.rttm, line 2: {message}"


def test_zero_duration_can_be_kept() -> None:
    zero = GOOD.replace("1.25", "0")
    assert list(rttm.parse([(1, zero)], Path("a"), zero_duration="keep")) == [Segment("s", "alice", 0.5, 0.5)]
    with pytest.raises(FormatError, match="duration is negative"):
        list(rttm.parse([(1, GOOD.replace("1.25", "-1"))], Path("a"), zero_duration="keep"))


def test_sums_come_back_to_the_decimal_grid() -> None:
    assert 0.1 + 0.2 != 0.3
    assert parse("SPEAKER s 1 0.1 0.2 <NA> <NA> a <NA> <NA>")[0].end == 0.3


def test_streaming_does_not_wait_for_the_end() -> None:
    stream = rttm.parse(iter([(1, GOOD), (2, "broken")]), Path("a"))
    assert next(stream).speaker == "alice"
    with pytest.raises(FormatError, match="line 2"):
        next(stream)


def test_written_file_is_sorted(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.rttm"
    rttm.write(
        path, [Segment("t", "b", 0, 1), Segment("s", "b", 2, 3), Segment("s", "b", 1, 3), Segment("s", "a", 1, 3)]
    )
    assert path.read_text() == (
        "SPEAKER s 1 1.000 2.000 <NA> <NA> a <NA> <NA>\n"
        "SPEAKER s 1 1.000 2.000 <NA> <NA> b <NA> <NA>\n"
        "SPEAKER s 1 2.000 1.000 <NA> <NA> b <NA> <NA>\n"
        "SPEAKER t 1 0.000 1.000 <NA> <NA> b <NA> <NA>\n"
    )


@pytest.mark.parametrize(
    ("segment", "message"),
    [
        (Segment("", "a", 0, 1), "session id '' is empty or holds white space"),
        (Segment("s", "a b", 0, 1), "speaker 'a b' is empty or holds white space"),
        (Segment("s", "a\u3000", 0, 1), "speaker 'a\\u3000' is empty or holds white space"),
        (Segment("s", "a", 0, 1, channel=""), "channel '' is empty or holds white space"),
        (Segment("s", "a", -1, 1), "s: -1 to 1 starts before 0"),
        (Segment("s", "a", 0, math.inf), "s: 0 to inf is not finite"),
        (Segment("s", "a", math.nan, 1), "s: nan to 1 is not finite"),
        (Segment("s", "a", 1, 1), "s: 1 to 1 has no duration"),
        (Segment("s", "a", 1, 1 + 1e-9), "s: 1 to 1.000000001 has no duration"),
        (Segment("s", "a", 2, 1), "s: 2 to 1 has no duration"),
        (Segment("s", "a", 0, 1e12), "s: 0 to 1000000000000.0 is too long for a recording"),
    ],
)
def test_what_cannot_be_written(tmp_path: Path, segment: Segment, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        rttm.write(tmp_path / "a.rttm", [Segment("s", "a", 0, 1), segment])
    assert str(caught.value) == message
    assert list(tmp_path.iterdir()) == []


@given(items=st.lists(segments(text=st.just(""))))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, items: list[Segment]) -> None:
    path = tmp_path_factory.getbasetemp() / "round.rttm"
    rttm.write(path, items)
    assert rttm.read(path) == sorted(items, key=lambda item: (item.session_id, item.start, item.end, item.speaker))


def test_a_line_without_an_end_is_not_split_into_all_its_fields(tmp_path: Path) -> None:
    path = tmp_path / "a.rttm"
    path.write_text("SPEAKER " + "a " * 10_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="a SPEAKER line must have 8 to 10 fields, got 11"):
            rttm.read(path)
        assert tracemalloc.get_traced_memory()[1] < 120e6  # six times the line
    finally:
        tracemalloc.stop()
