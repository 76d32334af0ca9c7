"""What stage 0 is told: which corpora, where they lie, and what is to be decided about them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from sortk.corpora.ami import AmiOptions
from sortk.corpora.audiomnist import AudioMnistOptions
from sortk.corpora.espeak import EspeakOptions
from sortk.corpora.splits import TEST, TRAIN, VALID
from sortk.formats.files import is_id
from sortk.options import Options, option

SET_OF_PART = {"train": TRAIN, "dev": VALID, "test": TEST}
"""The set that a part of a corpus joins if nobody says otherwise; a part of another name is a set of its own."""


@dataclass(frozen=True)
class CorpusChoice(Options):
    """One of several corpora that a recipe puts together."""

    corpus: str = ""
    corpus_dir: str = ""  # where it lies on disk
    # Part of the corpus -> the set that it joins, or several: "train+tune"; other parts are left out. Empty: all, dev
    # as valid.
    sets: dict[str, str] = option(default_factory=dict)
    max_sessions: int = option(0, at_least=0, hash_only_if_set=True)  # of each part, drawn by the seed; 0: all

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in (name for names in self.sets.values() for name in names.split("+")):
            if not is_id(name) or "/" in name or name.startswith(".") or name == "sources":
                raise ValueError(f"{self.corpus}: a set cannot be called {name!r}: its manifest is <set>.jsonl")

    def sets_of(self, part: str) -> list[str]:
        """The sets that a part of the corpus joins; none if it is left out."""
        if not self.sets:
            return [SET_OF_PART.get(part, part)]
        return self.sets[part].split("+") if part in self.sets else []


@dataclass(frozen=True)
class PrepareOptions(Options):
    """Which corpus, where it is, and what is to be decided about it."""

    corpus: str = "espeak"  # a name of the table below; sources and sessions are your own data
    corpus_dir: str = ""  # where it lies on disk; espeak needs none
    corpora: tuple[CorpusChoice, ...] = ()  # several corpora, in place of these two
    # A folder that holds corpora under their names: /data for /data/ami, ...; or under their corpus_dir, if it is given
    # and relative.
    corpora_dir: str = option("", hash_only_if_set=True)
    miniature: bool = option(False, hash_only_if_set=True)  # in place of the corpora, miniatures that stage 0 makes
    # Of the speakers of sources, and of the sessions of yours, that have no splits.
    valid_fraction: float = option(0.1, at_least=0, below=1)
    test_fraction: float = option(0.1, at_least=0, below=1)
    espeak: EspeakOptions = option(default_factory=EspeakOptions)
    audiomnist: AudioMnistOptions = option(default_factory=AudioMnistOptions)
    ami: AmiOptions = option(default_factory=AmiOptions)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.valid_fraction + self.test_fraction >= 1:
            raise ValueError(
                "valid_fraction + test_fraction must be less than 1, so that speakers are left for training, "
                f"got {self.valid_fraction:g} + {self.test_fraction:g}"
            )
        if self.corpora and (self.corpus_dir or self.corpus != PrepareOptions.corpus):
            raise ValueError("give corpus and corpus_dir for one corpus, or corpora for several; not both")

    @property
    def choices(self) -> tuple[CorpusChoice, ...]:
        """The corpora to prepare, and where they are."""
        given = self.corpora or (CorpusChoice(self.corpus, self.corpus_dir),)
        return tuple(self._locate(choice) for choice in given) if self.corpora_dir else given

    @property
    def own_files(self) -> list[Path]:
        """Return a ready sources.jsonl, and sessions of one's own: they may be edited, so their content counts."""
        found = []
        for choice in self.choices:
            folder = Path(choice.corpus_dir)
            sources = folder if folder.suffix == ".jsonl" else folder / "sources.jsonl"
            if choice.corpus_dir and sources.is_file():
                found.append(sources)
            if choice.corpus_dir and choice.corpus == "sessions" and folder.is_dir():
                found.append(folder)
        return found

    def _locate(self, choice: CorpusChoice) -> CorpusChoice:
        return dataclasses.replace(choice, corpus_dir=str(Path(self.corpora_dir, choice.corpus_dir or choice.corpus)))

    def key_of(self, number: int) -> str:
        """Where a recipe says what a choice says."""
        return f"prepare.corpora.{number}" if self.corpora else "prepare"
