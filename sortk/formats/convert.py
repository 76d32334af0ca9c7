"""Convert one format to another: everything becomes sessions (which name audio) and segments, then is written."""

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
from sortk.formats.detect import detect
from sortk.formats.files import (
    FormatError,
    check_file_name,
    check_other_file,
    files_in,
    is_file,
    is_token,
    quote,
    read_lines,
)
from sortk.formats.outputs import check_replaceable, noting_outputs
from sortk.records import Segment, Session

__all__ = ["Material", "convert", "detect", "load", "stream_segments"]

# The formats that hold segments and name no audio.
PARSERS = {"rttm": rttm.parse, "stm": stm.parse, "ctm": ctm.parse, "seglst": seglst.parse}
WRITERS = {"rttm": rttm.write, "stm": stm.write, "ctm": ctm.write, "seglst": seglst.write}
SUFFIXES = {"rttm": ".rttm", "stm": ".stm", "ctm": ".ctm", "seglst": ".json"}

# The formats that name audio.
CORPORA = ("manifest", "kaldi", "lhotse")


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
        _write(target, material, to, force)
    except FormatError:
        raise  # it names a file
    except ValueError as error:
        raise FormatError(source, None, f"cannot be written as {to}: {error}") from None


def _write(target: Path, material: Material, to: str, force: bool) -> None:
    if to in CORPORA:
        _write_corpus(target, material, to, force)
        return
    if material.sessions and not material.segments:
        raise ValueError("it names audio, but no segments (rttm, ctm or seglst) to write")
    if to == "ctm" and not all(is_token(segment.text) for segment in material.segments):
        raise ValueError("that needs one word per segment; `sortk timestamps` splits segments into words")
    WRITERS[to](target, material.segments)


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
        with _replacing_own(target, kaldi.TABLES, force):
            _write_kaldi(target, material)


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
        _write_annotation(file, segments)
    manifest.write(path, sessions)


def _write_annotation(path: Path, segments: list[Segment]) -> None:
    writer = rttm.write if path.suffix == ".rttm" else seglst.write
    writer(path, segments)


def _check_unchanged(manifest_path: Path, made: Mapping[Path, list[Segment]]) -> None:
    """Raise a ValueError if one of the files is there already with another content."""
    with TemporaryDirectory() as folder:
        for path in (path for path in made if os.path.lexists(path)):
            ours = Path(folder, f"new{path.suffix}")
            _write_annotation(ours, made[path])
            if not path.is_file() or not filecmp.cmp(ours, path, shallow=False):
                raise FormatError(
                    path, None, f"exists and would be replaced for {manifest_path}; move it away, or use --force"
                )


def _write_kaldi(folder: Path, material: Material) -> None:
    recordings = {session.session_id: session.audio_path for session in material.sessions}
    # A session can be a window; reco2dur has the length of the entire file, which is in its header.
    durations = {name: audio.info(path).seconds for name, path in recordings.items() if is_file(path)}
    kaldi.write(folder, recordings, material.segments, durations)
