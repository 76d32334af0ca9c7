"""Files of any format: detect it (by name where that is clear, else by the first line), read it, write it as another.

Between formats everything is sessions, which name audio, and segments.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from sortk.formats import audio, ctm, kaldi, lhotse, manifest, rttm, seglst, stm
from sortk.formats.annotation import session_segments
from sortk.formats.files import (
    FormatError,
    check_file_name,
    check_other_file,
    files_in,
    is_file,
    is_token,
    quote,
    read_columns,
    read_lines,
)
from sortk.formats.objects import Entry, decode
from sortk.formats.outputs import check_replaceable, noting_outputs
from sortk.records import Segment, Session

# The formats that hold segments and name no audio.
PARSERS = {"rttm": rttm.parse, "stm": stm.parse, "ctm": ctm.parse, "seglst": seglst.parse}
WRITERS = {"rttm": rttm.write, "stm": stm.write, "ctm": ctm.write, "seglst": seglst.write}
SUFFIXES = {"rttm": ".rttm", "stm": ".stm", "ctm": ".ctm", "seglst": ".json"}

# The formats that name audio.
CORPORA = ("manifest", "kaldi", "lhotse")

COLUMN_SUFFIXES = {".rttm": "rttm", ".uem": "uem", ".stm": "stm", ".ctm": "ctm"}

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
    if found := COLUMN_SUFFIXES.get(Path(name).suffix.lower()):
        return found
    number, fields = next(read_columns(read_lines(path)), (0, []))
    if not fields:
        raise FormatError(path, None, "has no lines, so its format is unknown")
    if fields[0].startswith("["):
        return "seglst"
    kind = _detect_object(path) if fields[0].startswith("{") else _detect_columns(fields)
    if kind is None:
        raise FormatError(path, number, "has an unknown format")
    return kind


def _detect_folder(folder: Path) -> str:
    if (folder / "wav.scp").exists():
        return "kaldi"
    if (folder / lhotse.SUPERVISIONS).exists():
        return "lhotse"
    try:
        files = files_in(folder, ".json", *COLUMN_SUFFIXES)
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


@dataclass(frozen=True, slots=True)
class Material:
    """The contents of a source; no sessions if it names no audio."""

    segments: list[Segment]
    sessions: list[Session]


def convert(source: Path, target: Path, to: str, force: bool = False) -> None:
    """Read `source`, whatever its format, and write it as `to`; ValueError if that format cannot hold it.

    Files of the user's own are not replaced unless `force`: annotations beside a manifest, tables in a Kaldi or lhotse
    folder, the source itself.
    """
    if to not in (*WRITERS, *CORPORA):
        raise ValueError(f"cannot convert to {quote(to)}, only to {', '.join((*WRITERS, *CORPORA))}")
    if not force:
        check_other_file(target, source)
    material = load(source)
    try:
        if to in CORPORA:
            _write_corpus(target, material, to, force)
            return
        if material.sessions and not material.segments:
            raise ValueError("it names audio, but no segments (rttm, ctm or seglst) to write")
        if to == "ctm" and not all(is_token(segment.text) for segment in material.segments):
            raise ValueError("that needs one word per segment; `sortk timestamps` splits segments into words")
        WRITERS[to](target, material.segments)
    except FormatError:
        raise  # it names a file
    except ValueError as error:
        raise FormatError(source, None, f"cannot be written as {to}: {error}") from None


def load(source: Path) -> Material:
    """Return the contents of a file or folder of any format."""
    found = detect(source)
    if found in PARSERS:
        return Material(list(stream_segments(source, found)), [])
    if found == "manifest":
        sessions = manifest.read(source)
        return Material([segment for session in sessions for segment in session_segments(session)], sessions)
    if found == "kaldi":
        data = kaldi.read(source)
        sessions = [Session(name, path, data.durations.get(name)) for name, path in data.recordings.items()]
        return Material(data.segments, sessions)
    if found == "lhotse":
        return Material(*lhotse.read(source))
    raise ValueError(f"{source}: {found} cannot be converted, only {', '.join((*PARSERS, *CORPORA))}")


def stream_segments(path: Path, found: str) -> Iterator[Segment]:
    """Yield the segments of a file, or of all files in a folder, whose format is one of PARSERS."""
    for file in files_in(path, SUFFIXES[found]):
        yield from PARSERS[found](read_lines(file), file)


def _write_corpus(target: Path, material: Material, to: str, force: bool) -> None:
    if to == "lhotse":
        with _replacing_own(target, (lhotse.RECORDINGS, lhotse.SUPERVISIONS), force):
            lhotse.write(target, material.segments, material.sessions)
        return
    names = {session.session_id for session in material.sessions}
    for segment in material.segments:
        if segment.session_id not in names:
            raise ValueError(f"{target}: {to} needs audio, and none is known for session {quote(segment.session_id)}")
    if to == "manifest":
        _write_manifest(target, material, force)
    else:
        recordings = {session.session_id: session.audio_path for session in material.sessions}
        # A session can be a window; reco2dur has the length of the entire file, which is in its header.
        durations = {name: audio.info(path).seconds for name, path in recordings.items() if is_file(path)}
        with _replacing_own(target, kaldi.TABLES, force):
            kaldi.write(target, recordings, material.segments, durations)


@contextlib.contextmanager
def _replacing_own(folder: Path, names: Iterable[str], force: bool) -> Iterator[None]:
    """Inside the block these files are written or removed; ValueError if one is not as sortk has written it."""
    paths = [folder / name for name in names]
    check_replaceable(paths, force)
    with noting_outputs(paths):
        yield


def _write_manifest(path: Path, material: Material, force: bool) -> None:
    """Write a manifest; sessions without annotation get an RTTM, and a SegLST if there is text, beside it."""
    spoken = defaultdict(list)
    for segment in material.segments:
        spoken[segment.session_id].append(segment)
    sessions, made = [], dict[Path, list[Segment]]()
    for session in material.sessions:
        if session.rttm_path or session.ctm_path or session.seglst_path:
            sessions.append(session)
            continue
        name, segments = check_file_name(session.session_id, path), spoken[session.session_id]
        rttm_path, seglst_path = path.parent / "rttm" / f"{name}.rttm", path.parent / "seglst" / f"{name}.json"
        made[rttm_path] = segments
        if any(segment.text for segment in segments):
            made[seglst_path] = segments
        sessions.append(replace(session, rttm_path=rttm_path, seglst_path=seglst_path if seglst_path in made else None))
    if not force:
        _check_unchanged(path, made)
    for file, segments in made.items():
        WRITERS["rttm" if file.suffix == ".rttm" else "seglst"](file, segments)
    manifest.write(path, sessions)


def _check_unchanged(manifest_path: Path, made: Mapping[Path, list[Segment]]) -> None:
    """Raise a ValueError if one of the files is there already with another content."""
    with TemporaryDirectory() as folder:
        for path in (path for path in made if os.path.lexists(path)):
            ours = Path(folder, f"new{path.suffix}")
            WRITERS["rttm" if path.suffix == ".rttm" else "seglst"](ours, made[path])
            if not path.is_file() or not filecmp.cmp(ours, path, shallow=False):
                raise FormatError(
                    path, None, f"exists and would be replaced for {manifest_path}; move it away, or use --force"
                )
