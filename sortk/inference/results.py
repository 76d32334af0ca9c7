"""What diarizers and transcribers return, and transcripts as files.

Lists of segments convert to what other libraries use. Transcripts are written as

txt      [00:00:01.20 - 00:00:04.80] Speaker 1: ...      a line for each utterance
json     utterances with speaker, times and words; words with times and confidences
srt      subtitles: at most two lines of 42 letters and 7 s, with the speaker's name
vtt      the same as WebVTT, the speaker as a voice tag
seglst   words (meeteval)        ctm   words with confidences
stm      utterances              rttm  who speaks when, by their words
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from sortk.formats import ctm, rttm, seglst, stm
from sortk.formats.files import atomic_text, check_file_name
from sortk.formats.outputs import noting_outputs
from sortk.formats.sst import join_words
from sortk.formats.timeline import draw_timeline
from sortk.records import Segment, Session

STYLES = ("txt", "json", "srt", "vtt", "seglst", "stm", "ctm", "rttm")
TURN_GAP_SECONDS = 0.5  # words of a speaker with no longer pause between them are one utterance
MIN_SECONDS = 0.01  # of a word in a format that knows no words without duration

# Subtitles, as broadcasters do it.
LINE_LETTERS = 42
CUE_LINES = 2
CUE_SECONDS = 7.0
MIN_CUE_SECONDS = 1.0  # a shorter one stays longer on the screen, if nothing follows
SENTENCE_ENDS = (".", "?", "!", "。", "？", "！", "…")


class Segments(list[Segment]):
    """Who spoke when."""

    def to_annotation(self) -> Any:
        """Return a `pyannote.core.Annotation` of the recording's name, without segments of no duration."""
        from pyannote.core import Annotation  # noqa: PLC0415 - optional
        from pyannote.core import Segment as Stretch  # noqa: PLC0415

        sessions = {segment.session_id: None for segment in self}
        if len(sessions) > 1:
            some = ", ".join([*sessions][:3]) + (", ..." if len(sessions) > 3 else "")
            raise ValueError(
                f"an Annotation has one recording, but these segments are of {len(sessions)} ({some}); "
                "select those of one session_id first"
            )
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
        return format_transcript(self, style)

    def save(self, path: str | Path, style: str | None = None) -> None:
        """Write the transcript to a file; by default in the format that its suffix names."""
        path = Path(path)
        with atomic_text(path) as file:
            file.write(self.to_text(style or path.suffix.removeprefix(".") or "txt"))


# ---------------------------------------------------------------------------------------------------------------------
# Utterances


def find_utterances(words: Sequence[Segment]) -> list[Segment]:
    """Return the utterances of each speaker, which longer pauses separate, in the order of sessions and starts."""
    return [
        utterance
        for session_id in dict.fromkeys(word.session_id for word in words)
        for utterance in sorted(
            join_words([word for word in words if word.session_id == session_id], TURN_GAP_SECONDS),
            key=lambda segment: (segment.start, segment.end),
        )
    ]


def group_words(words: Sequence[Segment]) -> list[list[Segment]]:
    """Return the words of each utterance, utterances in the order of their starts."""
    groups: list[list[Segment]] = []
    for speaker in dict.fromkeys(word.speaker for word in words):
        own, end = [word for word in words if word.speaker == speaker], float("-inf")
        for word in own:
            if word.start - end <= TURN_GAP_SECONDS:
                groups[-1].append(word)
            else:
                groups.append([word])
            end = max(end, word.end)
    return sorted(groups, key=lambda group: (group[0].start, group[-1].end))


def label_speakers(words: Iterable[Segment]) -> dict[str, str]:
    """Return `Speaker 1`, ... for names that sortk made, numbered by output or alphabet; other names are kept."""
    names = sorted({word.speaker for word in words})
    if all(name.startswith("speaker_") and name.removeprefix("speaker_").isdecimal() for name in names):
        return {name: f"Speaker {int(name.removeprefix('speaker_')) + 1}" for name in names}
    is_made = all(name.startswith(("speaker_", "piece_", "turn_")) for name in names)
    return {name: f"Speaker {number}" if is_made else name for number, name in enumerate(names, start=1)}


def format_clock(seconds: float, mark: str = ".", digits: int = 2) -> str:
    """Return seconds as `01:02:03.45`."""
    unit = 10**digits
    ticks = round(max(seconds, 0.0) * unit)
    minutes, rest = divmod(ticks // unit, 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest:02d}{mark}{ticks % unit:0{digits}d}"


def format_dialogue(words: Sequence[Segment], labels: dict[str, str] | None = None) -> str:
    """Return a line for each utterance: times, speaker, text."""
    labels = labels or label_speakers(words)
    return "".join(
        f"[{format_clock(group[0].start)} - {format_clock(max(word.end for word in group))}] "
        f"{labels[group[0].speaker]}: {' '.join(word.text for word in group)}\n"
        for group in group_words(words)
    )


def stream_utterances(words: Iterable[Segment]) -> Iterator[list[Segment]]:
    """Yield the words of each utterance of a live recording, as soon as a later word shows that it is over."""
    waiting: dict[str, list[Segment]] = {}
    for word in words:
        for speaker, own in list(waiting.items()):
            is_over = word.start - own[-1].end > TURN_GAP_SECONDS
            if is_over or (speaker == word.speaker and word.end - own[0].start > CUE_SECONDS):
                yield waiting.pop(speaker)
        waiting.setdefault(word.speaker, []).append(word)
    yield from sorted(waiting.values(), key=lambda own: own[0].start)


# ---------------------------------------------------------------------------------------------------------------------
# Subtitles


class Cue(list[Segment]):
    """The words that are on the screen together, all of one speaker."""

    def fits(self, word: Segment, label: str) -> bool:
        if self[-1].text.endswith(SENTENCE_ENDS) or word.end - self[0].start > CUE_SECONDS:
            return False
        text = f"{label}: {' '.join(own.text for own in [*self, word])}"
        return len(wrap_lines(text)) <= CUE_LINES


def wrap_lines(text: str) -> list[str]:
    """Return lines of at most 42 letters, but for a longer word."""
    return textwrap.wrap(text, LINE_LETTERS, break_long_words=False, break_on_hyphens=False)


def find_cues(words: Sequence[Segment], labels: dict[str, str]) -> list[tuple[float, float, str, str]]:
    """(start, end, speaker, text) of each subtitle. One ends with a sentence, an utterance, or when it is full."""
    cues: list[Cue] = []
    for group in group_words(words):
        cue: Cue | None = None
        for word in group:
            if cue is not None and cue.fits(word, labels[word.speaker]):
                cue.append(word)
            else:
                cue = Cue([word])
                cues.append(cue)
    cues.sort(key=lambda cue: (cue[0].start, cue[-1].end))
    timed = []
    later = after = float("inf")  # starts of the next cue, and of the next one that starts later than that
    for cue in reversed(cues):
        start, end = cue[0].start, max(word.end for word in cue)
        if start < after:
            later, after = after, start
        end = max(end, min(start + MIN_CUE_SECONDS, later), start + MIN_SECONDS)
        timed.append((start, end, labels[cue[0].speaker], " ".join(word.text for word in cue)))
    return timed[::-1]


def format_srt(words: Sequence[Segment]) -> str:
    blocks = []
    for number, (start, end, speaker, text) in enumerate(find_cues(words, label_speakers(words)), start=1):
        times = f"{format_clock(start, ',', 3)} --> {format_clock(end, ',', 3)}"
        blocks.append("\n".join([str(number), times, *wrap_lines(f"{speaker}: {text}"), ""]))
    return "\n".join(blocks)


def format_vtt(words: Sequence[Segment]) -> str:
    blocks = ["WEBVTT\n"]
    for start, end, speaker, text in find_cues(words, label_speakers(words)):
        times = f"{format_clock(start, '.', 3)} --> {format_clock(end, '.', 3)}"
        lines = [line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") for line in wrap_lines(text)]
        blocks.append("\n".join([times, f"<v {speaker}>{lines[0]}", *lines[1:], ""]))
    return "\n".join(blocks)


# ---------------------------------------------------------------------------------------------------------------------


def format_json(words: Sequence[Segment]) -> str:
    """Return an object with the utterances of one recording; a list of such objects of several."""
    objects: list[dict[str, Any]] = [
        {
            "session_id": session_id,
            "speakers": sorted({word.speaker for word in own}),
            "segments": [
                {
                    "speaker": group[0].speaker,
                    "start": group[0].start,
                    "end": max(word.end for word in group),
                    "text": " ".join(word.text for word in group),
                    "words": [
                        {"word": word.text, "start": word.start, "end": word.end, "confidence": word.confidence}
                        for word in group
                    ],
                }
                for group in group_words(own)
            ],
        }
        for session_id in dict.fromkeys(word.session_id for word in words)
        for own in [[word for word in words if word.session_id == session_id]]
    ]
    if not objects:
        objects = [{"session_id": None, "speakers": [], "segments": []}]
    return json.dumps(objects if len(objects) > 1 else objects[0], ensure_ascii=False, indent=1) + "\n"


def format_transcript(words: Sequence[Segment], style: str) -> str:
    """Return the words of one recording in any of STYLES."""
    if style not in STYLES:
        raise ValueError(f"a transcript can be written as {', '.join(STYLES)}, not as {style!r}")
    formats = {"txt": format_dialogue, "json": format_json, "srt": format_srt, "vtt": format_vtt}
    if style in formats:
        return formats[style](words)
    # A word of a TDT may have no duration, and these formats know none without.
    lasting = [replace(word, end=max(word.end, round(word.start + MIN_SECONDS, 3))) for word in words]
    if style == "seglst":
        return "".join(seglst.format_lines(lasting))
    if style == "ctm":
        return "".join(ctm.format_lines(lasting))
    utterances = find_utterances(lasting)
    if style == "stm":
        return "".join(stm.format_lines(utterances))
    return "".join(rttm.format_lines([replace(utterance, text="") for utterance in utterances]))


def transcript_path(folder: Path, session: Session, style: str) -> Path:
    """Return FOLDER/<session>.txt, .json (seglst too), .srt, ..."""
    suffix = "json" if style == "seglst" else style
    return folder / f"{check_file_name(session.session_id)}.{suffix}"


def write_transcript(folder: Path, session: Session, words: Sequence[Segment], style: str) -> None:
    """Write the transcript of a session into the folder, as a file of sortk's own."""
    path = transcript_path(folder, session, style)
    with noting_outputs([path]), atomic_text(path) as file:
        file.write(format_transcript(words, style))


def print_transcripts(transcripts: Sequence[tuple[Session, Sequence[Segment]]], style: str, file: TextIO) -> None:
    """Write all transcripts to one file; several texts have the name of the session above them."""
    if style in ("txt", "srt", "vtt") and len(transcripts) > 1:
        if style != "txt":
            raise ValueError(f"--format {style} holds one recording: give --out-dir for {len(transcripts)} of them")
        for session, words in transcripts:
            file.write(f"# {session.session_id}\n{format_dialogue(words)}")
        return
    file.write(format_transcript([word for _, words in transcripts for word in words], style))
