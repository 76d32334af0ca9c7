"""Who speaks in each model frame: segments in seconds -> a 0/1 matrix, one column per speaker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from sortk.models.frames import FRAME_SECONDS
from sortk.records import Segment, arrival_order

NOBODY = -1  # instead of a speaker's number

Targets = npt.NDArray[np.float32]


def frame_targets(
    segments: Sequence[Segment], offset: float, n_frames: int, n_speakers: int
) -> tuple[Targets, list[str]]:
    """(n_frames, n_speakers): 1 where a speaker is active for at least half of the frame; and the speakers' names.

    Frame k lasts from offset + 0.08 k on for 80 ms. Columns are in the order of arrival in this window
    (`records.arrival_order`). Of more than `n_speakers`, those who speak longest in the window are kept; the columns of
    absent ones are 0.
    """
    end = offset + n_frames * FRAME_SECONDS
    inside = [segment for segment in segments if segment.start < end and segment.end > offset]
    activity = {speaker: np.zeros(n_frames) for speaker in arrival_order(inside, offset)}
    for segment in inside:
        _cover(
            activity[segment.speaker], (segment.start - offset) / FRAME_SECONDS, (segment.end - offset) / FRAME_SECONDS
        )
    # A microsecond of rounding must not decide whether exactly half a frame is half a frame.
    active = {speaker: covered >= 0.5 - 1e-5 for speaker, covered in activity.items()}
    kept = _longest(active, n_speakers)
    targets = np.zeros((n_frames, n_speakers), np.float32)
    for column, speaker in enumerate(kept):
        targets[:, column] = active[speaker]
    return targets, kept


def frame_speakers(targets: Targets, names: Sequence[str], number_of: Mapping[str, int]) -> npt.NDArray[np.int64]:
    """(n_frames,): the number of the speaker where exactly one speaks, NOBODY elsewhere."""
    numbers = np.array([number_of.get(name, NOBODY) for name in names] + [NOBODY] * (targets.shape[1] - len(names)))
    return np.where(targets.sum(axis=1) == 1, numbers[targets.argmax(axis=1)], NOBODY)


def _cover(covered: npt.NDArray[np.float64], start: float, end: float) -> None:
    """Adds the share of each frame that lies between start and end, in frames; two segments may share a frame."""
    start, end = max(start, 0.0), min(end, float(len(covered)))
    if end <= start:
        return
    first, last = int(start), min(int(end), len(covered) - 1)
    if first == last:
        covered[first] += end - start
        return
    covered[first] += first + 1 - start
    covered[first + 1 : last] += 1.0
    covered[last] += end - last


def _longest(active: dict[str, npt.NDArray[np.bool_]], n_speakers: int) -> list[str]:
    """The speakers with the most active frames, in the order in which they are given."""
    by_length = sorted(active, key=lambda speaker: -int(active[speaker].sum()))
    return [speaker for speaker in active if speaker in by_length[:n_speakers]]
