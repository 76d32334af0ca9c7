"""Runs of sortk that can be disturbed, and what is seen of them from outside.

A run is forked off this process, which has imported everything already: so a kill falls into work, not into two seconds
of imports, and hundreds of runs take minutes. A moment is a number of CPU seconds of the run, which does not move with
the load of the machine, or a number of file operations (renames, removals, new folders), between which time is short.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import mmap
import os
import pkgutil
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from results import find_fault, list_folder, read_step
from targets import Target

import sortk

PR_SET_PDEATHSIG = 1
LATE_IMPORTS = (  # of which the first optimizer's, _dynamo, takes as long as all the work of a run
    "encodings.utf_8_sig",
    "kaldialign",
    "optuna",
    "optuna.importance",
    "scipy.signal",
    "sentencepiece",
    "silero_vad",
    "torch._dynamo",
    "torch.utils.data",
    "tqdm",
)
WITHOUT_MODELS = (
    "sortk.cli",
    "sortk.corpora",
    "sortk.formats.manifest",
    "sortk.prepare",
    "sortk.report",
    "sortk.stages",
)
LATE_WITHOUT_MODELS = ("encodings.utf_8_sig", "scipy.signal", "tqdm")
POLL_SECONDS = 0.004
LOOK_CPU_SECONDS, LOOK_SECONDS = 0.004, 0.1  # its files are looked at when a run has worked so long, or after that time
LOOKS_AT_NEW = 10  # so many looks at new files for one at all, which may have been written in place
SETTLED_NS = 20_000_000  # a folder that changed in this time may change again within the resolution of the clock
PATIENCE_SECONDS = 300.0  # a run that takes so long hangs

Prelude = Callable[[], None]


def preload(with_models: bool) -> None:
    """Import all of sortk, and what it imports only when needed; nothing may have started a thread.

    Without models, import what stages 0 and 1 need: torch is most of the rest.
    """
    for module in pkgutil.walk_packages(sortk.__path__, "sortk."):
        if module.name != "sortk.__main__" and (with_models or module.name.startswith(WITHOUT_MODELS)):
            with contextlib.suppress(ImportError):  # of an optional dependency
                importlib.import_module(module.name)
    for name in LATE_IMPORTS if with_models else LATE_WITHOUT_MODELS:
        importlib.import_module(name)
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        raise RuntimeError("a library has started threads, so this process cannot be forked")
    gc.freeze()  # a collection in a run would copy the memory that it shares with this process


@dataclass
class Run:
    """A process of its own group, and how it ended."""

    pid: int
    messages: Path  # what it wrote to standard error
    began: float = field(default_factory=time.monotonic)
    output: Path | None = None  # what it wrote to standard output
    code: int | None = None  # negative: the signal that ended it
    usage: resource.struct_rusage | None = None  # when it is over

    def is_over(self) -> bool:
        if self.code is None:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                self.code, self.usage = os.waitstatus_to_exitcode(status), usage
        return self.code is not None

    def cpu_seconds(self) -> float:
        try:
            with open(f"/proc/{self.pid}/schedstat", encoding="ascii") as file:  # noqa: PTH123
                return int(file.read().split()[0]) / 1e9
        except (FileNotFoundError, ProcessLookupError):
            return 0.0

    def children(self) -> list[int]:
        """Its worker processes."""
        try:
            pids = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        except FileNotFoundError:
            return []
        return [int(pid) for pid in pids if _is_worker(pid)]

    def signal(self, number: int) -> None:
        """To the whole group, as a terminal or a batch system does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """kill -9 of everything that runs; returns when all is gone."""
        self.signal(signal.SIGKILL)
        while not self.is_over():
            time.sleep(0.001)

    def told(self) -> str:
        return self.messages.read_text(encoding="utf-8", errors="replace")

    def written(self) -> str:
        return self.output.read_text(encoding="utf-8", errors="replace") if self.output else ""


def _is_worker(pid: str) -> bool:
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def start(
    arguments: Sequence[str],
    folder: Path,
    messages: Path,
    prelude: Prelude | None = None,
    output: Path | None = None,
    source: Path | None = None,
) -> Run:
    """`sortk ARGUMENTS < source > output` in the folder; `prelude` is called in the new process before."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return Run(pid, messages, output=output)
    code = 70
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # it does not outlive this process
        os.chdir(folder)
        new = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(source or os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open(output or os.devnull, new), 1)
        os.dup2(os.open(messages, new), 2)
        code = _call(arguments, prelude)
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)  # never into the frames of the process that was forked


def _call(arguments: Sequence[str], prelude: Prelude | None) -> int:
    from sortk.__main__ import start as start_sortk

    try:
        if prelude is not None:
            prelude()
        sys.argv = ["sortk", *arguments]
        start_sortk()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


class Operations:
    """Counts what a run does to the names of files; it may be killed at one of these, before it is done."""

    NAMES = ("rename", "replace", "unlink", "remove", "rmdir", "mkdir")

    def __init__(self, kill_at: int = 0) -> None:
        self._counter, self._kill_at = mmap.mmap(-1, 8), kill_at  # shared with the process that is forked

    @property
    def count(self) -> int:
        return int.from_bytes(self._counter[:8], "little")

    def __call__(self) -> None:
        """The prelude of a run: from here on its operations count."""
        for name in self.NAMES:
            setattr(os, name, self._counting(getattr(os, name)))

    def _counting(self, operation: Callable[..., None]) -> Callable[..., None]:
        def counted(*arguments: object, **options: object) -> None:
            count = self.count + 1
            self._counter[:8] = count.to_bytes(8, "little")
            if count == self._kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            operation(*arguments, **options)

        return counted


class Watch:
    """Looks at the files of a trial again and again while it is worked on."""

    def __init__(self, exp: Path, target: Target, known: Container[str] = ()) -> None:
        self.exp, self.target, self.known = exp, target, known
        self.faults: list[str] = []  # half files, and folders that have their name too early
        self.redone: list[str] = []  # work that was there, and was done again
        self._seen: dict[str, tuple[int, int, int]] = {}
        self._folders: dict[str, str] = {}  # where each was seen: beside a finished folder, --force fills another
        self._steps: dict[str, int] = {}
        self._n_looks = 0
        self._listed: dict[str, tuple[int, list[str]]] = {}  # time of change of a folder, and the folders in it

    def start_over(self) -> None:
        """From here on all work may be done again, as --force does."""
        self._seen, self._steps, self.redone = {}, {}, []

    def look(self, at_all: bool = True) -> None:
        """Look at files that are new; `at_all`: also at those in folders that have not changed."""
        final, partial = (f"{self.exp}/{self.target.output}{suffix}" for suffix in ("", ".partial"))
        if self.target.is_folder and Path(final).exists() and not Path(final, "done.json").exists():
            self.faults.append(f"{final} has its name, but is not done")
        self._n_looks += 1
        for folder in (partial, final):
            self._look_in(folder, folder, at_all or self._n_looks % LOOKS_AT_NEW == 0)

    def _look_in(self, folder: str, top: str, at_all: bool) -> None:
        try:
            changed = os.stat(folder).st_mtime_ns  # noqa: PTH116 (Path is as slow as the work that is watched)
        except (FileNotFoundError, NotADirectoryError):
            return
        known, inner = self._listed.get(folder, (0, []))
        if at_all or changed != known:
            inner = []
            is_settled = time.time_ns() - changed > SETTLED_NS  # before it is listed
            for entry in list_folder(folder):
                if entry.is_dir():
                    inner.append(entry.path)
                else:
                    self._look_at(entry.path, top)
            self._listed[folder] = (changed if is_settled else 0, inner)
        for path in inner:
            self._look_in(path, top, at_all)

    def _look_at(self, path: str, folder: str) -> None:
        try:
            facts = os.stat(path)  # noqa: PTH116
        except FileNotFoundError:
            return
        seen = (facts.st_ino, facts.st_mtime_ns, facts.st_size)
        name = path[len(folder) + 1 :]
        before, was_here = self._seen.get(name), self._folders.get(name) == folder
        if before == seen:
            return
        self._seen[name], self._folders[name] = seen, folder
        if fault := find_fault(Path(path), self.known):
            self.faults.append(fault)
        if before and was_here and before[0] != seen[0] and any(Path(name).match(item) for item in self.target.items):
            self.redone.append(name)
        if name.endswith("last.safetensors"):
            self._look_at_step(Path(path), name)

    def _look_at_step(self, path: Path, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            step = read_step(path)
            if step < self._steps.get(name, 0):
                self.redone.append(f"{name}: step {step} after {self._steps[name]}")
            self._steps[name] = step


def wait_unwatched(run: Run) -> None:
    """Wait for the end of a run whose files are damaged already."""
    while not run.is_over():
        if time.monotonic() - run.began > PATIENCE_SECONDS:
            run.kill()
        time.sleep(POLL_SECONDS)


def wait(run: Run, watch: Watch, until: Callable[[], bool] = lambda: False) -> bool:
    """Watches until the moment comes; False if the run has ended before."""
    looked_at, looked = -1.0, time.monotonic()
    while not run.is_over():
        if until():
            return True
        if time.monotonic() - run.began > PATIENCE_SECONDS:
            run.kill()
            watch.faults.append(f"a run of {watch.target.name} hung and was killed")
            return False
        worked, now = run.cpu_seconds(), time.monotonic()
        if worked - looked_at > LOOK_CPU_SECONDS or now - looked > LOOK_SECONDS:
            watch.look(at_all=False)
            looked_at, looked = worked, now
        time.sleep(POLL_SECONDS)
    watch.look()
    return False
