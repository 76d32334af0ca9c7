"""The rules by hand; the long example of chime8 is the one in meeteval's own documentation."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from sortk.scoring.normalizers import NormalizerName, find_normalizer, remove_brackets


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("none", "Hello, [noise] WORLD", "Hello, [noise] WORLD"),
        ("lower", "Hello, [noise] WORLD", "hello, [noise] world"),
        ("whisper", "Hello, [noise] WORLD!", "hello world"),
        ("whisper", "I can't, um, organise twenty one colours", "i can not organize 21 colors"),
        ("whisper", "Mr. Smith's been paid $2,500", "mister smith has been paid $2500"),
        ("whisper", "I dunno, 'cause it's kinda late", "i dunno cause it is kinda late"),
        ("chime8", "Okay, uh-huh, it's 21 o'clock. Mhm.", "ok it is twenty one o clock"),
        (
            "chime8",
            "He paid 105$, 5% of the 1st 2,500",
            "he paid one hundred five dollars five percent of the first 2500",
        ),
        ("chime8", "ain't goin", "ain not going"),
        (
            "chime8",
            'Hello, World! äèア😊 hm hmm hmmm [noise] [inaudible] wi-fi word-word 1.1 11 Mr. then," said',
            "hello world aeア wifi word word 1.1 eleven mister then said",
        ),
    ],
)
def test_rules(name: str, text: str, expected: str) -> None:
    assert find_normalizer(name)(text).split() == expected.split()


def test_a_package_that_is_not_compiled_yet_prints_no_warning(tmp_path: Path) -> None:
    """Where the installer has compiled nothing, Python reads the package's source, and warns about an escape in it."""
    code = "from sortk.scoring.normalizers import find_normalizer; print(find_normalizer('whisper')('Mr. Smith'))"
    command = [sys.executable, "-W", "always", "-X", f"pycache_prefix={tmp_path}", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "mister smith\n" and "whisper_normalizer" not in done.stderr


@pytest.mark.parametrize(
    ("number", "words"),
    [
        ("0", "zero"),
        ("7", "seven"),
        ("13", "thirteen"),
        ("40", "forty"),
        ("100", "hundred"),
        ("110", "one hundred ten"),
        ("999", "nine hundred ninety nine"),
        ("1000", "thousand"),
        ("1001", "1001"),
        ("70 000", "seventy thousand"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_chime8_spells_numbers_up_to_a_thousand(number: str, words: str) -> None:
    assert find_normalizer("chime8")(number) == words


@pytest.mark.parametrize("name", ["none", "lower", "whisper", "chime8"])
def test_nothing_stays_nothing(name: str) -> None:
    assert find_normalizer(name)("").strip() == ""


def test_half_a_bracket_takes_no_words_with_it() -> None:
    assert remove_brackets("so [laughs] we (all) <x> see").split() == ["so", "we", "see"]
    assert remove_brackets("so ] we ( see").split() == ["so", "we", "see"]


def test_an_unknown_name_lists_those_that_are_known() -> None:
    with pytest.raises(ValueError, match="unknown normalizer 'chime9'; normalizers: none, lower, whisper, chime8"):
        find_normalizer("chime9")


def test_without_its_package_one_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "whisper_normalizer.english", None)
    find_normalizer.cache_clear()
    with pytest.raises(ValueError, match=r'pip install "sortk\[wer\]"'):
        find_normalizer("whisper")


@pytest.mark.parametrize("name", ["whisper", "chime8"])
@pytest.mark.parametrize("text", ["[" * 200_000, " " * 200_000 + "x", "(" * 200_000 + "x"])
def test_gaps_take_no_time(name: NormalizerName, text: str) -> None:
    normalizer = find_normalizer(name)
    began = time.process_time()
    assert normalizer(text) == text.strip("[( ")
    assert time.process_time() - began < 5


@pytest.mark.parametrize("text", ["[" * 200_000, "(" * 200_000, "[(" * 50_000 + "a]" + "<" * 100_000])
def test_brackets_without_an_end_take_no_time(text: str) -> None:
    began = time.process_time()
    assert remove_brackets(text).split() == []
    assert time.process_time() - began < 5


def test_a_number_of_thousands_of_digits_is_one_sentence() -> None:
    pytest.importorskip("whisper_normalizer")
    with pytest.raises(ValueError, match="normalizer whisper cannot read a number of 5000 digits: '1111"):
        find_normalizer("whisper")("call " + "1" * 5000)
