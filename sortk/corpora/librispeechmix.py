"""LibriSpeechMix: lists of what to mix from LibriSpeech's dev-clean and test-clean; stage 1 makes the mixtures.

    list/dev-clean-2mix.jsonl, ...    a checkout of its repository
    data/LibriSpeech/<subset>/...     LibriSpeech, in data/, in data/original/, or beside list/

All subsets of LibriSpeech on disk become sources, too, so that a recipe can train on train-*. Neither the mixed
audio nor the WAV copies of LibriSpeech that the repository's own script makes are needed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sortk.corpora import librispeech
from sortk.corpora.sessions import Published, need_file
from sortk.formats import mixlist
from sortk.formats.files import FormatError
from sortk.formats.mixlist import Delayed, Mixture
from sortk.records import RunJobs, Source

LIBRISPEECH_FOLDERS = ("data/LibriSpeech", "data/original/LibriSpeech", "LibriSpeech")

PUBLISHED = {
    "dev-clean-1mix": Published(2703, 5.39),
    "dev-clean-2mix": Published(2703, 8.60),
    "dev-clean-3mix": Published(2703, 11.77),
    "test-clean-1mix": Published(2620, 5.40),
    "test-clean-2mix": Published(2620, 8.72),
    "test-clean-3mix": Published(2620, 11.81),
}


def read_mixtures(corpus_dir: Path) -> dict[str, list[Mixture]]:
    """Return the six lists, with the full path of the audio of every utterance."""
    root = _find_librispeech(corpus_dir)
    found: dict[str, Path] = {}
    lists = {}
    for name in PUBLISHED:
        path = need_file(corpus_dir / "list" / f"{name}.jsonl", "a list of mixtures")
        lists[name] = [
            replace(mixture, utterances=tuple(_locate(each, path, root, found) for each in mixture.utterances))
            for mixture in mixlist.read(path)
        ]
    return lists


def read_sources(corpus_dir: Path, run_jobs: RunJobs) -> list[Source]:
    """Return the single utterances of LibriSpeech."""
    return librispeech.prepare(_find_librispeech(corpus_dir), run_jobs)


def _find_librispeech(corpus_dir: Path) -> Path:
    for folder in LIBRISPEECH_FOLDERS:
        if (corpus_dir / folder).is_dir():
            return corpus_dir / folder
    raise FileNotFoundError(
        f"{corpus_dir / LIBRISPEECH_FOLDERS[0]}: no such folder; unpack LibriSpeech there, or link it there"
    )


def _locate(utterance: Delayed, path: Path, root: Path, found: dict[str, Path]) -> Delayed:
    """Return the utterance with the full path of its audio; `found` caches it: an utterance is in several mixtures."""
    if utterance.wav not in found:
        # The lists name the WAV files that the repository's script makes; LibriSpeech has FLAC.
        flac = (root / utterance.wav).with_suffix(".flac")
        if not flac.is_file():
            raise FormatError(path, None, f"{flac} is missing; unpack this subset of LibriSpeech")
        found[utterance.wav] = flac
    return replace(utterance, wav=str(found[utterance.wav]))
