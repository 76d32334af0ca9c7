"""From sessions to the segments in their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from sortk.formats import annotation, ctm, rttm, seglst
from sortk.formats.annotation import prefer_rttm, recorded_segments, session_segments
from sortk.formats.files import FormatError
from sortk.records import Segment, Session

AUDIO = Path("/corpus/a.wav")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """An RTTM of two sessions."""
    path = tmp_path / "all.rttm"
    rttm.write(path, [Segment("s", "x", 0, 4), Segment("s", "y", 3, 9), Segment("t", "z", 1, 2)])
    return path


def test_own_lines_of_a_shared_file(shared: Path) -> None:
    sessions = [Session("s", AUDIO, rttm_path=shared), Session("t", AUDIO, rttm_path=shared), Session("u", AUDIO)]
    assert [[segment.speaker for segment in session_segments(session)] for session in sessions] == [
        ["x", "y"],
        ["z"],
        [],
    ]


def test_lines_in_the_name_of_the_audio(shared: Path) -> None:
    session = Session("window-7", Path("/corpus/t.wav"), rttm_path=shared)
    assert session_segments(session) == [Segment("window-7", "z", 1, 2)]


def test_a_shared_file_without_the_session(shared: Path) -> None:
    with pytest.raises(FormatError, match=r"all\.rttm: has several sessions, but not 'u'"):
        session_segments(Session("u", AUDIO, rttm_path=shared))


def test_names_do_not_matter_in_a_file_about_one_session(tmp_path: Path) -> None:
    rttm.write(tmp_path / "a.rttm", [Segment("other", "x", 0, 1)])
    assert session_segments(Session("s", AUDIO, rttm_path=tmp_path / "a.rttm")) == [Segment("s", "x", 0, 1)]


def test_silence(tmp_path: Path) -> None:
    rttm.write(tmp_path / "a.rttm", [])
    assert session_segments(Session("s", AUDIO, rttm_path=tmp_path / "a.rttm")) == []


def test_windows_cut(shared: Path) -> None:
    session = Session("s", AUDIO, offset=3.5, duration=2, rttm_path=shared)
    assert session_segments(session) == [Segment("s", "x", 3.5, 4), Segment("s", "y", 3.5, 5.5)]
    assert session_segments(Session("s", AUDIO, offset=4, rttm_path=shared)) == [Segment("s", "y", 4, 9)]


def test_words_are_better_than_times(tmp_path: Path, shared: Path) -> None:
    seglst.write(tmp_path / "a.json", [Segment("s", "x", 0, 1, "from seglst")])
    ctm.write(tmp_path / "a.ctm", [Segment("s", "x", 0, 1, "ctm")])
    session = Session("s", AUDIO, rttm_path=shared, ctm_path=tmp_path / "a.ctm")
    assert session_segments(session)[0].text == "ctm"
    session = Session("s", AUDIO, rttm_path=shared, ctm_path=tmp_path / "a.ctm", seglst_path=tmp_path / "a.json")
    assert session_segments(session)[0].text == "from seglst"


def test_an_rttm_says_who_speaks_if_there_is_one(tmp_path: Path, shared: Path) -> None:
    seglst.write(tmp_path / "a.json", [Segment("s", "x", 0, 1, "hello")])
    session = Session("s", AUDIO, rttm_path=shared, seglst_path=tmp_path / "a.json")
    assert [segment.text for segment in session_segments(prefer_rttm(session))] == ["", ""]
    session = Session("s", AUDIO, seglst_path=tmp_path / "a.json")
    assert prefer_rttm(session) == session


def test_a_recording_keeps_all_of_its_segments_and_their_name(shared: Path) -> None:
    window = Session("w", Path("/corpus/s.wav"), offset=3.5, duration=2, rttm_path=shared)
    assert recorded_segments(window) == [Segment("s", "x", 0, 4), Segment("s", "y", 3, 9)]


def test_a_file_is_read_once_until_it_is_written_again(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    stream = rttm.stream
    monkeypatch.setattr(rttm, "stream", lambda path, zero: (read.append(path), stream(path, zero))[1])
    sessions = [Session("s", AUDIO, rttm_path=shared), Session("t", AUDIO, rttm_path=shared)]
    assert [len(recorded_segments(session)) for session in sessions * 2] == [2, 1, 2, 1]
    assert read == [shared]
    recorded_segments(sessions[0]).clear()  # a caller's list is its own
    rttm.write(shared, [Segment("t", "new", 0, 4), Segment("s", "x", 1, 2)])
    assert [segment.speaker for segment in recorded_segments(sessions[1])] == ["new"]
    assert read == [shared, shared]


def test_the_files_read_first_leave_the_cache_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(annotation, "MAX_CACHED_SEGMENTS", 2)
    cache = annotation._AnnotationCache()
    monkeypatch.setattr(annotation, "_CACHE", cache)
    for name in "abc":
        rttm.write(tmp_path / f"{name}.rttm", [Segment(name, "x", 0, 1)])
    for name in "abac":
        assert len(session_segments(Session(name, AUDIO, rttm_path=tmp_path / f"{name}.rttm"))) == 1
    assert [path.stem for path, _ in cache._files] == ["a", "c"]
