"""Fisher English, parts 1 and 2: 11,699 telephone calls of up to ten minutes between two strangers; all for training.

    fe_03_p1_tran/data/trans/000/fe_03_00001.txt    LDC2004T19, LDC2005T19
    fe_03_p1_sph1/audio/000/fe_03_00001.sph         LDC2004S13, LDC2005S13

Files are found by name in any folder. Both channels of a file are one conversation.

A turn without speech or laughter, such as `[noise]`, is not a segment. The transcript is the result of
`ldc.spoken_words`; where that is empty, as for `(( ))`, there is a segment but no line of the transcript.
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
from sortk.formats import audio, ldc
from sortk.records import RunJobs

# Catalog of the LDC, LDC2005T19: both parts, "approximately 1,960 hours".
PUBLISHED = {"train": Published(11_699, 1_960)}

# A digit is missing in the transcript: the turn would last for 203 s. (lhotse corrects it, too.)
WRONG_START = ("fe_03_11487", 31.09, 234.06)
RIGHT_START = 231.09

_NAME = re.compile(r"fe_03_\d{5}")


def read(corpus_dir: Path, run_jobs: RunJobs) -> Parts:
    """Return all calls, as the part `train`."""
    return {"train": list(run_jobs(read_call, find_calls(corpus_dir)))}


def find_calls(corpus_dir: Path) -> list[TelephoneCall]:
    """Return the calls by number; raise FileNotFoundError for the first without transcript or audio."""
    files = find_files(corpus_dir)
    recordings = {name: path for name, path in index_audio(files).items() if _NAME.fullmatch(name)}
    transcripts = {path.stem: path for path in files if path.suffix == ".txt" and _NAME.fullmatch(path.stem)}
    if not transcripts:
        raise FileNotFoundError(f"{corpus_dir}: no transcript (data/trans/000/fe_03_00001.txt, ...) here or below")
    for name in sorted(recordings):
        if name not in transcripts:
            raise FileNotFoundError(f"{corpus_dir}: no {name}.txt here or below, the transcript of {recordings[name]}")
    return [
        TelephoneCall(name, need_audio(recordings, name, corpus_dir), transcripts[name]) for name in sorted(transcripts)
    ]


def read_call(call: TelephoneCall) -> RecordedSession:
    """Read one call with its turns."""
    turns = [
        replace(turn, start=RIGHT_START) if (turn.session_id, turn.start, turn.end) == WRONG_START else turn
        for turn in ldc.read(call.transcript, call.session_id)
    ]
    spoken = name_speakers(
        replace(turn, text=ldc.spoken_words(turn.text)) for turn in turns if ldc.has_speech(turn.text)
    )
    return RecordedSession(
        call.session_id,
        call.audio_path,
        audio.info(call.audio_path).seconds,
        segments=tuple(replace(turn, text="") for turn in spoken),
        transcript=tuple(turn for turn in spoken if turn.text),
    )
