from __future__ import annotations

import itertools
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import soundfile

from sortk.corpora.espeak import (
    EspeakOptions,
    EspeakSpeaker,
    all_speakers,
    open_synthesizer,
    prepare,
    synthesize_speaker,
)
from sortk.formats import audio
from sortk.records import Source

SPEAKERS = all_speakers()
RATE = 16_000
Floats = npt.NDArray[np.float64]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Source]]:
    out = tmp_path_factory.mktemp("espeak")
    return out, prepare(EspeakOptions(speakers=3, utterances_per_speaker=25), out, 0, map)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- the table of speakers ---


def test_names_are_unique_and_genders_balanced() -> None:
    assert len(SPEAKERS) == len({speaker.name for speaker in SPEAKERS}) >= 60
    assert len({speaker.voice for speaker in SPEAKERS}) == len(SPEAKERS)
    assert Counter(speaker.gender for speaker in SPEAKERS) == {"f": len(SPEAKERS) / 2, "m": len(SPEAKERS) / 2}


@pytest.mark.parametrize("count", [6, 20, 64, len(SPEAKERS)])
def test_every_split_has_women_and_men_and_variants_of_its_own(count: int) -> None:
    chosen = SPEAKERS[:count]
    for split in ("train", "valid", "test"):
        members = Counter(speaker.gender for speaker in chosen if speaker.split == split)
        assert abs(members["f"] - members["m"]) <= 2
        assert min(members["f"], members["m"]) >= 1
    split_of_variant = {(speaker.voice.variant, speaker.split) for speaker in chosen}
    assert len(split_of_variant) == len({variant for variant, _ in split_of_variant})


def test_the_closest_two_speakers_are_clearly_apart() -> None:
    profiles = [voice_profile(speaker) for speaker in SPEAKERS]
    distance, first, second = min(
        (voice_distance(one, other), SPEAKERS[i].name, SPEAKERS[j].name)
        for (i, one), (j, other) in itertools.combinations(enumerate(profiles), 2)
    )
    # In dB and semitones. Halves of one speaker's default material differ by 0.6 (median) and at most 1.2.
    assert distance > 2.0, f"{first} and {second} differ by {distance:.2f}"


def voice_profile(speaker: EspeakSpeaker) -> tuple[Floats, float]:
    """Mean mel spectrum in dB without its level, and median pitch in semitones, over the same words for everybody."""
    texts = ("my brother bought a small house near the river.", "how many people are coming on friday?")
    with open_synthesizer(speaker.voice, seed=0) as voice:
        speech = np.concatenate([voice.speak(text, [0]).samples for text in texts]) / 32768
    frames = np.lib.stride_tricks.sliding_window_view(speech, 1024)[::256] * np.hanning(1024)
    power = np.abs(np.fft.rfft(frames, 2048)) ** 2
    spoken = power.sum(axis=1) > 1e-4 * power.sum(axis=1).max()
    mel_db = 10 * np.log10(power[spoken] @ mel_filters().T + 1e-8).mean(axis=0)
    correlation = np.fft.irfft(power[spoken])
    lags = np.arange(22050 // 400, 22050 // 60)
    # A window of length n sees a lag with weight 1 - lag/n.
    strength = correlation[:, lags] / correlation[:, :1] / (1 - lags / 1024)
    voiced = strength.max(axis=1) > 0.5
    pitch = 22050 / lags[strength[voiced].argmax(axis=1)]
    return mel_db - mel_db.mean(), float(12 * np.log2(np.median(pitch)))


def mel_filters(n_bands: int = 40, n_fft: int = 2048, sample_rate: int = 22050) -> Floats:
    edges = 700 * (np.geomspace(1 + 60 / 700, 1 + 7600 / 700, n_bands + 2) - 1)  # even steps of log(1 + f / 700)
    frequencies = np.arange(n_fft // 2 + 1) * sample_rate / n_fft
    rising = (frequencies - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - frequencies) / np.diff(edges)[1:, None]
    return np.maximum(np.minimum(rising, falling), 0.0)


def voice_distance(one: tuple[Floats, float], other: tuple[Floats, float]) -> float:
    return float(np.hypot(np.sqrt(np.mean((one[0] - other[0]) ** 2)), one[1] - other[1]))


# --- what is written ---


def test_the_audio_is_16_khz_mono_16_bit_without_clipping(corpus: tuple[Path, list[Source]]) -> None:
    out, utterances = corpus
    for path in sorted((out / "flac").iterdir()):
        header = soundfile.info(path)
        assert (header.samplerate, header.channels, header.subtype) == (RATE, 1, "PCM_16")
        samples = audio.read(path)
        assert 0.1 < np.abs(samples).max() < 0.95
        assert len(samples) == sum(round(u.duration * RATE) for u in utterances if u.audio_path == path)


def test_utterances_lie_end_to_end_on_the_sample_grid(corpus: tuple[Path, list[Source]]) -> None:
    _, utterances = corpus
    for _, group in itertools.groupby(utterances, key=lambda source: source.speaker):
        end = 0.0
        for source in group:
            assert source.offset == pytest.approx(end, abs=1e-9)
            assert source.offset == round(source.offset * RATE) / RATE
            assert source.duration == round(source.duration * RATE) / RATE
            end = source.offset + source.duration


def test_words_are_the_text_in_order_inside_the_utterance(corpus: tuple[Path, list[Source]]) -> None:
    for source in corpus[1]:
        assert [word.text for word in source.words] == source.text.split()
        edges = [time for word in source.words for time in (word.start, word.end)]
        assert edges == sorted(edges)
        assert all(word.end - word.start > 0.02 for word in source.words)
        assert (source.speech_start, source.speech_end) == (edges[0], edges[-1])
        assert edges[-1] <= source.duration


def test_words_hold_energy_and_pauses_do_not(corpus: tuple[Path, list[Source]]) -> None:
    in_words, in_pauses = [], []
    for source in corpus[1]:
        samples = audio.read(source.audio_path, source.offset, source.duration)
        in_words += [level_db(samples, word.start, word.end) for word in source.words]
        for word, following in itertools.pairwise(source.words):
            if following.start - word.end > 0.05:  # the resampling filter rings for some milliseconds
                in_pauses.append(level_db(samples, word.end + 0.01, following.start - 0.01))
    assert len(in_pauses) > 20
    assert min(in_words) > -45
    assert max(in_pauses) < -70


def level_db(samples: audio.Samples, start: float, end: float) -> float:
    window = samples[round(start * RATE) : round(end * RATE)].astype(np.float64)
    return float(10 * np.log10(np.mean(window**2) + 1e-10))


def test_all_speakers_are_equally_loud(corpus: tuple[Path, list[Source]]) -> None:
    out, utterances = corpus
    for path in sorted((out / "flac").iterdir()):
        samples = audio.read(path)
        spans = [(u.offset + w.start, u.offset + w.end) for u in utterances if u.audio_path == path for w in u.words]
        spoken = np.concatenate([samples[round(start * RATE) : round(end * RATE)] for start, end in spans])
        assert level_db(spoken, 0, len(spoken) / RATE) == pytest.approx(-26, abs=0.1)


# --- same bytes, whatever happens ---


def test_order_processes_and_repetition_change_no_byte(tmp_path: Path) -> None:
    variants = ("f1", "f5", "sandro")  # with flutter; with breath and echo; with roughness: all that espeak-ng keeps
    chosen = [next(speaker for speaker in SPEAKERS if speaker.voice.variant == variant) for variant in variants]
    work = partial(synthesize_speaker, options=EspeakOptions(utterances_per_speaker=3), seed=1)
    for speaker in chosen:
        work(speaker, out_dir=tmp_path / "forward")
    for speaker in reversed(chosen):
        work(speaker, out_dir=tmp_path / "backward")
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        list(pool.map(partial(work, out_dir=tmp_path / "processes"), chosen))
    expected = files_of(tmp_path / "forward")
    assert len(expected) == 6
    assert files_of(tmp_path / "backward") == expected
    assert files_of(tmp_path / "processes") == expected


def test_another_seed_says_other_things(tmp_path: Path) -> None:
    texts = [
        [source.text for source in prepare(EspeakOptions(1, 6), tmp_path / str(seed), seed, map)] for seed in (0, 1)
    ]
    assert texts[0] != texts[1]


def test_a_killed_run_goes_on_and_gives_the_same_bytes(tmp_path: Path) -> None:
    options = EspeakOptions(speakers=3, utterances_per_speaker=2)
    prepare(options, tmp_path, 0, map)
    expected = files_of(tmp_path)
    kept = tmp_path / "flac" / f"{SPEAKERS[0].name}.flac"
    (tmp_path / "speakers" / f"{SPEAKERS[1].name}.jsonl").unlink()  # killed between audio and sources
    (tmp_path / "flac" / f"{SPEAKERS[1].name}.flac").write_bytes(b"half")
    (tmp_path / "speakers" / f"{SPEAKERS[2].name}.jsonl").unlink()  # killed before
    (tmp_path / "flac" / f"{SPEAKERS[2].name}.flac").unlink()
    written = kept.stat().st_mtime_ns
    prepare(options, tmp_path, 0, map)
    assert files_of(tmp_path) == expected
    assert kept.stat().st_mtime_ns == written


@pytest.mark.parametrize("options", [{"speakers": 0}, {"speakers": 1000}, {"utterances_per_speaker": 0}])
def test_impossible_options_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be"):
        EspeakOptions(**options)
