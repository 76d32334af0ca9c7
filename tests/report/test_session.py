from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
import soundfile

from sortk.formats import audio
from sortk.records import Segment, Session
from sortk.report import session as page
from sortk.report.session import (
    encode_posteriors,
    encode_sound,
    encode_waveform,
    format_recording,
    renumber_stream,
)


def test_posteriors_in_sixteenths_two_to_a_byte() -> None:
    probs = np.array([[0.0, 1.0, 0.2], [0.49, 0.03, 0.8]], np.float32)
    # 15 x: 0, 15, 3 | 7.35, 0.45, 12
    assert base64.b64decode(encode_posteriors(probs)) == bytes([0x0F, 0x37, 0x0C])
    assert base64.b64decode(encode_posteriors(probs[:1])) == bytes([0x0F, 0x30])


def test_the_waveform_is_relative_to_its_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = np.zeros(32_000, np.float32)
    samples[16_000], samples[-1] = 0.25, -0.5
    audio.write_flac(tmp_path / "a.flac", samples)
    session = Session("a", tmp_path / "a.flac", offset=1.0, duration=1.0)
    waveform = encode_waveform(session)
    peaks = base64.b64decode(waveform["peaks"])
    assert len(peaks) == 25 and peaks[0] == 128 and peaks[-1] == 255 and not any(peaks[1:-1])
    assert waveform["peak_seconds"] == 0.04
    monkeypatch.setattr("sortk.report.session.MAX_PEAKS", 10)  # so that three are one
    waveform = encode_waveform(session)
    peaks = base64.b64decode(waveform["peaks"])
    assert len(peaks) == 9 and peaks[0] == 128 and peaks[-1] == 255 and waveform["peak_seconds"] == 0.12


@pytest.mark.parametrize("seconds", [0.3, 130.0])
def test_sound_comes_back_as_it_was(seconds: float) -> None:
    tone = 0.3 * np.sin(2 * np.pi * 440 * np.arange(round(16_000 * seconds)) / 16_000)
    content = base64.b64decode(encode_sound(tone.astype(np.float32)))
    heard, rate = soundfile.read(io.BytesIO(content))
    assert rate == 16_000 and len(heard) == len(tone) and len(content) < 4000 * seconds + 6000
    middle = slice(len(tone) // 4, 3 * len(tone) // 4)
    assert np.abs(heard[middle] - tone[middle]).max() < 0.1


def test_equal_sound_gives_equal_bytes_that_are_still_ogg() -> None:
    samples = np.random.default_rng(0).normal(0, 0.1, 50_000).astype(np.float32)
    content = encode_sound(samples)
    assert content == encode_sound(samples)
    memory = io.BytesIO()
    soundfile.write(memory, samples, 16_000, format="OGG", subtype="VORBIS")
    as_written = memory.getvalue()
    assert renumber_stream(renumber_stream(as_written)) == renumber_stream(as_written) != as_written
    # libsndfile drops pages whose checksum is wrong
    pages = [soundfile.read(io.BytesIO(ogg))[0] for ogg in (as_written, renumber_stream(as_written))]
    assert np.array_equal(*pages)


def test_a_page_that_would_be_too_large_has_less_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 20 * 16_000).astype(np.float32)
    audio.write_flac(tmp_path / "a.flac", noise)
    turns = [Segment("a", "x", n / 100, n / 100 + 0.005) for n in range(2000)]
    full = format_recording(Session("a", tmp_path / "a.flac"), turns)
    monkeypatch.setattr(page, "PAGE_BYTES", len(full) - 30_000)
    smaller = format_recording(Session("a", tmp_path / "a.flac"), turns)
    assert '"audio_seconds":20.0,' in full and '"audio_seconds":20.0,' not in smaller
    assert len(full) - 60_000 < len(smaller) <= len(full) - 30_000
