"""Miniatures: every reader finds in them what it finds in the real corpus, and speech to learn from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sortk.corpora.miniature import WRITERS, MiniatureMaker
from sortk.corpora.registry import CorpusChoice, PrepareOptions, find_corpus, prepare_corpus
from sortk.formats import audio, manifest, mixlist, sources
from sortk.formats.annotation import session_segments
from sortk.records import Source

SETS = {
    "aishell4": {"train": 1, "test": 1},
    "ami": {"train": 136, "valid": 18, "test": 16},
    "audiomnist": {},
    "callhome": {"part1": 3, "part2": 3},
    "ch109": {"test": 2},
    "dihard3": {"valid": 4, "eval": 4},
    "dipco": {"valid": 5, "eval": 5},
    "fisher": {"train": 4},
    "icsi": {"train": 70, "valid": 2, "test": 3},
    "librispeech": {},
    "librispeechmix": {},
    "sre": {},
    "voxconverse": {"valid": 1, "test": 1},
}


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory) -> MiniatureMaker:
    return MiniatureMaker(tmp_path_factory.mktemp("maker"), 0, map)


@pytest.mark.parametrize("corpus", WRITERS)
def test_the_reader_finds_its_sessions(corpus: str, maker: MiniatureMaker, tmp_path: Path) -> None:
    WRITERS[corpus](tmp_path / corpus, maker)
    prepare_corpus(PrepareOptions(corpus=corpus, corpora_dir=str(tmp_path)), tmp_path / "out", 0)
    lists = {path.stem: manifest.read(path) for path in (tmp_path / "out").glob("*.jsonl") if path.stem != "sources"}
    assert {name: len(sessions) for name, sessions in lists.items()} == SETS[corpus]
    for sessions in lists.values():
        session = sessions[-1]
        samples = audio.read(session.audio_path, session.offset, session.duration)
        assert session.duration and session.duration > 12
        spoken = np.zeros(len(samples), bool)
        for segment in session_segments(session):
            start, end = (round(16_000 * (time - session.offset)) for time in (segment.start, segment.end))
            spoken[start:end] = True
        loudness = float(np.mean(samples[spoken] ** 2)) / float(np.mean(samples[~spoken] ** 2) + 1e-12)
        assert loudness > 20, f"{session.session_id}: speech is not where the annotation says"


def test_speech_of_single_speakers_and_lists_of_mixtures(maker: MiniatureMaker, tmp_path: Path) -> None:
    for corpus in ("audiomnist", "librispeechmix", "sre"):
        WRITERS[corpus](tmp_path / corpus, maker)
        prepare_corpus(PrepareOptions(corpus=corpus, corpora_dir=str(tmp_path)), tmp_path / "out" / corpus, 0)
    by_split: dict[str, list[Source]] = {}
    for source in sources.read(tmp_path / "out" / "librispeechmix" / "sources.jsonl"):
        by_split.setdefault(source.split, []).append(source)
    assert {split: len({source.speaker for source in own}) for split, own in by_split.items()} == {
        "train": 8,
        "valid": 4,
        "test": 4,
    }
    mixtures = mixlist.read(tmp_path / "out" / "librispeechmix" / "mixtures" / "test-clean-3mix.jsonl")
    assert [len(mixture.utterances) for mixture in mixtures] == [3, 3, 3, 3]
    assert len(sources.read(tmp_path / "out" / "sre" / "sources.jsonl")) == 6
    digits = sources.read(tmp_path / "out" / "audiomnist" / "sources.jsonl")
    assert len(digits) == 200 and {source.split for source in digits} == {"train", "valid", "test"}
    assert all(0.2 < source.duration < 2 for source in digits)


def test_a_part_joins_two_sets_and_some_of_its_sessions_are_drawn(maker: MiniatureMaker, tmp_path: Path) -> None:
    choices = (
        CorpusChoice("callhome", sets={"part1": "train+tune"}),
        CorpusChoice("fisher", sets={"train": "train"}, max_sessions=2),
    )
    options = PrepareOptions(corpora=choices, miniature=True)
    assert prepare_corpus(options, tmp_path / "out", 0) == {}
    names = {
        name: [session.session_id for session in manifest.read(tmp_path / "out" / f"{name}.jsonl")]
        for name in ("train", "tune")
    }
    assert names["train"][:3] == names["tune"] and len(names["train"]) == 5
    assert not (tmp_path / "out" / "part2.jsonl").exists()
    WRITERS["librispeech"](tmp_path / "librispeech", maker)
    twice = CorpusChoice("librispeech", str(tmp_path / "librispeech"), {"train": "train+valid"})
    with pytest.raises(ValueError, match="librispeech: speakers are in one set only, not in train and valid"):
        prepare_corpus(PrepareOptions(corpora=(twice,)), tmp_path / "twice", 0)
    with pytest.raises(ValueError, match="there is no miniature of sessions, only of aishell4, ami, "):
        prepare_corpus(PrepareOptions(corpus="sessions", miniature=True), tmp_path / "none", 0)


def test_a_folder_for_all_corpora() -> None:
    given = (CorpusChoice("ami"), CorpusChoice("icsi", "/elsewhere/icsi"))
    options = PrepareOptions(corpora=given, corpora_dir="/data")
    assert [choice.corpus_dir for choice in options.choices] == ["/data/ami", "/elsewhere/icsi"]
    with pytest.raises(FileNotFoundError, match=r"/data/ami: no such file or folder \(AMI: audio"):
        find_corpus(options.choices[0], options.key_of(0))
