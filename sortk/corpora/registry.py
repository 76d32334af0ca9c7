"""Stage 0: the corpora by name, and the one function that prepares any of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from sortk.corpora import audiomnist, espeak, librispeech, ready
from sortk.corpora.audiomnist import AudioMnistOptions
from sortk.corpora.espeak import EspeakOptions
from sortk.formats import sources
from sortk.records import RunJobs, Source


@dataclass(frozen=True)
class PrepareOptions:
    """Which corpus, where it is, and what is to be decided about it."""

    corpus: str = "espeak"  # espeak, audiomnist, librispeech, or sources for a ready sources.jsonl
    corpus_dir: str = ""  # where it lies on disk; espeak needs none
    valid_fraction: float = 0.1  # of the speakers of a sources.jsonl that has no splits
    test_fraction: float = 0.1
    espeak: EspeakOptions = field(default_factory=EspeakOptions)
    audiomnist: AudioMnistOptions = field(default_factory=AudioMnistOptions)

    def __post_init__(self) -> None:
        if not (self.valid_fraction >= 0 and self.test_fraction >= 0 and self.valid_fraction + self.test_fraction < 1):
            raise ValueError(
                "valid_fraction and test_fraction must not be negative and must leave speakers for training, "
                f"not {self.valid_fraction} and {self.test_fraction}"
            )


@dataclass(frozen=True, slots=True)
class Corpus:
    """How a corpus is read, and where it can be had ("" if nothing is needed)."""

    read: Callable[[PrepareOptions, Path, int, RunJobs], list[Source]]
    origin: str


@dataclass(frozen=True, slots=True)
class SplitSummary:
    """What a split holds."""

    speakers: int
    utterances: int
    hours: float


def prepare_corpus(
    options: PrepareOptions, out_dir: Path, seed: int, run_jobs: RunJobs = map
) -> dict[str, SplitSummary]:
    """Writes `out_dir`/sources.jsonl, and beside it audio that had to be made; returns what each split holds."""
    utterances = find_corpus(options).read(options, out_dir, seed, run_jobs)
    sources.write(out_dir / ready.SOURCES_NAME, utterances)
    return summarize(utterances)


def summarize(utterances: Iterable[Source]) -> dict[str, SplitSummary]:
    """Counts per split, in the order in which the splits first occur."""
    by_split: dict[str, list[Source]] = {}
    for source in utterances:
        by_split.setdefault(source.split, []).append(source)
    return {
        split: SplitSummary(
            speakers=len({source.speaker for source in members}),
            utterances=len(members),
            hours=sum(source.duration for source in members) / 3600,
        )
        for split, members in by_split.items()
    }


def find_corpus(options: PrepareOptions) -> Corpus:
    """The corpus that the options name; an error if it is unknown, or not on disk where they say."""
    corpus = CORPORA.get(options.corpus)
    if corpus is None:
        raise ValueError(f"unknown corpus {options.corpus!r}; corpora: {', '.join(CORPORA)}")
    if corpus.origin and not options.corpus_dir:
        raise ValueError(
            f"{options.corpus} needs its folder on disk: set --corpus-dir DIR, or prepare.corpus_dir in the recipe "
            f"({corpus.origin})"
        )
    if corpus.origin and not Path(options.corpus_dir).exists():
        raise FileNotFoundError(f"{options.corpus_dir}: no such file or folder ({corpus.origin})")
    return corpus


def _read_espeak(options: PrepareOptions, out_dir: Path, seed: int, run_jobs: RunJobs) -> list[Source]:
    return espeak.prepare(options.espeak, out_dir, seed, run_jobs)


def _read_audiomnist(options: PrepareOptions, out_dir: Path, seed: int, run_jobs: RunJobs) -> list[Source]:
    return audiomnist.prepare(Path(options.corpus_dir), options.audiomnist, run_jobs)


def _read_librispeech(options: PrepareOptions, out_dir: Path, seed: int, run_jobs: RunJobs) -> list[Source]:
    return librispeech.prepare(Path(options.corpus_dir), run_jobs)


def _read_ready(options: PrepareOptions, out_dir: Path, seed: int, run_jobs: RunJobs) -> list[Source]:
    return ready.prepare(Path(options.corpus_dir), options.valid_fraction, options.test_fraction, seed)


CORPORA = {
    "espeak": Corpus(_read_espeak, ""),
    "audiomnist": Corpus(_read_audiomnist, "git clone of github.com/soerenab/AudioMNIST"),
    "librispeech": Corpus(_read_librispeech, "LibriSpeech is OpenSLR 12, www.openslr.org/12"),
    "sources": Corpus(_read_ready, "a sources.jsonl of single-speaker utterances, or the folder that holds it"),
}
