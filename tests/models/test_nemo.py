from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from nemo_models import (
    changed,
    encoder_config,
    encoder_tensors,
    random_sortformer,
    sortformer_config,
    sortformer_tensors,
)
from nemo_names import OFFLINE, STREAMING, rename
from torch import Tensor

from sortk.formats import nemo
from sortk.models.fastconformer import FastConformerOptions
from sortk.models.features import FeatureOptions
from sortk.models.nemo import Converted, convert, convert_config
from sortk.models.sortformer import SIZES, Sortformer, SortformerOptions
from sortk.models.transformer import TransformerOptions

Golden = Callable[[str], dict[str, Tensor]]
Clip = Callable[[str], Tensor]
NemoFile = Callable[[str], Path]

SMALL = SortformerOptions(
    n_speakers=3,
    features=FeatureOptions(n_mels=40, dither=1e-5),
    encoder=FastConformerOptions(d_model=16, n_layers=2, n_heads=2, subsampling_channels=8),
    transformer=TransformerOptions(d_model=8, n_layers=1, n_heads=2, d_inner=24),
)


def build(converted: Converted) -> Sortformer:
    model = Sortformer(SortformerOptions.from_json(converted.config["options"]))
    model.load_state_dict(converted.weights)
    return model.eval()


def convert_file(path: Path) -> Converted:
    archive = nemo.read(path)
    return convert(archive.config, archive.tensors)


# --- NVIDIA's own files


@pytest.mark.parametrize("name", ["a_3p3", "b_10", "c_31p7"])
def test_an_imported_model_computes_what_nvidia_computes(
    name: str, nemo_file: NemoFile, golden: Golden, clip: Clip
) -> None:
    model, expected = build(convert_file(nemo_file("tiny_sortformer.nemo"))), golden(f"tiny_{name}")
    samples = clip(name)
    with torch.inference_mode():
        mel = model.features(samples)[0]
        encoded = model.encoder(mel)[0]
        probs = model(samples).speaker_probs
    n_mel = int(expected["mel_len"][0])
    torch.testing.assert_close(mel.transpose(1, 2), expected["mel"][:, :, :n_mel], atol=1e-4, rtol=0)
    torch.testing.assert_close(encoded, expected["encoder_out"], atol=1e-3, rtol=0)
    torch.testing.assert_close(probs, expected["preds"], atol=1e-4, rtol=0)


def test_and_the_streaming_model(nemo_file: NemoFile, golden: Golden, clip: Clip) -> None:
    converted = convert_file(nemo_file("tiny_streaming_sortformer.nemo"))
    with torch.inference_mode():
        probs = build(converted)(clip("d_60")).speaker_probs
    expected = golden("tiny_streaming_d_60")["preds_offline_nochunk"]
    torch.testing.assert_close(probs, expected, atol=1e-4, rtol=0)
    assert converted.config["streaming"] == {
        "chunk": 188, "left_context": 1, "right_context": 1, "fifo": 0, "update_period": 188, "cache": 188,
        "silence_per_speaker": 3, "silence_threshold": 0.2, "prob_floor": 0.25, "recent_bonus": 0.05,
        "strong_boost": 0.75, "weak_boost": 1.5, "min_alone": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize(("name", "options"), [("tiny_sortformer", OFFLINE), ("tiny_streaming_sortformer", STREAMING)])
def test_options_of_nvidias_files_and_all_of_their_tensors(
    name: str, options: SortformerOptions, nemo_file: NemoFile
) -> None:
    archive = nemo.read(nemo_file(f"{name}.nemo"))
    converted = convert(archive.config, archive.tensors)
    features = replace(options.features, dither=1e-5)
    assert SortformerOptions.from_json(converted.config["options"]) == replace(options, features=features)
    assert convert_config(archive.config) == converted.config
    used = {theirs: rename(theirs) for theirs in archive.tensors if theirs not in converted.left_out}
    assert set(used.values()) == set(converted.weights)
    for theirs, ours in used.items():
        assert torch.equal(archive.tensors[theirs], converted.weights[ours]), theirs
    assert set(converted.left_out) == {
        "preprocessor.featurizer.window", "preprocessor.featurizer.fb",
        "sortformer_modules.hidden_to_spks.weight", "sortformer_modules.hidden_to_spks.bias",
    }  # fmt: skip


# --- any size


@pytest.mark.parametrize(
    "options",
    [
        SMALL,
        replace(SMALL, n_speakers=7, dropout=0.0),
        replace(SMALL, features=FeatureOptions(n_mels=128, gain=False, normalize="none", dither=1e-5)),
        replace(SMALL, features=FeatureOptions(n_mels=23, dither=1e-5)),
        replace(SMALL, encoder=replace(SMALL.encoder, conv_kernel=5, n_layers=3, scale_input=False, ff_expansion=2)),
        replace(SMALL, encoder=replace(SMALL.encoder, d_model=24, n_heads=3, subsampling_channels=5, conv_kernel=31)),
        replace(SMALL, transformer=TransformerOptions(d_model=12, n_layers=3, n_heads=4, d_inner=7, pre_norm=True)),
        replace(SMALL, transformer=replace(SMALL.transformer, d_model=16)),
    ],
)
def test_any_size_comes_out_as_it_went_in(options: SortformerOptions) -> None:
    model = random_sortformer(options)
    streaming = not options.features.gain
    converted = convert(sortformer_config(options, streaming), sortformer_tensors(model))
    assert SortformerOptions.from_json(converted.config["options"]) == options
    assert ("streaming" in converted.config) == streaming
    expected = model.state_dict()
    assert converted.weights.keys() == expected.keys()
    assert all(torch.equal(converted.weights[name], expected[name]) for name in expected)


def test_the_paper_s_size() -> None:
    """123M parameters, 18 layers of 512 and 18 of 192."""
    features = replace(SIZES["base"].features, dither=1e-5)
    options = replace(SIZES["base"], features=features)
    assert SortformerOptions.from_json(convert_config(sortformer_config(options))["options"]) == options


def test_as_many_channels_as_the_model_is_wide() -> None:
    """NVIDIA writes -1 for it."""
    options = replace(SMALL, encoder=replace(SMALL.encoder, subsampling_channels=16))
    config = changed(sortformer_config(options), "encoder.subsampling_conv_channels", -1)
    assert SortformerOptions.from_json(convert_config(config)["options"]) == options


def test_layers_without_biases() -> None:
    """They have biases of 0 here."""
    model = random_sortformer(SMALL)
    gone = [name for name in model.state_dict() if name.startswith("encoder.layers.") and name.endswith(".bias")]
    gone = [name for name in gone if "norm" not in name]
    assert len(gone) == 2 * (2 + 4 + 3 + 2)  # feed-forward, attention, convolution, feed-forward of two layers
    with torch.no_grad():
        for name in gone:
            model.state_dict()[name].zero_()
    tensors = {name: tensor for name, tensor in sortformer_tensors(model).items() if name not in gone}
    config = changed(sortformer_config(SMALL), "encoder.use_bias", False)
    imported, samples = build(convert(config, tensors)), torch.randn(1, 16000)
    torch.testing.assert_close(imported(samples).logits, model(samples).logits)
    with pytest.raises(ValueError, match="'encoder.layers.0.feed_forward1.linear1.bias' is missing"):
        convert(sortformer_config(SMALL), tensors)


def test_position_biases_that_layers_share() -> None:
    model = random_sortformer(SMALL)
    tensors = sortformer_tensors(model)
    shared = {
        f"encoder.layers.1.self_attn.pos_bias_{x}": tensors[f"encoder.layers.0.self_attn.pos_bias_{x}"] for x in "uv"
    }
    config = changed(sortformer_config(SMALL), "encoder.untie_biases", False)
    weights = convert(config, tensors | shared).weights
    assert torch.equal(weights["encoder.layers.1.self_attn.pos_bias_u"], model.encoder.layers[0].self_attn.pos_bias_u)
    storages = {tensor.untyped_storage().data_ptr() for tensor in weights.values()}
    assert len(storages) == len(weights)  # safetensors asks for it


def test_no_projection_where_both_parts_are_equally_wide() -> None:
    """NVIDIA has none then; here it is the identity."""
    options = replace(SMALL, transformer=replace(SMALL.transformer, d_model=16))
    tensors = sortformer_tensors(random_sortformer(options))
    tensors = {name: tensor for name, tensor in tensors.items() if "encoder_proj" not in name}
    weights = convert(sortformer_config(options), tensors).weights
    assert torch.equal(weights["encoder_proj.weight"], torch.eye(16)) and not weights["encoder_proj.bias"].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_another_precision(dtype: torch.dtype) -> None:
    model = random_sortformer(SMALL)
    tensors = {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in sortformer_tensors(model).items()
    }
    weights = convert(sortformer_config(SMALL), tensors).weights
    for name, tensor in model.state_dict().items():
        assert weights[name].dtype == tensor.dtype
        torch.testing.assert_close(weights[name], tensor, rtol=1e-2, atol=1e-2)


def test_a_nest_is_its_encoder_alone() -> None:
    model = random_sortformer(SMALL)
    converted = convert(encoder_config(SMALL), encoder_tensors(model))
    assert converted.config["model"] == "encoder"
    assert FastConformerOptions(**converted.config["options"]["encoder"]) == SMALL.encoder
    assert FeatureOptions(**converted.config["options"]["features"]) == replace(SMALL.features, gain=False)
    expected = {f"encoder.{name}": tensor for name, tensor in model.encoder.state_dict().items()}
    assert converted.weights.keys() == expected.keys()
    assert all(torch.equal(converted.weights[name], expected[name]) for name in expected)
    pretraining = {"decoder.layers.0.weight", "quantizer.projs", "mask_processor.mask_embedding"}
    assert {name for name, why in converted.left_out.items() if "pretraining" in why} == pretraining


# --- what is refused


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("target", "nemo.asr.EncDecCTCModel", "target is 'nemo.asr.EncDecCTCModel'; sortk supports Sortformer"),
        ("target", None, "target is 'None'"),
        ("encoder", None, "no section 'encoder'"),
        ("encoder._target_", "a.SqueezeformerEncoder", "encoder._target_ is 'a.SqueezeformerEncoder'"),
        ("encoder.self_attention_model", "abs_pos", "encoder.self_attention_model is 'abs_pos'; sortk supports"),
        ("encoder.self_attention_model", "rel_pos_local_attn", "encoder.self_attention_model is 'rel_pos_local_attn'"),
        ("encoder.att_context_size", [70, 13], r"encoder.att_context_size is \[70, 13\]"),
        ("encoder.att_context_style", "chunked_limited", "encoder.att_context_style is 'chunked_limited'"),
        ("encoder.subsampling", "vggnet", "encoder.subsampling is 'vggnet'"),
        ("encoder.subsampling_factor", 4, "encoder.subsampling_factor is 4"),
        ("encoder.causal_downsampling", True, "encoder.causal_downsampling is True"),
        ("encoder.conv_norm_type", "group_norm4", "encoder.conv_norm_type is 'group_norm4'"),
        ("encoder.conv_context_size", "causal", "encoder.conv_context_size is 'causal'"),
        ("encoder.conv_kernel_size", 8, "conv_kernel must be odd, got 8"),
        ("encoder.n_heads", 3, "d_model 16 must be even and a multiple of n_heads 3"),
        ("encoder.n_layers", "two", "encoder.n_layers is 'two', not a whole number"),
        ("encoder.n_layers", 0, "encoder.n_layers is 0, not a whole number from 1"),
        ("encoder.n_layers", 5000, "options.encoder.n_layers is 5000, but there are only"),
        ("encoder.d_model", 10**9, "encoder.d_model is 1000000000, not a whole number from 1 to"),
        ("encoder.xscaling", "maybe", "encoder.xscaling is 'maybe', neither true nor false"),
        ("encoder.novelty", 1, "encoder.novelty is 1; sortk does not know this setting"),
        ("encoder.feat_in", 80, "encoder.feat_in is 80; sortk supports 40"),
        ("preprocessor._target_", "a.AudioToMFCCPreprocessor", "preprocessor._target_ is 'a.AudioToMFCCPreprocessor'"),
        ("preprocessor.sample_rate", 8000, "preprocessor.sample_rate is 8000; sortk supports 16000"),
        ("preprocessor.window_size", 0.02, "preprocessor.window_size is 0.02; sortk supports 0.025"),
        ("preprocessor.normalize", "all_features", "preprocessor.normalize is 'all_features'"),
        ("preprocessor.window", "hamming", "preprocessor.window is 'hamming'"),
        ("preprocessor.log", False, "preprocessor.log is False"),
        ("transformer_encoder.hidden_act", "gelu", "transformer_encoder.hidden_act is 'gelu'"),
        ("transformer_encoder.mask_future", True, "transformer_encoder.mask_future is True"),
        ("transformer_encoder.num_attention_heads", 3, "d_model 8 must be a multiple of n_heads 3"),
        ("sortformer_modules.tf_d_model", 192, "sortformer_modules.tf_d_model is 192; sortk supports 8"),
        ("sortformer_modules.num_spks", 0, "sortformer_modules.num_spks is 0"),
        ("sortformer_modules.dropout_rate", float("nan"), "sortformer_modules.dropout_rate is nan"),
        ("sortformer_modules.spkcache_len", -1, "sortformer_modules.spkcache_len is -1"),
    ],
)  # fmt: skip
def test_configs_that_are_not_supported(key: str, value: Any, fault: str) -> None:
    tensors = sortformer_tensors(random_sortformer(SMALL))
    with pytest.raises(ValueError, match=fault) as caught:
        convert(changed(sortformer_config(SMALL), key, value), tensors)
    assert "\n" not in str(caught.value)


def without(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {key: tensor for key, tensor in tensors.items() if key != name}


QUERY = "transformer_encoder.layers.0.first_sub_layer.query_net.weight"
WINDOW = "preprocessor.featurizer.window"


@pytest.mark.parametrize(
    ("name", "tensor", "fault"),
    [
        (QUERY, None, "is missing"),
        ("encoder.extra", torch.zeros(1), "is not part of this model"),
        (QUERY, torch.zeros(8, 9), "is 8 x 9, but the config asks for 8 x 8"),
        (QUERY, torch.zeros(8, 8, dtype=torch.int64), "holds torch.int64, not torch.float32"),
        (QUERY, torch.zeros(8, 8, dtype=torch.complex64), "holds torch.complex64, not torch.float32"),
        (WINDOW, torch.hann_window(400), "is not what the config's preprocessor makes"),
    ],
)
def test_tensors_that_do_not_fit(name: str, tensor: Tensor | None, fault: str) -> None:
    tensors = without(sortformer_tensors(random_sortformer(SMALL)), name)
    with pytest.raises(ValueError, match=f"tensor '{name}' {fault}"):
        convert(sortformer_config(SMALL), tensors if tensor is None else tensors | {name: tensor})


def test_a_config_that_asks_for_more_than_any_memory_holds() -> None:
    """Nothing of that size is made before the tensors have been found to be smaller."""
    options = replace(SMALL, transformer=replace(SMALL.transformer, d_model=16))
    config = changed(
        changed(sortformer_config(options), "encoder.use_bias", False), "encoder.ff_expansion_factor", 1 << 16
    )
    for key in ("encoder.d_model", "transformer_encoder.hidden_size"):
        config = changed(config, key, 1 << 16)
    for key in ("fc_d_model", "tf_d_model"):
        config = changed(config, f"sortformer_modules.{key}", 1 << 16)
    tensors = without(sortformer_tensors(random_sortformer(options)), "sortformer_modules.encoder_proj.weight")
    with pytest.raises(ValueError, match="but the config asks for"):
        convert(config, tensors)
