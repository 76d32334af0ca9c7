"""The promises of an output folder, on work that writes one file."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sortk.run.folders import Folder, Identity, build_folder, inspect_folder, remove_jobs

FIRST = Identity("toy", {"size": 1, "deep": {"a": "x"}}, {"input": "k1"})


def fill(out: Path) -> None:
    (out / "result.txt").write_text("whole", encoding="utf-8")


def fail(out: Path) -> None:
    (out / "result.txt").write_text("half", encoding="utf-8")
    raise ValueError("stopped half-way")


def must_not_run(out: Path) -> None:
    raise AssertionError("the work was done again")


def test_a_folder_appears_whole_with_its_marker(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "out")
    assert inspect_folder(folder, FIRST).state == "missing"
    assert build_folder(folder, FIRST, fill)
    assert (folder.final / "result.txt").read_text(encoding="utf-8") == "whole"
    marker = json.loads(folder.done.read_text(encoding="utf-8"))
    assert marker["key"] == FIRST.key and marker["settings"] == FIRST.settings
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert "done in" in (folder.final / "log" / "stage.log").read_text(encoding="utf-8")
    status = inspect_folder(folder, FIRST)
    assert status.state == "done" and status.n_bytes is not None and status.seconds is not None


def test_the_same_key_is_skipped(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "out")
    build_folder(folder, FIRST, fill)
    assert not build_folder(folder, FIRST, must_not_run)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (replace(FIRST, settings={"size": 2, "deep": {"a": "x"}}), "size was 1, is now 2"),
        (replace(FIRST, settings={"size": 1, "deep": {"a": "y"}}), 'deep.a was "x", is now "y"'),
        (replace(FIRST, settings={"size": 1}), 'deep.a was "x", is now unset'),
        (replace(FIRST, inputs={"input": "k2"}), "its input input changed"),
        (replace(FIRST, inputs={}), "its input input is gone"),
    ],
)
def test_another_key_is_refused_and_names_what_changed(tmp_path: Path, changed: Identity, sentence: str) -> None:
    folder = Folder(tmp_path / "out")
    build_folder(folder, FIRST, fill)
    with pytest.raises(ValueError, match="toy is stale") as caught:
        build_folder(folder, changed, must_not_run)
    assert sentence in str(caught.value) and "--force" in str(caught.value)
    assert build_folder(folder, changed, fill, force=True)
    assert inspect_folder(folder, changed).state == "done"


def test_of_a_list_of_tables_only_the_key_that_changed_is_named() -> None:
    def make(steps: int, *more: dict[str, object]) -> Identity:
        loop = {"steps": steps, "learning_rate": 1e-5}
        return replace(FIRST, settings={"train": {"phases": [{"name": "long", "loop": loop}, *more]}, "rows": [1, 2]})

    then = make(20).marker()
    assert make(2000).changes_since(then) == ["train.phases.0.loop.steps was 20, is now 2000"]
    assert make(20, {"name": "next"}).changes_since(then) == ["train.phases had 1 entries, now has 2"]
    other = replace(FIRST, settings=make(20).settings | {"rows": [1]})
    assert other.changes_since(then) == ["rows was [1, 2], is now [1]"]


def test_a_failed_run_leaves_the_older_result_and_goes_on_from_its_partial(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "out")
    build_folder(folder, FIRST, fill)
    second = replace(FIRST, settings={"size": 2})
    with pytest.raises(ValueError, match="half-way"):
        build_folder(folder, second, fail, force=True)
    assert (folder.final / "result.txt").read_text(encoding="utf-8") == "whole"
    assert inspect_folder(folder, second).state == "partial"

    def go_on(out: Path) -> None:
        assert (out / "result.txt").read_text(encoding="utf-8") == "half"
        fill(out)

    assert build_folder(folder, second, go_on)
    assert (folder.final / "result.txt").read_text(encoding="utf-8") == "whole"
    assert not folder.partial.exists()


def test_a_run_that_fails_at_once_leaves_nothing(tmp_path: Path) -> None:
    def fail_at_once(out: Path) -> None:
        raise ValueError("no such input")

    with pytest.raises(ValueError, match="no such input"):
        build_folder(Folder(tmp_path / "out"), FIRST, fail_at_once)
    assert not list(tmp_path.iterdir())


def test_a_killed_partial_of_other_settings_is_refused(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "out")

    def be_killed(out: Path) -> None:
        fill(out)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_folder(folder, FIRST, be_killed)
    with pytest.raises(ValueError, match="stale: unfinished, and size was 1"):
        build_folder(folder, replace(FIRST, settings={"size": 2, "deep": {"a": "x"}}), must_not_run)


def test_after_a_failure_another_input_starts_over(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "out")
    with pytest.raises(ValueError, match="half-way"):
        build_folder(folder, FIRST, fail)
    mended = replace(FIRST, inputs={"input": "k2"})
    assert inspect_folder(folder, mended).state == "missing"

    def start_over(out: Path) -> None:
        assert not (out / "result.txt").exists()
        fill(out)

    assert build_folder(folder, mended, start_over)
    assert not folder.failed.exists() and not (folder.final / "log" / "failed").exists()


def test_leftover_temporary_files_do_not_reach_the_result(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "out")
    with pytest.raises(ValueError, match="half-way"):
        build_folder(folder, FIRST, fail)
    (folder.partial / ".x.flac.abc.tmp").write_text("half", encoding="utf-8")
    build_folder(folder, FIRST, fill)
    assert not list(folder.final.rglob("*.tmp"))


@pytest.mark.parametrize("killed_after", ["mark", "move old", "move new"])
def test_a_kill_between_the_last_renames_loses_nothing(tmp_path: Path, killed_after: str) -> None:
    folder = Folder(tmp_path / "out")
    build_folder(folder, replace(FIRST, settings={}), fill)
    folder.final.rename(tmp_path / "older")
    build_folder(folder, FIRST, fill)  # now take the new result back to the state that the kill left
    if killed_after == "move new":
        (tmp_path / "older").rename(folder.replaced)
    else:
        folder.final.rename(folder.partial)
        (tmp_path / "older").rename(folder.final if killed_after == "mark" else folder.replaced)
    assert not build_folder(folder, FIRST, must_not_run)
    assert inspect_folder(folder, FIRST).state == "done"
    assert not folder.replaced.exists() and not folder.partial.exists()


def test_a_foreign_folder_is_never_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    build_folder(Folder(out), FIRST, fill)  # an empty folder is fine
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("...", encoding="utf-8")
    with pytest.raises(ValueError, match="was not made by sortk"):
        build_folder(Folder(precious), FIRST, must_not_run, force=True)


@pytest.mark.parametrize("value", ['"x"', "null", "[]", "-1", "NaN", "1e999", "9" * 400])
def test_a_damaged_note_of_time_and_size_is_not_shown(tmp_path: Path, value: str) -> None:
    folder = Folder(tmp_path / "out")
    build_folder(folder, FIRST, fill)
    folder.usage.write_text(f'{{"seconds": {value}, "bytes": 3}}')
    status = inspect_folder(folder, FIRST)
    assert status.state == "done" and status.seconds is None and status.n_bytes == 3


def test_a_damaged_marker_is_named(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "out")
    build_folder(folder, FIRST, fill)
    folder.done.write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="done.json is damaged"):
        inspect_folder(folder, FIRST)


HOLDER = """
import sys, time
from pathlib import Path
from sortk.run.folders import Folder, Identity, build_folder
def work(out):
    (out / "result.txt").write_text("from the killed run")
    print("working", flush=True)
    time.sleep(60)
build_folder(Folder(Path(sys.argv[1])), Identity("toy", {}, {}), work)
"""


def test_the_second_run_is_told_who_holds_the_folder_and_kill_9_frees_it(tmp_path: Path) -> None:
    folder, identity = Folder(tmp_path / "out"), Identity("toy", {}, {})
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder.final)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "working\n"
    try:
        with pytest.raises(ValueError, match=f"already being run by process {process.pid} on "):
            build_folder(folder, identity, must_not_run)
        assert f"process {process.pid}" in inspect_folder(folder, identity).holder
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    seen = []
    build_folder(folder, identity, lambda out: seen.append((out / "result.txt").read_text(encoding="utf-8")))
    assert seen == ["from the killed run"]


def test_files_that_jobs_may_be_writing_are_left_alone_until_the_end(tmp_path: Path) -> None:
    folder, identity = Folder(tmp_path / "out"), Identity("stage 1 (toy)", {}, {})
    half, shard = folder.partial / "audio" / ".a.flac.tmp", folder.jobs / "make-0123" / "00000000-00000005.results"

    def be_killed(partial: Path) -> None:
        for path in (half, shard):
            path.parent.mkdir(parents=True)
            path.touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_folder(folder, identity, be_killed)

    def go_on(partial: Path) -> None:
        assert half.exists() and shard.exists()

    assert build_folder(folder, identity, go_on)
    assert {path.name for path in folder.final.rglob("*") if path.is_file()} == {"done.json", "stage.log", "usage.json"}


@pytest.mark.parametrize("suffix", ["", ".partial", ".replaced"])
def test_folders_of_the_users_own_are_never_removed(tmp_path: Path, suffix: str) -> None:
    own = tmp_path / f"out{suffix}"
    own.mkdir()
    (own / "done.json").write_text('{"hello": 1}')
    (own / "annotations.rttm").write_text("by hand")
    for force in (False, True):
        with pytest.raises(ValueError, match=f"out{suffix} exists and was not made by sortk"):
            build_folder(Folder(tmp_path / "out"), FIRST, must_not_run, force)
    assert [path.name for path in tmp_path.iterdir()] == [own.name]
    assert (own / "annotations.rttm").read_text() == "by hand"


CLEARING = """
import os, shutil, signal, sys
from pathlib import Path
from sortk.run.folders import Folder, Identity, build_folder
left, unlink = [int(sys.argv[2])], os.unlink
def count(event, arguments):
    if event in ("os.remove", "os.rmdir"):
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
sys.addaudithook(count)
build_folder(Folder(Path(sys.argv[1])), Identity("toy", {}, {}), lambda out: None, force=True)
"""


@pytest.mark.parametrize("n_removed", [0, 1, 3, 6, 7, 8, 9])
def test_a_kill_while_an_unfinished_folder_is_cleared_is_noticed(tmp_path: Path, n_removed: int) -> None:
    folder, identity, names = Folder(tmp_path / "out"), Identity("toy", {}, {}), [f"{n}.txt" for n in range(6)]

    def work(out: Path) -> None:
        for name in names:
            if not (out / "text" / name).exists():
                (out / "text").mkdir(exist_ok=True)
                (out / "text" / name).touch()

    def be_killed(out: Path) -> None:
        work(out)
        raise KeyboardInterrupt

    def go_on(out: Path) -> None:
        assert not (out / "text").exists() or len(list((out / "text").iterdir())) == 6
        work(out)

    with pytest.raises(KeyboardInterrupt):
        build_folder(folder, identity, be_killed)
    killed = subprocess.run([sys.executable, "-c", CLEARING, str(folder.final), str(n_removed)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert build_folder(folder, identity, go_on)
    assert sorted(path.name for path in (folder.final / "text").iterdir()) == names
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_that_is_a_link_is_made_where_the_link_leads(tmp_path: Path) -> None:
    (tmp_path / "big").mkdir()
    (tmp_path / "out").symlink_to("big/data")
    folder = Folder(tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        build_folder(folder, FIRST, raise_interrupt)
    assert (tmp_path / "big" / "data.partial" / "result.txt").exists()
    assert build_folder(folder, FIRST, fill) and not build_folder(folder, FIRST, must_not_run)
    assert build_folder(folder, FIRST, fill, force=True)
    assert folder.final.is_symlink() and inspect_folder(folder, FIRST).state == "done"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["big", "out"]
    assert [path.name for path in (tmp_path / "big").iterdir()] == ["data"]


def raise_interrupt(out: Path) -> None:
    fill(out)
    raise KeyboardInterrupt


def test_places_that_cannot_be_replaced_are_named_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "unmounted").symlink_to("nowhere/data")
    with pytest.raises(ValueError, match=r"unmounted is a link to .*nowhere/data, but there is no folder .*nowhere"):
        build_folder(Folder(tmp_path / "unmounted"), FIRST, must_not_run)
    with pytest.raises(ValueError, match="/proc is a mount point, which cannot be renamed; choose a folder in it"):
        build_folder(Folder(Path("/proc")), FIRST, must_not_run)
    (tmp_path / "out.partial").symlink_to(tmp_path)
    with pytest.raises(ValueError, match=r"out\.partial exists and was not made by sortk"):
        build_folder(Folder(tmp_path / "out"), FIRST, must_not_run)


@pytest.mark.parametrize("name", [".", "..", "../inner", "link"])
def test_the_current_folder_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "link").symlink_to(".")
    monkeypatch.chdir(tmp_path / "inner")
    with pytest.raises(ValueError, match="is or holds the current folder, which cannot be renamed"):
        build_folder(Folder(Path(name)), FIRST, must_not_run)


def test_a_folder_that_is_mounted_from_the_same_disk(tmp_path: Path) -> None:
    script = f"""
mkdir 'a b' data && mount --bind data 'a b' || exit 77
{sys.executable} -c 'from pathlib import Path
from sortk.run.folders import Folder, Identity, build_folder
build_folder(Folder(Path("a b")), Identity("toy", {{}}, {{}}), lambda out: None)'
"""
    if not shutil.which("unshare"):
        pytest.skip("there is no unshare here")
    command = ["unshare", "--mount", "bash", "-c", script]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    if ended.returncode == 77 or "unshare failed" in ended.stderr or "Operation not permitted" in ended.stderr:
        pytest.skip("this user may not mount")
    assert "a b is a mount point, which cannot be renamed" in ended.stderr


def test_a_link_in_an_unfinished_folder_is_not_followed(tmp_path: Path) -> None:
    folder, thesis = Folder(tmp_path / "out"), tmp_path / "thesis.tex"
    thesis.write_text("forty pages")
    with pytest.raises(KeyboardInterrupt):
        build_folder(folder, FIRST, raise_interrupt)
    (folder.partial / "result.txt").unlink()
    (folder.partial / "result.txt").symlink_to(thesis)
    with pytest.raises(ValueError, match=r"result\.txt is a link; sortk makes none there"):
        build_folder(folder, FIRST, fill)
    assert thesis.read_text() == "forty pages" and build_folder(folder, FIRST, fill, force=True)


def test_only_jobs_are_removed_beside_a_file_that_they_made(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "s.jsonl")
    shard = folder.jobs / "serialize-0123" / "call.pickle"
    shard.parent.mkdir(parents=True)
    shard.touch()
    own = folder.partial / "annotations.rttm"
    own.write_text("by hand")
    remove_jobs(folder)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [own] and not folder.jobs.exists()
    own.unlink()
    shard.parent.mkdir(parents=True)
    shard.touch()
    remove_jobs(folder)
    assert not folder.partial.exists()
