"""Posteriors to segments with the six parameters of stage 7: exactly NVIDIA's decisions, for many sessions at once.

In their order, per speaker:

1. Probs are repeated to frames of 10 ms. Speech begins at a frame above `onset`; from then on it ends at a frame
   below `offset` (hysteresis). If onset < offset, a posterior between both does the one and the other in turn, frame by
   frame: alone this is useless, but padding closes the gaps, and published presets have it.
2. Segments grow by `pad_onset` and `pad_offset`; those that then meet are one. Speech that lasts to the end of the
   recording ends where its last 10 ms begin.
3. Segments below `min_duration_on` are dropped, then gaps below `min_duration_off` are filled.

Times are compared as 32-bit floats, because NVIDIA's are: 0.42 s of speech may be slightly shorter than 0.42.

There is no loop over frames or segments. The posteriors of all rows (a row is one speaker of one session) are joined
end to end, with a frame of certain silence before each; a run is a stretch of frames with the same decision (speech,
silence, or as before), and all that follows is arithmetic on the starts of runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sortk.formats.posteriors import Probs
from sortk.formats.postprocess import Postprocess
from sortk.records import FRAME_SECONDS, Segment

Times = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

UNIT_SECONDS = 0.01  # of decisions
SILENCE = -1.0  # a posterior below any offset


class SegmentArrays(NamedTuple):
    """Segments of many sessions, one entry each: index of session and speaker, start and end in seconds."""

    session: Ints
    speaker: Ints
    start: Times
    end: Times


@dataclass(frozen=True)
class PosteriorRows:
    """Posteriors of many sessions in one array: rows of frames, a frame of silence before each and after the last."""

    values: npt.NDArray[np.float32]
    first_frame: Ints  # of each row, and of the one that would follow the last
    session: Ints  # of each row
    speaker: Ints
    n_units: int  # in a frame


def join_posteriors(sessions: Sequence[npt.NDArray[Any]], frame_seconds: float = FRAME_SECONDS) -> PosteriorRows:
    """Lay out posteriors of shape (frames, speakers) for `find_all_segments`; stage 7 does this once."""
    n_units = round(frame_seconds / UNIT_SECONDS)
    if n_units < 1 or abs(n_units * UNIT_SECONDS - frame_seconds) > 1e-6:
        raise ValueError(f"frames must last a multiple of {UNIT_SECONDS} s, got {frame_seconds} s")
    n_frames = np.array([len(probs) for probs in sessions for _ in range(probs.shape[1])], np.int64)
    silence = np.full((1, 1), SILENCE, np.float32)
    pieces = [np.vstack([np.repeat(silence, probs.shape[1], axis=1), probs]).T.ravel() for probs in sessions]
    return PosteriorRows(
        values=np.concatenate([*pieces, silence.ravel()]).astype(np.float32, copy=False),
        first_frame=1 + np.concatenate([[0], np.cumsum(n_frames + 1)]),
        session=np.repeat(np.arange(len(sessions)), [probs.shape[1] for probs in sessions]),
        speaker=np.concatenate([np.arange(probs.shape[1]) for probs in sessions] or [np.zeros(0, np.int64)]),
        n_units=n_units,
    )


def find_all_segments(rows: PosteriorRows, options: Postprocess) -> SegmentArrays:
    """Return the segments of all rows, in their order; times are rounded to milliseconds."""
    flips = _find_flips(rows, options)
    begin, finish = flips[0::2], flips[1::2]
    row = np.searchsorted(rows.first_frame, begin // rows.n_units, side="right") - 1
    first_unit, next_row_unit = rows.first_frame[row] * rows.n_units, rows.first_frame[row + 1] * rows.n_units
    lasts = finish == next_row_unit - rows.n_units  # it is the silence between rows that ends it, not a posterior
    start = np.maximum(0, (begin - first_unit) * UNIT_SECONDS - options.pad_onset)
    # NeMo ends the last segment 10 ms early; models with rows of 10 ms come with other code, which does not.
    end = (finish - first_unit - lasts * (rows.n_units > 1)) * UNIT_SECONDS + options.pad_offset
    # Only negative padding leaves less than nothing of a segment; the last one is never asked.
    kept = (end > start) | lasts
    found = _Spans(row[kept], start[kept].astype(np.float32), end[kept].astype(np.float32))
    found = found.join(found.gaps() <= 0)
    found = found.drop_short(options.min_duration_on)
    found = found.join(found.gaps() < np.float32(options.min_duration_off))
    return found.to_arrays(rows)


def find_segments(probs: npt.NDArray[Any], options: Postprocess, frame_seconds: float = FRAME_SECONDS) -> list[Times]:
    """Return start and end of each speaker's segments in seconds, (n, 2), from posteriors (frames, speakers)."""
    found = find_all_segments(join_posteriors([probs], frame_seconds), options)
    times = np.column_stack([found.start, found.end])
    return [times[found.speaker == speaker] for speaker in range(probs.shape[1])]


def name_segments(session_id: str, speakers: Sequence[Times], names: Sequence[str] = ()) -> list[Segment]:
    """Return the result of `find_segments` as records. Without a name, speaker_0 is the model's first output."""
    return [
        Segment(session_id, names[speaker] if speaker < len(names) else f"speaker_{speaker}", start, end)
        for speaker, times in enumerate(speakers)
        for start, end in times.tolist()
    ]


def _find_flips(rows: PosteriorRows, options: Postprocess) -> Ints:
    """Return where speech begins and ends in turn, in units (10 ms) from the start of all rows."""
    above = (rows.values > np.float32(options.onset)).view(np.int8)
    below = (rows.values < np.float32(options.offset)).view(np.int8)
    said = above - below  # 1: speech, -1: silence, 0: neither, or both
    first: Ints = np.concatenate([[0], np.flatnonzero(said[1:] != said[:-1]) + 1])  # frame of each run
    run = said[first]
    n_units = np.diff(first, append=len(said)) * rows.n_units
    alternates = (run == 0) & (options.onset < options.offset)
    # A run without a decision continues the one before, which has one; an alternating run may end otherwise.
    after = np.where(run == 0, np.roll(run, 1), run)
    after[alternates & (n_units % 2 == 1)] *= -1
    before = np.roll(after, 1)  # the first run is silence, and so is the last one
    clear: Ints = first[(run != 0) & (run != before)] * rows.n_units
    if not alternates.any():
        return clear
    begin, finish = first[alternates] * rows.n_units, (first * rows.n_units + n_units)[alternates]
    if options.pad_onset + options.pad_offset >= 2 * UNIT_SECONDS:
        # Padding closes all gaps of one unit: such a run is speech up to its last end.
        unsettled = [begin[before[alternates] < 0], finish[after[alternates] < 0] - 1]
    else:
        length = finish - begin
        unsettled = [np.arange(length.sum()) + np.repeat(begin - np.cumsum(length) + length, length)]
    return np.sort(np.concatenate([clear, *unsettled]))


class _Spans(NamedTuple):
    """Segments of each row in order of time, in seconds as NVIDIA has them."""

    row: Ints
    start: npt.NDArray[np.float32]
    end: npt.NDArray[np.float32]

    def gaps(self) -> npt.NDArray[np.float32]:
        """Return seconds from each segment to the next one, which may be of another row."""
        return self.start[1:] - self.end[:-1]

    def join(self, closed: npt.NDArray[np.bool_]) -> _Spans:
        """Make neighbours one where the gap between them is closed."""
        open_gap = ~closed | (self.row[1:] != self.row[:-1])
        edge = np.ones(min(1, len(self.row)), np.bool_)
        is_first, is_last = np.concatenate([edge, open_gap]), np.concatenate([open_gap, edge])
        return _Spans(self.row[is_first], self.start[is_first], self.end[is_last])

    def drop_short(self, min_seconds: float) -> _Spans:
        kept = self.end - self.start >= np.float32(min_seconds)
        return _Spans(self.row[kept], self.start[kept], self.end[kept])

    def to_arrays(self, rows: PosteriorRows) -> SegmentArrays:
        """Return the segments on a grid of milliseconds, which is finer than any decision."""
        start, end = self.start.astype(np.float64).round(3), self.end.astype(np.float64).round(3)
        kept = end > start  # speech in nothing but the last unit
        row = self.row[kept]
        return SegmentArrays(rows.session[row], rows.speaker[row], start[kept], end[kept])


# ---------------------------------------------------------------------------------------------------------------------
# A given number of speakers. Speakers are columns of the posteriors, by arrival; the sum of a column is the expected
# time for which a speaker speaks.

ACTIVE = 0.5  # posterior above which a speaker speaks
RAISED = 0.75  # the highest posterior of a speaker who must be there, but is never active


def keep_strongest(probs: Probs, n_speakers: int) -> Probs:
    """Return the strongest columns in their order; speech of the others goes to the likeliest of these."""
    if n_speakers >= probs.shape[1]:
        return probs
    strongest = np.sort(np.argsort(-probs.sum(axis=0), kind="stable")[:n_speakers])
    others = np.setdiff1d(np.arange(probs.shape[1]), strongest)
    return merge_columns(probs, strongest, others)


def merge_columns(probs: Probs, kept: npt.NDArray[np.intp], others: npt.NDArray[np.intp]) -> Probs:
    """Return the kept columns; where another one is higher, the likeliest of the kept gets its value."""
    if len(probs) == 0:
        return probs[:, kept]
    merged, most = probs[:, kept].copy(), probs[:, others].max(axis=1)
    frame, likeliest = np.arange(len(merged)), merged.argmax(axis=1)
    merged[frame, likeliest] = np.maximum(merged[frame, likeliest], most)
    return merged


def raise_weak(probs: Probs, n_speakers: int) -> Probs:
    """Scale the strongest silent columns until at least `n_speakers` columns are active somewhere.

    This is a guess: such a speaker is placed where the model found one likely, but below the threshold.
    """
    if len(probs) == 0:
        return probs
    highest = probs.max(axis=0)
    n_missing = min(n_speakers, probs.shape[1]) - int((highest > ACTIVE).sum())
    if n_missing <= 0:
        return probs
    silent = [int(column) for column in np.argsort(-probs.sum(axis=0), kind="stable") if highest[column] <= ACTIVE]
    raised = probs.copy()
    for column in silent[:n_missing]:
        if highest[column] > 0:
            raised[:, column] *= RAISED / highest[column]
    return raised
