"""What the page shows of one session: who spoke when, what was found, where that is wrong, words, sound.

All times in it are seconds from the start of the session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sortk.formats.annotation import is_annotated, session_segments
from sortk.formats.posteriors import Posteriors
from sortk.records import SAMPLE_RATE, Region, Segment, Session
from sortk.report.sound import encode_peaks, encode_posteriors, encode_sound, read_sound
from sortk.scoring.der import read_references
from sortk.scoring.der_counts import DerOptions
from sortk.scoring.intervals import SessionErrors, find_errors
from sortk.spans import speaker_turns, to_seconds

PLACES = 3  # of seconds


def describe_session(
    session: Session,
    hypothesis: Sequence[Segment],
    posteriors: Posteriors | None = None,
    words: Sequence[Segment] = (),
    options: DerOptions | None = None,
) -> dict[str, Any]:
    """Without sound. Hypothesis and the words that were heard: with times of the audio file."""
    heard = [segment.shift(-session.offset) for segment in hypothesis]
    spoken = [segment.shift(-session.offset) for segment in session_segments(session) if segment.text]
    reference, errors = _compare(session, heard, options or DerOptions(collar=0.0))
    ends = [segment.end for segment in (*reference, *heard)]
    return {
        "duration": round(session.duration if session.duration is not None else max(ends, default=1.0), PLACES),
        "offset": round(session.offset, PLACES),
        "reference": describe_lanes(reference),
        **describe_errors(heard, errors),
        "spoken": describe_words(spoken),
        "heard": describe_words([word.shift(-session.offset) for word in words]),
        "posteriors": _posteriors(posteriors),
    }


def describe_system(
    reference: Sequence[Segment], heard: Sequence[Segment], uem: Sequence[Region] | None, options: DerOptions
) -> dict[str, Any]:
    """Return what a system found in a session, and where that differs from the reference."""
    return describe_errors(heard, find_errors(reference, heard, uem, options))


def describe_errors(heard: Sequence[Segment], errors: SessionErrors) -> dict[str, Any]:
    """Return the lanes of a hypothesis, for whom its speakers stand, and the places of its errors."""
    return {
        "hypothesis": describe_lanes(heard),
        "mapping": dict(errors.mapping),
        "marks": [
            [
                round(mark.start, PLACES),
                round(mark.end, PLACES),
                mark.missed,
                mark.false_alarm,
                mark.confusion,
                int(mark.is_scored),
            ]
            for mark in errors.marks
        ],
    }


def describe_sound(session: Session, at_most_seconds: float) -> dict[str, Any]:
    """Sound and waveform of the beginning of a session."""
    samples = read_sound(session, at_most_seconds)
    return {"audio": encode_sound(samples), "peaks": encode_peaks(samples), "audio_seconds": len(samples) / SAMPLE_RATE}


def _compare(
    session: Session, heard: Sequence[Segment], options: DerOptions
) -> tuple[Sequence[Segment], SessionErrors]:
    """Return the reference of a session, and where the hypothesis differs; nothing of a session without annotation."""
    if not is_annotated(session):
        return [], SessionErrors({}, ())
    references, uem = read_references([session])
    reference = references[session.session_id]
    return reference, find_errors(reference, heard, uem[session.session_id] if uem else None, options)


def describe_lanes(segments: Sequence[Segment]) -> list[dict[str, Any]]:
    """Return a lane per speaker, by arrival."""
    return [
        {"speaker": speaker, "turns": [[round(to_seconds(edge), PLACES) for edge in turn] for turn in turns]}
        for speaker, turns in speaker_turns(segments).items()
    ]


def describe_words(words: Sequence[Segment]) -> list[list[Any]]:
    """Return words, or longer stretches of text, with speakers and times."""
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
