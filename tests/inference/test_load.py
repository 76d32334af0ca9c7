from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import soundfile
import torch
from click.testing import CliRunner
from nemo_models import (
    canary_config,
    canary_tensors,
    changed,
    encoder_config,
    encoder_tensors,
    random_sortformer,
    sortformer_config,
    sortformer_tensors,
    write_nemo,
)

from sortk.cli import main
from sortk.formats.files import FormatError
from sortk.formats.model_folder import load_model, save_model
from sortk.inference.load import import_nemo, load_diarizer, read_asr, read_model
from sortk.models.canary import Canary, CanaryOptions
from sortk.models.diarizer import StreamingOptions
from sortk.models.eend import Eend, EendOptions
from sortk.models.fastconformer import FastConformerOptions
from sortk.models.features import FeatureOptions
from sortk.models.sortformer import Sortformer, SortformerOptions
from sortk.models.transformer import TransformerOptions
from sortk.training.diarizer import build_diarizer, start_from
from sortk.training.options import TrainDiarOptions

FIXTURES = Path(__file__).parents[1] / "fixtures" / "nemo"
SMALL = SortformerOptions(
    n_speakers=3,
    features=FeatureOptions(n_mels=40, dither=1e-5),
    encoder=FastConformerOptions(d_model=16, n_layers=2, n_heads=2, subsampling_channels=8),
    transformer=TransformerOptions(d_model=8, n_layers=1, n_heads=2, d_inner=24),
)
STREAMING = replace(SMALL, features=FeatureOptions(n_mels=40, gain=False, normalize="none", dither=1e-5))


@pytest.fixture
def model() -> Sortformer:
    return random_sortformer(SMALL)


@pytest.fixture
def archive(tmp_path: Path, model: Sortformer) -> Path:
    return write_nemo(tmp_path / "model.nemo", sortformer_config(SMALL), sortformer_tensors(model))


def sortk(*arguments: Any) -> Any:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_folder_and_nemo_file_are_the_same_model(tmp_path: Path, archive: Path, model: Sortformer) -> None:
    import_nemo(archive, tmp_path / "folder")
    samples = torch.randn(2, 16000)
    for path in (archive, tmp_path / "folder"):
        loaded = load_diarizer(path)
        assert loaded.streaming is None and not loaded.model.training
        assert loaded.model.options == SMALL
        torch.testing.assert_close(loaded.model(samples).logits, model(samples).logits)


def test_nvidias_file_gives_nvidias_posteriors() -> None:
    samples, _ = soundfile.read(FIXTURES / "a_3p3.wav", dtype="float32")
    with torch.inference_mode():
        probs = load_diarizer(FIXTURES / "tiny_sortformer.nemo").model(torch.from_numpy(samples)[None]).speaker_probs
    with np.load(FIXTURES / "tiny_a_3p3.npz") as expected:
        torch.testing.assert_close(probs, torch.from_numpy(expected["preds"]), atol=1e-4, rtol=0)


def write_streaming(path: Path, **settings: int) -> Path:
    config = sortformer_config(STREAMING, streaming=True)
    for key, value in settings.items():
        config = changed(config, f"sortformer_modules.{key}", value)
    return write_nemo(path, config, sortformer_tensors(random_sortformer(STREAMING)))


def test_a_streaming_model_brings_its_settings(tmp_path: Path) -> None:
    path = write_streaming(tmp_path / "model.nemo", chunk_len=6, fifo_len=188)
    import_nemo(path, tmp_path / "folder")
    for source in (path, tmp_path / "folder"):
        loaded = load_diarizer(source)
        assert loaded.streaming == StreamingOptions(chunk=6, fifo=188)
        assert not loaded.model.options.features.gain


def test_settings_of_a_stream_that_cannot_be(tmp_path: Path) -> None:
    path = write_streaming(tmp_path / "model.nemo", chunk_len=0)
    with pytest.raises(FormatError, match="model.nemo: not the options of .*: chunk must be from 1 to 65536, got 0"):
        import_nemo(path, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize("attractors", [False, True])
def test_the_baselines_load_too(tmp_path: Path, attractors: bool) -> None:
    transformer = TransformerOptions(d_model=8, n_layers=1, n_heads=2, d_inner=8, pre_norm=True)
    options = EendOptions(n_speakers=2, attractors=attractors, transformer=transformer)
    model = Eend(options).eval()
    name = "eend-eda" if attractors else "eend-sa"
    save_model(tmp_path, model.state_dict(), {"model": name, "options": options.to_json()})
    samples = torch.randn(1, 16000)
    torch.testing.assert_close(load_diarizer(tmp_path).model(samples).speaker_probs, model(samples).speaker_probs)


def test_on_another_device(archive: Path) -> None:
    model = load_diarizer(archive, torch.device("meta")).model
    assert {tensor.device.type for tensor in [*model.parameters(), *model.buffers()]} == {"meta"}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (
            lambda config: {"model": "waveform"},
            "the model 'waveform' is unknown; this version",
        ),
        (lambda config: {"options": config["options"] | {"depth": 3}}, "not the options of a Sortformer: .*'depth'"),
        (lambda config: {"options": config["options"] | {"n_speakers": 5}}, "tensor 'speakers.weight' is 3 x 8, but"),
        (lambda config: {"streaming": {"chunks": 3}}, "not the options of a streaming model: .*'chunks'"),
    ],
)
def test_folders_that_are_not_whole(
    tmp_path: Path, model: Sortformer, change: Callable[[dict[str, Any]], dict[str, Any]], fault: str
) -> None:
    config: dict[str, Any] = {"model": "sortformer", "options": SMALL.to_json()}
    save_model(tmp_path, model.state_dict(), config | change(config))
    with pytest.raises(FormatError, match=fault):
        load_diarizer(tmp_path)


def test_an_encoder_is_no_diarizer(tmp_path: Path, model: Sortformer) -> None:
    path = write_nemo(tmp_path / "nest.nemo", encoder_config(SMALL), encoder_tensors(model))
    with pytest.raises(FormatError, match="nest.nemo: holds the model 'encoder', which is not a diarizer"):
        load_diarizer(path)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="none: no such model folder or .nemo file"):
        read_model(tmp_path / "none")
    with pytest.raises(FormatError, match="not a model folder"):
        read_model(tmp_path)


def bad_archives(folder: Path, model: Sortformer) -> dict[str, Path]:
    """Name of the fault -> an archive that has it."""
    config, tensors = sortformer_config(SMALL), sortformer_tensors(model)
    rotary = changed(config, "encoder.self_attention_model", "rotary")
    fewer = {name: tensor for name, tensor in tensors.items() if not name.endswith("linear_pos.weight")}
    more = tensors | {"encoder.adapter.weight": torch.zeros(2)}
    cut = write_nemo(folder / "cut.nemo", config, tensors)
    cut.write_bytes(cut.read_bytes()[:20000])
    return {
        "encoder.self_attention_model is 'rotary'": write_nemo(folder / "rotary.nemo", rotary, tensors),
        "'encoder.layers.0.self_attn.linear_pos.weight' is missing": write_nemo(folder / "few.nemo", config, fewer),
        "'encoder.adapter.weight' is not part of this model": write_nemo(folder / "many.nemo", config, more),
        "is cut off": cut,
    }


def test_the_command_says_one_sentence_and_writes_nothing(tmp_path: Path, model: Sortformer) -> None:
    for fault, path in bad_archives(tmp_path, model).items():
        result = sortk("import-nemo", path, "--out", tmp_path / "out")
        assert result.exit_code == 1
        assert fault in result.stderr and str(path) in result.stderr
        assert result.stderr.count("\n") == 1 and not result.stdout
        assert not (tmp_path / "out").exists()


def test_the_command_names_what_it_leaves_out(tmp_path: Path, archive: Path) -> None:
    result = sortk("import-nemo", archive, "--out", tmp_path / "folder")
    assert result.exit_code == 0 and not result.stdout
    assert "sortformer with 0.0M weights" in result.stderr
    assert "never used, not even by NVIDIA): sortformer_modules.hidden_to_spks.weight, " in result.stderr
    assert sorted(file.name for file in (tmp_path / "folder").iterdir()) == ["config.json", "model.safetensors"]
    config = json.loads((tmp_path / "folder" / "config.json").read_text(encoding="utf-8"))
    assert config.keys() == {"model", "options", "format", "sha256"}
    assert (config["model"], config["options"]) == ("sortformer", SMALL.to_json())
    again = sortk("import-nemo", archive, "--out", tmp_path / "folder")
    assert again.exit_code == 1 and "folder: is there already" in again.stderr


# --- Canary

SPECIAL = ["<pad>", "<|endoftext|>", "<|startoftranscript|>", "<|nopnc|>", "<|transcribe|>", "<|en|>", "<|spk0|>"]
CANARY = CanaryOptions(
    n_tokens=48,
    max_tokens=40,
    features=STREAMING.features,
    encoder=replace(SMALL.encoder, scale_input=False),
    decoder=TransformerOptions(d_model=8, n_layers=1, n_heads=2, d_inner=24, dropout=0.1, pre_norm=True),
)


def sentencepiece_model(words: list[str], n_tokens: int, symbols: list[str]) -> bytes:
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(words), model_writer=file, vocab_size=n_tokens, user_defined_symbols=symbols,
        bos_id=-1, eos_id=-1, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    return file.getvalue()


@pytest.fixture
def canary_file(tmp_path: Path) -> Path:
    words = ["one two three four five", "six seven eight nine"] * 3
    files = {
        "0_tokenizer.model": sentencepiece_model(["a"], 12, SPECIAL),
        "1_tokenizer.model": sentencepiece_model(words, 30, []),
    }
    return write_nemo(tmp_path / "canary.nemo", canary_config(CANARY), canary_tensors(Canary(CANARY)), files)


def test_a_canary_brings_its_tokenizers(tmp_path: Path, canary_file: Path) -> None:
    import_nemo(canary_file, tmp_path / "canary")
    names = ["config.json", "model.safetensors", "tokenizer.en.model", "tokenizer.spl_tokens.model"]
    assert sorted(file.name for file in (tmp_path / "canary").iterdir()) == names
    texts = []
    for source in (canary_file, tmp_path / "canary"):
        weights, config, tokenizer = read_asr(source)
        assert config["model"] == "canary" and CanaryOptions.from_json(config["options"]) == CANARY
        Canary(CANARY).load_state_dict(weights)
        tokens = tokenizer.encode("<spk0> nine two")
        texts.append((tokens, tokenizer.decode(tokens), tokenizer.prompt, tokenizer.end))
    assert texts[0] == texts[1]
    assert texts[0][1] == "<spk0> nine two" and texts[0][0][0] < 12 <= texts[0][0][1]


def test_a_canary_whose_tokens_are_more_than_it_knows(tmp_path: Path) -> None:
    few = replace(CANARY, n_tokens=16)
    files = {
        "0_tokenizer.model": sentencepiece_model(["a"], 12, SPECIAL),
        "1_tokenizer.model": sentencepiece_model(["one two three four"], 12, []),
    }
    path = write_nemo(tmp_path / "canary.nemo", canary_config(few), canary_tensors(Canary(few)), files)
    with pytest.raises(FormatError, match="the tokenizers have [0-9]+ tokens, but the model knows only 16"):
        read_asr(path)


def test_a_tokenizer_that_is_none(tmp_path: Path) -> None:
    files = {"0_tokenizer.model": b"not one", "1_tokenizer.model": b"nor this"}
    path = write_nemo(tmp_path / "canary.nemo", canary_config(CANARY), canary_tensors(Canary(CANARY)), files)
    with pytest.raises(FormatError, match="canary.nemo: tokenizer.spl_tokens.model: not a sentencepiece model"):
        import_nemo(path, tmp_path / "canary")
    assert not (tmp_path / "canary").exists()


def test_a_diarizer_is_no_asr(archive: Path) -> None:
    with pytest.raises(FormatError, match="model.nemo: holds the model 'sortformer', which is not an ASR"):
        read_asr(archive)


def test_nvidias_canary(tmp_path: Path) -> None:
    path = FIXTURES.parents[3] / "shared" / "fixtures" / "nemo" / "tiny_canary.nemo"
    if not path.exists():
        pytest.skip("needs ../shared/fixtures/nemo")
    _, config, tokenizer = read_asr(path)
    assert config["options"]["n_tokens"] == 152 and tokenizer.n_tokens == 146
    assert list(tokenizer.prompt) == [4, 9, 8, 9, 6] and (tokenizer.end, tokenizer.pad) == (3, 2)


# --- as a start of training


def test_training_starts_from_a_nemo_file_with_its_sizes(archive: Path, model: Sortformer) -> None:
    weights, config = read_model(archive)
    built, saved = build_diarizer(TrainDiarOptions(size="tiny", n_speakers=3), config)
    assert built.options == SMALL and saved == config
    start_from(built, weights)
    samples = torch.randn(1, 16000)
    torch.testing.assert_close(built.eval()(samples).logits, model(samples).logits)


def test_training_starts_from_a_nest(tmp_path: Path, model: Sortformer) -> None:
    path = write_nemo(tmp_path / "nest.nemo", encoder_config(SMALL), encoder_tensors(model))
    import_nemo(path, tmp_path / "nest")
    assert load_model(tmp_path / "nest")[1]["model"] == "encoder"
    for source in (path, tmp_path / "nest"):
        weights, config = read_model(source)
        built, _ = build_diarizer(TrainDiarOptions(size="tiny"), config)
        assert isinstance(built, Sortformer)
        assert built.options.encoder == SMALL.encoder and built.options.features == SMALL.features
        assert built.options.transformer.d_model == 96  # of the tiny one
        start_from(built, weights)
        expected = model.encoder.state_dict()
        assert all(torch.equal(tensor, expected[name]) for name, tensor in built.encoder.state_dict().items())


def test_a_streaming_model_stays_one(tmp_path: Path) -> None:
    _, config = read_model(write_streaming(tmp_path / "model.nemo"))
    assert build_diarizer(TrainDiarOptions(n_speakers=3), config)[1] == config


def test_an_import_that_was_killed_can_be_run_again(tmp_path: Path, archive: Path) -> None:
    script = (
        "import os, sys; from sortk.formats import model_folder; from sortk.inference import load\n"
        "load.save_model = lambda folder, weights, config: (\n"
        "    model_folder.save_tensors(folder / 'model.safetensors', weights), os.kill(os.getpid(), 9))\n"
        "load.import_nemo(*map(load.Path, sys.argv[1:]))\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, archive, tmp_path / "out"], check=False)
    assert killed.returncode == -9
    result = sortk("import-nemo", archive, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert load_model(tmp_path / "out")
    assert [path.name for path in tmp_path.glob("*out*")] == ["out"] and not list(tmp_path.glob(".*out*"))


def test_an_import_goes_where_a_link_leads(tmp_path: Path, archive: Path) -> None:
    (tmp_path / "big").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "big" / "model")
    import_nemo(archive, tmp_path / "out")
    assert (tmp_path / "out").is_symlink() and load_model(tmp_path / "big" / "model")


def test_an_import_removes_nothing_of_the_users_own(tmp_path: Path, archive: Path) -> None:
    own = tmp_path / ".out.importing" / "notes.txt"
    own.parent.mkdir()
    own.write_text("by hand")
    with pytest.raises(FileExistsError, match=r"\.out\.importing: exists and is not a model folder"):
        import_nemo(archive, tmp_path / "out")
    assert own.read_text() == "by hand"
    own.unlink()
    own.parent.rmdir()
    own.parent.symlink_to(tmp_path)
    with pytest.raises(FileExistsError, match=r"\.out\.importing: exists and is not a model folder"):
        import_nemo(archive, tmp_path / "out")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileExistsError, match="pipe: is there already"):
        import_nemo(archive, tmp_path / "pipe")
