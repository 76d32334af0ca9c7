"""The page of one recording that was diarized: the session view of a report, without a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sortk.formats import audio
from sortk.formats.posteriors import Posteriors, Probs
from sortk.records import FRAME_SECONDS, Segment, Session
from sortk.report.page import format_page
from sortk.report.session import describe_session, describe_sound

HEARD_SECONDS = 720.0
"""How much of a recording the page can play: 12 minutes are about 3 MB. A reader can choose the file to hear more."""


def format_recording(
    session: Session, segments: Sequence[Segment], probs: Probs, frame_seconds: float = FRAME_SECONDS, command: str = ""
) -> str:
    """Return the page; segments have times of the audio file, as in an RTTM, and `command` is shown as what made it."""
    if session.duration is None:
        session = replace(session, duration=audio.info(session.audio_path).seconds - session.offset)
    view = describe_session(session, segments, Posteriors(probs, frame_seconds)) | describe_sound(
        session, HEARD_SECONDS
    )
    speakers = len({segment.speaker for segment in segments})
    row = {"id": session.session_id, "hyp_speakers": speakers, "view": view}
    return format_page(
        f"sortk: {session.session_id}",
        {"kind": "recording", "title": session.session_id, "command": command, "sessions": [row]},
    )
