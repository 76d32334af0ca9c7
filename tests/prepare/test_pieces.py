from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tones import tone

from sortk.formats import audio
from sortk.formats.files import FormatError
from sortk.prepare.pieces import SpeechPiece, at_speed, cut_piece, index_speaker, read_index, summarize_index
from sortk.records import Source, Word

SILENCE = np.zeros(16000, np.float32)


def index(tmp_path: Path, *sources: Source) -> list[list[tuple[float, int, list[str]]]]:
    path = tmp_path / "index.json"
    index_speaker(sources, path, 16000)
    return [
        [(piece.start, piece.duration_ms, [word.text for word in piece.words]) for piece in pieces]
        for pieces in read_index(path)
    ]


def test_known_words_are_trimmed_and_cut_at_long_pauses(tmp_path: Path) -> None:
    audio.write_flac(tmp_path / "a.flac", tone(4.0))
    words = (Word("one", 0.5, 0.9), Word("two", 1.0, 1.4), Word("three", 2.0, 2.5))
    source = Source("u", tmp_path / "a.flac", 0.25, 3.0, "s", "one two three", words)
    assert index(tmp_path, source) == [[(0.75, 900, ["one", "two"]), (2.25, 500, ["three"])]]


@pytest.mark.parametrize("limits", [(None, None), (0.9, 3.6)])
def test_unknown_words_are_trimmed_and_cut_by_energy(tmp_path: Path, limits: tuple[float | None, float | None]) -> None:
    samples = np.concatenate([SILENCE, tone(1.0), SILENCE[:8000], tone(1.0), SILENCE])
    audio.write_flac(tmp_path / "a.flac", samples)
    source = Source("u", tmp_path / "a.flac", 0.0, 4.5, "s", "hi there you", (), *limits)
    # three words over two seconds of speech: the middle of the second falls on the second piece
    assert index(tmp_path, source) == [[(1.0, 1000, ["hi"]), (2.5, 1000, ["there", "you"])]]


def test_short_pauses_stay_inside_a_piece(tmp_path: Path) -> None:
    audio.write_flac(tmp_path / "a.flac", np.concatenate([tone(0.5), SILENCE[:3200], tone(0.5)]))
    assert index(tmp_path, Source("u", tmp_path / "a.flac", 0.0, 1.2, "s", "x")) == [[(0.0, 1200, ["x"])]]


def test_a_stretch_without_a_word_takes_one_or_is_left_out(tmp_path: Path) -> None:
    samples = np.concatenate([tone(0.2), SILENCE[:8000], tone(3.0)])
    audio.write_flac(tmp_path / "a.flac", samples)
    alone = Source("u", tmp_path / "a.flac", 0.0, 3.7, "s", "alone")
    assert index(tmp_path, alone) == [[(0.7, 3000, ["alone"])]]
    two = replace(alone, text="all alone")
    assert index(tmp_path, two) == [[(0.0, 200, ["all"]), (0.7, 3000, ["alone"])]]


def test_words_that_overlap_end_with_the_latest(tmp_path: Path) -> None:
    audio.write_flac(tmp_path / "a.flac", tone(4.0))
    words = (Word("a", 0.1, 2.9), Word("b", 0.5, 0.7), Word("c", 1.5, 1.7))
    assert index(tmp_path, Source("u", tmp_path / "a.flac", 0.0, 3.0, "s", "a b c", words)) == [
        [(0.1, 2800, ["a", "b", "c"])]
    ]


def test_silence_has_no_pieces(tmp_path: Path) -> None:
    audio.write_flac(tmp_path / "a.flac", SILENCE)
    source = Source("u", tmp_path / "a.flac", 0.0, 1.0, "s", "nothing")
    assert index(tmp_path, source) == []
    assert summarize_index(tmp_path / "index.json") is None


def test_an_utterance_beyond_the_audio_is_an_error(tmp_path: Path) -> None:
    audio.write_flac(tmp_path / "a.flac", tone(1.0))
    with pytest.raises(FormatError, match=r"a.flac: utterance 'u' ends at 1.500 s, after the audio's end \(1.000 s\)"):
        index(tmp_path, Source("u", tmp_path / "a.flac", 0.5, 1.0, "s", "x"))


def test_words_lie_inside_their_pieces(tmp_path: Path, make_sources: Callable[..., list[Source]]) -> None:
    for timed in (True, False):
        index_speaker(make_sources(1, timed=timed), tmp_path / "index.json", 16000)
        for pieces in read_index(tmp_path / "index.json"):
            for piece in pieces:
                times = [time for word in piece.words for time in (word.start, word.end)]
                assert times == sorted(times) and times[0] >= 0 and times[-1] <= piece.duration_ms / 1000


def test_the_index_names_audio_relative_to_itself(tmp_path: Path, make_sources: Callable[..., list[Source]]) -> None:
    index_speaker(make_sources(1), tmp_path / "pieces" / "0.json", 16000)
    assert str(tmp_path) not in (tmp_path / "pieces" / "0.json").read_text(encoding="utf-8")


def test_the_level_of_a_speaker_is_the_mean_over_speech_only(
    tmp_path: Path, make_sources: Callable[..., list[Source]]
) -> None:
    found = index_speaker([replace(s, speaker="x") for s in make_sources(1)], tmp_path / "i.json", 16000)
    assert found is not None
    # words of 0.3 s at level 0.05, with 0.1 s of silence between two: 1.5 of 1.9 s sound
    assert found.energy == pytest.approx(0.05**2 * 1.5 / 1.9, rel=0.01)


@pytest.mark.parametrize("hertz", [80.0, 125.0, 220.0, 380.0])
def test_the_pitch_of_a_speaker_is_measured(tmp_path: Path, hertz: float) -> None:
    # a voice: harmonics up to 3 kHz, the first one weak
    harmonics = [tone(1.0, 0.02 if k == 1 else 0.1 / k, k * hertz) for k in range(1, int(3000 / hertz))]
    audio.write_flac(tmp_path / "a.flac", np.sum(harmonics, axis=0).astype(np.float32))
    found = index_speaker([Source("u", tmp_path / "a.flac", 0.0, 1.0, "s", "x")], tmp_path / "index.json", 16000)
    assert found is not None and found.pitch_hz == pytest.approx(hertz, rel=0.02)


def test_noise_has_no_pitch(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 16000).astype(np.float32)
    audio.write_flac(tmp_path / "a.flac", noise)
    found = index_speaker([Source("u", tmp_path / "a.flac", 0.0, 1.0, "s", "x")], tmp_path / "index.json", 16000)
    assert found is not None and found.pitch_hz == 0


def test_a_piece_at_another_speed() -> None:
    words = (Word("a", 0.0, 0.25), Word("b", 0.25, 1.0))
    piece = SpeechPiece("x", "u", Path("a.flac"), 3.0, 1000, 50, 20, 0.1, words)
    faster = at_speed(piece, "x@1.25", 1.25)
    assert (faster.speaker, faster.start, faster.duration_ms) == ("x@1.25", 3.0, 800)
    assert (faster.lead_ms, faster.tail_ms) == (40, 16)
    assert faster.words == (Word("a", 0.0, 0.2), Word("b", 0.2, 0.8))
    assert at_speed(piece, "x", 1.0) is piece


def test_a_long_piece_is_cut_into_equal_parts_of_its_source() -> None:
    words = (Word("a", 0.0, 0.4), Word("b", 0.4, 1.0), Word("c", 1.9, 2.0))
    piece = SpeechPiece("s", "u", Path("a.flac"), 5.0, 2000, 50, 40, 1.0, words)
    assert cut_piece(piece, 2000) == [piece]
    # played at half the speed, a second of the session is half a second of the source
    parts = cut_piece(piece, 900, speed=0.5)
    assert [(p.start, p.duration_ms, p.lead_ms, p.tail_ms) for p in parts] == [
        (5.0, 667, 50, 0),
        (5.3335, 666, 0, 0),
        (5.6665, 667, 0, 40),
    ]
    assert [[(w.text, w.start, w.end) for w in p.words] for p in parts] == [
        [("a", 0.0, 0.4)],
        [("b", 0.0, 0.333)],  # its middle, 0.7 s, is in the second part, which starts at 0.667 s
        [("c", 0.567, 0.667)],
    ]
