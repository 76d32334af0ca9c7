"""Audio files."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import soundfile

from sortk.formats import audio
from sortk.formats.files import FormatError


def noise(n_samples: int) -> npt.NDArray[np.int16]:
    return np.random.default_rng(0).integers(-8000, 8000, n_samples).astype(np.int16)


@pytest.fixture
def flac(tmp_path: Path) -> Path:
    """Ten seconds, long enough for many FLAC frames."""
    path = tmp_path / "a.flac"
    audio.write_flac(path, noise(160_000))
    return path


def test_what_is_written_is_read(flac: Path) -> None:
    samples = audio.read(flac)
    assert samples.dtype == np.float32
    assert samples.shape == (160_000,)
    np.testing.assert_array_equal(samples * 32768, noise(160_000))
    assert audio.info(flac) == audio.AudioInfo(10.0, 16_000, 1, 160_000)
    assert soundfile.info(flac).subtype == "PCM_16"


def test_floats_are_clipped_and_keep_the_grid(tmp_path: Path) -> None:
    audio.write_flac(tmp_path / "a.flac", np.array([-2, -1, -0.5, 0, 0.25, 1, 2], dtype=np.float32))
    most = 32767 / 32768
    np.testing.assert_array_equal(
        audio.read(tmp_path / "a.flac"), np.array([-1, -1, -0.5, 0, 0.25, most, most], dtype=np.float32)
    )


def test_windows(flac: Path) -> None:
    whole = audio.read(flac)
    np.testing.assert_array_equal(audio.read(flac, offset=2.5, duration=1.25), whole[40_000:60_000])
    np.testing.assert_array_equal(audio.read(flac, offset=9.5), whole[152_000:])
    np.testing.assert_array_equal(audio.read(flac, offset=9.5, duration=3), whole[152_000:])
    with pytest.raises(FormatError, match=r"a\.flac: has no samples at 10\.0 s: it ends at 10\.0 s"):
        audio.read(flac, offset=10.0)


@pytest.mark.parametrize(("offset", "duration"), [(-1.0, None), (0.0, 0.0), (0.0, -1.0), (float("nan"), None)])
def test_windows_that_are_none(flac: Path, offset: float, duration: float | None) -> None:
    with pytest.raises(ValueError, match="no window of"):
        audio.read(flac, offset, duration)


def test_channels_are_averaged(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.array([[0.5, 0.25], [-0.5, 0.5]]), 16_000, subtype="FLOAT")
    np.testing.assert_array_equal(audio.read(tmp_path / "a.wav"), np.array([0.375, 0.0], dtype=np.float32))


@pytest.mark.parametrize("rate", [8_000, 44_100, 48_000])
def test_resampling_keeps_a_tone(tmp_path: Path, rate: int) -> None:
    seconds = np.arange(rate) / rate
    soundfile.write(tmp_path / "a.wav", 0.5 * np.sin(2 * np.pi * 440 * seconds), rate)
    samples = audio.read(tmp_path / "a.wav")
    expected = 0.5 * np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000)
    assert samples.dtype == np.float32
    assert samples.shape == (16_000,)
    assert np.abs(samples - expected)[200:-200].max() < 2e-3


@pytest.mark.parametrize("rate", [7_919, 8_000, 16_000, 44_100, 48_000])  # the first is a prime
@pytest.mark.parametrize("window", [(0.0, None), (1.3, 4.77), (0.0, 0.01)])
def test_blocks_are_pieces_of_the_whole(
    tmp_path: Path, rate: int, window: tuple[float, float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audio, "BLOCK_SECONDS", 1.1)
    soundfile.write(tmp_path / "a.wav", np.stack([noise(7 * rate + 5), noise(7 * rate + 5)[::-1]], axis=1), rate)
    blocks = list(audio.read_blocks(tmp_path / "a.wav", *window))
    whole = audio.read(tmp_path / "a.wav", *window)
    assert max(len(block) for block in blocks) < 16_000 * 2.2  # the rate that is a prime has blocks of 2 s
    np.testing.assert_allclose(np.concatenate(blocks), whole, rtol=0, atol=1e-6)


def test_blocks_of_a_broken_file_end_in_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audio, "BLOCK_SECONDS", 1.0)
    samples = np.zeros(40_000)
    samples[36_000] = np.nan
    soundfile.write(tmp_path / "a.wav", samples, 16_000, subtype="FLOAT")
    blocks = audio.read_blocks(tmp_path / "a.wav")
    assert len(next(blocks)) == len(next(blocks)) == 16_000
    with pytest.raises(FormatError, match=r"a\.wav: holds samples that are not finite numbers"):
        next(blocks)


def test_loud_float_files_are_clipped(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.array([3.0, -3.0]), 16_000, subtype="FLOAT")
    np.testing.assert_array_equal(audio.read(tmp_path / "a.wav"), np.array([1, -1], dtype=np.float32))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_samples_that_are_not_numbers(tmp_path: Path, value: float) -> None:
    soundfile.write(tmp_path / "a.wav", np.array([0.0, value]), 16_000, subtype="FLOAT")
    with pytest.raises(FormatError, match=r"a\.wav: holds samples that are not finite numbers"):
        audio.read(tmp_path / "a.wav")
    with pytest.raises(ValueError, match="not finite"):
        audio.write_flac(tmp_path / "b.flac", np.array([value], dtype=np.float32))


@pytest.mark.parametrize("kept", [0.0, 0.01, 0.3, 0.9, 0.999])
def test_a_flac_that_was_cut_off(flac: Path, kept: float) -> None:
    data = flac.read_bytes()
    flac.write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(FormatError, match=r"a\.flac: (damaged or )?cut off|a\.flac: not an audio file"):
        audio.read(flac)
    with pytest.raises(FormatError):
        audio.read(flac, offset=9.9)


def test_an_mp3_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "a.mp3"
    soundfile.write(path, noise(160_000), 16_000)
    path.write_bytes(path.read_bytes()[:10_000])
    with pytest.raises(FormatError, match="cut off: 160000 samples are announced"):
        audio.read(path)


def test_a_header_that_leaves_the_length_open_or_lies(flac: Path) -> None:
    data = bytearray(flac.read_bytes())
    data[21] &= 0xF0
    data[22:26] = bytes(4)  # the 36 bits of the stream's length
    flac.write_bytes(data)
    with pytest.raises(FormatError, match="its header does not say how long it is"):
        audio.info(flac)
    data[21] |= 0x0F
    data[22:26] = b"\xff" * 4
    flac.write_bytes(data)
    with pytest.raises(FormatError, match="damaged or cut off"):
        audio.read(flac)


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.raw", "a.txt"])
def test_files_that_are_not_audio(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"hello " * 100)
    with pytest.raises(FormatError, match="not an audio file, or one that libsndfile cannot read"):
        audio.read(tmp_path / name)


def test_missing_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"none\.wav: no such audio file"):
        audio.info(tmp_path / "none.wav")
    with pytest.raises(FormatError, match="no such audio file"):
        audio.info(tmp_path)
    soundfile.write(tmp_path / "a.wav", np.zeros(0), 16_000)
    with pytest.raises(FormatError, match=r"a\.wav: holds no samples"):
        audio.info(tmp_path / "a.wav")


def test_a_sample_rate_that_cannot_be(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.zeros(9), 7)
    with pytest.raises(FormatError, match="its header gives a sample rate of 7 Hz"):
        audio.read(tmp_path / "a.wav")


@pytest.mark.parametrize(
    "samples", [np.zeros((2, 2), dtype=np.int16), np.zeros(0, dtype=np.int16), np.zeros(3, dtype=np.int32)]
)
def test_what_cannot_be_written(tmp_path: Path, samples: npt.NDArray[np.int16]) -> None:
    with pytest.raises(ValueError, match="cannot write samples of"):
        audio.write_flac(tmp_path / "a.flac", samples)
    assert list(tmp_path.iterdir()) == []


def test_damaged_files_raise_only_format_errors(tmp_path: Path) -> None:
    rng = random.Random(0)
    originals = []
    for name in ("a.wav", "a.flac", "a.ogg"):
        soundfile.write(tmp_path / name, noise(8000), 16_000)
        originals.append(tmp_path / name)
    for trial in range(600):
        original = originals[trial % 3]
        data = bytearray(original.read_bytes())
        for _ in range(rng.randint(1, 20)):
            data[min(int(rng.expovariate(1 / 60)), len(data) - 1)] = rng.randrange(256)  # mostly in the header
        broken = tmp_path / f"broken{original.suffix}"
        broken.write_bytes(data)
        try:
            audio.info(broken)
            samples = audio.read(broken, sample_rate=audio.info(broken).sample_rate)
        except FormatError:
            continue
        assert np.isfinite(samples).all()


@pytest.mark.parametrize("channels", [1, 2])
def test_an_array_is_what_a_file_of_it_would_be(tmp_path: Path, channels: int) -> None:
    samples = np.stack([noise(8_000), noise(8_000)[::-1]][:channels], axis=1)
    soundfile.write(tmp_path / "a.wav", samples, 8_000)
    expected = audio.read(tmp_path / "a.wav")
    np.testing.assert_allclose(audio.from_array(samples, 8_000), expected, atol=1e-6)
    np.testing.assert_allclose(audio.from_array(samples / 32768, 8_000), expected, atol=1e-6)
    with pytest.raises(ValueError, match="no audio with a sample rate of 0 Hz"):
        audio.from_array(samples, 0)
