"""Recordings in containers that libsndfile cannot read (m4a, mp4, mkv, webm, aac, wma, amr): decoded by ffmpeg, or by
PyAV where that is installed, into a temporary WAV file. Neither is a dependency of sortk."""

from __future__ import annotations

import importlib
import itertools
import shutil
import subprocess
import tempfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from sortk.formats.files import FormatError

SAMPLE_RATE = 16_000  # of the temporary file
MAX_CACHED_BYTES = 4 << 30  # of temporary files: a recording is decoded once, and read in windows
SUFFIXES = (".m4a", ".mp4", ".m4b", ".mov", ".3gp", ".mkv", ".mka", ".webm", ".aac", ".wma", ".amr")
KINDS = ("MP4 (m4a, mp4, mov)", "Matroska (mkv, webm)", "AAC", "WMA", "AMR")


class _Decoded:
    """The files decoded last; the temporary folder is removed when the process ends."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._files: OrderedDict[tuple[Path, int, int], Path] = OrderedDict()
        self._n_started = 0

    def find(self, path: Path, kind: str) -> Path:
        facts = path.stat()
        key = path.absolute(), facts.st_size, facts.st_mtime_ns
        if key not in self._files:
            self._folder = self._folder or tempfile.TemporaryDirectory(prefix="sortk-")
            self._n_started += 1
            target = Path(self._folder.name) / f"{self._n_started}.wav"
            _decode(path, target, kind)
            self._files[key] = target
            while len(self._files) > 1 and sum(file.stat().st_size for file in self._files.values()) > MAX_CACHED_BYTES:
                self._files.popitem(last=False)[1].unlink()
        self._files.move_to_end(key)
        return self._files[key]


_DECODED = _Decoded()


def decode(path: Path, kind: str) -> Path:
    """Return a WAV file, 16 kHz, with the first audio track of a recording; `kind` is what `recognize` says it is."""
    return _DECODED.find(path, kind)


def _decode(path: Path, target: Path, kind: str) -> None:
    if program := shutil.which("ffmpeg"):
        _run_ffmpeg(program, path, target)
        return
    try:
        av, errors = importlib.import_module("av"), importlib.import_module("av.error")
    except ImportError:
        raise FormatError(
            path,
            None,
            f"is {kind}, which libsndfile cannot read; install ffmpeg (or: pip install av), "
            f"or convert it: ffmpeg -i {path.name} {path.stem}.wav",
        ) from None
    try:
        _run_pyav(av, path, target)
    except errors.FFmpegError as error:
        raise FormatError(path, None, f"damaged or cut off: PyAV cannot decode it ({error})") from None


def _run_ffmpeg(program: str, path: Path, target: Path) -> None:
    # `file:` and the whitelist: nothing that a name or a file says makes ffmpeg open anything else.
    source = ["-protocol_whitelist", "file", "-i", f"file:{path.absolute()}", "-map", "0:a:0", "-vn"]
    wav = ["-ar", str(SAMPLE_RATE), "-c:a", "pcm_s16le", "-rf64", "auto", "-f", "wav", "-y", str(target)]
    done = subprocess.run(
        [program, "-nostdin", "-v", "error", *source, *wav], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    said = done.stderr.decode("utf-8", "replace").strip()
    if done.returncode != 0 or not target.is_file() or "partial file" in said:
        about = said.splitlines()[-1] if said else f"exit code {done.returncode}"
        raise FormatError(path, None, f"damaged or cut off, or without sound: ffmpeg cannot decode it ({about})")


def _run_pyav(av: Any, path: Path, target: Path) -> None:
    with av.open(str(path.absolute())) as container:
        if not container.streams.audio:
            raise FormatError(path, None, "holds no sound")
        stream = container.streams.audio[0]
        resampler = av.AudioResampler(format="s16", rate=SAMPLE_RATE)
        with soundfile.SoundFile(target, "w", SAMPLE_RATE, stream.channels, "PCM_16", format="RF64") as file:
            for frame in itertools.chain(container.decode(stream), [None]):  # None: what the resampler still holds
                for part in resampler.resample(frame):
                    file.write(np.asarray(part.to_ndarray()).reshape(part.samples, -1))  # (samples, channels)
