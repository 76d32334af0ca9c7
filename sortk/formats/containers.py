"""Containers of audio: what kind a file is, whether it is complete and holds one recording, and decoding with ffmpeg.

libsndfile decodes what it finds. It does not report a WAV or OGG file that was cut off, samples behind the end that a
header announces, or a second recording that was appended (`cat a.ogg b.ogg`): it reads the first part. So the sizes in
the headers are compared with the size of the file before anything is decoded.

Containers that libsndfile cannot read (m4a, mp4, mkv, webm, aac, wma, amr) are decoded into a temporary WAV file by
ffmpeg, or by PyAV where that is installed. Neither is a dependency of sortk.
"""

from __future__ import annotations

import importlib
import itertools
import logging
import mmap
import re
import shutil
import struct
import subprocess
import tempfile
from collections import OrderedDict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import soundfile

from sortk.formats.files import FormatError
from sortk.records import SAMPLE_RATE

log = logging.getLogger(__name__)

HEAD_BYTES = 4096  # more than any kind needs to be recognized
SLACK_BYTES = 64  # some writers count a header into the size of its samples
TAIL_BYTES = 4096  # of padding and unknown tags behind the samples
OPEN_LENGTH = 0x7FFFF000  # from here on a 32-bit size is that of a stream whose writer could not go back
MAX_PAGE_BYTES = 27 + 255 + 255 * 255  # of OGG
OGG_EOS = 4  # flag of a stream's last page

SPHERE_START = b"NIST_1A"

JOINED = "holds several recordings one after the other; split them, or write one file: ffmpeg -i IN OUT.wav"

_FLAC_STARTS = (b"fLaC\x00\x00\x00\x22", b"fLaC\x80\x00\x00\x22")
_OGG_START = b"OggS\x00\x02" + bytes(8)  # the first page of a stream, which begins at 0

_SPHERE_CODING = re.compile(rb"^sample_coding -s\d+ ([^\n]*)$", re.MULTILINE)
_SPHERE_NUMBER = re.compile(rb"^(channel_count|sample_count|sample_n_bytes) -i (\d{1,15})\s*$", re.MULTILINE)

_KBITS = {  # of MPEG layer 3, by version: 1, or 2 and 2.5
    True: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    False: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_RATES = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}


def recognize(head: bytes) -> str:
    """Return the kind of audio file that begins with these bytes, as people call it; empty for any other bytes."""
    if head[:4] in (b"RIFF", b"RIFX", b"RF64") and head[8:12] == b"WAVE":
        return "WAV"
    if head[4:8] == b"ftyp":
        return "MP4 (m4a, mp4, mov)"
    if head[:1] == b"\xff" and len(head) > 1 and head[1] & 0xF6 == 0xF0:
        return "AAC"
    for start, kind in (
        (b"fLaC", "FLAC"),
        (b"OggS", "OGG"),
        (b"ID3", "MP3"),
        (b"FORM", "AIFF"),
        (b".snd", "AU"),
        (b"caff", "CAF"),
        (b"riff", "W64"),
        (SPHERE_START, "SPHERE"),
        (b"\x1a\x45\xdf\xa3", "Matroska (mkv, webm)"),
        (bytes.fromhex("3026b2758e66cf11"), "WMA"),
        (b"#!AMR", "AMR"),
        (b"Creative Voice File", "VOC"),
        (b"2BIT", "AVR"),
        (b"PVF1", "PVF"),
        (b" paf", "PAF"),
        (b"MATLAB 5.0", "MAT"),
        (b"wvpk", "WavPack"),
        (b"MAC ", "Monkey's Audio"),
    ):
        if head.startswith(start):
            return kind
    n_frame = _mpeg_frame_bytes(head)
    return "MP3" if n_frame and _mpeg_frame_bytes(head[n_frame:]) else ""


def _mpeg_frame_bytes(head: bytes) -> int:
    """Return the size of the MPEG layer 3 frame that begins here; 0 if none does."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE6 != 0xE2:
        return 0
    version, kbits, rate = head[1] >> 3 & 3, head[2] >> 4, head[2] >> 2 & 3
    if version == 1 or kbits in (0, 15) or rate == 3:
        return 0
    is_first = version == 3
    return (144 if is_first else 72) * _KBITS[is_first][kbits] * 1000 // _RATES[version][rate] + (head[2] >> 1 & 1)


def find_fault(path: Path) -> str:
    """Return what is wrong with the sizes in the headers of an audio file; empty if they agree with the file."""
    with path.open("rb") as file:
        n_bytes = file.seek(0, 2)
        file.seek(0)
        head = file.read(HEAD_BYTES)
        if not head:
            return "is empty"
        kind = recognize(head)
        if kind in ("WAV", "AIFF"):
            return _chunk_fault(file, n_bytes, "<" if head[:4] in (b"RIFF", b"RF64") else ">")
        if kind == "CAF":
            return _caf_fault(file, n_bytes)
        if kind == "OGG":
            return _ogg_fault(file, n_bytes, head)
        if kind == "MP3":
            return _mp3_fault(file, n_bytes)
        if kind == "AU" and len(head) >= 12:
            start, size = struct.unpack(">II", head[4:12])
            return "" if size == 0xFFFFFFFF else _size_fault(size, n_bytes - start)
        if kind == "W64" and len(head) >= 24:
            return _size_fault(struct.unpack("<Q", head[16:24])[0], n_bytes)
        if kind == "SPHERE":
            return find_packing(path) or _sphere_fault(file, n_bytes, head)
        return ""


def find_joined(path: Path) -> str:
    """Return `JOINED` if a FLAC or OGG file holds a second recording, for which all of it is searched; else nothing."""
    with path.open("rb") as file:
        starts = {b"fLaC": _FLAC_STARTS, b"OggS": (_OGG_START,)}.get(file.read(4))
        if starts is None:
            return ""
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return JOINED if any(data.find(start, 4) >= 0 for start in starts) else ""


def _size_fault(announced: int, found: int) -> str:
    """Compare the bytes that a header announces with those that follow it."""
    if announced > found + SLACK_BYTES:
        return f"cut off: its header announces {announced} bytes, {max(found, 0)} are there"
    if found > announced + TAIL_BYTES:
        return f"its header is wrong: it announces {announced} bytes, {found} are there; write it again with ffmpeg"
    return ""


def _chunk_fault(file: BinaryIO, n_bytes: int, order: str) -> str:
    """Walk over the chunks of a RIFF, RF64 or AIFF file: those of a name and a size of 32 bits each."""
    place, long_size, samples_end = 12, None, 0
    while place + 8 <= n_bytes:
        file.seek(place)
        name, size = struct.unpack(f"{order}4sI", file.read(8))
        if samples_end and name in (b"RIFF", b"RF64", b"FORM", b"RIFX"):
            return JOINED
        if not all(0x20 <= byte < 0x7F for byte in name) or (samples_end and size > n_bytes - place):
            break
        if name == b"ds64":
            long_size = struct.unpack("<8xQ", file.read(16).ljust(16, b"\0"))[0]
        if name in (b"data", b"SSND"):
            if long_size is not None and size == 0xFFFFFFFF:
                size = long_size
            elif size >= OPEN_LENGTH:
                return ""
            if place + 8 + size > n_bytes + SLACK_BYTES:
                return _size_fault(size, n_bytes - place - 8)
            samples_end = place + 8 + size
        place += 8 + size + size % 2
    if not samples_end:
        return ""
    file.seek(place)
    tail = file.read(TAIL_BYTES)
    if tail.startswith((b"TAG", b"ID3", b"APETAGEX")) or not any(tail):
        return ""
    return _size_fault(place, n_bytes)


def _caf_fault(file: BinaryIO, n_bytes: int) -> str:
    place = 8
    while place + 12 <= n_bytes:
        file.seek(place)
        name, size = struct.unpack(">4sq", file.read(12))
        if name == b"caff":
            return JOINED
        if size < 0:  # open: up to the end
            return ""
        if name == b"data" and place + 12 + size > n_bytes:
            return _size_fault(size, n_bytes - place - 12)
        place += 12 + size
    return ""


def _ogg_fault(file: BinaryIO, n_bytes: int, head: bytes) -> str:
    """Look for a page that ends with the file. It should be marked as the last of its stream, but some writers do not
    mark it: a file that was cut between two pages cannot be told from theirs, so there is only a warning."""
    file.seek(max(0, n_bytes - MAX_PAGE_BYTES))
    tail = file.read()
    place = tail.rfind(b"OggS")
    while place >= 0:
        page = tail[place:]
        n_parts = page[26] if len(page) > 26 else 0
        if len(page) == 27 + n_parts + sum(page[27 : 27 + n_parts]):
            if page[14:18] != head[14:18]:
                return JOINED
            if not page[5] & OGG_EOS:
                log.warning("%s: its last page is not marked as the end; it may have been cut off", file.name)
            return ""
        place = tail.rfind(b"OggS", 0, place)
    return "cut off: its last page is missing; if this is all of it, write it again: ffmpeg -i IN OUT.wav"


def _mp3_fault(file: BinaryIO, n_bytes: int) -> str:
    """Compare the size in the header frame of LAME and others (Xing, Info), if there is one, with the file's."""
    first = _skip_tags(file, 0)
    file.seek(first)
    frame = file.read(256)
    place = max(frame.find(b"Xing"), frame.find(b"Info"))
    if place < 0 or len(frame) < place + 16:
        return ""
    flags = int.from_bytes(frame[place + 4 : place + 8], "big")
    if not flags & 2:
        return ""
    at = place + 8 + (4 if flags & 1 else 0)
    end = first + int.from_bytes(frame[at : at + 4], "big")
    behind = _skip_tags(file, end)
    file.seek(behind)
    follows = file.read(2)
    is_frame = len(follows) == 2 and follows[0] == 0xFF and follows[1] & 0xE0 == 0xE0
    return JOINED if end > first and is_frame and n_bytes - behind > TAIL_BYTES else ""


def _skip_tags(file: BinaryIO, place: int) -> int:
    """Return where the tags that begin at this place end: ID3 of both versions, and APE."""
    while True:
        file.seek(place)
        tag = file.read(32)
        if tag.startswith(b"ID3") and len(tag) >= 10:
            size = 0
            for byte in tag[6:10]:
                size = size << 7 | byte & 0x7F
            place += 10 + size
        elif tag.startswith(b"TAG"):
            place += 128
        elif tag.startswith(b"APETAGEX") and len(tag) == 32:
            place += 32 + int.from_bytes(tag[12:16], "little")
        else:
            return place


# ---------------------------------------------------------------------------------------------------------------------
# NIST SPHERE (.sph), the audio files of the LDC
#
#     NIST_1A
#        1024
#     channel_count -i 2
#     sample_coding -s26 ulaw,embedded-shorten-v2.00
#     end_head
#
# The header is text, padded to the size in its second line. libsndfile reads plain samples (pcm, ulaw, alaw), but not
# packed ones, which most of the LDC's telephone speech has.


def find_packing(path: Path) -> str:
    """Return why a SPHERE file with packed samples cannot be read, and the remedy; empty for any other file."""
    with path.open("rb") as file:
        header, _, _ = file.read(HEAD_BYTES).partition(b"end_head")
    coding = _SPHERE_CODING.search(header) if header.startswith(SPHERE_START) else None
    if coding is None or b"," not in coding[1]:
        return ""
    packing = coding[1].decode("ascii", "replace").strip()
    return (
        f"its samples are packed ({packing}), which libsndfile cannot read; "
        f"unpack it: sph2pipe -p -f wav {path.name} {path.stem}.wav"
    )


def _sphere_fault(file: BinaryIO, n_bytes: int, head: bytes) -> str:
    lines, _, _ = head.partition(b"end_head")
    numbers = {name: int(value) for name, value in _SPHERE_NUMBER.findall(lines)}
    first_lines = head.split(b"\n", 2)
    if len(numbers) < 3 or len(first_lines) < 3 or not re.fullmatch(rb"\s*\d{1,15}\s*", first_lines[1]):
        return ""
    start = int(first_lines[1])
    announced = numbers[b"channel_count"] * numbers[b"sample_count"] * numbers[b"sample_n_bytes"]
    if start + announced < n_bytes:  # some are padded behind their samples
        file.seek(start + announced)
        return JOINED if file.read(len(SPHERE_START)) == SPHERE_START else ""
    return _size_fault(announced, n_bytes - start)


# ---------------------------------------------------------------------------------------------------------------------
# What libsndfile cannot read

FFMPEG_SUFFIXES = (".m4a", ".mp4", ".m4b", ".mov", ".3gp", ".mkv", ".mka", ".webm", ".aac", ".wma", ".amr")
FFMPEG_KINDS = ("MP4 (m4a, mp4, mov)", "Matroska (mkv, webm)", "AAC", "WMA", "AMR")
NO_SOUND = "has no audio track"
MAX_CACHED_BYTES = 4 << 30  # of temporary files: a recording is decoded once, and read in windows


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
        # `file:` and the whitelist: nothing that a name or a file says makes ffmpeg open anything else.
        source = ["-protocol_whitelist", "file", "-i", f"file:{path.absolute()}", "-map", "0:a:0", "-vn"]
        wav = ["-ar", str(SAMPLE_RATE), "-c:a", "pcm_s16le", "-rf64", "auto", "-f", "wav", "-y", str(target)]
        command = [program, "-nostdin", "-v", "error", *source, *wav]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        said = done.stderr.decode("utf-8", "replace").strip()
        if "matches no streams" in said:
            raise FormatError(path, None, NO_SOUND)
        if done.returncode != 0 or not target.is_file() or "partial file" in said:
            about = said.splitlines()[-1] if said else f"exit code {done.returncode}"
            raise FormatError(path, None, f"damaged or cut off: ffmpeg cannot decode it ({about})")
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


def _run_pyav(av: Any, path: Path, target: Path) -> None:
    with av.open(str(path.absolute())) as container:
        if not container.streams.audio:
            raise FormatError(path, None, NO_SOUND)
        stream = container.streams.audio[0]
        resampler = av.AudioResampler(format="s16", rate=SAMPLE_RATE)
        with soundfile.SoundFile(target, "w", SAMPLE_RATE, stream.channels, "PCM_16", format="RF64") as file:
            for frame in itertools.chain(container.decode(stream), [None]):  # None: what the resampler still holds
                for part in resampler.resample(frame):
                    file.write(np.asarray(part.to_ndarray()).reshape(part.samples, -1))  # (samples, channels)
