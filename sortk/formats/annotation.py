"""From a manifest's sessions to the segments and regions in the files that they name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import inf
from pathlib import Path

from sortk.formats import ctm, rttm, seglst, uem
from sortk.formats.files import FormatError, is_file, quote
from sortk.records import Region, Segment, Session


def session_segments(session: Session) -> list[Segment]:
    """The segments of a session: of its SegLST, else its CTM, else its RTTM; none if it names none of them.

    A window keeps the segments that reach into it, cut to it; all times remain those of the recording.
    """
    return next(annotated([session]))[1]


def annotated(sessions: Iterable[Session]) -> Iterator[tuple[Session, list[Segment]]]:
    """Each session with its segments; a file that neighbours share is read once."""
    last: Path | None = None
    by_name: Mapping[str, list[Segment]] = {}
    for session in sessions:
        path = session.seglst_path or session.ctm_path or session.rttm_path
        if path is not None and path != last:
            last, by_name = path, _by_name(_read(session))
        yield session, [] if path is None else _window(session, _own(session, by_name, path))


def recorded_segments(session: Session) -> list[Segment]:
    """As `session_segments`, but of the whole recording, and under the name that the file gives them."""
    path = session.seglst_path or session.ctm_path or session.rttm_path
    return [] if path is None else _own(session, _by_name(_read(session)), path)


def session_regions(session: Session) -> list[Region]:
    """The regions of the session's UEM, which must have some; none if it names no UEM."""
    if session.uem_path is None:
        return []
    regions = [region for region in uem.read(_need_file(session.uem_path)) if region.session_id in own_names(session)]
    if not regions:
        raise FormatError(session.uem_path, None, f"has no region of session {quote(session.session_id)}")
    return regions


def own_names(session: Session) -> tuple[str, str]:
    """What a session may be called in files: by its id or, if it is a window of a recording, by that one's name."""
    return session.session_id, session.audio_path.stem


def only_name(rttm_path: Path) -> str | None:
    """The name that all lines of an RTTM file bear; None if there are several, or no lines."""
    name = None
    for segment in rttm.stream(rttm_path):
        if name not in (None, segment.session_id):
            return None
        name = segment.session_id
    return name


def _read(session: Session) -> Iterable[Segment]:
    if session.seglst_path:
        return seglst.read(_need_file(session.seglst_path))
    if session.ctm_path:
        return ctm.read(_need_file(session.ctm_path))
    return rttm.stream(_need_file(session.rttm_path)) if session.rttm_path else []


def _need_file(path: Path) -> Path:
    """A manifest may come from anywhere: what it names is a plain file, no pipe that one would wait at forever."""
    if not is_file(path):
        raise FormatError(path, None, "no such file, though a manifest names it")
    return path


def _by_name(segments: Iterable[Segment]) -> Mapping[str, list[Segment]]:
    by_name = defaultdict(list)
    for segment in segments:
        by_name[segment.session_id].append(segment)
    return dict(by_name)


def _own(session: Session, by_name: Mapping[str, list[Segment]], path: Path) -> list[Segment]:
    for name in own_names(session):
        if name in by_name:
            return by_name[name]
    if len(by_name) > 1:
        raise FormatError(path, None, f"has several sessions, but not {quote(session.session_id)}")
    # Of a file about one session all lines count, whatever name they bear: NeMo does not look at it.
    return next(iter(by_name.values()), [])


def _window(session: Session, segments: Iterable[Segment]) -> list[Segment]:
    first, last = session.offset, inf if session.duration is None else session.offset + session.duration
    cut = (
        replace(segment, session_id=session.session_id, start=max(segment.start, first), end=min(segment.end, last))
        for segment in segments
    )
    return [segment for segment in cut if segment.start < segment.end]
