"""The one way from a session of a manifest to the segments and regions in the files that it names."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf
from pathlib import Path

from sortk.formats import ctm, rttm, seglst, uem
from sortk.formats.files import FormatError, ZeroDuration, is_file, quote
from sortk.records import Region, Segment, Session

MAX_CACHED_SEGMENTS = 500_000  # of all files together: about 150 MB

ByName = Mapping[str, list[Segment]]
"""The segments of a file by the session names in it."""


def session_segments(session: Session, zero_duration: ZeroDuration = "error") -> list[Segment]:
    """Return the segments of a session: from its SegLST, else its CTM, else its RTTM; none if it names none of them.

    A window keeps the segments that reach into it, cut to it; all times remain those of the recording. Files are
    cached.
    """
    first, last = session.offset, inf if session.duration is None else session.offset + session.duration
    cut = (
        replace(segment, session_id=session.session_id, start=max(segment.start, first), end=min(segment.end, last))
        for segment in recorded_segments(session, zero_duration)
    )
    return [segment for segment in cut if segment.start < segment.end]


def recorded_segments(session: Session, zero_duration: ZeroDuration = "error") -> list[Segment]:
    """Like `session_segments`, but of the entire recording, and under the name that the file gives them."""
    path = session.seglst_path or session.ctm_path or session.rttm_path
    if path is None:
        return []
    by_name = _CACHE.read(session, path, zero_duration)
    for name in own_names(session):
        if name in by_name:
            return list(by_name[name])
    if len(by_name) > 1:
        raise FormatError(path, None, f"has several sessions, but not {quote(session.session_id)}")
    # In a file about one session all lines count, under any name: NeMo ignores the name.
    return [segment for segments in by_name.values() for segment in segments]


def prefer_rttm(session: Session) -> Session:
    """Return the session with its RTTM, if it has one, as its only annotation.

    The RTTM says who speaks when; a SegLST or CTM says what is said, perhaps word by word, with pauses between.
    """
    return replace(session, seglst_path=None, ctm_path=None) if session.rttm_path else session


def is_annotated(session: Session) -> bool:
    """Return whether the session names a file that says who speaks when."""
    return bool(session.rttm_path or session.seglst_path or session.ctm_path)


def session_regions(session: Session) -> list[Region]:
    """Return the regions of the session in its UEM, which must have some; none without a UEM."""
    if session.uem_path is None:
        return []
    regions = [region for region in uem.read(_need_file(session.uem_path)) if region.session_id in own_names(session)]
    if not regions:
        raise FormatError(session.uem_path, None, f"has no region of session {quote(session.session_id)}")
    return regions


def own_names(session: Session) -> tuple[str, str]:
    """Return the names that files may use for a session: its id or, if it is a window of a recording, that one's."""
    return session.session_id, session.audio_path.stem


def only_name(rttm_path: Path) -> str | None:
    """Return the only session name in an RTTM file; None if there are several, or no lines."""
    name = None
    for segment in rttm.stream(rttm_path):
        if name not in (None, segment.session_id):
            return None
        name = segment.session_id
    return name


def _need_file(path: Path) -> Path:
    """Return the path of a regular file: a manifest from elsewhere may name a pipe, which would block forever."""
    if not is_file(path):
        raise FormatError(path, None, "no such file, though a manifest names it")
    return path


class _AnnotationCache:
    """The files read last: one RTTM may serve thousands of windows. A file that was written again is read again."""

    def __init__(self) -> None:
        self._files: OrderedDict[tuple[Path, ZeroDuration], tuple[tuple[int, int], ByName]] = OrderedDict()
        self._n_segments = 0

    def read(self, session: Session, path: Path, zero_duration: ZeroDuration) -> ByName:
        """Return what the annotation of a session says; `path` is the one of its files that counts."""
        facts = _need_file(path).stat()
        version = facts.st_mtime_ns, facts.st_size
        found, by_name = self._files.pop((path, zero_duration), (None, {}))
        self._n_segments -= _count(by_name)
        if found != version:
            by_name = _read_by_name(session, zero_duration)
        self._files[path, zero_duration] = version, by_name
        self._n_segments += _count(by_name)
        while self._n_segments > MAX_CACHED_SEGMENTS and len(self._files) > 1:
            _, (_, oldest) = self._files.popitem(last=False)
            self._n_segments -= _count(oldest)
        return by_name


_CACHE = _AnnotationCache()


def _count(by_name: ByName) -> int:
    return sum(map(len, by_name.values()))


def _read_by_name(session: Session, zero_duration: ZeroDuration) -> ByName:
    segments: Iterable[Segment] = []
    if session.seglst_path:
        segments = seglst.read(session.seglst_path, zero_duration)
    elif session.ctm_path:
        segments = ctm.read(session.ctm_path, zero_duration)
    elif session.rttm_path:
        segments = rttm.stream(session.rttm_path, zero_duration)
    by_name = defaultdict(list)
    for segment in segments:
        by_name[segment.session_id].append(segment)
    return dict(by_name)
