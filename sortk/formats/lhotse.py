"""Lhotse manifests: a folder with `recordings.jsonl.gz` and `supervisions.jsonl.gz`.

    {"id": "meeting1-0", "recording_id": "meeting1", "start": 12.34, "duration": 1.5, "channel": 0,
     "text": "shall we start", "speaker": "alice"}

(on one line) is a supervision. Reading does not need lhotse: the lines are plain JSON. Writing uses lhotse's own
classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sortk.formats import audio
from sortk.formats.files import absolute_path, atomic_text, check_span, quote, read_lines, writable_segments
from sortk.formats.objects import Entry, encode, entries
from sortk.records import Segment, Session

RECORDINGS, SUPERVISIONS = "recordings.jsonl.gz", "supervisions.jsonl.gz"


def read(path: Path) -> tuple[list[Segment], list[Session]]:
    """Return the segments and recordings of a folder; of a single file of supervisions, only the segments."""
    recordings, supervisions = (path / RECORDINGS, path / SUPERVISIONS) if path.is_dir() else (None, path)
    segments = [_segment(entry) for _, entry in entries(read_lines(supervisions), supervisions)]
    if recordings is None or not recordings.exists():
        return segments, []
    return segments, [_session(entry) for _, entry in entries(read_lines(recordings), recordings)]


def _session(entry: Entry) -> Session:
    name, sources = entry.need(entry.name, "id"), entry.values.get("sources")
    if not isinstance(sources, list) or len(sources) != 1:
        raise entry.error(f"sources is not a list of one audio file: {quote(sources)}")
    source = Entry.of(sources[0], entry.path, entry.line, "sources: ")
    if source.text("type") != "file":
        raise source.error(f"type is not 'file': {quote(source.text('type'))}")
    return Session(name, source.need(source.file, "source"), entry.duration("duration"))


def _segment(entry: Entry) -> Segment:
    start, duration = entry.need(entry.seconds, "start"), entry.need(entry.duration, "duration")
    end = max(start, round(start + duration, 6))
    check_span(entry.path, entry.line, start, end)
    return Segment(
        session_id=entry.need(entry.name, "recording_id"),
        speaker=entry.need(entry.name, "speaker"),
        start=start,
        end=end,
        text=entry.text("text") or "",
    )


def write(folder: Path, segments: Iterable[Segment], sessions: Iterable[Session]) -> None:
    """Write both files; only the supervisions if there are no sessions, because no audio is known."""
    try:
        import lhotse  # noqa: PLC0415  (optional, and takes seconds)
    except ImportError as error:
        raise ValueError(f'lhotse cannot be imported ({error}): pip install "sortk[corpora]"') from None
    recordings = []
    for session in sessions:
        path = absolute_path(session.audio_path)
        header = audio.info(path)
        source = lhotse.AudioSource(type="file", channels=list(range(header.channels)), source=str(path))
        recordings.append(
            lhotse.Recording(session.session_id, [source], header.sample_rate, header.n_samples, header.seconds)
        )
    supervisions = [
        lhotse.SupervisionSegment(
            id=f"{segment.session_id}-{number:06d}",
            recording_id=segment.session_id,
            start=round(segment.start, 6),
            duration=round(segment.end - segment.start, 6),
            text=segment.text or None,
            speaker=segment.speaker,
        )
        for number, segment in enumerate(writable_segments(segments))
    ]
    if recordings:
        _write_lines(folder / RECORDINGS, recordings)
    else:
        (folder / RECORDINGS).unlink(missing_ok=True)
    _write_lines(folder / SUPERVISIONS, supervisions)


def _write_lines(path: Path, items: Iterable[Any]) -> None:
    with atomic_text(path) as file:
        file.writelines(encode(item.to_dict()) + "\n" for item in items)
