"""NVIDIA's Canary, imported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from nemo_models import canary_config, canary_tensors, changed
from nemo_names import rename_canary
from torch import Tensor

from sortk.formats import nemo
from sortk.models.canary import SIZES, Canary, CanaryOptions
from sortk.models.fastconformer import FastConformerOptions
from sortk.models.features import FeatureOptions
from sortk.models.nemo import convert, convert_config
from sortk.models.transformer import TransformerOptions

Golden = Callable[[str], dict[str, Tensor]]
Clip = Callable[[str], Tensor]
NemoFile = Callable[[str], Path]

SMALL = CanaryOptions(
    n_tokens=24,
    max_tokens=40,
    features=FeatureOptions(n_mels=40, gain=False, dither=1e-5),
    encoder=FastConformerOptions(d_model=16, n_layers=1, n_heads=2, subsampling_channels=8, scale_input=False),
    decoder=TransformerOptions(d_model=8, n_layers=2, n_heads=2, d_inner=24, dropout=0.1, pre_norm=True),
)
OUTPUT, POSITIONS = "log_softmax.mlp.layer0.weight", "transf_decoder._embedding.position_embedding.pos_enc"


@pytest.mark.parametrize("name", ["a_3p3", "b_10", "c_31p7"])
def test_an_imported_canary_computes_what_nvidia_computes(
    name: str, nemo_file: NemoFile, golden: Golden, clip: Clip
) -> None:
    archive, expected = nemo.read(nemo_file("tiny_canary.nemo")), golden(f"tiny_canary_{name}")
    converted = convert(archive.config, archive.tensors)
    model = Canary(CanaryOptions.from_json(converted.config["options"])).eval()
    model.load_state_dict(converted.weights)
    with torch.inference_mode():
        encoded, _ = model.encode(clip(name))
        log_probs = model.decoder(expected["prefix"], model.project(encoded)).log_softmax(dim=2)
    torch.testing.assert_close(encoded, expected["encoder_out"][:, : encoded.shape[1]], atol=1e-3, rtol=0)
    torch.testing.assert_close(log_probs, expected["log_probs"], atol=1e-3, rtol=0)


def test_all_tensors_of_nvidias_file(nemo_file: NemoFile) -> None:
    archive = nemo.read(nemo_file("tiny_canary.nemo"))
    converted = convert(archive.config, archive.tensors)
    for theirs, tensor in archive.tensors.items():
        ours = rename_canary(theirs)
        assert (ours is None) == (theirs in converted.left_out)
        if ours is not None:
            assert torch.equal(converted.weights[ours], tensor), theirs
    assert len(converted.weights) + len(converted.left_out) == len(archive.tensors)
    assert list(converted.files) == ["tokenizer.spl_tokens.model", "tokenizer.en.model"]
    assert all(name in archive.files for name in converted.files.values())


@pytest.mark.parametrize(
    "options",
    [
        SMALL,
        replace(SMALL, decoder=replace(SMALL.decoder, d_model=16, n_layers=1)),
        replace(SMALL, transformer=replace(SMALL.decoder, n_layers=1)),
        replace(SMALL, n_tokens=8, max_tokens=7),
    ],
)
def test_any_size_comes_out_as_it_went_in(options: CanaryOptions) -> None:
    torch.manual_seed(0)
    model = Canary(options)
    converted = convert(canary_config(options), canary_tensors(model))
    assert CanaryOptions.from_json(converted.config["options"]) == options
    expected = model.state_dict()
    assert converted.weights.keys() == expected.keys()
    assert all(torch.equal(converted.weights[name], expected[name]) for name in expected)


@pytest.mark.parametrize("size", ["180m-flash", "1b"])
def test_published_sizes(size: str) -> None:
    options = replace(SIZES[size], features=replace(SIZES[size].features, dither=1e-5))
    assert CanaryOptions.from_json(convert_config(canary_config(options))["options"]) == options


def test_one_tokenizer_for_everything() -> None:
    config = canary_config(SMALL) | {"tokenizer": {"type": "bpe", "model_path": "nemo:0_tokenizer.model"}}
    assert convert(config, canary_tensors(Canary(SMALL))).files == {"tokenizer.model": "0_tokenizer.model"}


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("transf_decoder._target_", "a.get_huggingface_transformer", "transf_decoder._target_ is 'a.get_hugging"),
        ("transf_decoder.pretrained", True, "transf_decoder.pretrained is True"),
        ("transf_decoder.config_dict", None, "no section 'transf_decoder.config_dict'"),
        ("transf_decoder.config_dict.pre_ln", False, "transf_decoder.config_dict.pre_ln is False"),
        ("transf_decoder.config_dict.num_token_types", 2, "transf_decoder.config_dict.num_token_types is 2"),
        ("transf_decoder.config_dict.hidden_act", "gelu", "transf_decoder.config_dict.hidden_act is 'gelu'"),
        ("transf_decoder.config_dict.learn_positional_encodings", True, "learn_positional_encodings is True"),
        ("model_defaults.lm_dec_hidden", 9, "model_defaults.lm_dec_hidden is 9; sortk supports 8"),
        ("head.num_layers", 2, "head.num_layers is 2"),
        ("head.num_classes", "None", "head.num_classes is 'None', not a whole number"),
        ("head.num_classes", 32, "tensor 'log_softmax.mlp.layer0.bias' is 24, but the config asks for 32"),
        ("transf_decoder.config_dict.max_sequence_length", 41, f"tensor '{POSITIONS}' does not hold the positions"),
        ("tokenizer", None, "no section 'tokenizer'"),
        ("tokenizer.type", "wpe", "tokenizer.type is 'wpe'; sortk supports 'agg' or 'bpe'"),
        ("tokenizer.langs", {}, "tokenizer.langs is {}, not a table"),
        ("tokenizer.langs", {"../en": {"type": "bpe"}}, "tokenizer.langs has '../en'"),
        ("tokenizer.langs.en.type", "wpe", "tokenizer.langs.en.type is 'wpe'"),
        ("tokenizer.langs.en.model_path", "/etc/passwd", "tokenizer.langs.en.model_path is '/etc/passwd'"),
    ],
)
def test_configs_that_are_not_supported(key: str, value: Any, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        convert(changed(canary_config(SMALL), key, value), canary_tensors(Canary(SMALL)))


@pytest.mark.parametrize(
    ("name", "change", "fault"),
    [
        (OUTPUT, lambda tensor: tensor + 1, "is not 'transf_decoder._embedding.token_embedding.weight'"),
        (POSITIONS, lambda tensor: tensor.flip(0), "does not hold the positions that sortk counts"),
    ],
)
def test_tensors_that_do_not_fit(name: str, change: Callable[[Tensor], Tensor], fault: str) -> None:
    tensors = canary_tensors(Canary(SMALL))
    with pytest.raises(ValueError, match=f"tensor '{name}' {fault}"):
        convert(canary_config(SMALL), tensors | {name: change(tensors[name])})
