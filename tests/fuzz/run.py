"""Damaged files by the million: every reader reads them, or says in one sentence what is wrong. Anything else is a bug.

    python tests/fuzz/run.py --inputs 1000000 --seed 0
    python tests/fuzz/run.py --target rttm --number 4711        one input again, with its traceback

A documented error is a ValueError or an OSError that names the file, on one line. A bug is any other exception, a
crash, more than SECONDS of computing for one input, or more than MEGABYTES of memory. A reader runs in a process of its
own, so that none of these ends the run; inputs follow from seed, reader and number, so that each can be had again.
What each reader has come to is kept in a file (--state), so that a run that was interrupted continues.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "chaos"), str(HERE.parents[1])]

import page  # noqa: E402

from fuzz.mutate import mutate  # noqa: E402
from fuzz.targets import TARGETS, Target  # noqa: E402

SECONDS = 5.0  # of computing for one input
PATIENCE_SECONDS = 60.0  # of waiting for one: the machine may be busy
MEGABYTES = 512  # that one input may take
LONGEST_MESSAGE = 1500  # characters
FEWEST = 10  # inputs of a reader
FOLDER = "work"  # what a message must name: all files lie in it
STATE = HERE.parents[1] / ".fuzz.json"


@dataclass(frozen=True)
class Bug:
    """An input that did not end as promised."""

    target: str
    number: int
    what: str


@dataclass
class Tally:
    """What became of the inputs of a reader."""

    target: str
    inputs: int = 0
    read: int = 0
    errors: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    megabytes: int = 0  # by which its memory grew over all inputs
    bugs: list[Bug] = field(default_factory=list)


def make_input(name: str, seed: int, number: int, seeds: list[Any]) -> dict[str, bytes]:
    return mutate(random.Random(f"{seed} {name} {number}"), seeds)


def try_input(target: Target, parts: dict[str, bytes], folder: Path) -> tuple[bool, str]:
    """Whether it was read, and what is wrong with how it ended; empty if nothing is."""
    began, before = time.process_time(), _peak_megabytes()
    was_read, fault = _read(target, parts, folder)
    if not fault and time.process_time() - began > SECONDS:
        fault = f"took {time.process_time() - began:.1f} s"
    if not fault and _peak_megabytes() - before > MEGABYTES:
        fault = f"took {_peak_megabytes() - before} MB"
    return was_read, fault


def _read(target: Target, parts: dict[str, bytes], folder: Path) -> tuple[bool, str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            target.read(parts, folder)
    except (ValueError, OSError) as error:
        return False, find_fault(error, folder)
    except Exception as error:
        return False, _describe(error)
    return True, ""


def find_fault(error: Exception, folder: Path) -> str:
    """What is wrong with a message: it must be a sentence of ours, which names the file."""
    text = str(error)
    if isinstance(error, UnicodeError) or type(error).__module__ not in ("builtins", "sortk.formats.files"):
        return _describe(error)
    is_named = isinstance(error, OSError) and bool(error.filename)
    if not is_named and FOLDER not in text and not text.startswith(("/", "--set")):
        return f"names no file: {_describe(error)}"
    if len(text) > LONGEST_MESSAGE:
        return f"{len(text)} characters: {_describe(error)}"
    if len(text.splitlines()) != 1:
        return f"several lines: {_describe(error)}"
    return ""


def _describe(error: Exception) -> str:
    """The exception, and where in sortk it comes from."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if "sortk" in frame.filename]
    place = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {str(error)[:160]!r}{place}"


def _peak_megabytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


# ---------------------------------------------------------------------------------------------------------------------
# A process for each reader


def _work(name: str, seed: int, first: int, last: int, state: Any, pipe: Any) -> None:
    """Reads inputs, tells what is wrong with them, and at last how many were read."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    target, seeds = TARGETS[name], TARGETS[name].seeds()
    os.dup2(0, 2)  # what C++ libraries have to say about damaged files
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as temporary:
        folder = Path(temporary) / FOLDER
        folder.mkdir()
        for parts in seeds:  # warm up: imports and caches are no fault of an input
            state[1] = time.monotonic()
            was_read, fault = try_input(target, dict(parts), folder)
            if target.seeds_are_valid and not was_read:
                pipe.send((first, f"a valid file is refused: {fault}"))
        before = _peak_megabytes()
        _limit_memory()
        for number in range(first, last):
            state[0] = number
            state[1] = time.monotonic()
            was_read, fault = try_input(target, make_input(name, seed, number, seeds), folder)
            state[2] += was_read
            if fault:
                pipe.send((number, fault))
        state[3] = _peak_megabytes() - before
        state[0] = last


def _limit_memory() -> None:
    """What asks for much more than it may have gets a MemoryError before the machine suffers."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + 8 * MEGABYTES * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def fuzz(name: str, seed: int, n_inputs: int) -> Tally:
    """All inputs of a reader; where a process ends or hangs, another one goes on behind that input."""
    tally, began, cpu_began, number = Tally(name, n_inputs), time.monotonic(), sum(os.times()[:4]), 0
    while number < n_inputs:
        number = _run_process(tally, seed, number)
    tally.seconds, tally.cpu_seconds = time.monotonic() - began, sum(os.times()[:4]) - cpu_began
    tally.errors = tally.inputs - tally.read - len(tally.bugs)
    return tally


def _run_process(tally: Tally, seed: int, first: int) -> int:
    """Runs a process to its end; the number of the first input that is still to be tried."""
    context = multiprocessing.get_context("fork")
    state = context.Array("d", [first, time.monotonic(), 0, 0], lock=False)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(tally.target, seed, first, tally.inputs, state, sender))
    process.start()
    sender.close()
    fault = ""
    while process.is_alive() and not fault:
        process.join(0.1)
        tally.bugs += [Bug(tally.target, *message) for message in _messages(receiver)]
        if time.monotonic() - state[1] > PATIENCE_SECONDS:
            fault = f"hangs: {PATIENCE_SECONDS:.0f} s"
            process.kill()
    process.join()
    tally.bugs += [Bug(tally.target, *message) for message in _messages(receiver)]
    tally.read, tally.megabytes = tally.read + int(state[2]), max(tally.megabytes, int(state[3]))
    if not fault and process.exitcode == 0:
        return tally.inputs
    tally.bugs.append(Bug(tally.target, int(state[0]), fault or f"crash: exit code {process.exitcode}"))
    return int(state[0]) + 1


def _messages(receiver: Any) -> Iterator[tuple[int, str]]:
    try:
        while receiver.poll():
            yield receiver.recv()
    except EOFError:
        return


# ---------------------------------------------------------------------------------------------------------------------
# The command


def share_inputs(n_inputs: int, names: list[str]) -> dict[str, int]:
    """How many inputs each reader gets: by its share, at least FEWEST, and all of them together."""
    whole = sum(TARGETS[name].share for name in names)
    shares = {name: max(FEWEST, n_inputs * TARGETS[name].share // whole) for name in names}
    shares[names[0]] += max(0, n_inputs - sum(shares.values()))
    return shares


def print_table(tallies: list[Tally]) -> None:
    print(f"{'reader':14} {'inputs':>9} {'read':>9} {'errors':>9} {'bugs':>5} {'seconds':>8} {'grew MB':>8}")
    whole = Tally("all", *(sum(getattr(tally, name) for tally in tallies) for name in ("inputs", "read", "errors")),
                  seconds=sum(tally.seconds for tally in tallies), megabytes=max(tally.megabytes for tally in tallies),
                  bugs=[bug for tally in tallies for bug in tally.bugs])  # fmt: skip
    for tally in (*tallies, whole):
        print(f"{tally.target:14} {tally.inputs:9} {tally.read:9} {tally.errors:9} {len(tally.bugs):5} "
              f"{tally.seconds:8.1f} {tally.megabytes:8}")  # fmt: skip


def publish(tallies: list[Tally], seed: int, commit: str) -> None:
    whole = [sum(getattr(tally, name) for tally in tallies) for name in ("inputs", "read", "errors")]
    n_bugs = sum(len(tally.bugs) for tally in tallies)
    rows = [[tally.target, tally.inputs, tally.read, tally.errors, len(tally.bugs)] for tally in tallies]
    page.publish(
        "fuzz",
        {
            "summary": f"{whole[0]} damaged inputs of {len(tallies)} readers: {n_bugs} bugs.",
            "table": [["reader", "inputs", "read", "errors", "bugs"], *rows, ["all", *whole, n_bugs]],
            "minutes": sum(tally.seconds for tally in tallies) / 60,
            "cpu_minutes": sum(tally.cpu_seconds for tally in tallies) / 60,
            "command": f"INPUTS={whole[0]} SEED={seed}",
        },
        commit,
    )


def print_bugs(tallies: list[Tally]) -> None:
    """Each kind once, with the first input that shows it."""
    kinds: dict[tuple[str, str], list[Bug]] = {}
    for bug in (bug for tally in tallies for bug in tally.bugs):
        kind = bug.what.rpartition("(")[2] if "(" in bug.what else bug.what
        kinds.setdefault((bug.target, f"{bug.what.partition(':')[0].lstrip('0123456789')} {kind}"), []).append(bug)
    for bugs in kinds.values():
        print(f"{bugs[0].target} --number {bugs[0].number} (and {len(bugs) - 1} more): {bugs[0].what}")


def load_state(path: Path, about: dict[str, Any]) -> list[Tally]:
    """Return the readers that an interrupted run of the same commit with the same options is done with."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    if found["about"] != about:
        return []
    print(f"continues after {len(found['tallies'])} readers ({path})", file=sys.stderr)
    return [Tally(**tally | {"bugs": [Bug(**bug) for bug in tally["bugs"]]}) for tally in found["tallies"]]


def save_state(path: Path, about: dict[str, Any], tallies: list[Tally]) -> None:
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(json.dumps({"about": about, "tallies": [asdict(tally) for tally in tallies]}), "utf-8")
    temporary.replace(path)


def show(name: str, seed: int, number: int) -> None:
    """One input, and what becomes of it."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / FOLDER
        folder.mkdir()
        parts = make_input(name, seed, number, TARGETS[name].seeds())
        for part, data in parts.items():
            print(f"{part}: {data[:3000]!r}{' ...' if len(data) > 3000 else ''}")
        print(TARGETS[name].read(parts, folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000, help="in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", action="append", choices=list(TARGETS), help="one reader, not all; repeatable")
    parser.add_argument("--number", type=int, help="show one input of a reader")
    parser.add_argument("--json", type=Path, help="the table as JSON, into this file")
    parser.add_argument("--state", type=Path, default=STATE, help="where an interrupted run is kept, to continue it")
    parser.add_argument("--publish", action="store_true", help="write the figures into docs/reliability.md")
    arguments = parser.parse_args()
    names = arguments.target or list(TARGETS)
    if arguments.number is not None:
        show(names[0], arguments.seed, arguments.number)
        return
    commit = page.find_tested_commit(arguments.publish)
    about = {"inputs": arguments.inputs, "seed": arguments.seed, "readers": names, "commit": commit}
    tallies = load_state(arguments.state, about)
    for module in ("sortk.inference.diarize", "sortk.report.experiment", "sortk.training.diarizer", "optuna"):
        importlib.import_module(module)  # once, and not in each process that is forked
    for name, n_inputs in list(share_inputs(arguments.inputs, names).items())[len(tallies) :]:
        tally = fuzz(name, arguments.seed, n_inputs)
        spent = f"{tally.seconds:.0f} s, {tally.cpu_seconds:.0f} of CPU"
        print(f"{name}: {n_inputs} inputs, {len(tally.bugs)} bugs, {spent}", file=sys.stderr)
        tallies.append(tally)
        save_state(arguments.state, about, tallies)
    print_table(tallies)
    print_bugs(tallies)
    if arguments.publish:
        publish(tallies, arguments.seed, commit)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(tally) for tally in tallies], indent=1), encoding="utf-8")
    arguments.state.unlink(missing_ok=True)
    sys.exit(any(tally.bugs for tally in tallies))


if __name__ == "__main__":
    main()
