"""`Diarizer` and `sortk diarize`: anything that a user may call audio."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import nemo2
import numpy as np
import numpy.typing as npt
import pytest
import soundfile
import torch
from click.testing import CliRunner, Result
from nemo_models import random_sortformer
from test_streaming import OFFLINE, SMALL

import sortk
from sortk.cli import main
from sortk.formats import posteriors, rttm
from sortk.formats.files import FormatError
from sortk.formats.model_folder import load_tensors, save_model, save_tensors
from sortk.inference import diarize
from sortk.inference.diarize import DiarizeOptions, Diarizer, find_sessions, load
from sortk.inference.int8 import Int8FeedForward, Int8Linear
from sortk.inference.load import LoadedDiarizer
from sortk.models import fastconformer, transformer
from sortk.models.diarizer import StreamingOptions
from sortk.models.eend import Eend, EendOptions
from sortk.models.fastconformer import FastConformerOptions
from sortk.models.features import FeatureOptions
from sortk.models.sortformer import Sortformer
from sortk.models.transformer import TransformerOptions
from sortk.records import Segment, Session

EEND = EendOptions(
    features=FeatureOptions(n_mels=10),
    transformer=TransformerOptions(d_model=16, n_layers=1, n_heads=2, d_inner=16),
)
STEPS = StreamingOptions(chunk=30, right_context=3, fifo=20, update_period=20, cache=40)


@pytest.fixture(scope="module")
def model() -> Sortformer:
    return random_sortformer(OFFLINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, model: Sortformer) -> Path:
    folder = tmp_path_factory.mktemp("models") / "model"
    save_model(folder, model.state_dict(), {"model": "sortformer", "options": OFFLINE.to_json()})
    return folder


def make(model: Sortformer | Eend, **options: object) -> Diarizer:
    return Diarizer(LoadedDiarizer(model), DiarizeOptions(**options))  # type: ignore[arg-type]


def noise(seconds: float, rate: int = 16000, seed: int = 0) -> npt.NDArray[np.float32]:
    """Louder and quieter by the second, so that there is something to tell apart."""
    rng = np.random.default_rng(seed)
    loudness = np.repeat(rng.choice([0.001, 0.05, 0.2], int(seconds) + 1), rate)
    n_samples = round(seconds * rate)
    return (rng.standard_normal(n_samples) * loudness[:n_samples]).astype(np.float32)


def write(path: Path, seconds: float = 3.0, seed: int = 0) -> Path:
    soundfile.write(path, noise(seconds, seed=seed), 16000)
    return path


def run(*arguments: object, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], input=stdin)


def test_three_lines(folder: Path, tmp_path: Path) -> None:
    diarizer = sortk.load_diarizer(folder, device="cpu")
    segments = diarizer(write(tmp_path / "a b.wav"))
    assert segments and {segment.session_id for segment in segments} == {"a_b"}
    assert segments == sorted(segments, key=lambda segment: segment.start)
    samples, rate = soundfile.read(tmp_path / "a b.wav", dtype="float32")
    assert [replace(s, session_id="a_b") for s in diarizer(samples, rate)] == segments


def test_posteriors_are_those_of_the_model(model: Sortformer) -> None:
    samples = noise(7.3)
    with torch.inference_mode():
        expected = model(torch.from_numpy(samples)[None]).speaker_probs[0].numpy()
    np.testing.assert_allclose(make(model).posteriors_of_samples(samples), expected, atol=1e-5)


@pytest.mark.parametrize("name", nemo2.CLIPS)
def test_posteriors_are_nvidias(name: str) -> None:
    diarizer = load(nemo2.find("tiny_sortformer.nemo"), device="cpu")
    [(_, probs)] = diarizer.posteriors_of([Session(name, nemo2.find(f"{name}.wav"))])
    expected = np.load(nemo2.find(f"tiny_{name}.npz"))["preds"][0]
    np.testing.assert_allclose(probs, expected, atol=1e-4)


@pytest.mark.parametrize("preset", ["none", "callhome", "dihard3"])
def test_segments_are_nvidias(preset: str) -> None:
    """Of the clip that is committed; of the others, too, if they are beside the checkout."""
    theirs = nemo2.results("tiny_diarize_segments", complete=False)[{"none": "default"}.get(preset, preset)]
    postprocess = diarize.choose_postprocess(preset)
    diarizer = load(nemo2.find("tiny_sortformer.nemo"), DiarizeOptions(postprocess=postprocess), "cpu")
    names = nemo2.CLIPS if nemo2.SHARED.is_dir() else nemo2.CLIPS[:1]
    for name, lines in zip(names, theirs, strict=False):
        ours = [f"{s.start:.3f} {s.end:.3f} {s.speaker}" for s in diarizer(nemo2.find(f"{name}.wav"))]
        assert lines and sorted(ours) == sorted(lines)


@pytest.mark.parametrize("build", [lambda: random_sortformer(OFFLINE), lambda: Eend(EEND).eval()])
def test_a_batch_gives_what_each_recording_gives(tmp_path: Path, build: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, whatever their length; also where one has less than a frame, and in pools."""
    monkeypatch.setattr(diarize, "POOL", 5)
    monkeypatch.setattr(diarize, "BATCH_SECONDS", {"cpu": 12.0})
    diarizer = make(build())
    lengths = [2.0, 5.0, 0.05, 2.0, 0.005, 3.33, 1.0, 6.0]
    sessions = find_sessions(write(tmp_path / f"{n}.wav", seconds, n) for n, seconds in enumerate(lengths))
    heard = list(diarizer.posteriors_of(sessions))
    assert [session.session_id for session, _ in heard] == [str(n) for n in range(8)]
    for session, probs in heard:
        alone = diarizer.posteriors_of_samples(soundfile.read(session.audio_path, dtype="float32")[0])
        np.testing.assert_allclose(probs, alone, atol=1e-5)
    assert [len(probs) for _, probs in heard] == [25, 63, 1, 25, 0, 42, 13, 75]


@pytest.mark.parametrize("streaming", [None, STEPS])
def test_a_recording_is_told_as_soon_as_all_before_it_are(
    model: Sortformer, tmp_path: Path, streaming: StreamingOptions | None
) -> None:
    """A long one first, one that is broken, then two that are heard together, and a last one that nobody asks for."""
    paths = [write(tmp_path / f"{n}.wav", seconds, n) for n, seconds in enumerate([9.0, 1.0, 1.0, 1.0, 70.0])]
    paths[1].write_text("text", encoding="utf-8")
    told: list[str] = []
    heard: list[float] = []
    results = make(model, streaming=streaming, whole_seconds=8.0).posteriors_of(
        find_sessions(paths), lambda session, _: told.append(session.session_id), heard.append
    )
    names = [next(results)[0].session_id for _ in range(3)]
    assert names == ["0", "2", "3"] and told == ["1"] and sum(heard) == pytest.approx(11.0)
    assert next(results)[1].shape == (875, 3) and next(results, None) is None


def test_windows_of_a_recording_are_told_in_its_time(model: Sortformer, tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", 6.0)
    window = Session("w", path, duration=2.0, offset=3.0)
    found = make(model)(window)
    expected = make(model)(soundfile.read(path, dtype="float32")[0][48000:80000])
    assert [(s.speaker, s.start, s.end) for s in found] == [(s.speaker, s.start + 3, s.end + 3) for s in expected]


def test_what_is_too_long_is_heard_in_steps(model: Sortformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sortformer, "long_steps", STEPS)
    path = write(tmp_path / "long.flac", 20.0)
    short = make(model, whole_seconds=10.0)
    [(_, probs)] = short.posteriors_of([Session("long", path)])
    samples = soundfile.read(path, dtype="float32")[0]
    np.testing.assert_array_equal(probs, make(model, streaming=STEPS).posteriors_of_samples(samples))
    assert not np.allclose(probs, make(model).posteriors_of_samples(samples), atol=1e-4)
    np.testing.assert_array_equal(probs, short.posteriors_of_samples(samples))


def test_a_chunk_as_long_as_the_recording_is_the_whole(model: Sortformer) -> None:
    samples = noise(5.0)
    steps = StreamingOptions(chunk=63)
    np.testing.assert_allclose(
        make(model, streaming=steps).posteriors_of_samples(samples),
        make(model).posteriors_of_samples(samples),
        atol=1e-5,
    )


def test_at_most_so_many_speakers(model: Sortformer) -> None:
    probs = np.array([[0.9, 0.2, 0.1], [0.1, 0.3, 0.8], [0.2, 0.1, 0.0]], np.float32)
    two = make(model, max_speakers=2).limit_speakers(probs)
    np.testing.assert_array_equal(two, np.array([[0.9, 0.2], [0.1, 0.8], [0.2, 0.1]], np.float32))
    np.testing.assert_array_equal(make(model, max_speakers=1).limit_speakers(probs), probs.max(axis=1, keepdims=True))
    assert make(model, max_speakers=3).limit_speakers(probs) is probs
    assert make(model, max_speakers=2).posteriors_of_samples(noise(1.0)).shape == (13, 2)
    with pytest.raises(ValueError, match="max_speakers must be from 1 to 1000, got 0"):
        DiarizeOptions(max_speakers=0)


def test_an_eend_model_is_not_streamed() -> None:
    with pytest.raises(ValueError, match="this model cannot be streamed"):
        make(Eend(EEND), streaming="10")
    with pytest.raises(ValueError, match="this model cannot be streamed"):
        make(Eend(EEND)).stream()


def test_the_models_own_steps() -> None:
    own = StreamingOptions(chunk=5)
    loaded = LoadedDiarizer(random_sortformer(SMALL), own)
    assert Diarizer(loaded, DiarizeOptions(streaming="own"))._step.options == own
    assert make(random_sortformer(SMALL), streaming="own")._step.options.latency_seconds == 10.0
    with pytest.raises(ValueError, match=r"no streaming preset '7', only 0\.32, 1\.04, 10, 30\.4"):
        make(random_sortformer(SMALL), streaming="7")


def test_folded_and_quantized(folder: Path, model: Sortformer) -> None:
    samples = noise(4.0)
    exact = make(model).posteriors_of_samples(samples)
    folded = load(folder, device="cpu")
    assert isinstance(folded.model, Sortformer)
    assert all(layer.conv.batch_norm is None for layer in folded.model.encoder.layers)  # type: ignore[union-attr]
    np.testing.assert_allclose(folded.posteriors_of_samples(samples), exact, atol=1e-5)
    int8 = load(folder, int8=True).posteriors_of_samples(samples)
    assert 0 < np.abs(int8 - exact).max() < 0.1


@pytest.mark.parametrize("bias", [False, True])
def test_int8_products_are_exact_but_for_rounding(bias: bool) -> None:
    """Inputs and weights that 7 and 8 bits can hold: the product is exact."""
    rng = torch.Generator().manual_seed(0)
    linear = torch.nn.Linear(6, 5, bias=bias).requires_grad_(False)
    linear.weight.copy_(torch.randint(-127, 128, (5, 6), generator=rng) / 4)
    linear.weight[:, 0] = 127 / 4  # the largest of each row, so that a step is 1/4
    x = torch.randint(-40, 88, (3, 7, 6), generator=rng) / 8
    x[0, 0, :2] = torch.tensor([-40, 87]) / 8  # 127 steps of 1/8
    torch.testing.assert_close(Int8Linear(linear)(x), linear(x), atol=1e-4, rtol=0)
    torch.testing.assert_close(Int8Linear(linear)(torch.zeros(2, 6)), linear(torch.zeros(2, 6)))


@pytest.mark.parametrize(
    "block",
    [
        fastconformer.ConformerFeedForward(FastConformerOptions(d_model=8, n_heads=2, dropout=0.0)),
        transformer.FeedForward(TransformerOptions(d_model=8, n_heads=2, d_inner=32)),
    ],
)
def test_int8_feed_forward_has_the_activation_of_the_block(
    block: fastconformer.ConformerFeedForward | transformer.FeedForward,
) -> None:
    """A step of the input is 8 / 127, one of a weight less than 1 / 127: other activations differ by far more."""
    torch.manual_seed(0)
    x = torch.randn(2, 50, 8)
    with torch.inference_mode():
        exact, rounded = block.eval()(x), Int8FeedForward(block)(x)
    assert 0 < (rounded - exact).abs().max() < 0.05 * exact.abs().max()


def test_int8_makes_no_quantized_tensors() -> None:
    """torch warns of them from 2.12 on, and will remove them."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer = Int8Linear(torch.nn.Linear(6, 5))
    assert not any(tensor.is_quantized for tensor in (layer.packed, *layer.buffers()))


SILENCES = {
    "nothing": np.zeros(32000),
    "below zero": np.full(32000, -0.001),
    "clipped": np.sign(noise(2.0)),
    "one sample": np.eye(1, 32000, 7)[0],
}


@pytest.mark.parametrize("name", SILENCES)
@pytest.mark.parametrize("streaming", [None, "0.32"])
def test_strange_audio_has_posteriors(model: Sortformer, name: str, streaming: str | None) -> None:
    probs = make(model, streaming=streaming).posteriors_of_samples(SILENCES[name].astype(np.float32))
    assert probs.shape == (25, 3) and np.isfinite(probs).all()


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (np.array([0.0, np.nan]), "not finite numbers"),
        (np.zeros((2, 2, 2)), "float or int16 numbers"),
        (np.zeros(0), "float or int16 numbers"),
        (np.array(["a"]), "float or int16 numbers"),
    ],
)
def test_arrays_that_are_no_audio(model: Sortformer, samples: npt.NDArray[np.generic], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(model)(samples)


def test_other_rates_and_channels_are_the_same_audio(model: Sortformer, tmp_path: Path) -> None:
    time = np.arange(3 * 48000) / 48000
    tone = 0.3 * np.sin(2 * np.pi * 500 * time) * (time % 1 < 0.5)
    for name, samples, rate in (("8k", tone[::6], 8000), ("48k", np.stack([tone, tone], axis=1), 48000)):
        soundfile.write(tmp_path / f"{name}.wav", samples, rate)
    diarizer = make(model)
    expected = [(s.speaker, s.start, s.end) for s in diarizer(tone[::3])]
    assert [(s.speaker, s.start, s.end) for s in diarizer(tmp_path / "48k.wav")] == expected
    assert [(s.speaker, s.start, s.end) for s in diarizer(np.stack([tone, tone], axis=1), 48000)] == expected
    assert diarizer(tmp_path / "8k.wav")


def test_standard_output_is_rttm(folder: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav")
    result = run("diarize", path, "--model", folder, "--device", "cpu")
    assert result.exit_code == 0, result.output
    (tmp_path / "a.rttm").write_text(result.stdout, encoding="utf-8")
    assert rttm.read(tmp_path / "a.rttm") == load(folder, device="cpu")(path)
    assert "1 of 1 recording, 3.0 s of audio" in result.stderr and "real-time factor" in result.stderr
    assert run("diarize", path, "--model", folder, "-q").stderr == ""


def test_a_folder_of_results(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    paths = [write(tmp_path / "in" / f"{n}.WAV", 1.0 + n, n) for n in range(2)]
    (tmp_path / "in" / "notes.txt").write_text("no audio", encoding="utf-8")
    sessions = tmp_path / "in" / "m.jsonl"
    sessions.write_text(json.dumps({"audio_filepath": "1.WAV", "offset": 0.5, "session_id": "w"}), encoding="utf-8")
    out = tmp_path / "out"
    result = run("diarize", tmp_path / "in", sessions, "--model", folder, "--out-dir", out, "--probs", "--plot")
    assert result.exit_code == 0 and result.stdout == ""
    assert sorted(path.name for path in out.glob("[!.]*")) == [
        f"{n}.{e}" for n in "01w" for e in ("npy", "rttm", "svg")
    ]
    probs = np.load(out / "1.npy")
    assert probs.dtype == np.float16 and probs.shape == (25, 3)
    np.testing.assert_allclose(
        probs, load(folder).posteriors_of_samples(soundfile.read(paths[1], dtype="float32")[0]), atol=1e-3
    )
    assert (out / "0.svg").read_text(encoding="utf-8").startswith("<svg")


def test_annotations_of_the_users_own_are_not_replaced(folder: Path, tmp_path: Path) -> None:
    for name in ("monday", "tuesday"):
        write(tmp_path / f"{name}.wav", 0.5)
    own, other = tmp_path / "monday.rttm", tmp_path / "tuesday.rttm"
    own.write_text("by hand", encoding="utf-8")
    command = ("diarize", tmp_path, "--model", folder, "--out-dir", tmp_path)
    result = run(*command)
    assert result.exit_code == 1 and "monday.rttm exists, and was not made by sortk" in result.stderr
    assert own.read_text(encoding="utf-8") == "by hand" and not other.exists()  # nothing was done
    result = run(*command[:-1], own)
    assert result.exit_code == 1 and result.stderr == f"sortk: {own}: Not a directory\n"  # before any work
    own.unlink()
    for _ in range(2):
        assert run(*command).exit_code == 0
    own.write_text("by hand", encoding="utf-8")
    assert run(*command).exit_code == 1
    assert run(*command, "--force").exit_code == 0 and "SPEAKER" in own.read_text(encoding="utf-8")


def test_a_bad_file_among_many(folder: Path, tmp_path: Path) -> None:
    """Each of them is named, the others are diarized, and the exit code says that not all is well."""
    for n in range(200):
        write(tmp_path / f"{n:03d}.wav", 0.1 + 0.01 * (n % 7), n)
    (tmp_path / "050.wav").write_text("I am a text", encoding="utf-8")
    soundfile.write(tmp_path / "060.wav", np.full(2000, np.nan), 16000, subtype="FLOAT")
    (tmp_path / "070.flac").write_bytes(write(tmp_path / "070.flac", 9.0).read_bytes()[:100000])
    (tmp_path / "070.wav").unlink()
    result = run("diarize", tmp_path, tmp_path / "gone.wav", "--model", folder, "--out-dir", tmp_path / "out")
    assert result.exit_code == 1
    told = [line for line in result.stderr.splitlines() if line.startswith("sortk: ")]
    assert sorted(Path(line.split(": ")[1]).name for line in told) == ["050.wav", "060.wav", "070.flac", "gone.wav"]
    assert "197 of 201 recordings" in result.stderr and len(list((tmp_path / "out").glob("[!.]*"))) == 197


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        ((), 2, "give a FILE, `-` for standard input, or --demo"),
        (("a.wav", "--probs"), 2, "--probs and --plot need --out-dir"),
        (("a.wav", "-"), 2, "stands alone"),
        (("a.wav", "--streaming", "0.5"), 1, "no streaming preset '0.5', only 0.32, 1.04, 10, 30.4"),
        (
            ("a.wav", "--postprocess", "gone.toml"),
            1,
            "sortk: gone.toml: no such file, and not a preset; presets: none, ",
        ),
        (("a.wav", "--int8", "--device", "cuda"), 1, "sortk: int8 runs on the CPU only, not on 'cuda'"),
        (("a.wav", "--device", "warp"), 1, "sortk: device 'warp' cannot be used"),
        (("a.wav", "b/a.wav"), 1, "sortk: two recordings are called a, a.wav and b/a.wav"),
        (("bad.jsonl",), 1, "sortk: session id '../x' cannot be the name of a file"),
    ],
)
def test_wrong_usage(
    folder: Path,
    tmp_path: Path,
    arguments: Sequence[str],
    exit_code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.wav", 0.1)
    line = {"audio_filepath": "a.wav", "session_id": "../x"}
    (tmp_path / "bad.jsonl").write_text(json.dumps(line), encoding="utf-8")
    result = run("diarize", *arguments, "--model", folder, *(("--out-dir", "out") if "bad.jsonl" in arguments else ()))
    assert (result.exit_code, message in result.stderr) == (exit_code, True), result.stderr
    assert not (tmp_path / "x.rttm").exists() and "Traceback" not in result.output


def test_no_model(tmp_path: Path) -> None:
    result = run("diarize", write(tmp_path / "a.wav", 0.1), "--model", tmp_path / "gone")
    assert result.exit_code == 1 and "gone: no such model folder or .nemo file" in result.stderr


def test_live_on_a_pipe_equals_the_file(folder: Path, tmp_path: Path) -> None:
    """The real command, fed by a real pipe. `--streaming -` means live, in the model's own steps."""
    samples = (noise(4.0) * 32768).clip(-32768, 32767).astype("<i2")
    soundfile.write(tmp_path / "stdin.wav", samples, 16000)
    command = [sys.executable, "-m", "sortk", "diarize", "--model", str(folder), "-q", "--streaming"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    live = subprocess.run([*command, "-"], input=samples.tobytes(), capture_output=True, check=True, env=environment)
    result = run("diarize", "--model", folder, "--streaming", tmp_path / "stdin.wav", "-q")
    assert result.stdout and sorted(live.stdout.decode().splitlines()) == sorted(result.stdout.splitlines())


def test_posteriors_are_written_once(model: Sortformer, tmp_path: Path) -> None:
    sessions = find_sessions([write(tmp_path / "a.wav", 0.5), write(tmp_path / "b.wav", 0.5)])
    posteriors.write(tmp_path / "probs" / "a.npy", np.zeros((7, 3), np.float32))
    diarize.write_posteriors(make(model), sessions, tmp_path / "probs")
    assert not np.load(tmp_path / "probs" / "a.npy").any() and np.load(tmp_path / "probs" / "b.npy").shape == (7, 3)


def test_clean_with_a_diarizer(folder: Path, tmp_path: Path) -> None:
    """Its posteriors are made first; the same command again is a matter of reading the marker."""
    write(tmp_path / "a.wav", 15.0)
    rttm.write(tmp_path / "a.rttm", [Segment("a", "x", 1.0, 6.0), Segment("a", "y", 5.0, 14.0)])
    line = {"audio_filepath": "a.wav", "rttm_filepath": "a.rttm", "duration": 15.0}
    (tmp_path / "m.jsonl").write_text(json.dumps(line), encoding="utf-8")
    command = ("clean", "--manifest", tmp_path / "m.jsonl", "--out", tmp_path / "out", "--sad", "none", "--diarizer")
    result = run(*command, folder)
    assert result.exit_code == 0, result.output
    assert np.load(tmp_path / "out" / "probs" / "a.npy").shape == (188, 3)
    assert run(*command, folder, "--probs", tmp_path).exit_code == 2


def test_a_reader_of_broken_files_says_so(model: Sortformer, tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_text("text", encoding="utf-8")
    with pytest.raises(FormatError, match=r"a\.wav: not an audio file"):
        make(model)(tmp_path / "a.wav")


def test_no_recording_of_a_folder_is_left_out(folder: Path, tmp_path: Path) -> None:
    """Suffixes of any case, in folders below, too; a file that cannot be read or named is reported."""
    for name in ("a.wav", "b.Wav", "sub/c.wave", "sub/deep/d.FLAC", ".hidden/e.wav"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(tmp_path / "in" / name, np.zeros(16000), 16000, format="FLAC" if "FLAC" in name else "WAV")
    (tmp_path / "in" / "memo.m4a").write_bytes(b"\0\0\0\x20ftypM4A " + bytes(100))
    write(tmp_path / "in" / ";f.wav", 1.0)
    write(tmp_path / "in" / f"{'g' * 249}.wav", 1.0)
    result = run("diarize", "--model", folder, tmp_path / "in", "--out-dir", tmp_path / "out", "-v")
    assert result.exit_code == 1
    assert sorted(path.stem for path in (tmp_path / "out").glob("[a-f].rttm")) == ["a", "b", "c", "d"]
    assert "memo.m4a: " in result.output and ";f.wav: session id" in result.output
    assert "bug" not in result.output


def test_posteriors_that_are_not_numbers_are_one_sentence(folder: Path, tmp_path: Path) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    weights = load_tensors(folder / "model.safetensors")
    name = next(name for name, tensor in weights.items() if tensor.ndim == 2 and "speakers" in name)
    weights[name] = weights[name] * 1e38 * 1e38 * 0 + 3e38  # finite, but their products are not
    (tmp_path / "broken").mkdir()
    save_tensors(tmp_path / "broken" / "model.safetensors", weights)
    del config["sha256"]
    (tmp_path / "broken" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    result = run("diarize", "--model", tmp_path / "broken", write(tmp_path / "a.wav", 2.0))
    assert result.exit_code == 1 and "sortk: " in result.output and "bug" not in result.output
    assert "SPEAKER" not in result.output


def test_a_device_that_computes_nothing(folder: Path, tmp_path: Path) -> None:
    result = run("diarize", "--model", folder, write(tmp_path / "a.wav", 1.0), "--device", "meta")
    assert result.exit_code == 1 and "sortk: device 'meta' cannot be used" in result.output
    result = run("diarize", "--model", folder, write(tmp_path / "a.wav", 1.0), "--postprocess", "/dev/zero")
    assert result.exit_code == 1 and "sortk: /dev/zero: is a device, not a file" in result.output
