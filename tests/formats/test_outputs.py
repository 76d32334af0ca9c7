"""Files of a user's own in a folder that sortk writes into."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from sortk.formats.outputs import INDEX_NAME, check_replaceable, noting_outputs


def write(path: Path, text: str) -> None:
    with noting_outputs([path]):
        path.write_text(text)


def test_what_sortk_made_may_be_replaced_until_it_is_changed(tmp_path: Path) -> None:
    path = tmp_path / "new" / "monday.rttm"
    check_replaceable([path])
    for text in ("first", "second"):
        check_replaceable([path])
        write(path, text)
    path.write_text("first")  # an older version of ours, put back by hand
    with pytest.raises(
        ValueError, match=r"monday\.rttm exists, and was not made by sortk or was changed since.*--force"
    ):
        check_replaceable([path])
    check_replaceable([path], force=True)
    path.unlink()
    check_replaceable([path])


def test_what_a_user_made_is_not(tmp_path: Path) -> None:
    own, ours = tmp_path / "tuesday.rttm", tmp_path / "monday.rttm"
    own.write_text("by hand")
    write(ours, "ours")
    with pytest.raises(ValueError, match=r"tuesday\.rttm exists"):
        check_replaceable([ours, own])
    assert sorted(path.name for path in tmp_path.iterdir()) == [INDEX_NAME, "monday.rttm", "tuesday.rttm"]


def test_the_index_is_for_sha256sum(tmp_path: Path) -> None:
    write(tmp_path / "a b.rttm", "ours")
    lines = (tmp_path / INDEX_NAME).read_text().splitlines(keepends=True)
    assert lines[0] == "-  a b.rttm\n"
    subprocess.run(["sha256sum", "-c"], input=lines[1], text=True, cwd=tmp_path, check=True, capture_output=True)


def test_a_failure_leaves_no_claim_and_a_kill_does(tmp_path: Path) -> None:
    path = tmp_path / "monday.rttm"
    with pytest.raises(OSError, match="full"), noting_outputs([path]):
        raise OSError("full")
    path.write_text("by hand, since")
    with pytest.raises(ValueError, match="exists"):
        check_replaceable([path])
    path.unlink()
    if os.fork() == 0:
        with noting_outputs([path]):
            path.write_text("ours")
            os._exit(0)
    os.wait()
    check_replaceable([path])


def test_an_index_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    thesis = tmp_path / "thesis.tex"
    thesis.write_text("forty pages")
    (tmp_path / INDEX_NAME).symlink_to(thesis)
    with pytest.raises(OSError, match="symbolic links"):
        write(tmp_path / "monday.rttm", "ours")
    assert thesis.read_text() == "forty pages"


def test_a_torn_line_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = tmp_path / "monday.rttm"
    (tmp_path / INDEX_NAME).write_text("0123abc")  # the disk was full
    write(path, "ours")
    check_replaceable([path])


def test_a_list_that_is_not_a_file_is_not_read(tmp_path: Path) -> None:
    """Of a folder from elsewhere: a pipe would never end, and a link could name anything."""
    own = tmp_path / "a.rttm"
    own.write_text("by hand")
    digest = hashlib.sha256(b"by hand").hexdigest()
    (tmp_path / "list").write_text(f"{digest}  a.rttm\n")
    for plant in (os.mkfifo, lambda path: path.symlink_to("list"), lambda path: path.mkdir()):
        plant(tmp_path / INDEX_NAME)
        with pytest.raises(ValueError, match=r"a\.rttm exists, and was not made by sortk"):
            check_replaceable([own])
        (tmp_path / INDEX_NAME).rmdir() if (tmp_path / INDEX_NAME).is_dir() else (tmp_path / INDEX_NAME).unlink()
