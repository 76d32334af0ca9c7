"""Streaming: NVIDIA's numbers where its fixtures are, and the rules of the speaker cache by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from nemo_models import random_sortformer, sortformer_config, sortformer_tensors, write_nemo
from torch import Tensor

from sortk.formats.files import FormatError
from sortk.inference.diarize import DiarizeOptions, load
from sortk.inference.load import load_diarizer
from sortk.inference.streaming import Stream
from sortk.models.diarizer import StreamingOptions
from sortk.models.fastconformer import FastConformerOptions
from sortk.models.features import FeatureOptions
from sortk.models.sortformer import PRESETS, Sortformer, SortformerOptions
from sortk.models.speaker_cache import StreamingState, StreamingStep, compress, score_frames
from sortk.models.transformer import TransformerOptions

SHARED = Path(__file__).parents[3] / "shared" / "fixtures" / "nemo"
needs_nvidia = pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/fixtures/nemo")

SMALL = SortformerOptions(
    n_speakers=3,
    features=FeatureOptions(n_mels=40, gain=False, normalize="none"),
    encoder=FastConformerOptions(d_model=16, n_layers=2, n_heads=2, subsampling_channels=8),
    transformer=TransformerOptions(d_model=8, n_layers=1, n_heads=2, d_inner=24),
)
OFFLINE = replace(SMALL, features=FeatureOptions(n_mels=40))
ODD = StreamingOptions(chunk=31, right_context=3, left_context=2, fifo=40, update_period=50, cache=64)


@pytest.fixture(scope="module")
def nvidia() -> tuple[Sortformer, Tensor, dict[str, Tensor]]:
    model = load_diarizer(SHARED / "tiny_streaming_sortformer.nemo").model
    assert isinstance(model, Sortformer)
    samples = torch.from_numpy(soundfile.read(SHARED / "d_60.wav", dtype="float32")[0])[None]
    with np.load(SHARED / "tiny_streaming_d_60.npz") as arrays:
        return model, samples, {name: torch.from_numpy(arrays[name]) for name in arrays}


def run(model: Sortformer, options: StreamingOptions, samples: Tensor, piece: int | None = None) -> Tensor:
    stream = Stream(StreamingStep(model, options), len(samples))
    pieces = samples.split(piece, dim=1) if piece else [samples]
    return torch.cat([*(stream.push(part) for part in pieces), stream.finish()], dim=1)


@needs_nvidia
@pytest.mark.parametrize(
    ("name", "options"),
    [("preds_default", StreamingOptions()), ("preds_lowlat", PRESETS["1.04"]), ("preds_odd", ODD)],
)
def test_posteriors_are_nvidias(
    name: str, options: StreamingOptions, nvidia: tuple[Sortformer, Tensor, dict[str, Tensor]]
) -> None:
    model, samples, expected = nvidia
    torch.testing.assert_close(run(model, options, samples), expected[name], atol=1e-4, rtol=0)


@needs_nvidia
def test_the_state_after_each_step_is_nvidias(
    nvidia: tuple[Sortformer, Tensor, dict[str, Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, samples, expected = nvidia
    states: list[StreamingState] = []
    step = StreamingStep.__call__

    def keep(self: StreamingStep, *args: object) -> tuple[Tensor, StreamingState]:
        probs, state = step(self, *args)  # type: ignore[arg-type]
        states.append(state)
        return probs, state

    monkeypatch.setattr(StreamingStep, "__call__", keep)
    run(model, StreamingOptions(), samples)
    assert len(states) == 4
    for number, state in enumerate(states):
        theirs = {key: expected[f"default_step{number}_{key}"] for key in ("spkcache", "fifo", "mean_sil_emb", "n_sil")}
        cache, fifo = state.cache[:, : int(state.n_cache)], state.fifo[:, : int(state.n_fifo)]
        torch.testing.assert_close(cache, theirs["spkcache"], atol=1e-4, rtol=0)
        torch.testing.assert_close(fifo, theirs["fifo"].reshape(fifo.shape), atol=1e-4, rtol=0)
        torch.testing.assert_close(state.silence, theirs["mean_sil_emb"], atol=1e-4, rtol=0)
        assert state.n_silence.tolist() == theirs["n_sil"].tolist()
        if state.is_compressed:
            expected_probs = expected[f"default_step{number}_spkcache_preds"]
            torch.testing.assert_close(state.cache_probs, expected_probs, atol=1e-4, rtol=0)


def noise(seconds: float, batch: int = 1) -> Tensor:
    return 0.1 * torch.randn(batch, int(16000 * seconds), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("seconds", [0.05, 1.0, 7.77])
@pytest.mark.parametrize("options", [SMALL, OFFLINE])
def test_a_chunk_that_is_the_whole_recording_is_offline(options: SortformerOptions, seconds: float) -> None:
    model, samples = random_sortformer(options), noise(seconds)
    with torch.inference_mode():
        whole = model(samples).speaker_probs
    torch.testing.assert_close(run(model, StreamingOptions(chunk=200), samples), whole, atol=1e-5, rtol=0)


@pytest.mark.parametrize("options", [SMALL, OFFLINE])
@pytest.mark.parametrize("piece", [100, 1601, 50000])
def test_it_does_not_matter_how_samples_arrive(piece: int, options: SortformerOptions) -> None:
    model, samples = random_sortformer(options), noise(12.3)
    steps = StreamingOptions(chunk=7, right_context=2, left_context=3, fifo=10, update_period=9, cache=20)
    torch.testing.assert_close(run(model, steps, samples, piece), run(model, steps, samples), atol=0, rtol=0)


def test_a_batch_is_its_recordings() -> None:
    model, samples = random_sortformer(SMALL), noise(9.1, batch=3)
    steps = StreamingOptions(chunk=9, right_context=2, fifo=10, update_period=9, cache=20)
    together = run(model, steps, samples)
    for row in range(3):
        torch.testing.assert_close(together[row], run(model, steps, samples[row : row + 1])[0], atol=1e-5, rtol=0)


def test_frames_come_as_soon_as_their_context_is_there() -> None:
    """Chunk 3 and right context 1 are 4 frames, 32 mel frames; the last one's window ends at 31 * 160 + 200 samples."""
    stream = Stream(StreamingStep(random_sortformer(SMALL), PRESETS["0.32"]))
    assert stream.push(noise(5)[:, : 31 * 160 + 199]).shape == (1, 0, 3)
    assert stream.push(noise(5)[:, :1]).shape == (1, 3, 3)
    assert stream.finish().shape == (1, 1, 3)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_named_by_their_latency(name: str) -> None:
    assert PRESETS[name].latency_seconds == pytest.approx(float(name))


def log_score(*probs: float) -> float:
    return math.log(probs[0]) + sum(math.log(1 - p) for p in probs[1:]) + math.log(2)


def test_scores_by_hand() -> None:
    """Cache 8 of two speakers, no silence: a share of 4; boosts go to the best 3 (two logs of 2) and 6 (one more)."""
    options = StreamingOptions(cache=8, silence_per_speaker=0, prob_floor=0.25, min_alone=0.5)
    probs = torch.tensor([[[0.7, 0.0], [0.6, 0.7], [0.4, 0.2], [0.7, 0.25]]])
    found = score_frames(probs, options)[0]
    # Speaker 1 in frame 1 (0.6 against 0.7) scores below 0, but one frame alone is less than min_alone * 4 = 2 ...
    second = log_score(0.7, 0.6) + 3 * math.log(2)
    assert found[:, 1].tolist() == [-math.inf, pytest.approx(second), -math.inf, -math.inf]
    # ... while speaker 0 has two of them, frames 0 and 3, and keeps no others.
    first = [log_score(0.7, 0.0) + 3 * math.log(2), log_score(0.7, 0.25) + 3 * math.log(2)]
    assert found[:, 0].tolist() == [pytest.approx(first[0]), -math.inf, -math.inf, pytest.approx(first[1])]


def test_new_frames_have_a_bonus() -> None:
    options = StreamingOptions(cache=4, silence_per_speaker=0, strong_boost=0.0, weak_boost=0.0)
    found = score_frames(torch.full((1, 6, 1), 0.7), options)[0, :, 0]
    assert found.tolist() == pytest.approx([log_score(0.7)] * 4 + [log_score(0.7) + 0.05] * 2)


def test_a_compressed_cache_by_hand() -> None:
    """Six frames, cache 6, two speakers, one frame of silence each: every speaker's frames in order of time."""
    options = StreamingOptions(cache=6, silence_per_speaker=1)
    frames = torch.arange(1.0, 8.0)[None, :, None].expand(1, 7, 2)
    probs = torch.tensor([[[0.1, 0.9], [0.9, 0.1], [0.2, 0.1], [0.8, 0.1], [0.1, 0.8], [0.9, 0.1], [0.0, 0.0]]])
    kept, kept_probs = compress(frames, probs, torch.tensor([[-5.0, -5.0]]), options)
    # A share of 2 each. The strong boost is for the best of each speaker, the weak one for the best three.
    assert kept[0, :, 0].tolist() == [2.0, 6.0, -5.0, 1.0, 5.0, -5.0]
    assert kept_probs[0, :, 0].tolist() == pytest.approx([0.9, 0.9, 0.0, 0.1, 0.1, 0.0])


def test_a_cache_without_enough_speech_is_filled_with_silence() -> None:
    options = StreamingOptions(cache=6, silence_per_speaker=1)
    probs = torch.zeros(1, 7, 2)
    probs[0, 3, 1] = 0.9
    kept, kept_probs = compress(torch.ones(1, 7, 2), probs, torch.full((1, 2), -5.0), options)
    assert kept[0, :, 0].tolist() == [-5.0, 1.0, -5.0, -5.0, -5.0, -5.0]
    assert kept_probs.sum().item() == pytest.approx(0.9)


def test_mean_silence_is_that_of_all_silent_frames_that_left_the_fifo() -> None:
    streaming = StreamingStep(random_sortformer(SMALL), StreamingOptions(cache=20))
    state = streaming.start()
    frames = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])[None, :, None].expand(1, 5, 16)
    probs = torch.tensor([0.05, 0.5, 0.06, 0.07, 0.0])[None, :, None].expand(1, 5, 3)
    is_moved = torch.tensor([[True, True, True, True, False]])
    mean, n_silence = streaming._update_silence(state, frames, probs, is_moved)  # sums 0.15, 1.5, 0.18, 0.21; limit 0.2
    assert n_silence.tolist() == [2] and mean.tolist() == [[2.0] * 16]


def test_empty_places_of_the_memory_are_zero_and_counted() -> None:
    steps = StreamingOptions(chunk=5, left_context=2, right_context=1, fifo=8, update_period=6, cache=20)
    stream, counts = Stream(StreamingStep(random_sortformer(SMALL), steps)), []
    for piece in noise(4).split(6400, dim=1):
        stream.push(piece)
        state = stream.state
        counts.append((int(state.n_cache), int(state.n_fifo)))
        assert not state.cache[:, int(state.n_cache) :].any() and not state.fifo[:, int(state.n_fifo) :].any()
    # 5 frames a step once the right context is there; above 8 in the FIFO, at least 6 move on.
    assert counts == [(0, 0), (0, 5), (6, 4), (12, 3), (12, 8), (18, 7), (20, 6), (20, 5), (20, 4), (20, 3)]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: StreamingOptions(chunk=0), "chunk must be from 1 to 65536, got 0"),
        (
            lambda: StreamingStep(random_sortformer(SMALL), StreamingOptions(cache=11)),
            "a cache of 11 frames is too small for 3 speakers: give 12",
        ),
    ],
)
def test_what_cannot_be_streamed(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


EIGHT = SHARED.parent / "nemo2"
needs_eight = pytest.mark.skipif(not EIGHT.is_dir(), reason="needs ../shared/fixtures/nemo2")


@needs_eight
@pytest.mark.parametrize("clip", ["a_3p3", "b_10", "c_31p7"])
def test_eight_speakers_offline_are_nvidias(clip: str) -> None:
    probs = load(EIGHT / "tiny_sortformer_8spk.nemo").posteriors(SHARED / f"{clip}.wav")
    with np.load(EIGHT / "tiny_sortformer_8spk.npz") as arrays:
        np.testing.assert_allclose(probs, arrays[f"{clip}_offline"], atol=1e-4, rtol=0)


@needs_nvidia
def test_a_streaming_model_scales_a_clip_in_one_pass_but_no_stream() -> None:
    """NVIDIA's two modes: `preds_offline_nochunk` is a stream whose only chunk is the whole clip."""
    path, samples = SHARED / "tiny_streaming_sortformer.nemo", soundfile.read(SHARED / "d_60.wav", dtype="float32")[0]
    with np.load(SHARED / "tiny_streaming_d_60.npz") as arrays:
        expected = arrays["preds_offline_nochunk"][0]
    one_chunk = load(path, DiarizeOptions(streaming=StreamingOptions(chunk=750)))
    np.testing.assert_allclose(one_chunk.posteriors_of_samples(samples), expected, atol=1e-4, rtol=0)
    scaled = samples / (samples.max() + np.float32(1e-3))
    offline = load(path).posteriors_of_samples(samples)
    np.testing.assert_allclose(offline, one_chunk.posteriors_of_samples(scaled), atol=1e-4, rtol=0)


@needs_eight
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("default", StreamingOptions()),
        ("20_3_1_60_40_96", StreamingOptions(20, 1, 3, fifo=60, update_period=40, cache=96)),
    ],
)
def test_eight_speakers_in_steps_are_nvidias(name: str, options: StreamingOptions) -> None:
    loaded = load_diarizer(EIGHT / "tiny_sortformer_8spk.nemo")
    assert isinstance(loaded.model, Sortformer)
    assert loaded.streaming == StreamingOptions() and loaded.model.options.n_speakers == 8
    samples = torch.from_numpy(soundfile.read(SHARED / "d_60.wav", dtype="float32")[0])[None]
    with np.load(EIGHT / "tiny_sortformer_8spk.npz") as arrays:
        expected = torch.from_numpy(arrays[f"d_60_streaming_{name}"])
    torch.testing.assert_close(run(loaded.model, options, samples)[0], expected, atol=1e-4, rtol=0)


def test_a_model_whose_cache_is_too_small_is_not_loaded(tmp_path: Path) -> None:
    model = random_sortformer(replace(SMALL, n_speakers=5))
    config = sortformer_config(model.options, streaming=True)
    config["sortformer_modules"]["spkcache_len"] = 19
    path = write_nemo(tmp_path / "model.nemo", config, sortformer_tensors(model))
    with pytest.raises(FormatError, match=r"model.nemo: a cache of 19 frames is too small for 5 speakers: give 20"):
        load_diarizer(path)


@pytest.mark.parametrize("n_speakers", [5, 8])
def test_more_than_four_speakers_stream(n_speakers: int) -> None:
    model = random_sortformer(replace(SMALL, n_speakers=n_speakers))
    assert run(model, replace(ODD, cache=40), noise(8.0)).shape == (1, 100, n_speakers)
