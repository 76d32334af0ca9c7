"""CALLHOME as it is known in diarization: disc 8 of NIST's speaker recognition evaluation of 2000 (LDC2001S97).

    r65_8_1/sid00sg1/data/iaaa.sph      500 telephone calls in six languages, one channel, two to seven speakers
    sre2000-key/fullref.rttm            who speaks when, in all of them: OpenSLR 10, sre2000-key.tar.gz

Files are found by name in any folder. The disc has no reference in RTTM; the one in use is that of Kaldi's recipe
callhome_diarization, which has 499 of the calls (not iaeu). Its two folds, made by a shuffle, are listed
in callhome_parts.txt: the paper trains and tunes on part1 and tests on part2. There are no transcripts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sortk.corpora.sessions import Parts, Published, RecordedSession, find_files, index_audio, name_speakers, need_audio
from sortk.formats import audio, rttm
from sortk.formats.files import read_lines
from sortk.records import RunJobs, Segment

# Horiguchi et al. 2022 (EEND-EDA), table of datasets: means of 125.8 s and 123.2 s.
PUBLISHED = {"part1": Published(249, 8.70), "part2": Published(250, 8.56)}

REFERENCE_NAME = "fullref.rttm"
PARTS_PATH = Path(__file__).with_name("callhome_parts.txt")


@dataclass(frozen=True, slots=True)
class Conversation:
    """One recording of the disc, and its turns."""

    session_id: str
    audio_path: Path
    turns: tuple[Segment, ...]


def read(corpus_dir: Path, run_jobs: RunJobs) -> Parts:
    """Return the calls of both folds that are in the reference; raise FileNotFoundError for the first without audio."""
    files = find_files(corpus_dir)
    recordings, turns_of = index_audio(files), _read_reference(corpus_dir, files)
    parts: Parts = {}
    for part, names in read_parts().items():
        conversations = [
            Conversation(name, need_audio(recordings, name, corpus_dir), tuple(turns_of[name]))
            for name in names
            if name in turns_of
        ]
        if conversations:
            parts[part] = list(run_jobs(read_conversation, conversations))
    return parts


def read_parts() -> dict[str, list[str]]:
    """Return the calls of each fold, in the order of their names."""
    parts: dict[str, list[str]] = {}
    for _, line in read_lines(PARTS_PATH):
        part, session_id = line.split()
        parts.setdefault(part, []).append(session_id)
    return parts


def read_conversation(conversation: Conversation) -> RecordedSession:
    """Read one call with its turns."""
    return RecordedSession(
        conversation.session_id,
        conversation.audio_path,
        audio.info(conversation.audio_path).seconds,
        segments=name_speakers(conversation.turns),
    )


def _read_reference(corpus_dir: Path, files: list[Path]) -> dict[str, list[Segment]]:
    path = next((path for path in files if path.name == REFERENCE_NAME), None)
    if path is None:
        raise FileNotFoundError(
            f"{corpus_dir}: no {REFERENCE_NAME} in this folder or below; unpack sre2000-key.tar.gz of "
            "www.openslr.org/10 there"
        )
    turns_of: dict[str, list[Segment]] = {}
    for turn in rttm.stream(path, zero_duration="keep"):
        if turn.start < turn.end:  # some turns in it are empty
            turns_of.setdefault(turn.session_id, []).append(turn)
    return turns_of
