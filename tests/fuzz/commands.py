"""Whole commands on damaged files: what a user of `sortk score`, `sortk report` or a model by its name would see."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz.mutate import Parts

RTTM = (
    "SPEAKER s 1 0.5 2 <NA> <NA> a <NA> <NA>\nSPEAKER s 1 2 2 <NA> <NA> b <NA> <NA>\nSPEAKER t 1 1 3 <NA> <NA> a <NA>\n"
)
STM = "s 1 a 0.5 2.5 hello you\ns 1 b 2 4 yes it is 23\nt 1 a 1 4 no\n"
SEGLST = [
    {"session_id": "s", "speaker": "a", "start_time": 0.5, "end_time": 2.5, "words": "hello you"},
    {"session_id": "t", "speaker": "b", "start_time": 1, "end_time": 4, "words": "no"},
]


def run(*arguments: Any) -> None:
    """Run a command in this process; ValueError with its sentence if it says one, RuntimeError for anything else."""
    from sortk.cli import main

    output, messages = io.StringIO(), io.StringIO()
    code: Any = 0
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(messages):
        try:
            main([str(argument) for argument in arguments], prog_name="sortk")
        except SystemExit as end:
            code = end.code
    said = messages.getvalue()
    if code == 0 and "\x1b" not in output.getvalue() + said:
        return
    sentences = [line for line in said.splitlines() if line.startswith("sortk: ")]  # warnings, and the error
    if code != 1 or not sentences or "bug of sortk" in said or "Traceback" in said or "\x1b" in said:
        raise RuntimeError(f"exit code {code}: {said[-300:]!r}")
    command = " ".join(map(str, arguments))  # it names all files, so that a sentence need not name one of two
    raise ValueError(f"{command}: {sentences[-1].removeprefix('sortk: ')}")


def _write(parts: Parts, folder: Path) -> None:
    for name, data in parts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _all(*works: Callable[[], object]) -> None:
    """Do all of it; the last error is that of the input."""
    errors = []
    for work in works:
        try:
            work()
        except (ValueError, OSError) as error:
            errors.append(error)
    if errors:
        raise errors[-1]


def speaker_seeds() -> list[Parts]:
    other = RTTM.replace("2 2 <NA>", "2.25 1.5 <NA>")
    uem = b"s 1 0 5\nt 1 0 5\n"
    return [{"ref.rttm": RTTM.encode(), "a.rttm": RTTM.encode(), "b.rttm": other.encode(), "all.uem": uem}]


def compare_speakers(parts: Parts, folder: Path) -> None:
    """`score der`, `score compare` and `report` of two systems."""
    _write(parts, folder)
    files = ("--ref", folder / "ref.rttm", "--hyp", folder / "a.rttm", "--hyp", folder / "b.rttm")
    uem = ("--uem", folder / "all.uem")
    _all(
        lambda: run("score", "der", *files, *uem, "--json", folder / "scores.json"),
        lambda: run("score", "der", *files[:4], "--scorer", "nist"),
        lambda: run("score", "compare", "--metric", "der", *files, *uem),
        lambda: run("report", *files, *uem, "--out", folder / "page.html"),
    )


def word_seeds() -> list[Parts]:
    sst = [{"session_id": "s", "text": "<spk0> hello you <spk1> yes"}, {"session_id": "t", "text": "<spk0> no"}]
    lines = "\n".join(map(json.dumps, sst)).encode()
    return [{"ref.stm": STM.encode(), "a.json": json.dumps(SEGLST).encode(), "b.jsonl": lines}]


def compare_words(parts: Parts, folder: Path) -> None:
    """Word errors of two systems, with every normalizer."""
    _write(parts, folder)
    files = ("--ref", folder / "ref.stm", "--hyp", folder / "a.json", "--hyp", folder / "b.jsonl")
    _all(
        lambda: run("score", "cpwer", *files, "--normalizer", "whisper"),
        lambda: run("score", "wer", *files, "--normalizer", "chime8"),
        lambda: run("score", "compare", "--metric", "cpwer", *files, "--normalizer", "lower"),
    )


def cache_seeds() -> list[Parts]:
    return [{"name": b"nvidia/diar_sortformer_4spk-v1", "ref": b"a" * 40, "commit": b"a" * 40}]


def find_by_name(parts: Parts, folder: Path) -> object:
    """A model in Hugging Face's cache: its name, what its ref says, and how the snapshot is called."""
    from sortk.formats.hub import find_local

    shutil.rmtree(folder / "hub", ignore_errors=True)
    model = folder / "hub" / "models--nvidia--diar_sortformer_4spk-v1"
    _write({"refs/main": parts["ref"]}, model)
    snapshot = os.path.normpath(model / "snapshots" / parts["commit"].decode("utf-8", "replace").replace("\0", ""))
    if snapshot.startswith(str(model)):
        with contextlib.suppress(OSError):
            _write({"model.nemo": b"x"}, Path(snapshot))
    before = os.environ.get("HF_HUB_CACHE")
    os.environ["HF_HUB_CACHE"] = str(folder / "hub")
    try:
        found = find_local(parts["name"].decode("utf-8", "replace"))
    finally:
        del os.environ["HF_HUB_CACHE"]
        if before is not None:
            os.environ["HF_HUB_CACHE"] = before
    if found is None:
        raise FileNotFoundError(f"{folder}: no such model")
    if folder not in found.absolute().parents and not Path(parts["name"].decode("utf-8", "replace")).exists():
        raise RuntimeError(f"{found} is not in the cache")
    return found


def experiment_seeds() -> list[Parts]:
    """The files of a finished experiment that its page shows."""
    import tempfile

    from report.small_experiment import write_experiment

    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        write_experiment(root, 2, 6.0)
        shown = ("*.json", "*.jsonl", "*.toml", "*.rttm")
        files = [path for pattern in shown for path in root.rglob(pattern) if path.is_file()]
        return [{str(path.relative_to(root)): path.read_bytes() for path in files}]


def report_experiment(parts: Parts, folder: Path) -> None:
    shutil.rmtree(folder / "exp", ignore_errors=True)
    _write(parts, folder / "exp")
    run("report", "--exp", folder / "exp", "--out", folder / "page.html")


def marker_seeds() -> list[Parts]:
    from sortk.run.folders import Identity

    marker = Identity("stage 1", {"seed": 0, "phases": [{"steps": 3}]}, {"a": "1"}).marker()
    usage = {"seconds": 1.5, "bytes": 3, "host": "x"}
    return [
        {
            "out/done.json": json.dumps(marker).encode(),
            "out/log/usage.json": json.dumps(usage).encode(),
            "out.partial/.started.json": json.dumps(marker).encode(),
        }
    ]


def inspect_markers(parts: Parts, folder: Path) -> object:
    """What a stage says of itself: done, stale and why, unfinished."""
    from sortk.run.folders import Folder, Identity, inspect_folder

    for name in ("out", "out.partial"):
        shutil.rmtree(folder / name, ignore_errors=True)
    _write(parts, folder)
    status = inspect_folder(Folder(folder / "out"), Identity("stage 1", {"seed": 1, "phases": [{"steps": 4}]}, {}))
    return f"{status.why} {status.seconds} {status.n_bytes}"
