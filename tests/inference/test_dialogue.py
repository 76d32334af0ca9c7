"""Transcripts for people and for programs, by hand."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

from sortk.formats import ctm, rttm, seglst, stm
from sortk.inference.postprocess import keep_strongest, raise_weak
from sortk.inference.results import (
    STYLES,
    Segments,
    Transcript,
    find_cues,
    format_clock,
    format_transcript,
    print_transcripts,
    stream_utterances,
    wrap_lines,
)
from sortk.records import Segment, Session


def word(text: str, start: float, end: float, speaker: int = 0, confidence: float | None = 0.5) -> Segment:
    return Segment("talk", f"speaker_{speaker}", start, end, text, confidence=confidence)


# speaker_1 says "fine" within the first speaker's utterance.
TALK = Transcript(
    [
        word("Shall", 0.0, 0.4),
        word("we", 0.48, 0.6),
        word("fine", 0.5, 0.8, speaker=1, confidence=0.9),
        word("start?", 0.64, 1.2),
        word("Now.", 1.28, 1.28),  # a TDT gives words without duration
    ]
)


def test_srt() -> None:
    assert TALK.to_text("srt") == (
        "1\n00:00:00,000 --> 00:00:01,200\nSpeaker 1: Shall we start?\n\n"
        "2\n00:00:00,500 --> 00:00:01,280\nSpeaker 2: fine\n\n"  # held, but only until the next one
        "3\n00:00:01,280 --> 00:00:02,280\nSpeaker 1: Now.\n"
    )


def test_vtt() -> None:
    angled = Transcript([word("<a", 0.0, 1.0), word("&", 1.0, 3.0)])
    assert angled.to_text("vtt") == "WEBVTT\n\n00:00:00.000 --> 00:00:03.000\n<v Speaker 1>&lt;a &amp;\n"


def test_cues_are_short() -> None:
    words = [word(f"word{n:02d}", 0.4 * n, 0.4 * n + 0.35) for n in range(60)]
    cues = find_cues(words, {"speaker_0": "Speaker 1"})
    assert " ".join(text for *_, text in cues) == " ".join(word.text for word in words)
    for start, end, speaker, text in cues:
        lines = wrap_lines(f"{speaker}: {text}")
        assert len(lines) <= 2 and all(len(line) <= 42 for line in lines) and end - start <= 7.0
    assert len(cues) < 8  # and not shorter than need be


def test_json_has_words_times_speakers_and_confidences() -> None:
    loaded = json.loads(TALK.to_text("json"))
    assert loaded["session_id"] == "talk" and loaded["speakers"] == ["speaker_0", "speaker_1"]
    first, second = loaded["segments"]
    assert (first["speaker"], first["start"], first["end"], first["text"]) == (
        "speaker_0", 0.0, 1.28, "Shall we start? Now.",
    )  # fmt: skip
    assert second["words"] == [{"word": "fine", "start": 0.5, "end": 0.8, "confidence": 0.9}]
    assert first["words"][-1] == {"word": "Now.", "start": 1.28, "end": 1.28, "confidence": 0.5}


def test_formats_of_other_tools_come_back(tmp_path: Path) -> None:
    for style in ("seglst", "stm", "ctm", "rttm"):
        TALK.save(tmp_path / f"talk.{style}")
    assert [one.text for one in seglst.read(tmp_path / "talk.seglst")] == [one.text for one in TALK]
    assert [one.text for one in stm.read(tmp_path / "talk.stm")] == ["Shall we start? Now.", "fine"]
    assert len(rttm.read(tmp_path / "talk.rttm")) == 2
    assert [one.text for one in ctm.read(tmp_path / "talk.ctm")] == [one.text for one in TALK]
    assert "talk speaker_1 0.500 0.300 fine 0.9000" in (tmp_path / "talk.ctm").read_text(encoding="utf-8")


@pytest.mark.parametrize("style", STYLES)
def test_nothing_said_is_no_error(style: str) -> None:
    assert format_transcript([], style) in ("", "[\n]\n", "[]\n", "WEBVTT\n") or style in ("json", "seglst")


def test_several_recordings_cannot_share_subtitles() -> None:
    session = Session("talk", Path("talk.wav"))
    with pytest.raises(ValueError, match="--format srt holds one recording: give --out-dir for 2 of them"):
        print_transcripts([(session, TALK), (session, TALK)], "srt", io.StringIO())
    with pytest.raises(ValueError, match="not as 'docx'"):
        format_transcript(TALK, "docx")


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0, "00:00:00.00"), (59.996, "00:01:00.00"), (3723.4, "01:02:03.40")]
)
def test_clock(seconds: float, expected: str) -> None:
    assert format_clock(seconds) == expected


def test_utterances_of_a_stream_are_told_when_another_word_shows_that_they_are_over() -> None:
    words = [word("a", 0, 1), word("b", 1.1, 2), word("x", 1.5, 1.9, 1), word("c", 4.0, 4.5), word("y", 4.2, 5, 1)]
    found = [(own[0].speaker, [one.text for one in own]) for own in stream_utterances(words)]
    assert found == [
        ("speaker_0", ["a", "b"]), ("speaker_1", ["x"]), ("speaker_0", ["c"]), ("speaker_1", ["y"]),
    ]  # fmt: skip


# --- other libraries


def test_annotation() -> None:
    annotation = pytest.importorskip("pyannote.core") and TALK.to_annotation()
    assert annotation.uri == "talk"
    assert annotation.label_duration("speaker_1") == pytest.approx(0.3)
    assert Segments().to_annotation().labels() == []


def test_dataframe() -> None:
    pytest.importorskip("pandas")
    frame = TALK.to_dataframe()
    assert list(frame.columns) == ["session_id", "speaker", "start", "end", "text", "confidence"]
    assert frame["text"].tolist() == [one.text for one in TALK] and frame["confidence"].max() == 0.9


# --- how many speakers


def test_the_strongest_columns_stay_and_take_what_the_others_say() -> None:
    probs = np.array([[0.9, 0.2, 0.1], [0.1, 0.8, 0.9], [0.1, 0.3, 0.9], [0.2, 0.1, 0.9]], np.float32)
    # Sums 1.3, 1.4 and 2.8: the first goes; its first frame is then said by column 1, the likelier one.
    expected = np.array([[0.9, 0.1], [0.8, 0.9], [0.3, 0.9], [0.1, 0.9]], np.float32)
    np.testing.assert_allclose(keep_strongest(probs, 2), expected)
    assert keep_strongest(probs, 3) is probs


def test_the_strongest_of_the_silent_columns_is_raised() -> None:
    probs = np.array([[0.9, 0.1, 0.3], [0.8, 0.2, 0.1]], np.float32)
    raised = raise_weak(probs, 2)
    np.testing.assert_allclose(raised[:, 2], [0.75, 0.25], rtol=1e-6)
    np.testing.assert_array_equal(raised[:, :2], probs[:, :2])
    assert raise_weak(probs, 1) is probs
    assert (raise_weak(probs, 9).max(axis=0) > 0.5).all()
