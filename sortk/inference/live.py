"""A recording while it is made: raw samples in, segments out as soon as nothing to come can change them.

Speech is settled by silence. Postprocessing joins what padding and the least duration of a gap bring together, and
nothing that is further apart; so behind a silence longer than these, all that came before is final. Each speaker's
posteriors are kept from the last such silence on, and are cut there. The segments are those of the complete recording,
in their own order: when they become final, not when they start.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import torch

from sortk.formats.containers import recognize
from sortk.formats.posteriors import Probs, find_runs
from sortk.formats.postprocess import Postprocess
from sortk.inference.diarize import Diarizer
from sortk.inference.postprocess import SILENCE, UNIT_SECONDS, PosteriorRows, find_all_segments
from sortk.records import FRAME_SECONDS, SAMPLE_RATE, Segment

BYTES_PER_SAMPLE = 2
HEAD_BYTES = 2048  # in which the kind of a file, and the samples of a WAV file, are looked for: 64 ms
PCM_ADVICE = "give the file itself, or samples: ffmpeg -i FILE -f s16le -ar 16000 -ac 1 - | sortk ... -"
READ_BYTES = 1 << 16  # at most so many at a time: two seconds


def diarize_pcm(diarizer: Diarizer, file: BinaryIO, session_id: str = "stdin") -> Iterator[Segment]:
    """Yield the segments in raw samples (signed 16 bits, little-endian, 16 kHz, mono), each as soon as it is final."""
    stream = diarizer.stream()
    settled = SettledSegments(session_id, diarizer.options.postprocess, diarizer.frame_seconds, diarizer.speaker_names)
    for samples in read_pcm(file):
        probs = stream.push(torch.from_numpy(samples)[None])
        yield from settled.push(diarizer.limit_speakers(probs[0].float().cpu().numpy()))
    yield from settled.push(diarizer.limit_speakers(stream.finish()[0].float().cpu().numpy()))
    yield from settled.finish()


def read_pcm(file: BinaryIO) -> Iterator[npt.NDArray[np.float32]]:
    """Yield samples as soon as they arrive; half a sample at the end is dropped.

    The header of a WAV file with samples of this kind, as `arecord` writes it, is skipped; any other kind of audio file
    is a ValueError.
    """
    read = getattr(file, "read1", file.read)  # a pipe's `read` would wait until it has all bytes
    head = b""
    while len(head) < HEAD_BYTES and (piece := read(HEAD_BYTES - len(head))):
        head += piece
    kind = recognize(head)
    if kind == "WAV":
        head = head[_find_samples(head) :]
    elif kind:
        raise ValueError(f"standard input is an audio file ({kind}), not raw samples; {PCM_ADVICE}")
    rest = b""
    for piece in itertools.chain([head], iter(lambda: read(READ_BYTES), b"")):
        known = rest + piece
        n_whole = len(known) // BYTES_PER_SAMPLE * BYTES_PER_SAMPLE
        if n_whole:
            yield np.frombuffer(known[:n_whole], "<i2").astype(np.float32) / np.float32(32768)
        rest = known[n_whole:]


def _find_samples(head: bytes) -> int:
    """Return where the samples of a WAV file begin; ValueError if they are not 16 bits, 16 kHz, mono."""
    place, is_right = 12, False
    while place + 8 <= len(head):
        name, size = struct.unpack("<4sI", head[place : place + 8])
        if name == b"fmt ":
            kind, channels, rate, _, _, bits = struct.unpack("<HHIIHH", head[place + 8 : place + 24].ljust(16, b"\0"))
            is_right = kind in (1, 0xFFFE) and (channels, rate, bits) == (1, SAMPLE_RATE, 16)
        if name == b"data" and is_right:
            return place + 8
        place += 8 + size + size % 2
    raise ValueError(f"standard input is a WAV file of another kind than 16 bits, 16 kHz, mono; {PCM_ADVICE}")


class SettledSegments:
    """Posteriors in, a piece at a time; final segments out."""

    def __init__(
        self,
        session_id: str,
        options: Postprocess,
        frame_seconds: float = FRAME_SECONDS,
        names: Sequence[str] = (),  # of the speakers; without them speaker_0 is the first, and so on
    ) -> None:
        self._session_id, self._options, self._frame_seconds, self._names = session_id, options, frame_seconds, names
        joined_seconds = max(options.pad_onset, 0) + max(options.pad_offset, 0) + options.min_duration_off
        self._n_settling = int(joined_seconds / frame_seconds) + 2  # frames of silence that nothing bridges
        self._speakers: list[_Speaker] = []

    def push(self, probs: Probs) -> list[Segment]:
        """(frames, speakers) that follow on those before -> the segments that are final now."""
        self._speakers = self._speakers or [_Speaker() for _ in range(probs.shape[1])]
        found = []
        for index, (speaker, column) in enumerate(zip(self._speakers, probs.T, strict=True)):
            speaker.probs = np.concatenate([speaker.probs, column])
            found += self._settle(index, speaker.end_of_silence(self._options, self._n_settling))
        return found

    def finish(self) -> list[Segment]:
        """Return the remaining segments: the recording has ended."""
        return [
            segment
            for index, speaker in enumerate(self._speakers)
            for segment in self._settle(index, len(speaker.probs))
        ]

    def _settle(self, index: int, n_frames: int) -> list[Segment]:
        speaker = self._speakers[index]
        settled, speaker.probs = speaker.probs[:n_frames], speaker.probs[n_frames:]
        first, speaker.n_settled = speaker.n_settled, speaker.n_settled + n_frames
        if n_frames == 0:
            return []
        # One row that begins where the settled frames are in the recording: times are rounded as in the complete one.
        silence = np.full(1, SILENCE, np.float32)
        rows = PosteriorRows(
            values=np.concatenate([silence, settled, silence]),
            first_frame=np.array([1 - first, n_frames + 2]),
            session=np.zeros(1, np.int64),
            speaker=np.full(1, index),
            n_units=round(self._frame_seconds / UNIT_SECONDS),
        )
        found = find_all_segments(rows, self._options)
        times = zip(found.start.tolist(), found.end.tolist(), strict=True)
        name = self._names[index] if index < len(self._names) else f"speaker_{index}"
        return [Segment(self._session_id, name, start, end) for start, end in times]


class _Speaker:
    """What is not settled of one speaker."""

    def __init__(self) -> None:
        self.probs = np.zeros(0, np.float32)
        self.n_settled = 0  # frames before

    def end_of_silence(self, options: Postprocess, n_settling: int) -> int:
        """Return where the last silence of at least `n_settling` frames ends; 0 if there is none."""
        silent = (self.probs < np.float32(options.offset)) & ~(self.probs > np.float32(options.onset))
        runs = zip(*find_runs(silent), strict=True)
        return max((stop for first, stop in runs if stop - first >= n_settling), default=0)
