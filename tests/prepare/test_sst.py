"""Stage 4: files and manifests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sessions_by_hand import ALONE, BACKCHANNEL, OVERLAP, TIE, words

from sortk.formats import manifest, seglst
from sortk.formats.sst import SstOptions, build_sst
from sortk.prepare.sst import SstSummary, Track, cut_window, serialize_sessions, write_sst
from sortk.records import Segment, Session

# ---------------------------------------------------------------------------------------------------------------------
# Windows


def test_every_window_numbers_its_speakers_anew() -> None:
    first, second = cut_window(OVERLAP, 0.0, 1.5), cut_window(OVERLAP, 1.5, 2.0)
    assert build_sst(first) == "<spk0> well <spk1> yes <spk0> i <spk0> think"
    assert build_sst(second) == "<spk0> really <spk1> so"
    assert build_sst(cut_window(OVERLAP, 1.5)) == "<spk0> really <spk1> so"
    assert cut_window(OVERLAP, 10.0, 5.0) == []


def test_words_that_touch_the_edge_belong_to_one_window() -> None:
    session = words("amy 0 1 a", "amy 1 2 b", "amy 2 3 c")
    assert cut_window(session, 1.0, 1.0) == [session[1]]
    assert cut_window(session, 1.0000004, 0.9999992) == [session[1]]  # times in files are rounded


@pytest.mark.parametrize(("offset", "duration"), [(0.5, 5.0), (-1.0, 1.5), (0.2, 0.3)])
def test_a_cut_word_is_an_error(offset: float, duration: float) -> None:
    with pytest.raises(
        ValueError, match=r"session m: the window from .* s cuts 'conversation' of amy, 0.000 to 1.000 s"
    ):
        cut_window(words("amy 0 1 conversation"), offset, duration)


# ---------------------------------------------------------------------------------------------------------------------
# Files


def run_in_processes(work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
    with ProcessPoolExecutor(2) as pool:
        yield from pool.map(work, items)


def in_session(session_id: str, session: Sequence[Segment]) -> list[Segment]:
    return [replace(word, session_id=session_id) for word in session]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files: one with two sessions, of which one has no words, and one with nothing at all."""
    wordless = [Segment("wordless", "amy", 0.0, 1.0)]
    seglst.write(tmp_path / "in" / "a.json", in_session("meeting2", TIE) + wordless + in_session("meeting1", OVERLAP))
    seglst.write(tmp_path / "in" / "silence.json", [])
    return tmp_path


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_sessions_become_lines(folder: Path) -> None:
    summary = write_sst(folder / "in", folder / "sst.jsonl")
    assert read_lines(folder / "sst.jsonl") == [
        {"session_id": "meeting2", "text": "<spk0> yes <spk1> no <spk1> way <spk0> bob <spk1> amy"},
        {"session_id": "meeting1", "text": "<spk0> well <spk1> yes <spk0> i <spk0> think <spk1> really <spk0> so"},
    ]
    assert summary == SstSummary(sessions=2, words=11, empty_sessions=("wordless", "silence"))
    assert summary.to_json() == {"sessions": 2, "words": 11, "empty_sessions": ["wordless", "silence"]}
    assert str(summary) == "2 sessions, 11 words; 2 left out, without any word: wordless, silence"
    assert str(SstSummary(1, 2)) == "1 session, 2 words"


def test_one_file_and_another_level(folder: Path) -> None:
    write_sst(folder / "in" / "a.json", folder / "sst.jsonl", SstOptions("sot"))
    assert [line["text"] for line in read_lines(folder / "sst.jsonl")] == [
        "yes <cs> no way <cs> bob <cs> amy",
        "well i think <cs> yes really <cs> so",
    ]


def test_segments_depend_on_the_gap(folder: Path) -> None:
    write_sst(folder / "in" / "a.json", folder / "sst.jsonl", SstOptions("segment", segment_gap=5.0))
    assert [line["text"] for line in read_lines(folder / "sst.jsonl")] == [
        "<spk0> yes bob <spk1> no way amy",
        "<spk0> well i think so <spk1> yes really",
    ]


def test_any_number_of_jobs_writes_the_same(folder: Path) -> None:
    here = write_sst(folder / "in", folder / "here.jsonl")
    there = write_sst(folder / "in", folder / "there.jsonl", run_jobs=run_in_processes)
    assert here == there
    assert (folder / "here.jsonl").read_bytes() == (folder / "there.jsonl").read_bytes()


def test_a_session_in_two_files_is_refused(folder: Path) -> None:
    seglst.write(folder / "in" / "b.json", in_session("meeting1", TIE))
    with pytest.raises(ValueError, match=r"session 'meeting1' is in two files; the second is .*b.json"):
        write_sst(folder / "in", folder / "sst.jsonl")
    assert not (folder / "sst.jsonl").exists()


def make_windows(words_path: Path) -> list[Session]:
    audio = words_path.parent / "audio" / "meeting1.flac"
    return [
        Session("meeting1-late", audio, duration=2.0, offset=1.5, num_speakers=9, seglst_path=words_path),
        Session("other", audio.with_name("other.flac"), duration=5.0, seglst_path=words_path.with_name("other.json")),
        Session("meeting1-silent", audio, duration=9.0, offset=20.0, seglst_path=words_path),
        Session("meeting1-early", audio, duration=1.5, seglst_path=words_path, extra={"lang": "en"}),
    ]


@pytest.mark.parametrize("run_jobs", [map, run_in_processes])
def test_windows_of_a_manifest_get_their_sst(tmp_path: Path, run_jobs: Any) -> None:
    seglst.write(tmp_path / "words.json", in_session("meeting1", OVERLAP))
    seglst.write(tmp_path / "other.json", in_session("other", BACKCHANNEL))
    windows = make_windows(tmp_path / "words.json")
    serialized, summary = serialize_sessions(windows, run_jobs=run_jobs)
    late = replace(windows[0], text="<spk0> really <spk1> so", num_speakers=2)
    other = replace(windows[1], text="<spk0> conversation <spk1> mhm <spk0> today", num_speakers=2)
    early = replace(windows[3], text="<spk0> well <spk1> yes <spk0> i <spk0> think", num_speakers=2)
    assert serialized == [late, other, early]
    assert summary == SstSummary(sessions=3, words=9, empty_sessions=("meeting1-silent",))
    manifest.write(tmp_path / "train.jsonl", serialized)
    assert manifest.read(tmp_path / "train.jsonl") == serialized


def test_windows_find_their_words_in_a_file_of_several_sessions(tmp_path: Path) -> None:
    path = tmp_path / "words.json"
    seglst.write(path, in_session("meeting1", OVERLAP) + in_session("other", ALONE))
    windows = make_windows(path)
    serialized, _ = serialize_sessions([windows[0], replace(windows[1], duration=None, seglst_path=path)])
    assert [session.text for session in serialized] == ["<spk0> really <spk1> so", "<spk0> all <spk0> by <spk0> myself"]
    stranger = replace(windows[0], audio_path=tmp_path / "stranger.flac")
    with pytest.raises(ValueError, match=r"words.json: none of its 2 sessions is 'meeting1-late'"):
        serialize_sessions([stranger])


@pytest.mark.parametrize("run_jobs", [map, run_in_processes])
def test_segments_of_the_transcript_get_a_token_each(tmp_path: Path, run_jobs: Any) -> None:
    """Stage 2 has the segments, stage 3 their words: two segments of amy, less than 0.5 s apart, stay two."""
    segments = in_session("meeting1", words("amy 0 1 well then", "amy 1.2 2 i think", "bob 1.5 3 yes"))
    split = words("amy 0 0.5 well", "amy 0.5 1 then", "amy 1.2 1.4 i", "amy 1.4 2 think", "bob 1.5 3 yes")
    seglst.write(tmp_path / "words" / "meeting1.json", in_session("meeting1", split))
    seglst.write(tmp_path / "transcripts" / "meeting1.json", segments)
    session = Session("meeting1", tmp_path / "a.flac", seglst_path=tmp_path / "words" / "meeting1.json")

    def text(options: SstOptions, transcripts: Path | None = tmp_path / "transcripts") -> str | None:
        [found], _ = serialize_sessions([session], options, run_jobs, transcripts=transcripts)
        return found.text

    assert text(SstOptions("segment")) == "<spk0> well then <spk0> i think <spk1> yes"
    assert text(SstOptions("segment"), None) == "<spk0> well then i think <spk1> yes"
    assert text(SstOptions("sot")) == "well then i think <cs> yes"
    seglst.write(tmp_path / "transcripts" / "meeting1.json", in_session("meeting1", split))  # words, no segments
    assert text(SstOptions("segment")) == "<spk0> well then i think <spk1> yes"


def test_a_window_that_cuts_a_word_is_an_error(tmp_path: Path) -> None:
    seglst.write(tmp_path / "words.json", in_session("meeting1", OVERLAP))
    cut = replace(make_windows(tmp_path / "words.json")[0], offset=0.9)
    with pytest.raises(ValueError, match=r"the window from 0.900 to 2.900 s cuts 'think' of amy, 0.700 to 1.100 s"):
        serialize_sessions([cut])


def test_a_session_without_words_to_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="session 'x' has no seglst_filepath"):
        serialize_sessions([Session("x", tmp_path / "x.flac")])


WORDS = st.lists(
    st.builds(
        lambda who, start, length: Segment("m", who, start / 10, (start + length) / 10, "word"),
        st.sampled_from(["amy", "bob", "eve", "joe"]),
        st.integers(0, 60),
        st.integers(1, 20),
    ),
    min_size=1,
    max_size=20,
)


@given(WORDS, st.lists(st.integers(0, 90), min_size=1, max_size=5))
def test_a_track_finds_all_that_a_window_needs(session: list[Segment], edges: list[int]) -> None:
    track = Track.of(session)
    for edge in edges:
        for duration in (None, 1.0, 30.0):
            offset = edge / 10
            near = track.find(offset, duration)
            end = float("inf") if duration is None else offset + duration
            assert {id(word) for word in near} >= {id(w) for w in session if w.end > offset and w.start < end}
