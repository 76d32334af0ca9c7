from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortk.formats import seglst
from sortk.prepare.timestamps import TimestampOptions, TimestampSummary, split_segment, time_words, write_timestamps
from sortk.records import Segment

PAPER = TimestampOptions(rule="hyphenation")


def run_in_processes(work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
    with ProcessPoolExecutor(2) as pool:
        yield from pool.map(work, items)


def write_segments(segments: Sequence[Segment], path: Path) -> Path:
    seglst.write(path, segments)
    return path


# ---------------------------------------------------------------------------------------------------------------------
# Words


def test_words_of_a_segment_by_the_equations_of_the_paper() -> None:
    # con-ver-sa-tion, is, ta-ble: 7 syllables in 3.5 s.
    segment = Segment("meeting", "alice", 10.0, 13.5, "conversation is table", channel="2")
    assert split_segment(segment, PAPER) == [
        Segment("meeting", "alice", 10.0, 12.0, "conversation", "2"),
        Segment("meeting", "alice", 12.0, 12.5, "is", "2"),
        Segment("meeting", "alice", 12.5, 13.5, "table", "2"),
    ]


def test_a_single_word_keeps_its_times() -> None:
    word = Segment("meeting", "alice", 0.1, 0.7, " yes ")
    assert split_segment(word, PAPER) == [Segment("meeting", "alice", 0.1, 0.7, "yes")]


@pytest.mark.parametrize("text", ["", " ", "\t\n"])
def test_a_segment_without_text_has_no_words(text: str) -> None:
    assert split_segment(Segment("meeting", "alice", 0.0, 1.0, text), PAPER) == []


def test_words_come_by_their_starts_and_ties_as_given() -> None:
    segments = [
        Segment("m", "bob", 1.0, 3.0, "one two"),
        Segment("m", "alice", 1.0, 2.0, "three"),
        Segment("m", "carol", 0.0, 4.0, "four five"),
    ]
    words = time_words(segments, PAPER)
    assert [word.text for word in words] == ["four", "one", "three", "two", "five"]


def test_language_and_rule_matter() -> None:
    segment = Segment("m", "alice", 0.0, 3.0, "table ronde")
    by_letters = split_segment(segment, TimestampOptions(rule="letters"))
    in_french = split_segment(segment, TimestampOptions("fr", "syllables"))
    in_english = split_segment(segment, TimestampOptions("en_US", "syllables"))
    assert [words[0].end for words in (by_letters, in_french, in_english)] == [1.5, 1.5, 2.0]


def test_words_that_do_not_fit_are_refused() -> None:
    segment = Segment("meeting", "alice", 1.0, 1.002, "one two three")
    with pytest.raises(
        ValueError, match=r"session meeting: 3 words do not fit into the segment of alice from 1.0 to 1.00"
    ):
        split_segment(segment, PAPER)


def test_options_are_checked_when_they_are_made() -> None:
    with pytest.raises(ValueError, match=r"unknown language 'english'.*en_US"):
        TimestampOptions(lang="english")
    with pytest.raises(ValueError, match="rule must be one of sounds, syllables, hyphenation, letters, got 'vowels'"):
        TimestampOptions(rule="vowels")  # type: ignore[arg-type]


@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"), st.integers(0, 10_000), st.integers(100, 9_000), st.text("a1é, 東", max_size=30)
        ),
        max_size=6,
    )
)
def test_no_word_is_lost(entries: list[tuple[str, int, int, str]]) -> None:
    segments = [Segment("m", who, start / 1e3, (start + ms) / 1e3, text) for who, start, ms, text in entries]
    words = time_words(segments, TimestampOptions())
    assert sorted(word.text for word in words) == sorted(" ".join(segment.text for segment in segments).split())
    assert all(word.start < word.end for word in words)
    assert [word.start for word in words] == sorted(word.start for word in words)


# ---------------------------------------------------------------------------------------------------------------------
# Files


def make_meeting(session_id: str) -> list[Segment]:
    return [
        Segment(session_id, "alice", 0.0, 3.5, "conversation is table"),
        Segment(session_id, "bob", 1.0, 1.4, "yeah"),
        Segment(session_id, "bob", 4.0, 5.0, ""),
    ]


def test_a_file_of_several_sessions_becomes_a_file_for_each(tmp_path: Path) -> None:
    path = write_segments(make_meeting("m2") + make_meeting("m1"), tmp_path / "in.json")
    summary = write_timestamps(path, tmp_path / "out", PAPER)
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["m1.json", "m2.json"]
    assert seglst.read(tmp_path / "out" / "m1.json") == [
        Segment("m1", "alice", 0.0, 2.0, "conversation"),
        Segment("m1", "bob", 1.0, 1.4, "yeah"),
        Segment("m1", "alice", 2.0, 2.5, "is"),
        Segment("m1", "alice", 2.5, 3.5, "table"),
    ]
    assert summary == TimestampSummary(sessions=2, segments=6, words=8, words_kept=2, empty_segments=2)
    assert summary.to_json() == {"sessions": 2, "segments": 6, "words": 8, "words_kept": 2, "empty_segments": 2}
    assert str(summary) == "2 sessions, 6 segments (2 without text) -> 8 words (2 kept their times)"


def test_any_number_of_jobs_writes_the_same(tmp_path: Path) -> None:
    for name in ("m1", "m2", "m3"):
        write_segments(make_meeting(name), tmp_path / "in" / f"{name}.json")
    here = write_timestamps(tmp_path / "in", tmp_path / "here", PAPER)
    there = write_timestamps(tmp_path / "in", tmp_path / "there", PAPER, run_in_processes)
    assert here == there
    for file in (tmp_path / "here").iterdir():
        assert file.read_bytes() == (tmp_path / "there" / file.name).read_bytes()


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    for name in ("m1", "m2"):
        write_segments(make_meeting(name), tmp_path / "in" / f"{name}.json")
    whole = write_timestamps(tmp_path / "in", tmp_path / "out", PAPER)
    kept, lost = tmp_path / "out" / "m1.json", tmp_path / "out" / "m2.json"
    before, content = kept.stat().st_mtime_ns, lost.read_bytes()
    lost.unlink()
    assert write_timestamps(tmp_path / "in", tmp_path / "out", PAPER) == whole
    assert kept.stat().st_mtime_ns == before
    assert lost.read_bytes() == content


def test_words_with_times_come_back_unchanged(tmp_path: Path) -> None:
    path = write_segments(make_meeting("m1"), tmp_path / "in.json")
    write_timestamps(path, tmp_path / "once", PAPER)
    summary = write_timestamps(tmp_path / "once", tmp_path / "twice", TimestampOptions("de_DE", "letters"))
    assert (tmp_path / "once" / "m1.json").read_bytes() == (tmp_path / "twice" / "m1.json").read_bytes()
    assert summary.words == summary.words_kept == 4


def test_a_session_without_words_is_written_and_counted(tmp_path: Path) -> None:
    write_segments([], tmp_path / "in" / "silence.json")
    write_segments([Segment("wordless", "alice", 0.0, 1.0)], tmp_path / "in" / "wordless.json")
    summary = write_timestamps(tmp_path / "in", tmp_path / "out")
    assert summary == TimestampSummary(sessions=2, segments=1, words=0, words_kept=0, empty_segments=1)
    assert seglst.read(tmp_path / "out" / "silence.json") == []
    assert seglst.read(tmp_path / "out" / "wordless.json") == []


@pytest.mark.parametrize("session_id", ["../m1", "a/b", "..", ".", ".hidden"])
def test_a_session_cannot_leave_the_folder(tmp_path: Path, session_id: str) -> None:
    path = write_segments(make_meeting("good") + make_meeting(session_id), tmp_path / "in" / "in.json")
    with pytest.raises(ValueError, match=r"in.json: session id '.*' cannot be the name of a file"):
        write_timestamps(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_session_in_two_files_is_refused(tmp_path: Path) -> None:
    write_segments(make_meeting("m1"), tmp_path / "in" / "a.json")
    write_segments(make_meeting("m1"), tmp_path / "in" / "b.json")
    with pytest.raises(ValueError, match=r"session 'm1' is in two files, .*a.json and .*b.json"):
        write_timestamps(tmp_path / "in", tmp_path / "out")


def test_missing_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none.json: no such file"):
        write_timestamps(tmp_path / "none.json", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no .json file"):
        write_timestamps(tmp_path / "empty", tmp_path / "out")


def test_an_empty_folder_may_be_allowed(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert write_timestamps(tmp_path / "empty", tmp_path / "out", allow_empty=True) == TimestampSummary()
    assert list((tmp_path / "out").iterdir()) == []
    with pytest.raises(FileNotFoundError, match=r"none: no such file"):
        write_timestamps(tmp_path / "none", tmp_path / "out", allow_empty=True)
    write_segments(make_meeting("m1"), tmp_path / "full" / "m1.json")
    assert write_timestamps(tmp_path / "full", tmp_path / "out", allow_empty=True).sessions == 1


def test_options_travel_to_other_processes() -> None:
    assert pickle.loads(pickle.dumps(PAPER)) == PAPER
