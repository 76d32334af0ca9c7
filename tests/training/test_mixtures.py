"""Mixtures that are rendered while a model learns: the same as those on disk, and in bounded memory."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from sortk.formats import audio, manifest, mixlist
from sortk.formats.annotation import prefer_rttm, recorded_segments
from sortk.formats.files import FormatError
from sortk.formats.mixlist import IndexedList
from sortk.formats.sst import SstOptions
from sortk.formats.tokens import train_tokenizer
from sortk.prepare.librispeechmix import ListedMixtures, list_at_random, list_path, mix_at_random
from sortk.prepare.simulate import SimulateOptions
from sortk.prepare.sst import serialize_sessions
from sortk.records import Source
from sortk.training.data import MixtureSource, plan_epoch
from sortk.training.options import BatchLimit
from sortk.training.targets import AsrLabels, DiarizerLabels, LabelledClip

TEXTS = ("one two three", "four five", "six", "seven eight nine ten")


def make_sources(folder: Path) -> list[Source]:
    """Four speakers with two utterances each, one after the other in a file."""
    rng, sources = np.random.default_rng(0), []
    for number, text in enumerate(TEXTS):
        path = folder / f"{number}.flac"
        audio.write_flac(path, rng.normal(0, 0.1, 40_000).astype(np.float32))
        sources += [
            Source(f"{number}-{n}", path, start, seconds, f"s{number}", text, split="train")
            for n, (start, seconds) in enumerate([(0.0, 1.5), (1.5, 1.0)])
        ]
    return sources


def test_mixtures_on_the_fly_are_those_on_disk(tmp_path: Path) -> None:
    sources, sst = make_sources(tmp_path), SstOptions(level="segment")
    mix_at_random(sources, {"train": 20}, 3, tmp_path / "disk", map)
    summary = list_at_random(sources, {"train": 20}, 3, tmp_path / "fly")
    rendered, _ = serialize_sessions(manifest.read(tmp_path / "disk" / "train.jsonl"), sst)
    assert summary["train"]["mixtures"] == 20
    assert summary["train"]["hours"] == pytest.approx(sum(s.duration or 0 for s in rendered) / 3600, abs=1e-3)
    path = list_path(tmp_path / "fly", "train")
    mixer = ListedMixtures(IndexedList(path), path.parent, rounds=False)
    asr = AsrLabels(train_tokenizer(list(TEXTS) * 4, 60, n_speakers=3), 3, sst, max_tokens=100)
    for_asr, for_diarizer = MixtureSource(mixer, asr), MixtureSource(mixer, DiarizerLabels(3), max_seconds=2.0)
    assert len(for_asr) == len(rendered) == 20
    for number, session in enumerate(rendered):
        example, samples = for_asr.load(number, 0), audio.read(session.audio_path)
        assert np.array_equal(example.samples, samples)  # sample by sample
        assert (example.name, example.text) == (session.session_id, session.text)
        turns, words = recorded_segments(prefer_rttm(session)), recorded_segments(session)
        assert np.array_equal(
            example.targets, asr.make_example(LabelledClip("", samples, 0.0, turns, words, session.text or "")).targets
        )
        assert for_asr.seconds(number, 0) == pytest.approx(len(samples) / 16000, abs=1e-4)
        cut = for_diarizer.load(number, 0)
        assert np.array_equal(cut.samples, samples[:32000]) and for_diarizer.seconds(number, 0) <= 2.0


def test_an_epoch_is_the_next_part_of_the_list(tmp_path: Path) -> None:
    list_at_random(make_sources(tmp_path), {"train": 10}, 0, tmp_path)
    path = list_path(tmp_path, "train")
    source = MixtureSource(ListedMixtures(IndexedList(path), path.parent, rounds=False), DiarizerLabels(3), per_epoch=4)
    names = [[int(source.load(n, epoch).name.rpartition("-")[2]) for n in range(len(source))] for epoch in range(3)]
    assert names == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]]
    lengths = [[round(16000 * source.seconds(n, epoch)) for n in range(4)] for epoch in range(3)]
    assert lengths == [[pytest.approx(len(source.load(n, e).samples), abs=2) for n in range(4)] for e in range(3)]


def write_long_list(path: Path, n_mixtures: int) -> Path:
    about = {"wavs": ["a.wav", "b.wav"], "delays": [0.0, 1.0], "durations": [9.0, 4.0], "speakers": ["a", "b"]}
    rest = json.dumps(about | {"texts": ["some words", "more"]}).removeprefix("{")
    path.write_text("".join(f'{{"id": "m{n}", {rest}\n' for n in range(n_mixtures)), encoding="utf-8")
    return path


def test_memory_does_not_grow_with_the_list(tmp_path: Path) -> None:
    peaks = []
    for n_mixtures in (2_000, 200_000):
        path = write_long_list(tmp_path / f"{n_mixtures}.jsonl", n_mixtures)
        tracemalloc.start()
        mixtures = IndexedList(path)
        source = MixtureSource(ListedMixtures(mixtures, tmp_path), DiarizerLabels(2), per_epoch=200)
        batches = plan_epoch([source], BatchLimit(samples=8), seed=0, epoch=n_mixtures // 200 - 1)
        last = mixtures[n_mixtures - 1]
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert sum(map(len, batches)) == 200 and len(mixtures) == n_mixtures
        assert last.mixture_id == f"m{n_mixtures - 1}"
    assert peaks[1] < peaks[0] + 200_000  # bytes: half a byte per mixture, and the array's spare room


def test_any_mixture_of_the_list_is_the_one_of_its_line(tmp_path: Path) -> None:
    path = write_long_list(tmp_path / "list.jsonl", 100)
    mixtures, whole = IndexedList(path), mixlist.read(path)
    assert [mixtures[number] for number in range(100)] == whole == list(mixtures)
    assert mixtures[30:70] == whole[30:70] and mixtures[90:200] == whole[90:] and mixtures[5:90:7] == whole[5:90:7]
    assert mixtures[50:50] == []
    with pytest.raises(IndexError):
        mixtures[100]
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([*lines[:40], "{" * len(lines[40]), *lines[41:]]) + "\n", encoding="utf-8")
    with pytest.raises(FormatError, match=r"list.jsonl, line 41: broken JSON"):
        IndexedList(path)[40]


def test_only_mixtures_can_be_made_on_the_fly() -> None:
    with pytest.raises(ValueError, match="on_the_fly names 'train', which is not a key of mixtures"):
        SimulateOptions(on_the_fly=("train",))
