"""NIST SRE 2004 to 2010 as speech of single speakers, from which conversations are simulated: a Kaldi data directory.

    wav.scp       tabc-A /corpus/sre04/tabc-A.wav       one side of a call, in a file of one channel
    utt2spk       tabc-A 3012                           whose side it is
    segments, text                                      optional

The keys of these evaluations differ from year to year; Kaldi's recipes (egs/sre08, sre10, sre16) turn each into such a
directory. In their wav.scp a pipe selects one side of a call with sph2pipe; sortk runs no pipes, so the sides have to
be written to files first (docs/corpora.md has the loop). A file with both sides would be two speakers, and is refused.

Without `segments` an utterance is an entire side, minutes of it silent; stage 1 finds the speech in it by its energy.
Without `text` there are no transcripts. The directory has no splits: the registry makes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sortk.formats import audio, kaldi
from sortk.formats.files import FormatError
from sortk.records import RunJobs, Segment, Source


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a call, with its segments."""

    recording: str
    audio_path: Path
    segments: tuple[Segment, ...]


def prepare(corpus_dir: Path, run_jobs: RunJobs) -> list[Source]:
    """Return all utterances, without splits; raise FileNotFoundError for the first file that is missing."""
    data = kaldi.read(corpus_dir)
    segments: dict[str, list[Segment]] = {name: [] for name in data.recordings}
    for segment in data.segments:
        segments[segment.session_id].append(segment)
    sides = [Side(name, path, tuple(segments[name])) for name, path in data.recordings.items()]
    read_side = partial(read_utterances, wav_scp=corpus_dir / "wav.scp")
    return [source for utterances in run_jobs(read_side, sides) for source in utterances]


def read_utterances(side: Side, wav_scp: Path) -> list[Source]:
    """Return the utterances of one side; raise an error if its file is missing, or has both sides."""
    if not side.audio_path.is_file():
        raise FileNotFoundError(f"{side.audio_path}: no such file, but {wav_scp} names it for {side.recording}")
    info = audio.info(side.audio_path)
    if info.channels != 1:
        raise FormatError(
            side.audio_path,
            None,
            f"has {info.channels} channels, each another speaker; write each channel to its own file, e.g. with "
            f"sph2pipe -p -f wav -c 1 {side.audio_path.name} {side.audio_path.stem}-A.wav",
        )
    return [
        _source(segment, side.audio_path, info.seconds) for segment in side.segments if segment.start < info.seconds
    ]


def _source(segment: Segment, audio_path: Path, seconds: float) -> Source:
    end = min(segment.end, seconds)
    return Source(
        utterance_id=f"{segment.speaker}-{segment.session_id}-{round(segment.start * 1000)}",
        audio_path=audio_path,
        offset=segment.start,
        duration=round(end - segment.start, 6),
        speaker=segment.speaker,
        text=segment.text,
    )
