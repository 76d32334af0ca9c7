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
MAX_MISSING_US = 1_000_000  # a diarizer may leave out an incomplete last frame, not more


def find_posteriors(session: Session, folder: Path) -> tuple[Path, float]:
    """The file that belongs to a session, and where in the audio its first frame lies.

    A file with the session's name covers the session, one with the audio's name the whole audio.
    """
    for stem, offset in ((session.session_id, session.offset), (session.audio_path.stem, 0.0)):
        path = folder / f"{stem}.npy"
        if path.is_file():
            return path, offset
    raise FileNotFoundError(f"{folder}: no posteriors of session {session.session_id} ({session.session_id}.npy)")


def read_posteriors(path: Path) -> npt.NDArray[np.float32]:
    """Probabilities of shape (frames, speakers); FormatError for anything else."""
    try:
        probs = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise FormatError(path, None, f"not a NumPy array ({error})") from None
    if not isinstance(probs, np.ndarray) or probs.ndim != 2 or not np.issubdtype(probs.dtype, np.floating):
        raise FormatError(path, None, "posteriors are an array of numbers, frames x speakers")
    if not ((probs >= 0) & (probs <= 1)).all():
        raise FormatError(path, None, "holds values that are no probabilities")
    return probs.astype(np.float32)


def hear_speakers(recording: Recording, session: Session, folder: Path, threshold: float) -> dict[str, list[Span]]:
    """Where the diarizer hears each annotated speaker, of those whom it can be matched with."""
    path, offset = find_posteriors(session, folder)
    probs = read_posteriors(path)
    start = round(offset * 1e6)
    if start + len(probs) * FRAME_US < recording.span[1] - MAX_MISSING_US:
        heard = to_seconds(start + len(probs) * FRAME_US)
        raise FormatError(path, None, f"ends at {heard:.2f} s, the session at {to_seconds(recording.span[1]):.2f} s")
    columns = [clip(column, *recording.span) for column in find_active_spans(probs, start, threshold)]
    return match_speakers(recording.turns, columns)


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
