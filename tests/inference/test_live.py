"""Segments that are final are those of the whole, however the posteriors arrive."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from nemo_models import random_sortformer
from test_streaming import SMALL

from sortk.formats.postprocess import PRESETS, Postprocess
from sortk.inference.diarize import DiarizeOptions, Diarizer
from sortk.inference.live import SettledSegments, diarize_pcm, read_pcm
from sortk.inference.load import LoadedDiarizer
from sortk.inference.postprocess import find_segments, name_segments
from sortk.records import Segment

SECONDS = st.sampled_from([0.0, 0.01, 0.08, 0.16, 0.23, 0.42])
OPTIONS = st.builds(
    Postprocess,
    onset=st.sampled_from([0.3, 0.5, 0.64]),
    offset=st.sampled_from([0.3, 0.5, 0.74]),
    pad_onset=st.sampled_from([-0.1, 0.0, 0.06, 0.23]),
    pad_offset=st.sampled_from([-0.1, 0.0, 0.01, 0.2]),
    min_duration_on=SECONDS,
    min_duration_off=SECONDS,
)


def whole(probs: np.ndarray, options: Postprocess) -> set[Segment]:
    return set(name_segments("s", find_segments(probs, options)))


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.4, 0.55, 0.7, 1.0]), st.integers(1, 12)), min_size=1, max_size=40),
    st.lists(st.integers(1, 30), min_size=1, max_size=10),
    OPTIONS,
)
def test_they_are_those_of_the_whole(runs: list[tuple[float, int]], pieces: list[int], options: Postprocess) -> None:
    column = np.concatenate([np.full(n, value, np.float32) for value, n in runs])
    probs = np.stack([column, np.roll(column, 3)[::-1]], axis=1)
    settled, found, begin = SettledSegments("s", options), [], 0
    for piece in (pieces * len(probs))[: len(probs)]:
        found += settled.push(probs[begin : begin + piece])
        begin += piece
    found += settled.finish()
    assert len(found) == len(set(found)) and set(found) == whole(probs, options)


def test_hours_in() -> None:
    """Times of 32 bits are coarse by then, and must be coarse in the same way."""
    rng, options = np.random.default_rng(0), PRESETS["callhome"]
    probs = np.zeros((12 * 45000, 1), np.float32)
    probs[-5000:, 0] = np.repeat(rng.random(625) > 0.5, 8)
    settled = SettledSegments("s", options)
    found = [segment for piece in np.array_split(probs, 500) for segment in settled.push(piece)] + settled.finish()
    assert set(found) == whole(probs, options) and len(found) > 50


def test_a_segment_is_told_once_nothing_can_change_it() -> None:
    """Speech of 5 frames, then silence: padding and gaps of 0.3 s in all settle it after 3 + 2 frames."""
    settled = SettledSegments("s", Postprocess(pad_onset=0.1, pad_offset=0.1, min_duration_off=0.1))
    speech, silence = np.ones((5, 1), np.float32), np.zeros((1, 1), np.float32)
    told = [settled.push(speech), *(settled.push(silence) for _ in range(6))]
    assert [len(segments) for segments in told] == [0, 0, 0, 0, 0, 1, 0]
    assert told[5] == [Segment("s", "speaker_0", 0.0, 0.5)] and settled.finish() == []


class Trickle(io.RawIOBase):
    """A pipe that gives odd numbers of bytes."""

    def __init__(self, data: bytes) -> None:
        self.data, self.size = data, 1

    def read1(self, _size: int = -1) -> bytes:
        self.size = self.size % 7001 + 333
        piece, self.data = self.data[: self.size], self.data[self.size :]
        return piece


def test_a_pipe_is_the_file_of_its_samples() -> None:
    rng = np.random.default_rng(0)
    samples = (8000 * rng.standard_normal(16000 * 15) * np.repeat(rng.random(15) > 0.3, 16000)).astype("<i2")
    for max_speakers in (None, 2):
        options = DiarizeOptions(streaming="1.04", max_speakers=max_speakers, postprocess=Postprocess(0.5, 0.45))
        diarizer = Diarizer(LoadedDiarizer(random_sortformer(SMALL)), options)
        live = list(diarize_pcm(diarizer, Trickle(samples.tobytes() + b"\0"), "audio"))  # type: ignore[arg-type]
        assert live and sorted(live, key=lambda s: (s.start, s.end, s.speaker)) == diarizer(samples)


def write_bytes(kind: str, rate: int = 16000, channels: int = 1, subtype: str | None = None) -> bytes:
    file = io.BytesIO()
    samples = np.random.default_rng(0).integers(-8000, 8000, (8000, channels)).astype(np.int16)
    soundfile.write(file, samples, rate, subtype, format=kind)
    return file.getvalue()


def test_the_header_of_a_wav_on_a_pipe_is_not_samples() -> None:
    data = write_bytes("WAV")
    expected = np.frombuffer(data[44:], "<i2").astype(np.float32) / 32768
    found = np.concatenate(list(read_pcm(io.BytesIO(data))))
    np.testing.assert_array_equal(found, expected)
    assert list(read_pcm(io.BytesIO(b""))) == []


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (write_bytes("WAV", 48000), "is a WAV file of another kind than 16 bits, 16 kHz, mono"),
        (write_bytes("WAV", channels=2), "is a WAV file of another kind"),
        (write_bytes("WAV", subtype="FLOAT"), "is a WAV file of another kind"),
        (write_bytes("FLAC"), r"is an audio file \(FLAC\), not raw samples"),
        (write_bytes("OGG", subtype="VORBIS"), r"is an audio file \(OGG\)"),
        (write_bytes("MP3"), r"is an audio file \(MP3\)"),
        (b"ID3" + bytes(100), r"is an audio file \(MP3\)"),
    ],
)
def test_other_files_on_a_pipe_are_refused(data: bytes, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"standard input {sentence}.*give the file itself"):
        next(read_pcm(io.BytesIO(data)))
