"""What all formats share: one error type, reading lines, checks of fields and ids, atomic writes, relative paths."""

from __future__ import annotations

import errno
import gzip
import io
import math
import os
import re
import reprlib
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal

from sortk.records import Region, Segment

Lines = Iterable[tuple[int, str]]
"""Number and text of each line of a file: what a parser takes."""

ZeroDuration = Literal["error", "keep"]
"""How a parser treats a segment that ends where it starts."""

MARKERS = frozenset({"done.json", ".done.json", "started.json", ".started.json", "summary.json"})
"""Files that stages write into their folders about themselves: not data."""

ROOT_VARIABLE = "SORTK_ROOT"
"""The environment variable that holds the folder inside which files name each other by relative paths."""

MAX_MESSAGE = 1000  # characters of an error

MAX_UNPACKING = 100  # a .gz may unpack to this many times its size (tables of segments: 10 to 50 times),
FREE_UNPACKED_BYTES = 16 << 20  # beyond this much

CONTROL_CHARACTERS = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""C0, DEL and C1, which a terminal obeys instead of showing them; and those that reverse the text around them."""

MAX_SECONDS = 1e9  # a time beyond thirty years is an error; below, a float still resolves microseconds

_SHORT_REPR = reprlib.Repr()
_SHORT_REPR.maxstring = _SHORT_REPR.maxlong = _SHORT_REPR.maxother = 80
_SHORT_REPR.maxlevel = 2


class FormatError(ValueError):
    """A file that breaks its format; the message has the file, the line and the fault."""

    def __init__(self, path: str | Path, line: int | None, reason: str) -> None:
        self.path, self.line, self.reason = Path(path), line, reason
        where = f"{path}" if line is None else f"{path}, line {line}"
        text, half = " ".join(f"{where}: {reason}".splitlines()), MAX_MESSAGE // 2
        super().__init__(text if len(text) <= MAX_MESSAGE else f"{text[:half]} ... {text[-half:]}")

    def __reduce__(self) -> tuple[type[FormatError], tuple[Path, int | None, str]]:
        # Exceptions cross process borders by their arguments; the default would pass only the joined message.
        return type(self), (self.path, self.line, self.reason)


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line; `.gz` is unpacked; a byte that is not UTF-8 is a FormatError."""
    if is_device(path):
        raise OSError(f"{path}: is a device, not a file")
    try:
        file = gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # noqa: SIM115 (closed below)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise IsADirectoryError(f"{path}: is a folder, not a file") from None
    with file:
        yield from decode_lines(_unpack(file, path) if isinstance(file, gzip.GzipFile) else file, path)


def decode_lines(file: Iterable[bytes], path: Path) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line of bytes; `path` is only for messages."""
    number = 0
    try:
        for number, raw in enumerate(file, start=1):
            yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise FormatError(path, number, f"not UTF-8 text ({error.reason})") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FormatError(path, number + 1, f"damaged gzip data ({error})") from None
    except OSError as error:  # of a disk that fails during reading; it names no file
        raise OSError(error.errno, error.strerror, str(path)) from None


def _unpack(file: gzip.GzipFile, path: Path) -> Iterator[bytes]:
    """Yield the lines of a packed file; refuse one that unpacks to an absurd size, which could fill the memory."""
    allowed = FREE_UNPACKED_BYTES + MAX_UNPACKING * path.stat().st_size
    while line := file.readline(allowed + 1):
        if file.tell() > allowed:
            raise FormatError(path, None, f"unpacks to more than {MAX_UNPACKING} times its size, which text does not")
        yield line


def is_device(path: Path) -> bool:
    """Return whether the path is a device that may never end, such as /dev/zero; pipes and /dev/null end."""
    try:
        return path.is_char_device() and not path.samefile(os.devnull)
    except OSError:
        return False


def is_file(path: Path) -> bool:
    """Return whether there is such a file; a name that no disk can hold is not an error."""
    try:
        return path.is_file()
    except OSError:
        return False


def files_in(path: Path, *suffixes: str) -> list[Path]:
    """Return the file itself, or the files in a folder with one of the suffixes, sorted; not hidden ones or MARKERS."""
    if not path.is_dir():
        return [path]
    visible = (file for file in path.iterdir() if file.name.endswith(suffixes) and not file.name.startswith("."))
    # A session may be called "summary": its SegLST is a list, a marker is an object.
    found = sorted(
        file for file in visible if file.is_file() and not (file.name in MARKERS and file.read_bytes().startswith(b"{"))
    )
    if not found:
        raise FileNotFoundError(f"{path}: no {' or '.join(suffixes)} file in this folder")
    return found


def parse_seconds(path: Path, line: int | None, name: str, value: str) -> float:
    """Return a finite, non-negative number of seconds; raise a FormatError that names the field for others."""
    try:
        seconds = float(value)
    except ValueError:
        raise FormatError(path, line, f"{name} is not a number: {quote(value)}") from None
    if 0 <= seconds <= MAX_SECONDS and "_" not in value:
        return seconds
    fault = "is not a number"  # Python reads 1_000 as a number; no other tool does
    if not math.isfinite(seconds):
        fault = "is not finite"
    elif seconds < 0:
        fault = "is negative"
    elif seconds > MAX_SECONDS:
        fault = "is too large"
    raise FormatError(path, line, f"{name} {fault}: {quote(value)}")


def check_span(path: Path, line: int | None, start: float, end: float, zero_duration: ZeroDuration = "error") -> None:
    """Raise a FormatError unless a segment ends after it starts, or where it starts if `zero_duration` allows it."""
    if fault := span_fault(start, end, zero_duration):
        raise FormatError(path, line, fault)


def span_fault(start: float, end: float, zero_duration: ZeroDuration = "error") -> str:
    """Return what is wrong with a segment's times; empty if nothing is."""
    if end < start:
        return f"ends at {end} before it starts at {start}"
    if end == start and zero_duration == "error":
        return f"duration is zero: {start} to {end}"
    return ""


def format_seconds(seconds: float) -> str:
    """Return at least three decimals, up to six where needed: 1.5 -> 1.500, 0.0000625 -> 0.000063."""
    text = f"{seconds:.6f}"
    return text[:-3] if text.endswith("000") else text.rstrip("0")


def quote(value: Any) -> str:
    """Return the offending value for a message, cut to a readable length."""
    return _SHORT_REPR.repr(value)


def plural(number: int, noun: str) -> str:
    """Return the number with its noun: 1 session, 2 sessions."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def is_token(text: str) -> bool:
    """Return whether the text can be a column: not empty, no white space."""
    return text.split() == [text]


def is_id(text: str) -> bool:
    """Return whether the text can be an id: of a session, a speaker, an utterance."""
    return is_token(text) and not CONTROL_CHARACTERS.search(text)


def check_ids(path: Path, line: int | None, *ids: str) -> None:
    """Raise a FormatError for an id with control characters; a word of a transcript may have them, by mistake."""
    for name in ids:
        if CONTROL_CHARACTERS.search(name):
            raise FormatError(path, line, f"the id {quote(name)} holds control characters")


def printable(text: str) -> str:
    """Return the text as a terminal may show it: control characters as JSON has them, \\u001b; lines and tabs stay."""
    return CONTROL_CHARACTERS.sub(lambda found: found[0] if found[0] in "\n\t" else f"\\u{ord(found[0]):04x}", text)


def check_file_name(name: str, path: Path | None = None, what: str = "session id") -> str:
    """Return a name that came from outside; ValueError if a file of this name would be elsewhere or hidden.

    `path`, where the name was found, and `what` it is are for the message.
    """
    where = "" if path is None else f"{path}: "
    if not name or "/" in name or CONTROL_CHARACTERS.search(name):
        raise ValueError(f"{where}{what} {quote(name)} cannot be the name of a file")
    if name.startswith("."):
        raise ValueError(f"{where}{what} {quote(name)} cannot be the name of a file: it starts with a dot")
    return name


# ---------------------------------------------------------------------------------------------------------------------
# Formats with columns: RTTM, STM, CTM, UEM and Kaldi's tables


def read_columns(lines: Lines, max_splits: int = 16) -> Iterator[tuple[int, list[str]]]:
    """Yield number and fields of each line that is neither empty nor a comment (`;; ...`)."""
    for number, line in lines:
        fields = line.split(None, max_splits)
        if fields and not fields[0].startswith(";"):
            yield number, fields


def writable_segments(segments: Iterable[Segment]) -> list[Segment]:
    """Return the segments by session, start, end, speaker; raise ValueError for one that columns cannot hold."""
    ordered = sorted(segments, key=lambda segment: (segment.session_id, segment.start, segment.end, segment.speaker))
    for segment in ordered:
        check_name("session id", segment.session_id)
        check_name("speaker", segment.speaker)
        check_name("channel", segment.channel)
        check_times(segment)
    return ordered


def check_name(kind: str, name: str) -> None:
    """Raise a ValueError for a name that would not be read back as one field."""
    if not is_token(name):
        raise ValueError(f"{kind} {quote(name)} is empty or holds white space")
    if not is_id(name):
        raise ValueError(f"{kind} {quote(name)} holds control characters")
    if name.startswith((";", "\ufeff")):  # at the start of a line these would be a comment and a byte order mark
        raise ValueError(f"{kind} {quote(name)} starts with a character that columns cannot hold")


def check_times(item: Segment | Region) -> None:
    """Raise a ValueError for invalid times, or times without a duration when they are rounded."""
    start, end = item.start, item.end
    if 0 <= round(start, 6) < round(end, 6) <= MAX_SECONDS:
        return
    fault = "has no duration"
    if not (math.isfinite(start) and math.isfinite(end)):
        fault = "is not finite"
    elif start < 0:
        fault = "starts before 0"
    elif end > MAX_SECONDS:
        fault = "is too long for a recording"
    raise ValueError(f"{item.session_id}: {start} to {end} {fault}")


def start_and_duration(segment: Segment) -> tuple[str, str]:
    """Return both as text: the duration is that of the rounded times, so that start + duration is the end again."""
    start, end = round(float(segment.start), 6), round(float(segment.end), 6)
    return format_seconds(start), format_seconds(end - start)


# ---------------------------------------------------------------------------------------------------------------------
# Writing


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path; it becomes `path` if the block succeeds, and is removed if not.

    A link stays a link: the file that it names is written. A device or a pipe (/dev/stdout, a FIFO, `>(command)`) is
    sent what was written, when the block has succeeded; a terminal gets no control characters.
    An OSError that names the yielded path, or no file at all (a full disk), names `path` instead.
    """
    target = follow_links(path)
    if target.is_dir():
        raise IsADirectoryError(f"{path}: is a folder, not a file")
    to_file = not _is_open_file(target) and (not target.exists() or target.is_file())
    try:
        if to_file:
            make_folder(target.parent)
        folder = target.parent if to_file else None  # None: that of temporary files
        handle, name = tempfile.mkstemp(prefix=f".{target.name[:32]}.", suffix=".tmp", dir=folder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        if to_file:
            umask = os.umask(0)
            os.umask(umask)
            temporary.chmod(0o666 & ~umask)  # last: the writer may have put another file in its place
            temporary.replace(target)
        else:
            with temporary.open("rb") as source, _open_to_send(target) as sink:
                if sink.isatty():
                    sink.write(printable(source.read().decode("utf-8", "replace")).encode())
                else:
                    shutil.copyfileobj(source, sink)
            temporary.unlink()
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        # Without a number it is one of our own messages, which is complete.
        if isinstance(error, OSError) and error.errno and str(error.filename or name) == name:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def make_folder(path: Path) -> None:
    """Make a folder and those above it, if they are not there; where a link leads, if there is one."""
    try:
        Path(os.path.realpath(path)).mkdir(parents=True, exist_ok=True)
    except FileExistsError:  # of a file
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from None
    except RecursionError:  # of a thousand folders in each other
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), str(path)) from None


def own_path(path: Path) -> Path:
    """Return a path that sortk has chosen, in a folder that may be from elsewhere; ValueError if a link is there."""
    if path.is_symlink():
        raise ValueError(f"{path} is a link, which could lead anywhere; remove it")
    return path


def follow_links(path: Path) -> Path:
    """Return what the links at `path` name in the end; a file that a process has open (/dev/stdout) as /proc has it."""
    for _ in range(40):  # as many as the kernel follows
        if _is_open_file(path) or not path.is_symlink():
            return path
        path = path.parent.resolve() / path.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def _is_open_file(path: Path) -> bool:
    # Such a link can be opened, but what it says, pipe:[1234], is not a path. What it names must not be replaced: the
    # shell that has opened it, or appends to it, would not notice.
    return path.name.isdecimal() and re.fullmatch(r"/proc/\d+/fd|/dev/fd", str(path.parent.resolve())) is not None


def _open_to_send(target: Path) -> IO[bytes]:
    """Open a device, a pipe, or a file that is open already, which is written on from where it is."""
    if _is_open_file(target) and target.parent.resolve() == Path("/proc/self/fd").resolve():
        return os.fdopen(os.dup(int(target.name)), "wb")
    return os.fdopen(os.open(target, os.O_WRONLY | os.O_NOCTTY), "wb")


@contextmanager
def atomic_text(path: Path) -> Iterator[IO[str]]:
    """Open a text file that appears complete or not at all; packed if its name ends in `.gz`."""
    with atomic_path(path) as temporary, temporary.open("wb") as raw:
        # Neither name nor time in the header of a .gz: the same text gives the same bytes.
        is_packed = path.suffix == ".gz"
        binary = gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) if is_packed else raw
        with io.TextIOWrapper(binary, encoding="utf-8", newline="\n") as file:
            yield file


def resolve_path(text: str, named_in: Path) -> Path:
    """Return a path that is written in the file `named_in`: relative ones count from that file's folder."""
    return Path(os.path.normpath(named_in.parent / text))


def path_text(target: Path, named_in: Path) -> str:
    """Return how the file `named_in` should name `target`, so that a finished folder can be moved.

    If both are in the same root folder, the path is relative. A corpus elsewhere on the disk does not move with the
    experiment, so its paths are absolute. The root is that of `relative_within` or `set_root`; for a file outside of
    it, or without one, it is the folder above the folder of `named_in`.
    """
    absolute, folder = absolute_path(target), absolute_path(named_in).parent
    root = folder.parent
    if text := os.environ.get(ROOT_VARIABLE):
        given = absolute_path(Path(text))
        root = given if folder.is_relative_to(given) else root
    return os.path.relpath(absolute, folder) if absolute.is_relative_to(root) else str(absolute)


@contextmanager
def relative_within(root: Path) -> Iterator[None]:
    """Inside the block, files below `root` name each other by relative paths, at any depth.

    This holds for the process, and for worker processes that are started in the block: they inherit it.
    """
    before = os.environ.get(ROOT_VARIABLE)
    set_root(root)
    try:
        yield
    finally:
        set_root(Path(before) if before else None)


def set_root(root: Path | None) -> None:
    """Set the root of `relative_within` permanently; None restores the default."""
    if root is None:
        os.environ.pop(ROOT_VARIABLE, None)
    else:
        os.environ[ROOT_VARIABLE] = str(absolute_path(root))


def absolute_path(path: Path) -> Path:
    """Return the path absolute, without `..`, links not resolved: a linked corpus keeps its name."""
    return Path(os.path.normpath(path.absolute()))
