from __future__ import annotations

import filecmp
import os
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sortk.corpora import espeak
from sortk.corpora.espeak import EspeakOptions
from sortk.formats import audio, ctm, manifest, rttm, seglst, sources
from sortk.formats.files import FormatError
from sortk.prepare.pieces import SpeakerIndex
from sortk.prepare.simulate import (
    SimulateOptions,
    Simulator,
    draw_targets,
    index_sources,
    simulate_set,
    simulate_splits,
)
from sortk.records import Source
from sortk.run.workers import run_local
from sortk.spans import measure_activity

SHARED = Path(__file__).parents[3] / "shared" / "data"
REAL = ("audiomnist", "librispeech_sub", "speechocean_sub")
MakeSources = Callable[..., list[Source]]
OPTIONS = SimulateOptions(seconds=12.0, min_speakers=2, max_speakers=3)


def simulate(found: list[Source], out: Path, options: SimulateOptions = OPTIONS, n_jobs: int = 1) -> Path:
    def run_jobs(work, items):
        return run_local(work, items, n_jobs)

    speakers = index_sources(found, out, options.sample_rate, run_jobs)
    simulate_set(speakers, options, 0, "sim", 0.02, out / "manifest.jsonl", run_jobs)
    return out


def same_files(first: Path, second: Path) -> bool:
    names = sorted(str(path.relative_to(first)) for path in first.rglob("*") if path.is_file())
    others = sorted(str(path.relative_to(second)) for path in second.rglob("*") if path.is_file())
    return names == others and not filecmp.cmpfiles(first, second, names, shallow=False)[1]


def test_files_agree_with_each_other_and_with_the_sound(tmp_path: Path, make_sources: MakeSources) -> None:
    out = simulate(make_sources(), tmp_path / "out")
    sessions = manifest.read(out / "manifest.jsonl")
    assert len(sessions) == 6 and {session.duration for session in sessions} == {12.0}
    for session in sessions:
        assert session.rttm_path and session.seglst_path and session.ctm_path
        segments, words = rttm.read(session.rttm_path), seglst.read(session.seglst_path)
        assert session.num_speakers == len({segment.speaker for segment in segments})
        assert [(w.start, w.end, w.text) for w in ctm.read(session.ctm_path)] == [
            (w.start, w.end, w.text) for w in words
        ]
        for word in words:
            assert any(s.speaker == word.speaker and s.start <= word.start < word.end <= s.end for s in segments)
        # tones are words here: the sound is where a word is, and nowhere else
        samples = audio.read(session.audio_path).reshape(-1, 160)
        loud = np.square(samples).mean(axis=1) > 1e-5
        inside = np.zeros(1200, bool)
        for word in words:
            inside[round(word.start * 100) : round(word.end * 100)] = True
        assert (loud == inside).mean() > 0.97


def test_any_number_of_jobs_writes_the_same_bytes(tmp_path: Path, make_sources: MakeSources) -> None:
    found = make_sources()
    assert same_files(simulate(found, tmp_path / "one"), simulate(found, tmp_path / "three", n_jobs=3))


def test_an_interrupted_run_does_only_what_is_missing(tmp_path: Path, make_sources: MakeSources) -> None:
    found = make_sources()
    whole, resumed = simulate(found, tmp_path / "whole"), simulate(found, tmp_path / "resumed")
    (resumed / "manifest.jsonl").unlink()
    for path in ("plan/sim-000003.json", "audio/sim-000003.flac", "plan/sim-000005.json", "pieces/00001.json"):
        (resumed / path).unlink()
    kept = resumed / "audio" / "sim-000000.flac"
    os.utime(kept, (1, 1))
    simulate(found, resumed)
    assert kept.stat().st_mtime == 1 and same_files(whole, resumed)


@pytest.mark.parametrize("content", ["", "null", "[]", "{}", '{"audio": 3}'])
@pytest.mark.parametrize("name", ["plan/sim-000003.json", "pieces/00001.json"])
def test_a_damaged_file_of_its_own_is_named(tmp_path: Path, make_sources: MakeSources, name: str, content: str) -> None:
    """As a power failure leaves it; without it, the work goes on."""
    found = make_sources()
    out = simulate(found, tmp_path / "out")
    (out / "manifest.jsonl").unlink()
    (out / name).write_text(content, encoding="utf-8")
    with pytest.raises(FormatError, match=f"{Path(name).name}: is damaged; remove it and run the same command again"):
        simulate(found, out)
    (out / name).unlink()
    simulate(found, out)
    assert (out / "manifest.jsonl").is_file()


def test_on_the_fly_equals_the_files(tmp_path: Path, make_sources: MakeSources) -> None:
    out = simulate(make_sources(), tmp_path / "out")
    speakers = index_sources(make_sources(), tmp_path / "index", 16000, map)
    simulator = Simulator(speakers, OPTIONS, 0, "sim")
    for index, session in reversed(list(enumerate(manifest.read(out / "manifest.jsonl")))):
        plan = simulator.plan(index)
        assert np.array_equal(simulator.render(plan), (audio.read(session.audio_path) * 32768).astype(np.int16))
        assert session.rttm_path and sorted(plan.segments(), key=lambda s: (s.start, s.end)) == rttm.read(
            session.rttm_path
        )


def test_loud_and_soft_speakers_come_out_equal(tmp_path: Path, make_sources: MakeSources) -> None:
    options = SimulateOptions(seconds=20.0, min_speakers=4, max_speakers=4, overlap=0.0, level_spread_db=0.0)
    speakers = index_sources(make_sources(4), tmp_path, 16000, map)
    simulator = Simulator(speakers, options, 0, "sim")
    plan = simulator.plan(0)
    samples = simulator.render(plan) / 32768
    levels = {}
    for name in {speaker.name for speaker in plan.speakers}:
        spoken = [samples[round(16000 * s.start) : round(16000 * s.end)] for s in plan.segments() if s.speaker == name]
        levels[name] = 10 * np.log10(np.mean(np.concatenate(spoken) ** 2))
    assert len(levels) == 4
    for level in levels.values():
        assert level == pytest.approx(-26, abs=1.0)  # pauses inside a turn differ a little


def test_splits_use_their_own_speakers(tmp_path: Path, make_sources: MakeSources) -> None:
    from dataclasses import replace

    found = [
        replace(source, split="test" if source.speaker in ("spk0", "spk1") else "train") for source in make_sources(5)
    ]
    options = SimulateOptions(hours={"train": 0.01, "test": 0.01}, seconds=9.0, min_speakers=2, max_speakers=2)
    simulate_splits(found, options, 0, tmp_path, map)
    for split, names in (("train", {"spk2", "spk3", "spk4"}), ("test", {"spk0", "spk1"})):
        sessions = manifest.read(tmp_path / f"{split}.jsonl")
        assert len(sessions) == 4
        heard = {segment.speaker for session in sessions for segment in rttm.read(session.rttm_path)}  # type: ignore[arg-type]
        assert heard == names
    found[0] = replace(found[0], split="train")
    with pytest.raises(ValueError, match="speaker spk0 is in two splits"):
        simulate_splits(found, options, 0, tmp_path / "again", map)


def test_too_few_speakers_is_one_sentence(tmp_path: Path, make_sources: MakeSources) -> None:
    with pytest.raises(
        ValueError, match="up to 3 speakers need as many different ones, but the sources of 'sim' have 2"
    ):
        simulate(make_sources(2), tmp_path)


@pytest.mark.parametrize("n_sessions", [20, 80, 300])
def test_targets_average_to_the_setting_for_any_number_of_sessions(n_sessions: int) -> None:
    options = SimulateOptions(overlap=0.12, silence=0.1)
    for seed in range(5):
        targets = [draw_targets(options, seed, "sim", index) for index in range(n_sessions)]
        assert statistics.mean(target.overlap for target in targets) == pytest.approx(0.12, abs=0.3 / n_sessions)
        assert statistics.mean(target.silence for target in targets) == pytest.approx(0.10, abs=0.3 / n_sessions)
        counts = [sum(target.n_speakers == n for target in targets) for n in (2, 3, 4)]
        assert max(counts) - min(counts) <= 5


def test_single_speaker_sessions_do_not_lower_the_overlap_of_the_set() -> None:
    options = SimulateOptions(overlap=0.12, min_speakers=1, max_speakers=4)
    targets = [draw_targets(options, 0, "sim", index) for index in range(400)]
    overlaps = [target.overlap if target.n_speakers > 1 else 0.0 for target in targets]
    assert statistics.mean(overlaps) == pytest.approx(0.12, abs=0.004)


SPEECH = ["espeak", *(path.parent.name for path in sorted(SHARED.glob("*/sources.jsonl")) if path.parent.name in REAL)]


@pytest.fixture(scope="module", params=SPEECH)
def speech(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[SpeakerIndex]:
    """Speakers of the embedded voices and, where they are at hand, of real corpora."""
    out = tmp_path_factory.mktemp(request.param)
    if request.param == "espeak":
        found = espeak.prepare(EspeakOptions(speakers=8, utterances_per_speaker=12), out, 0, map)
    else:
        found = sources.read(SHARED / request.param / "sources.jsonl")[:2000]
    return index_sources(found, out, 16000, map)


@pytest.mark.parametrize(("overlap", "silence"), [(0.12, 0.10), (0.05, 0.20), (0.25, 0.05)])
def test_speech_reaches_the_targets(speech: list[SpeakerIndex], overlap: float, silence: float) -> None:
    simulator = Simulator(speech, SimulateOptions(overlap=overlap, silence=silence), 1, "sim")
    activities = []
    for index in range(80):
        plan = simulator.plan(index)
        assert plan.duration == 90.0
        activities.append(measure_activity(plan.segments(), plan.duration))
    spoken = sum(activity.speech for activity in activities)
    assert sum(activity.overlap for activity in activities) / spoken == pytest.approx(overlap, abs=0.01)
    assert 1 - spoken / (80 * 90) == pytest.approx(silence, abs=0.01)
    assert statistics.median(a.overlap / a.speech for a in activities) == pytest.approx(overlap, abs=0.03)
    assert statistics.median(1 - a.speech / 90 for a in activities) == pytest.approx(silence, abs=0.03)


def test_casts_are_drawn_from_one_collection_and_from_sentences(tmp_path: Path, make_sources: MakeSources) -> None:
    speakers = index_sources(make_sources(n_speakers=8), tmp_path, 16000, map)
    half = len(speakers) // 2
    # two folders; the speakers of the first say single words
    placed = [
        replace(speaker, collection=Path("ab"[number < half]), utterance_ms=800 if number < half else 4000)
        for number, speaker in enumerate(speakers)
    ]
    words = {speaker.speaker for speaker in placed[:half]}

    def shares(**settings: float) -> list[float]:
        simulator = Simulator(placed, replace(OPTIONS, **settings), 0, "x")
        casts = [{speaker.name for speaker in simulator.plan(number).speakers} for number in range(40)]
        return [len(cast & words) / len(cast) for cast in casts]

    assert any(0 < share < 1 for share in shares())
    assert set(shares(same_collection=1.0)) == {0.0, 1.0}
    assert set(shares(sentences=1.0)) == {0.0}


def test_casts_of_similar_pitch(tmp_path: Path, make_sources: MakeSources) -> None:
    speakers = index_sources(make_sources(n_speakers=8), tmp_path, 16000, map)

    def draw(pitches: list[float], *speeds: float) -> list[set[float]]:
        pool = [replace(speaker, pitch_hz=pitch) for speaker, pitch in zip(speakers, pitches, strict=True)]
        options = replace(OPTIONS, min_speakers=2, max_speakers=2, same_pitch=1.0, speeds=speeds)
        simulator = Simulator(pool, options, 0, "x")
        pitch_of = {speaker.speaker: speaker.pitch_hz for speaker in pool}
        casts = [simulator.plan(number).speakers for number in range(40)]
        return [{pitch_of[voice.name.partition("@")[0]] * voice.speed for voice in cast} for cast in casts]

    assert all(len(cast) == 1 for cast in draw([100.0, 200.0] * 4, 1.0))
    played = draw([100.0, 200.0] * 4, 1.0, 2.0)  # at double speed, a low voice resembles a high one
    assert sum(len(cast) == 1 for cast in played) > 35 and {200.0} in played
    assert all(cast == {0.0} for cast in draw([0.0] * 8, 1.0))  # nothing is known: any speakers


def test_shares_of_sessions_with_noise_rooms_and_codecs(tmp_path: Path, make_sources: MakeSources) -> None:
    audio.write_flac(tmp_path / "noise" / "n.flac", np.full(16000, 0.1, np.float32))
    speakers = index_sources(make_sources(), tmp_path, 16000, map)
    folder = str(tmp_path / "noise")
    shares = {"clean_share": 0.5, "dry_share": 0.25, "room_tone": 0.75, "bursts": 0.6, "coded_share": 0.1}
    options = replace(OPTIONS, noise_dir=folder, rir_dir=folder, codecs=("telephone", "mp3"), **shares)
    simulator = Simulator(speakers, options, 0, "x")
    plans = [simulator.plan(number) for number in range(400)]
    assert sum(plan.noise is None for plan in plans) / 400 == pytest.approx(0.5, abs=0.08)
    assert sum(plan.speakers[0].rir is None for plan in plans) / 400 == pytest.approx(0.25, abs=0.08)
    assert sum(plan.room_tone is not None for plan in plans) / 400 == pytest.approx(0.75, abs=0.08)
    assert sum(plan.bursts is not None for plan in plans) / 400 == pytest.approx(0.6, abs=0.08)
    assert sum(plan.codec != "" for plan in plans) / 400 == pytest.approx(0.1, abs=0.05)
    assert {plan.codec for plan in plans} == {"", *options.codecs}
