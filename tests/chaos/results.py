"""What a run has left: whether each file is whole, and whether two results are the same."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tomllib
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import soundfile
from safetensors import safe_open

from sortk.formats import ctm, rttm

RATES = ("audio_per_second", "examples_per_second")  # of the training log: how fast this run was
GROWING = ("log.jsonl", "study.log", "postprocess.study.log")  # written line by line; a torn last line is mended
NOT_COMPARED = re.compile(rb'"(commit|date)":"[^"]*"')  # of a report
MAY_BE_EMPTY = (".jsonl", ".rttm", ".ctm")  # of no lines


def find_files(folder: Path) -> Iterator[Path]:
    """Files under their final names, as they are this moment."""
    for entry in list_folder(str(folder)):
        if entry.is_dir():
            yield from find_files(Path(entry.path))
        else:
            yield Path(entry.path)


def list_folder(folder: str) -> list[os.DirEntry[str]]:
    """Files and folders under their final names: neither hidden files, nor what is about the run (log/), nor locks
    (Optuna's)."""
    try:
        with os.scandir(folder) as entries:
            found = list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [
        entry
        for entry in found
        if (entry.name not in ("log", "jobs") if entry.is_dir() else entry.name[0] != "." and ".lock" not in entry.name)
    ]


def find_fault(path: Path, known: Container[str] = ()) -> str:
    """What is wrong with a file under a final name; empty if it is whole. `known`: keys of files that are."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:  # replaced or renamed meanwhile
        return ""
    try:
        if hashlib.sha256(content).hexdigest() in known:
            return ""
        if path.name in GROWING:
            _parse_lines(content[: content.rfind(b"\n") + 1], path)
        elif not content and path.suffix not in MAY_BE_EMPTY:
            return f"{path} is empty"
        else:
            PARSERS.get(path.suffix, _accept)(content, path)
    except Exception as error:  # of any parser
        return f"{path} is not whole: {type(error).__name__}: {error}"
    return ""


def _accept(content: bytes, path: Path) -> None:
    """A file whose format says nothing about its end."""


def _parse_json(content: bytes, path: Path) -> None:
    json.loads(content)


def _parse_lines(content: bytes, path: Path) -> None:
    if content and not content.endswith(b"\n"):
        raise ValueError("its last line does not end")
    for line in content.splitlines():
        json.loads(line)


def _parse_flac(content: bytes, path: Path) -> None:
    with soundfile.SoundFile(io.BytesIO(content)) as file:
        if len(file.read()) != file.frames:
            raise ValueError(f"it has fewer samples than the {file.frames} of its header")


def _parse_safetensors(content: bytes, path: Path) -> None:
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    end = max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
    if len(content) != 8 + length + end:
        raise ValueError(f"it has {len(content)} bytes, and should have {8 + length + end}")


def _parse_npy(content: bytes, path: Path) -> None:
    np.load(io.BytesIO(content), allow_pickle=False)


def _parse_toml(content: bytes, path: Path) -> None:
    tomllib.loads(content.decode())


def _parse_xml(content: bytes, path: Path) -> None:
    ElementTree.fromstring(content)


def _parse_text(content: bytes, path: Path) -> None:
    if content and not content.decode().endswith("\n"):
        raise ValueError("its last line does not end")


def _parse_columns(content: bytes, path: Path) -> None:
    _parse_text(content, path)
    lines = list(enumerate(content.decode().splitlines(), start=1))
    list((rttm if path.suffix == ".rttm" else ctm).parse(lines, path))


PARSERS: dict[str, Callable[[bytes, Path], None]] = {
    ".json": _parse_json,
    ".jsonl": _parse_lines,
    ".flac": _parse_flac,
    ".safetensors": _parse_safetensors,
    ".npy": _parse_npy,
    ".toml": _parse_toml,
    ".svg": _parse_xml,
    ".md": _parse_text,
    ".rttm": _parse_columns,
    ".ctm": _parse_columns,
}


def read_step(path: Path) -> int:
    """The step at which a checkpoint was taken."""
    with safe_open(path, framework="np") as file:
        return int(json.loads(file.metadata()["progress"])["step"])


def digest(folder: Path) -> dict[str, str]:
    """A key for each file of a result, without what may differ between two equal ones."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(_comparable(path)).hexdigest()
        for path in sorted(find_files(folder))
        if not path.name.endswith("study.log")  # with process ids and times; its trials are in postprocess.json
    }


def _comparable(path: Path) -> bytes:
    content = path.read_bytes()
    if path.name == "log.jsonl":
        return _dump([_without(json.loads(line), RATES) for line in content.splitlines()])
    if path.name == "scores.json":
        return _dump(_without(json.loads(content), ("commit", "date")))
    if path.suffix == ".safetensors":  # the library writes the notes in its header in random order
        end = 8 + int.from_bytes(content[:8], "little")
        return _dump(json.loads(content[8:end])) + content[end:]
    if path.name == "report.html":
        return NOT_COMPARED.sub(b"", content)
    if path.name == "RESULTS.md":
        return b"\n".join(line for line in content.splitlines() if not line.startswith(b"Commit "))
    return content


def _without(table: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name not in names}


def _dump(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True).encode()


def differences(expected: dict[str, str], found: dict[str, str]) -> list[str]:
    """Files that are missing, more, or other than expected."""
    missing = [f"{name} is missing" for name in expected.keys() - found.keys()]
    more = [f"{name} is one too many" for name in found.keys() - expected.keys()]
    other = [f"{name} differs" for name in expected.keys() & found.keys() if expected[name] != found[name]]
    return sorted(missing + more + other)
