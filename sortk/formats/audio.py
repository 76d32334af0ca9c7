"""Audio files, through libsndfile: mono float samples in, 16-bit FLAC out. Nobody else touches audio files."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile

from sortk.formats import sphere
from sortk.formats.files import FormatError, atomic_path, is_file
from sortk.records import SAMPLE_RATE

Samples = npt.NDArray[np.float32]

FLAC_LEVEL = 5 / 8
"""flac's default level. 90 s of a meeting, one core: level 0 4450 x real time, 844 kB; 5 4170 x, 804 kB;
6 3450 x, 802 kB; 8 2360 x, 798 kB."""

UNKNOWN_LENGTH = 2**63 - 1  # libsndfile's frame count of a FLAC stream whose header leaves the length open
FILTER_ZEROS = 11  # samples of the lower rate to either side that resampling looks at (scipy's filter: 10)
BLOCK_SECONDS = 60.0
SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".aif", ".au", ".caf", ".sph", ".w64", ".rf64")
"""What is audio in a folder of all kinds of files; a file that is named itself may have any suffix."""

SAMPLE_RATES = range(1_000, 400_000)  # outside, the header is damaged, and a resampling filter would fill the memory


@dataclass(frozen=True, slots=True)
class AudioInfo:
    """What the header says."""

    seconds: float
    sample_rate: int
    channels: int
    n_samples: int
    """Per channel."""


def info(path: Path) -> AudioInfo:
    """The header of a file; FormatError if it is missing, not audio, or holds no samples."""
    with _open(path) as file:
        return AudioInfo(file.frames / file.samplerate, file.samplerate, file.channels, file.frames)


def read(path: Path, offset: float = 0.0, duration: float | None = None, sample_rate: int = SAMPLE_RATE) -> Samples:
    """Samples in [-1, 1], shape (n_samples,), channels averaged, resampled if the file has another rate.

    A window that reaches over the end of the file ends there; one that starts behind the end is a FormatError, as
    is every file that libsndfile cannot decode to the length that its header promises.
    """
    with _open(path) as file:
        mono = _decode(path, file, _seek_window(path, file, offset, duration))
        return _resample(mono, file.samplerate, sample_rate)


def read_blocks(
    path: Path, offset: float = 0.0, duration: float | None = None, sample_rate: int = SAMPLE_RATE
) -> Iterator[Samples]:
    """As `read`, but a minute at a time, so that memory does not grow with the file."""
    with _open(path) as file:
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
            known = np.concatenate([known, _decode(path, file, n_more)])
            resampled = _resample(known, file.samplerate, sample_rate)
            yield resampled[(start - begin) * up // down : math.ceil((stop - begin) * up / down)]
            known, begin = known[stop - n_around - begin :], stop - n_around


def from_array(samples: npt.NDArray[Any], rate: int, sample_rate: int = SAMPLE_RATE) -> Samples:
    """What `read` would give of a file with these samples: (n_samples,) or (n_samples, channels), float or int16."""
    if samples.dtype == np.int16:
        samples = samples.astype(np.float32) / 32768
    if not np.issubdtype(samples.dtype, np.floating) or samples.ndim not in (1, 2) or not samples.size:
        raise ValueError(f"samples are float or int16 numbers, (samples,) or (samples, channels), not {samples.shape}")
    if not np.isfinite(samples).all():
        raise ValueError("the samples hold values that are not finite numbers")
    if rate not in SAMPLE_RATES:
        raise ValueError(f"there is no audio with a sample rate of {rate} Hz")
    mono = samples if samples.ndim == 1 else samples.mean(axis=1)
    return _resample(mono.astype(np.float32, copy=False), rate, sample_rate)


def write_flac(path: Path, samples: npt.NDArray[np.int16] | Samples, sample_rate: int = SAMPLE_RATE) -> None:
    """A mono 16-bit FLAC that appears whole or not at all; float samples are clipped to [-1, 1]."""
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
            # libsndfile does not tell why; a disk without room for the samples is the usual reason.
            full = shutil.disk_usage(path.parent).free < samples.nbytes
            raise OSError(f"{path}: cannot be written ({'no space left on device' if full else error})") from None


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    if not is_file(path):
        raise FormatError(path, None, "no such audio file")
    try:
        file = soundfile.SoundFile(path)
    except (soundfile.SoundFileError, TypeError):  # TypeError: a `.raw` file, which has no header
        reason = _find_fault(path) or "not an audio file, or one that libsndfile cannot read"
        raise FormatError(path, None, reason) from None
    with file:
        if file.frames <= 0:
            raise FormatError(path, None, "holds no samples")
        if file.frames == UNKNOWN_LENGTH:
            raise FormatError(path, None, "its header does not say how long it is; write it again, e.g. with `flac`")
        if file.samplerate not in SAMPLE_RATES:
            raise FormatError(path, None, f"its header gives a sample rate of {file.samplerate} Hz")
        yield file


def _find_fault(path: Path) -> str:
    try:
        return sphere.find_fault(path)
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def _seek_window(path: Path, file: Any, offset: float, duration: float | None) -> int:
    """Goes to the start of the window; how many samples are in it."""
    if not (0 <= offset < math.inf) or not (duration is None or 0 < duration < math.inf):
        raise ValueError(f"{path}: no window of {duration} s at {offset} s")
    first = round(offset * file.samplerate)
    n_left: int = file.frames - first
    n_wanted = n_left if duration is None else min(n_left, round(duration * file.samplerate))
    if n_wanted <= 0:
        raise FormatError(path, None, f"has no samples at {offset} s: it ends at {file.frames / file.samplerate} s")
    try:
        file.seek(first)
    except soundfile.SoundFileError as error:
        raise FormatError(path, None, f"damaged or cut off: cannot be decoded ({error})") from None
    return n_wanted


def _decode(path: Path, file: Any, n_samples: int) -> Samples:
    """The next samples as they are in the file, channels averaged."""
    first = file.tell()
    try:
        channels: Samples = file.read(n_samples, dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, MemoryError) as error:
        raise FormatError(path, None, f"damaged or cut off: cannot be decoded ({error})") from None
    if len(channels) < n_samples:
        reason = f"{n_samples} samples are announced from {first / file.samplerate} s, {len(channels)} come"
        raise FormatError(path, None, f"cut off: {reason}")
    if not np.isfinite(channels).all():
        raise FormatError(path, None, "holds samples that are not finite numbers")
    return channels[:, 0] if channels.shape[1] == 1 else (channels / channels.shape[1]).sum(axis=1)


def _resample(samples: Samples, rate: int, new_rate: int) -> Samples:
    if rate != new_rate:
        from scipy.signal import resample_poly  # noqa: PLC0415  (takes a second to import, and few files need it)

        factor = math.gcd(rate, new_rate)
        samples = resample_poly(samples, new_rate // factor, rate // factor).astype(np.float32, copy=False)
    return np.clip(samples, -1.0, 1.0)  # float files, and filters, can overshoot


def _as_int16(path: Path, samples: npt.NDArray[np.int16] | Samples) -> npt.NDArray[np.int16]:
    if samples.dtype == np.int16:
        return samples.astype(np.int16, copy=False)
    if not np.issubdtype(samples.dtype, np.floating):
        raise ValueError(f"{path}: cannot write samples of type {samples.dtype}, only int16 and float")
    if not np.isfinite(samples).all():
        raise ValueError(f"{path}: cannot write samples that are not finite numbers")
    scaled: Samples = np.clip(np.rint(samples * np.float32(32768)), -32768, 32767)
    return scaled.astype(np.int16)
