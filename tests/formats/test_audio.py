"""Audio files."""

from __future__ import annotations

import importlib.util
import random
import shutil
import struct
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import soundfile

from sortk.formats import audio
from sortk.formats.containers import recognize
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


def test_a_channel_is_read_alone(tmp_path: Path) -> None:
    path = tmp_path / "stereo.wav"
    stereo = np.stack([np.full(8000, 0.25), np.full(8000, -0.5)], axis=1)
    soundfile.write(path, stereo, 16000)
    assert np.allclose(audio.read(path, channel=1), 0.25) and np.allclose(audio.read(path, channel=2), -0.5)
    assert np.allclose(np.concatenate(list(audio.read_blocks(path, channel=2))), -0.5)
    with pytest.raises(FormatError, match=r"stereo\.wav: there is no channel 3: the file has 2"):
        audio.read(path, channel=3)


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
    with pytest.raises(FormatError, match=r"a\.wav: has samples that are not finite numbers"):
        next(blocks)


def test_loud_float_files_are_clipped(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.array([3.0, -3.0]), 16_000, subtype="FLOAT")
    np.testing.assert_array_equal(audio.read(tmp_path / "a.wav"), np.array([1, -1], dtype=np.float32))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_samples_that_are_not_numbers(tmp_path: Path, value: float) -> None:
    soundfile.write(tmp_path / "a.wav", np.array([0.0, value]), 16_000, subtype="FLOAT")
    with pytest.raises(FormatError, match=r"a\.wav: has samples that are not finite numbers"):
        audio.read(tmp_path / "a.wav")
    with pytest.raises(ValueError, match="not finite"):
        audio.write_flac(tmp_path / "b.flac", np.array([value], dtype=np.float32))


@pytest.mark.parametrize("kept", [0.0, 0.01, 0.3, 0.9, 0.999])
def test_a_flac_that_was_cut_off(flac: Path, kept: float) -> None:
    data = flac.read_bytes()
    flac.write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(FormatError, match=r"a\.flac: ((damaged or )?cut off|not an audio file|is empty)"):
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
    with pytest.raises(ValueError, match="the sample rate must be from 1000 to 399999 Hz, got 0"):
        audio.from_array(samples, 0)


# ---------------------------------------------------------------------------------------------------------------------
# Files that are not what they seem


SUBTYPES = {".wav": "PCM_16", ".flac": "PCM_16", ".ogg": "VORBIS", ".opus": "OPUS", ".mp3": "MPEG_LAYER_III"}
RAW = {".aiff": "PCM_16", ".au": "PCM_16", ".w64": "PCM_16", ".rf64": "PCM_16", ".caf": "PCM_16"}


def write_file(path: Path, seconds: float = 4.0) -> bytes:
    subtype = (SUBTYPES | RAW)[path.suffix]
    kind = {".opus": "OGG"}.get(path.suffix, path.suffix[1:].upper())
    soundfile.write(path, noise(int(16_000 * seconds)), 16_000, subtype=subtype, format=kind)
    return path.read_bytes()


@pytest.mark.parametrize("suffix", [*SUBTYPES, *RAW])
def test_half_a_file_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    data = write_file(path)
    assert len(audio.read(path)) == 64_000
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(FormatError, match=r"cut off"):
        audio.read(path)
    with pytest.raises(FormatError, match=r"cut off"):
        list(audio.read_blocks(path))


@pytest.mark.parametrize("suffix", [*SUBTYPES, *RAW])
def test_two_files_in_one_are_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(write_file(path) + write_file(path, 1.0))
    with pytest.raises(FormatError, match=r"holds several recordings one after the other|its header is wrong"):
        audio.read(path)
    path.write_bytes(write_file(path) * 2)  # of the same serial number, if it is OGG
    with pytest.raises(FormatError, match=r"holds several recordings one after the other|its header is wrong"):
        audio.read(path)


@pytest.mark.parametrize("size", [0, 1000])
def test_a_wav_header_that_announces_less_than_there_is(tmp_path: Path, size: int) -> None:
    data = bytearray(write_file(tmp_path / "a.wav"))
    data[40:44] = struct.pack("<I", size)
    (tmp_path / "a.wav").write_bytes(data)
    with pytest.raises(FormatError, match=r"a\.wav: its header is wrong: it announces \d+ bytes, 128044 are there"):
        audio.read(tmp_path / "a.wav")


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFF000])
def test_a_wav_of_a_pipe_that_leaves_its_length_open(tmp_path: Path, size: int) -> None:
    data = bytearray(write_file(tmp_path / "a.wav"))
    data[4:8] = data[40:44] = struct.pack("<I", size)
    (tmp_path / "a.wav").write_bytes(data)
    assert len(audio.read(tmp_path / "a.wav")) == 64_000


def test_a_wav_with_tags_behind_its_samples(tmp_path: Path) -> None:
    data = write_file(tmp_path / "a.wav")
    tail = b"LIST" + struct.pack("<I", 8) + b"INFOabcd"
    for more in (tail, b"ID3" + bytes(5000), bytes(9000)):
        (tmp_path / "a.wav").write_bytes(data + more)
        assert len(audio.read(tmp_path / "a.wav")) == 64_000


@pytest.mark.parametrize("rate", [16_000, 48_000])
def test_channels_in_antiphase_do_not_become_silence(
    tmp_path: Path, rate: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audio, "BLOCK_SECONDS", 1.0)
    tone = 0.4 * np.sin(2 * np.pi * 440 * np.arange(4 * rate) / rate)
    soundfile.write(tmp_path / "a.wav", np.stack([tone, -tone], axis=1), rate)
    samples = audio.read(tmp_path / "a.wav")
    expected = 0.4 * np.sin(2 * np.pi * 440 * np.arange(64_000) / 16_000)
    assert np.abs(samples - expected)[200:-200].max() < 2e-3
    np.testing.assert_allclose(np.concatenate(list(audio.read_blocks(tmp_path / "a.wav"))), samples, atol=1e-6)
    assert "its channels cancel each other; only channel 1 is used" in caplog.text


def test_channels_in_antiphase_with_an_offset_do_not_become_silence(tmp_path: Path) -> None:
    tone = 0.4 * np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000)
    soundfile.write(tmp_path / "a.wav", np.stack([0.3 + tone, 0.3 - tone], axis=1), 16_000)
    np.testing.assert_allclose(audio.read(tmp_path / "a.wav"), 0.3 + tone, atol=1e-3)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("loud", [np.nan, np.inf, 1e300])
def test_samples_that_are_not_sound_are_refused_without_warnings(tmp_path: Path, loud: float) -> None:
    samples = np.zeros((1600, 2))
    samples[5] = loud
    soundfile.write(tmp_path / "a.wav", samples, 16_000, subtype="DOUBLE")
    with pytest.raises(FormatError, match=r"a\.wav: has samples (that are not finite|up to 1e\+300)"):
        audio.read(tmp_path / "a.wav")


def test_floats_of_another_unit_are_refused(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", noise(16_000).astype(np.float32), 16_000, subtype="FLOAT")
    with pytest.raises(FormatError, match=r"a\.wav: has samples up to 8000, but those of a float file must be between"):
        audio.read(tmp_path / "a.wav")


def test_many_channels_are_decoded_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = np.stack([noise(30_000)] * 24, axis=1)
    soundfile.write(tmp_path / "a.wav", samples, 16_000)
    monkeypatch.setattr(audio, "DECODE_VALUES", 24 * 1000)
    sizes = []

    class Watched(soundfile.SoundFile):
        def read(self, frames: int = -1, *args: object, **kwargs: object) -> npt.NDArray[np.float32]:
            found: npt.NDArray[np.float32] = super().read(frames, *args, **kwargs)
            if kwargs.get("dtype") == "float32":
                sizes.append(len(found))
            return found

    monkeypatch.setattr(soundfile, "SoundFile", Watched)
    np.testing.assert_allclose(audio.read(tmp_path / "a.wav"), noise(30_000) / 32768, atol=1e-6)
    assert max(sizes) == 1000


def test_gsm_wav_which_cannot_be_sought(tmp_path: Path) -> None:
    tone = 0.4 * np.sin(2 * np.pi * 440 * np.arange(32_000) / 8_000)
    soundfile.write(tmp_path / "a.wav", tone, 8_000, subtype="GSM610")
    whole = audio.read(tmp_path / "a.wav", sample_rate=8_000)
    assert len(whole) == 32_000
    np.testing.assert_array_equal(audio.read(tmp_path / "a.wav", 1.0, 2.0, 8_000), whole[8_000:24_000])


FIXTURES = Path(__file__).parents[1] / "fixtures" / "audio"  # 2 s of 440 Hz, stereo, 48 kHz


@pytest.mark.parametrize("name", ["tone.m4a", "tone.webm"])
def test_m4a_and_webm_without_ffmpeg_say_what_to_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(FormatError, match=rf"{name}: is .* install ffmpeg .*ffmpeg -i {name} tone\.wav"):
        audio.read(FIXTURES / name)


@pytest.mark.skipif(not shutil.which("ffmpeg") and not importlib.util.find_spec("av"), reason="no ffmpeg, no PyAV")
@pytest.mark.parametrize("name", ["tone.m4a", "tone.webm"])
def test_m4a_and_webm_through_ffmpeg(tmp_path: Path, name: str) -> None:
    samples = audio.read(FIXTURES / name)
    assert len(samples) == pytest.approx(32_000, abs=100)
    assert np.abs(np.fft.rfft(samples)).argmax() / len(samples) * 16_000 == pytest.approx(440, abs=1)
    (tmp_path / name).write_bytes((FIXTURES / name).read_bytes()[:4000])
    if name == "tone.m4a":
        with pytest.raises(FormatError, match="damaged or cut off"):
            audio.read(tmp_path / name)
        with pytest.raises(FormatError, match=r"silent\.mp4: has no audio track$"):
            audio.read(FIXTURES / "silent.mp4")


def test_an_ogg_that_ends_with_a_page_but_without_a_mark_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.ogg"
    data = write_file(path, 8.0)
    path.write_bytes(data[: data.rfind(b"OggS")])
    assert 0 < len(audio.read(path)) < 128_000
    assert "a.ogg: its last page is not marked as the end; it may have been cut off" in caplog.text


def test_a_sphere_file_that_was_cut_off(tmp_path: Path) -> None:
    head = b"NIST_1A\n   1024\nchannel_count -i 1\nsample_count -i 16000\nsample_n_bytes -i 2\nsample_rate -i 16000\n"
    head += b"sample_byte_format -s2 01\nsample_coding -s3 pcm\nend_head\n"
    path = tmp_path / "a.sph"
    path.write_bytes(head.ljust(1024) + noise(16_000).tobytes() + bytes(9000))
    assert len(audio.read(path)) >= 16_000
    path.write_bytes(head.ljust(1024) + noise(8_000).tobytes())
    with pytest.raises(FormatError, match="cut off: its header announces 32000 bytes, 16000 are there"):
        audio.read(path)
    path.write_bytes(2 * (head.ljust(1024) + noise(16_000).tobytes()))
    with pytest.raises(FormatError, match="several recordings one after the other"):
        audio.read(path)


@pytest.mark.parametrize("kind", ["VOC", "SVX", "IRCAM"])
def test_formats_that_do_not_show_that_they_are_cut_off_are_not_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, np.zeros(1600), 16_000, format=kind, subtype="PCM_16")
    with pytest.raises(FormatError, match=f"a.wav: sortk does not read {kind} files; convert it"):
        audio.read(path)


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "AIFF", "AU", "CAF", "W64", "VOC", "AVR", "PVF", "PAF"])
def test_an_audio_file_is_told_from_raw_samples(kind: str) -> None:
    content = BytesIO()
    soundfile.write(content, np.zeros(1600), 16000, format=kind)
    assert recognize(content.getvalue()[:4096]) == kind
