"""An output folder that appears complete or not at all: lock, marker, resume.

Work fills `NAME.partial/`, which is renamed to `NAME/` at the end. `done.json` in it holds the settings and a key over
the settings and the keys of the inputs:

    same key               skipped at once
    another key            refused with a sentence that names what changed; --force runs it again
    a matching .partial    resumed where it was killed
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import platform
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from sortk import __version__
from sortk.formats.files import atomic_text, make_folder, printable, relative_within
from sortk.run.content import has_changed_since, result_key
from sortk.run.locks import find_writer, hold_for_writing

log = logging.getLogger(__name__)

REMOVING = ".removing.json"
"""The name of the marker of a folder that is being removed."""

MARKERS = (".started.json", "done.json", ".done.json", REMOVING)
"""Files that show that sortk has made a folder; all have the content of done.json."""

PACKAGES = ("espeakng-loader", "numpy", "scipy", "soundfile", "torch")  # whose version can change a result

State = Literal["done", "stale", "partial", "missing"]


@dataclass(frozen=True)
class Folder:
    """Every path of one output folder, named here and nowhere else."""

    final: Path
    marker: str = "done.json"  # hidden (.done.json) where the folder's own files are *.json

    @property
    def place(self) -> Path:
        """Where the folder is: if `final` is a link, as to a larger disk, what it names. The link stays."""
        return Path(os.path.realpath(self.final)) if self.final.is_symlink() else self.final

    @property
    def partial(self) -> Path:
        return self.place.with_name(self.place.name + ".partial")

    @property
    def replaced(self) -> Path:
        """Where an older result waits for the moment between two renames."""
        return self.place.with_name(self.place.name + ".replaced")

    @property
    def lock(self) -> Path:
        return self.place.with_name(f".{self.place.name}.lock")

    @property
    def done(self) -> Path:
        return self.final / self.marker

    @property
    def started(self) -> Path:
        """What the partial folder is a part of: the content that its marker will have."""
        return self.partial / ".started.json"

    @property
    def failed(self) -> Path:
        """Is there when a run ended with an error, not by a kill. With its inputs mended it may start over."""
        return self.partial / "log" / "failed"

    @property
    def jobs(self) -> Path:
        """What jobs of a cluster have done so far; gone when the folder is done."""
        return self.partial / "jobs"

    @property
    def usage(self) -> Path:
        """Time, size, place and key of the run: what may differ between two equal results."""
        return self.final / "log" / "usage.json"


@dataclass(frozen=True)
class Identity:
    """What an output folder is made from. Two folders with the same key hold the same result."""

    title: str
    settings: Mapping[str, Any]
    inputs: Mapping[str, str]  # name of each input -> its key

    def __post_init__(self) -> None:
        # As JSON would give them back, so that a stored setting compares equal to a present one.
        object.__setattr__(self, "settings", json.loads(json.dumps(self.settings)))

    @property
    def key(self) -> str:
        content = json.dumps([self.settings, self.inputs], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def marker(self) -> dict[str, Any]:
        """The content of done.json."""
        versions = {"sortk": __version__, "python": platform.python_version()}
        for name in PACKAGES:
            with contextlib.suppress(metadata.PackageNotFoundError):
                versions[name] = metadata.version(name)
        return {
            "made_by": self.title,
            "key": self.key,
            "settings": self.settings,
            "inputs": self.inputs,
            "versions": versions,
        }

    def changes_since(self, marker: Mapping[str, Any]) -> list[str]:
        """Return sentences on what differs from the run that wrote `marker`."""
        changed = list(_compare("", marker.get("settings", {}), self.settings))
        inputs_then = marker.get("inputs", {})
        changed += [f"its input {name} changed" for name, key in self.inputs.items() if inputs_then.get(name) != key]
        changed += [f"its input {name} is gone" for name in inputs_then if name not in self.inputs]
        return changed or ["it was made by another version of sortk"]


def settings_of(options: Any) -> Any:
    """Return options as `dataclasses.asdict` does, without those that are hashed only if they are set and are not, with
    secret ones as if they were not set, and with the constants of FIXED."""
    if dataclasses.is_dataclass(options):
        fixed = dict(getattr(options, "FIXED", {}))
        return fixed | {
            field.name: field.default if field.metadata.get("secret") else settings_of(getattr(options, field.name))
            for field in dataclasses.fields(options)
            if getattr(options, field.name) or not field.metadata.get("hash_only_if_set")
        }
    if isinstance(options, Mapping):
        return {key: settings_of(value) for key, value in options.items()}
    if isinstance(options, list | tuple):
        return [settings_of(value) for value in options]
    return options


@dataclass(frozen=True)
class Status:
    """How an output folder stands against the identity it should have."""

    state: State
    why: str = ""
    seconds: float | None = None
    n_bytes: int | None = None
    holder: str = ""  # the process that works on it right now


def inspect_folder(folder: Folder, identity: Identity) -> Status:
    """Return whether the folder is done, stale (and why), partial or missing, by its markers alone."""
    holder = find_writer(folder.lock)
    done, started = _read_marker(folder.done), _read_marker(folder.started)
    if done is not None and done.get("key") == identity.key:
        usage = {name: value for name, value in (_read_marker(folder.usage) or {}).items() if _is_amount(value)}
        return Status("done", "", usage.get("seconds"), usage.get("bytes"), holder)
    if started is not None and started.get("key") == identity.key:
        return Status("partial", "will be resumed where it stopped", holder=holder)
    if done is not None:
        return Status("stale", "; ".join(identity.changes_since(done)), holder=holder)
    if started is not None and not (folder.failed.exists() and started.get("settings") == identity.settings):
        return Status("stale", "unfinished, and " + "; ".join(identity.changes_since(started)), holder=holder)
    return Status("missing", holder=holder)


def _is_amount(value: object) -> bool:
    """Return whether a value of a file that may be damaged can be shown as seconds or bytes."""
    return isinstance(value, int | float) and 0 <= value < 1e18


def find_edits(folder: Folder) -> str:
    """Return the key of the files of a finished folder if one was edited since; empty if not."""
    if not folder.done.is_file() or not has_changed_since(folder.final, folder.done.stat().st_ctime_ns):
        return ""
    written = (_read_marker(folder.usage) or {}).get("files")
    key = result_key(folder.final)
    return "" if written in (key, None) else key


def build_folder(
    folder: Folder, identity: Identity, work: Callable[[Path], None], force: bool = False, root: Path | None = None
) -> bool:
    """Fill the folder by `work(partial folder)` as the module's header promises; False if there was nothing to do.

    `work` may be called on a partial folder of an earlier, killed run with the same key, and then does only what is
    missing there. Files name each other by relative paths inside `root` (the folder itself by default), so that it can
    be moved, and by absolute paths outside.
    """
    _check_can_be_replaced(folder)
    make_folder(folder.place.parent)
    with hold_for_writing(folder.lock, identity.title):
        _undo_interrupted_rename(folder)
        status = inspect_folder(folder, identity)
        if status.state == "done" and not force:
            say_skipped(identity.title, folder)
            return False
        if status.state == "stale" and not force:
            raise ValueError(f"{identity.title} is stale: {status.why}. Use --force to run it again ({folder.final})")
        if status.state != "partial" or force:
            _remove(folder.partial)
        _check_plain(folder)
        _remove_leftovers(folder)
        write_json(folder.started, identity.marker())
        verb = "resuming" if status.state == "partial" else "running"
        with _note_failure(folder), _log_to(folder.partial / "log" / "stage.log"):
            log.info("%s: %s, output in %s", identity.title, verb, folder.final)
            began = time.monotonic()
            with relative_within(root or folder.partial):
                work(folder.partial)
            if folder.jobs.exists():
                shutil.rmtree(folder.jobs)
                _remove_leftovers(folder)
            seconds = time.monotonic() - began
            n_bytes = sum(path.stat().st_size for path in folder.partial.rglob("*") if path.is_file())
            usage = {"seconds": round(seconds, 3), "bytes": n_bytes, "host": socket.gethostname()}
            usage["files"] = result_key(folder.partial)  # of a training, it depends on the speeds in its log
            write_json(folder.partial / folder.usage.relative_to(folder.final), usage)
            folder.started.replace(folder.partial / folder.done.name)
            log.info("%s: done in %.1f s: %s", identity.title, seconds, folder.final)
        # A kill between the two renames is undone by `_undo_interrupted_rename`.
        if folder.place.exists():
            _remove(folder.replaced)
            folder.place.rename(folder.replaced)
        folder.partial.rename(folder.place)
        _remove(folder.replaced)
    return True


@contextlib.contextmanager
def _note_failure(folder: Folder) -> Iterator[None]:
    """Remove the folder of a run that fails before it has made anything; leave a note in that of any other."""
    try:
        yield
    except BaseException as error:
        if {path.name for path in folder.partial.iterdir()} <= {folder.started.name, "log"}:
            _remove(folder.partial)
        elif isinstance(error, Exception):
            with contextlib.suppress(OSError):  # the disk may be full
                folder.failed.touch()
        raise


def say_skipped(title: str, folder: Folder) -> None:
    """Log that there was nothing to do."""
    log.info("%s: done already, skipped: %s", title, folder.final)


def _remove(path: Path) -> None:
    """Remove a folder of ours. A kill leaves it under a marker that says so: it is not done and cannot be resumed."""
    if not path.exists():
        return
    removing = path / REMOVING
    for marker in (path / name for name in MARKERS):
        if marker.is_file():
            marker.replace(removing)
    for child in path.iterdir():
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        elif child != removing:
            child.unlink()
    removing.unlink(missing_ok=True)
    path.rmdir()


def remove_jobs(folder: Folder) -> None:
    """Remove what jobs of a cluster have left beside a file that they made, and nothing else that is there."""
    for call in folder.jobs.glob("*/call.pickle"):
        shutil.rmtree(call.parent)
    with contextlib.suppress(OSError):  # missing, or not empty: it is another's
        folder.jobs.rmdir()
        folder.partial.rmdir()


def _undo_interrupted_rename(folder: Folder) -> None:
    """Give the final name to a result that is complete under its partial name: a kill came between the two renames at
    the end of `build_folder`."""
    if (folder.partial / folder.done.name).exists():
        if folder.place.exists() and not folder.replaced.exists():
            folder.place.rename(folder.replaced)
        folder.partial.rename(folder.place)
    elif (folder.replaced / folder.done.name).exists() and not folder.place.exists():
        folder.replaced.rename(folder.place)
    _remove(folder.replaced)


def _check_can_be_replaced(folder: Folder) -> None:
    """Raise a ValueError if a name that the work needs holds something that is not ours, or cannot be renamed."""
    if folder.final.is_symlink() and not folder.place.parent.is_dir():
        raise ValueError(f"{folder.final} is a link to {folder.place}, but there is no folder {folder.place.parent}")
    if Path.cwd().is_relative_to(os.path.realpath(folder.place)):
        raise ValueError(
            f"{folder.final} is or holds the current folder, which cannot be renamed; choose a folder in it"
        )
    if _is_mount_point(folder.place):
        raise ValueError(f"{folder.final} is a mount point, which cannot be renamed; choose a folder in it")
    if not _is_ours(folder.place):
        raise ValueError(f"{folder.final} exists and was not made by sortk (no done.json); choose another folder")
    for path in (folder.partial, folder.replaced):
        if path.is_symlink() or not _is_ours(path):
            raise ValueError(
                f"{path} exists and was not made by sortk, which needs this name for {folder.final}; move it away, or "
                "choose another folder"
            )


def _is_ours(path: Path) -> bool:
    """Return whether a folder is missing, empty, or has a marker of sortk's own, perhaps only a half-written one."""
    if not path.exists():
        return True
    if not path.is_dir():
        return False
    for marker in (path / name for name in MARKERS):
        content = _read_marker(marker)
        if content is not None and {"made_by", "key", "settings", "inputs"} <= content.keys():
            return True
    return all(child.name.startswith("..started.json.") for child in path.iterdir())


def _is_mount_point(path: Path) -> bool:
    if path.is_mount():
        return True
    try:  # a folder that is mounted from the same disk can be recognised only by asking the kernel
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return False
    escaped = re.sub(r"[ \t\n\\]", lambda found: f"\\{ord(found[0]):03o}", os.path.realpath(path))
    return any(line.split()[4] == escaped for line in lines)


def _check_plain(folder: Folder) -> None:
    """Raise a ValueError if an unfinished folder, which may come from elsewhere, would have us write elsewhere."""
    for path in folder.partial.rglob("*"):
        is_plain = not path.is_symlink() and (path.is_file() or path.is_dir())
        if not is_plain and not path.is_relative_to(folder.jobs):  # submitit makes links
            kind = "link" if path.is_symlink() else "pipe or a device"
            raise ValueError(f"{path} is a {kind}; sortk makes none there: remove it, or the folder {folder.partial}")


def _remove_leftovers(folder: Folder) -> None:
    """Remove half-written temporary files of a killed run, and the note of a failed one.

    Jobs of a cluster outlive the run that has submitted them, so while there are any, these files may be theirs.
    """
    halves = () if folder.jobs.exists() else folder.partial.rglob(".*.tmp")
    for path in (*halves, folder.failed):
        path.unlink(missing_ok=True)


class LogFormatter(logging.Formatter):
    """Formats records for terminals, and for files that are shown on them."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


@contextlib.contextmanager
def _log_to(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(LogFormatter("%(asctime)s %(levelname)s %(message)s"))
    sortk_log = logging.getLogger("sortk")
    sortk_log.addHandler(handler)
    sortk_log.setLevel(min(sortk_log.getEffectiveLevel(), logging.INFO))  # the file keeps what -q hides
    try:
        yield
    except Exception as error:
        log.debug("the traceback", exc_info=True)
        handler.handle(
            log.makeRecord(log.name, logging.ERROR, "", 0, str(error), (), None)
        )  # the terminal has it from cli
        raise
    finally:
        sortk_log.removeHandler(handler)
        handler.close()


def _compare(name: str, then: Any, now: Any) -> Iterator[str]:
    """Yield a sentence for each setting that differs, by its full name: `train_diar.phases.0.loop.steps was ...`."""
    if then == now:
        return
    inner = f"{name}." if name else ""
    if any(isinstance(value, Mapping) for value in (then, now)) and all(
        value is None or isinstance(value, Mapping) for value in (then, now)
    ):
        old, new = then or {}, now or {}
        for key in sorted(old.keys() | new.keys()):
            yield from _compare(f"{inner}{key}", old.get(key), new.get(key))
    elif isinstance(then, list) and isinstance(now, list) and any(isinstance(one, Mapping) for one in then + now):
        if len(then) != len(now):
            yield f"{name} had {len(then)} entries, now has {len(now)}"
        for number, (old, new) in enumerate(zip(then, now, strict=False)):
            yield from _compare(f"{inner}{number}", old, new)
    else:
        yield f"{name} was {_show(then)}, is now {_show(now)}"


def _show(value: Any) -> str:
    # An older marker may hold the URL of a database with its password.
    return "unset" if value is None else re.sub(r"://[^\s\"]*", "://...", json.dumps(value))


def _read_marker(path: Path) -> dict[str, Any] | None:
    try:
        if path.exists() and not path.is_file():  # in a folder from elsewhere, it could be a pipe
            raise ValueError
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is damaged; remove the folder {path.parent} and run the stage again") from None
    if not isinstance(content, dict) or not all(
        isinstance(content.get(name, {}), dict) for name in ("settings", "inputs")
    ):
        raise ValueError(f"{path} is damaged; remove the folder {path.parent} and run the stage again")
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    with atomic_text(path) as file:
        json.dump(content, file, indent=1, sort_keys=True)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())


def find_commit() -> str:
    """Return the commit of this checkout, marked if files were changed since; of an installed package, its version."""
    checkout = Path(__file__).resolve().parents[2]
    if not (checkout / ".git").exists():
        return f"sortk {__version__}"
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return f"sortk {__version__}"
