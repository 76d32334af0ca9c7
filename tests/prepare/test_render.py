from __future__ import annotations

import json
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tones import tone

from sortk.formats import audio
from sortk.prepare.render import (
    Bursts,
    PlannedPiece,
    PlannedSpeaker,
    PlannedTurn,
    RoomTone,
    SessionPlan,
    SoundClip,
    SourceAudio,
    apply_codec,
    change_speed,
    cut_plan,
    find_clips,
    plan_from_json,
    plan_to_json,
    render,
)
from sortk.records import Segment, Word


def noise(n_samples: int, seed: int, level: int = 3000) -> np.ndarray:
    return np.random.default_rng(seed).integers(-level, level, n_samples).astype(np.int16)


def one_piece(path: Path, n_samples: int, at_sample: int, **options: int) -> PlannedTurn:
    piece = PlannedPiece(path, 0.0, n_samples, options.get("lead", 0), options.get("tail", 0), at_sample, ())
    return PlannedTurn(options.get("speaker", 0), at_sample, at_sample + n_samples, (piece,))


def test_an_exact_plan_is_the_plain_sum(tmp_path: Path) -> None:
    wavs = [noise(1000, 1), noise(800, 2)]
    for n, wav in enumerate(wavs):
        audio.write_flac(tmp_path / f"{n}.flac", wav)
    turns = (one_piece(tmp_path / "0.flac", 1000, 0), one_piece(tmp_path / "1.flac", 800, 700, speaker=1))
    plan = SessionPlan("x", 16000, 1500, (PlannedSpeaker("a", 1.0), PlannedSpeaker("b", 1.0)), turns, exact=True)
    expected = np.zeros(1500, np.int16)
    expected[:1000] += wavs[0]
    expected[700:] += wavs[1]
    assert np.array_equal(render(plan, SourceAudio(16000)), expected)


def test_gain_and_fades(tmp_path: Path) -> None:
    audio.write_flac(tmp_path / "a.flac", np.full(4000, 1000, np.int16))
    plan = SessionPlan("x", 16000, 8000, (PlannedSpeaker("a", 2.0),), (one_piece(tmp_path / "a.flac", 4000, 2000),))
    samples = render(plan, SourceAudio(16000))
    assert (samples[:2000] == 0).all() and (samples[6000:] == 0).all()
    assert (samples[2080:5920] == 2000).all()  # 5 ms at each edge fade, so that nothing clicks
    assert samples[2000] < 10 < samples[2010] and (np.diff(samples[2000:2080].astype(int)) >= 0).all()


def test_room_tone_around_a_piece_fades(tmp_path: Path) -> None:
    audio.write_flac(tmp_path / "a.flac", np.full(4000, 1000, np.int16))
    piece = PlannedPiece(tmp_path / "a.flac", 0.1, 1000, 800, 400, 2000, ())
    plan = SessionPlan("x", 16000, 8000, (PlannedSpeaker("a", 1.0),), (PlannedTurn(0, 2000, 3000, (piece,)),))
    samples = render(plan, SourceAudio(16000))
    assert (samples[2000:3000] == 1000).all()
    assert samples[1200] < 5 < samples[1700] and samples[1199] == 0
    assert samples[3399] < 5 and samples[3400] == 0


def test_speed_changes_pitch_and_length_together(tmp_path: Path) -> None:
    audio.write_flac(tmp_path / "a.flac", tone(2.0, hertz=400.0))
    piece = PlannedPiece(tmp_path / "a.flac", 0.5, 16000, 0, 0, 0, ())
    plan = SessionPlan(
        "x", 16000, 16000, (PlannedSpeaker("a", 1.0, speed=1.25),), (PlannedTurn(0, 0, 16000, (piece,)),)
    )
    samples = render(plan, SourceAudio(16000))  # a second, made of 1.25 s from 0.5 s on
    assert np.abs(np.fft.rfft(samples)).argmax() == 500 and np.abs(samples[15000:]).max() > 100


def test_a_window_is_a_part_of_the_mixture(tmp_path: Path) -> None:
    for n in range(2):
        audio.write_flac(tmp_path / f"{n}.flac", noise(16000, n))
    turns = (
        one_piece(tmp_path / "0.flac", 8000, 1000, tail=400),
        one_piece(tmp_path / "1.flac", 6000, 8000, speaker=1, tail=400),
        one_piece(tmp_path / "0.flac", 1000, 20000),
    )
    plan = SessionPlan("x", 16000, 24000, (PlannedSpeaker("a", 1.0), PlannedSpeaker("b", 1.0)), turns)
    window = cut_plan(plan, 5000, 8000)
    assert window.n_samples == 8000 and [(t.speaker, t.start_sample, t.end_sample) for t in window.turns] == [
        (0, 0, 4000),
        (1, 3000, 8000),
    ]
    sources = SourceAudio(16000)
    expected, samples = render(plan, sources)[5000:13000], render(window, sources)
    assert np.array_equal(samples[80:-80], expected[80:-80])  # speech fades over 5 ms where it is cut
    faster = replace(plan, speakers=(PlannedSpeaker("a", 1.0, speed=1.25), PlannedSpeaker("b", 1.0, speed=0.8)))
    expected, samples = render(faster, sources)[5000:13000], render(cut_plan(faster, 5000, 8000), sources)
    assert np.abs(samples[80:-80].astype(int) - expected[80:-80]).max() <= 1
    assert cut_plan(plan, 15000, 4000).turns == ()


def test_a_mixture_that_would_clip_is_scaled_down(tmp_path: Path) -> None:
    audio.write_flac(tmp_path / "a.flac", tone(0.5, 0.5))
    plan = SessionPlan("x", 16000, 8000, (PlannedSpeaker("a", 3.0),), (one_piece(tmp_path / "a.flac", 8000, 0),))
    assert np.abs(render(plan, SourceAudio(16000)).astype(int)).max() == pytest.approx(0.99 * 32768, abs=2)


def test_noise_has_the_planned_snr(tmp_path: Path) -> None:
    audio.write_flac(tmp_path / "a.flac", tone(1.0))
    audio.write_flac(tmp_path / "noise.flac", noise(4000, 3))
    clip = SoundClip(tmp_path / "noise.flac", 0.0, 0.25)
    turns = (one_piece(tmp_path / "a.flac", 16000, 0),)
    plan = SessionPlan("x", 16000, 32000, (PlannedSpeaker("a", 1.0),), turns, clip, snr_db=10.0)
    samples = render(plan, SourceAudio(16000)) / 32768
    assert 10 * np.log10(0.1**2 / np.mean(samples[16000:] ** 2)) == pytest.approx(10, abs=0.2)


def test_room_tone_fills_pauses_at_the_planned_snr(tmp_path: Path) -> None:
    audio.write_flac(tmp_path / "a.flac", tone(1.0))
    plan = SessionPlan(
        "x", 16000, 32000, (PlannedSpeaker("a", 1.0),), (one_piece(tmp_path / "a.flac", 16000, 0),),
        room_tone=RoomTone(snr_db=30.0, pole=0.9),
    )  # fmt: skip
    samples = render(plan, SourceAudio(16000))
    pause = samples[16000:] / 32768
    assert 10 * np.log10(0.1**2 / np.mean(pause**2)) == pytest.approx(30, abs=0.3)
    # Neighbouring samples of 1 / (1 - 0.9 z^-1) are correlated by 0.9.
    assert np.corrcoef(pause[1:], pause[:-1])[0, 1] == pytest.approx(0.9, abs=0.02)
    assert np.array_equal(samples, render(plan, SourceAudio(16000)))
    assert not np.array_equal(samples, render(replace(plan, session_id="y"), SourceAudio(16000)))


def test_bursts_are_short_noises_in_pauses_too(tmp_path: Path) -> None:
    audio.write_flac(tmp_path / "a.flac", tone(1.0))
    turns = (one_piece(tmp_path / "a.flac", 16000, 0),)
    plan = SessionPlan("x", 16000, 16000 * 41, (PlannedSpeaker("a", 1.0),), turns, bursts=Bursts(0.5, snr_db=20.0))
    samples = render(plan, SourceAudio(16000))
    loud = np.abs(samples[16000:].reshape(-1, 160)).max(axis=1) > 0  # by 10 ms
    assert 0.02 < loud.mean() < 0.6  # about 20 bursts of 0.01 to 1.6 s in 40 s
    power = np.mean(np.square(samples[16000:] / 32768).reshape(-1, 160)[loud])
    assert 10 * np.log10(0.1**2 / power) == pytest.approx(20, abs=8)
    assert np.array_equal(samples, render(plan, SourceAudio(16000)))


@pytest.mark.parametrize("codec", ["telephone", "mp3", "opus"])
def test_codecs_do_not_delay(codec: str) -> None:
    speech = np.random.default_rng(0).standard_normal(16000).cumsum().astype(np.float32)
    speech = np.diff(np.convolve(speech, np.hanning(8), "same"), prepend=0).astype(np.float32)
    speech *= 0.1 / speech.std()
    coded = apply_codec(speech, 16000, codec)
    assert coded.dtype == np.float32 and len(coded) == len(speech) and not np.array_equal(coded, speech)
    lags = [float(speech[100:-100] @ np.roll(coded, -lag)[100:-100]) for lag in range(-50, 51)]
    assert int(np.argmax(lags)) - 50 in (-1, 0, 1)


def test_a_telephone_has_its_band() -> None:
    def level_db(hertz: float) -> float:
        sound = 0.1 * np.sin(2 * np.pi * hertz * np.arange(16000) / 16000).astype(np.float32)
        spectrum = np.abs(np.fft.rfft(apply_codec(sound, 16000, "telephone")))[round(hertz)]
        return float(20 * np.log10(spectrum / 800))

    assert level_db(1000) == pytest.approx(0, abs=0.5)
    assert level_db(300) == pytest.approx(-3, abs=0.5)  # the corner of the filter
    assert level_db(75) == pytest.approx(-24, abs=1.5)  # two octaves below it, 12 dB each
    assert level_db(5000) < -40


def test_a_room_keeps_the_direct_sound_in_place(tmp_path: Path) -> None:
    click = np.zeros(8000, np.int16)
    click[4000] = 20000
    audio.write_flac(tmp_path / "a.flac", click)
    response = np.zeros(1000, np.float32)
    response[100], response[400] = 0.8, 0.4
    audio.write_flac(tmp_path / "room.flac", response)
    speaker = PlannedSpeaker("a", 1.0, SoundClip(tmp_path / "room.flac", 0.0, 0.0625))
    samples = render(
        SessionPlan("x", 16000, 8000, (speaker,), (one_piece(tmp_path / "a.flac", 8000, 0),)), SourceAudio(16000)
    )
    assert np.abs(samples).argmax() == 4000
    assert samples[4300] / samples[4000] == pytest.approx(0.5, abs=0.01)
    assert np.sum(samples.astype(float) ** 2) == pytest.approx(20000.0**2, rel=0.01)


def test_a_plan_survives_json_and_a_move(tmp_path: Path) -> None:
    piece = PlannedPiece(tmp_path / "audio" / "a.flac", 1.5, 1000, 80, 0, 16, (Word("hi", 0.0, 0.05),))
    plan = SessionPlan(
        "x", 16000, 2000, (PlannedSpeaker("a", 1.25, SoundClip(tmp_path / "r.flac", 0.0, 0.5), 0.9),),
        (PlannedTurn(0, 16, 1016, (piece,)),), SoundClip(tmp_path / "n.flac", 1.0, 2.0), 7.5,
        RoomTone(30.0, 0.5), Bursts(1.0, 9.0), "mp3",
    )  # fmt: skip
    path = tmp_path / "plan" / "x.json"
    text = json.dumps(plan_to_json(plan, path))
    assert str(tmp_path) not in text
    assert plan_from_json(json.loads(text), path) == plan


def test_segments_and_words_of_a_plan() -> None:
    piece = PlannedPiece(Path("a.flac"), 0.0, 16000, 0, 0, 8000, (Word("hi", 0.0, 0.25), Word("you", 0.5, 1.0)))
    plan = SessionPlan("x", 16000, 32000, (PlannedSpeaker("a", 1.0),), (PlannedTurn(0, 8000, 24000, (piece,)),))
    assert plan.segments() == [Segment("x", "a", 0.5, 1.5)]
    assert plan.words() == [Segment("x", "a", 0.5, 0.75, "hi"), Segment("x", "a", 1.0, 1.5, "you")]
    assert plan.duration == 2.0


def test_the_cache_forgets_the_oldest_file(tmp_path: Path) -> None:
    for n in range(4):
        audio.write_flac(tmp_path / f"{n}.flac", noise(1000, n))
    sources = SourceAudio(16000, max_bytes=4500)
    for n in (0, 1, 0, 2):
        assert np.array_equal(sources.samples(tmp_path / f"{n}.flac", 10, 20), noise(1000, n)[10:30])
    (tmp_path / "0.flac").unlink()
    sources.samples(tmp_path / "0.flac", 0, 10)  # used lately, so still there
    with pytest.raises(ValueError, match=r"3\.flac"):
        (tmp_path / "3.flac").unlink()
        sources.samples(tmp_path / "3.flac", 0, 10)


def test_clips_are_those_of_the_manifest_or_all_files(tmp_path: Path) -> None:
    audio.write_flac(tmp_path / "deep" / "b.flac", noise(16000, 0))
    assert find_clips(tmp_path) == [SoundClip(tmp_path / "deep" / "b.flac", 0.0, 1.0)]
    (tmp_path / "manifest.jsonl").write_text(
        '{"file": "deep/b.flac", "start": 0.5, "duration": 0.25}\n', encoding="utf-8"
    )
    assert find_clips(tmp_path) == [SoundClip(tmp_path / "deep" / "b.flac", 0.5, 0.25)]
    with pytest.raises(ValueError, match="no such folder"):
        find_clips(tmp_path / "nowhere")


@pytest.mark.parametrize("speed", [0.9, 1.1, 0.95, 1.07, 2.0])
def test_a_changed_speed_is_torchaudios_resampling(speed: float, torchaudio: Any) -> None:
    ratio = Fraction(speed).limit_denominator(100)
    resample = torchaudio.transforms.Resample(ratio.numerator, ratio.denominator, lowpass_filter_width=10)
    for n_samples in (1, 99, 16000):
        samples = noise(n_samples, 0).astype(np.float32) / 32768
        expected = resample(torch.from_numpy(samples)).numpy()
        np.testing.assert_allclose(change_speed(samples, speed), expected, atol=1e-6)


def test_a_changed_speed_needs_no_torchaudio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchaudio", None)
    seconds = np.arange(8000) / 16000
    faster = change_speed(np.sin(2 * np.pi * 440 * seconds).astype(np.float32), 1.25)
    assert len(faster) == 6400
    np.testing.assert_allclose(faster[100:-100], np.sin(2 * np.pi * 550 * seconds[100:6300]), atol=1e-3)
