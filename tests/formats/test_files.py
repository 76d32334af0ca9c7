"""Opening, naming and writing files."""

from __future__ import annotations

import gzip
import os
import pickle
import resource
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
    "data",
    [b"hello", gzip.compress(b"hello\n" * 9)[:-12], gzip.compress(b"hello\n" * 9)[:15] + b"\xff" * 30],
    ids=["no gzip", "cut off", "damaged"],  # not the bytes, in which the time stands
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


def test_markers_of_stages_are_not_their_data(tmp_path: Path) -> None:
    for name in (*files.MARKERS, "a.json"):
        (tmp_path / name).write_text('{\n "key": 1\n}\n')
    assert files.files_in(tmp_path, ".json") == [tmp_path / "a.json"]
    (tmp_path / "summary.json").write_text("[]")  # SegLST of a session of that name
    assert files.files_in(tmp_path, ".json") == [tmp_path / "a.json", tmp_path / "summary.json"]


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


@contextmanager
def file_size_limit(n_bytes: int) -> Iterator[None]:
    """A disk that is full: writes beyond the limit fail."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
@pytest.mark.parametrize("size", [3_000, 3_000_000])  # fails when it is closed, and while it is written
def test_a_full_disk_names_the_file(tmp_path: Path, name: str, size: int) -> None:
    text = os.urandom(size).hex()
    with (
        pytest.raises(OSError, match="File too large") as caught,
        file_size_limit(1_000),
        files.atomic_text(tmp_path / name) as file,
    ):
        file.write(text)
    assert caught.value.filename == str(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(IsADirectoryError) as caught, files.atomic_text(tmp_path / "a"):
        raise AssertionError("found out only after the work")
    assert str(caught.value) == f"{tmp_path / 'a'}: is a folder, not a file"


def test_a_folder_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(prefix: str, suffix: str, dir: Path) -> None:
        raise PermissionError(13, "Permission denied", f"{dir}/{prefix}x{suffix}")

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    with pytest.raises(PermissionError, match="Permission denied") as caught, files.atomic_text(tmp_path / "a"):
        pass
    assert caught.value.filename == str(tmp_path / "a")


def test_errors_of_the_temporary_file_name_the_target_and_others_stay(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught, files.atomic_path(tmp_path / "a") as temporary:
        temporary.unlink()
    assert caught.value.filename == str(tmp_path / "a")
    with pytest.raises(FileNotFoundError) as caught, files.atomic_path(tmp_path / "a"):
        (tmp_path / "other").read_text()
    assert caught.value.filename == str(tmp_path / "other")
    with pytest.raises(FileNotFoundError, match=r"other: no such file$"), files.atomic_path(tmp_path / "a"):
        list(files.read_lines(tmp_path / "other"))


@pytest.fixture
def no_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(files.ROOT_VARIABLE, "")  # so that what a test sets is undone
    monkeypatch.delenv(files.ROOT_VARIABLE)


@pytest.mark.usefixtures("no_root")
def test_paths_are_relative_nearby_and_absolute_far_away(tmp_path: Path) -> None:
    named_in = tmp_path / "exp" / "00" / "train.jsonl"
    near, far = tmp_path / "exp" / "01" / "a.flac", tmp_path.parent / "corpus" / "a.flac"
    assert files.path_text(near, named_in) == "../01/a.flac"
    assert files.path_text(far, named_in) == str(far)
    assert files.resolve_path("../01/a.flac", named_in) == near
    assert files.resolve_path(str(far), named_in) == far
    assert files.path_text(tmp_path / "a.flac", named_in) == str(tmp_path / "a.flac")


@pytest.mark.usefixtures("no_root")
def test_paths_are_relative_within_a_root_however_deep(tmp_path: Path) -> None:
    exp = tmp_path / "exp"
    named_in, target = exp / "variant" / "02-clean.partial" / "diar" / "a.jsonl", exp / "01-simulate" / "a.flac"
    assert files.path_text(target, named_in) == str(target)
    with files.relative_within(exp):
        assert files.path_text(target, named_in) == "../../../01-simulate/a.flac"
        assert files.path_text(tmp_path / "a.flac", named_in) == str(tmp_path / "a.flac")
        assert files.path_text(tmp_path / "experiment" / "a", named_in) == str(tmp_path / "experiment" / "a")
        with files.relative_within(exp / "variant"):
            assert files.path_text(target, named_in) == str(target)
        assert files.path_text(target, named_in) == "../../../01-simulate/a.flac"
        outside = tmp_path / "x" / "y" / "a.jsonl"
        assert files.path_text(tmp_path / "x" / "a.flac", outside) == "../a.flac"
        assert files.path_text(target, outside) == str(target)
    assert files.path_text(target, named_in) == str(target)


@pytest.mark.usefixtures("no_root")
def test_processes_inherit_the_root(tmp_path: Path) -> None:
    script = """
from pathlib import Path
from sortk.formats.files import path_text
print(path_text(Path("a"), Path("b/c/d/e")))
"""
    files.set_root(tmp_path)
    result = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert result.stdout == "../../../a\n"
    files.set_root(None)
    assert files.ROOT_VARIABLE not in os.environ


def test_quote_cuts_what_is_too_long_to_read() -> None:
    assert len(files.quote("x" * 10**6)) < 100
    assert len(files.quote([[["x"] * 1000] * 1000] * 1000)) < 1000


def write_text(path: Path, text: str) -> None:
    with files.atomic_text(path) as file:
        file.write(text)


def test_a_device_is_written_into_and_stays_a_device(tmp_path: Path) -> None:
    null, link = tmp_path / "null", tmp_path / "link"
    try:
        os.mknod(null, stat.S_IFCHR | 0o666, Path(os.devnull).stat().st_rdev)
        null.read_bytes()
    except OSError:
        pytest.skip("only root makes devices, and not on every disk")
    link.symlink_to("null")
    for path in (null, link):
        write_text(path, "hello\n")
    assert null.is_char_device() and link.is_symlink() and sorted(tmp_path.iterdir()) == [link, null]


def test_a_full_device_is_named(tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_text(full, "hello\n")
    assert caught.value.filename == str(full) and full.is_symlink()


def test_the_reader_of_a_pipe_gets_what_is_written(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen(["cat", fifo], stdout=subprocess.PIPE, text=True) as reader:
        write_text(fifo, "hello\n")
        assert reader.communicate(timeout=300)[0] == "hello\n"
    assert fifo.is_fifo() and list(tmp_path.iterdir()) == [fifo]


def test_a_link_stays_and_the_file_that_it_names_is_replaced_at_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    target, link, chain = tmp_path / "a" / "file", tmp_path / "b" / "link", tmp_path / "b" / "chain"
    link.symlink_to("../a/file")
    chain.symlink_to("link")
    write_text(chain, "made\n")  # there was nothing at its end
    with pytest.raises(ValueError, match="stop"), files.atomic_text(link) as file:
        file.write("half")
        raise ValueError("stop")
    assert target.read_text() == "made\n" and list((tmp_path / "a").iterdir()) == [target]
    write_text(link, "again\n")
    assert target.read_text() == "again\n" and link.is_symlink() and chain.is_symlink()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="Too many levels"):
        write_text(tmp_path / "loop", "")


WRITER = """
import sys
from pathlib import Path
from sortk.formats.files import atomic_text
for path in sys.argv[1:]:
    with atomic_text(Path(path)) as file:
        file.write(f"to {path}\\n")
"""


def test_a_terminal_is_not_sent_what_it_would_obey() -> None:
    leader, terminal = os.openpty()
    try:
        write_text(Path(os.ttyname(terminal)), "a \x1b[31m word\x9b\n")
        assert os.read(leader, 100) == b"a \\u001b[31m word\\u009b\r\n"
    finally:
        os.close(leader)
        os.close(terminal)


@pytest.mark.parametrize("name", ["/dev/stdout", "/proc/self/fd/1", "/dev/fd/1"])
def test_standard_output_by_its_name(tmp_path: Path, name: str) -> None:
    command = [sys.executable, "-c", WRITER, name, name]
    piped = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert piped.stdout == f"to {name}\n" * 2
    with (tmp_path / "log").open("a") as log:  # of a shell that appends: nothing of it is lost
        log.write("before\n")
        log.flush()
        subprocess.run(command, stdout=log, check=True)
        log.write("after\n")
    assert (tmp_path / "log").read_text() == f"before\nto {name}\nto {name}\nafter\n"
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_process_substitution(tmp_path: Path) -> None:
    script = f"{sys.executable} -c '{WRITER}' >(cat > {tmp_path / 'sunk'}); wait"
    subprocess.run(["bash", "-c", script], check=True)
    deadline = time.monotonic() + 300
    while not (tmp_path / "sunk").exists() or not (tmp_path / "sunk").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert (tmp_path / "sunk").read_text().startswith("to /dev/fd/")


def test_a_long_name_has_room_for_its_temporary_one(tmp_path: Path) -> None:
    write_text(tmp_path / ("x" * 250), "hello\n")
    assert [path.name for path in tmp_path.iterdir()] == ["x" * 250]


@pytest.mark.parametrize(
    "name", ["", "../x", "/etc/x", "a/b", ".hidden", "..", "a\0", "a\nb", "\x1b[31m", "a\x9b", "a\u202eb"]
)
def test_names_that_would_be_files_elsewhere(name: str) -> None:
    with pytest.raises(ValueError, match=r"in\.jsonl: session id .* cannot be the name of a file"):
        files.check_file_name(name, Path("in.jsonl"))
    assert files.check_file_name("a..b ü") == "a..b ü"


def test_control_characters_are_shown_not_obeyed() -> None:
    assert (
        files.printable("a\x1b]0;x\x07\tb\nc\x9b\r\x7f ü\u202ex")
        == "a\\u001b]0;x\\u0007\tb\nc\\u009b\\u000d\\u007f ü\\u202ex"
    )


def test_too_many_folders_in_each_other(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="File name too long"):
        files.make_folder(tmp_path / Path("q/" * 1500))


def test_a_folder_is_made_where_a_link_leads(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "far" / "away")
    files.make_folder(tmp_path / "link" / "inner")
    assert (tmp_path / "far" / "away" / "inner").is_dir() and (tmp_path / "link").is_symlink()
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "inner"):
        with pytest.raises(NotADirectoryError):
            files.make_folder(path)
    with pytest.raises(NotADirectoryError, match="a.json"), files.atomic_path(tmp_path / "file" / "a.json"):
        pass
