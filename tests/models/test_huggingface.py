"""Parakeet from Hugging Face's folders: the tensors of a `.nemo` file under transformers' names are the same model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nemo2
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from sortk.cli import main
from sortk.formats.files import FormatError
from sortk.formats.nemo import read
from sortk.inference.load import load_asr, load_diarizer
from sortk.inference.recognize import ParakeetRecognizer
from sortk.models.parakeet import Parakeet

# NVIDIA's names -> transformers', as its own converter has them (5.23, models/parakeet).
RENAMED = {
    r"^encoder\.pre_encode\.conv\.": "encoder.subsampling.layers.",
    r"^encoder\.pre_encode\.out\.": "encoder.subsampling.linear.",
    r"\.conv\.batch_norm\.": ".conv.norm.",
    r"\.linear_([qkv])\.": r".\1_proj.",
    r"\.linear_out\.": ".o_proj.",
    r"\.linear_pos\.": ".relative_k_proj.",
    r"\.pos_bias_([uv])$": r".bias_\1",
    r"^ctc_decoder\.decoder_layers\.0\.": "ctc_head.",
    r"^decoder\.prediction\.embed\.": "decoder.embedding.",
    r"^decoder\.prediction\.dec_rnn\.lstm\.": "decoder.lstm.",
    r"^joint\.enc\.": "encoder_projector.",
    r"^joint\.pred\.": "decoder.decoder_projector.",
    r"^joint\.joint_net\.2\.": "joint.head.",
}
TRANSDUCER = ("decoder.", "encoder_projector.", "joint.")
Change = Callable[[dict[str, Any]], object]


def rename(name: str) -> str:
    for pattern, replacement in RENAMED.items():
        name = re.sub(pattern, replacement, name)
    return name


def write_folder(folder: Path, model_type: str, nemo: Path, change: Change = lambda _files: None) -> Path:
    """A folder as transformers writes it; `change` gets the contents of its files."""
    archive = read(nemo)
    encoder = archive.config["encoder"]
    tensors = {rename(name): tensor for name, tensor in archive.tensors.items() if "featurizer" not in name}
    is_ctc = model_type == "parakeet_ctc"
    files: dict[str, Any] = {
        "model.safetensors": {
            name: tensor.contiguous()
            for name, tensor in tensors.items()
            if not name.startswith(TRANSDUCER if is_ctc else "ctc_head.")
        },
        "config.json": {
            "model_type": model_type,
            "architectures": ["ParakeetForCTC"],
            "vocab_size": 129,
            "pad_token_id": 128 if is_ctc else 2,
            "encoder_config": {
                "model_type": "parakeet_encoder",
                "hidden_size": encoder["d_model"],
                "num_hidden_layers": encoder["n_layers"],
                "num_attention_heads": encoder["n_heads"],
                "num_key_value_heads": encoder["n_heads"],
                "intermediate_size": 4 * encoder["d_model"],
                "conv_kernel_size": encoder["conv_kernel_size"],
                "subsampling_factor": 8,
                "subsampling_conv_channels": encoder["subsampling_conv_channels"],
                "num_mel_bins": encoder["feat_in"],
                "scale_input": encoder["xscaling"],
                "attention_bias": encoder.get("use_bias", True),
                "convolution_bias": encoder.get("use_bias", True),
            },
        },
        "processor_config.json": {"feature_extractor": {"feature_size": encoder["feat_in"], "hop_length": 160}},
    }
    if not is_ctc:
        prediction = archive.config["decoder"]["prednet"]
        files["config.json"] |= {
            "blank_token_id": 128,
            "decoder_hidden_size": prediction["pred_hidden"],
            "num_decoder_layers": prediction["pred_rnn_layers"],
            "hidden_act": "relu",
            **({"durations": [0, 1, 2, 3, 4]} if model_type == "parakeet_tdt" else {}),
        }
    own = load_asr(nemo).tokenizer
    added = [{"id": 0, "content": "<unk>", "special": True}, {"id": 128, "content": "<blank>", "special": True}]
    vocabulary = {own.spell(number): number for number in range(128)}
    files["tokenizer.json"] = {
        "added_tokens": added,
        "model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": True, "vocab": vocabulary, "merges": []},
    }
    change(files)
    folder.mkdir()
    save_file(files.pop("model.safetensors"), folder / "model.safetensors")
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.mark.parametrize(("model_type", "head"), [("parakeet_ctc", "ctc"), ("parakeet_tdt", "transducer")])
def test_a_folder_is_the_nemo_file(tmp_path: Path, model_type: str, head: Any) -> None:
    nemo = nemo2.find("tiny_tdt_ctc.nemo")
    theirs, ours = load_asr(nemo), load_asr(write_folder(tmp_path / "hf", model_type, nemo))
    assert isinstance(theirs.model, Parakeet) and isinstance(ours.model, Parakeet)
    assert ours.model.heads == (head,)
    weights = theirs.model.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in ours.model.state_dict().items())
    assert [ours.tokenizer.spell(n) for n in range(128)] == [theirs.tokenizer.spell(n) for n in range(128)]
    for text in ("the water is there?", "People, good day."):
        assert ours.tokenizer.encode(text) == theirs.tokenizer.encode(text)
    expected = nemo2.results("tiny_tdt_ctc", complete=False)["results"]["ctc_a_3p3" if head == "ctc" else "a_3p3"]
    [words] = ParakeetRecognizer(ours.model, ours.tokenizer).recognize([nemo2.clip("a_3p3")])
    assert [word[:3] for word in words] == nemo2.words_of(expected)


def test_a_model_without_biases_and_one_with_an_rnnt(tmp_path: Path) -> None:
    """In transformers, prediction and joint network have one width; the tiny models' differ, so these are random."""
    for name, model_type in (("tiny_tdt", "parakeet_tdt"), ("tiny_rnnt", "parakeet_rnnt")):
        nemo = nemo2.find(f"{name}.nemo")
        width = int(read(nemo).config["decoder"]["prednet"]["pred_hidden"])

        def fit(files: dict[str, Any], width: int = width) -> None:
            tensors = files["model.safetensors"]
            n_out = len(tensors["joint.head.bias"])
            tensors["joint.head.weight"] = torch.randn(n_out, width)
            for part in ("encoder_projector", "decoder.decoder_projector"):
                tensors[f"{part}.weight"] = torch.randn(width, tensors[f"{part}.weight"].shape[1])
                tensors[f"{part}.bias"] = torch.randn(width)

        theirs = load_asr(nemo).model
        ours = load_asr(write_folder(tmp_path / name, model_type, nemo, fit)).model
        assert isinstance(ours, Parakeet) and isinstance(theirs, Parakeet)
        with torch.inference_mode():
            samples = nemo2.clip("a_3p3")[None]
            assert torch.equal(ours.encode(samples)[0], theirs.encode(samples)[0])
            ours.decode(ours.encode(samples)[0])


def test_blank_is_read_before_the_first_token(tmp_path: Path) -> None:
    """transformers reads the embedding of blank, which its training may change; NVIDIA's is a zero vector."""
    row = torch.linspace(-1, 1, 32)
    folder = write_folder(
        tmp_path / "hf",
        "parakeet_tdt",
        nemo2.find("tiny_tdt_ctc.nemo"),
        lambda files: files["model.safetensors"]["decoder.embedding.weight"][-1].copy_(row),
    )
    model = load_asr(folder).model
    assert isinstance(model, Parakeet) and model.transducer is not None
    output, _ = model.transducer.prediction.lstm(row[None, None])
    torch.testing.assert_close(model.transducer.start(1).hidden[-1, 0], output[0, 0], atol=1e-6, rtol=0)


def test_import_and_transcribe(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", "parakeet_tdt", nemo2.find("tiny_tdt_ctc.nemo"))
    clip, imported = str(nemo2.find("a_3p3.wav")), str(tmp_path / "ours")
    assert CliRunner().invoke(main, ["import-nemo", str(folder), "--out", imported]).exit_code == 0
    texts = []
    for model in (str(folder), imported, str(nemo2.find("tiny_tdt_ctc.nemo"))):
        result = CliRunner().invoke(main, ["transcribe", "-q", clip, "--model", model, "--format", "txt"])
        assert result.exit_code == 0, result.output
        texts.append(result.stdout)
    assert texts[0] and len({*texts}) == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda files: files["config.json"].update(model_type="whisper"), "model_type is 'whisper'; sortk supports"),
        (lambda files: files["config.json"].pop("encoder_config"), "no section 'encoder_config'"),
        (lambda files: files["config.json"].update(vocab_size=1 << 40), "vocab_size is 1099511627776, not a whole"),
        (lambda files: files["config.json"].update(blank_token_id=0), "blank_token_id is 0; sortk supports 128 only"),
        (lambda files: files["config.json"].update(durations="all"), "durations is 'all', not a list"),
        (lambda files: files["config.json"].update(durations=[0, -1]), "durations must be from 0 to 65536"),
        (lambda files: files["config.json"].update(durations=[1, 10**30]), "durations must be from 0 to 65536"),
        (
            lambda files: files["config.json"]["encoder_config"].update(num_hidden_layers=60000),
            "n_layers is 60000, but there are only",
        ),
        (
            lambda files: files["config.json"]["encoder_config"].update(intermediate_size=90),
            "intermediate_size is 90, which is not a multiple of 40",
        ),
        (
            lambda files: files["processor_config.json"]["feature_extractor"].update(hop_length=200),
            "feature_extractor.hop_length is 200; sortk supports 160 only",
        ),
        (lambda files: files["model.safetensors"].pop("joint.head.bias"), "tensor 'joint.head.bias' is missing"),
        (
            lambda files: files["model.safetensors"]["joint.head.bias"].fill_(float("nan")),
            "tensor 'joint.head.bias' holds NaN",
        ),
        (
            lambda files: files["model.safetensors"].update({"joint.head.bias": torch.zeros(3)}),
            "tensor 'joint.head.bias' is 3, but the config asks for 134",
        ),
        (lambda files: files["tokenizer.json"]["model"]["vocab"].popitem(), "names 127 of the model's 128 tokens"),
        (lambda files: files["tokenizer.json"].pop("model"), "no BPE model with a vocabulary"),
        (lambda files: files["tokenizer.json"]["model"].update(type="Unigram"), "type 'Unigram'; sortk supports BPE"),
        (lambda files: files["tokenizer.json"]["model"].update(unk_token=None), "not a sentencepiece model"),
        (lambda files: files.update({"tokenizer.json": [[]]}), "no BPE model with a vocabulary"),
    ],
)
def test_what_is_refused(tmp_path: Path, change: Change, reason: str) -> None:
    folder = write_folder(tmp_path / "hf", "parakeet_tdt", nemo2.find("tiny_tdt_ctc.nemo"), change)
    with pytest.raises(FormatError, match=re.escape(reason)) as caught:
        load_asr(folder)
    assert "\n" not in str(caught.value)


def test_it_is_not_a_diarizer(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", "parakeet_tdt", nemo2.find("tiny_tdt_ctc.nemo"))
    with pytest.raises(FormatError, match="'parakeet', which is not a diarizer"):
        load_diarizer(folder)
