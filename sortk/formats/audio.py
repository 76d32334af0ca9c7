"""Audio files, through libsndfile: mono float samples in, 16-bit FLAC out. No other module reads or writes audio files.

containers.py checks that a file is complete, and decodes what libsndfile cannot read with ffmpeg.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile

from sortk.formats import containers
from sortk.formats.files import FormatError, atomic_path, is_file
from sortk.records import SAMPLE_RATE

Samples = npt.NDArray[np.float32]
Int16 = npt.NDArray[np.int16]

log = logging.getLogger(__name__)

FLAC_LEVEL = 5 / 8
"""flac's default level. 90 s of a meeting, one core: level 0 4450 x real time, 844 kB; 5 4170 x, 804 kB;
6 3450 x, 802 kB; 8 2360 x, 798 kB."""

UNKNOWN_LENGTH = 2**63 - 1  # libsndfile's frame count of a FLAC stream whose header leaves the length open
FILTER_ZEROS = 11  # samples of the lower rate to either side that resampling looks at (scipy's filter: 10)
BLOCK_SECONDS = 60.0
SNDFILE_SUFFIXES = (".wav", ".wave", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aiff", ".aif", ".aifc", ".au", ".snd")
SUFFIXES = (*SNDFILE_SUFFIXES, ".caf", ".sph", ".w64", ".rf64", *containers.FFMPEG_SUFFIXES)
"""What is audio in a folder of all kinds of files, in lower case; a file that is named itself may have any suffix."""

COMPLETE_FORMATS = ("WAV", "WAVEX", "RF64", "W64", "FLAC", "OGG", "MP3", "AIFF", "AU", "CAF", "NIST")
"""What of libsndfile's formats is read: where containers.py, or libsndfile itself, notices that a file is cut off."""

DECODE_VALUES = 1 << 22  # samples of all channels that are in memory at once
MAX_SAMPLE = 16.0  # float files may overshoot 1 a little; beyond this, their unit is another one
N_PROBES, PROBE_SECONDS = 16, 0.5  # of a file with several channels, to find out whether they cancel each other
CANCELLED = 1e-3  # the power of the mix, as a share of the channels' power, below which they do: -30 dB

MAX_ARRAY_CHANNELS = 64  # of samples in memory; more are a batch, or an axis that was taken for another
SAMPLE_RATES = range(1_000, 400_000)  # outside, the header is damaged, and a resampling filter would fill the memory


@dataclass(frozen=True, slots=True)
class AudioInfo:
    """The fields of an audio header."""

    seconds: float
    sample_rate: int
    channels: int
    n_samples: int  # per channel


def info(path: Path) -> AudioInfo:
    """Return the header of a file; raise FormatError if it is missing, not audio, or has no samples."""
    with _open(path) as file:
        return AudioInfo(file.frames / file.samplerate, file.samplerate, file.channels, file.frames)


def read(
    path: Path,
    offset: float = 0.0,
    duration: float | None = None,
    sample_rate: int = SAMPLE_RATE,
    channel: int | None = None,
) -> Samples:
    """Return samples in [-1, 1], shape (n_samples,), resampled if the file has another rate.

    They are those of a channel, counted from 1, or the average of all channels. Where the channels cancel each other
    (one is the inverse of the other), the loudest is taken instead.

    A window that reaches over the end of the file ends there; one that starts after the end is a FormatError, as is
    every file that libsndfile cannot decode to the length in its header.
    """
    with _open(path) as file:
        place = _find_channel(path, file, channel)
        mono = _decode(path, file, _seek_window(path, file, offset, duration), place)
        return _resample(mono, file.samplerate, sample_rate)


def read_blocks(
    path: Path,
    offset: float = 0.0,
    duration: float | None = None,
    sample_rate: int = SAMPLE_RATE,
    channel: int | None = None,
) -> Iterator[Samples]:
    """Yield what `read` returns, a minute at a time, so that memory does not grow with the file."""
    with _open(path) as file:
        place = _find_channel(path, file, channel)
        n_wanted = _seek_window(path, file, offset, duration)
        factor = math.gcd(file.samplerate, sample_rate)
        up, down = sample_rate // factor, file.samplerate // factor
        # Blocks begin where an input sample and an output sample coincide, and are filtered with their surroundings.
        n_block = math.ceil(BLOCK_SECONDS * file.samplerate / down) * down
        n_around = math.ceil(FILTER_ZEROS * max(1, down / up) / down) * down if up != down else 0
        known, begin = np.zeros(0, np.float32), 0  # samples of the window, from `begin` on
        for start in range(0, n_wanted, n_block):
            stop = min(start + n_block, n_wanted)
            n_more = min(stop + n_around, n_wanted) - begin - len(known)
            known = np.concatenate([known, _decode(path, file, n_more, place)])
            resampled = _resample(known, file.samplerate, sample_rate)
            yield resampled[(start - begin) * up // down : math.ceil((stop - begin) * up / down)]
            known, begin = known[stop - n_around - begin :], stop - n_around


def files_below(path: Path) -> list[Path]:
    """Return the file itself, or every audio file in a folder and the folders below it, sorted; no hidden ones."""
    if not path.is_dir():
        return [path]
    found = []
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]  # hidden ones are not entered
        files = (Path(folder) / name for name in names if not name.startswith("."))
        found += [file for file in files if file.suffix.lower() in SUFFIXES and is_file(file)]
    if not found:
        raise FileNotFoundError(f"{path}: no audio file ({', '.join(SUFFIXES[:5])}, ...) in this folder or below")
    return sorted(found)


def from_array(samples: Any, rate: int, sample_rate: int = SAMPLE_RATE) -> Samples:
    """Return what `read` returns of a file with these samples: float or int16 numbers, mono, (samples, channels) or
    (channels, samples).

    `samples` may be a NumPy array, a torch tensor, or a dict in pyannote's way ("waveform", "sample_rate") or in that
    of Hugging Face ("array", "sampling_rate"); the rate in a dict takes the place of `rate`.
    """
    if isinstance(samples, Mapping):
        samples, rate = _unpack(samples)
    if hasattr(samples, "detach"):  # a tensor; NumPy does not have all its types, such as bfloat16
        samples = samples.detach().cpu()
        samples = (samples.float() if samples.is_floating_point() else samples).numpy()
    if not isinstance(samples, np.ndarray):
        raise TypeError(
            "audio is a path, a NumPy array, a torch tensor or a dict with waveform and sample_rate, "
            f"got {type(samples).__name__}"
        )
    if samples.dtype == np.int16:
        samples = samples.astype(np.float32) / 32768
    if not np.issubdtype(samples.dtype, np.floating) or samples.ndim not in (1, 2) or not samples.size:
        raise ValueError(
            "samples must be float or int16 numbers of shape (samples,), (samples, channels) or (channels, samples), "
            f"got {samples.dtype} of shape {samples.shape}"
        )
    if samples.ndim == 2 and min(samples.shape) > MAX_ARRAY_CHANNELS:
        raise ValueError(
            f"samples of shape {samples.shape} would have {min(samples.shape)} channels, "
            f"more than {MAX_ARRAY_CHANNELS}; pass one recording at a time"
        )
    if samples.ndim == 2 and samples.shape[0] < samples.shape[1]:
        samples = samples.T  # as torchaudio has it: no recording has more channels than samples
    if not np.isfinite(samples).all():
        raise ValueError("the samples hold values that are not finite numbers")
    if rate not in SAMPLE_RATES:
        raise ValueError(f"the sample rate must be from {SAMPLE_RATES.start} to {SAMPLE_RATES.stop - 1} Hz, got {rate}")
    mono = samples if samples.ndim == 1 else samples.mean(axis=1)
    return _resample(mono.astype(np.float32, copy=False), rate, sample_rate)


def _unpack(given: Mapping[str, Any]) -> tuple[Any, int]:
    for samples, rate in (("waveform", "sample_rate"), ("array", "sampling_rate")):
        if samples in given and rate in given:
            return given[samples], int(given[rate])
    raise ValueError(f"a dict of audio has the keys waveform and sample_rate, got {', '.join(map(str, given))}")


def write_wav(path: Path, samples: Samples, sample_rate: int = SAMPLE_RATE) -> None:
    """Write samples as they are, 32-bit floats."""
    with atomic_path(path) as temporary:
        soundfile.write(temporary, samples, sample_rate, subtype="FLOAT", format="WAV")


def write_flac(path: Path, samples: Int16 | Samples, sample_rate: int = SAMPLE_RATE) -> None:
    """Write a mono 16-bit FLAC, atomically; float samples are clipped to [-1, 1]."""
    if samples.ndim != 1 or len(samples) == 0:
        raise ValueError(f"{path}: cannot write samples of shape {samples.shape}, only (n_samples,)")
    with atomic_path(path) as temporary:
        try:
            soundfile.write(
                temporary,
                _as_int16(path, samples),
                sample_rate,
                format="FLAC",
                subtype="PCM_16",
                compression_level=FLAC_LEVEL,
            )
        except soundfile.SoundFileError as error:
            # libsndfile does not say why; usually the disk is full.
            full = shutil.disk_usage(path.parent).free < samples.nbytes
            raise OSError(f"{path}: cannot be written ({'no space left on device' if full else error})") from None


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    if not is_file(path):
        raise FormatError(path, None, "no such audio file")
    try:
        facts = path.stat()
        if fault := _find_fault(path, facts.st_size, facts.st_mtime_ns, facts.st_ino):
            raise FormatError(path, None, fault)
        file = _open_decoder(path)
    except OSError as error:
        raise FormatError(path, None, f"cannot be read ({error.strerror or error})") from None
    with file:
        if file.format not in COMPLETE_FORMATS:
            raise FormatError(path, None, f"sortk does not read {file.format} files; convert it: ffmpeg -i IN OUT.wav")
        if file.frames <= 0:
            raise FormatError(path, None, "holds no samples")
        if file.frames == UNKNOWN_LENGTH:
            raise FormatError(path, None, "its header does not say how long it is; write it again, e.g. with `flac`")
        if file.samplerate not in SAMPLE_RATES:
            raise FormatError(path, None, f"its header gives a sample rate of {file.samplerate} Hz")
        yield file


def _open_decoder(path: Path) -> Any:
    try:
        return soundfile.SoundFile(os.fsencode(path))  # as text, it would not open names that are not UTF-8
    except (soundfile.SoundFileError, TypeError):  # TypeError: a `.raw` file, which has no header
        with path.open("rb") as file:
            kind = containers.recognize(file.read(containers.HEAD_BYTES))
        if kind not in containers.FFMPEG_KINDS:
            raise FormatError(path, None, "not an audio file, or one that libsndfile cannot read") from None
        return soundfile.SoundFile(containers.decode(path, kind))


@lru_cache(maxsize=1 << 16)
def _find_fault(path: Path, _n_bytes: int, _mtime_ns: int, _inode: int) -> str:
    """Return what is wrong with a file's headers; the other arguments are those of its content, for the cache."""
    return containers.find_fault(path)


@lru_cache(maxsize=1 << 16)
def _find_joined(path: Path, _n_bytes: int, _mtime_ns: int, _inode: int) -> str:
    return containers.find_joined(path)


def _find_channel(path: Path, file: Any, wanted: int | None) -> int | None:
    """Return the channel that is read, counted from 0; None for the average of all. A file with a second recording is
    refused."""
    facts = path.stat()
    key = path, facts.st_size, facts.st_mtime_ns, facts.st_ino
    if joined := _find_joined(*key):
        raise FormatError(path, None, joined)
    if wanted is not None:
        if not 1 <= wanted <= file.channels:
            raise FormatError(path, None, f"there is no channel {wanted}: the file has {file.channels}")
        return wanted - 1
    if file.channels == 1 or not file.seekable():
        return None
    if key not in _CHANNELS:
        _CHANNELS[key] = _probe_channels(path, file)
    return _CHANNELS[key]


_CHANNELS: dict[tuple[Path, int, int, int], int | None] = {}


def _probe_channels(path: Path, file: Any) -> int | None:
    """Return the loudest channel if the average of all is much softer than they are, as of stereo in antiphase."""
    n_probe = round(PROBE_SECONDS * file.samplerate)
    mixed, single = 0.0, np.zeros(file.channels)
    for start in np.linspace(0, max(0, file.frames - n_probe), N_PROBES).astype(int).tolist():
        try:
            file.seek(start)
            part = file.read(n_probe, dtype="float64", always_2d=True)
        except soundfile.SoundFileError:
            continue  # reading the samples says what is wrong
        if not len(part) or not np.abs(part).max() <= MAX_SAMPLE:
            continue  # as above
        part -= part.mean(axis=0)  # an offset is not heard
        mixed += float((part.mean(axis=1) ** 2).sum())
        single += (part**2).sum(axis=0)
    if not np.isfinite(single).all() or mixed >= CANCELLED * single.mean():
        return None
    loudest = int(single.argmax())
    log.warning("%s: its channels cancel each other; only channel %d is used", path, loudest + 1)
    return loudest


def _seek_window(path: Path, file: Any, offset: float, duration: float | None) -> int:
    """Seek the start of the window; return how many samples are in it."""
    if not (0 <= offset < math.inf) or not (duration is None or 0 < duration < math.inf):
        raise ValueError(f"{path}: no window of {duration} s at {offset} s")
    first = round(offset * file.samplerate)
    n_left: int = file.frames - first
    n_wanted = n_left if duration is None else min(n_left, round(duration * file.samplerate))
    if n_wanted <= 0:
        raise FormatError(path, None, f"has no samples at {offset} s: it ends at {file.frames / file.samplerate} s")
    try:
        if file.seekable():
            file.seek(first)
        else:  # such as GSM 6.10
            for start in range(0, first, DECODE_VALUES):
                file.read(min(DECODE_VALUES, first - start), dtype="float32")
    except soundfile.SoundFileError as error:
        raise FormatError(path, None, f"damaged or cut off: cannot be decoded ({error})") from None
    return n_wanted


def _decode(path: Path, file: Any, n_samples: int, channel: int | None) -> Samples:
    """Return the next samples as they are in the file: one channel, or the average of all."""
    try:
        mono: Samples = np.empty(n_samples, np.float32)
        n_read, n_block = 0, max(1, DECODE_VALUES // file.channels)
        while n_read < n_samples:
            block: Samples = file.read(min(n_block, n_samples - n_read), dtype="float32", always_2d=True)
            if len(block) == 0:
                raise FormatError(path, None, f"cut off: {n_samples} samples are announced, {n_read} found")
            peak = float(np.abs(block).max())
            if not math.isfinite(peak):
                raise FormatError(path, None, "has samples that are not finite numbers")
            if peak > MAX_SAMPLE:
                reason = f"has samples up to {peak:g}, but those of a float file must be between -1 and 1; scale them"
                raise FormatError(path, None, reason)
            part = mono[n_read : n_read + len(block)]
            if channel is not None or file.channels == 1:
                part[:] = block[:, channel or 0]
            else:
                part[:] = (block / file.channels).sum(axis=1)
            n_read += len(block)
    except (soundfile.SoundFileError, MemoryError) as error:
        raise FormatError(path, None, f"damaged or cut off: cannot be decoded ({error})") from None
    return mono


def _resample(samples: Samples, rate: int, new_rate: int) -> Samples:
    if rate != new_rate:
        from scipy.signal import resample_poly  # noqa: PLC0415  (takes a second to import, and few files need it)

        factor = math.gcd(rate, new_rate)
        samples = resample_poly(samples, new_rate // factor, rate // factor).astype(np.float32, copy=False)
    return np.clip(samples, -1.0, 1.0)  # float files, and filters, can overshoot


def _as_int16(path: Path, samples: Int16 | Samples) -> Int16:
    if samples.dtype == np.int16:
        return samples.astype(np.int16, copy=False)
    if not np.issubdtype(samples.dtype, np.floating):
        raise ValueError(f"{path}: cannot write samples of type {samples.dtype}, only int16 and float")
    if not np.isfinite(samples).all():
        raise ValueError(f"{path}: cannot write samples that are not finite numbers")
    scaled: Samples = np.clip(np.rint(samples * np.float32(32768)), -32768, 32767)
    return scaled.astype(np.int16)
