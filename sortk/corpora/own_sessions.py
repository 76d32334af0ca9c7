"""Your own recorded sessions: a folder of recordings with RTTM, a manifest, or a Kaldi data directory.

    data/a.wav, data/a.rttm           who speaks when; a.stm or a.json (SegLST): what is said; a.uem: what is scored
    data/sessions.jsonl               a manifest (see formats/manifest.py), given itself as the corpus
    data/wav.scp, utt2spk, ...        a Kaldi data directory (see formats/kaldi.py)

In a folder of recordings only the names inside RTTM, STM and UEM files matter: the files may be anywhere below, and one
file may be about many sessions. A session without an RTTM has the speakers of its transcript.

Folders train/, dev/ (or valid/) and test/, or manifests of such names, are the parts of the corpus. If there are none,
the recordings are divided at random, each with all its sessions; then a speaker may be in several parts.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from sortk.corpora.sessions import Parts, RecordedSession, find_files, need_file
from sortk.corpora.splits import TRAIN, share, split_speakers
from sortk.formats import audio, kaldi, manifest, rttm, seglst, stm, uem
from sortk.formats.annotation import is_annotated, prefer_rttm, session_regions, session_segments
from sortk.formats.convert import lists_in
from sortk.formats.files import plural, quote, read_lines
from sortk.formats.objects import id_of
from sortk.records import Region, RunJobs, Segment, Session

log = logging.getLogger(__name__)

Annotation = TypeVar("Annotation", Segment, Region)

TOLERANCE = 0.5  # seconds by which annotation may outlast its audio: annotators round up
PART_NAMES = ("train", "dev", "valid", "test")
SCORABLE_SECONDS = 5.0  # of speech: a recording with less is not drawn for dev or test, if there are enough others


def read(corpus_dir: Path, run_jobs: RunJobs, valid_fraction: float, test_fraction: float, seed: int) -> Parts:
    """Return the parts that exist on disk or, without any, random ones."""
    places = ((name, corpus_dir / f"{name}{suffix}") for name in PART_NAMES for suffix in (".jsonl", ""))
    found = {name: place for name, place in places if place.exists()}  # a folder is preferred to a manifest
    if found:
        _check_parts(corpus_dir, found)
        return {part: _read_place(place, corpus_dir, run_jobs) for part, place in found.items()}
    sessions = _read_place(corpus_dir, corpus_dir, run_jobs)
    # Windows of one recording stay together: a model that has learned from one knows the voices of the others.
    ids: dict[Path, str] = {}
    for session in sessions:
        ids.setdefault(session.audio_path.resolve(), session.session_id)
    n_valid, n_test = share(valid_fraction, len(ids)), share(test_fraction, len(ids))
    if n_valid + n_test >= len(ids) or (valid_fraction and not n_valid and len(ids) < len(sessions)):
        raise ValueError(
            f"{corpus_dir}: too few recordings to split ({len(ids)}); put them into train/, dev/ and test/"
        )
    if valid_fraction and not n_valid:
        log.warning("%s: too few recordings to split (%d), so all of them are in train", corpus_dir, len(ids))
    speech = dict.fromkeys(ids.values(), 0.0)
    for session in sessions:
        speech[ids[session.audio_path.resolve()]] += sum(segment.duration for segment in session.segments)
    scorable = [name for name, seconds in speech.items() if seconds >= SCORABLE_SECONDS]
    drawn = scorable if len(scorable) > n_valid + n_test else list(speech)
    split_of = dict.fromkeys(speech, TRAIN) | split_speakers(dict.fromkeys(drawn, ""), n_valid, n_test, seed)
    parts: Parts = {}
    for session in sessions:
        parts.setdefault(split_of[ids[session.audio_path.resolve()]], []).append(session)
    return {part: parts[part] for part in PART_NAMES if part in parts}


def is_own_data(folder: Path) -> bool:
    """Return whether the folder holds recordings for `sortk prepare sessions`, and is not the output of a stage."""
    if not folder.is_dir() or lists_in(folder):
        return False
    if (folder / "wav.scp").is_file() or (folder / "train" / "wav.scp").is_file():
        return True
    return any(path.suffix.lower() in audio.SUFFIXES for path in find_files(folder))


def describe(folder: Path, valid_fraction: float, test_fraction: float) -> str:
    """Return what `sortk prepare sessions` would write of a folder, without writing; it raises the same errors."""
    found = []
    for part, sessions in read(folder, map, valid_fraction, test_fraction, seed=0).items():
        speakers = {segment.speaker for session in sessions for segment in session.segments}
        hours = sum(session.duration for session in sessions) / 3600
        words = sum(len(segment.text.split()) for session in sessions for segment in session.transcript)
        counts = [(len(sessions), "session"), (len(speakers), "speaker"), *([(words, "word")] if words else [])]
        name = "valid (dev/)" if part == "dev" else part  # as prepare names the set
        found.append(f"{name} {', '.join(plural(*count) for count in counts)}, {hours:.2f} h")
    return "; ".join(found)


def _check_parts(corpus_dir: Path, found: Mapping[str, Path]) -> None:
    """Raise a ValueError for recordings outside of the parts: they would be left out."""
    beside = [
        path
        for path in find_files(corpus_dir)
        if path.suffix.lower() in audio.SUFFIXES
        and not any(path.is_relative_to(place) for place in found.values() if place.is_dir())
    ]
    if beside and all(place.is_dir() for place in found.values()):  # manifests name recordings anywhere
        raise ValueError(
            f"{corpus_dir}: {len(beside)} recordings are in none of the parts ({', '.join(found)}), the first is "
            f"{beside[0]}; move them into train/, dev/ or test/"
        )


def _read_place(place: Path, corpus_dir: Path, run_jobs: RunJobs) -> list[RecordedSession]:
    """Return the sessions of a manifest, a Kaldi data directory or a folder of recordings; annotations of the latter
    may be anywhere in the corpus."""
    if place.is_file():
        numbered = list(manifest.parse(read_lines(place), place))
        manifest.check_files(numbered, place)
        return list(run_jobs(partial(_read_line, place), [session for _, session in numbered]))
    if (place / "wav.scp").is_file():
        return _read_kaldi(place, run_jobs)
    return _read_folder(place, corpus_dir, run_jobs)


# ---------------------------------------------------------------------------------------------------------------------
# A line of a manifest


def _read_line(path: Path, session: Session) -> RecordedSession:
    if not is_annotated(session):
        raise ValueError(
            f"{path}: session {session.session_id} names no RTTM, SegLST or CTM, so its speakers are unknown"
        )
    spoken = replace(session, rttm_path=None)
    seconds = session.duration
    if seconds is None:
        seconds = audio.info(session.audio_path).seconds - session.offset
    return RecordedSession(
        session.session_id,
        session.audio_path,
        seconds,
        segments=_without_text(session_segments(prefer_rttm(session))),
        transcript=_with_text(session_segments(spoken)),
        regions=tuple(replace(region, session_id=session.session_id) for region in session_regions(session)),
        offset=session.offset,
    )


def _with_text(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    return tuple(segment for segment in segments if segment.text)


def _without_text(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    return tuple(replace(segment, text="") for segment in segments)


# ---------------------------------------------------------------------------------------------------------------------
# Kaldi data directories and folders of recordings


@dataclass(frozen=True)
class Annotated:
    """A recording with its annotation."""

    session_id: str
    audio_path: Path
    segments: list[Segment] = field(default_factory=list)  # who speaks when
    transcript: list[Segment] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    ignored: list[Region] = field(default_factory=list)  # what an STM says not to score


def _read_recording(found: Annotated) -> RecordedSession:
    seconds = audio.info(found.audio_path).seconds
    end = max((segment.end for segment in (*found.segments, *found.transcript)), default=0.0)
    if end > seconds + TOLERANCE:
        raise ValueError(f"{found.audio_path}: ends at {seconds:g} s, but its annotation at {end:g} s")
    speakers, talkers = ({segment.speaker for segment in own} for own in (found.segments, found.transcript))
    if speakers and talkers and not speakers & talkers:
        log.warning(
            "%s: no speaker of its transcript (%s, ...) is in its RTTM (%s, ...); the same names would link words to "
            "turns",
            found.audio_path,
            min(talkers),
            min(speakers),
        )
    regions = found.regions or ([Region(found.session_id, 0.0, seconds)] if found.ignored else [])
    return RecordedSession(
        found.session_id,
        found.audio_path,
        seconds,
        segments=_without_text(found.segments or found.transcript),
        transcript=_with_text(found.transcript),
        regions=tuple(part for region in regions for part in _cut_out(region, found.ignored)),
    )


def _cut_out(region: Region, ignored: Sequence[Region]) -> Iterator[Region]:
    """Yield the parts of a region that are not ignored."""
    start = region.start
    for other in sorted(ignored, key=lambda other: other.start):
        if start < other.start and start < region.end:
            yield replace(region, start=start, end=min(other.start, region.end))
        start = max(start, other.end)
    if start < region.end:
        yield replace(region, start=start)


def _read_kaldi(folder: Path, run_jobs: RunJobs) -> list[RecordedSession]:
    data = kaldi.read(folder)
    recordings = {
        name: Annotated(name, need_file(path, f"named by {folder / 'wav.scp'}"))
        for name, path in data.recordings.items()
    }
    for segment in data.segments:
        recordings[segment.session_id].transcript.append(segment)
    return list(run_jobs(_read_recording, list(recordings.values())))


def _read_folder(folder: Path, corpus_dir: Path, run_jobs: RunJobs) -> list[RecordedSession]:
    recordings = {id_of(path): Annotated(id_of(path), path) for path in _find_recordings(folder)}
    files = find_files(corpus_dir)
    known = {id_of(path): path for path in files if path.suffix.lower() in audio.SUFFIXES}
    for path in files:
        if path.suffix == ".rttm":
            _assign(rttm.read(path), path, recordings, known, lambda found: found.segments)
        elif path.suffix == ".stm":
            _assign(stm.read(path), path, recordings, known, lambda found: found.transcript)
            _assign(stm.read_ignored(path), path, recordings, known, lambda found: found.ignored)
        elif path.suffix == ".json" and id_of(path) in known:  # other JSON may be anything
            _assign(seglst.read(path), path, recordings, known, lambda found: found.transcript)
        elif path.suffix == ".uem":
            _assign(uem.read(path), path, recordings, known, lambda found: found.regions)
    for name, found in recordings.items():
        if not found.segments and not found.transcript:
            raise FileNotFoundError(
                f"{found.audio_path}: no RTTM, STM or SegLST file in this folder names session {name}"
            )
    return list(run_jobs(_read_recording, list(recordings.values())))


def _find_recordings(folder: Path) -> list[Path]:
    paths = [path for path in find_files(folder) if path.suffix.lower() in audio.SUFFIXES]
    if not paths:
        raise FileNotFoundError(f"{folder}: no recording (*.wav, *.flac, ...) here or below, and no wav.scp")
    by_name: dict[str, Path] = {}
    for path in paths:
        if other := by_name.get(id_of(path)):
            raise ValueError(f"{path} and {other} are both session {id_of(path)}; rename one of them")
        by_name[id_of(path)] = path
    return paths


def _assign(
    entries: Sequence[Annotation],
    path: Path,
    recordings: dict[str, Annotated],
    known: Mapping[str, Path],
    place: Callable[[Annotated], list[Annotation]],
) -> None:
    """Add the entries of a file to the recordings that they are about; those may be in another part."""
    for entry in entries:
        if entry.session_id in recordings:
            place(recordings[entry.session_id]).append(entry)
        elif entry.session_id not in known:
            # What was probably meant differs in case, by a file suffix, or slightly.
            simple, wanted = {_simplify(name): name for name in known}, _simplify(entry.session_id)
            close = [wanted] if wanted in simple else difflib.get_close_matches(wanted, simple, n=1)
            nearest = simple[close[0]] if close else None
            raise FileNotFoundError(
                f"{path}: refers to session {quote(entry.session_id)}, but there is no recording of that name"
                + (f"; the nearest is {known[nearest].name}, whose session is {quote(nearest)}" if nearest else "")
            )


def _simplify(session_id: str) -> str:
    lower = session_id.lower()
    stem, dot, suffix = lower.rpartition(".")
    return re.sub(r"[\s_-]+", "_", stem if dot and f".{suffix}" in audio.SUFFIXES else lower)
