"""What is disturbed: every stage of a recipe, and the commands that people run by themselves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

RECIPE = Path(__file__).with_name("recipe.toml")
STAGE_FOLDERS = (
    "00-prepare",
    "01-simulate",
    "02-clean",
    "03-timestamps",
    "04-sst",
    "05-train-diar",
    "06-train-asr",
    "07-tune",
    "08-score",
)


_EDITED = ("*.jsonl", "*.toml", "*/*.jsonl", "rttm/*.rttm", "seglst/*.json", "model/*")  # in the folder of a stage


@dataclass(frozen=True)
class Target:
    """One command line. It is run in a folder in which `exp` holds what it reads, and gets what it writes."""

    name: str
    arguments: tuple[str, ...]
    output: str  # the folder in exp that it fills
    reads: tuple[str, ...] = ()  # folders of earlier stages
    items: tuple[str, ...] = ()  # where one is, that piece of work is done, and is not done again
    takes_jobs: bool = False  # --nj
    is_folder: bool = True  # fills a .partial folder, which gets its name at the end, and which nobody else may fill
    edits: tuple[str, ...] = ()  # files in exp of which every byte counts: another one makes the result stale
    looks: tuple[tuple[str, ...], ...] = ()  # commands that look at the result
    shares_work: bool = False  # two runs at a time share the work, and what they find depends on who is faster


def _stage(
    number: int,
    reads: tuple[int, ...],
    items: tuple[str, ...] = (),
    takes_jobs: bool = True,
) -> Target:
    folder = STAGE_FOLDERS[number]
    return Target(
        name=f"stage {number} {folder[3:]}",
        arguments=("stage", str(number), "--recipe", str(RECIPE), "--exp", "exp"),
        output=folder,
        reads=tuple(STAGE_FOLDERS[read] for read in reads),
        items=items,
        takes_jobs=takes_jobs,
        edits=tuple(f"{STAGE_FOLDERS[read]}/{pattern}" for read in reads for pattern in _EDITED),
        looks=(("status", "--recipe", str(RECIPE), "--exp", "exp"), ("report", "--exp", "exp", "--out", "page.html")),
    )


def _words(line: str) -> tuple[str, ...]:
    return tuple(line.split())


_CONVERSATIONS = ("pieces/*.json", "plan/*.json")
_TEST_SET = "exp/01-simulate/test.jsonl"
_DIARIZER, _ASR = "exp/05-train-diar/model", "exp/06-train-asr/model"

STAGES = (
    _stage(0, (), ("speakers/*.jsonl",)),
    _stage(1, (0,), _CONVERSATIONS),
    _stage(2, (0, 1), ("sessions/*.json",)),
    _stage(3, (2,), ("seglst/*.json",)),
    _stage(4, (2, 3)),
    _stage(5, (0, 1, 2), takes_jobs=False),
    _stage(6, (0, 1, 2, 3, 4, 5), takes_jobs=False),
    _stage(7, (0, 1, 5), ("probs/*.npy",)),
    _stage(8, (0, 1, 2, 3, 4, 5, 6, 7), ("hyp/*/probs/*.npy",)),
)

COMMANDS = (
    Target(
        "simulate",
        _words("simulate --sources exp/00-prepare/sources.jsonl --out exp/out --hours 0.04 --seconds 12 --split train"),
        "out",
        ("00-prepare",),
        _CONVERSATIONS,
        takes_jobs=True,
        edits=("00-prepare/sources.jsonl", "00-prepare/audio/**/*.flac"),
    ),
    Target(
        "clean",
        _words("clean --manifest exp/01-simulate/train.jsonl --out exp/out"),
        "out",
        ("00-prepare", "01-simulate"),
        ("sessions/*.json",),
        takes_jobs=True,
        edits=("01-simulate/train.jsonl", "01-simulate/rttm/train-*.rttm", "01-simulate/audio/train-*.flac"),
    ),
    Target(
        "prepare sessions",
        _words("prepare sessions --corpus-dir exp/01-simulate/train.jsonl --out exp/out"),
        "out",
        ("00-prepare", "01-simulate"),
        takes_jobs=True,
        edits=("01-simulate/train.jsonl", "01-simulate/rttm/train-*.rttm", "01-simulate/audio/train-*.flac"),
    ),
    Target(
        "tune",
        _words(
            f"tune --model {_DIARIZER} --manifest exp/01-simulate/valid.jsonl --trials 20 "
            "--out exp/out/postprocess.toml"
        ),
        "out",
        ("00-prepare", "01-simulate", "05-train-diar"),
        ("*/*.npy",),
        is_folder=False,
        shares_work=True,
    ),
    Target(
        "diarize",
        _words(
            f"diarize {_TEST_SET} --model {_DIARIZER} --out-dir exp/out --probs --plot "
            "--postprocess exp/07-tune/postprocess.toml"
        ),
        "out",
        ("00-prepare", "01-simulate", "05-train-diar", "07-tune"),
        is_folder=False,
    ),
    Target(
        "transcribe",
        _words(f"transcribe {_TEST_SET} --model {_ASR} --diarizer {_DIARIZER} --out-dir exp/out"),
        "out",
        ("00-prepare", "01-simulate", "05-train-diar", "06-train-asr"),
        is_folder=False,
    ),
)
