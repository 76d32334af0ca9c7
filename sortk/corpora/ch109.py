"""CH109: the 109 calls of CALLHOME American English in which exactly two people speak; a test set.

    transcrpt/train/en_4065.txt      LDC97T14; or 4065.cha of TalkBank, which counts the same turns
    data/train/en_4065.sph           LDC97S42; both channels are one conversation

Files are found by name in any folder. A call lasts up to 30 minutes; a session is the 5 or 10 of them that
are transcribed, from the first turn to the last. Every turn is a segment, also one with nothing but laughter, as in the
references that others score CH109 with.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from sortk.corpora.sessions import (
    Parts,
    Published,
    RecordedSession,
    TelephoneCall,
    find_files,
    index_audio,
    name_speakers,
    need_audio,
)
from sortk.formats import audio, chat, ldc
from sortk.formats.files import FormatError
from sortk.records import Region, RunJobs

# The hours are those that NVIDIA's references for CH109 cover, from first to last turn.
PUBLISHED = {"test": Published(109, 16.74)}
N_SPEAKERS = 2

# Not among the 109 of the literature, though TalkBank's transcripts have two speakers: en_4902, and calls of 5 minutes,
# most likely of the 20 that TalkBank has and LDC97S42 does not (140 and 120 calls).
# fmt: off
LEFT_OUT = frozenset({
    "en_4902",
    "en_4289", "en_4290", "en_4316", "en_4522", "en_4753", "en_4790", "en_4802", "en_4824", "en_4875",
    "en_4908", "en_4968", "en_5020", "en_5023", "en_6165", "en_6217", "en_6265", "en_6474", "en_6880",
})
# fmt: on

_TRANSCRIPT = re.compile(r"en_\d{4}\.txt|(?:en_)?\d{4}\.cha")


def read(corpus_dir: Path, run_jobs: RunJobs) -> Parts:
    """Return the calls between two people, as the part `test`."""
    calls = find_calls(corpus_dir)
    return {"test": [recorded for recorded in run_jobs(read_call, calls) if recorded is not None]}


def find_calls(corpus_dir: Path) -> list[TelephoneCall]:
    """Return all calls that may be among the 109; raise FileNotFoundError for the first without audio."""
    files = find_files(corpus_dir)
    recordings = {_session_id(name): path for name, path in index_audio(files).items()}
    transcripts: dict[str, Path] = {}
    for path in files:
        name = _session_id(path.stem)
        is_preferred = path.suffix == ".txt"  # the LDC's own, if both are there
        if _TRANSCRIPT.fullmatch(path.name) and name not in LEFT_OUT and (is_preferred or name not in transcripts):
            transcripts[name] = path
    if not transcripts:
        raise FileNotFoundError(f"{corpus_dir}: no transcript (en_4065.txt or 4065.cha, ...) in this folder or below")
    return [
        TelephoneCall(name, need_audio(recordings, name, corpus_dir), transcripts[name]) for name in sorted(transcripts)
    ]


def _session_id(name: str) -> str:
    return f"en_{name}" if re.fullmatch(r"\d{4}", name) else name


def read_call(call: TelephoneCall) -> RecordedSession | None:
    """Read one call with its turns; return None unless exactly two people speak in it."""
    kind = chat if call.transcript.suffix == ".cha" else ldc
    turns = name_speakers(
        replace(turn, text=kind.spoken_words(turn.text)) for turn in kind.read(call.transcript, call.session_id)
    )
    if len({turn.speaker for turn in turns}) != N_SPEAKERS:
        return None
    start, end = min(turn.start for turn in turns), max(turn.end for turn in turns)
    seconds = audio.info(call.audio_path).seconds
    if start >= seconds:
        reason = f"its first turn starts at {start} s, but {call.audio_path} ends at {seconds} s; is it complete?"
        raise FormatError(call.transcript, None, reason)
    return RecordedSession(
        call.session_id,
        call.audio_path,
        round(min(end, seconds) - start, 6),
        segments=tuple(replace(turn, text="") for turn in turns),
        transcript=tuple(turn for turn in turns if turn.text),
        regions=(Region(call.session_id, start, end),),
        offset=start,
    )
