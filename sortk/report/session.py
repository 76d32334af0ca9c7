"""What the page shows of one session: who spoke when, what was found, where that is wrong, words, sound.

All times in it are seconds from the start of the session.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sortk.formats.annotation import is_annotated, session_segments
from sortk.formats.posteriors import Posteriors
from sortk.records import SAMPLE_RATE, Region, Segment, Session
from sortk.report.sound import encode_posteriors, encode_sound, encode_waveform, read_sound
from sortk.scoring.der import read_references
from sortk.scoring.der_counts import DerOptions
from sortk.scoring.intervals import SessionErrors, find_errors
from sortk.spans import speaker_turns, to_seconds

DECIMALS = 3  # of seconds


def describe_session(
    session: Session,
    hypothesis: Sequence[Segment],
    posteriors: Posteriors | None = None,
    words: Sequence[Segment] = (),
    options: DerOptions | None = None,
) -> dict[str, Any]:
    """Return the view of a session, without sound; the hypothesis and its words have times of the audio file."""
    found = [segment.shift(-session.offset) for segment in hypothesis]
    reference: Sequence[Segment] = []
    errors = SessionErrors({}, ())
    if is_annotated(session):
        references, uem = read_references([session])
        reference = references[session.session_id]
        options = options or DerOptions(collar=0.0)
        errors = find_errors(reference, found, uem[session.session_id] if uem else None, options)
    ends = [segment.end for segment in (*reference, *found)]
    said = [segment.shift(-session.offset) for segment in session_segments(session) if segment.text]
    return {
        "duration": round(session.duration if session.duration is not None else max(ends, default=1.0), DECIMALS),
        "offset": round(session.offset, DECIMALS),
        "reference": describe_lanes(reference),
        **_describe_errors(found, errors),
        "reference_words": describe_words(said),
        "recognized_words": describe_words([word.shift(-session.offset) for word in words]),
        "posteriors": {
            "frames": posteriors.probs.shape[0],
            "speakers": posteriors.probs.shape[1],
            "frame_seconds": posteriors.frame_seconds,
            "levels": encode_posteriors(posteriors.probs),
        }
        if posteriors is not None and posteriors.probs.size
        else None,
    }


def describe_system(
    reference: Sequence[Segment], found: Sequence[Segment], uem: Sequence[Region] | None, options: DerOptions
) -> dict[str, Any]:
    """Return what a system found in a session, and where that differs from the reference."""
    return _describe_errors(found, find_errors(reference, found, uem, options))


def _describe_errors(found: Sequence[Segment], errors: SessionErrors) -> dict[str, Any]:
    """Return the lanes of a hypothesis, the reference speaker of each of its speakers, and its errors."""
    return {
        "hypothesis": describe_lanes(found),
        "mapping": dict(errors.mapping),
        "marks": [
            [
                round(mark.start, DECIMALS),
                round(mark.end, DECIMALS),
                mark.missed,
                mark.false_alarm,
                mark.confusion,
                int(mark.is_scored),
            ]
            for mark in errors.marks
        ],
    }


def describe_lanes(segments: Sequence[Segment]) -> list[dict[str, Any]]:
    """Return a lane per speaker, by arrival."""
    return [
        {"speaker": speaker, "turns": [[round(to_seconds(edge), DECIMALS) for edge in turn] for turn in turns]}
        for speaker, turns in speaker_turns(segments).items()
    ]


def describe_words(words: Sequence[Segment]) -> list[list[Any]]:
    """Return words, or longer stretches of text, with speakers and times."""
    ordered = sorted(words, key=lambda word: (word.start, word.end))
    return [[word.speaker, round(word.start, DECIMALS), round(word.end, DECIMALS), word.text] for word in ordered]


def describe_sound(session: Session, at_most_seconds: float) -> dict[str, Any]:
    """Return the sound of the beginning of a session, and the waveform of all of it."""
    samples = read_sound(session, at_most_seconds)
    return {
        "audio": encode_sound(samples),
        "audio_seconds": len(samples) / SAMPLE_RATE,
        "waveform": encode_waveform(session),
    }
