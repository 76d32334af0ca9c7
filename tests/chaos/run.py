"""Tries to break sortk, and tells what it has survived: `make chaos`.

Every stage, and the commands that are run by themselves, are disturbed again and again at random moments, then run
again. The result must be that of an undisturbed run; files under final names must be whole at any time; finished work
must not be done again.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from string import Template

from faults import DISKS, KINDS, OTHERS, WORKERS, Reference, Tally, Trial, kill_again_and_again, may_mount, renew
from results import digest, find_files
from runs import Watch, preload, start, wait
from targets import COMMANDS, STAGES, Target

TEMPLATE = Path(__file__).with_name("reliability.md.in")
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"


def main() -> int:
    _keep_to_one_thread()
    options = _parse_arguments()
    began = time.monotonic()
    preload()
    root = Path(tempfile.mkdtemp(prefix="sortk-chaos-", dir=options.dir))
    try:
        tallies = disturb_all(root, options)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    minutes = (time.monotonic() - began) / 60
    table = format_table(tallies)
    print(f"\n{table}\n\n{describe(tallies)}, in {minutes:.1f} minutes (seed {options.seed})")
    problems = [problem for tally in tallies.values() for problem in tally.problems]
    for problem in problems:
        print(f"PROBLEM {problem}")
    if options.page:
        write_page(options.page, tallies, options.seed, minutes)
    return 1 if problems else 0


def _keep_to_one_thread() -> None:
    """Runs are forked off this process, so no library may start threads in it; they ask when they are imported."""
    if os.environ.get("OMP_NUM_THREADS") != "1":
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"OMP_NUM_THREADS": "1"})


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="all random moments follow from it")
    parser.add_argument("--kills", type=int, default=20, help="kill -9 of each stage; half as many of a command")
    parser.add_argument("--only", nargs="*", help="names of targets, such as `simulate` or `stage 5 train-diar`")
    parser.add_argument("--only-kills", action="store_true", help="no other faults")
    parser.add_argument("--dir", help="where to work; the temporary folder by default")
    parser.add_argument("--page", type=Path, help="write the figures into this page")
    return parser.parse_args()


def disturb_all(root: Path, options: argparse.Namespace) -> dict[str, Tally]:
    """Each target in turn; a stage is run undisturbed first, and later ones read what that has left."""
    with_disks = not options.only_kills and may_mount(root)
    if not with_disks:
        print("no full and read-only disks: mounting is not allowed here, or not asked for")
    wanted = set(options.only or [target.name for target in (*STAGES, *COMMANDS)])
    tallies = {}
    for target in _needed(wanted):
        reference = make_reference(root, target)
        if target.name not in wanted:
            continue
        began = time.monotonic()
        tally = tallies[target.name] = Tally()
        trial = Trial(root, target, reference, tally, Random(f"{options.seed} {target.name}"))
        kill_again_and_again(trial, options.kills if target in STAGES else options.kills // 2)
        others = OTHERS + WORKERS * target.takes_jobs + DISKS * with_disks
        for disturb in () if options.only_kills else others:
            disturb(trial)
        _say(target, tally, reference, time.monotonic() - began)
    return tallies


def _needed(wanted: set[str]) -> list[Target]:
    """The wanted targets and all stages that they read."""
    targets = (*STAGES, *COMMANDS)
    if unknown := wanted - {target.name for target in targets}:
        sys.exit(f"no such target: {', '.join(sorted(unknown))}")
    folders = {name for target in targets if target.name in wanted for name in target.reads}
    return [target for target in targets if target.name in wanted or target.output in folders]


def make_reference(root: Path, target: Target) -> Reference:
    """An undisturbed run, whose output later targets read."""
    renew(root, target)
    exp = root / "trial" / "exp"
    watch = Watch(exp, target)
    run = start(target.arguments, root / "trial", root / "messages")
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
    return Reference(cpu_seconds, digest(kept), n_bytes)


def _say(target: Target, tally: Tally, reference: Reference, seconds: float) -> None:
    counts = f"{tally.faults.total()} faults, {tally.recovered} recovered, {len(tally.problems)} problems"
    print(f"{target.name}: {counts}; {reference.cpu_seconds:.2f} s undisturbed, {seconds:.0f} s in all", flush=True)
    for problem in tally.problems:
        print(f"  {problem}", flush=True)


def format_table(tallies: Mapping[str, Tally]) -> str:
    """A row for each target: how many faults of each kind, and what came of them."""
    titles = ("target", *KINDS, "recovered", "lost", "redone")
    rows = [_row(name, tally) for name, tally in tallies.items()]
    total = Tally(
        sum((tally.faults for tally in tallies.values()), Counter()),
        sum(tally.recovered for tally in tallies.values()),
        sum(tally.redone for tally in tallies.values()),
    )
    lines = [titles, tuple("---" if title == "target" else "---:" for title in titles), *rows, _row("all", total)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(titles))]
    return "\n".join(_format_line(line, widths) for line in lines)


def _row(name: str, tally: Tally) -> tuple[str, ...]:
    counts = [str(tally.faults[kind]) if tally.faults[kind] else "-" for kind in KINDS]
    return (name, *counts, str(tally.recovered), str(tally.faults.total() - tally.recovered), str(tally.redone))


def _format_line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
    return f"| {cells[0].ljust(widths[0])} | {' | '.join(padded[1:])} |"


def describe(tallies: Mapping[str, Tally]) -> str:
    n_faults = sum(tally.faults.total() for tally in tallies.values())
    n_kills = sum(tally.faults["kill -9"] for tally in tallies.values())
    n_lost = n_faults - sum(tally.recovered for tally in tallies.values())
    return f"{n_faults} faults, {n_kills} of them kill -9: {n_lost} results lost or other than undisturbed"


def write_page(path: Path, tallies: Mapping[str, Tally], seed: int, minutes: float) -> None:
    """The promises, and the figures of this run."""
    content = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        table=format_table(tallies),
        summary=describe(tallies),
        date=datetime.date.today().isoformat(),
        machine=f"{platform.system()} {platform.machine()}, {len(os.sched_getaffinity(0))} core(s), "
        f"Python {platform.python_version()}",
        seed=seed,
        minutes=f"{minutes:.0f}",
    )
    path.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
