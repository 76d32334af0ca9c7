"""Check a file, and the files that it names: return a one-line summary or raise a FormatError."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from sortk.formats import audio, kaldi, lhotse, manifest, mixlist, sources, uem
from sortk.formats.annotation import session_segments
from sortk.formats.convert import detect, lists_in, stream_segments
from sortk.formats.files import FormatError, plural, read_lines
from sortk.formats.objects import entries
from sortk.formats.sst import strip_tokens
from sortk.records import Segment, Session, Source

Numbered = Sequence[tuple[int, Session]]

TOLERANCE = 0.5
"""Seconds by which annotation may outlast its audio: annotators round up."""

ANNOTATIONS = {"rttm_filepath": "rttm_path", "ctm_filepath": "ctm_path", "seglst_filepath": "seglst_path"}


def validate(path: Path) -> str:
    """Return such as `rttm, 3 sessions, 12 segments, 4 speakers, 0.31 h of speech`; for a stage's folder, each list."""
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


def _check_ends(path: Path, numbered: Numbered, key: str, length: Callable[[Path], float]) -> None:
    """Raise a FormatError unless the files that `key` names parse, and end with the audio."""
    others: dict[str, Any] = {field: None for other, field in ANNOTATIONS.items() if other != key}
    for line, session in numbered:
        segments = session_segments(replace(session, offset=0.0, duration=None, **others))
        end, audio_seconds = max((segment.end for segment in segments), default=0.0), length(session.audio_path)
        if end > audio_seconds + TOLERANCE:
            file = getattr(session, ANNOTATIONS[key])
            raise FormatError(path, line, f"{key} ends at {end} s, its audio at {audio_seconds} s: {file}")
