"""CHAT, the transcripts of TalkBank."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortk.formats import chat
from sortk.formats.files import FormatError
from sortk.records import Segment

HERE = Path("4065.cha")


def parse(*lines: str) -> list[Segment]:
    return list(chat.parse(enumerate(lines, start=1), HERE, "en_4065"))


def test_utterances_and_nothing_else() -> None:
    assert parse(
        "@UTF8",
        "@Begin",
        "@Languages:\teng",
        "@Participants:\tA Subject, B Subject",
        "@ID:\teng|CallHome|A|||||Subject|||",
        "@Media:\t4065, audio",
        "*A:\twell &-uh I met <him> [//] her",
        "\tin Boston . \x15545250_548020\x15",
        "%com:\ta remark \x151_2\x15",
        "*B1:\t&=laughs \x15547430_549360\x15",
        "*A:\tnobody timed this .",
        "*A:\tnor this . \x15550000_550000\x15",
        "*B:\tone . \x15551000_552000\x15 two . \x15552500_553000\x15",
        "@End",
    ) == [
        Segment("en_4065", "A", 545.25, 548.02, "well &-uh I met <him> [//] her in Boston ."),
        Segment("en_4065", "B1", 547.43, 549.36, "&=laughs"),
        Segment("en_4065", "B", 551.0, 553.0, "one . two ."),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("*A\tyes", "no speaker, *A:, before the utterance: '*A\\tyes'"),
        ("*:\tyes", "no speaker, *A:, before the utterance: '*:\\tyes'"),
        ("*A:\tyes \x151.5_2\x15", "start is not a number of milliseconds: '1.5'"),
        ("*A:\tyes \x151\x15", "end is not a number of milliseconds: ''"),
    ],
)
def test_errors_name_the_line_and_the_value(line: str, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse("@Begin", line)
    assert str(caught.value) == f"4065.cha, line 2: {message}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("well &-uh I met <him> [//] her in Boston .", "well uh i met him her in boston"),
        ("&=laughs yeah , (.) xxx (be)cause &+fr friends +...", "yeah because friends"),
        ("New_York hola@s:spa mama@c (1.5) right ?", "new york hola mama right"),
        ("+\" uh-huh [=! singing] 0is that's", "uh-huh that's"),
        ("www .", ""),
    ],
)
def test_words_without_codes(text: str, words: str) -> None:
    assert chat.spoken_words(text) == words


times = st.tuples(st.integers(0, 10**7), st.integers(1, 10**5), st.sampled_from(["A", "B", "PAR0"]))


@given(st.lists(times), st.booleans())
def test_what_is_written_is_read(items: list[tuple[int, int, str]], breaks: bool) -> None:
    gap = "\n\t" if breaks else " "
    lines = [f"*{speaker}:\tso{gap}it is . \x15{start}_{start + length}\x15" for start, length, speaker in items]
    assert parse(*"\n".join(lines).split("\n")) == [
        Segment("en_4065", speaker, start / 1000, (start + length) / 1000, "so it is .")
        for start, length, speaker in items
    ]


@given(st.lists(st.text(max_size=30) | st.from_regex(r"\*A:\t\w* \x15\d_\d\x15", fullmatch=True)))
def test_any_lines_parse_or_are_refused(lines: list[str]) -> None:
    try:
        for turn in parse(*lines):
            assert 0 <= turn.start < turn.end and turn.speaker
    except FormatError:
        pass


@given(st.text("ab'-()[]<>&=@._ +0X", max_size=60))
def test_words_are_clean(text: str) -> None:
    assert set(chat.spoken_words(text)) <= set("abx0'- ")
