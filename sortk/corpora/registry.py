"""Stage 0: the corpora by name, and the one function that prepares any of them, or several at once.

sources.jsonl               single-speaker utterances; empty if no corpus has any
<set>.jsonl                 recorded sessions, with rttm/, seglst/, uem/ (see recorded.py)
mixtures/<set>.jsonl        mixtures that stage 1 is to make exactly as listed
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
    ready,
    sre,
    voxconverse,
)
from sortk.corpora.miniature import Studio, write_miniature
from sortk.corpora.options import CorpusChoice, PrepareOptions
from sortk.corpora.recorded import Parts, Published, Recorded, write_sets
from sortk.corpora.splits import stable_random
from sortk.formats import mixlist, sources
from sortk.formats.mixlist import Mixture
from sortk.records import RunJobs, Source

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Order:
    """All that the reader of a corpus is given."""

    options: PrepareOptions
    corpus_dir: Path
    out_dir: Path  # for audio that has to be made
    seed: int
    run_jobs: RunJobs


@dataclass(frozen=True, slots=True)
class Contents:
    """What a corpus gives."""

    sources: Sequence[Source] = ()
    parts: Parts = field(default_factory=dict)
    mixtures: dict[str, list[Mixture]] = field(default_factory=dict)  # by part, too
    published: Mapping[str, Published] = field(default_factory=dict)  # if it depends on the options


@dataclass(frozen=True, slots=True)
class Corpus:
    """How a corpus is read, where it can be had ("" if nothing is needed), and what is published about its parts."""

    read: Callable[[Order], Contents]
    origin: str
    published: Mapping[str, Published] = field(default_factory=dict)
    on_request: frozenset[str] = frozenset()  # parts with sessions of other parts: only if a choice's `sets` names them


@dataclass(frozen=True, slots=True)
class SplitSummary:
    """What a split holds."""

    speakers: int
    utterances: int
    hours: float


def prepare_corpus(
    options: PrepareOptions, out_dir: Path, seed: int, run_jobs: RunJobs = map
) -> dict[str, SplitSummary]:
    """Writes what the corpora of the options give into `out_dir`; returns what each split of the sources holds."""
    choices = options.choices
    if options.miniature:
        choices = _write_miniatures(choices, out_dir / "miniature", seed, run_jobs)
    no_folder = [choice.corpus for choice in choices if not choice.corpus_dir]
    corpora = [
        (choice, find_corpus(choice, options.key_of(number), no_folder)) for number, choice in enumerate(choices)
    ]
    collected = Collected()
    for choice, corpus in corpora:
        contents = corpus.read(Order(options, Path(choice.corpus_dir), out_dir, seed, run_jobs))
        if not options.miniature:
            _compare(choice, contents, contents.published or corpus.published)
        contents = contents if choice.sets else _without(corpus.on_request, contents)
        collected.add(choice, _draw(choice, contents, seed))
    for name, sessions in collected.sessions.items():
        hours = sum(session.duration for session in sessions) / 3600
        log.info("%s.jsonl: %d sessions, %.2f h", name, len(sessions), hours)
    sources.write(out_dir / ready.SOURCES_NAME, collected.sources)
    write_sets(collected.sessions, out_dir, run_jobs)
    for name, mixtures in collected.mixtures.items():
        mixlist.write(out_dir / "mixtures" / f"{name}.jsonl", mixtures)
    return summarize(collected.sources)


def _write_miniatures(
    choices: Sequence[CorpusChoice], folder: Path, seed: int, run_jobs: RunJobs
) -> tuple[CorpusChoice, ...]:
    """The same corpora as miniatures, each in a folder of its name."""
    studio = Studio(folder, seed, run_jobs)
    for choice in choices:
        write_miniature(choice.corpus, folder / choice.corpus, studio)
    return tuple(dataclasses.replace(choice, corpus_dir=str(folder / choice.corpus)) for choice in choices)


def _draw(choice: CorpusChoice, contents: Contents, seed: int) -> Contents:
    """With at most `max_sessions` recorded sessions of each part, in the order of the corpus."""
    if not choice.max_sessions:
        return contents
    drawn = {}
    for part, sessions in contents.parts.items():
        random = stable_random(seed, choice.corpus, part)
        numbers = sorted(random.sample(range(len(sessions)), min(choice.max_sessions, len(sessions))))
        drawn[part] = [sessions[number] for number in numbers]
    return dataclasses.replace(contents, parts=drawn)


class Collected:
    """What several corpora give together, by set."""

    def __init__(self) -> None:
        self.sources: list[Source] = []
        self.sessions: dict[str, list[Recorded]] = {}
        self.mixtures: dict[str, list[Mixture]] = {}
        self._owners: dict[tuple[str, str], CorpusChoice] = {}

    def add(self, choice: CorpusChoice, contents: Contents) -> None:
        """The contents of one more corpus, as far as the choice wants them."""
        _check_parts(choice, {*(source.split for source in contents.sources), *contents.parts, *contents.mixtures})
        chosen = list(_with_sets(choice, contents.sources))
        self._claim(choice, "speaker", sorted({source.speaker for source in chosen}))
        self.sources += chosen
        for part, sessions in contents.parts.items():
            if names := choice.sets_of(part):
                self._claim(choice, "session", [session.session_id for session in sessions])
            named = [dataclasses.replace(session, corpus=choice.corpus) for session in sessions]
            for name in names:
                self.sessions.setdefault(name, []).extend(named)
        for part, mixtures in contents.mixtures.items():
            if names := choice.sets_of(part):
                self._claim(choice, "session", [mixture.mixture_id for mixture in mixtures])
            for name in names:
                self.mixtures.setdefault(name, []).extend(mixtures)

    def _claim(self, choice: CorpusChoice, kind: str, names: Iterable[str]) -> None:
        """From here on, speakers and sessions go by their names alone; so nobody else may have them."""
        for name in names:
            if other := self._owners.get((kind, name)):
                raise ValueError(
                    f"{kind} {name} is there twice, in {other.corpus} ({other.corpus_dir}) and in {choice.corpus} "
                    f"({choice.corpus_dir}); leave a part of one of them out (sets)"
                )
            self._owners[kind, name] = choice


def _without(parts: frozenset[str], contents: Contents) -> Contents:
    kept = {part: sessions for part, sessions in contents.parts.items() if part not in parts}
    return dataclasses.replace(contents, parts=kept)


def _with_sets(choice: CorpusChoice, utterances: Iterable[Source]) -> Iterator[Source]:
    for source in utterances:
        names = choice.sets_of(source.split)
        if len(names) > 1:
            raise ValueError(f"{choice.corpus}: speakers are in one set only, not in {' and '.join(names)}")
        for name in names:
            yield dataclasses.replace(source, split=name)


def _check_parts(choice: CorpusChoice, parts: Iterable[str]) -> None:
    for part in choice.sets:
        if part not in parts:
            raise ValueError(
                f"{choice.corpus} in {choice.corpus_dir} has no part {part!r}, which sets names; "
                f"parts: {', '.join(sorted(parts))}"
            )


def _compare(choice: CorpusChoice, contents: Contents, published: Mapping[str, Published]) -> None:
    """Says what was found, and whether it is what others have."""
    parts: dict[str, Sequence[Recorded | Mixture]] = {**contents.parts, **contents.mixtures}
    for part, sessions in parts.items():
        hours = sum(session.duration for session in sessions) / 3600
        found = f"{choice.corpus} {part}: {len(sessions)} sessions, {hours:.2f} h"
        expected = published.get(part)
        if expected is None:
            log.info("%s", found)
        elif expected.differs_from(len(sessions), hours):
            log.warning("%s, but published are %s", found, expected)
        else:
            log.info("%s, as published", found)


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


def find_corpus(choice: CorpusChoice, key: str, no_folder: Sequence[str] = ()) -> Corpus:
    """The corpus of a choice; an error if it is unknown, or not on disk where the recipe's `key` says. `no_folder` are
    all corpora of the recipe that nobody has given a folder."""
    corpus = CORPORA.get(choice.corpus)
    if corpus is None:
        raise ValueError(f"unknown corpus {choice.corpus!r}; corpora: {', '.join(CORPORA)}")
    if corpus.origin and not choice.corpus_dir:
        others = ", ".join(name for name in no_folder if name != choice.corpus)
        raise ValueError(
            f"{choice.corpus} needs its folder on disk: set --corpus-dir DIR, or {key}.corpus_dir in the recipe, "
            f"as by --set {key}.corpus_dir=DIR; or, for DIR/{choice.corpus}, --set prepare.corpora_dir=DIR, in make "
            f"CORPORA=DIR ({corpus.origin})" + (f"; the same goes for {others}" if others else "")
        )
    if corpus.origin and not Path(choice.corpus_dir).exists():
        raise FileNotFoundError(f"{choice.corpus_dir}: no such file or folder ({corpus.origin})")
    return corpus


def _sessions(read: Callable[[Path, RunJobs], Parts]) -> Callable[[Order], Contents]:
    """A reader of recorded sessions that needs no options."""
    return lambda order: Contents(parts=read(order.corpus_dir, order.run_jobs))


def _sources(read: Callable[[Path, RunJobs], list[Source]]) -> Callable[[Order], Contents]:
    """A reader of single-speaker utterances that needs no options."""
    return lambda order: Contents(read(order.corpus_dir, order.run_jobs))


def _read_espeak(order: Order) -> Contents:
    return Contents(espeak.prepare(order.options.espeak, order.out_dir, order.seed, order.run_jobs))


def _read_audiomnist(order: Order) -> Contents:
    return Contents(audiomnist.prepare(order.corpus_dir, order.options.audiomnist, order.run_jobs))


def _read_ready(order: Order) -> Contents:
    options = order.options
    return Contents(ready.prepare(order.corpus_dir, options.valid_fraction, options.test_fraction, order.seed))


def _read_sre(order: Order) -> Contents:
    options, utterances = order.options, sre.prepare(order.corpus_dir, order.run_jobs)
    return Contents(ready.fill_splits(utterances, options.valid_fraction, options.test_fraction, order.seed))


def _read_own_sessions(order: Order) -> Contents:
    options = order.options
    fractions = options.valid_fraction, options.test_fraction
    return Contents(parts=own_sessions.read(order.corpus_dir, order.run_jobs, *fractions, order.seed))


def _read_ami(order: Order) -> Contents:
    options = order.options.ami
    parts = ami.read(order.corpus_dir, order.run_jobs, options)
    return Contents(parts=parts, published=ami.PUBLISHED[options.microphone])


def _read_librispeechmix(order: Order) -> Contents:
    utterances = librispeechmix.read_sources(order.corpus_dir, order.run_jobs)
    return Contents(utterances, mixtures=librispeechmix.read_mixtures(order.corpus_dir))


CORPORA = {
    "espeak": Corpus(_read_espeak, ""),
    "audiomnist": Corpus(_read_audiomnist, "git clone of github.com/soerenab/AudioMNIST"),
    "librispeech": Corpus(_sources(librispeech.prepare), "LibriSpeech is OpenSLR 12, www.openslr.org/12"),
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
    "sources": Corpus(_read_ready, "a sources.jsonl of single-speaker utterances, or the folder that holds it"),
}
