"""Opening, naming and writing files."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import pytest

from sortk.formats import files
from sortk.formats.files import FormatError


def test_error_says_where_and_survives_a_process_border() -> None:
    error = FormatError("a.rttm", 3, "start is negative: '-1'")
    assert str(error) == "a.rttm, line 3: start is negative: '-1'"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert str(FormatError("a.flac", None, "holds no samples")) == "a.flac: holds no samples"


def test_lines_are_numbered_without_their_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\n\ntwo\x85\xe2\x80\xa8".replace(b"\x85", b"\xc2\x85") + b"\nthree")
    assert list(files.read_lines(path)) == [(1, "one"), (2, ""), (3, "two\x85\u2028"), (4, "three")]


def test_gzip_is_unpacked_and_packed_alike_every_time(tmp_path: Path) -> None:
    for name in ("a.txt.gz", "b.txt.gz"):
        with files.atomic_text(tmp_path / name) as file:
            file.write("hello\n")
    assert list(files.read_lines(tmp_path / "a.txt.gz")) == [(1, "hello")]
    assert (tmp_path / "a.txt.gz").read_bytes() == (tmp_path / "b.txt.gz").read_bytes()


@pytest.mark.parametrize(
    "data", [b"hello", gzip.compress(b"hello\n" * 9)[:-12], gzip.compress(b"hello\n" * 9)[:15] + b"\xff" * 30]
)
def test_damaged_gzip(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.rttm.gz"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"a\.rttm\.gz, line \d+: damaged gzip data"):
        list(files.read_lines(path))


def test_bytes_that_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "a.rttm"
    path.write_bytes(b"fine\n\xff\n")
    with pytest.raises(FormatError, match=r"a\.rttm, line 2: not UTF-8 text"):
        list(files.read_lines(path))


def test_missing_files_and_folders_get_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.rttm: no such file$"):
        list(files.read_lines(tmp_path / "none.rttm"))
    with pytest.raises(IsADirectoryError, match=r": is a folder, not a file$"):
        list(files.read_lines(tmp_path))


def test_files_in_a_folder(tmp_path: Path) -> None:
    for name in ("b.json", "a.json", "c.txt"):
        (tmp_path / name).touch()
    assert [file.name for file in files.files_in(tmp_path, ".json")] == ["a.json", "b.json"]
    assert files.files_in(tmp_path / "c.txt", ".json") == [tmp_path / "c.txt"]
    with pytest.raises(FileNotFoundError, match=r"no \.rttm or \.stm file in this folder"):
        files.files_in(tmp_path, ".rttm", ".stm")


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("x", "is not a number"),
        ("1_0", "is not a number"),
        ("", "is not a number"),
        ("nan", "is not finite"),
        ("1e999", "is not finite"),
        ("-1e-9", "is negative"),
        ("1e10", "is too large"),
    ],
)
def test_seconds_that_are_none(value: str, fault: str) -> None:
    with pytest.raises(FormatError, match=rf"^a, line 7: start {fault}: '{value}'$"):
        files.parse_seconds(Path("a"), 7, "start", value)


def test_seconds_as_text() -> None:
    assert [files.format_seconds(value) for value in (0, 1.5, 0.0000625, 12.34, 1.1234)] == [
        "0.000",
        "1.500",
        "0.000063",
        "12.340",
        "1.1234",
    ]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError), files.atomic_text(path) as file:
        file.write("new")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_paths_are_relative_nearby_and_absolute_far_away(tmp_path: Path) -> None:
    named_in = tmp_path / "exp" / "00" / "train.jsonl"
    near, far = tmp_path / "exp" / "01" / "a.flac", tmp_path.parent / "corpus" / "a.flac"
    assert files.path_text(near, named_in) == "../01/a.flac"
    assert files.path_text(far, named_in) == str(far)
    assert files.resolve_path("../01/a.flac", named_in) == near
    assert files.resolve_path(str(far), named_in) == far


def test_quote_cuts_what_is_too_long_to_read() -> None:
    assert len(files.quote("x" * 10**6)) < 100
    assert len(files.quote([[["x"] * 1000] * 1000] * 1000)) < 1000
