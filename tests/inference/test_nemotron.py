"""Nemotron-3-Diarization: NVIDIA's numbers (transformers 5.22), from both forms of its files, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from click.testing import CliRunner
from nemo_models import constants, preprocessor_config, write_nemo
from safetensors.torch import load_file, save_file
from torch import Tensor

from sortk.cli import main
from sortk.formats import posteriors
from sortk.formats.files import FormatError
from sortk.formats.rttm import read as read_rttm
from sortk.inference.diarize import DiarizeOptions, Diarizer, load, write_posteriors
from sortk.inference.live import diarize_pcm
from sortk.inference.load import load_diarizer, read_frame_seconds
from sortk.inference.streaming import Stream
from sortk.models.diarizer import StreamingOptions
from sortk.models.nemo import NEMOTRON_NAMES, convert_config
from sortk.models.nemotron import Nemotron, NemotronOptions, rotary_angles, rotate
from sortk.models.options import name_tensor
from sortk.models.speaker_cache import StreamingState, StreamingStep
from sortk.records import Session

FIXTURES = Path(__file__).parents[1] / "fixtures"
HF = FIXTURES / "nemo2" / "tiny_nemotron_hf"
SHARED = Path(__file__).parents[3] / "shared" / "fixtures"
needs_shared = pytest.mark.skipif(not (SHARED / "nemo2").is_dir(), reason="needs ../shared/fixtures/nemo2")
ODD = StreamingOptions(31, 2, 3, fifo=40, update_period=50, cache=64, silence_per_speaker=1)
FASTEST = replace(NemotronOptions().streaming, chunk=3, right_context=1)
SMALL = StreamingOptions(12, 0, 5, fifo=20, update_period=18, cache=40, silence_per_speaker=1)


def read_clip(name: str) -> np.ndarray:
    folder = FIXTURES / "nemo" if name == "a_3p3" else SHARED / "nemo"
    samples: np.ndarray = soundfile.read(folder / f"{name}.wav", dtype="float32")[0]
    return samples


def sigmoid(logits: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logits.astype(np.float64)))


def nvidias(file: str, name: str) -> np.ndarray:
    with np.load(SHARED / "nemo2" / f"tiny_nemotron_{file}.npz") as arrays:
        array: np.ndarray = arrays[name]
    return array


def nemo_config(options: NemotronOptions) -> dict[str, Any]:
    """NVIDIA's config of a model with these sizes."""
    modules = "nemo.collections.asr.modules"
    return {
        "target": "nemo.collections.asr.models.sortformer_diar_models.SortformerEncLabelModel",
        "streaming_mode": True,
        "high_resolution": True,
        "output_subsampling_factor": 1,
        "preprocessor": preprocessor_config(options.features.n_mels, "none"),
        "encoder": {
            "_target_": f"{modules}.TransformerEncoder",
            "feat_in": options.features.n_mels,
            "d_model": options.d_model,
            "n_heads": options.n_heads,
            "n_layers": options.n_layers,
            "feat_out": -1,
            "subsampling": "feature_stacking",
            "subsampling_factor": 8,
            "drop_rate": 0.1,
            "qkv_bias": False,
            "qk_norm": False,
            "ff_expansion": options.d_inner / options.d_model,
            "pre_block_norm": True,
            "self_attention_model": "rope",
            "rope_base": options.rope_base,
            "attn_mode": "full",
        },
        "sortformer_modules": {
            "_target_": f"{modules}.sortformer_modules.SortformerModules",
            "num_spks": options.n_speakers,
            "fc_d_model": options.d_model,
            "tf_d_model": options.d_head,
            "chunk_len": 264,
            "fifo_len": 0,
            "spkcache_len": options.offline.cache,
            "spkcache_sil_frames_per_spk": 1,
            "use_learnable_sil_emb": True,
        },
    }


def nemo_tensors(model: Nemotron) -> dict[str, Tensor]:
    tensors = {name_tensor(name, NEMOTRON_NAMES): tensor for name, tensor in model.state_dict().items()}
    tensors["sortformer_modules.activity_head.weight"] = torch.zeros(3, 2)
    return constants(model.options.features.n_mels) | tensors


def tiny() -> Nemotron:
    model = load_diarizer(HF).model
    assert isinstance(model, Nemotron)
    return model


# --- NVIDIA's numbers


def test_a_hugging_face_folder_gives_nvidias_posteriors() -> None:
    probs = load(HF).posteriors_of_samples(read_clip("a_3p3"))
    with np.load(FIXTURES / "nemo2" / "tiny_nemotron_a_3p3.npz") as arrays:
        np.testing.assert_allclose(probs, sigmoid(arrays["logits"]), atol=1e-4)


def test_a_nemo_file_is_the_same_model_also_in_half_precision(tmp_path: Path) -> None:
    model = tiny()
    tensors = nemo_tensors(model)
    path = write_nemo(tmp_path / "model.nemo", nemo_config(model.options), tensors)
    loaded = load_diarizer(path).model
    assert loaded.options == model.options
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name])
    half = {name: tensor.half() for name, tensor in tensors.items()}
    loaded = load_diarizer(write_nemo(tmp_path / "half.nemo", nemo_config(model.options), half)).model
    assert {tensor.dtype for tensor in loaded.state_dict().values()} == {torch.float32}


@needs_shared
@pytest.mark.parametrize(
    ("model", "clip"), [("tiny_nemotron_hf", "b_10"), ("tiny_nemotron.nemo", "c_31p7"), ("tiny_nemotron.nemo", "d_60")]
)
def test_offline_posteriors_are_nvidias(model: str, clip: str) -> None:
    probs = load(SHARED / "nemo2" / model).posteriors_of_samples(read_clip(clip))
    np.testing.assert_allclose(probs, sigmoid(nvidias("offline", f"{clip}_logits")), atol=1e-4)


def keep_states(model: Nemotron, options: StreamingOptions, samples: np.ndarray) -> tuple[np.ndarray, list[Any]]:
    """The posteriors, and the state after each step."""
    states: list[StreamingState] = []

    class Keeping(StreamingStep):
        def __call__(self, *arguments: Any) -> tuple[Tensor, StreamingState]:
            probs, state = super().__call__(*arguments)
            states.append(state)
            return probs, state

    stream = Stream(Keeping(model, options))
    probs = torch.cat([stream.push(torch.from_numpy(samples)[None]), stream.finish()], dim=1)
    return probs[0].numpy(), states


@needs_shared
@pytest.mark.parametrize(
    ("name", "steps", "file", "options"),
    [
        ("d_60", (0, 1, 2), "offline", NemotronOptions().offline),
        ("odd", (3, 9), "offline", ODD),
        ("small", (3, 9), "offline", SMALL),
        ("low_latency", (29, 54, 78), "streaming", NemotronOptions().streaming),
        ("ultra_low_latency", (88, 162, 236), "streaming", FASTEST),
    ],
)
def test_the_state_after_a_step_is_nvidias(
    name: str, steps: tuple[int, ...], file: str, options: StreamingOptions
) -> None:
    probs, states = keep_states(tiny(), options, read_clip("d_60"))
    logits = f"{name}_logits" if file == "offline" else f"d_60_{name}_logits"
    np.testing.assert_allclose(probs, sigmoid(nvidias(file, logits)), atol=1e-4)
    for step in steps:
        state, key = states[step], f"{name}_step{step}"
        n_cache, n_fifo = int(state.n_cache), int(state.n_fifo)
        np.testing.assert_allclose(state.cache[0, :n_cache], nvidias(file, f"{key}_embeds"), atol=1e-4)
        np.testing.assert_allclose(state.fifo[0, :n_fifo], nvidias(file, f"{key}_fifo"), atol=1e-4)
        assert bool(state.is_compressed) == bool(nvidias(file, f"{key}_compressed"))
        if state.is_compressed:  # before that, they are those of the next step
            np.testing.assert_allclose(state.cache_probs[0], nvidias(file, f"{key}_probs"), atol=1e-4)


@needs_shared
@pytest.mark.parametrize(
    ("name", "clip", "preset"),
    [
        ("offline_a_3p3", "a_3p3", None),
        ("offline_b_10", "b_10", None),
        ("low_latency_d_60_first1000", "d_60", "1.04"),
    ],
)
def test_segments_are_nvidias(name: str, clip: str, preset: str | None) -> None:
    diarizer = load(HF, DiarizeOptions(streaming=preset))
    probs = diarizer.posteriors_of_samples(read_clip(clip))[: 1000 if "first1000" in name else None]
    segments = diarizer.find_segments(Session("a", Path("a")), probs)
    found = [[round(s.start, 2), round(s.end, 2), int(s.speaker.removeprefix("speaker_"))] for s in segments]
    expected = json.loads((SHARED / "nemo2" / "tiny_nemotron_segments.json").read_text(encoding="utf-8"))[name]
    assert sorted(found, key=lambda segment: (segment[0], segment[2])) == expected


@needs_shared
def test_a_padded_batch_is_its_clips() -> None:
    """In training; NVIDIA's rows of shorter clips differ in the last frame only, where it does not mask padding."""
    model, clips = tiny(), [torch.from_numpy(read_clip(name)) for name in ("a_3p3", "b_10")]
    samples = torch.nn.utils.rnn.pad_sequence(clips, batch_first=True)
    lengths = torch.tensor([len(clip) for clip in clips])
    with torch.inference_mode():
        output = model(samples, lengths)
        probs = output.speaker_probs
    assert output.lengths is not None and output.lengths.tolist() == [330, 1000] and probs.shape == (2, 1000, 8)
    assert not probs[0, 330:].any()
    for row, name in enumerate(("a_3p3", "b_10")):
        n = len(clips[row]) // 160
        np.testing.assert_allclose(probs[row, :n], sigmoid(nvidias("offline", f"{name}_logits")), atol=1e-4)


# --- by hand


def test_rotary_positions_by_hand() -> None:
    """d_k 4: the pairs (0, 2) and (1, 3), at 1 and 1 / 100 radian a frame."""
    cosine, sine = rotary_angles(3, 4, 10000.0, torch.device("cpu"))
    rotated = rotate(torch.tensor([1.0, 1.0, 0.0, 0.0]).expand(3, 4), cosine, sine)
    expected = [[np.cos(t), np.cos(t / 100), np.sin(t), np.sin(t / 100)] for t in range(3)]
    np.testing.assert_allclose(rotated, expected, atol=1e-6)


def test_presets_are_named_by_their_latency() -> None:
    presets = Nemotron(replace(NemotronOptions(), n_layers=1)).presets
    assert {name: round(options.latency_seconds, 2) for name, options in presets.items()} == {
        "0.32": 0.32, "0.64": 0.64, "1.04": 1.04, "30.4": 30.4,
    }  # fmt: skip
    assert all(options.cache == 264 and options.silence_per_speaker == 1 for options in presets.values())


def test_its_published_size() -> None:
    with torch.device("meta"):
        n_weights = sum(weight.numel() for weight in Nemotron(NemotronOptions()).parameters())
    assert round(n_weights / 1e6, 1) == 99.2


# --- as users meet it


def pieces(diarizer: Diarizer, samples: np.ndarray, size: int) -> np.ndarray:
    stream = diarizer.stream()
    heard = [stream.push(torch.from_numpy(part)[None]) for part in np.split(samples, range(size, len(samples), size))]
    probs: np.ndarray = torch.cat([*heard, stream.finish()], dim=1)[0].numpy()
    return probs


@pytest.mark.parametrize("preset", ["0.32", "0.64", "30.4"])
def test_it_does_not_matter_how_samples_arrive(preset: str) -> None:
    diarizer, samples = load(HF, DiarizeOptions(streaming=preset)), read_clip("a_3p3")
    np.testing.assert_array_equal(pieces(diarizer, samples, 1601), diarizer.posteriors_of_samples(samples))


def test_live_segments_are_those_of_the_file(tmp_path: Path) -> None:
    pcm = (read_clip("a_3p3") * 32767).astype("<i2")
    diarizer = load(HF, DiarizeOptions(streaming="own"))
    (tmp_path / "pcm").write_bytes(pcm.tobytes())
    with (tmp_path / "pcm").open("rb") as file:
        live = sorted(diarize_pcm(diarizer, file), key=lambda segment: (segment.start, segment.speaker))
    expected = diarizer(pcm.astype(np.float32) / 32768)
    assert [(s.speaker, s.start, s.end) for s in live] == [
        (s.speaker, s.start, s.end) for s in sorted(expected, key=lambda segment: (segment.start, segment.speaker))
    ]


def sortk(*arguments: Any) -> Any:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_the_commands(tmp_path: Path) -> None:
    result = sortk("import-nemo", HF, "--out", tmp_path / "model")
    assert result.exit_code == 0, result.stderr
    clip = FIXTURES / "nemo" / "a_3p3.wav"
    for model, *more in ((HF,), (tmp_path / "model",), (HF, "--int8"), (HF, "--streaming", "0.64")):
        result = sortk("diarize", clip, "--model", model, "--out-dir", tmp_path / "out", "--probs", *more)
        assert result.exit_code == 0, result.stderr
        assert np.load(tmp_path / "out" / "a_3p3.npy").shape == (330, 8)
        assert max(segment.end for segment in read_rttm(tmp_path / "out" / "a_3p3.rttm")) <= 3.301
    result = sortk("diarize", clip, "--model", HF, "--streaming", "10")
    assert result.exit_code == 1 and "no streaming preset '10', only 0.32, 0.64, 1.04, 30.4" in result.stderr


def test_int8_is_close() -> None:
    samples = read_clip("a_3p3")
    exact, rounded = load(HF).posteriors_of_samples(samples), load(HF, int8=True).posteriors_of_samples(samples)
    assert 0 < np.abs(exact - rounded).mean() < 0.05  # the last layers of the random model are scaled up


# --- damaged and hostile files


def rewrite(folder: Path, change: Change) -> Path:
    """A copy of the Hugging Face folder with another config or other tensors."""
    shutil.copytree(HF, folder)
    config = json.loads((HF / "config.json").read_text(encoding="utf-8"))
    tensors = load_file(HF / "model.safetensors")
    change(config, tensors)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors")
    return folder


Change = Callable[[dict[str, Any], dict[str, Tensor]], None]


def put(path: str, value: Any) -> Change:
    def change(config: dict[str, Any], _tensors: dict[str, Tensor]) -> None:
        *tables, key = path.split(".")
        for table in tables:
            config = config[table]
        config[key] = value

    return change


def drop(name: str) -> Change:
    def change(_config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        del tensors[name]

    return change


def spoil(name: str) -> Change:
    def change(_config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        tensors[name].view(-1)[0] = float("nan")

    return change


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (put("audio_config.num_mel_bins", 10**9), "audio_config.num_mel_bins is 1000000000, not a whole number"),
        (put("audio_config.num_mel_bins", 60000), "n_mels must be at most 512"),
        (put("audio_config.hidden_size", 10**40), "audio_config.hidden_size is 1000"),
        (put("audio_config.num_hidden_layers", 60000), "n_layers is 60000, but there are only"),
        (put("audio_config.num_attention_heads", 3), "num_key_value_heads is 4; sortk supports 3 only"),
        (put("audio_config.hidden_act", "relu"), "audio_config.hidden_act is 'relu'"),
        (put("audio_config", None), "no section 'audio_config'"),
        (put("audio_config.rope_parameters.rope_type", "yarn"), "rope_parameters.rope_type is 'yarn'"),
        (put("head_config.num_speakers", 9), "streaming_config.num_speakers is 8; sortk supports 9 only"),
        (put("streaming_config.speaker_cache_length", 10**12), "speaker_cache_length is 1000000000000, not a whole"),
        (put("chunk_length", 0), "chunk_length is 0"),
        (put("model_type", "whisper"), "model_type is 'whisper'; sortk supports nemotron3_diarization"),
        (drop("silence_embeds"), "tensor 'silence_embeds' is missing"),
        (drop("model.audio_tower.layers.1.self_attn.k_proj.weight"), "self_attn.k_proj.weight' is missing"),
        (drop("model.audio_tower.layers.1.self_attn.q_proj.weight"), "layers.1.self_attn.qkv_proj.weight' is missing"),
        (spoil("classifier.dense.weight"), "tensor 'classifier.dense.weight' holds NaN"),
    ],
)
def test_damaged_folders(tmp_path: Path, change: Change, fault: str) -> None:
    folder = rewrite(tmp_path / "model", change)
    with pytest.raises(FormatError, match=fault):
        load_diarizer(folder)
    result = sortk("diarize", FIXTURES / "nemo" / "a_3p3.wav", "--model", folder)
    assert result.exit_code == 1 and result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("encoder.d_model", 10**40, "encoder.d_model is 1000"),
        ("encoder.ff_expansion", 1e9, "encoder.ff_expansion is"),
        ("encoder.qk_norm", True, "encoder.qk_norm is True"),
        ("encoder.self_attention_model", "rel_pos", "encoder.self_attention_model is 'rel_pos'"),
        ("encoder.novelty", 1, "encoder.novelty is 1; sortk does not know"),
        ("preprocessor.features", 10**9, "preprocessor.features is 1000000000"),
        ("sortformer_modules.use_learnable_sil_emb", False, "use_learnable_sil_emb is False"),
        ("sortformer_modules.spkcache_len", 3, "model.nemo: a cache of 3 frames is too small for 8 speakers: give 16"),
        ("high_resolution", False, "model.high_resolution is False"),
    ],
)
def test_nemo_configs_that_are_not_supported(tmp_path: Path, key: str, value: Any, fault: str) -> None:
    model = tiny()
    config = nemo_config(model.options)
    put(key, value)(config, {})
    path = write_nemo(tmp_path / "model.nemo", config, nemo_tensors(model))
    with pytest.raises(FormatError, match=fault):
        load_diarizer(path)


def test_the_base_of_rotary_positions_may_be_large() -> None:
    options = replace(NemotronOptions(), rope_base=500000.0)
    assert convert_config(nemo_config(options))["options"]["rope_base"] == 500000.0


def test_options_survive_json() -> None:
    options = replace(NemotronOptions(), n_speakers=5, offline=ODD)
    assert NemotronOptions.from_json(json.loads(json.dumps(asdict(options)))) == options
    with pytest.raises(ValueError, match="d_model 100 must be a multiple of twice n_heads 8"):
        NemotronOptions(d_model=100)


def test_tuning_reads_its_frame_length(tmp_path: Path) -> None:
    """Posteriors of 330 rows are 3.3 s: of 80 ms they would be 26.4 s, which the session does not have."""
    write_posteriors(load(HF), [Session("a_3p3", FIXTURES / "nemo" / "a_3p3.wav", duration=3.3)], tmp_path)
    found = posteriors.read_session(tmp_path, Session("a_3p3", FIXTURES / "nemo" / "a_3p3.wav", duration=3.3))
    assert found.frame_seconds == 0.01 and found.probs.shape == (330, 8)
    assert read_frame_seconds(HF) == 0.01
