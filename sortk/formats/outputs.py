"""Which files in a user's folder sortk has made, so that it replaces no other: the hidden file `.sortk-files`.

    <SHA-256>  <name>      a line for each file that was written, as sha256sum has it; the last one of a name counts
    -  <name>              the file is about to be written: a kill may leave its line so

A file that was changed since, such as a corrected annotation, is the user's.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from sortk.formats.files import is_file, make_folder

INDEX_NAME = ".sortk-files"
WRITING, MISSING = "-", "missing"


def check_replaceable(paths: Iterable[Path], force: bool = False) -> None:
    """Raise a ValueError for the first file that is there and is not as sortk has written it, unless `force`."""
    digests: dict[Path, dict[str, str]] = {}
    for path in () if force else paths:
        if not is_file(path):
            continue
        if path.parent not in digests:
            digests[path.parent] = _read_index(path.parent)
        if digests[path.parent].get(path.name) not in (WRITING, _digest(path)):
            raise ValueError(
                f"{path} exists, and was not made by sortk or was changed since; choose another folder, or use --force "
                "to replace it"
            )


@contextlib.contextmanager
def noting_outputs(paths: Sequence[Path]) -> Iterator[None]:
    """Inside the block these files, all of one folder, are written: from then on they are known as sortk's own."""
    _add_lines(paths, [WRITING] * len(paths))
    try:
        yield
    finally:
        _add_lines(paths, [_digest(path) if is_file(path) else MISSING for path in paths])


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_index(folder: Path) -> dict[str, str]:
    """Return the last digest of each name."""
    index = folder / INDEX_NAME
    if index.is_symlink() or not is_file(index):  # in a folder from elsewhere, it could be a pipe
        return {}
    text = index.read_text(encoding="utf-8", errors="surrogateescape")
    lines = (line.partition("  ") for line in text.split("\n"))
    return {name: digest for digest, _, name in lines}


def _add_lines(paths: Sequence[Path], digests: Sequence[str]) -> None:
    index = paths[0].parent / INDEX_NAME
    make_folder(index.parent)
    text = "".join(f"{digest}  {path.name}\n" for path, digest in zip(paths, digests, strict=True))
    try:
        handle = os.open(index, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
        try:
            size = os.fstat(handle).st_size
            is_torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"  # the disk was full
            # In one go, at the end: other processes may write into the same folder.
            os.write(handle, ("\n" * is_torn + text).encode("utf-8", "surrogateescape"))
        finally:
            os.close(handle)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(index)) from None
