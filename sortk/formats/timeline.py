"""Draws who spoke when as SVG: a row per speaker in the order of arrival, overlap shaded; words if it is short."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

from sortk.formats import manifest, rttm, seglst
from sortk.formats.files import atomic_text, check_file_name
from sortk.records import Segment
from sortk.spans import count_speakers, to_seconds

WIDTH, LEFT, RIGHT = 1200, 140, 24
TOP, ROW, BAR = 44, 46, 30
NAME_LETTERS = 18  # of a speaker's name
LETTER = 6.2  # width of a letter of a word, in pixels
WORDS_UP_TO_SECONDS = 30.0  # a longer session is drawn without its words,
PIXELS_PER_SECOND = 130.0  # a shorter one wide enough for them
COLOURS = ("#3b75af", "#d1702f", "#3c8d53", "#a3485e", "#7a5ca8", "#8a6d3b", "#2a8c8c", "#6b6b6b")
TICK_SECONDS = (0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


def draw_timeline(
    segments: Sequence[Segment], words: Sequence[Segment] = (), duration: float | None = None, title: str = ""
) -> str:
    """Return one session as an SVG picture."""
    segments = sorted(segments, key=lambda segment: (segment.start, segment.end))
    speakers = list(dict.fromkeys(segment.speaker for segment in segments))
    end = max([duration or 0.0, *(segment.end for segment in segments)]) or 1.0
    height = TOP + ROW * max(len(speakers), 1) + 40
    shown_words = words if end <= WORDS_UP_TO_SECONDS else ()
    width = round(max(WIDTH, LEFT + RIGHT + PIXELS_PER_SECOND * end)) if shown_words else WIDTH
    picture = _Picture(speakers, (width - LEFT - RIGHT) / end)
    body = itertools.chain(
        picture.axis(end, height - 34),
        picture.overlaps(segments, height - 34),
        picture.rows(),
        picture.bars(segments),
        picture.words(shown_words),
        picture.legend(width) if len(speakers) > 1 else (),
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'font-family="system-ui, sans-serif" font-size="12">',
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            f'<text x="{LEFT}" y="24" font-size="15" font-weight="600" fill="#222222">{_escape(title)}</text>',
            *body,
            "</svg>\n",
        ]
    )


def _escape(text: str) -> str:
    """Return the text for SVG, which is XML: not even by a number can it hold control characters."""
    return escape(re.sub("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", "\N{REPLACEMENT CHARACTER}", text))


def _clock(seconds: float) -> str:
    """Return "30 s", "1:30" or "2:00:00"."""
    if seconds < 60:
        return f"{seconds:g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class _Picture:
    def __init__(self, speakers: Sequence[str], pixels_per_second: float) -> None:
        self.row_of = {speaker: index for index, speaker in enumerate(speakers)}
        self.scale = pixels_per_second

    def x(self, seconds: float) -> float:
        return LEFT + seconds * self.scale

    def y(self, speaker: str) -> float:
        return TOP + ROW * self.row_of[speaker] + (ROW - BAR) / 2

    def axis(self, end: float, bottom: float) -> Iterator[str]:
        step = next((tick for tick in TICK_SECONDS if tick * self.scale >= 60), TICK_SECONDS[-1])
        for tick in range(int(end / step) + 1):
            x = self.x(tick * step)
            yield f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#e4e4e4"/>'
            place = f'x="{x:.1f}" y="{bottom + 18}" text-anchor="middle"'
            yield f'<text {place} fill="#555555">{_clock(tick * step)}</text>'

    def overlaps(self, segments: Sequence[Segment], bottom: float) -> Iterator[str]:
        for start, end in count_speakers(segments).at_least(2):
            yield self._box(to_seconds(start), to_seconds(end), TOP, bottom - TOP, 'fill="#f3c94a" fill-opacity="0.35"')

    def legend(self, width: float) -> Iterator[str]:
        yield f'<rect x="{width - RIGHT - 70}" y="14" width="12" height="12" fill="#f3c94a" fill-opacity="0.6"/>'
        yield f'<text x="{width - RIGHT - 52}" y="24" fill="#555555">overlap</text>'

    def rows(self) -> Iterator[str]:
        for speaker in self.row_of:
            y = self.y(speaker) + BAR / 2 + 4
            name = speaker if len(speaker) <= NAME_LETTERS else speaker[: NAME_LETTERS - 1] + "…"
            yield f'<text x="{LEFT - 10}" y="{y:.1f}" text-anchor="end" fill="#222222">{_escape(name)}</text>'

    def bars(self, segments: Iterable[Segment]) -> Iterator[str]:
        for segment in segments:
            colour = COLOURS[self.row_of[segment.speaker] % len(COLOURS)]
            style = f'rx="3" fill="{colour}" fill-opacity="0.85"'
            yield self._box(segment.start, segment.end, self.y(segment.speaker), BAR, style)

    def words(self, words: Iterable[Segment]) -> Iterator[str]:
        for word in words:
            if word.speaker not in self.row_of:
                continue
            x, y, room = (
                self.x((word.start + word.end) / 2),
                self.y(word.speaker) + BAR / 2 + 4,
                word.duration * self.scale,
            )
            place = f'x="{x:.1f}" y="{y:.1f}" font-size="11" text-anchor="middle"'
            # a word that is spoken faster than it can be written is squeezed into its time
            squeeze = (
                f' textLength="{room:.1f}" lengthAdjust="spacingAndGlyphs"' if len(word.text) * LETTER > room else ""
            )
            yield f'<text {place}{squeeze} fill="#ffffff">{_escape(word.text)}</text>'

    def _box(self, start: float, end: float, y: float, height: float, style: str) -> str:
        width = (end - start) * self.scale
        return f'<rect x="{self.x(start):.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" {style}/>'


def draw_sessions(manifest_path: Path, out: Path, at_most: int = 12) -> None:
    """Draw who speaks when in the first sessions of a manifest, into <session>.svg."""
    for session in manifest.read(manifest_path)[:at_most]:
        segments = rttm.read(session.rttm_path) if session.rttm_path else []
        words = seglst.read(session.seglst_path) if session.seglst_path else []
        with atomic_text(out / f"{check_file_name(session.session_id)}.svg") as file:
            file.write(draw_timeline(segments, words, session.duration, title=session.session_id))
