"""CH109: the 109 calls of CALLHOME American English in which exactly two people speak; a test set.

    transcrpt/train/en_4065.txt      LDC97T14; or 4065.cha of TalkBank, which counts the same turns
    data/train/en_4065.sph           LDC97S42; both channels are one conversation

Only the names of the files count, not the folders. A call lasts up to 30 minutes; a session is the 5 or 10 of them that
are transcribed, from the first turn to the last. Every turn is a segment, also one with nothing but laughter, as in the
references that others score CH109 with.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from sortk.corpora.calls import Call, find_files, index_audio, name_speakers, need_audio
from sortk.corpora.recorded import Parts, Published, Recorded
from sortk.formats import audio, chat, ldc
from sortk.formats.files import FormatError
from sortk.records import Region, RunJobs, Segment

# The hours are those that NVIDIA's references for CH109 cover, from first to last turn.
PUBLISHED = {"test": Published(109, 16.74)}
N_SPEAKERS = 2

# Not among the 109 of the literature, though TalkBank's transcripts have two speakers: en_4902, and calls of 5 minutes,
# most likely of the 20 that TalkBank has and LDC97S42 has not (it has 140, LDC97S42 has 120).
# fmt: off
LEFT_OUT = frozenset({
    "en_4902",
    "en_4289", "en_4290", "en_4316", "en_4522", "en_4753", "en_4790", "en_4802", "en_4824", "en_4875",
    "en_4908", "en_4968", "en_5020", "en_5023", "en_6165", "en_6217", "en_6265", "en_6474", "en_6880",
})
# fmt: on

_TRANSCRIPT = re.compile(r"en_\d{4}\.txt|(?:en_)?\d{4}\.cha")


def read(corpus_dir: Path, run_jobs: RunJobs) -> Parts:
    """The calls between two people, as the part `test`."""
    calls = find_calls(corpus_dir)
    return {"test": [recorded for recorded in run_jobs(read_call, calls) if recorded is not None]}


def find_calls(corpus_dir: Path) -> list[Call]:
    """All calls that may be among the 109; FileNotFoundError for the first that lacks its audio."""
    files = find_files(corpus_dir)
    recordings = {_session_id(name): path for name, path in index_audio(files).items()}
    transcripts: dict[str, Path] = {}
    for path in files:
        if _TRANSCRIPT.fullmatch(path.name) and _session_id(path.stem) not in LEFT_OUT:
            _keep_first_kind(transcripts, path)
    if not transcripts:
        raise FileNotFoundError(f"{corpus_dir}: no transcript (en_4065.txt or 4065.cha, ...) in this folder or below")
    return [Call(name, need_audio(recordings, name, corpus_dir), transcripts[name]) for name in sorted(transcripts)]


def _session_id(name: str) -> str:
    return f"en_{name}" if re.fullmatch(r"\d{4}", name) else name


def _keep_first_kind(transcripts: dict[str, Path], path: Path) -> None:
    """The LDC's own transcript, if both are there."""
    name = _session_id(path.stem)
    if name not in transcripts or path.suffix == ".txt":
        transcripts[name] = path


def read_call(call: Call) -> Recorded | None:
    """One call with its turns; None if more, or fewer, than two people speak in it."""
    turns = name_speakers(_read_turns(call))
    if len({turn.speaker for turn in turns}) != N_SPEAKERS:
        return None
    start, end = min(turn.start for turn in turns), max(turn.end for turn in turns)
    seconds = audio.info(call.audio_path).seconds
    if start >= seconds:
        reason = f"its first turn starts at {start} s, but {call.audio_path} ends at {seconds} s: not the whole call?"
        raise FormatError(call.transcript, None, reason)
    return Recorded(
        call.session_id,
        call.audio_path,
        round(min(end, seconds) - start, 6),
        segments=tuple(replace(turn, text="") for turn in turns),
        transcript=tuple(turn for turn in turns if turn.text),
        regions=(Region(call.session_id, start, end),),
        offset=start,
    )


def _read_turns(call: Call) -> list[Segment]:
    kind = chat if call.transcript.suffix == ".cha" else ldc
    return [replace(turn, text=kind.spoken_words(turn.text)) for turn in kind.read(call.transcript, call.session_id)]
