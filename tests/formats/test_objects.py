"""Strict JSON."""

from __future__ import annotations

from pathlib import Path
from time import process_time

import pytest

from sortk.formats import objects
from sortk.formats.files import FormatError

HERE = Path("a.jsonl")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "broken JSON (Expecting property name"),
        ('{"a": ' * 100_000, "JSON is nested too deeply"),
        ("9" * 5000, "broken JSON (Exceeds the limit"),
        ('{"a": {"\\udfff": 1}}', "half of a surrogate pair in a JSON string"),
    ],
)
def test_text_that_is_no_json_or_could_not_be_written_back(text: str, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        objects.decode(text, HERE, 5)
    assert str(caught.value).startswith(f"a.jsonl, line 5: {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (".".join("a" * 20_000) + " = 1", "a key of more than 100 parts"),  # 1.6 GB if it is read
        ("[" + " . ".join([r'"a\""'] * 20_000) + "]", "a key of more than 100 parts"),
        ("x = {" + ".".join(["'a b'"] * 20_000) + " = 1}", "a key of more than 100 parts"),
        ("# settings\n" * 110_000, "has more than 1000000 characters"),
        (r"\"" * 400_000, "not valid TOML"),
        ('"' * 400_000, "not valid TOML"),
        ("x" * 400_000, "not valid TOML"),
    ],
)
def test_settings_that_would_fill_the_memory(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.toml"
    path.write_text(text)
    began = process_time()
    with pytest.raises(FormatError, match=message):
        objects.read_toml(path)
    assert process_time() - began < 5


def test_settings_with_long_names(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("a.b = '" + "x." * 99 + "'\n")
    assert objects.read_toml(path) == {"a": {"b": "x." * 99}}


def test_a_whole_surrogate_pair_is_a_character() -> None:
    assert objects.decode('"\\ud83d\\ude00"', HERE, 1) == "😀"


@pytest.mark.parametrize("value", [float("nan"), {"a": {1, 2}}, "\ud800", Path("a")])
def test_values_that_json_cannot_hold(value: object) -> None:
    with pytest.raises(ValueError, match="cannot be written as JSON"):
        objects.encode(value)


def test_empty_lines_are_skipped_and_lines_counted() -> None:
    lines = enumerate(["", '{"a": 1}', "  ", "{}"], start=1)
    assert [(number, entry.values) for number, entry in objects.entries(lines, HERE)] == [(2, {"a": 1}), (4, {})]


def test_a_line_that_is_not_an_object() -> None:
    with pytest.raises(FormatError, match=r"^a\.jsonl, line 1: not a JSON object: \[1\]$"):
        list(objects.entries([(1, "[1]")], HERE))


@pytest.mark.parametrize(("audio", "name"), [("a/my talk.v2.wav", "my_talk.v2"), ("x.flac", "x")])
def test_audio_names_what_is_in_it(audio: str, name: str) -> None:
    assert objects.id_of(Path(audio)) == name
