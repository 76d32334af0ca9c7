"""Tight boundaries for annotated turns: "the minimal amount of silence between the onset and offset of speech and the
segment start and end" (the paper's Data Cleaning).

Evidence for a speaker is where the speech detector finds speech and, if posteriors of a trained diarizer are given,
where these also show this speaker. Each boundary of a turn moves to the evidence, under these rules:

- inward as far as there is no evidence; outward only to an edge of the evidence within a tolerance, and only through
  time without any speaker;
- never past a boundary of another speaker's turn, so that arrivals keep their order;
- a turn without evidence, or one that would lose more than half of its length, stays as it is and is counted: detectors
  miss soft speech, and turns that people have annotated are not deleted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from sortk.formats import posteriors
from sortk.prepare.recordings import Recording, Turns
from sortk.spans import Profile, Span, clip, intersect, length

MIN_EVIDENCE_US = 100_000  # less may be the end of what somebody said just before the turn
MIN_KEPT_SHARE = 0.5  # of a turn
APART_US = 10_000  # a boundary stops this far from another speaker's, because equal starts would have no order
EXTRA_FRAMES = 1
"""Spans of active speech in posteriors are widened by this on both sides: a frame says that somebody speaks in it, not
where. The exact boundary comes from the speech detector."""


def refine_turns(
    turns: Turns,
    speech: Sequence[Span] | None,
    speaker_speech: Mapping[str, Sequence[Span]],
    outward_us: int,
) -> tuple[Turns, int]:
    """Return the turns with moved boundaries, and how many stay because no speech was detected in them.

    `speech` is what the speech detector found, None if it was not run; `speaker_speech` what the diarizer found, for
    those speakers that it was matched with.
    """
    all_spans = [span for spans in turns.values() for span in spans]
    starts = BoundaryMover(all_spans, outward_us)
    ends = BoundaryMover([mirror(span) for span in all_spans], outward_us)
    n_undetected = 0
    refined: Turns = {}
    for speaker, spans in turns.items():
        moved = []
        for span in spans:
            evidence = choose_evidence(span, speech, speaker_speech.get(speaker))
            start, end = span
            if evidence:
                start = starts.move(span, evidence)
                end = -ends.move(mirror(span), [mirror(piece) for piece in reversed(evidence)])
            is_detected = bool(evidence) and end - start >= MIN_KEPT_SHARE * (span[1] - span[0])
            moved.append((start, end) if is_detected else span)
            n_undetected += not is_detected
        refined[speaker] = moved
    return refined, n_undetected


def find_speakers(recording: Recording, path: Path, threshold: float) -> dict[str, list[Span]]:
    """Return where posteriors show each annotated speaker, for the speakers that match a column."""
    found = posteriors.read(path)
    start = posteriors.find_first_frame(path, found, recording.session_span)
    active = posteriors.find_active_spans(found.probs, threshold, found.frame_seconds, start, EXTRA_FRAMES)
    return match_speakers(recording.turns, [clip(spans, *recording.span) for spans in active])


def match_speakers(turns: Turns, columns: Sequence[list[Span]]) -> dict[str, list[Span]]:
    """Return the column of each speaker by the one-to-one assignment with most common time; none without common time.

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


def choose_evidence(span: Span, speech: Sequence[Span] | None, own_speech: Sequence[Span] | None) -> list[Span]:
    """Return the evidence that touches a turn, not cut to it: where both detectors agree, else from the speech
    detector."""
    if own_speech is not None:
        both = own_speech if speech is None else intersect(_touching(own_speech, span), speech)
        if found := _touching(both, span):
            return found
    return _touching(speech or [], span)


def _touching(pieces: Sequence[Span], span: Span) -> list[Span]:
    first = bisect_right(pieces, span[0], key=lambda piece: piece[1])
    last = bisect_left(pieces, span[1], key=lambda piece: piece[0])
    return list(pieces[first:last])


def mirror(span: Span) -> Span:
    """Return the span with time reversed, so that its end becomes a start."""
    return -span[1], -span[0]


class BoundaryMover:
    """Moves the starts of turns among all turns of a recording (and the ends, when time is mirrored)."""

    def __init__(self, turns: Sequence[Span], outward_us: int) -> None:
        self._boundaries = sorted(boundary for span in turns for boundary in span)
        self._profile = Profile(turns)
        self._outward_us = outward_us

    def move(self, turn: Span, evidence: Sequence[Span]) -> int:
        """Return the new start of a turn, given the evidence that touches it."""
        start = turn[0]
        inside = clip(evidence, *turn)
        first = next((piece[0] for piece in inside if piece[1] - piece[0] >= MIN_EVIDENCE_US), inside[0][0])
        if first > start:  # inward, up to the next boundary, which is the turn's own end at the latest
            following = self._boundaries[bisect_right(self._boundaries, start)]
            return min(first, max(start, following - APART_US))
        return self._move_outward(start, evidence[0][0])

    def _move_outward(self, start: int, target: int) -> int:
        index = bisect_left(self._boundaries, start)
        if start - target > self._outward_us or self._profile.count_before(start) > 0:
            return start
        if index == 0:
            return target
        before = self._boundaries[index - 1]
        if target <= before:  # speech that goes back to another turn does not show where this one begins
            return start
        return max(target, -(-(before + start) // 2))  # the other turn may come closer from its side
