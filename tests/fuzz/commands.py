"""Whole commands on damaged files: what a user of `sortk score`, `sortk report` or a model by its name would see."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
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


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    before = dict(os.environ)
    os.environ |= values
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= before


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
    with environment(HF_HUB_CACHE=str(folder / "hub")):
        found = find_local(parts["name"].decode("utf-8", "replace"))
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
    from sortk.cli.recipes import _time_and_size
    from sortk.run.folders import Folder, Identity, inspect_folder

    for name in ("out", "out.partial"):
        shutil.rmtree(folder / name, ignore_errors=True)
    _write(parts, folder)
    same = Identity("stage 1", {"seed": 0, "phases": [{"steps": 3}]}, {"a": "1"})
    other = Identity("stage 1", {"seed": 1, "phases": [{"steps": 4}]}, {})
    found = [inspect_folder(Folder(folder / "out"), identity) for identity in (same, other)]
    return [f"{status.why} {_time_and_size(status)}" for status in found]


def resume_seeds() -> list[Parts]:
    """What an unfinished stage has written for each item, as far as it has come."""
    words = [["yes", 0.0, 0.25], ["no", 0.25, 0.5]]
    plan = {
        "session_id": "train-0", "sample_rate": 16000, "n_samples": 48000, "exact": False, "noise": ["n.wav", 0, 9],
        "speakers": [{"name": "a", "gain": 0.5, "rir": None}, {"name": "b", "gain": 1, "rir": ["r.wav", 0, 9]}],
        "snr_db": 9.5, "audio": ["a.flac", "b.flac"], "room_tone": [30.0, 0.5],
        "turns": [[0, 0, 16000, [[0, 0.5, 16000, 0, 20, 0, words]]], [1, 80, 240, [[1, 0.0, 160, 0, 0, 80, []]]]],
    }  # fmt: skip
    index = {"speaker": "a", "audio": ["a.flac"], "utterances": [["u", 0, [[0.5, 500, 0, 15, 0.25, words]]]]}
    counts = dict.fromkeys(("us_in", "us_out", "speech_us_out", "pieces_out", "words_in", "words_out"), 5)
    outputs = {
        name: counts | {"us_rejected": {"x": 1}, "pieces_rejected": {"x": 1}} for name in ("diar", "asr", "scored")
    }
    cleaned = {
        "kept": {name: [[0, 5_000_000, 2, 4_000_000, 7]] for name in outputs},
        "rejected": [{"id": "s", "rule": "x", "value": 1.0, "output": "asr", "seconds": 2.0}],
        "counts": {"sessions": 1, "outputs": outputs, "repairs": {"duration_cut": 2}},
    }
    contents = {"plan/train-0.json": plan, "pieces/a.json": index, "sessions/s.json": cleaned}
    return [{name: json.dumps(content).encode() for name, content in contents.items()}]


def resume(parts: Parts, folder: Path) -> None:
    from sortk.prepare import clean, pieces, render

    _write(parts, folder)
    summary, set_summary = clean.CleanSummary(), render.SetSummary()

    def add_result() -> None:
        result = clean._read_result(folder / "sessions" / "s.json")
        summary.add(clean.CleanSummary.from_json(result["counts"]))
        str(summary)
        for output in clean.OUTPUTS:
            for start, end, *_ in result["kept"][output]:
                clean.piece_id("s", (start, end))

    _all(
        lambda: set_summary.add(render.read_plan(folder / "plan" / "train-0.json")[1]),
        lambda: pieces.summarize_index(folder / "pieces" / "a.json"),
        add_result,
    )


def journal_seeds() -> list[Parts]:
    """The journal of a study with two finished trials, and one that was killed."""
    import tempfile

    from sortk.scoring.tune import open_study

    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "study.log"
        with open_study(path, "", "x", 0) as study:
            study.optimize(lambda trial: trial.suggest_float("onset", 0.0, 1.0), n_trials=2)
            study.ask()
        return [{"study.log": path.read_bytes()}]


def open_journal(parts: Parts, folder: Path) -> None:
    from sortk.scoring.tune import measure_importance, open_study, working_on

    _write(parts, folder)
    path = folder / "study.log"
    with open_study(path, "", "x", 0) as study:
        with working_on(study, path):
            study.optimize(lambda trial: trial.suggest_float("onset", 0.0, 1.0), n_trials=1)
        measure_importance(study)
