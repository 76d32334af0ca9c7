from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from sortk.run.locks import clear_left, find_writer, hold_for_reading, hold_for_writing


def test_a_writer_is_alone_and_clears_up(tmp_path: Path) -> None:
    lock = tmp_path / ".x.lock"
    with hold_for_writing(lock, "stage 1"):
        assert find_writer(lock).startswith("process ")
        with (
            pytest.raises(ValueError, match="stage 1 is already being run by process"),
            hold_for_writing(lock, "stage 1"),
        ):
            pass
        with (
            pytest.raises(ValueError, match="stage 1 is already being run by process"),
            hold_for_reading(lock, "stage 1"),
        ):
            pass
    assert find_writer(lock) == "" and not list(tmp_path.iterdir())


def test_readers_share_and_keep_writers_out(tmp_path: Path) -> None:
    lock = tmp_path / ".x.lock"
    with hold_for_reading(lock, "stage 1"), hold_for_reading(lock, "stage 1"):
        assert find_writer(lock) == ""
        with pytest.raises(ValueError, match="or is being read by one"), hold_for_writing(lock, "stage 1"):
            pass
    assert not list(tmp_path.iterdir())
    with hold_for_writing(lock, "stage 1"):
        pass


def test_somebody_who_looks_does_not_keep_a_writer_out(tmp_path: Path) -> None:
    lock, stop = tmp_path / ".x.lock", threading.Event()
    lock.touch()

    def poll() -> None:
        while not stop.is_set():
            find_writer(lock)

    watchers = [threading.Thread(target=poll) for _ in range(2)]
    for watcher in watchers:
        watcher.start()
    try:
        for _ in range(300):
            with hold_for_writing(lock, "stage 1"):
                lock.touch()
    finally:
        stop.set()
        for watcher in watchers:
            watcher.join()


def test_a_place_where_nothing_can_be_written_can_be_read(tmp_path: Path) -> None:
    with hold_for_reading(tmp_path / "nowhere" / ".x.lock", "stage 1"):
        pass


def test_a_lock_that_is_a_link_leaves_its_target_alone(tmp_path: Path) -> None:
    thesis, missing = tmp_path / "thesis.tex", tmp_path / "missing"
    thesis.write_text("forty pages")

    def write(lock: Path) -> None:
        lock.write_text("kept by another program")

    for number, make in enumerate(
        (
            lambda lock: lock.symlink_to(thesis),
            lambda lock: lock.symlink_to(missing),
            lambda lock: lock.hardlink_to(thesis),
            os.mkfifo,
            Path.mkdir,
            write,
        )
    ):
        lock = tmp_path / f".{number}.lock"
        make(lock)
        for hold in (hold_for_writing, hold_for_reading):
            with pytest.raises(ValueError, match=rf"\.{number}\.lock should be a lock"), hold(lock, "stage 8"):
                pass
        clear_left(lock)
        assert find_writer(lock) == "" and os.path.lexists(lock)
    assert thesis.read_text() == "forty pages" and not missing.exists()
