"""What was transcribed, as files and texts for people: SegLST, STM, and "Speaker 1: ..."."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from sortk.formats import seglst, stm
from sortk.formats.files import atomic_text, check_file_name
from sortk.formats.sst import join_words
from sortk.records import Segment, Session

TURN_GAP_SECONDS = 0.5  # words of a speaker with no longer pause between them are one utterance


def find_utterances(words: Sequence[Segment]) -> list[Segment]:
    """What each speaker of each session says without a longer pause, in the order of sessions and starts."""
    return [
        utterance
        for session_id in dict.fromkeys(word.session_id for word in words)
        for utterance in sorted(
            join_words([word for word in words if word.session_id == session_id], TURN_GAP_SECONDS),
            key=lambda segment: (segment.start, segment.end),
        )
    ]


def format_dialogue(words: Sequence[Segment]) -> str:
    """`Speaker 1: ...`, a line for each turn, speakers numbered as the diarizer does, or as they come."""
    names = {name: f"Speaker {number}" for number, name in enumerate(sorted({w.speaker for w in words}), start=1)}
    numbered = {name: f"Speaker {int(name.removeprefix('speaker_')) + 1}" for name in names if _is_numbered(name)}
    names |= numbered if len(numbered) == len(names) else {}
    lines: list[tuple[str, list[str]]] = []
    for utterance in find_utterances(words):
        if not lines or lines[-1][0] != utterance.speaker:
            lines.append((utterance.speaker, []))
        lines[-1][1].append(utterance.text)
    return "".join(f"{names[speaker]}: {' '.join(texts)}\n" for speaker, texts in lines)


def _is_numbered(name: str) -> bool:
    return name.startswith("speaker_") and name.removeprefix("speaker_").isdecimal()


def write_transcript(folder: Path, session: Session, words: Sequence[Segment], style: str) -> None:
    """FOLDER/<session>.json (seglst), .stm or .txt."""
    suffix = "json" if style == "seglst" else style
    path = folder / f"{check_file_name(session.session_id)}.{suffix}"
    if style == "seglst":
        seglst.write(path, words)
    elif style == "stm":
        stm.write(path, find_utterances(words))
    else:
        with atomic_text(path) as file:
            file.write(format_dialogue(words))


def print_transcripts(transcripts: Sequence[tuple[Session, Sequence[Segment]]], style: str, file: TextIO) -> None:
    """All of them as one: a single SegLST or STM; texts have the name of the session above them if there are more."""
    if style == "txt":
        for session, words in transcripts:
            heading = f"# {session.session_id}\n" if len(transcripts) > 1 else ""
            file.write(heading + format_dialogue(words))
        return
    together = [word for _, words in transcripts for word in words]
    if style == "seglst":
        file.writelines(seglst.format_lines(together))
    else:
        file.writelines(stm.format_lines(find_utterances(together)))
