"""Files of any format: detect it (by name where that is clear, else by the first line), check it, convert it.

Between formats everything is sessions, which name audio, and segments.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sortk.formats import audio, ctm, kaldi, lhotse, manifest, mixlist, rttm, seglst, sources, stm, uem
from sortk.formats.annotation import session_segments
from sortk.formats.files import (
    FormatError,
    check_file_name,
    files_in,
    is_file,
    is_token,
    plural,
    quote,
    read_columns,
    read_lines,
)
from sortk.formats.objects import Entry, decode, entries
from sortk.formats.outputs import check_replaceable, noting_outputs
from sortk.formats.sst import strip_tokens
from sortk.records import Segment, Session, Source

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
        manifest.check_other_file(target, source)
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


# ---------------------------------------------------------------------------------------------------------------------
# Checking a file, and the files that it names

TOLERANCE = 0.5
"""Seconds by which annotation may outlast its audio: annotators round up."""

ANNOTATIONS = {"rttm_filepath": "rttm_path", "ctm_filepath": "ctm_path", "seglst_filepath": "seglst_path"}


def validate(path: Path) -> str:
    """Return a summary, such as `rttm, 3 sessions, 12 segments, 4 speakers, 0.31 h of speech`; for the folder of a
    stage, that of each list. FormatError for the first fault in the file, or in one that it names.
    """
    found = detect(path)
    if found == "lists":
        # A corpus of sessions has a sources.jsonl without lines, a corpus of utterances manifests without lines.
        lists = {file: file.stat().st_size > 0 for file in lists_in(path)}
        parts = [f"{file.relative_to(path)}: {validate(file) if filled else 'empty'}" for file, filled in lists.items()]
        return "; ".join(parts)
    if found in DESCRIBERS:
        return DESCRIBERS[found](path)
    if found == "kaldi":
        return _describe_segments(found, kaldi.read(path).segments)
    if found == "lhotse":
        return _describe_segments(found, lhotse.read(path)[0])
    return _describe_segments(found, stream_segments(path, found))


def _describe_segments(found: str, segments: Iterable[Segment]) -> str:
    sessions: set[str] = set()
    speakers: set[str] = set()
    n_segments, seconds = 0, 0.0
    for segment in segments:
        sessions.add(segment.session_id)
        speakers.add(segment.speaker)
        n_segments += 1
        seconds += segment.duration
    counts = [plural(len(sessions), "session"), plural(n_segments, "segment"), plural(len(speakers), "speaker")]
    return ", ".join([found, *counts, f"{seconds / 3600:.2f} h of speech"])


def _describe_uem(path: Path) -> str:
    regions = uem.read(path)
    counts = [plural(len({region.session_id for region in regions}), "session"), plural(len(regions), "region")]
    hours = sum(region.end - region.start for region in regions) / 3600
    return ", ".join(["uem", *counts, f"{hours:.2f} h to score"])


def _describe_manifest(path: Path) -> str:
    numbered = list(manifest.parse(read_lines(path), path))
    manifest.check_files(numbered, path)
    length = cache(_audio_seconds)
    seconds = 0.0
    for line, session in numbered:
        seconds += _window(path, line, session, length(session.audio_path))
        if session.uem_path:
            uem.read(session.uem_path)
    for key in ANNOTATIONS:
        _check_ends(path, numbered, key, length)
    return f"manifest, {plural(len(numbered), 'session')}, {seconds / 3600:.2f} h of audio"


def _describe_sources(path: Path) -> str:
    numbered = list(sources.parse(read_lines(path), path))
    sources.check_files(numbered, path)
    length = cache(_audio_seconds)
    seconds = sum(_window(path, line, source, length(source.audio_path)) for line, source in numbered)
    counts = [plural(len(numbered), "utterance"), plural(len({source.speaker for _, source in numbered}), "speaker")]
    return ", ".join(["sources", *counts, f"{seconds / 3600:.2f} h of audio"])


def _describe_sst(path: Path) -> str:
    line_of: dict[str, int | None] = {}
    n_words = 0
    for _, entry in entries(read_lines(path), path):
        session_id, text = entry.need(entry.name, "session_id"), entry.need(entry.text, "text")
        entry.check_new("session_id", session_id, line_of)
        n_words += len(strip_tokens(text).split())
    return ", ".join(["sst", plural(len(line_of), "session"), plural(n_words, "word")])


def _describe_mixlist(path: Path) -> str:
    mixtures = mixlist.read(path)
    spoken = [utterance for mixture in mixtures for utterance in mixture.utterances]
    speakers = {utterance.speaker for utterance in spoken}
    counts = [plural(len(mixtures), "mixture"), plural(len(spoken), "utterance"), plural(len(speakers), "speaker")]
    hours = sum(utterance.duration for utterance in spoken) / 3600
    return ", ".join(["mixlist", *counts, f"{hours:.2f} h of speech"])


DESCRIBERS = {
    "uem": _describe_uem,
    "manifest": _describe_manifest,
    "sources": _describe_sources,
    "sst": _describe_sst,
    "mixlist": _describe_mixlist,
}


def _audio_seconds(path: Path) -> float:
    return audio.info(path).seconds


def _window(path: Path, line: int, item: Session | Source, audio_seconds: float) -> float:
    """Return the seconds of a session or utterance, which must be inside its audio."""
    seconds = audio_seconds - item.offset if item.duration is None else item.duration
    end = item.offset + seconds
    if item.offset >= audio_seconds or end > audio_seconds + TOLERANCE:
        reason = f"{item.offset} s to {end} s is not inside its audio, which ends at {audio_seconds} s"
        raise FormatError(path, line, f"{reason}: {item.audio_path}")
    return seconds


def _check_ends(path: Path, numbered: Sequence[tuple[int, Session]], key: str, length: Callable[[Path], float]) -> None:
    """Raise a FormatError unless the files that `key` names parse, and end with the audio."""
    others: dict[str, Any] = {field: None for other, field in ANNOTATIONS.items() if other != key}
    for line, session in numbered:
        segments = session_segments(replace(session, offset=0.0, duration=None, **others))
        end, audio_seconds = max((segment.end for segment in segments), default=0.0), length(session.audio_path)
        if end > audio_seconds + TOLERANCE:
            file = getattr(session, ANNOTATIONS[key])
            raise FormatError(path, line, f"{key} ends at {end} s, its audio at {audio_seconds} s: {file}")
