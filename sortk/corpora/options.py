"""What stage 0 is told: which corpora, where they lie, and what is to be decided about them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

from sortk.corpora.ami import AmiOptions
from sortk.corpora.audiomnist import AudioMnistOptions
from sortk.corpora.espeak import EspeakOptions
from sortk.corpora.splits import TEST, TRAIN, VALID
from sortk.formats.files import is_token
from sortk.records import LATER

SET_OF_PART = {"train": TRAIN, "dev": VALID, "test": TEST}
"""The set that a part of a corpus joins if nobody says otherwise; a part of another name is a set of its own."""


@dataclass(frozen=True)
class CorpusChoice:
    """One of several corpora that a recipe puts together."""

    corpus: str = ""
    corpus_dir: str = ""  # where it lies on disk
    # Part of the corpus -> the set that it joins, or several: "train+tune"; other parts are left out. Empty: all, dev
    # as valid.
    sets: dict[str, str] = field(default_factory=dict)
    max_sessions: int = field(default=0, metadata=LATER)  # of each part, drawn by the seed; 0: all

    def __post_init__(self) -> None:
        for name in (name for names in self.sets.values() for name in names.split("+")):
            if not is_token(name) or "/" in name or name == "sources":
                raise ValueError(f"{self.corpus}: a set cannot be called {name!r}: its manifest is <set>.jsonl")
        if self.max_sessions < 0:
            raise ValueError(f"{self.corpus}: max_sessions must not be negative, not {self.max_sessions}")

    def sets_of(self, part: str) -> list[str]:
        """The sets that a part of the corpus joins; none if it is left out."""
        if not self.sets:
            return [SET_OF_PART.get(part, part)]
        return self.sets[part].split("+") if part in self.sets else []


@dataclass(frozen=True)
class PrepareOptions:
    """Which corpus, where it is, and what is to be decided about it."""

    corpus: str = "espeak"  # a name of the table below; sources and sessions are your own data
    corpus_dir: str = ""  # where it lies on disk; espeak needs none
    corpora: tuple[CorpusChoice, ...] = ()  # several corpora, in place of these two
    # A folder that holds corpora under their names: /data for /data/ami, ...; or under their corpus_dir, if it is given
    # and relative.
    corpora_dir: str = field(default="", metadata=LATER)
    miniature: bool = field(default=False, metadata=LATER)  # in place of the corpora, miniatures that stage 0 makes
    valid_fraction: float = 0.1  # of the speakers of sources, and of the sessions of yours, that have no splits
    test_fraction: float = 0.1
    espeak: EspeakOptions = field(default_factory=EspeakOptions)
    audiomnist: AudioMnistOptions = field(default_factory=AudioMnistOptions)
    ami: AmiOptions = field(default_factory=AmiOptions)

    def __post_init__(self) -> None:
        if not (self.valid_fraction >= 0 and self.test_fraction >= 0 and self.valid_fraction + self.test_fraction < 1):
            raise ValueError(
                "valid_fraction and test_fraction must not be negative and must leave speakers for training, "
                f"not {self.valid_fraction} and {self.test_fraction}"
            )
        if self.corpora and (self.corpus_dir or self.corpus != PrepareOptions.corpus):
            raise ValueError("give corpus and corpus_dir for one corpus, or corpora for several; not both")

    @property
    def choices(self) -> tuple[CorpusChoice, ...]:
        """The corpora to prepare, and where they are."""
        given = self.corpora or (CorpusChoice(self.corpus, self.corpus_dir),)
        return tuple(self._locate(choice) for choice in given) if self.corpora_dir else given

    def _locate(self, choice: CorpusChoice) -> CorpusChoice:
        return dataclasses.replace(choice, corpus_dir=str(Path(self.corpora_dir, choice.corpus_dir or choice.corpus)))

    def key_of(self, number: int) -> str:
        """Where a recipe says what a choice says."""
        return f"prepare.corpora.{number}" if self.corpora else "prepare"
