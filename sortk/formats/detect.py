"""Detect the format of a file or folder: by its name where that is clear, else by its first line."""

from __future__ import annotations

from pathlib import Path

from sortk.formats import columns, lhotse, rttm
from sortk.formats.files import FormatError, files_in, read_lines
from sortk.formats.objects import Entry, decode

SUFFIXES = {".rttm": "rttm", ".uem": "uem", ".stm": "stm", ".ctm": "ctm"}

# A manifest may have a speaker, too; these keys show that its lines are sessions and not utterances.
SESSION_KEYS = frozenset({"session_id", "num_speakers", "rttm_filepath", "seglst_filepath", "ctm_filepath"})

# Keys in the lines of formats that do not name one audio file.
OBJECT_KEYS = {
    "lhotse": {"recording_id", "start", "duration"},
    "mixlist": {"wavs", "delays", "durations", "speakers", "texts"},
    "sst": {"session_id", "text"},
}

REJECTED = "rejected.jsonl"  # what `sortk clean` left out, and why: not data


def detect(path: Path) -> str:
    """Return rttm, uem, stm, ctm, seglst, manifest, sources, sst, mixlist, kaldi or lhotse.

    Raise FormatError for any other format. The format of a folder that a stage made is `lists`: see `lists_in`.
    """
    if path.is_dir():
        return _detect_folder(path)
    name = path.stem if path.suffix == ".gz" else path.name
    return SUFFIXES.get(Path(name).suffix.lower()) or _detect_content(path)


def _detect_folder(folder: Path) -> str:
    if (folder / "wav.scp").exists():
        return "kaldi"
    if (folder / lhotse.SUPERVISIONS).exists():
        return "lhotse"
    try:
        files = files_in(folder, ".json", *SUFFIXES)
    except FileNotFoundError:
        if lists_in(folder):
            return "lists"
        raise
    found = {detect(file) for file in files}
    if len(found) > 1:
        raise FormatError(folder, None, f"holds files of several formats: {', '.join(sorted(found))}")
    return found.pop()


def lists_in(folder: Path) -> list[Path]:
    """Return the JSON Lines files of a folder, such as 01-simulate, or of its folders, such as 02-clean/diar."""
    for pattern in ("*.jsonl", "*/*.jsonl"):
        files = sorted(file for file in folder.glob(pattern) if file.name != REJECTED and file.is_file())
        if files:
            return files
    return []


def _detect_content(path: Path) -> str:
    number, fields = next(columns.rows(read_lines(path)), (0, []))
    if not fields:
        raise FormatError(path, None, "has no lines, so its format is unknown")
    if fields[0].startswith("["):
        return "seglst"
    found = _detect_object(path) if fields[0].startswith("{") else _detect_columns(fields)
    if found is None:
        raise FormatError(path, number, "has an unknown format")
    return found


def _detect_object(path: Path) -> str | None:
    number, line = next((number, line) for number, line in read_lines(path) if line.strip())
    try:
        keys = Entry.of(decode(line, path, number), path, number).values.keys()
    except FormatError:
        if _is_json(path):  # one object on many lines
            return None
        raise
    if "audio_filepath" in keys:
        return "sources" if "speaker" in keys and not keys & SESSION_KEYS else "manifest"
    return next((found for found, needed in OBJECT_KEYS.items() if needed <= keys), None)


def _is_json(path: Path) -> bool:
    try:
        decode("\n".join(line for _, line in read_lines(path)), path, None)
    except FormatError:
        return False
    return True


def _detect_columns(fields: list[str]) -> str | None:
    if fields[0] == "SPEAKER" or fields[0] in rttm.OTHER_TYPES:
        return "rttm"
    is_number = [_is_number(field) for field in fields[:5]]
    if is_number[2:] == [True, True]:
        return "uem"
    if is_number[2:] == [True, True, False] or (is_number[2:] == [True, True, True] and len(fields) <= 6):
        return "ctm"
    return "stm" if is_number[3:] == [True, True] else None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
