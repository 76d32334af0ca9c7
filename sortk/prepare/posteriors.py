"""What a trained diarizer heard: posteriors (frames x speakers) -> stretches of speech of the annotated speakers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sortk.formats import posteriors
from sortk.prepare.recordings import Recording, Turns
from sortk.spans import Span, clip, intersect, length

EXTRA_FRAMES = 1
"""By how much spans of active speech are widened on both sides: a frame says that somebody speaks in it, not where.
The boundary itself is left to the speech detector."""


def find_speakers(recording: Recording, path: Path, threshold: float) -> dict[str, list[Span]]:
    """Return where the diarizer finds each annotated speaker, of those whom it can be matched with."""
    found = posteriors.read(path)
    start = posteriors.find_first_frame(path, found, recording.session_span)
    active = posteriors.find_active_spans(found.probs, threshold, found.frame_seconds, start, EXTRA_FRAMES)
    return match_speakers(recording.turns, [clip(spans, *recording.span) for spans in active])


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
