"""Stage 3: segments with text -> one segment per word, with approximate times (Appendix C of the paper).

    {"speaker": "alice", "start_time": 12.0, "end_time": 13.5, "words": "shall we start"}

becomes three entries, one after the other, from 12.0 to 13.5. A word that is alone in its segment keeps its times.
Segments without text have no words; they are counted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path

from sortk.formats import seglst
from sortk.formats.files import check_file_name, files_in, plural, quote
from sortk.options import Options
from sortk.prepare.syllables import WordRule, find_language, find_word_edges
from sortk.records import Counts, RunJobs, Segment

MIN_WORD_SECONDS = 0.001  # on average over a segment; less is an error in its times, and would be rounded to 0


@dataclass(frozen=True)
class TimestampOptions(Options):
    """Settings of word times."""

    lang: str = "en_US"  # language of the transcripts; any that pyphen supports
    rule: WordRule = "sounds"  # what the length of a word is estimated by; hyphenation: the paper's

    def __post_init__(self) -> None:
        super().__post_init__()
        find_language(self.lang)  # ValueError for an unknown one


@dataclass(frozen=True, slots=True)
class TimestampSummary(Counts):
    """Counts of segments and words."""

    sessions: int = 0
    segments: int = 0
    words: int = 0
    words_kept: int = 0  # alone in their segment, so with its times
    empty_segments: int = 0  # without text

    def to_json(self) -> dict[str, int]:
        return asdict(self)

    def __str__(self) -> str:
        if not self.sessions:
            return "no transcripts"
        return (
            f"{plural(self.sessions, 'session')}, {plural(self.segments, 'segment')} ({self.empty_segments} without "
            f"text) -> {plural(self.words, 'word')} ({self.words_kept} kept their times)"
        )


def write_timestamps(
    seglst_path: Path,
    out_dir: Path,
    options: TimestampOptions | None = None,
    run_jobs: RunJobs = map,
    allow_empty: bool = False,
) -> TimestampSummary:
    """Write word times of a SegLST file, or a folder of them, to `out_dir`/<session_id>.json; a job is one file.

    Sessions that an earlier run has written are counted, not written again. A file without entries is a session
    without words, named after the file. A folder without files is an error, unless `allow_empty`.
    """
    if allow_empty and seglst_path.is_dir() and not any(seglst_path.glob("[!.]*.json")):
        out_dir.mkdir(parents=True, exist_ok=True)
        return TimestampSummary()
    files = files_in(seglst_path, ".json")
    results = run_jobs(partial(_time_file, options or TimestampOptions(), out_dir), files)
    file_of: dict[str, Path] = {}
    total = TimestampSummary()
    for path, summaries in zip(files, results, strict=True):
        for session_id, summary in summaries.items():
            if session_id in file_of:
                raise ValueError(f"session {quote(session_id)} is in two files, {file_of[session_id]} and {path}")
            file_of[session_id] = path
            total += summary
    return total


def _time_file(options: TimestampOptions, out_dir: Path, path: Path) -> dict[str, TimestampSummary]:
    sessions = group_sessions(seglst.read(path), path)
    out_paths = {session_id: out_dir / f"{check_file_name(session_id, path)}.json" for session_id in sessions}
    summaries = {}
    for session_id, segments in sessions.items():
        words = time_words(segments, options)
        n_words = [len(segment.text.split()) for segment in segments]
        summaries[session_id] = TimestampSummary(1, len(segments), len(words), n_words.count(1), n_words.count(0))
        if not out_paths[session_id].exists():
            seglst.write(out_paths[session_id], words)
    return summaries


def group_sessions(segments: Iterable[Segment], path: Path) -> dict[str, list[Segment]]:
    """Return the segments of a file by session; without any, one empty session named after the file."""
    sessions: dict[str, list[Segment]] = {}
    for segment in segments:
        sessions.setdefault(segment.session_id, []).append(segment)
    return sessions or {path.stem: []}


def time_words(segments: Iterable[Segment], options: TimestampOptions) -> list[Segment]:
    """Return one segment per word, in the order of their starts; words that start together stay in the order given."""
    words = [word for segment in segments for word in split_segment(segment, options)]
    return sorted(words, key=attrgetter("start"))


def split_segment(segment: Segment, options: TimestampOptions) -> list[Segment]:
    """Return the words of one segment, without gaps from its start to its end."""
    texts = segment.text.split()
    if segment.duration < MIN_WORD_SECONDS * len(texts):
        raise ValueError(
            f"session {segment.session_id}: {len(texts)} words do not fit into the segment of {segment.speaker} "
            f"from {segment.start} to {segment.end}"
        )
    edges = find_word_edges(texts, segment.start, segment.end, options.lang, options.rule)
    return [
        Segment(segment.session_id, segment.speaker, start, end, text, segment.channel)
        for text, (start, end) in zip(texts, itertools.pairwise(edges), strict=True)
    ]
