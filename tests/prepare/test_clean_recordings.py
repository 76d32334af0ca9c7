"""Repairs: each on the smallest session that needs it, with its count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sortk.formats import audio, rttm, seglst, uem
from sortk.formats.files import FormatError
from sortk.prepare.recordings import Recording, load_recording
from sortk.prepare.timestamps import TimestampOptions
from sortk.records import Region, Segment, Session
from sortk.spans import to_us

WORDS = TimestampOptions()
Rows = Sequence[tuple[str, float, float, str]]


def make_session(
    folder: Path, turns: Rows, said: Rows | None = None, duration: float | None = 30.0, offset: float = 0.0
) -> Session:
    """A session "rec" without audio; rows are speaker, start, end, text."""
    rttm.write(folder / "rec.rttm", [Segment("rec", name, start, end) for name, start, end, _ in turns])
    if said is not None:
        seglst.write(folder / "rec.json", [Segment("rec", *row[:3], text=row[3]) for row in said])
    return Session(
        "rec",
        folder / "rec.flac",
        duration=duration,
        offset=offset,
        rttm_path=folder / "rec.rttm",
        seglst_path=None if said is None else folder / "rec.json",
    )


def load(session: Session) -> Recording:
    return load_recording(session, WORDS, check_audio=False)


def us(*times: tuple[float, float]) -> list[tuple[int, int]]:
    return [(to_us(start), to_us(end)) for start, end in times]


def test_a_faultless_session_needs_no_audio_and_no_repair(tmp_path: Path) -> None:
    recording = load(make_session(tmp_path, [("A", 1, 2, "")], [("A", 1, 2, "hello")]))
    assert recording.span == (0, 30_000_000) and recording.turns == {"A": us((1, 2))} and not recording.repairs
    assert [tuple(word) for word in recording.words] == [(1_000_000, 2_000_000, "A", "hello")]


def test_segments_beyond_the_end_are_cut_or_left_out(tmp_path: Path) -> None:
    rows = [("A", 1.0, 2.0, "one"), ("A", 29.0, 31.0, "two"), ("B", 30.0, 32.0, "three")]
    recording = load(make_session(tmp_path, rows, rows))
    assert recording.turns == {"A": us((1, 2), (29, 30))}
    assert recording.entries is not None
    assert [(entry.start, entry.end, entry.text) for entry in recording.entries] == [(1, 2, "one"), (29, 30, "two")]
    assert recording.repairs == {
        "rttm_cut_at_end": 1,
        "rttm_after_end": 1,
        "transcript_cut_at_end": 1,
        "transcript_after_end": 1,
    }


def test_words_that_no_longer_fit_are_left_out(tmp_path: Path) -> None:
    said = [("A", 29.995, 31.0, "six words in five short milliseconds"), ("A", 29.995, 31.0, "one")]
    recording = load(make_session(tmp_path, [("A", 29, 30, "")], said))
    assert recording.repairs == {"transcript_after_end": 1, "transcript_cut_at_end": 1}
    assert [tuple(word) for word in recording.words] == [(29_995_000, 30_000_000, "A", "one")]


def test_segments_of_one_speaker_that_overlap_or_touch_are_joined(tmp_path: Path) -> None:
    turns = [("A", 1, 3, ""), ("A", 2, 4, ""), ("A", 4, 5, ""), ("A", 6, 7, ""), ("B", 1, 2, "")]
    recording = load(make_session(tmp_path, turns))
    assert recording.turns == {"A": us((1, 5), (6, 7)), "B": us((1, 2))}
    assert recording.repairs == {"rttm_merged": 2} and recording.entries is None


def test_entries_without_words_and_unknown_speakers_are_counted(tmp_path: Path) -> None:
    said = [("A", 1.0, 2.0, ""), ("A", 2.0, 3.0, "  "), ("X", 1.0, 2.0, "hi")]
    recording = load(make_session(tmp_path, [("A", 1, 3, "")], said))
    assert recording.repairs == {"transcript_empty": 2, "speakers_without_rttm": 1}
    assert len(recording.entries or []) == 3 and len(recording.words) == 1


def test_long_segments_get_word_times_and_single_words_keep_theirs(tmp_path: Path) -> None:
    said = [("A", 1.0, 4.0, "one two three"), ("B", 1.5, 2.0, "yes")]
    words = load(make_session(tmp_path, [("A", 1, 4, "")], said)).words
    assert words[0].text == "one"
    of_a = [word for word in words if word.speaker == "A"]
    assert of_a[0].start == 1_000_000 and of_a[-1].end == 4_000_000
    assert [word.end for word in of_a[:2]] == [word.start for word in of_a[1:]]
    assert ("B", 1_500_000, 2_000_000) in [(word.speaker, word.start, word.end) for word in words]
    assert list(words) == sorted(words, key=lambda word: word.start)


def test_a_window_of_a_recording_sees_only_itself_and_is_no_repair(tmp_path: Path) -> None:
    audio.write_flac(tmp_path / "rec.flac", np.zeros(40 * 8000, np.int16), 8000)
    rows = [("A", 1.0, 2.0, "early"), ("A", 9.0, 12.0, "on the edge"), ("B", 19.0, 22.0, "late too")]
    recording = load(make_session(tmp_path, rows, rows, duration=10.0, offset=10.0))
    assert recording.span == (10_000_000, 20_000_000) and not recording.repairs
    assert recording.turns == {"A": us((10, 12)), "B": us((19, 20))}
    assert [(entry.start, entry.end) for entry in recording.entries or []] == [(9, 12), (19, 22)]


def test_the_audio_has_the_last_word_on_the_duration(tmp_path: Path) -> None:
    audio.write_flac(tmp_path / "rec.flac", np.zeros(20 * 8000, np.int16), 8000)
    recording = load(make_session(tmp_path, [("A", 1, 25, "")]))
    assert recording.span == (0, 20_000_000) and recording.repairs == {"duration_cut": 1, "rttm_cut_at_end": 1}
    recording = load(make_session(tmp_path, [("A", 1, 2, "")], duration=None))
    assert recording.span == (0, 20_000_000) and not recording.repairs
    recording = load(make_session(tmp_path, [("A", 1, 2, "")], duration=20.0004))
    assert recording.span == (0, 20_000_000) and not recording.repairs  # rounding
    with pytest.raises(FormatError, match="session rec starts at 20.5 s, but the audio ends at 20.0 s"):
        load(make_session(tmp_path, [("A", 1, 2, "")], offset=20.5))


def test_what_cannot_be_repaired_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="session rec: has no rttm_filepath"):
        load(Session("rec", tmp_path / "rec.flac", duration=5.0))
    with pytest.raises(ValueError, match=r"session rec: its RTTM file does not exist: .*rec\.rttm"):
        load(Session("rec", tmp_path / "rec.flac", duration=5.0, rttm_path=tmp_path / "rec.rttm"))
    session = make_session(tmp_path, [("A", 1, 2, "")], [("A", 1, 2, "hi")], duration=None)
    with pytest.raises(FormatError, match="no such audio file"):
        load(session)
    (tmp_path / "rec.json").unlink()
    with pytest.raises(FormatError, match=r"rec\.json: no such file"):
        load(replace(session, duration=3.0))


def test_audio_that_is_not_there_is_an_error_unless_it_need_not_be(tmp_path: Path) -> None:
    session = make_session(tmp_path, [("A", 1, 2, "")])
    with pytest.raises(FormatError, match=r"rec\.flac: no such audio file, but session rec names it"):
        load_recording(session, WORDS)
    assert load(session).span == (0, 30_000_000)


def test_an_rttm_of_another_id_is_counted(tmp_path: Path) -> None:
    session = make_session(tmp_path, [("A", 1, 2, "")])
    assert not load(replace(session, session_id="rec-0")).repairs  # the audio has that name
    other = replace(session, session_id="x", audio_path=tmp_path / "x.flac")
    assert load(other).turns == {"A": us((1, 2))} and load(other).repairs == {"rttm_of_other_id": 1}
    rttm.write(tmp_path / "rec.rttm", [Segment("rec", "A", 1, 2), Segment("y", "A", 1, 2)])
    with pytest.raises(FormatError, match=r"rec\.rttm: has several sessions, but not 'x'"):
        load(other)
    rttm.write(tmp_path / "rec.rttm", [])
    assert not load(other).repairs


def test_a_uem_restricts_the_session(tmp_path: Path) -> None:
    rows = [("A", 1.0, 6.0, "one"), ("A", 9.0, 10.0, "two"), ("B", 26.0, 27.0, "three")]
    session = replace(make_session(tmp_path, rows, rows), uem_path=tmp_path / "all.uem")
    uem.write(tmp_path / "all.uem", [Region("rec", 15, 25), Region("rec", 5, 12), Region("other", 0, 30)])
    recording = load(session)
    assert recording.session_span == (0, 30_000_000) and recording.span == us((5, 25))[0]
    assert recording.outside == us((0, 5), (25, 30))
    assert recording.turns == {"A": us((5, 6), (9, 10))} and [word.text for word in recording.words] == ["one", "two"]
    window = load(replace(session, session_id="rec-1", offset=5.5, duration=2.0))
    assert window.span == window.session_span == us((5.5, 7.5))[0] and window.outside == []
    beyond = load(replace(session, session_id="rec-2", offset=26.0, duration=3.0))
    assert beyond.outside == us((26, 29)) and beyond.turns == {}
    with pytest.raises(FormatError, match=r"all\.uem: has no region of session 'x'"):
        load(replace(session, session_id="x", audio_path=tmp_path / "x.flac"))
