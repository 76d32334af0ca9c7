"""Encodes sound and posteriors as text for a page: Ogg Vorbis, a waveform of bytes, probabilities of four bits."""

from __future__ import annotations

import base64
import io
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile

from sortk.formats import audio
from sortk.records import SAMPLE_RATE, Session

VORBIS_LEVEL = 1.0
"""Of libsndfile, 0 to 1. 30 s of conversation: 92 kB (25 kbit/s: speech is clear) in 0.1 s. Opus: 70 kB, but 1.5 s;
MP3: 78 kB in 0.3 s, but browsers seek in it only approximately, so the cursor would be wrong."""
BLOCK_SAMPLES = 60 * SAMPLE_RATE  # libsndfile's Vorbis encoder fails on much more at once

MIRRORED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))  # each byte, its bits in the other order

PEAK_SAMPLES = SAMPLE_RATE // 25  # that one peak of a waveform stands for,
MAX_PEAKS = 60_000  # or more of them in a recording of more than 40 minutes


def read_sound(session: Session, at_most_seconds: float) -> npt.NDArray[np.float32]:
    """Return the beginning of a session, mono."""
    seconds = at_most_seconds if session.duration is None else min(session.duration, at_most_seconds)
    return audio.read(session.audio_path, session.offset, seconds, SAMPLE_RATE, session.channel)


def encode_sound(samples: npt.NDArray[np.float32]) -> str:
    """Return Ogg Vorbis, which every current browser plays, as base64."""
    memory = io.BytesIO()
    settings = {"format": "OGG", "subtype": "VORBIS", "compression_level": VORBIS_LEVEL}
    with soundfile.SoundFile(memory, "w", SAMPLE_RATE, channels=1, **settings) as file:
        for start in range(0, len(samples), BLOCK_SAMPLES):
            file.write(samples[start : start + BLOCK_SAMPLES])
    return _as_text(renumber_stream(memory.getvalue()))


def renumber_stream(ogg: bytes) -> bytes:
    """Replace the random number of an Ogg stream by 0, so that equal sound gives equal bytes (RFC 3533)."""
    pages, start = [], 0
    while start < len(ogg):
        n_parts = ogg[start + 26]
        end = start + 27 + n_parts + sum(ogg[start + 27 : start + 27 + n_parts])
        head, tail = ogg[start : start + 14] + bytes(4) + ogg[start + 18 : start + 22], ogg[start + 26 : end]
        pages += [head, _checksum(head + bytes(4) + tail), tail]
        start = end
    return b"".join(pages)


def _checksum(page: bytes) -> bytes:
    """Return Ogg's CRC-32: zlib's with the bits of all bytes in the other order, and no inversions."""
    mirrored = zlib.crc32(page.translate(MIRRORED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{mirrored:032b}"[::-1], 2).to_bytes(4, "little")


def encode_waveform(session: Session) -> dict[str, Any]:
    """Return the waveform of a session: `peaks`, a byte each, as base64, and `peak_seconds`, the time of each."""
    window = session.audio_path, session.offset, session.duration, SAMPLE_RATE, session.channel
    parts = [find_peaks(block) for block in audio.read_blocks(*window)]
    peaks = np.concatenate(parts) if parts else np.zeros(1, np.float32)
    n_merged = -(-len(peaks) // MAX_PEAKS)
    peaks = np.maximum.reduceat(peaks, np.arange(0, len(peaks), n_merged))
    levels = np.round(255 * peaks / max(float(peaks.max()), 1e-6)).astype(np.uint8)
    return {"peaks": _as_text(levels.tobytes()), "peak_seconds": n_merged * PEAK_SAMPLES / SAMPLE_RATE}


def find_peaks(samples: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the largest amplitude of each PEAK_SAMPLES samples."""
    starts = np.arange(0, len(samples), PEAK_SAMPLES)
    return np.maximum.reduceat(np.abs(samples), starts) if len(samples) else np.zeros(0, np.float32)


def encode_posteriors(probs: npt.NDArray[np.float32]) -> str:
    """Return (frames, speakers) in fifteenths, two to a byte, frame by frame, as base64."""
    levels = np.clip(np.round(probs.astype(np.float32) * 15), 0, 15).astype(np.uint8).reshape(-1)
    if len(levels) % 2:
        levels = np.append(levels, np.uint8(0))
    return _as_text((levels[::2] << 4 | levels[1::2]).tobytes())


def _as_text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
