"""Kaldi data directories: a folder of tables, each line a key and its value, sorted by key.

    wav.scp    meeting1 /corpus/meeting1.flac
    segments   alice-meeting1-0001234-0001384 meeting1 12.340 13.840      (optional)
    utt2spk    alice-meeting1-0001234-0001384 alice
    text       alice-meeting1-0001234-0001384 so shall we start           (optional)
    reco2dur   meeting1 1800.000                                          (optional)

Without `segments`, every recording is one utterance. A recording without any utterance is one without speech.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sortk.formats import audio
from sortk.formats.files import (
    FormatError,
    absolute_path,
    atomic_text,
    check_ids,
    check_name,
    check_span,
    format_seconds,
    is_file,
    is_token,
    parse_seconds,
    quote,
    read_lines,
    resolve_path,
    writable_segments,
)
from sortk.records import Segment

TABLES = ("wav.scp", "segments", "utt2spk", "spk2utt", "text", "reco2dur")
"""All that `write` writes, or removes."""


@dataclass(frozen=True, slots=True)
class KaldiData:
    """The contents of a data directory."""

    recordings: dict[str, Path]
    segments: list[Segment]
    durations: dict[str, float]  # seconds of the recordings in `reco2dur`


@dataclass(frozen=True, slots=True)
class KaldiTable:
    """One file of the directory; no rows if it is optional and missing."""

    path: Path
    rows: dict[str, tuple[int, str]]  # number of the line, and its value, by key

    def check_keys(self, other: KaldiTable) -> None:
        """Raise a FormatError for a key that is not in the other file, too."""
        for key, (line, _) in self.rows.items():
            if key not in other.rows:
                raise FormatError(self.path, line, f"{quote(key)} is not in {other.path.name}")


def read(folder: Path) -> KaldiData:
    """Return the recordings, and the utterances as segments, in the order of the files."""
    wav_scp, utt2spk = _table(folder / "wav.scp"), _table(folder / "utt2spk")
    segments, text, reco2dur = (_table(folder / name, optional=True) for name in ("segments", "text", "reco2dur"))
    utterances = segments if segments.path.exists() else wav_scp
    utt2spk.check_keys(utterances)
    utterances.check_keys(utt2spk)
    text.check_keys(utterances)
    if text.path.exists():
        utterances.check_keys(text)
    reco2dur.check_keys(wav_scp)
    recordings = {key: _audio_path(wav_scp.path, *row) for key, row in wav_scp.rows.items()}
    durations = {}
    for key, (line, value) in reco2dur.rows.items():
        durations[key] = parse_seconds(reco2dur.path, line, "duration", value)
        check_span(reco2dur.path, line, 0.0, durations[key])
    if utterances is segments:
        spans = dict(_spans(segments, recordings))
    else:
        ends = {key: durations.get(key) or audio.info(path).seconds for key, path in recordings.items()}
        spans = {key: (key, 0.0, end) for key, end in ends.items()}
    spoken = []
    for key, (recording, start, end) in spans.items():
        line, speaker = utt2spk.rows[key]
        if not is_token(speaker):
            raise FormatError(utt2spk.path, line, f"an utterance must have one speaker, got {quote(speaker)}")
        check_ids(utt2spk.path, line, speaker)
        spoken.append(Segment(recording, speaker, start, end, text.rows[key][1] if text.rows else ""))
    return KaldiData(recordings, spoken, durations)


def _spans(segments: KaldiTable, recordings: Mapping[str, Path]) -> Iterator[tuple[str, tuple[str, float, float]]]:
    """Yield utterance id, and recording, start and end of each line of `segments`."""
    path = segments.path
    for key, (line, value) in segments.rows.items():
        fields = value.split()
        if len(fields) not in (3, 4):  # the fourth, a channel, is for recordings with one speaker per channel
            raise FormatError(path, line, f"a line of segments must have 4 or 5 fields, got {len(fields) + 1}")
        if fields[0] not in recordings:
            raise FormatError(path, line, f"recording {quote(fields[0])} is not in wav.scp")
        start = parse_seconds(path, line, "start", fields[1])
        end = parse_seconds(path, line, "end", fields[2])
        check_span(path, line, start, end)
        yield key, (fields[0], start, end)


def _table(path: Path, optional: bool = False) -> KaldiTable:
    rows: dict[str, tuple[int, str]] = {}
    lines = () if optional and not path.exists() else read_lines(path)
    for number, line in lines:
        if not line.strip():
            continue
        key, *value = line.split(None, 1)
        check_ids(path, number, key)
        if key in rows:
            raise FormatError(path, number, f"{quote(key)} is in line {rows[key][0]} already")
        rows[key] = number, value[0].strip() if value else ""
    return KaldiTable(path, rows)


def _audio_path(wav_scp: Path, line: int, value: str) -> Path:
    if value.startswith("|") or value.endswith("|"):
        reason = f"a pipe, {quote(value)}: sortk runs no commands that a data file names; "
        raise FormatError(wav_scp, line, reason + "run it yourself and put the path of its output here")
    if not value or "\0" in value:
        raise FormatError(wav_scp, line, f"names no audio file: {quote(value)}")
    path, from_working_folder = resolve_path(value, wav_scp), Path(value)
    # Kaldi resolves relative paths from the folder where it runs.
    return from_working_folder if is_file(from_working_folder) and not is_file(path) else path


def write(
    folder: Path,
    recordings: Mapping[str, Path],
    segments: Iterable[Segment],
    durations: Mapping[str, float] | None = None,
) -> None:
    """Write all tables, in the order of LC_ALL=C; `text` and `reco2dur` only with texts, and with all durations.

    Audio paths are absolute, because Kaldi does not resolve them from the directory. Channels are not written.
    """
    utterances = _named(writable_segments(segments))
    for segment in utterances.values():
        if segment.session_id not in recordings:
            raise ValueError(f"{folder}: no audio is known for session {quote(segment.session_id)}")
    by_speaker: defaultdict[str, list[str]] = defaultdict(list)
    for key, segment in sorted(utterances.items()):
        by_speaker[segment.speaker].append(key)
    tables = {
        "wav.scp": {key: _scp_text(key, path) for key, path in recordings.items()},
        "segments": {
            key: f"{segment.session_id} {format_seconds(segment.start)} {format_seconds(segment.end)}"
            for key, segment in utterances.items()
        },
        "utt2spk": {key: segment.speaker for key, segment in utterances.items()},
        "spk2utt": {speaker: " ".join(keys) for speaker, keys in by_speaker.items()},
        "text": {key: " ".join(segment.text.split()) for key, segment in utterances.items()},
        "reco2dur": {key: format_seconds(seconds) for key, seconds in (durations or {}).items() if key in recordings},
    }
    if not any(tables["text"].values()):
        tables["text"] = {}
    if len(tables["reco2dur"]) < len(recordings):
        tables["reco2dur"] = {}
    for name, table in tables.items():
        if name in ("text", "reco2dur") and not table:
            (folder / name).unlink(missing_ok=True)  # one from an earlier conversion would contradict the other tables
            continue
        with atomic_text(folder / name) as file:
            file.writelines(f"{key} {value}".rstrip() + "\n" for key, value in sorted(table.items()))


def _named(segments: Iterable[Segment]) -> dict[str, Segment]:
    """Return the segments by utterance id. It starts with the speaker, so that both sort in the same order."""
    named: dict[str, Segment] = {}
    for segment in segments:
        start, end = round(segment.start * 100), round(segment.end * 100)
        key = stem = f"{segment.speaker}-{segment.session_id}-{start:07d}-{end:07d}"
        for number in itertools.count(2):
            if key not in named:
                break
            key = f"{stem}-{number}"
        named[key] = segment
    return named


def _scp_text(key: str, path: Path) -> str:
    check_name("session id", key)
    text = str(absolute_path(path))
    if text != text.strip() or "\n" in text or text.endswith("|"):
        raise ValueError(f"{key}: wav.scp cannot hold the path {quote(text)}")
    return text
