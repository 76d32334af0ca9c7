"""Posteriors of a diarizer: <session>.npy, an array (frames, speakers) of the probability that each speaker talks.

A frame is 80 ms long. In a folder of posteriors of a model with other frames, frames.json says so:

    {"frame_seconds": 0.01}
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sortk.formats.files import FormatError, atomic_path, atomic_text, check_file_name, read_lines
from sortk.formats.objects import Entry, decode
from sortk.records import FRAME_SECONDS, Session
from sortk.spans import Span, merge, to_seconds, to_us

Probs = npt.NDArray[np.float32]
"""Probabilities of shape (frames, speakers)."""

FRAMES_FILE = "frames.json"
EXTRA_FRAMES = 3  # by which posteriors may be longer or shorter than their session: diarizers pad or drop the last one


class Posteriors(NamedTuple):
    """The content of a file."""

    probs: Probs
    frame_seconds: float = FRAME_SECONDS


def path_of(folder: Path, session: Session) -> Path:
    """Return where the posteriors of a session are written."""
    return folder / f"{check_file_name(session.session_id)}.npy"


def find(folder: Path, session: Session) -> Path:
    """Return the file that belongs to a session: it has the name of the session, or of its audio."""
    for stem in (session.session_id, session.audio_path.stem):
        path = folder / f"{stem}.npy"
        if path.is_file():
            return path
    raise FileNotFoundError(f"{folder}: no posteriors of session {session.session_id} ({session.session_id}.npy)")


def write(path: Path, probs: Probs, frame_seconds: float = FRAME_SECONDS) -> None:
    """Write (frames, speakers) as a NumPy file of half precision, which resolves probabilities to 0.0005."""
    known = read_frame_seconds(path.parent)
    if frame_seconds != known:
        if known != FRAME_SECONDS or any(path.parent.glob("*.npy")):
            raise ValueError(
                f"{path.parent}: has posteriors with frames of {known:g} s; write {frame_seconds:g} s elsewhere"
            )
        with atomic_text(path.parent / FRAMES_FILE) as text:
            text.write(json.dumps({"frame_seconds": frame_seconds}) + "\n")
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.save(file, probs.astype(np.float16))


def read(path: Path) -> Posteriors:
    """Return the posteriors of a file; FormatError for anything else."""
    try:
        probs = np.load(path, allow_pickle=False)
    except Exception as error:  # on arbitrary bytes the reader can fail in any way
        raise FormatError(path, None, f"not a NumPy array ({error})") from None
    if not isinstance(probs, np.ndarray) or probs.ndim != 2 or not np.issubdtype(probs.dtype, np.floating):
        raise FormatError(path, None, "posteriors must be an array of numbers, frames x speakers")
    if not ((probs >= 0) & (probs <= 1)).all():
        raise FormatError(path, None, "has values that are not probabilities")
    return Posteriors(probs.astype(np.float32), read_frame_seconds(path.parent))


def read_frame_seconds(folder: Path) -> float:
    """Return how long a frame of the posteriors in a folder is."""
    path = folder / FRAMES_FILE
    if not path.is_file():
        return FRAME_SECONDS
    entry = Entry.of(decode("\n".join(line for _, line in read_lines(path)), path, None), path, None)
    seconds = entry.need(entry.seconds, "frame_seconds")
    if seconds <= 0:
        raise FormatError(path, None, f"frame_seconds must be more than 0, got {seconds}")
    return seconds


def read_session(folder: Path, session: Session) -> Posteriors:
    """Return the posteriors of a session; if it is a window and they are of the recording, those of the window."""
    path = find(folder, session)
    found = read(path)
    if session.duration is None:
        return found
    span = to_us(session.offset), to_us(session.offset + session.duration)
    if find_first_frame(path, found, span) == span[0]:
        return found
    first, n_frames = (round(seconds / found.frame_seconds) for seconds in (session.offset, session.duration))
    return found._replace(probs=found.probs[first : first + n_frames])


def find_first_frame(path: Path, found: Posteriors, span: Span) -> int:
    """Return where in the audio the posteriors of a session start, in microseconds.

    They cover the session or, if that is a part of the audio, perhaps all of the audio; their number decides.
    """
    start, end = span
    n_frames, frame_us = len(found.probs), to_us(found.frame_seconds)
    if abs(n_frames * frame_us - (end - start)) <= EXTRA_FRAMES * frame_us:
        return start
    if n_frames * frame_us >= end - EXTRA_FRAMES * frame_us and start > 0:
        return 0
    covered, wanted = to_seconds(n_frames * frame_us), to_seconds(end - start)
    raise FormatError(path, None, f"{n_frames} frames cover {covered:.2f} s, but the session lasts {wanted:.2f} s")


def find_runs(active: npt.NDArray[np.bool_]) -> tuple[Sequence[int], Sequence[int]]:
    """Return the first frame of each run of true frames, and the frame after its last one."""
    steps = np.diff(active.astype(np.int8), prepend=0, append=0)
    return np.flatnonzero(steps > 0).tolist(), np.flatnonzero(steps < 0).tolist()


def find_active_spans(
    probs: Probs, threshold: float, frame_seconds: float = FRAME_SECONDS, start: int = 0, extra_frames: int = 0
) -> list[list[Span]]:
    """Return, for each speaker, where the posterior is above the threshold, in microseconds.

    `start` is where the first frame begins. Each span is wider by `extra_frames` on both sides.
    """
    frame_us = to_us(frame_seconds)
    columns = []
    for column in probs.T:
        runs = zip(*find_runs(column > threshold), strict=True)
        wider = ((max(first - extra_frames, 0), stop + extra_frames) for first, stop in runs)
        columns.append(merge((start + first * frame_us, start + stop * frame_us) for first, stop in wider))
    return columns
