"""What a trained diarizer heard: posteriors (frames x speakers) -> stretches of speech of the annotated speakers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sortk.formats.files import FormatError
from sortk.prepare.recordings import Recording, Turns
from sortk.prepare.spans import Span, clip, intersect, length, merge, to_seconds
from sortk.records import Session

FRAME_US = 80_000
MAX_DIFFERENCE_US = 3 * FRAME_US  # between a session and its posteriors: diarizers pad, or leave out, a last frame


def find_posteriors(session: Session, folder: Path) -> Path:
    """The file that belongs to a session: it has the name of the session, or of its audio."""
    for stem in (session.session_id, session.audio_path.stem):
        path = folder / f"{stem}.npy"
        if path.is_file():
            return path
    raise FileNotFoundError(f"{folder}: no posteriors of session {session.session_id} ({session.session_id}.npy)")


def read_posteriors(path: Path) -> npt.NDArray[np.float32]:
    """Probabilities of shape (frames, speakers); FormatError for anything else."""
    try:
        probs = np.load(path, allow_pickle=False)
    except Exception as error:  # on arbitrary bytes the reader can fail in any way
        raise FormatError(path, None, f"not a NumPy array ({error})") from None
    if not isinstance(probs, np.ndarray) or probs.ndim != 2 or not np.issubdtype(probs.dtype, np.floating):
        raise FormatError(path, None, "posteriors are an array of numbers, frames x speakers")
    if not ((probs >= 0) & (probs <= 1)).all():
        raise FormatError(path, None, "holds values that are no probabilities")
    return probs.astype(np.float32)


def hear_speakers(recording: Recording, path: Path, threshold: float) -> dict[str, list[Span]]:
    """Where the diarizer hears each annotated speaker, of those whom it can be matched with."""
    probs = read_posteriors(path)
    start = _find_first_frame(recording.session_span, len(probs), path)
    columns = [clip(column, *recording.span) for column in find_active_spans(probs, start, threshold)]
    return match_speakers(recording.turns, columns)


def _find_first_frame(span: Span, n_frames: int, path: Path) -> int:
    """Posteriors cover the session or, if that is a part of the audio, maybe all of it: their number tells."""
    start, end = span
    if abs(n_frames * FRAME_US - (end - start)) <= MAX_DIFFERENCE_US:
        return start
    if n_frames * FRAME_US >= end - MAX_DIFFERENCE_US and start > 0:
        return 0
    covered, wanted = to_seconds(n_frames * FRAME_US), to_seconds(end - start)
    raise FormatError(path, None, f"{n_frames} frames cover {covered:.2f} s, but the session lasts {wanted:.2f} s")


def find_active_spans(probs: npt.NDArray[np.float32], start: int, threshold: float) -> list[list[Span]]:
    """For each column, where it exceeds the threshold, one frame wider on both sides.

    A frame says that somebody speaks in it, not where in it: the boundary itself is left to the speech detector.
    """
    silent = np.zeros((1, probs.shape[1]), np.int8)
    steps = np.diff((probs > threshold).astype(np.int8), axis=0, prepend=silent, append=silent)
    columns = []
    for column in steps.T:
        onsets, offsets = np.flatnonzero(column > 0).tolist(), np.flatnonzero(column < 0).tolist()
        wider = ((max(onset - 1, 0), offset + 1) for onset, offset in zip(onsets, offsets, strict=True))
        columns.append(merge((start + onset * FRAME_US, start + offset * FRAME_US) for onset, offset in wider))
    return columns


def match_speakers(turns: Turns, columns: Sequence[list[Span]]) -> dict[str, list[Span]]:
    """Each speaker with the column of the best one-to-one assignment, by common time; none without common time.

    Columns are in arrival order, but a diarizer may confuse it, and may have fewer of them than there are speakers.
    """
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415 - slow to import, rarely needed

    speakers = list(turns)
    common = np.array([[length(intersect(turns[name], column)) for column in columns] for name in speakers])
    if not common.size:
        return {}
    rows, chosen = linear_sum_assignment(common, maximize=True)
    pairs = zip(rows.tolist(), chosen.tolist(), strict=True)
    return {speakers[row]: columns[column] for row, column in pairs if common[row, column] > 0}
