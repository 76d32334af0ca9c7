"""The page of one recording that was diarized or transcribed: the session view of a report, without a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sortk.formats import audio
from sortk.formats.posteriors import Posteriors
from sortk.records import Segment, Session
from sortk.report.page import format_page
from sortk.report.session import describe_session, describe_sound

SOUND_SECONDS = 720.0
"""How much of a recording the page can play: 12 minutes are about 3 MB. A reader can choose the file to play more."""


def format_recording(
    session: Session,
    segments: Sequence[Segment],
    posteriors: Posteriors | None = None,
    words: Sequence[Segment] = (),
    command: str = "",
) -> str:
    """Return the page of a recording; segments and words have times of the audio file, as in an RTTM.

    `command` is shown as what made the page.
    """
    if session.duration is None:
        session = replace(session, duration=audio.info(session.audio_path).seconds - session.offset)
    view = describe_session(session, segments, posteriors, words) | describe_sound(session, SOUND_SECONDS)
    row = {"id": session.session_id, "hyp_speakers": len({segment.speaker for segment in segments}), "view": view}
    return format_page(
        f"sortk: {session.session_id}",
        {"kind": "recording", "title": session.session_id, "command": command, "sessions": [row]},
    )
