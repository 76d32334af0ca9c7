"""Who may write a folder, and who reads it: flock on a small file beside it.

The kernel releases a lock when its process ends, however it ends: no lock can be left behind, only its file, which says
who held it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

HEAD = b"process "  # with which what a holder writes into its lock begins
MAX_HOLDER_CHARACTERS = 200
PATIENCE_SECONDS = 0.5  # `sortk status` looks at a lock for a moment; a run is not refused for that


@contextlib.contextmanager
def hold_for_writing(path: Path, title: str) -> Iterator[None]:
    """Hold the lock alone; ValueError that names the holder if another process writes or reads the folder."""
    with _open_locked(path, title) as file:
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}")
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def hold_for_reading(path: Path, title: str) -> Iterator[None]:
    """Hold the lock together with other readers: no process can replace the folder meanwhile."""
    try:
        file = _open_locked(path, title, shared=True)
    except OSError:  # a finished folder may be where this process cannot write
        yield
        return
    with file:
        try:
            yield
        finally:
            with contextlib.suppress(BlockingIOError):  # the last reader clears up
                _lock(file)
                path.unlink(missing_ok=True)


def clear_left(path: Path) -> None:
    """Remove the file that a killed process has left; not if a process holds it."""
    with contextlib.suppress(OSError, ValueError), _open(path, os.O_RDONLY) as file:
        _lock(file)
        if os.path.samestat(os.fstat(file.fileno()), path.lstat()):  # else it is another's by now
            path.unlink()


def find_writer(path: Path) -> str:
    """Return which process writes right now; empty if none does."""
    try:
        with _open(path, os.O_RDONLY) as file:
            _lock(file, shared=True)
    except BlockingIOError:
        return _read_holder(path)
    except (OSError, ValueError):
        return ""
    return ""


def _open_locked(path: Path, title: str, shared: bool = False) -> IO[str]:
    give_up = time.monotonic() + PATIENCE_SECONDS
    while True:
        file = _open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            _lock(file, shared)
        except BlockingIOError:
            file.close()
            if time.monotonic() > give_up:
                raise ValueError(f"{title} is already being run by {_read_holder(path)}; wait for it to end") from None
            time.sleep(0.05)
            continue
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.lstat()):
                return file
        file.close()  # its last holder has removed it in the meantime


def _lock(file: IO[str], shared: bool = False) -> None:
    """Lock an open file; BlockingIOError if another process holds it, ValueError if the system has no such locks.

    Only stages need locks: diarize, transcribe and score work without the module.
    """
    try:
        import fcntl  # noqa: PLC0415 - Windows does not have it
    except ImportError:
        raise ValueError("stages need file locks, which this system does not have (fcntl cannot be imported)") from None
    fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


def _open(path: Path, flags: int) -> IO[str]:
    """Open a lock; ValueError if it is a link, or anything but a file of one name: what it is would be emptied."""
    try:
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO) or path.is_dir():
            raise ValueError(f"{path} should be a lock, but is not a file; remove it") from None
        raise
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(handle)
        raise ValueError(f"{path} should be a lock, but is not a file of its own; remove it")
    head = os.pread(handle, len(HEAD), 0)
    if not HEAD.startswith(head):  # shorter, if its holder was killed while it wrote
        os.close(handle)
        raise ValueError(f"{path} should be a lock, but holds something else; move it away")
    return os.fdopen(handle, "r" if flags == os.O_RDONLY else "a+", encoding="utf-8", errors="replace")


def _read_holder(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError), _open(path, os.O_RDONLY) as file:
        return file.read(MAX_HOLDER_CHARACTERS) or "another process, or is being read by one"
    return "another process"
