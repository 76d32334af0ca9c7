"""Sound and posteriors as small text for a page: Ogg Vorbis, a waveform of bytes, probabilities of four bits."""

from __future__ import annotations

import base64
import io
import zlib

import numpy as np
import numpy.typing as npt
import soundfile

from sortk.formats import audio
from sortk.records import SAMPLE_RATE, Session

VORBIS_LEVEL = 1.0
"""Of libsndfile, 0 to 1. 30 s of conversation: 92 kB (25 kbit/s: speech is clear) in 0.1 s. Opus: 70 kB, but 1.5 s;
MP3: 78 kB in 0.3 s, but browsers seek in it only roughly, and the cursor would lie."""
BLOCK_SAMPLES = 60 * SAMPLE_RATE  # libsndfile's Vorbis encoder fails on much more at once

MIRRORED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))  # each byte, its bits in the other order

PEAKS_PER_SECOND = 25
MAX_PEAKS = 6000  # of a long recording; no screen has more points


def read_sound(session: Session, at_most_seconds: float) -> npt.NDArray[np.float32]:
    """The beginning of a session, mono."""
    seconds = at_most_seconds if session.duration is None else min(session.duration, at_most_seconds)
    return audio.read(session.audio_path, session.offset, seconds, SAMPLE_RATE)


def encode_sound(samples: npt.NDArray[np.float32]) -> str:
    """Ogg Vorbis, which every current browser plays, as base64."""
    memory = io.BytesIO()
    settings = {"format": "OGG", "subtype": "VORBIS", "compression_level": VORBIS_LEVEL}
    with soundfile.SoundFile(memory, "w", SAMPLE_RATE, channels=1, **settings) as file:
        for start in range(0, len(samples), BLOCK_SAMPLES):
            file.write(samples[start : start + BLOCK_SAMPLES])
    return _as_text(renumber_stream(memory.getvalue()))


def renumber_stream(ogg: bytes) -> bytes:
    """The same with 0 as its stream's number, which is random: equal sound shall give equal bytes (RFC 3533)."""
    pages, start = [], 0
    while start < len(ogg):
        n_parts = ogg[start + 26]
        end = start + 27 + n_parts + sum(ogg[start + 27 : start + 27 + n_parts])
        head, tail = ogg[start : start + 14] + bytes(4) + ogg[start + 18 : start + 22], ogg[start + 26 : end]
        pages += [head, _checksum(head + bytes(4) + tail), tail]
        start = end
    return b"".join(pages)


def _checksum(page: bytes) -> bytes:
    """Ogg's CRC-32 is zlib's with the bits of all bytes in the other order, and no inversions."""
    mirrored = zlib.crc32(page.translate(MIRRORED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{mirrored:032b}"[::-1], 2).to_bytes(4, "little")


def encode_peaks(samples: npt.NDArray[np.float32]) -> str:
    """The largest amplitude of each stretch, relative to the largest of all: a byte each, as base64."""
    n_peaks = max(1, min(MAX_PEAKS, round(len(samples) / SAMPLE_RATE * PEAKS_PER_SECOND)))
    starts = np.linspace(0, len(samples), n_peaks, endpoint=False).astype(int)
    peaks = np.maximum.reduceat(np.abs(samples), starts)
    return _as_text(np.round(255 * peaks / max(float(peaks.max()), 1e-6)).astype(np.uint8).tobytes())


def encode_posteriors(probs: npt.NDArray[np.float32]) -> str:
    """(frames, speakers) in sixteenths, two to a byte, frame by frame, as base64."""
    levels = np.clip(np.round(probs.astype(np.float32) * 15), 0, 15).astype(np.uint8).reshape(-1)
    if len(levels) % 2:
        levels = np.append(levels, np.uint8(0))
    return _as_text((levels[::2] << 4 | levels[1::2]).tobytes())


def _as_text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
