"""NIST SPHERE files, written by hand: a text header of 1024 bytes, then the samples."""

from __future__ import annotations

from pathlib import Path

BYTES_PER_SAMPLE = {"pcm": 2, "ulaw": 1}
BYTE_FORMATS = {"pcm": "-s2 01", "ulaw": "-s1 1"}
ULAW_SILENCE = b"\xff"


def write_sphere(path: Path, body: bytes, coding: str = "ulaw", channels: int = 2, sample_rate: int = 8000) -> None:
    """A file whose samples, `channels` at a time, are the bytes of `body`."""
    kind = coding.partition(",")[0]
    fields = [
        "NIST_1A",
        "   1024",
        "database_id -s6 Fisher",
        f"channel_count -i {channels}",
        f"sample_count -i {len(body) // (channels * BYTES_PER_SAMPLE[kind])}",
        f"sample_rate -i {sample_rate}",
        f"sample_n_bytes -i {BYTES_PER_SAMPLE[kind]}",
        f"sample_byte_format {BYTE_FORMATS[kind]}",
        f"sample_coding -s{len(coding)} {coding}",
        "end_head",
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{field}\n" for field in fields).encode().ljust(1024) + body)


def write_call(path: Path, seconds: float, channels: int = 2) -> None:
    """A silent telephone call."""
    write_sphere(path, ULAW_SILENCE * round(seconds * 8000) * channels, channels=channels)
