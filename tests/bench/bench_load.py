"""Large inputs: a hundred thousand sessions in a manifest, ten thousand to score, a million lines of RTTM, 64 shards.

Each is done at a tenth of its size and in full. Time is linear if the ratio is about 10. Memory is flat where lines are
streamed, and elsewhere that of the result.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TENTH = 10
Work = Callable[[Path], object]


def write_rttm(path: Path, n_lines: int, lines_per_session: int = 100) -> None:
    with path.open("w", encoding="utf-8") as file:
        for n in range(n_lines):
            start = n % lines_per_session * 1.37
            file.write(f"SPEAKER s{n // lines_per_session} 1 {start:.2f} 1.5 <NA> <NA> spk{n % 4} <NA> <NA>\n")


def write_manifest(path: Path, n_lines: int) -> None:
    """Sessions of one recording, all with the same RTTM."""
    import numpy as np
    import soundfile

    soundfile.write(path.with_name("a.wav"), np.zeros(16_000), 16_000)
    write_rttm(path.with_name("a.rttm"), 1)
    with path.open("w", encoding="utf-8") as file:
        for n in range(n_lines):
            line = {"session_id": f"s{n}", "audio_filepath": "a.wav", "duration": 0.5, "rttm_filepath": "a.rttm"}
            file.write(json.dumps(line) + "\n")


def stream_rttm(folder: Path, n_lines: int) -> Work:
    from sortk.formats import rttm

    write_rttm(folder / "in.rttm", n_lines)
    return lambda _: sum(1 for _ in rttm.stream(folder / "in.rttm"))


def validate_rttm(folder: Path, n_lines: int) -> Work:
    from sortk.formats.convert import validate

    write_rttm(folder / "in.rttm", n_lines)
    return lambda _: validate(folder / "in.rttm")


def convert_rttm(folder: Path, n_lines: int) -> Work:
    from sortk.formats.convert import convert

    write_rttm(folder / "in.rttm", n_lines)
    return lambda out: convert(folder / "in.rttm", out / "out.json", "seglst")


def read_manifest(folder: Path, n_lines: int) -> Work:
    from sortk.formats import manifest

    write_manifest(folder / "in.jsonl", n_lines)
    return lambda _: sum(1 for _ in manifest.read(folder / "in.jsonl"))


def validate_manifest(folder: Path, n_lines: int) -> Work:
    from sortk.formats.convert import validate

    write_manifest(folder / "in.jsonl", n_lines)
    return lambda _: validate(folder / "in.jsonl")


def rewrite_manifest(folder: Path, n_lines: int) -> Work:
    from sortk.formats import manifest

    write_manifest(folder / "in.jsonl", n_lines)
    return lambda out: manifest.write(out / "out.jsonl", manifest.read(folder / "in.jsonl"))


def score_sessions(folder: Path, n_sessions: int) -> Work:
    from click.testing import CliRunner

    from sortk.cli import main as sortk

    write_rttm(folder / "in.rttm", n_sessions * 20, lines_per_session=20)
    arguments = ["score", "der", "--ref", str(folder / "in.rttm"), "--hyp", str(folder / "in.rttm")]
    return lambda out: CliRunner().invoke(sortk, [*arguments, "--json", str(out / "der.json")], catch_exceptions=False)


def continue_turns(folder: Path, n_lines: int) -> Work:
    """A transcript of one turn that goes on and on."""
    from sortk.formats import ldc

    (folder / "in.txt").write_text("1 2 A: so\n" + "and so on\n" * n_lines, encoding="utf-8")
    return lambda _: ldc.read(folder / "in.txt", "s")


def run_shards(folder: Path, n_items: int) -> Work:
    """What 64 shards of a cluster hand back, and what is missing when half of them are done."""
    from sortk.slurm.arrays import cut_missing

    size = -(-n_items // 64)
    return lambda _: cut_missing([(start, start + size) for start in range(0, n_items, 2 * size)], n_items, 1)


CASES: tuple[tuple[str, Callable[[Path, int], Work], int], ...] = (
    ("RTTM, read line by line", stream_rttm, 1_000_000),
    ("RTTM, validated", validate_rttm, 1_000_000),
    ("RTTM to SegLST", convert_rttm, 1_000_000),
    ("manifest, read", read_manifest, 100_000),
    ("manifest, validated with its files", validate_manifest, 100_000),
    ("manifest, written again", rewrite_manifest, 100_000),
    ("sessions, scored (DER)", score_sessions, 10_000),
    ("lines of one turn", continue_turns, 100_000),
    ("items of 64 shards, missing ones found", run_shards, 1_000_000),
)


def measure(case: Callable[[Path, int], Work], n_items: int) -> tuple[float, int]:
    """Seconds of computing, and megabytes by which the memory grew, in a process of its own."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_measure, args=(case, n_items, sender))
    process.start()
    sender.close()
    found: tuple[float, int] = receiver.recv()
    process.join()
    return found


def _measure(case: Callable[[Path, int], Work], n_items: int, sender: Any) -> None:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "out").mkdir()
        case(Path(name), 20)(Path(name) / "out")  # imports
        work = case(Path(name), n_items)
        before, began = _peak_megabytes(), time.process_time()
        work(Path(name) / "out")
        sender.send((time.process_time() - began, _peak_megabytes() - before))


def _peak_megabytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def rows(wanted: list[str]) -> Iterator[str]:
    for name, case, n_items in CASES:
        if wanted and not any(word in name for word in wanted):
            continue
        (part, part_mb), (whole, whole_mb) = measure(case, n_items // TENTH), measure(case, n_items)
        ratio = whole / max(part, 1e-3)
        yield f"{name:40} {n_items:9} {whole:8.2f} s {ratio:6.1f} x a tenth {part_mb:6} -> {whole_mb:5} MB"


def main() -> None:
    for row in rows(sys.argv[1:]):
        print(row, flush=True)


if __name__ == "__main__":
    main()
