"""What diarizers and transcribers return: lists of segments that convert to what other libraries use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sortk.formats.timeline import draw_timeline
from sortk.records import Segment

if TYPE_CHECKING:
    from pathlib import Path


class Segments(list[Segment]):
    """Who spoke when."""

    def to_annotation(self) -> Any:
        """Return a `pyannote.core.Annotation` of the first recording's name, without segments of no duration."""
        from pyannote.core import Annotation  # noqa: PLC0415 - optional
        from pyannote.core import Segment as Stretch  # noqa: PLC0415

        annotation = Annotation(uri=self[0].session_id if self else None)
        for number, segment in enumerate(self):
            if segment.end > segment.start:
                annotation[Stretch(segment.start, segment.end), number] = segment.speaker
        return annotation

    def to_dataframe(self) -> Any:
        """Return a `pandas.DataFrame` with a row for each segment."""
        from pandas import DataFrame  # type: ignore[import-untyped]  # noqa: PLC0415 - optional

        names = ("session_id", "speaker", "start", "end", "text", "confidence")
        return DataFrame([[getattr(segment, name) for name in names] for segment in self], columns=list(names))

    def to_svg(self) -> str:
        """Return a picture of the first session: a row per speaker, overlap shaded; its words if it is short."""
        own = [segment for segment in self if segment.session_id == self[0].session_id]
        return draw_timeline(own, [segment for segment in own if segment.text], title=own[0].session_id if own else "")

    def _repr_svg_(self) -> str:
        """Return what notebooks show."""
        return self.to_svg()


class Transcript(Segments):
    """Who said what: a segment for each word, in the order of their starts."""

    def to_text(self, style: str = "txt") -> str:
        """Return the transcript in a format of `sortk transcribe`: txt, json, srt, vtt, seglst, stm, ctm or rttm."""
        from sortk.inference.dialogue import format_transcript  # noqa: PLC0415 - it imports this module

        return format_transcript(self, style)

    def save(self, path: str | Path, style: str | None = None) -> None:
        """Write the transcript to a file; by default in the format that its suffix names."""
        from pathlib import Path  # noqa: PLC0415

        from sortk.formats.files import atomic_text  # noqa: PLC0415

        path = Path(path)
        with atomic_text(path) as file:
            file.write(self.to_text(style or path.suffix.removeprefix(".") or "txt"))
