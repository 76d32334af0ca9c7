from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortk.corpora.miniature import format_textgrid
from sortk.formats.files import FormatError
from sortk.formats.textgrid import Interval, Tier, parse, read

PATH = Path("meeting.TextGrid")

# As Praat's "Save as short text file" writes it, with a tier of points in front.
SHORT = """File type = "ooTextFile"
Object class = "TextGrid"

0
2.5
<exists>
2
"TextTier"
"clicks"
0
2.5
1
1.25
"click"
"IntervalTier"
"alice"
0
2.5
2
0
1e0
""
1
2.5
"she said ""yes"" twice"
"""
ALICE = Tier("alice", (Interval(0.0, 1.0, ""), Interval(1.0, 2.5, 'she said "yes" twice')))


def test_the_short_form_is_read_without_points() -> None:
    assert parse(SHORT, PATH) == [ALICE]


def test_the_long_form_is_the_same() -> None:
    assert parse(format_textgrid({"alice": [(0, 1.0, ""), (1.0, 2.5, 'she said "yes" twice')]}, 2.5), PATH) == [ALICE]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_praats_encodings_are_read(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "a.TextGrid"
    path.write_text(format_textgrid({"甲": [(0, 1, "对")]}, 1), encoding=encoding)
    assert read(path) == [Tier("甲", (Interval(0.0, 1.0, "对"),))]


def test_a_file_without_tiers_has_none() -> None:
    assert parse(SHORT.split("<exists>", maxsplit=1)[0] + "<absent>\n", PATH) == []


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('"TextGrid"', '"Sound"', "line 1: not a TextGrid"),
        ('"IntervalTier"', '"Pitch"', "line 19: a tier is an IntervalTier or a TextTier, not 'Pitch'"),
        ("1e0", "one", "line 22: the xmax should be a number"),
        ("1.25", "-1.25", "line 13: the time of a point cannot be a time: -1.25"),
        ("<exists>\n2\n", "<exists>\n2.5\n", "line 7: the number of tiers must be an integer, got '2.5'"),
        ('"she said ""yes"" twice"', "", "ends before the text"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(old: str, new: str, sentence: str) -> None:
    with pytest.raises(FormatError, match=sentence):
        parse(SHORT.replace(old, new), PATH)


def test_files_that_are_missing_or_no_text_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no\.TextGrid: no such file"):
        read(tmp_path / "no.TextGrid")
    (tmp_path / "a.TextGrid").write_bytes(b"\xff\x00\xff")
    with pytest.raises(FormatError, match="not UTF-8 text"):
        read(tmp_path / "a.TextGrid")


TIMES = st.integers(0, 10**6).map(lambda milliseconds: milliseconds / 1000)
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)
NAMES = TEXTS.filter(lambda name: '"' not in name)
TIERS = st.dictionaries(NAMES, st.lists(st.tuples(TIMES, TIMES, TEXTS)), max_size=4)


@given(TIERS)
def test_any_tiers_are_read_back(tiers: dict[str, list[tuple[float, float, str]]]) -> None:
    found = parse(format_textgrid(tiers, 1000.0), PATH)
    assert found == [Tier(name, tuple(Interval(*row) for row in rows)) for name, rows in tiers.items()]


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse(text, PATH)
    except FormatError as error:
        assert str(error).startswith("meeting.TextGrid, line ")
