from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import soundfile
import torch
from toys import ToySource

from sortk.corpora.espeak import EspeakOptions, prepare
from sortk.formats import audio, rttm
from sortk.prepare.simulate import SimulateOptions, Simulator, index_sources, name_voice
from sortk.records import Segment, Session
from sortk.training.data import BatchLoader, RecordedSource, SimulatedSource, count_simulated, plan_epoch
from sortk.training.options import AsrPhaseOptions, BatchLimit, LoopOptions, PhaseOptions
from sortk.training.targets import DiarizerLabels

MINUTE = BatchLimit(seconds=60.0)


def test_every_example_is_in_one_batch_of_the_right_length() -> None:
    sources = [ToySource([10.0] * 7 + [30.0] * 5), ToySource([20.0] * 6)]
    plan = plan_epoch(sources, MINUTE, seed=0, epoch=0)
    assert sorted(place for batch in plan for place in batch) == [(0, i) for i in range(12)] + [
        (1, i) for i in range(6)
    ]
    for batch in plan:
        assert len(batch) * max(sources[s].seconds(i, epoch=0) for s, i in batch) <= 60.0
    assert plan == plan_epoch(sources, MINUTE, seed=0, epoch=0)
    assert plan != plan_epoch(sources, MINUTE, seed=0, epoch=1) and plan != plan_epoch(
        sources, BatchLimit(seconds=60.0), seed=1, epoch=0
    )


def test_an_example_longer_than_a_batch_is_a_batch() -> None:
    assert plan_epoch([ToySource([90.0, 5.0])], MINUTE, 0, 0) in (
        [[(0, 0)], [(0, 1)]],
        [[(0, 1)], [(0, 0)]],
    )


def test_a_batch_can_have_a_number_of_samples_whatever_their_length() -> None:
    sources = [ToySource([10.0] * 7 + [90.0] * 6)]
    plan = plan_epoch(sources, BatchLimit(samples=4), seed=0, epoch=0)
    assert sorted(map(len, plan)) == [1, 4, 4, 4] and {i for batch in plan for _, i in batch} == set(range(13))
    two_processes = list(BatchLoader([ToySource([0.8] * 16)], BatchLimit(samples=4), 0).load_epoch(0, 0, 1, 2))
    assert [len(batch.names) for batch in two_processes] == [4, 4]  # each process has 4 of 8


def test_a_phase_has_one_limit_of_a_batch() -> None:
    assert PhaseOptions().batch_limit == BatchLimit(samples=4)  # section 5.1.3
    assert AsrPhaseOptions().batch_limit == BatchLimit(samples=64)  # section 5.3.2
    assert PhaseOptions(loop=LoopOptions(batch_size=3)).batch_limit == BatchLimit(samples=3)
    assert AsrPhaseOptions(loop=LoopOptions(batch_seconds=30.0)).batch_limit == BatchLimit(seconds=30.0)
    with pytest.raises(
        ValueError, match=r"batch_size \(4 samples\) and batch_seconds \(360 s\) are both set; exactly one"
    ):
        LoopOptions(batch_size=4, batch_seconds=360.0)


@pytest.mark.parametrize(
    ("n_recorded", "simulated", "expected"), [(4, 0.1, 1), (9, 0.1, 1), (12, 0.5, 12), (3, 1, 400)]
)
def test_a_phase_that_asks_for_simulation_gets_some(n_recorded: int, simulated: float, expected: int) -> None:
    for phase in (PhaseOptions, AsrPhaseOptions):
        assert count_simulated(phase(simulated=simulated, seconds=90.0), n_recorded) == expected


@pytest.mark.parametrize("n_workers", [0, 1])
def test_an_epoch_can_be_entered_anywhere(n_workers: int) -> None:
    loader = BatchLoader([ToySource([0.8] * 10 + [1.6] * 6)], BatchLimit(seconds=3.2), seed=0, n_workers=n_workers)
    whole, tail = list(loader.load_epoch(3)), list(loader.load_epoch(3, first=2))
    assert [batch.names for batch in whole[2:]] == [batch.names for batch in tail]
    assert all(torch.equal(a.samples, b.samples) for a, b in zip(whole[2:], tail, strict=True))


def test_shares_of_a_batch_are_disjoint_and_whole() -> None:
    whole, half = (BatchLoader([ToySource([0.8] * 16)], BatchLimit(seconds=seconds), seed=0) for seconds in (6.4, 3.2))
    shares = half.load_epoch(0, 0, 0, 2), half.load_epoch(0, 0, 1, 2)
    for batch, first, second in zip(whole.load_epoch(0), *shares, strict=True):
        assert first.n_in_all == second.n_in_all == batch.n_in_all == len(batch.names)
        assert sorted(first.names + second.names) == sorted(batch.names)
        assert len(first.names) == len(second.names)


def make_session(folder: Path, seconds: float = 8.0) -> Session:
    audio.write_flac(folder / "a.flac", np.arange(round(seconds * 16000), dtype=np.int16) % 1000)
    rttm.write(folder / "a.rttm", [Segment("a", "x", 1.0, 3.0), Segment("a", "y", 2.0, 7.0)])
    return Session("a", folder / "a.flac", duration=seconds, rttm_path=folder / "a.rttm")


def test_a_whole_session_and_its_targets(tmp_path: Path) -> None:
    source = RecordedSource([make_session(tmp_path)], DiarizerLabels(3, {"x": 5}), max_seconds=90.0)
    example = source.load(0, epoch=0)
    assert len(example.samples) == 8 * 16000 and example.targets.shape == (100, 3)
    assert example.targets.sum(axis=0).tolist() == [26, 63, 0]  # 1.0, 3.0 and 7.0 s halve frames 12, 37 and 87
    assert (example.speakers == 5).sum() == 13  # frames 12 to 24, before y starts


def test_a_long_session_gives_another_window_every_epoch(tmp_path: Path) -> None:
    source = RecordedSource([make_session(tmp_path)], DiarizerLabels(2), max_seconds=2.0)
    first, again, other = source.load(0, 0), source.load(0, 0), source.load(0, 1)
    assert source.seconds(0, epoch=0) == 2.0 and len(first.samples) == 32000
    assert np.array_equal(first.samples, again.samples) and not np.array_equal(first.samples, other.samples)


def test_windows_that_share_one_rttm_learn_their_own_recording(tmp_path: Path) -> None:
    """As NeMo writes manifests: the RTTM names recordings, which the ids of their windows are not."""
    session = make_session(tmp_path)
    turns = [Segment("a", "x", 1.0, 3.0), Segment("a", "y", 2.0, 7.0), Segment("b", "z", 0.0, 8.0)]
    rttm.write(tmp_path / "all.rttm", turns)
    window = replace(session, session_id="a-4000", offset=4.0, duration=4.0, rttm_path=tmp_path / "all.rttm")
    example = RecordedSource([window], DiarizerLabels(2)).load(0, 0)
    assert example.targets.sum(axis=0).tolist() == [38, 0]  # y, from 4 to 7 s: half of frame 37, which begins at 6.96 s
    other = replace(window, session_id="c-0", audio_path=tmp_path / "c.flac")
    (tmp_path / "c.flac").write_bytes(session.audio_path.read_bytes())
    with pytest.raises(ValueError, match=r"all\.rttm: has several sessions, but not 'c-0'"):
        RecordedSource([other], DiarizerLabels(2)).load(0, 0)


def test_a_session_without_rttm_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="session b has no rttm_filepath, which training requires"):
        RecordedSource([Session("b", tmp_path / "b.flac", duration=1.0)], DiarizerLabels(4))


@pytest.mark.parametrize("n_workers", [0, 1])
def test_bad_audio_is_named_in_one_sentence(tmp_path: Path, n_workers: int) -> None:
    session = make_session(tmp_path)
    soundfile.write(tmp_path / "nan.wav", np.full(16000, np.nan, np.float32), 16000, subtype="FLOAT")
    bad = replace(session, audio_path=tmp_path / "nan.wav", duration=1.0)
    loader = BatchLoader([RecordedSource([bad], DiarizerLabels(2))], BatchLimit(seconds=10.0), 0, n_workers)
    with pytest.raises(ValueError, match=r"^\S+nan\.wav: has samples that are not finite numbers$"):
        list(loader.load_epoch(0))


def test_a_session_without_one_frame_is_named(tmp_path: Path) -> None:
    source = RecordedSource([replace(make_session(tmp_path), duration=0.005)], DiarizerLabels(2))
    with pytest.raises(ValueError, match=r"^session a has 80 samples at 0\.0 s: not one frame$"):
        source.load(0, 0)


def test_conversations_name_the_voices_in_them(tmp_path: Path) -> None:
    found = prepare(EspeakOptions(speakers=4, utterances_per_speaker=3), tmp_path / "voices", 0, map)
    options = SimulateOptions(seconds=9, min_speakers=2, max_speakers=2, speeds=(1.0, 0.9))
    simulator = Simulator(index_sources(found, tmp_path, 16000, map), options, 0, "fly")
    number_of = {name_voice(source.speaker, speed): 7 if speed == 1 else 8 for source in found for speed in (1, 0.9)}
    source = SimulatedSource(simulator, 4, DiarizerLabels(2, number_of))
    examples = [source.load(index, epoch=0) for index in range(4)]
    assert all(len(example.samples) == 9 * 16000 and len(example.targets) == 113 for example in examples)
    assert {number for example in examples for number in example.speakers} == {-1, 7, 8}
    # A window of 4 s is a part of the same conversation, with the same targets; columns are by arrival in the window.
    windows = SimulatedSource(simulator, 4, DiarizerLabels(2, number_of), window_seconds=4)
    window, session = windows.load(1, epoch=0), examples[1].samples
    assert windows.seconds(1, 0) == 4 and len(window.samples) == 64000
    first = round(Random("fly-000001").uniform(0.0, 5.0) * 16000)
    assert np.corrcoef(session[first : first + 64000], window.samples)[0, 1] > 0.98
    spoken = examples[1].targets.sum(axis=1)[round(first / 1280) :][: len(window.targets)]
    assert np.mean(spoken == window.targets.sum(axis=1)) > 0.9  # frames are shifted by up to a half


def test_padding_is_marked(tmp_path: Path) -> None:
    [batch] = BatchLoader([ToySource([0.8, 0.88])], BatchLimit(seconds=10.0), seed=0).load_epoch(0)
    assert batch.lengths is not None and sorted(batch.lengths.tolist()) == [12800, 14080]
    assert batch.targets.shape == (2, 11, 2) and batch.seconds == pytest.approx(1.68)
