from __future__ import annotations

import json
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sortk.formats import audio
from sortk.prepare.activity import DetectorOptions, detect_speech, find_speech, load_network, read_chunks, read_weights

SHARED = Path(__file__).parents[3] / "shared" / "data"
CLIPS = [Path(__file__).parents[1] / "fixtures" / "nemo" / "a_3p3.wav"]  # espeak-ng; people, where they are at hand:
REAL_CLIPS = ("conversation/flac/EN2001a_000_030", "conversation/flac/phone_sample", "librispeech_sub/flac/ls27")
CLIPS += [path for name in REAL_CLIPS if (path := SHARED / f"{name}.flac").is_file()]


def probs(text: str) -> np.ndarray:
    """One window per sign: # is speech, . is silence, - is between the two thresholds."""
    return np.array([{"#": 0.9, ".": 0.1, "-": 0.4}[sign] for sign in text], np.float32)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # speech needs more than 4000 samples, and silence 1600: it ends four windows of 512 after its first
        ("....", []),
        ("#########.....", [(0, 9 * 512 + 480)]),
        ("..########.....", [(2 * 512 - 480, 10 * 512 + 480)]),
        ("..#######......", []),  # 7 windows are 3584 samples
        ("..####...####.....", [(2 * 512 - 480, 13 * 512 + 480)]),  # the silence is too short
        ("..####-----####.....", [(2 * 512 - 480, 15 * 512 + 480)]),  # undecided windows do not end speech
        ("..########", [(2 * 512 - 480, 10 * 512)]),  # up to the end of the audio
        ("########.....########.....", [(0, 8 * 512 + 480), (13 * 512 - 480, 21 * 512 + 480)]),
    ],
)
def test_hysteresis_by_hand(text: str, expected: list[tuple[int, int]]) -> None:
    assert find_speech(probs(text), len(text) * 512, DetectorOptions()) == expected


@given(
    values=st.lists(st.sampled_from([0.05, 0.2, 0.34, 0.36, 0.5, 0.7, 0.95]) | st.floats(0, 1, width=32), max_size=120),
    missing=st.integers(0, 511),
    threshold=st.sampled_from([0.1, 0.3, 0.5, 0.8]),
    lengths=st.sampled_from([(250, 100, 30), (0, 0, 0), (64, 300, 200), (500, 32, 100)]),
)
@settings(max_examples=300, deadline=None)
def test_decisions_are_those_of_the_package(
    values: list[float], missing: int, threshold: float, lengths: tuple[int, int, int]
) -> None:
    silero = pytest.importorskip("silero_vad")
    n_samples = max(0, 512 * len(values) - missing)
    speech_ms, silence_ms, pad_ms = lengths
    expected = silero.get_speech_timestamps_from_probs(
        np.array(values, np.float32).tolist(),
        threshold=threshold,
        min_speech_duration_ms=speech_ms,
        min_silence_duration_ms=silence_ms,
        speech_pad_ms=pad_ms,
        audio_length_samples=n_samples,
    )
    options = DetectorOptions(threshold, speech_ms / 1000, silence_ms / 1000, pad_ms / 1000)
    found = find_speech(np.array(values, np.float32), n_samples, options)
    assert found == [(speech["start"], speech["end"]) for speech in expected]


@pytest.mark.parametrize("path", CLIPS, ids=lambda path: path.stem)
def test_speech_gives_the_probabilities_and_segments_of_the_package(path: Path) -> None:
    silero, torch = pytest.importorskip("silero_vad"), pytest.importorskip("torch")
    samples = audio.read(path, duration=15.0)
    model = silero.load_silero_vad()
    with torch.no_grad():
        padded = np.pad(samples, (0, -len(samples) % 512)).reshape(-1, 512)
        expected = np.array([model(torch.from_numpy(window), 16000).item() for window in padded])
    found = load_network().speech_probs([samples[: 512 * 100], samples[512 * 100 :]])
    np.testing.assert_allclose(found, expected, atol=1e-4)
    for threshold in (0.3, 0.5):
        segments = silero.get_speech_timestamps(torch.from_numpy(samples), model, threshold=threshold)
        end = len(samples) * 1_000_000 // 16000
        spans = detect_speech(path, (0, end), DetectorOptions(threshold))
        assert spans == [(round(s["start"] * 62.5), min(round(s["end"] * 62.5), end)) for s in segments]
        assert spans


def test_weights_are_those_of_the_package_and_no_code_is_loaded(tmp_path: Path) -> None:
    silero = pytest.importorskip("silero_vad")
    path = Path(silero.__file__).parent / "data" / "silero_vad.jit"
    expected = silero.load_silero_vad().state_dict()
    found = read_weights(path)
    assert len(found) == 15
    assert all(np.array_equal(found[name], expected[f"_model.{name}"]) for name in found)
    with zipfile.ZipFile(tmp_path / "bad.jit", "w") as archive:
        archive.writestr("x/data.pkl", b"cos\nsystem\n(S'touch pwned'\ntR.")  # os.system("touch pwned")
    with pytest.raises(pickle.UnpicklingError, match=r"os\.system is not expected in this archive"):
        read_weights(tmp_path / "bad.jit")


def test_neither_torch_nor_the_package_is_imported() -> None:
    """torch takes seconds, and torch.jit.load, which the package may call, does not work on Python 3.14."""
    code = """if True:
        import sys
        from sortk.prepare.activity import load_network
        assert len(load_network().speech_probs([])) == 0
        print(*sys.modules)"""
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "silero_vad"} & set(loaded)


@pytest.mark.parametrize("rate", [16000, 8000, 44100])
def test_chunks_are_the_whole_file(tmp_path: Path, rate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sortk.prepare.activity.CHUNK_SECONDS", 4)
    samples = np.random.default_rng(0).uniform(-0.5, 0.5, round(10.3 * rate)).astype(np.float32)
    path = tmp_path / "noise.flac"
    audio.write_flac(path, samples, rate)
    chunks = list(read_chunks(path, 0.25, 10.0))
    assert [len(chunk) for chunk in chunks] == [64000, 64000, 32000]
    np.testing.assert_allclose(np.concatenate(chunks), audio.read(path, 0.25, 10.0), atol=1e-6)


def test_silence_is_silence_and_offsets_count(tmp_path: Path) -> None:
    path = tmp_path / "silence.flac"
    audio.write_flac(path, np.zeros(16000, np.int16))
    assert detect_speech(path, (100_000, 900_000), DetectorOptions()) == []
    assert len(load_network().speech_probs([])) == 0
    whole = detect_speech(CLIPS[0], (0, 3_300_000), DetectorOptions())
    part = detect_speech(CLIPS[0], (1_024_000, 2_500_000), DetectorOptions())
    assert part and all(1_024_000 <= start < end <= 2_500_000 for start, end in part)
    common = sum(min(end, e) - max(start, s) for start, end in part for s, e in whole if s < end and e > start)
    assert common > 0.9 * sum(end - start for start, end in part)


def test_cleaning_imports_nothing_slow_before_it_starts() -> None:
    code = "import json, sys, sortk.prepare.clean; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert not {"torch", "silero_vad", "scipy"} & set(loaded)
