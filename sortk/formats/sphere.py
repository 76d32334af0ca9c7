"""NIST SPHERE (.sph), the audio files of the LDC: why one of them cannot be read. Samples are the business of audio.py.

    NIST_1A
       1024
    channel_count -i 2
    sample_coding -s26 ulaw,embedded-shorten-v2.00
    end_head

The header is text, padded to the size in its second line. libsndfile reads plain samples (pcm, ulaw, alaw), but not
those that are packed, as most of the LDC's telephone speech is.
"""

from __future__ import annotations

import re
from pathlib import Path

MAGIC = b"NIST_1A"
HEADER_BYTES = 4096  # more than any header; most have 1024

_CODING = re.compile(rb"^sample_coding -s\d+ ([^\n]*)$", re.MULTILINE)
_NUMBER = re.compile(rb"^(channel_count|sample_count|sample_n_bytes) -i (\d{1,15})\s*$", re.MULTILINE)


def find_fault(path: Path) -> str:
    """What is wrong with a SPHERE file whose samples are packed, and what to do; empty for any other file."""
    with path.open("rb") as file:
        header, _, _ = file.read(HEADER_BYTES).partition(b"end_head")
    coding = _CODING.search(header) if header.startswith(MAGIC) else None
    if coding is None or b"," not in coding[1]:
        return ""
    packing = coding[1].decode("ascii", "replace").strip()
    return (
        f"its samples are packed ({packing}), which libsndfile cannot read; "
        f"unpack it: sph2pipe -p -f wav {path.name} {path.stem}.wav"
    )


def count_bytes(head: bytes, n_bytes: int) -> tuple[int, int]:
    """Return how many bytes of samples the header announces, and how many follow it; 0, 0 if it announces none."""
    lines, _, _ = head.partition(b"end_head")
    numbers = {name: int(value) for name, value in _NUMBER.findall(lines)}
    first_lines = head.split(b"\n", 2)
    if len(numbers) < 3 or len(first_lines) < 3 or not first_lines[1].strip().isdigit():
        return 0, 0
    announced = numbers[b"channel_count"] * numbers[b"sample_count"] * numbers[b"sample_n_bytes"]
    return announced, min(announced, n_bytes - int(first_lines[1]))  # some are padded behind their samples
