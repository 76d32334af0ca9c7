"""The LDC's transcripts of telephone calls."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortk.formats import ldc
from sortk.formats.files import FormatError
from sortk.records import Segment

HERE = Path("en_4065.txt")


def parse(*lines: str) -> list[Segment]:
    return list(ldc.parse(enumerate(lines, start=1), HERE, "en_4065"))


def test_turns_go_on_in_the_next_line_and_comments_say_nothing() -> None:
    assert parse(
        "# fe_03_00001.sph",
        "# Transcribed at the LDC",
        "",
        "545.25 548.02 A: and I met &Jan",
        "yesterday.",
        "   {laugh}",
        "",
        "547.43 552.36  B1:  %um",
        "552.36 553.00 A:",
    ) == [
        Segment("en_4065", "A", 545.25, 548.02, "and I met &Jan yesterday. {laugh}"),
        Segment("en_4065", "B1", 547.43, 552.36, "%um"),
        Segment("en_4065", "A", 552.36, 553.0, ""),
    ]


def test_a_turn_without_duration_is_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        turns = parse("1.00 2.00 A: yes", "2.00 2.00 B: no", "goes with it", "3.00 2.50 A: never", "4.00 5.00 B: ah")
    assert [turn.text for turn in turns] == ["yes", "ah"]
    assert [record.getMessage() for record in caplog.records] == [
        "en_4065.txt: a turn of B ends at 2.0, not after its start 2.0: left out",
        "en_4065.txt: a turn of A ends at 2.5, not after its start 3.0: left out",
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("yes", "neither a turn, <start> <end> A: <words>, nor after one: 'yes'"),
        ("1.00 2.00 yes", "begins with a number, but is not a turn, <start> <end> A: <words>: '1.00 2.00 yes'"),
        ("1.00 A: yes", "begins with a number, but is not a turn, <start> <end> A: <words>: '1.00 A: yes'"),
        ("1.0O 2.00 A: yes", "start is not a number: '1.0O'"),
        ("1.00 inf A: yes", "end is not finite: 'inf'"),
    ],
)
def test_errors_name_the_line_and_the_value(line: str, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse("# comment", line)
    assert str(caught.value) == f"en_4065.txt, line 2: {message}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # Fisher
        ("and i generally prefer [laughter] eating", "and i generally prefer eating"),
        ("(( that's )) right (( ))", "that's right"),
        ("an- so the topic is", "an- so the topic is"),
        ("on t._v. you know the f. b. i.", "on t v you know the f b i"),
        ("[noise]", ""),
        # CALLHOME
        ("%um, I met &Lydia &Van &Damme.", "um i met lydia van damme"),
        ("{breath} yeah [distortion] no [/distortion]?", "yeah no"),
        ("he said <Spanish hola amigo> to me", "he said hola amigo to me"),
        ("uh [[long pause]] uh-huh -- //come here// 'cause", "uh uh-huh come here 'cause"),
        ("+probably+ **poodleish** twenty-two", "probably poodleish twenty-two"),
        ("<as> wait </as> <? (( ))> @AIDS ~F ~B", "wait aids f b"),
        ("", ""),
    ],
)
def test_words_without_sounds_and_signs(text: str, words: str) -> None:
    assert ldc.spoken_words(text) == words


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("yes", True),
        ("(( ))", True),
        ("[laughter]", True),
        ("{laugh}", True),
        ("[noise]", False),
        ("[breath] [lipsmack]", False),
        ("--", False),
        ("", False),
    ],
)
def test_whether_somebody_is_heard(text: str, answer: bool) -> None:
    assert ldc.has_speech(text) is answer


turns = st.tuples(
    st.integers(0, 10**6),
    st.integers(1, 10**4),
    st.sampled_from(["A", "B", "A1"]),
    st.lists(st.sampled_from(["a", "%um"])),
)


@given(st.lists(turns), st.integers(0, 3))
def test_what_is_written_is_read(items: list[tuple[int, int, str, list[str]]], n_blank: int) -> None:
    wanted, lines = [], []
    for start, length, speaker, words in items:
        wanted.append(Segment("en_4065", speaker, start / 100, (start + length) / 100, " ".join(words)))
        first, *rest = [*words, ""]
        lines += [f"{start / 100:.2f} {(start + length) / 100:.2f} {speaker}: {first}", *rest, *[""] * n_blank]
    assert parse(*lines) == wanted


@given(st.lists(st.text(max_size=30) | st.from_regex(r"\d\.\d \d\.\d [AB]: \w*", fullmatch=True)))
def test_any_lines_parse_or_are_refused(lines: list[str]) -> None:
    try:
        for turn in parse(*lines):
            assert 0 <= turn.start < turn.end and turn.speaker
    except FormatError:
        pass


@given(st.text("ab'-(){}[]<>/%&._ LAugh", max_size=60))
def test_words_are_clean_and_stay_so(text: str) -> None:
    words = ldc.spoken_words(text)
    assert set(words) <= set("ablugh'- ")
    assert ldc.spoken_words(words) == words
