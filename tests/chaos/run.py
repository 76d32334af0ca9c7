"""Tries to break sortk, and reports what it has survived: `make chaos`.

Every stage, and the commands that are run by themselves, are disturbed again and again at random moments, then run
again. The result must be that of an undisturbed run, files under final names must be complete at any time, and finished
work must not be done again. Then hostile files and folders are given to commands (attacks.py).

The work is divided into units of some seconds, whose random values follow from the seed and the name of the unit. What
each has found is kept in a file (--state), so that a run that was interrupted continues. Ctrl-C or SIGTERM ends it
early; only a complete run is published.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from attacks import ATTACKS, Count, Range
from faults import DISKS, KINDS, OTHERS, WORKERS, Reference, Tally, Trial, kill_again_and_again, may_mount, renew
from page import CHECKOUT, find_tested_commit, format_table, publish
from results import digest, find_files
from runs import Operations, Watch, preload, start, wait
from targets import COMMANDS, STAGES, Target

KILLS_OF_A_UNIT = 10
STATE = CHECKOUT / ".chaos.json"
WITHOUT_MODELS = {
    "stage 0 prepare",
    "stage 1 simulate",
    "simulate",
    "locks that are something else",
}  # torch is not imported


@dataclass
class State:
    """What all units so far have found."""

    about: dict[str, Any]  # what the values of the units depend on
    path: Path
    done: list[str] = field(default_factory=list)  # names of units
    seconds: float = 0.0
    cpu_seconds: float = 0.0  # of this process and of all runs
    tallies: dict[str, Tally] = field(default_factory=dict)
    attacks: dict[str, Count] = field(default_factory=dict)

    def save(self) -> None:
        content = {name: value for name, value in vars(self).items() if name != "path"}
        content |= {"tallies": {name: vars(tally) for name, tally in self.tallies.items()}}
        content |= {"attacks": {name: vars(count) for name, count in self.attacks.items()}}
        temporary = self.path.with_name(f"{self.path.name}.tmp")
        temporary.write_text(json.dumps(content), encoding="utf-8")
        temporary.replace(self.path)


def load_state(path: Path, about: dict[str, Any]) -> State:
    """The state of an interrupted run of the same commit with the same options, or a new one."""
    state = State(about, path)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return state
    if found["about"] == about:
        state.done, state.seconds, state.cpu_seconds = found["done"], found["seconds"], found["cpu_seconds"]
        for name, tally in found["tallies"].items():
            state.tallies[name] = Tally(**tally | {"faults": Counter(tally["faults"])})
        state.attacks = {name: Count(**count) for name, count in found["attacks"].items()}
        print(f"continues after {len(state.done)} units ({path})", flush=True)
    return state


def main() -> int:
    _start_again_with_settings()
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell has started it in the background
        signal.signal(number, signal.default_int_handler)
    options = _parse_arguments()
    about = {name: getattr(options, name) for name in ("seed", "kills", "rounds", "only", "only_kills")}
    state = load_state(options.state, about | {"commit": find_tested_commit(options.publish)})
    preload(with_models=not set(options.only or ["all"]) <= WITHOUT_MODELS)
    root = Path(tempfile.mkdtemp(prefix="sortk-chaos-", dir=options.dir))
    os.environ["XDG_CACHE_HOME"] = str(root / "cache")
    try:
        n_left = run_units(root, options, state)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if n_left:
        state = load_state(options.state, state.about)  # without the unit that was ended
    rows, minutes = tabulate(state.tallies), state.seconds / 60
    print(f"\n{format_table(rows)}\n")
    if state.attacks:
        print(f"{format_table(tabulate_attacks(state.attacks))}\n")
    summary = describe(state)
    if n_left:
        summary += f" The run was ended when {n_left} of its {n_left + len(state.done)} units were left."
    print(f"{summary} In {minutes:.1f} minutes ({state.cpu_seconds / 60:.1f} of CPU), seed {options.seed}.")
    problems = find_problems(state)
    for problem in problems:
        print(f"PROBLEM {problem}")
    if options.publish and not n_left:
        figures = {
            "summary": summary,
            "table": rows,
            "minutes": minutes,
            "cpu_minutes": state.cpu_seconds / 60,
            "attacks": tabulate_attacks(state.attacks),
        }
        publish(
            "chaos", {**figures, "command": f"--seed {options.seed} --kills {options.kills}"}, state.about["commit"]
        )
    if not n_left:
        state.path.unlink(missing_ok=True)
    return 1 if problems or n_left else 0


def _start_again_with_settings() -> None:
    """Runs are forked off this process, so no library may start threads in it; they ask when they are imported.

    Processes that are not forked run the sortk of this checkout, too, whichever is installed.
    """
    wanted = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(CHECKOUT)}
    if not wanted.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | wanted)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="all random values follow from it")
    parser.add_argument("--kills", type=int, default=20, help="kill -9 of each stage; half as many of a command")
    parser.add_argument("--rounds", type=int, default=1, help="how often each other fault and attack is tried")
    parser.add_argument(
        "--only", nargs="*", help="names of targets, such as `simulate` or `stage 5 train-diar`, and of attacks"
    )
    parser.add_argument("--only-kills", action="store_true", help="no other faults; attacks only if --only names them")
    parser.add_argument("--dir", help="where to work; the temporary folder by default")
    parser.add_argument("--state", type=Path, default=STATE, help="where an interrupted run is kept, to continue it")
    parser.add_argument("--publish", action="store_true", help="write the figures into docs/reliability.md")
    return parser.parse_args()


def run_units(root: Path, options: argparse.Namespace, state: State) -> int:
    """Kills of all targets, then attacks, then all other faults; return how many units are left if it was ended."""
    with_disks = not options.only_kills and may_mount(root)
    if not with_disks:
        print("no full and read-only disks: mounting is not allowed here, or not asked for")
    names = [target.name for target in (*STAGES, *COMMANDS)] + ([] if options.only_kills else list(ATTACKS))
    wanted = set(options.only or names)
    began, cpu_began = time.monotonic(), sum(os.times()[:4])
    references = {target: make_reference(root, target) for target in _needed(wanted - set(ATTACKS))}
    state.seconds += time.monotonic() - began
    state.cpu_seconds += sum(os.times()[:4]) - cpu_began
    kills: list[tuple[str, Callable[[], None]]] = []
    others: list[tuple[str, Callable[[], None]]] = []
    for target, reference in references.items():
        if target.name in wanted:
            tally = state.tallies.setdefault(target.name, Tally())
            for unit, disturb in _units_of(target, options, with_disks):
                trial = Trial(root, target, reference, tally, Random(f"{options.seed} {target.name} {unit}"))
                units = kills if "kill -9" in unit else others
                units.append((f"{target.name}, {unit}", partial(disturb, trial)))
    attacks = [
        (
            f"{title}, {number + 1}",
            partial(run_attack, root, title, Random(f"{options.seed} {title} {number}"), with_disks, state),
        )
        for title in ATTACKS
        if title in wanted
        for number in range(options.rounds)
    ]
    left = [unit for unit in (*kills, *attacks, *others) if unit[0] not in state.done]
    for number, (name, work) in enumerate(left):
        try:
            with Unit(state, name):
                work()
        except KeyboardInterrupt:
            return len(left) - number
    return 0


def run_attack(root: Path, title: str, rng: Random, with_disks: bool, state: State) -> None:
    range_ = Range(root / "attack", rng, with_disks)
    ATTACKS[title](range_)
    count = state.attacks.setdefault(title, Count())
    count.tried += range_.count.tried
    count.problems += range_.count.problems


class Unit:
    """A unit of work. What it has found is kept when it is done, with a line of progress."""

    def __init__(self, state: State, name: str) -> None:
        self.state, self.name = state, name

    def __enter__(self) -> None:
        self.began, self.cpu_began = time.monotonic(), sum(os.times()[:4])
        self.n_problems = len(find_problems(self.state))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            return
        seconds = time.monotonic() - self.began
        self.state.done.append(self.name)
        self.state.seconds += seconds
        cpu_seconds = sum(os.times()[:4]) - self.cpu_began
        self.state.cpu_seconds += cpu_seconds
        self.state.save()
        n_faults = sum(tally.faults.total() for tally in self.state.tallies.values())
        n_kills = sum(tally.faults["kill -9"] for tally in self.state.tallies.values())
        problems = find_problems(self.state)
        so_far = f"{n_faults} faults so far, {n_kills} of them kill -9, {len(problems)} problems"
        minutes = f"{self.state.seconds / 60:.1f} minutes, {self.state.cpu_seconds / 60:.1f} of CPU"
        print(f"{self.name}: {seconds:.0f} s, {cpu_seconds:.1f} s of CPU; {so_far}, {minutes}", flush=True)
        for problem in problems[self.n_problems :]:
            print(f"  {problem}", flush=True)


def _units_of(
    target: Target, options: argparse.Namespace, with_disks: bool
) -> Iterator[tuple[str, Callable[[Trial], None]]]:
    n_kills = options.kills if target in STAGES else options.kills // 2
    for number, first in enumerate(range(0, n_kills, KILLS_OF_A_UNIT), start=1):
        yield f"kill -9 {number}", partial(kill_again_and_again, n_kills=min(KILLS_OF_A_UNIT, n_kills - first))
    if not options.only_kills:
        for number in range(1, options.rounds + 1):
            for disturb in OTHERS + WORKERS * target.takes_jobs + DISKS * with_disks:
                yield f"{disturb.__name__} {number}", disturb


def _needed(wanted: set[str]) -> list[Target]:
    """The wanted targets, the stages that they read, and so on."""
    targets = (*STAGES, *COMMANDS)
    if unknown := wanted - {target.name for target in targets}:
        sys.exit(f"no such target: {', '.join(sorted(unknown))}")
    needed: list[Target] = []
    folders: set[str] = set()
    for target in reversed(targets):  # what a stage reads comes before it
        if target.name in wanted or target.output in folders:
            needed.insert(0, target)
            folders.update(target.reads)
    return needed


def make_reference(root: Path, target: Target) -> Reference:
    """An undisturbed run, whose output later targets read."""
    renew(root, target)
    exp = root / "trial" / "exp"
    watch, operations = Watch(exp, target), Operations()
    run = start(target.arguments, root / "trial", root / "messages", operations)
    cpu_seconds = 0.0

    def measure() -> bool:
        nonlocal cpu_seconds
        cpu_seconds = max(cpu_seconds, run.cpu_seconds())
        return False

    wait(run, watch, measure)
    if run.code != 0 or watch.faults:
        sys.exit(f"{target.name} fails undisturbed: {run.told()} {watch.faults}")
    kept = root / "reference" / target.output
    kept.parent.mkdir(exist_ok=True)
    shutil.rmtree(kept, ignore_errors=True)
    (exp / target.output).rename(kept)
    n_bytes = sum(path.stat().st_blocks * 512 for path in find_files(kept))
    print(f"{target.name}: {cpu_seconds:.2f} s of CPU, {operations.count} operations on names", flush=True)
    return Reference(cpu_seconds, operations.count, digest(kept), n_bytes)


def find_problems(state: State) -> list[str]:
    found = [problem for tally in state.tallies.values() for problem in tally.problems]
    return found + [f"{title}: {problem}" for title, count in state.attacks.items() for problem in count.problems]


def tabulate(tallies: Mapping[str, Tally]) -> list[list[Any]]:
    """A row for each target: how many faults of each kind, and what came of them."""
    total = Tally(
        sum((tally.faults for tally in tallies.values()), Counter()),
        sum(tally.recovered for tally in tallies.values()),
        sum(tally.redone for tally in tallies.values()),
    )
    return [
        ["target", *KINDS, "recovered", "lost", "redone"],
        *(
            [
                name,
                *(tally.faults[kind] or None for kind in KINDS),
                tally.recovered,
                tally.faults.total() - tally.recovered,
                tally.redone,
            ]
            for name, tally in (*tallies.items(), ("all", total))
        ),
    ]


def tabulate_attacks(attacks: Mapping[str, Count]) -> list[list[Any]]:
    """A row for each class of attacks: commands that were run, and what did not hold."""
    total = Count(
        sum(count.tried for count in attacks.values()), [one for count in attacks.values() for one in count.problems]
    )
    rows = (*attacks.items(), ("all", total))
    return [["attack", "commands", "lost"], *([title, count.tried, len(count.problems)] for title, count in rows)]


def describe(state: State) -> str:
    n_faults = sum(tally.faults.total() for tally in state.tallies.values())
    n_kills = sum(tally.faults["kill -9"] + tally.faults["kill in --force"] for tally in state.tallies.values())
    n_lost = n_faults - sum(tally.recovered for tally in state.tallies.values())
    text = f"{n_faults} faults, {n_kills} of them kill -9: {n_lost} results lost or other than undisturbed."
    if state.attacks:
        n_tried = sum(count.tried for count in state.attacks.values())
        n_wrong = sum(len(count.problems) for count in state.attacks.values())
        text += f" {n_tried} commands on hostile files, folders and settings: {n_wrong} did not hold."
    return text


if __name__ == "__main__":
    sys.exit(main())
