"""DIHARD III, on a miniature of both releases."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from sortk.corpora import dihard3
from sortk.corpora.registry import CorpusChoice, PrepareOptions, prepare_corpus
from sortk.corpora.sessions import RecordedSession
from sortk.formats import manifest
from sortk.records import Region, Segment

SPEAKERS = {"DH_DEV_0001": 2, "DH_DEV_0002": 5, "DH_EVAL_0001": 1}
RECORDINGS_TBL = "uri in_core lang domain source lang_src num_channels dur speech\n"


def data_dir(corpus: Path, name: str) -> Path:
    part = "dev" if "DEV" in name else "eval"
    return corpus / f"third_dihard_challenge_{part}" / "data"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    for name, n_speakers in SPEAKERS.items():
        data = data_dir(tmp_path, name)
        for folder in ("flac", "rttm", "uem", "sad", "uem_scoring/full", "../docs"):
            (data / folder).mkdir(parents=True, exist_ok=True)
        soundfile.write(data / "flac" / f"{name}.flac", np.zeros(16_000 * 8), 16_000)
        turns = [f"SPEAKER {name} 1 {i}.25 1.50 <NA> <NA> speaker{i} <NA> <NA>\n" for i in range(n_speakers)]
        (data / "rttm" / f"{name}.rttm").write_text("".join(turns))
        (data / "uem" / f"{name}.uem").write_text(f"{name} 1 0.000 7.500\n")
        (data / "uem_scoring" / "full" / "all.uem").write_text(f"{name} 1 0.000 7.500\n")
        with (data / ".." / "docs" / "recordings.tbl").open("a") as table:
            table.write(f"{name} True english meeting x x 1 8.0 3.0\n")
    for part in ("dev", "eval"):
        path = tmp_path / f"third_dihard_challenge_{part}" / "docs" / "recordings.tbl"
        path.write_text(RECORDINGS_TBL + path.read_text())
    return tmp_path


def expected(corpus: Path, name: str) -> RecordedSession:
    return RecordedSession(
        name,
        data_dir(corpus, name) / "flac" / f"{name}.flac",
        8.0,
        segments=tuple(Segment(name, f"{name}-speaker{i}", i + 0.25, i + 1.75) for i in range(SPEAKERS[name])),
        regions=(Region(name, 0.0, 7.5),),
    )


def test_all_sessions_and_those_of_up_to_four_speakers(corpus: Path) -> None:
    first, second, third = (expected(corpus, name) for name in SPEAKERS)
    assert dihard3.read(corpus, map) == {"dev": [first, second], "dev4": [first], "eval": [third], "eval4": [third]}


def test_the_turns_of_a_peer(corpus: Path) -> None:
    peer = pytest.importorskip("lhotse.recipes.dihard3")
    theirs = peer.prepare_dihard3(corpus / "third_dihard_challenge_dev", corpus / "third_dihard_challenge_eval")
    parts = dihard3.read(corpus, map)
    for part in ("dev", "eval"):
        segments = [turn for session in parts[part] for turn in session.segments]
        ours = sorted((turn.session_id, turn.start, turn.end, turn.speaker.split("-")[1]) for turn in segments)
        turns = theirs[part]["supervisions"]
        assert ours == sorted((turn.recording_id, turn.start, turn.end, turn.speaker) for turn in turns)
        regions = [(region.session_id, region.start, region.end) for s in parts[part] for region in s.regions]
        assert regions == sorted((turn.recording_id, turn.start, turn.end) for turn in theirs[part]["uem"])


def test_subsets_are_prepared_on_request_only(corpus: Path, tmp_path: Path) -> None:
    prepare_corpus(PrepareOptions(corpus="dihard3", corpus_dir=str(corpus)), tmp_path / "all", 0)
    assert {path.name for path in (tmp_path / "all").glob("*.jsonl")} == {"valid.jsonl", "eval.jsonl", "sources.jsonl"}
    choice = CorpusChoice("dihard3", str(corpus), {"dev": "train", "eval4": "test"})
    prepare_corpus(PrepareOptions(corpora=(choice,)), tmp_path / "chosen", 0)
    assert len(manifest.read(tmp_path / "chosen" / "train.jsonl")) == 2
    assert [session.session_id for session in manifest.read(tmp_path / "chosen" / "test.jsonl")] == ["DH_EVAL_0001"]


def test_one_release_will_do(corpus: Path) -> None:
    assert set(dihard3.read(corpus / "third_dihard_challenge_eval", map)) == {"eval", "eval4"}


@pytest.mark.parametrize("kind", ["flac", "rttm", "uem"])
def test_the_first_missing_file_is_named(corpus: Path, kind: str) -> None:
    (data_dir(corpus, "DH_DEV_0002") / kind / f"DH_DEV_0002.{kind}").unlink()
    with pytest.raises(FileNotFoundError, match=rf"DH_DEV_0002\.{kind}: no such file"):
        dihard3.read(corpus, map)


def test_a_folder_without_sessions_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no data/flac/DH_DEV_0001\.flac"):
        dihard3.read(tmp_path, map)
