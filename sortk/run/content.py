"""Keys of inputs by their content: two inputs with one key hold the same bytes.

    file       its bytes; of a manifest or sources.jsonl, also the bytes of all files that its lines name
    folder     names and bytes of all files in it, hidden ones left out: a model with its tokenizer, a set of recordings
    result     names and bytes of the files in the folder of a stage, without those that may be removed to save space

Recordings can be many gigabytes, so the key of a file of 64 kB or more is remembered in a cache, and holds as long as
the file keeps its size, inode and times of change. A file that changed in the last two seconds is not remembered,
because it could change once more within the resolution of the clock. The cache is `$XDG_CACHE_HOME/sortk`
(`~/.cache/sortk`); without it, every file is read again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from sortk.formats.files import atomic_text
from sortk.formats.manifest import named_files

REMEMBERED_BYTES = 64 * 1024  # smaller files are read as quickly as looked up
SETTLED_SECONDS = 2.0  # a file that changed more recently may change again unnoticed
MAX_REMEMBERED = 1_000_000  # files; the oldest entries are dropped

MISSING = "no such file"
NOT_COUNTED = (".flac", ".npy", ".svg", ".html")  # of a result: recordings and posteriors can be removed, pictures made


def content_key(path: Path) -> str:
    """Return the key of a file or folder; `MISSING` if there is none."""
    with _Cache() as cache:
        if path.is_dir():
            names = {file: file.relative_to(path) for file in sorted(path.rglob("*")) if file.is_file()}
            own = [file for file, name in names.items() if not any(part.startswith(".") for part in name.parts)]
            named = sorted({file for listed in own for file in named_files(listed)} - set(own))
            return _join([f"{names[file]} {cache.key(file)}" for file in own] + list(map(cache.key, named)))
        named = named_files(path)
        return _join(map(cache.key, [path, *named])) if named else cache.key(path)


def result_key(folder: Path) -> str:
    """Return the key of what a stage has written: annotations, manifests, transcripts, models."""
    with _Cache() as cache:
        return _join(f"{path.relative_to(folder)} {cache.key(path)}" for path in sorted(_result_files(folder)))


def has_changed_since(folder: Path, changed_ns: int) -> bool:
    """Return whether a file that counts for `result_key` may have changed since; no file is read.

    Raise ValueError for a pipe or a device, which a folder from elsewhere may hold: reading it may never end.
    """
    files = list(_result_files(folder))  # all of them: a pipe may come after a changed file
    return any(not path.exists() or path.stat().st_ctime_ns >= changed_ns for path in files)


def _result_files(folder: Path, ignored: tuple[str, ...] = ("done.json", "log", "checkpoints")) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.name in ignored:
                continue
            if entry.is_dir():
                yield from _result_files(Path(entry), ignored=())
            elif not entry.is_file() and Path(entry).exists():
                raise ValueError(f"{entry.path} is a pipe or a device; sortk makes none there: remove it")
            elif not entry.name.endswith(NOT_COUNTED):
                yield Path(entry)


def input_keys(inputs: Mapping[str, Path | None]) -> dict[str, str]:
    """Return the keys of the inputs of a command by their names; what a manifest names has a key of its own."""
    keys: dict[str, str] = {}
    for name, path in inputs.items():
        if path is None:
            continue
        named = named_files(path)
        with _Cache() as cache:
            keys |= {f"files that {name} names": _join(map(cache.key, named))} if named else {}
            keys[name] = cache.key(path) if named else content_key(path)
    return keys


def _join(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


class _Cache:
    """Keys of single files, from earlier runs too."""

    def __init__(self) -> None:
        home = os.environ.get("HOME") or os.devnull  # in which nothing can be kept
        self._path = Path(os.environ.get("XDG_CACHE_HOME") or Path(home, ".cache"), "sortk", "content-keys.json")
        self._known: dict[str, list[object]] | None = None  # path -> [*version, key]; None: not read yet
        self._has_news = False

    def __enter__(self) -> _Cache:
        return self

    def __exit__(self, *_: object) -> None:
        if self._has_news and self._known is not None:
            kept = dict(list(self._known.items())[-MAX_REMEMBERED:])
            with contextlib.suppress(OSError), atomic_text(self._path) as file:
                json.dump(kept, file)

    def key(self, path: Path) -> str:
        """Return the key of one file, which may be missing."""
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):  # a pipe or a device, which may never end
                return MISSING
            if status.st_size < REMEMBERED_BYTES:
                return _read_key(path)
            version = [status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns]
            name, known = str(path.absolute()), self._read()
            if known.get(name, [])[:-1] == version:
                return str(known[name][-1])
            key = _read_key(path)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return MISSING
        if time.time() - max(status.st_mtime, status.st_ctime) > SETTLED_SECONDS:
            known.pop(name, None)
            known[name] = [*version, key]
            self._has_news = True
        return key

    def _read(self) -> dict[str, list[object]]:
        if self._known is None:
            self._known = {}
            with contextlib.suppress(OSError, ValueError):
                found = json.loads(self._path.read_text(encoding="utf-8"))
                if isinstance(found, dict) and all(isinstance(entry, list) for entry in found.values()):
                    self._known = found
        return self._known


def _read_key(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
