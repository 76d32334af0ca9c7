from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from sortk.cli import main
from sortk.corpora import registry
from sortk.corpora.espeak import EspeakOptions
from sortk.corpora.registry import (
    CORPORA,
    Corpus,
    CorpusChoice,
    CorpusContents,
    PrepareOptions,
    ReadRequest,
    SplitSummary,
    prepare_corpus,
)
from sortk.corpora.sessions import Parts, Published, RecordedSession, find_parts
from sortk.formats import audio, manifest, mixlist, rttm, seglst, sources, uem
from sortk.formats.mixlist import Delayed, Mixture
from sortk.records import Region, Segment, Source

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
    with pytest.raises(ValueError, match=r"use --set prepare\.corpus_dir=DIR \(sortk prepare: --corpus-dir DIR\)"):
        prepare_corpus(PrepareOptions(corpus=name), tmp_path / "out", 0)
    with pytest.raises(FileNotFoundError, match="nowhere: no such file or folder"):
        prepare_corpus(PrepareOptions(corpus=name, corpus_dir=str(tmp_path / "nowhere")), tmp_path / "out", 0)
    assert not (tmp_path / "out").exists()


def test_the_help_names_every_corpus() -> None:
    help_text = CliRunner().invoke(main, ["prepare", "--help"]).output
    assert [name for name in CORPORA if name not in help_text] == []


def test_an_unknown_corpus_is_answered_with_the_names(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown corpus 'timit'; corpora: espeak, audiomnist, librispeech, .*sources"):
        prepare_corpus(PrepareOptions(corpus="timit"), tmp_path, 0)


@pytest.mark.parametrize(("valid", "test"), [(-0.1, 0.1), (0.5, 0.5), (0.1, 1.0), (float("nan"), 0.1)])
def test_impossible_fractions_are_refused(valid: float, test: float) -> None:
    with pytest.raises(ValueError, match="_fraction must be (less than 1|0 or more)"):
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
    with pytest.raises(FileNotFoundError, match=r"neither a \.jsonl file nor a folder with a sources\.jsonl"):
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


def make_session(name: str, seconds: float = 3.6) -> RecordedSession:
    """Two speakers, a transcript and a UEM."""
    return RecordedSession(
        name,
        Path("/corpus") / f"{name}.wav",
        seconds,
        segments=(Segment(name, "b", 1.0, 2.0), Segment(name, "a", 0.5, 1.5)),
        transcript=(Segment(name, "a", 0.5, 1.5, "well"),),
        regions=(Region(name, 0.0, seconds),),
    )


def make_source(speaker: str, split: str) -> Source:
    return Source(f"{speaker}-1", Path(f"/corpus/{speaker}.flac"), 0.0, 1.0, speaker, "yes", split=split)


@pytest.fixture
def two_corpora(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """meetings: sessions in three parts; mixed: sources, sessions and a list of mixtures. Their folder."""
    mixture = Mixture("mix-1", (Delayed(str(tmp_path / "a.wav"), "a", "yes", 0.0, 1.0),))

    def read_meetings(order: ReadRequest) -> CorpusContents:
        names = {"train": ["m1", "m2"], "dev": ["m3"], "extra": ["m4"]}
        return CorpusContents(parts={part: [make_session(name) for name in own] for part, own in names.items()})

    def read_mixed(order: ReadRequest) -> CorpusContents:
        parts: Parts = {"train": [make_session("n1"), make_session("m2")], "dev": [make_session("n2")]}
        return CorpusContents([make_source("s1", "train"), make_source("s2", "valid")], parts, {"listed": [mixture]})

    published = {"train": Published(2, 0.002), "dev": Published(2, 0.001)}
    monkeypatch.setitem(registry.CORPORA, "meetings", Corpus(read_meetings, "a shop", published))
    monkeypatch.setitem(registry.CORPORA, "mixed", Corpus(read_mixed, "a shop"))
    return tmp_path


def session_ids(path: Path) -> list[str]:
    return [session.session_id for session in manifest.read(path)]


def test_recorded_sessions_are_written_with_their_files(two_corpora: Path, caplog: pytest.LogCaptureFixture) -> None:
    out = two_corpora / "out"
    with caplog.at_level("INFO"):
        assert prepare_corpus(PrepareOptions(corpus="meetings", corpus_dir=str(two_corpora)), out, 0) == {}
    assert [record.getMessage() for record in caplog.records] == [
        "meetings train: 2 sessions, 0.00 h, as published",
        "meetings dev: 1 session, 0.00 h, but published are 2 sessions, 0.00 h",
        "meetings extra: 1 session, 0.00 h",
        "train.jsonl: 2 sessions, 0.00 h",
        "valid.jsonl: 1 session, 0.00 h",
        "extra.jsonl: 1 session, 0.00 h",
    ]
    assert sources.read(out / "sources.jsonl") == []
    assert session_ids(out / "train.jsonl") == ["m1", "m2"]
    assert session_ids(out / "valid.jsonl") == ["m3"] and session_ids(out / "extra.jsonl") == ["m4"]
    session = manifest.read(out / "train.jsonl")[0]
    assert (session.audio_path, session.duration, session.num_speakers) == (Path("/corpus/m1.wav"), 3.6, 2)
    assert session.rttm_path == out / "rttm" / "m1.rttm" and session.seglst_path == out / "seglst" / "m1.json"
    assert [segment.speaker for segment in rttm.read(session.rttm_path)] == ["a", "b"]
    assert seglst.read(session.seglst_path)[0].text == "well"
    assert uem.read(out / "uem" / "m1.uem") == [Region("m1", 0.0, 3.6)]


def test_several_corpora_join_the_sets_that_the_recipe_names(two_corpora: Path) -> None:
    choices = (
        CorpusChoice("meetings", str(two_corpora), {"train": "train", "dev": "tune"}),
        CorpusChoice("mixed", str(two_corpora), {"dev": "tune", "listed": "eval", "valid": "valid"}),
    )
    summary = prepare_corpus(PrepareOptions(corpora=choices), two_corpora / "out", 0)
    out = two_corpora / "out"
    assert list(summary) == ["valid"]  # the training sources of the second are left out
    assert session_ids(out / "train.jsonl") == ["m1", "m2"] and session_ids(out / "tune.jsonl") == ["m3", "n2"]
    assert not (out / "extra.jsonl").exists()
    listed = mixlist.read(out / "mixtures" / "eval.jsonl")
    assert [mixture.mixture_id for mixture in listed] == ["mix-1"]
    assert (out / "mixtures" / listed[0].utterances[0].wav).resolve() == two_corpora / "a.wav"


def test_a_name_in_two_corpora_is_refused(two_corpora: Path) -> None:
    one, two = CorpusChoice("meetings", str(two_corpora)), CorpusChoice("mixed", str(two_corpora))
    with pytest.raises(ValueError, match=r"session m2 is there twice, in meetings \(.*\) and in mixed \("):
        prepare_corpus(PrepareOptions(corpora=(one, two)), two_corpora / "out", 0)
    with pytest.raises(ValueError, match=r"speaker s1 is there twice, in mixed \(.*\) and in mixed \("):
        prepare_corpus(PrepareOptions(corpora=(two, two)), two_corpora / "out", 0)


def test_a_part_that_the_corpus_lacks_is_named(two_corpora: Path) -> None:
    choice = CorpusChoice("meetings", str(two_corpora), {"eval": "test"})
    with pytest.raises(ValueError, match="has no part 'eval', which sets names; parts: dev, extra, train"):
        prepare_corpus(PrepareOptions(corpora=(choice,)), two_corpora / "out", 0)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "sources"])
def test_a_set_must_have_a_name_for_a_file(name: str) -> None:
    with pytest.raises(ValueError, match="a set cannot be called"):
        CorpusChoice("meetings", "", {"dev": name})


def test_the_corpus_that_is_missing_of_several_is_named(two_corpora: Path) -> None:
    choices = (CorpusChoice("meetings", str(two_corpora)), CorpusChoice("mixed"))
    with pytest.raises(ValueError, match=r"mixed: .* --set prepare\.corpora\.1\.corpus_dir=DIR .*; a shop"):
        prepare_corpus(PrepareOptions(corpora=choices), two_corpora / "out", 0)
    with pytest.raises(ValueError, match="not both"):
        PrepareOptions(corpus_dir="x", corpora=choices)
    with pytest.raises(ValueError, match="not both"):
        PrepareOptions("ami", corpora=choices)


def test_a_part_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    wanted = {"train": {"a": tmp_path / "a.wav", "b": tmp_path / "b.wav"}, "dev": {"c": tmp_path / "c.wav"}}
    with pytest.raises(FileNotFoundError, match=r"a\.wav: no such file \(the audio of a\)"):
        find_parts(wanted)
    (tmp_path / "c.wav").touch()
    assert find_parts(wanted) == {"dev": wanted["dev"]}
    (tmp_path / "a.wav").touch()
    with pytest.raises(FileNotFoundError, match=r"b\.wav: no such file"):
        find_parts(wanted)
