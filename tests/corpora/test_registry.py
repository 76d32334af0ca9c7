from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from sortk.corpora.espeak import EspeakOptions
from sortk.corpora.registry import CORPORA, PrepareOptions, SplitSummary, prepare_corpus
from sortk.formats import audio, sources

SHARED = Path(__file__).parents[3] / "shared" / "data"


def write_ready(folder: Path, lines: list[dict[str, object]]) -> Path:
    """A sources.jsonl with audio of one second for each of its files."""
    for name in {str(line["audio_filepath"]) for line in lines}:
        audio.write_flac(folder / name, np.zeros(16_000, np.float32))
    path = folder / "sources.jsonl"
    path.write_text("".join(json.dumps({"duration": 1.0, "text": "yes"} | line) + "\n" for line in lines))
    return path


def prepare_ready(corpus_dir: Path, out: Path, seed: int = 0) -> list[tuple[str, str]]:
    prepare_corpus(PrepareOptions(corpus="sources", corpus_dir=str(corpus_dir)), out, seed)
    return [(source.speaker, source.split) for source in sources.read(out / "sources.jsonl")]


def test_espeak_needs_no_folder_and_is_summed_up(tmp_path: Path) -> None:
    options = PrepareOptions(espeak=EspeakOptions(speakers=6, utterances_per_speaker=2))
    summary = prepare_corpus(options, tmp_path, seed=0)
    utterances = sources.read(tmp_path / "sources.jsonl")
    assert {split: (part.speakers, part.utterances) for split, part in summary.items()} == {
        "train": (2, 4),
        "valid": (2, 4),
        "test": (2, 4),
    }
    assert sum(part.hours for part in summary.values()) == pytest.approx(sum(s.duration for s in utterances) / 3600)
    assert all(source.audio_path.is_file() for source in utterances)


def test_a_prepared_folder_can_be_moved(tmp_path: Path) -> None:
    prepare_corpus(PrepareOptions(espeak=EspeakOptions(1, 1)), tmp_path / "made", seed=0)
    (tmp_path / "made").rename(tmp_path / "moved")
    assert sources.read(tmp_path / "moved" / "sources.jsonl")[0].audio_path.is_file()


@pytest.mark.parametrize("name", [name for name in CORPORA if name != "espeak"])
def test_a_missing_folder_is_explained(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--corpus-dir DIR, or prepare\.corpus_dir in the recipe"):
        prepare_corpus(PrepareOptions(corpus=name), tmp_path / "out", 0)
    with pytest.raises(FileNotFoundError, match="nowhere: no such file or folder"):
        prepare_corpus(PrepareOptions(corpus=name, corpus_dir=str(tmp_path / "nowhere")), tmp_path / "out", 0)
    assert not (tmp_path / "out").exists()


def test_an_unknown_corpus_is_answered_with_the_names(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown corpus 'timit'; corpora: espeak, audiomnist, librispeech, sources"):
        prepare_corpus(PrepareOptions(corpus="timit"), tmp_path, 0)


@pytest.mark.parametrize(("valid", "test"), [(-0.1, 0.1), (0.5, 0.5), (0.1, 1.0), (float("nan"), 0.1)])
def test_impossible_fractions_are_refused(valid: float, test: float) -> None:
    with pytest.raises(ValueError, match="must leave speakers for training"):
        PrepareOptions(valid_fraction=valid, test_fraction=test)


def test_ready_sources_get_splits_by_speaker(tmp_path: Path) -> None:
    write_ready(
        tmp_path / "in",
        [
            {"audio_filepath": f"{speaker}.flac", "speaker": f"s{speaker}", "utterance_id": f"s{speaker}-{number}"}
            for speaker in range(20)
            for number in range(2)
        ],
    )
    split_of = prepare_ready(tmp_path / "in", tmp_path / "out")
    assert len(set(split_of)) == 20  # both utterances of a speaker are in the same split
    assert Counter(split for _, split in set(split_of)) == {"train": 16, "valid": 2, "test": 2}
    assert prepare_ready(tmp_path / "in" / "sources.jsonl", tmp_path / "again") == split_of
    assert prepare_ready(tmp_path / "in", tmp_path / "other", seed=1) != split_of


def test_splits_of_the_owner_are_kept(tmp_path: Path) -> None:
    write_ready(
        tmp_path / "in",
        [
            {"audio_filepath": "a.flac", "speaker": "a", "split": "test", "utterance_id": "a-1"},
            {"audio_filepath": "a.flac", "speaker": "a", "utterance_id": "a-2"},
            {"audio_filepath": "b.flac", "speaker": "b", "utterance_id": "b-1"},
        ],
    )
    assert prepare_ready(tmp_path / "in", tmp_path / "out") == [("a", "test"), ("a", "test"), ("b", "train")]


def test_missing_audio_of_ready_sources_is_named(tmp_path: Path) -> None:
    path = write_ready(tmp_path, [{"audio_filepath": "a.flac", "speaker": "a"}])
    (tmp_path / "a.flac").unlink()
    with pytest.raises(ValueError, match=r"sources\.jsonl, line 1: .*a\.flac"):
        prepare_ready(path, tmp_path / "out")


def test_a_folder_without_sources_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no folder that holds a sources\.jsonl"):
        prepare_ready(tmp_path, tmp_path / "out")


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data are not on this machine")
@pytest.mark.parametrize(("name", "n_speakers"), [("librispeech_sub", 210), ("speechocean_sub", 22)])
def test_shared_sources_can_be_prepared(name: str, n_speakers: int, tmp_path: Path) -> None:
    options = PrepareOptions(corpus="sources", corpus_dir=str(SHARED / name))
    summary = prepare_corpus(options, tmp_path, seed=0)
    assert all(isinstance(part, SplitSummary) for part in summary.values())
    assert sum(part.speakers for part in summary.values()) == n_speakers
    assert set(summary) == {"train", "valid", "test"}
    assert all(source.audio_path.is_file() for source in sources.read(tmp_path / "sources.jsonl"))
