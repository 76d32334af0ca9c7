"""What the page shows of one session: who spoke when, what was found, where that is wrong, words, sound.

All times in it are seconds from the start of the session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sortk.formats.annotation import prefer_rttm, session_regions, session_segments
from sortk.formats.posteriors import Posteriors
from sortk.records import SAMPLE_RATE, Segment, Session
from sortk.report.errors import Errors, find_errors, merge_turns
from sortk.report.sound import encode_peaks, encode_posteriors, encode_sound, read_sound

PLACES = 3  # of seconds


@dataclass(frozen=True)
class Scored:
    """How the session's DER was counted."""

    collar: float = 0.0
    skip_overlap: bool = False


def describe_session(
    session: Session,
    hypothesis: Sequence[Segment],
    posteriors: Posteriors | None = None,
    words: Sequence[Segment] = (),
    scored: Scored | None = None,
) -> dict[str, Any]:
    """Without sound. Hypothesis and the words that were heard: with times of the audio file."""
    heard = [segment.shift(-session.offset) for segment in hypothesis]
    reference = [segment.shift(-session.offset) for segment in session_segments(prefer_rttm(session))]
    spoken = [segment.shift(-session.offset) for segment in session_segments(session) if segment.text]
    errors = _find_errors(session, reference, heard, scored)
    ends = [segment.end for segment in (*reference, *heard)]
    return {
        "duration": round(session.duration if session.duration is not None else max(ends, default=1.0), PLACES),
        "reference": _lanes(reference),
        "hypothesis": _lanes(heard),
        "mapping": dict(errors.mapping),
        "marks": [
            [round(mark.start, PLACES), round(mark.end, PLACES), mark.missed, mark.false_alarm, mark.confusion]
            for mark in errors.marks
        ],
        "spoken": _words(spoken),
        "heard": _words([word.shift(-session.offset) for word in words]),
        "posteriors": _posteriors(posteriors),
    }


def describe_sound(session: Session, at_most_seconds: float) -> dict[str, Any]:
    """Sound and waveform of the beginning of a session."""
    samples = read_sound(session, at_most_seconds)
    return {"audio": encode_sound(samples), "peaks": encode_peaks(samples), "audio_seconds": len(samples) / SAMPLE_RATE}


def _find_errors(
    session: Session, reference: Sequence[Segment], heard: Sequence[Segment], scored: Scored | None
) -> Errors:
    if not reference:
        return Errors({}, ())
    scored = scored or Scored()
    regions = [
        replace(region, start=region.start - session.offset, end=region.end - session.offset)
        for region in session_regions(session)
    ]
    return find_errors(reference, heard, scored.collar, scored.skip_overlap, regions or None)


def _lanes(segments: Sequence[Segment]) -> list[dict[str, Any]]:
    """A lane per speaker, by arrival."""
    return [
        {"speaker": speaker, "turns": [[round(start, PLACES), round(end, PLACES)] for start, end in turns]}
        for speaker, turns in merge_turns(segments).items()
    ]


def _words(words: Sequence[Segment]) -> list[list[Any]]:
    ordered = sorted(words, key=lambda word: (word.start, word.end))
    return [[word.speaker, round(word.start, PLACES), round(word.end, PLACES), word.text] for word in ordered]


def _posteriors(found: Posteriors | None) -> Mapping[str, Any] | None:
    if found is None or not found.probs.size:
        return None
    return {
        "frames": found.probs.shape[0],
        "speakers": found.probs.shape[1],
        "frame_seconds": found.frame_seconds,
        "levels": encode_posteriors(found.probs),
    }
