"""Manifests, the sessions of a data set (NeMo): JSON Lines, one session per line.

    {"session_id": "meeting1", "audio_filepath": "audio/meeting1.flac", "offset": 0.0, "duration": 90.0,
     "num_speakers": 3, "rttm_filepath": "rttm/meeting1.rttm", "seglst_filepath": "seglst/meeting1.json"}

(on one line). Only `audio_filepath` is required. Paths are relative to the manifest. A session without an id is
named after its audio, with the offset in milliseconds if it is a window inside: `meeting1-90000`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sortk.formats.files import FormatError, Lines, is_file, path_text, quote, read_lines
from sortk.formats.objects import Entry, encode, entries, id_of, write_lines
from sortk.records import Session

PATHS = {
    "audio_filepath": "audio_path",
    "rttm_filepath": "rttm_path",
    "uem_filepath": "uem_path",
    "ctm_filepath": "ctm_path",
    "seglst_filepath": "seglst_path",
}
"""Keys that name files, and the fields of `Session` that hold them."""

KEYS = frozenset({"session_id", "offset", "duration", "text", "num_speakers", *PATHS})


def read(path: Path) -> list[Session]:
    """Return all sessions, in the order of the file; the files they name are not opened."""
    return [session for _, session in parse(read_lines(path), path)]


def parse(lines: Lines, path: Path) -> Iterator[tuple[int, Session]]:
    """Yield line number and session of each line; relative paths count from the folder of `path`."""
    line_of: dict[str, int | None] = {}
    for number, entry in entries(lines, path):
        session = _session(entry)
        entry.check_new("session_id", session.session_id, line_of)
        yield number, session


def named_files(path: Path) -> list[Path]:
    """Return the files that a manifest or sources.jsonl names, each once; none for any other file.

    Lines that cannot be read are left to `parse`, which says what is wrong with them.
    """
    if path.name.removesuffix(".gz").endswith(".jsonl") and is_file(path):
        with contextlib.suppress(FormatError):
            files = (entry.file(key) for _, entry in entries(read_lines(path), path) for key in PATHS)
            return sorted({file for file in files if file is not None})
    return []


def check_other_file(target: Path, *sources: Path) -> None:
    """Raise a ValueError if a file to write is one to read: a source, one in a folder, one that a manifest names."""
    for source in sources if is_file(target) else ():
        own = sorted(source.iterdir()) if source.is_dir() else [source]
        for file in (*own, *(named for listed in own for named in named_files(listed))):
            if is_file(file) and file.samefile(target):
                raise ValueError(f"{target} is the input {file}, which would be replaced; give another file to write")


def check_files(numbered: Iterable[tuple[int, Session]], path: Path) -> None:
    """Raise a FormatError for the first session that names a missing file."""
    for number, session in numbered:
        for key, field in PATHS.items():
            file: Path | None = getattr(session, field)
            if file is not None and not is_file(file):
                raise FormatError(path, number, f"{key} names a file that does not exist: {file}")


def _session(entry: Entry) -> Session:
    audio_path = entry.need(entry.file, "audio_filepath")
    offset = entry.seconds("offset") or 0.0
    name = entry.name("session_id")
    if not name:
        name = id_of(audio_path) + (f"-{round(offset * 1000)}" if offset > 0 else "")
        if not id_of(audio_path):
            raise entry.error(f"audio_filepath does not name a file: {quote(str(audio_path))}")
    extra = {key: value for key, value in entry.values.items() if key not in KEYS}
    try:
        encode(extra)
    except ValueError as error:
        raise entry.error(str(error)) from None
    return Session(
        session_id=name,
        audio_path=audio_path,
        duration=entry.duration("duration"),
        offset=offset,
        # NeMo writes "-" where nothing was transcribed; an empty text is a transcript: nothing was said.
        text=None if entry.text("text") == "-" else entry.text("text"),
        num_speakers=entry.count("num_speakers"),
        rttm_path=entry.file("rttm_filepath"),
        uem_path=entry.file("uem_filepath"),
        ctm_path=entry.file("ctm_filepath"),
        seglst_path=entry.file("seglst_filepath"),
        extra=extra,
    )


def write(path: Path, sessions: Iterable[Session]) -> None:
    """Write one line per session, in the order given; raise ValueError for one that could not be read back."""
    write_lines(path, (_as_object(session, path) for session in sessions), parse)


def _as_object(session: Session, path: Path) -> dict[str, Any]:
    if clash := KEYS & session.extra.keys():
        raise ValueError(f"{session.session_id}: extra repeats {', '.join(sorted(clash))}")
    files = {key: getattr(session, field) for key, field in PATHS.items()}
    optional = {"text": session.text, "num_speakers": session.num_speakers}
    return {
        "session_id": session.session_id,
        "audio_filepath": path_text(session.audio_path, path),
        "offset": session.offset,
        "duration": session.duration,  # null if unknown: NeMo wants the key
        **{key: path_text(file, path) for key, file in files.items() if file is not None},
        **{key: value for key, value in optional.items() if value is not None},
        **session.extra,
    }
