"""Stage 0: its settings, the corpora by name, and the one function that prepares any of them, or several at once.

sources.jsonl               single-speaker utterances; empty if no corpus has any
<set>.jsonl                 recorded sessions, with rttm/, seglst/, uem/ (see sessions.py)
mixtures/<set>.jsonl        mixtures that stage 1 makes exactly as listed
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sortk.corpora import (
    aishell4,
    ami,
    audiomnist,
    callhome,
    ch109,
    dihard3,
    dipco,
    espeak,
    fisher,
    icsi,
    librispeech,
    librispeechmix,
    own_sessions,
    sre,
    voxconverse,
)
from sortk.corpora.ami import AmiOptions
from sortk.corpora.audiomnist import AudioMnistOptions
from sortk.corpora.espeak import EspeakOptions
from sortk.corpora.miniature import MiniatureMaker, write_miniature
from sortk.corpora.sessions import Parts, Published, RecordedSession, write_sets
from sortk.corpora.splits import SOURCES_NAME, TEST, TRAIN, VALID, fill_splits, read_own_sources, stable_random
from sortk.formats import mixlist, sources
from sortk.formats.files import is_id, plural
from sortk.formats.mixlist import Mixture
from sortk.options import Options, option
from sortk.records import RunJobs, Source

log = logging.getLogger(__name__)

SET_OF_PART = {"train": TRAIN, "dev": VALID, "test": TEST}
"""The set that a part of a corpus joins by default; a part of another name is a set of its own."""


@dataclass(frozen=True)
class CorpusChoice(Options):
    """One of several corpora that a recipe combines."""

    corpus: str = ""
    corpus_dir: str = ""  # its folder on disk
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
        """Return the sets that a part of the corpus joins; none if it is left out."""
        if not self.sets:
            return [SET_OF_PART.get(part, part)]
        return self.sets[part].split("+") if part in self.sets else []


@dataclass(frozen=True)
class PrepareOptions(Options):
    """Which corpora to prepare, where they are, and the settings of their readers."""

    corpus: str = "espeak"  # one of docs/corpora.md; sources and sessions are your own data
    corpus_dir: str = ""  # its folder on disk; espeak needs none
    corpora: tuple[CorpusChoice, ...] = ()  # several corpora, in place of these two
    # A folder that contains the corpora, each in a folder of its name: /data for /data/ami, ...; or in its corpus_dir,
    # if that is given and relative.
    corpora_dir: str = option("", hash_only_if_set=True)
    miniature: bool = option(False, hash_only_if_set=True)  # stage 0 makes miniatures of the corpora instead
    # Share of speakers (sources) or recordings (sessions) for validation, and for the test, if the data has no splits.
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
        if not self.corpora_dir:
            return given
        return tuple(
            replace(choice, corpus_dir=str(Path(self.corpora_dir, choice.corpus_dir or choice.corpus)))
            for choice in given
        )

    @property
    def own_files(self) -> list[Path]:
        """The user's own sources.jsonl and sessions: they may be edited, so their content is part of the key."""
        found = []
        for choice in self.choices:
            folder = Path(choice.corpus_dir)
            path = folder if folder.suffix == ".jsonl" else folder / SOURCES_NAME
            if choice.corpus_dir and path.is_file():
                found.append(path)
            if choice.corpus_dir and choice.corpus == "sessions" and folder.is_dir():
                found.append(folder)
        return found

    def key_of(self, number: int) -> str:
        """Return the table of a recipe in which a choice is given."""
        return f"prepare.corpora.{number}" if self.corpora else "prepare"


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """Everything that the reader of a corpus is given."""

    options: PrepareOptions
    corpus_dir: Path
    out_dir: Path  # for audio that has to be made
    seed: int
    run_jobs: RunJobs


@dataclass(frozen=True, slots=True)
class CorpusContents:
    """Everything that the reader of a corpus returns."""

    sources: Sequence[Source] = ()
    parts: Parts = field(default_factory=dict)
    mixtures: dict[str, list[Mixture]] = field(default_factory=dict)  # by part, too
    published: Mapping[str, Published] = field(default_factory=dict)  # if it depends on the options


@dataclass(frozen=True, slots=True)
class Corpus:
    """The reader of a corpus, where to get it ("" if nothing is needed), and what is published about its parts."""

    read: Callable[[ReadRequest], CorpusContents]
    origin: str
    published: Mapping[str, Published] = field(default_factory=dict)
    on_request: frozenset[str] = frozenset()  # parts with sessions of other parts: only if a choice's `sets` names them


@dataclass(frozen=True, slots=True)
class SplitSummary:
    """Counts of one split of the sources."""

    speakers: int
    utterances: int
    hours: float


def prepare_corpus(
    options: PrepareOptions, out_dir: Path, seed: int, run_jobs: RunJobs = map
) -> dict[str, SplitSummary]:
    """Write the contents of the chosen corpora into `out_dir`; return the counts of each split of the sources."""
    choices = options.choices
    if options.miniature:
        folder = out_dir / "miniature"
        maker = MiniatureMaker(folder, seed, run_jobs)
        for choice in choices:
            write_miniature(choice.corpus, folder / choice.corpus, maker)
        choices = tuple(replace(choice, corpus_dir=str(folder / choice.corpus)) for choice in choices)
    no_folder = [choice.corpus for choice in choices if not choice.corpus_dir]
    corpora = [
        (choice, find_corpus(choice, options.key_of(number), no_folder)) for number, choice in enumerate(choices)
    ]
    sets = SetsBuilder()
    for choice, corpus in corpora:
        contents = corpus.read(ReadRequest(options, Path(choice.corpus_dir), out_dir, seed, run_jobs))
        if not options.miniature and (len(corpora) > 1 or contents.published or corpus.published):
            _compare(choice, contents, contents.published or corpus.published)
        parts = contents.parts
        if not choice.sets:
            parts = {part: sessions for part, sessions in parts.items() if part not in corpus.on_request}
        if choice.max_sessions:
            for part, sessions in parts.items():
                n_drawn, random = min(choice.max_sessions, len(sessions)), stable_random(seed, choice.corpus, part)
                parts = parts | {part: [sessions[n] for n in sorted(random.sample(range(len(sessions)), n_drawn))]}
        sets.add(choice, replace(contents, parts=parts))
    for name, sessions in sets.sessions.items():
        hours = sum(session.duration for session in sessions) / 3600
        log.info("%s.jsonl: %s, %.2f h", name, plural(len(sessions), "session"), hours)
    sources.write(out_dir / SOURCES_NAME, sets.sources)
    write_sets(sets.sessions, out_dir, run_jobs)
    for name, mixtures in sets.mixtures.items():
        mixlist.write(out_dir / "mixtures" / f"{name}.jsonl", mixtures)
    return summarize(sets.sources)


def find_corpus(choice: CorpusChoice, key: str, no_folder: Sequence[str] = ()) -> Corpus:
    """Return the corpus of a choice; raise an error if it is unknown, or not on disk where the recipe's `key` says.
    `no_folder` lists all corpora of the recipe for which no folder is given."""
    corpus = CORPORA.get(choice.corpus)
    if corpus is None:
        raise ValueError(f"unknown corpus {choice.corpus!r}; corpora: {', '.join(CORPORA)}")
    if corpus.origin and not choice.corpus_dir:
        others = ", ".join(name for name in no_folder if name != choice.corpus)
        raise ValueError(
            f"{choice.corpus}: its folder is not given; use --set {key}.corpus_dir=DIR (sortk prepare: --corpus-dir "
            f"DIR), or, if all corpora are in one folder, --set prepare.corpora_dir=DIR (make: CORPORA=DIR); "
            f"{corpus.origin}" + (f"; no folder is given for {others} either" if others else "")
        )
    if corpus.origin and not Path(choice.corpus_dir).exists():
        raise FileNotFoundError(f"{choice.corpus_dir}: no such file or folder ({corpus.origin})")
    return corpus


def _compare(choice: CorpusChoice, contents: CorpusContents, published: Mapping[str, Published]) -> None:
    """Log what was found, and whether it agrees with the published numbers."""
    parts: dict[str, Sequence[RecordedSession | Mixture]] = {**contents.parts, **contents.mixtures}
    for part, sessions in parts.items():
        hours = sum(session.duration for session in sessions) / 3600
        found = f"{choice.corpus} {part}: {plural(len(sessions), 'session')}, {hours:.2f} h"
        expected = published.get(part)
        if expected is None:
            log.info("%s", found)
        elif expected.differs_from(len(sessions), hours):
            log.warning("%s, but published are %s", found, expected)
        else:
            log.info("%s, as published", found)


class SetsBuilder:
    """Combines the contents of several corpora, by set."""

    def __init__(self) -> None:
        self.sources: list[Source] = []
        self.sessions: dict[str, list[RecordedSession]] = {}
        self.mixtures: dict[str, list[Mixture]] = {}
        self._owners: dict[tuple[str, str], CorpusChoice] = {}

    def add(self, choice: CorpusChoice, contents: CorpusContents) -> None:
        """Add the parts of a corpus that the choice names."""
        parts = {*(source.split for source in contents.sources), *contents.parts, *contents.mixtures}
        for part in choice.sets:
            if part not in parts:
                raise ValueError(
                    f"{choice.corpus} in {choice.corpus_dir} has no part {part!r}, which sets names; "
                    f"parts: {', '.join(sorted(parts))}"
                )
        chosen = []
        for source in contents.sources:
            names = choice.sets_of(source.split)
            if len(names) > 1:
                raise ValueError(f"{choice.corpus}: speakers are in one set only, not in {' and '.join(names)}")
            chosen += [replace(source, split=name) for name in names]
        self._claim(choice, "speaker", sorted({source.speaker for source in chosen}))
        self.sources += chosen
        for part, sessions in contents.parts.items():
            if names := choice.sets_of(part):
                self._claim(choice, "session", [session.session_id for session in sessions])
            named = [replace(session, corpus=choice.corpus) for session in sessions]
            for name in names:
                self.sessions.setdefault(name, []).extend(named)
        for part, mixtures in contents.mixtures.items():
            if names := choice.sets_of(part):
                self._claim(choice, "session", [mixture.mixture_id for mixture in mixtures])
            for name in names:
                self.mixtures.setdefault(name, []).extend(mixtures)

    def _claim(self, choice: CorpusChoice, kind: str, names: Iterable[str]) -> None:
        """Raise a ValueError if another corpus has speakers or sessions of these names: later stages use only those."""
        for name in names:
            if other := self._owners.get((kind, name)):
                raise ValueError(
                    f"{kind} {name} is there twice, in {other.corpus} ({other.corpus_dir}) and in {choice.corpus} "
                    f"({choice.corpus_dir}); leave a part of one of them out (sets)"
                )
            self._owners[kind, name] = choice


def summarize(utterances: Iterable[Source]) -> dict[str, SplitSummary]:
    """Return the counts of each split, in the order in which the splits first occur."""
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


# ---------------------------------------------------------------------------------------------------------------------
# The corpora. Most readers need no options; those that do are the functions below.


def _sessions(read: Callable[[Path, RunJobs], Parts]) -> Callable[[ReadRequest], CorpusContents]:
    """Return the reader of a corpus of recorded sessions that needs no options."""
    return lambda request: CorpusContents(parts=read(request.corpus_dir, request.run_jobs))


def _read_librispeechmix(request: ReadRequest) -> CorpusContents:
    utterances = librispeechmix.read_sources(request.corpus_dir, request.run_jobs)
    return CorpusContents(utterances, mixtures=librispeechmix.read_mixtures(request.corpus_dir))


def _read_ami(request: ReadRequest) -> CorpusContents:
    options = request.options.ami
    parts = ami.read(request.corpus_dir, request.run_jobs, options)
    return CorpusContents(parts=parts, published=ami.PUBLISHED[options.microphone])


def _read_sre(request: ReadRequest) -> CorpusContents:
    options, utterances = request.options, sre.prepare(request.corpus_dir, request.run_jobs)
    return CorpusContents(fill_splits(utterances, options.valid_fraction, options.test_fraction, request.seed))


def _read_own_sources(request: ReadRequest) -> CorpusContents:
    fractions = request.options.valid_fraction, request.options.test_fraction
    return CorpusContents(read_own_sources(request.corpus_dir, *fractions, request.seed))


def _read_own_sessions(request: ReadRequest) -> CorpusContents:
    fractions = request.options.valid_fraction, request.options.test_fraction
    return CorpusContents(parts=own_sessions.read(request.corpus_dir, request.run_jobs, *fractions, request.seed))


CORPORA = {
    "espeak": Corpus(
        lambda request: CorpusContents(
            espeak.prepare(request.options.espeak, request.out_dir, request.seed, request.run_jobs)
        ),
        "",
    ),
    "audiomnist": Corpus(
        lambda request: CorpusContents(
            audiomnist.prepare(request.corpus_dir, request.options.audiomnist, request.run_jobs)
        ),
        "git clone of github.com/soerenab/AudioMNIST",
    ),
    "librispeech": Corpus(
        lambda request: CorpusContents(librispeech.prepare(request.corpus_dir, request.run_jobs)),
        "LibriSpeech is OpenSLR 12, www.openslr.org/12",
    ),
    "fisher": Corpus(
        _sessions(fisher.read),
        "Fisher English is LDC2004S13, LDC2004T19, LDC2005S13 and LDC2005T19 in one folder",
        fisher.PUBLISHED,
    ),
    "callhome": Corpus(
        _sessions(callhome.read),
        "disc r65_8_1 of LDC2001S97, and sre2000-key.tar.gz of www.openslr.org/10 unpacked in the same folder",
        callhome.PUBLISHED,
    ),
    "ch109": Corpus(
        _sessions(ch109.read),
        "CALLHOME American English is LDC97S42 and LDC97T14 in one folder",
        ch109.PUBLISHED,
    ),
    "dihard3": Corpus(
        _sessions(dihard3.read),
        "DIHARD III is LDC2022S12 and LDC2022S14 in one folder",
        dihard3.PUBLISHED,
        dihard3.SUBSETS,
    ),
    "sre": Corpus(_read_sre, "a Kaldi data directory of NIST SRE 2004 to 2010, with one side of a call per file"),
    "librispeechmix": Corpus(
        _read_librispeechmix,
        "git clone of github.com/NaoyukiKanda/LibriSpeechMix, and LibriSpeech (www.openslr.org/12) in its data/",
        librispeechmix.PUBLISHED,
    ),
    "voxconverse": Corpus(
        _sessions(voxconverse.read),
        "git clone of github.com/joonson/voxconverse, and the two zip files that its README names unpacked in it",
        voxconverse.PUBLISHED,
    ),
    "icsi": Corpus(
        _sessions(icsi.read),
        "ICSI: headset mixes and core annotations from groups.inf.ed.ac.uk/ami/icsi/download",
        icsi.PUBLISHED,
    ),
    "dipco": Corpus(
        _sessions(dipco.read),
        "DiPCo.tgz, see www.amazon.science/publications/dipco-dinner-party-corpus",
        dipco.PUBLISHED,
    ),
    "aishell4": Corpus(_sessions(aishell4.read), "AISHELL-4 is OpenSLR 111, www.openslr.org/111", aishell4.PUBLISHED),
    "ami": Corpus(_read_ami, "AMI: audio and manual annotations 1.6.2 from groups.inf.ed.ac.uk/ami/download"),
    "sessions": Corpus(
        _read_own_sessions, "your own: a folder of recordings with RTTM, a manifest, or a Kaldi data directory"
    ),
    "sources": Corpus(_read_own_sources, "a sources.jsonl of single-speaker utterances, or the folder that holds it"),
}
