"""NIST SRE 2004 to 2010, on a miniature of the data directories that Kaldi's recipes make."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from spheres import write_call, write_sphere

from sortk.corpora import sre
from sortk.corpora.registry import PrepareOptions, prepare_corpus
from sortk.formats import manifest, sources
from sortk.formats.annotation import session_segments
from sortk.prepare.simulate import SimulateOptions, simulate_splits
from sortk.records import Source


def write_directory(folder: Path, **tables: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in tables.items():
        (folder / name.replace("wav_scp", "wav.scp")).write_text(text)
    return folder


@pytest.fixture
def whole_sides(tmp_path: Path) -> Path:
    write_call(tmp_path / "audio" / "tabc-A.sph", 12.0, channels=1)
    write_call(tmp_path / "audio" / "tabc-B.sph", 12.0, channels=1)
    return write_directory(
        tmp_path / "sre04",
        wav_scp="tabc-A ../audio/tabc-A.sph\ntabc-B ../audio/tabc-B.sph\n",
        utt2spk="tabc-A 3012\ntabc-B 3400\n",
    )


def test_a_side_is_an_utterance(whole_sides: Path, tmp_path: Path) -> None:
    audio = tmp_path / "audio"
    assert sre.prepare(whole_sides, map) == [
        Source("3012-tabc-A-0", audio / "tabc-A.sph", 0.0, 12.0, "3012", ""),
        Source("3400-tabc-B-0", audio / "tabc-B.sph", 0.0, 12.0, "3400", ""),
    ]


def test_segments_and_texts_where_somebody_has_them(whole_sides: Path) -> None:
    write_directory(
        whole_sides,
        segments="a tabc-A 0.50 2.00\nb tabc-B 3.25 4.00\nc tabc-B 11.50 12.25\n",
        utt2spk="a 3012\nb 3400\nc 3400\n",
        text="a hello you\nb hi\nc bye\n",
    )
    assert [(s.utterance_id, s.offset, s.duration, s.text) for s in sre.prepare(whole_sides, map)] == [
        ("3012-tabc-A-500", 0.5, 1.5, "hello you"),
        ("3400-tabc-B-3250", 3.25, 0.75, "hi"),
        ("3400-tabc-B-11500", 11.5, 0.5, "bye"),  # the audio ends at 12 s
    ]


def test_both_sides_in_one_file_are_refused(whole_sides: Path, tmp_path: Path) -> None:
    write_call(tmp_path / "audio" / "tabc-B.sph", 12.0, channels=2)
    with pytest.raises(ValueError, match=r"tabc-B\.sph: has 2 channels, .* sph2pipe -p -f wav -c 1"):
        sre.prepare(whole_sides, map)


def test_a_pipe_is_refused(whole_sides: Path) -> None:
    write_directory(whole_sides, wav_scp="tabc-A sph2pipe -f wav -p -c 1 tabc.sph |\ntabc-B x.wav\n")
    with pytest.raises(ValueError, match=r"wav\.scp, line 1: a pipe"):
        sre.prepare(whole_sides, map)


@pytest.mark.parametrize("with_durations", [False, True])
def test_a_missing_file_is_named(whole_sides: Path, tmp_path: Path, with_durations: bool) -> None:
    if with_durations:
        write_directory(whole_sides, reco2dur="tabc-A 12\ntabc-B 12\n")
    (tmp_path / "audio" / "tabc-B.sph").unlink()
    with pytest.raises((FileNotFoundError, ValueError), match=r"tabc-B\.sph: no such"):
        sre.prepare(whole_sides, map)


def test_conversations_are_made_of_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tables = {"wav_scp": "", "utt2spk": ""}
    for number in range(4):
        bursts = [np.concatenate([rng.normal(0, 3000, 8000 * 2), np.zeros(8000)]) for _ in range(5)]
        samples = np.concatenate(bursts).astype("<i2")
        write_sphere(tmp_path / f"{number}.sph", samples.tobytes(), "pcm", channels=1)
        tables["wav_scp"] += f"side{number} {tmp_path / f'{number}.sph'}\n"
        tables["utt2spk"] += f"side{number} speaker{number}\n"
    folder = write_directory(tmp_path / "data", **tables)
    options = PrepareOptions(corpus="sre", corpus_dir=str(folder), valid_fraction=0.0, test_fraction=0.0)
    prepare_corpus(options, tmp_path / "out", 0)
    utterances = sources.read(tmp_path / "out" / "sources.jsonl")
    assert [source.split for source in utterances] == ["train"] * 4
    simulation = SimulateOptions(hours={"train": 0.01}, seconds=12, max_speakers=3)
    simulate_splits(utterances, simulation, 0, tmp_path / "simulated", map)
    sessions = manifest.read(tmp_path / "simulated" / "train.jsonl")
    assert len(sessions) == 3
    for session in sessions:
        turns = session_segments(replace(session, seglst_path=None, ctm_path=None))
        assert len({turn.speaker for turn in turns}) == session.num_speakers
        assert sum(turn.duration for turn in turns) > 8  # of 12 s; a third of every side is silent, and left out
