"""Sessions whose serialized transcripts are written out by hand in the tests."""

from __future__ import annotations

from sortk.records import Segment


def words(*entries: str, session_id: str = "m") -> list[Segment]:
    """One segment for each "speaker start end text"."""
    fields = [entry.split(maxsplit=3) for entry in entries]
    return [Segment(session_id, who, float(start), float(end), text) for who, start, end, text in fields]


OVERLAP = words(
    "amy 0.0 0.4 well",
    "bob 0.2 0.6 yes",
    "amy 0.5 0.7 i",
    "amy 0.7 1.1 think",
    "bob 1.9 2.4 really",  # 1.3 s after bob's first word: another segment
    "amy 3.0 3.4 so",  # 1.9 s after "think"
)
BACKCHANNEL = words("amy 1.0 2.0 conversation", "bob 1.3 1.5 mhm", "amy 2.0 2.4 today")
TIE = words("bob 1.0 1.2 no", "amy 1.0 1.5 yes", "bob 1.2 1.4 way", "amy 2.5 2.6 bob", "bob 2.5 2.9 amy")
ALONE = words("amy 0.5 0.9 all", "amy 0.9 1.2 by", "amy 5.0 5.9 myself")
