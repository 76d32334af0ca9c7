"""The faults: each disturbs a run of a target, and then lets it be run again until it is done."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from random import Random

from results import differences, digest
from runs import Operations, Prelude, Run, Watch, start, wait, wait_unwatched
from targets import STAGES, Target

DAY_SECONDS = 86_400
RESUMED_SHARE = 0.4  # of the work of a complete run, in which a run that continues is killed


@dataclass(frozen=True)
class Reference:
    """An undisturbed run."""

    cpu_seconds: float
    n_operations: int  # see runs.Operations
    files: dict[str, str]  # see results.digest
    n_bytes: int


@dataclass
class Tally:
    """What has come of the faults of one target."""

    faults: Counter[str] = field(default_factory=Counter)  # by kind
    recovered: int = 0
    redone: int = 0
    problems: list[str] = field(default_factory=list)


class Trial:
    """A fresh experiment folder, always at the same place, with links to the finished stages that a target reads."""

    def __init__(self, root: Path, target: Target, reference: Reference, tally: Tally, rng: Random) -> None:
        self.root, self.target, self.reference, self.tally, self.rng = root, target, reference, tally, rng
        self.exp, self.folder = root / "trial" / "exp", root / "trial"
        self.kind = ""

    def renew(self) -> None:
        """Nothing is left of an earlier trial."""
        renew(self.root, self.target)
        self.watch = Watch(self.exp, self.target, set(self.reference.files.values()))
        self._n_problems = len(self.tally.problems)

    def start(self, *more: str, prelude: Prelude | None = None) -> Run:
        return start([*self.target.arguments, *more], self.folder, self.root / "messages", prelude)

    def draw_moment(self, share: float = 1.0) -> float:
        """CPU seconds of a run, anywhere in the first `share` of its work."""
        return self.rng.uniform(0, share * self.reference.cpu_seconds)

    def disturb_at_random(self, run: Run, share: float = 1.0) -> bool:
        """Waits for a random moment; False if the run was over before."""
        moment = self.draw_moment(share)
        return wait(run, self.watch, lambda: run.cpu_seconds() >= moment)

    def note(self, kind: str) -> None:
        """A fault was injected."""
        self.kind = kind
        self.tally.faults[kind] += 1

    def object(self, what: str) -> None:
        self.tally.problems.append(f"{self.target.name}, {self.kind}: {what}")

    def expect_sentence(self, run: Run, *codes: int) -> None:
        """The run has ended as it should, and told so in one line."""
        told = run.told()
        if run.code not in codes:
            self.object(f"exit code {run.code}: {told[-300:]!r}")
        elif "Traceback" in told or "bug of sortk" in told or (run.code == 1 and told.count("\nsortk: ") > 1):
            self.object(f"no clean message: {told[-300:]!r}")

    def finish(self, n_faults: int = 1) -> None:
        """Runs it again, undisturbed, and holds the result against the reference."""
        run = self.start()
        wait(run, self.watch)
        if run.code != 0:
            self.object(f"exit code {run.code} when run again: {run.told()[-300:]!r}")
        self.compare()
        self.count_recovered(n_faults)

    def count_recovered(self, n_faults: int) -> None:
        """All faults of this trial, unless there was anything to object to."""
        if len(self.tally.problems) == self._n_problems:
            self.tally.recovered += n_faults

    def compare(self, left: tuple[str, ...] = ()) -> None:
        """The result equals that of the undisturbed run; nothing was seen half done, and nothing is left over but
        `left`."""
        different = differences(self.reference.files, digest(self.exp / self.target.output))
        if different:
            self.object(f"another result: {'; '.join(different[:4])}")
        for fault in self.watch.faults[:3]:
            self.object(fault)
        expected = {*self.target.reads, self.target.output, *left}
        more = [path.name for path in self.exp.iterdir() if path.name not in expected]
        if more:
            self.object(f"left behind: {', '.join(sorted(more))}")
        self.tally.redone += len(self.watch.redone)
        self.watch.faults, self.watch.redone = [], []


def renew(root: Path, target: Target) -> None:
    """root/trial/exp holds links to what the target reads, and nothing else."""
    exp = root / "trial" / "exp"
    shutil.rmtree(root / "trial", ignore_errors=True)
    exp.mkdir(parents=True)
    link_inputs(root, target)


def link_inputs(root: Path, target: Target) -> None:
    for name in target.reads:
        (root / "trial" / "exp" / name).symlink_to(root / "reference" / name)


# ---------------------------------------------------------------------------------------------------------------------
# Kills


def kill_again_and_again(trial: Trial, n_kills: int) -> None:
    """kill -9, run again, kill -9 ... until it is done in spite of all; then from nothing once more.

    A run that continues has less to do, so the next kill comes earlier: a run that ends before costs as much as many
    kills.
    """
    trial.renew()
    n_done, since_finish = 0, 0
    while n_done < n_kills:
        if _kill_at_random(trial, share=RESUMED_SHARE if since_finish else 1.0):
            trial.note("kill -9")
            trial.watch.look()
            n_done, since_finish = n_done + 1, since_finish + 1
            continue
        trial.finish(since_finish)  # it is through: now there is nothing to do
        since_finish = 0
        trial.renew()
    trial.finish(since_finish)


def _kill_at_random(trial: Trial, *more: str, n_operations: int = 0, share: float = 1.0) -> bool:
    """Start a run and kill it at a random moment of the first `share` of its work; False if it was over before."""
    if n_operations or trial.rng.random() < 0.5:
        operations = Operations(trial.rng.randint(1, n_operations or ceil(share * trial.reference.n_operations)))
        run = trial.start(*more, prelude=operations)
        wait(run, trial.watch)
        return run.code == -signal.SIGKILL
    run = trial.start(*more)
    is_running = trial.disturb_at_random(run, share)
    if is_running:
        run.kill()
    return is_running


def kill_in_force(trial: Trial) -> None:
    """--force on a finished or an unfinished folder is killed, mostly while it clears the old files."""
    if not trial.target.is_folder:
        return
    trial.renew()
    if trial.rng.random() < 0.5:
        wait(trial.start(), trial.watch)
    else:
        _kill_at_random(trial)
    trial.watch.start_over()
    n_files = sum(not path.is_symlink() for path in trial.exp.rglob("*"))
    if _kill_at_random(trial, "--force", n_operations=n_files + 2):
        trial.note("kill in --force")
        trial.watch.start_over()
        wait(trial.start(), trial.watch)
        trial.compare(left=(f"{trial.target.output}.partial",))  # the finished result stays, and what --force had begun
        trial.watch.start_over()
        wait(trial.start("--force"), trial.watch)
        trial.watch.start_over()
        trial.finish()


# ---------------------------------------------------------------------------------------------------------------------
# Signals


def terminate(trial: Trial) -> None:
    """SIGTERM, as batch systems send it."""
    _send(trial, "SIGTERM", signal.SIGTERM, -signal.SIGTERM, 130, 0)


def interrupt(trial: Trial) -> None:
    """Ctrl-C."""
    _send(trial, "SIGINT", signal.SIGINT, 130, 0)


def _send(trial: Trial, kind: str, number: int, *codes: int) -> None:
    trial.renew()
    run = trial.start()
    trial.disturb_at_random(run)
    run.signal(number)
    trial.note(kind)
    wait(run, trial.watch)
    trial.expect_sentence(run, *codes)
    trial.finish()


def lose_a_worker(trial: Trial) -> None:
    """One of two worker processes is killed, as by a machine that runs out of memory."""
    run, workers = _start_workers(trial)
    if workers:
        os.kill(trial.rng.choice(workers), signal.SIGKILL)
        trial.note("worker dies")
        wait(run, trial.watch)
        trial.expect_sentence(run, 0, 1)
        trial.finish()


def lose_the_parent(trial: Trial) -> None:
    """The process dies, its workers are not told: they must not go on writing."""
    run, workers = _start_workers(trial)
    if workers:
        os.kill(run.pid, signal.SIGKILL)
        trial.note("parent dies")
        wait(run, trial.watch)
        _expect_gone(trial, workers)
        trial.finish()


def _start_workers(trial: Trial) -> tuple[Run, list[int]]:
    """A run with two workers at a random moment; none if it has too little work for two, or was over before."""
    trial.renew()
    run = trial.start("--nj", "2")
    wait(run, trial.watch, lambda: bool(run.children()))
    until = time.monotonic() + trial.rng.uniform(0, 2 * trial.reference.cpu_seconds)
    wait(run, trial.watch, lambda: time.monotonic() > until)
    return run, run.children()


def _expect_gone(trial: Trial, workers: list[int]) -> None:
    give_up = time.monotonic() + 60  # they may be busy importing
    while any(_is_alive(pid) for pid in workers):
        if time.monotonic() > give_up:
            trial.object("workers outlive their parent")
            return
        time.sleep(0.01)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# ---------------------------------------------------------------------------------------------------------------------
# Disks


@contextmanager
def _small_disk(trial: Trial, n_bytes: int) -> Iterator[Callable[[str], None]]:
    """The experiment is on a disk of so many bytes; gives a function that changes how it is mounted."""
    trial.renew()
    shutil.rmtree(trial.exp)
    trial.exp.mkdir()
    _mount("-t", "tmpfs", "-o", f"size={n_bytes}", "tmpfs", str(trial.exp))
    try:
        link_inputs(trial.root, trial.target)
        yield lambda options: _mount("-o", f"remount,{options}", str(trial.exp))
    finally:
        subprocess.run(["umount", str(trial.exp)], check=True)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


def may_mount(root: Path) -> bool:
    """Whether this machine lets us."""
    place = root / "mount"
    place.mkdir()
    try:
        _mount("-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place))
    except (OSError, subprocess.CalledProcessError):
        return False
    subprocess.run(["umount", str(place)], check=True)
    return True


def fill_the_disk(trial: Trial) -> None:
    """There is room for a part of the result only; later for all of it."""
    n_bytes = max(4096, int(trial.rng.uniform(0.1, 0.8) * trial.reference.n_bytes))
    with _small_disk(trial, n_bytes) as remount:
        run = trial.start()
        wait(run, trial.watch)
        trial.note("full disk")
        trial.expect_sentence(run, 1)
        remount("size=4g")
        trial.finish()


def forbid_writing(trial: Trial) -> None:
    """A run is killed; when it is run again, its disk is read-only; then it is not."""
    with _small_disk(trial, 4 << 30) as remount:
        run = trial.start()
        trial.disturb_at_random(run)
        run.kill()
        if run.code == 0:
            trial.compare()
            return
        remount("ro")
        run = trial.start()
        wait(run, trial.watch)
        trial.note("read-only")
        trial.expect_sentence(run, 0, 1)  # 0: the kill came when all was done
        remount("rw")
        trial.finish()


# ---------------------------------------------------------------------------------------------------------------------
# Inputs, other runs, clocks


def take_an_input_away(trial: Trial) -> None:
    """A folder that is read is gone: first in the middle of a run, then when one starts."""
    if not trial.target.reads:
        return
    trial.renew()
    run = trial.start()
    trial.disturb_at_random(run)
    taken = trial.exp / trial.rng.choice(trial.target.reads)
    taken.unlink()
    wait(run, trial.watch)
    trial.note("input gone")
    trial.expect_sentence(run, 0, 1)
    if run.code == 1:
        run = trial.start()
        wait(run, trial.watch)
        trial.note("input gone")
        trial.expect_sentence(run, 0, 1)
    taken.symlink_to(trial.root / "reference" / taken.name)
    trial.finish(2 if run.code == 1 else 1)


def run_twice(trial: Trial) -> None:
    """A second run is started in the middle of the first."""
    trial.renew()
    first = trial.start()
    if not trial.disturb_at_random(first):
        return
    second = start(trial.target.arguments, trial.folder, trial.root / "messages-2")
    trial.note("two runs")
    wait(second, trial.watch)
    wait(first, trial.watch)
    trial.expect_sentence(first, 0)
    trial.expect_sentence(second, *((0, 1) if trial.target.is_folder else (0,)))
    if second.code == 1 and "already being run by" not in second.told():
        trial.object(f"the second run was not told who is at it: {second.told()[-300:]!r}")
    if not trial.target.shares_work:
        trial.finish()
    else:
        trial.count_recovered(1)


def replace_an_input(trial: Trial) -> None:
    """`sortk stage K --force` on a folder that a stage reads is refused while it reads."""
    stages = {stage.output: stage for stage in STAGES}
    known = [stages[name] for name in trial.target.reads if set(stages[name].reads) <= set(trial.target.reads)]
    if not known or trial.target not in STAGES:
        return
    trial.renew()
    run = trial.start()
    if not wait(run, trial.watch, (trial.exp / f"{trial.target.output}.partial").exists):
        return
    os.kill(run.pid, signal.SIGSTOP)  # it reads for as long as it takes
    other = start([*trial.rng.choice(known).arguments, "--force"], trial.folder, trial.root / "messages-2")
    wait_unwatched(other)
    os.kill(run.pid, signal.SIGCONT)
    trial.note("input replaced")
    if other.code != 1 or "already being run by" not in other.told():
        trial.object(f"a folder that is read was replaced, exit code {other.code}: {other.told()[-300:]!r}")
    wait(run, trial.watch)
    trial.expect_sentence(run, 0)
    trial.finish()


def edit_an_input(trial: Trial) -> None:
    """One byte of a file that a finished command has read is another, the size and the time of change are not."""
    if not trial.target.edits:
        return
    trial.renew()
    for name in trial.target.reads:
        (trial.exp / name).unlink()
        shutil.copytree(trial.root / "reference" / name, trial.exp / name)
    wait(trial.start(), trial.watch)
    edited = trial.rng.choice([path for pattern in trial.target.edits for path in sorted(trial.exp.glob(pattern))])
    content, facts = edited.read_bytes(), edited.stat()
    place = trial.rng.randrange(len(content))
    edited.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    os.utime(edited, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    trial.note("same-size edit")
    run = trial.start()
    wait(run, trial.watch)
    if run.code != 1 or " is stale" not in run.told():
        trial.object(f"{edited.name} was changed, exit code {run.code}: {run.told()[-300:]!r}")
    edited.write_bytes(content)
    trial.finish()


def tamper(trial: Trial) -> None:
    """A file of a finished or an unfinished folder is damaged; --force, or removing what is named, mends it."""
    if not trial.target.is_folder:
        return
    trial.renew()
    if trial.rng.random() < 0.5:
        wait(trial.start(), trial.watch)
    else:
        _kill_at_random(trial)
    own = [trial.exp / trial.target.output, trial.exp / f"{trial.target.output}.partial"]
    files = sorted(path for folder in own for path in folder.rglob("*") if path.is_file())
    if not files:
        return
    damaged = trial.rng.choice(files)
    damaged.write_bytes(_damage(trial.rng, damaged.read_bytes()))
    trial.note("tampering")
    for arguments in (trial.target.arguments, *trial.target.looks):
        run = start(arguments, trial.folder, trial.root / "messages")
        wait_unwatched(run)
        trial.expect_sentence(run, 0, 1)
    run = trial.start("--force")
    wait_unwatched(run)
    if run.code == 1 and "remove the folder" in run.told():
        for folder in own:
            shutil.rmtree(folder, ignore_errors=True)
    trial.watch.start_over()
    trial.finish()


def _damage(rng: Random, content: bytes) -> bytes:
    place = rng.randrange(len(content) + 1)
    flipped = bytes(byte ^ rng.randrange(256) if abs(at - place) < 8 else byte for at, byte in enumerate(content))
    return rng.choice((b"", content[:place], b"null", b"[]", b"{}", b'"x"\n', flipped, rng.randbytes(100)))


def turn_the_clock_back(trial: Trial) -> None:
    """A run is killed, and its files are of tomorrow; while the next one works, the clock jumps back by a day."""
    trial.renew()
    run = trial.start()
    trial.disturb_at_random(run)
    run.kill()
    tomorrow = time.time() + DAY_SECONDS
    for path in trial.exp.rglob("*"):
        if not path.is_symlink():
            os.utime(path, (tomorrow, tomorrow))
    moment = trial.draw_moment()
    run = trial.start(prelude=lambda: _jump_back_after(moment))
    trial.note("clock back")
    wait(run, trial.watch)
    trial.expect_sentence(run, 0)
    trial.finish()


def _jump_back_after(cpu_seconds: float) -> None:
    """In this process, every function that tells the time of day does so."""
    time_of_day, localtime, gmtime, strftime = time.time, time.localtime, time.gmtime, time.strftime

    def now() -> float:
        return time_of_day() - (DAY_SECONDS if time.process_time() > cpu_seconds else 0)

    def now_if(seconds: float | None) -> float:
        return now() if seconds is None else seconds

    patches: dict[str, Callable[..., object]] = {
        "time": now,
        "time_ns": lambda: int(now() * 1e9),
        "localtime": lambda seconds=None: localtime(now_if(seconds)),
        "gmtime": lambda seconds=None: gmtime(now_if(seconds)),
        "strftime": lambda form, when=None: strftime(form, when or localtime(now())),
    }
    for name, function in patches.items():
        setattr(time, name, function)


OTHERS: tuple[Callable[[Trial], None], ...] = (
    terminate,
    interrupt,
    kill_in_force,
    take_an_input_away,
    replace_an_input,
    edit_an_input,
    tamper,
    run_twice,
    turn_the_clock_back,
)
WORKERS: tuple[Callable[[Trial], None], ...] = (lose_a_worker, lose_the_parent)  # of targets that take --nj
DISKS: tuple[Callable[[Trial], None], ...] = (fill_the_disk, forbid_writing)
KINDS = (
    "kill -9",
    "kill in --force",
    "SIGTERM",
    "SIGINT",
    "worker dies",
    "parent dies",
    "full disk",
    "read-only",
    "input gone",
    "input replaced",
    "same-size edit",
    "tampering",
    "two runs",
    "clock back",
)
