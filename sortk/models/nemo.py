"""NVIDIA's models as ours: what a NeMo config means in our options, and which of its tensors is which of ours.

Every key of a config that could change a model's numbers is understood or refused, and so is every tensor: it is used,
or left out for a reason that is named.

    SortformerEncLabelModel               -> Sortformer, offline or streaming; Nemotron-3-Diarization
    EncDec(Denoise)MaskedTokenPredModel   -> the encoder alone (NEST), to start training from
    EncDecMultiTaskModel                  -> Canary
    EncDecRNNTBPEModel, EncDecCTCModelBPE,
    EncDecHybridRNNTCTCBPEModel           -> Parakeet
    EncDecMultiTalkerRNNTBPEModel         -> multitalker Parakeet
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sortk.models.canary import Canary, Decoder
from sortk.models.features import WINDOW_SAMPLES, mel_filters
from sortk.models.nemo_config import (
    convert_canary,
    convert_encoder,
    convert_multitalker,
    convert_nemotron,
    convert_parakeet,
    convert_sortformer,
    find_tokenizers,
)
from sortk.models.options import Names, name_tensor, take_weights
from sortk.models.registry import build_on_meta

# NVIDIA's names of the modules of our models. Names that are not here, such as the encoder's, are the same.
START = "transducer.prediction.embed.weight"  # its last row is read before the first token
EMBEDDING, OUTPUT = "transf_decoder._embedding", "log_softmax.mlp.layer0"
TRANSFORMER_NAMES = {
    "norm_attention": "layer_norm_1",
    "attention.query": "first_sub_layer.query_net",
    "attention.key": "first_sub_layer.key_net",
    "attention.value": "first_sub_layer.value_net",
    "attention.out": "first_sub_layer.out_projection",
    "norm_feed_forward": "layer_norm_2",
    "feed_forward.linear1": "second_sub_layer.dense_in",
    "feed_forward.linear2": "second_sub_layer.dense_out",
    "norm_out": "final_layer_norm",
}
DECODER_NAMES = {
    "norm_self": "layer_norm_1",
    "self_attention.query": "first_sub_layer.query_net",
    "self_attention.key": "first_sub_layer.key_net",
    "self_attention.value": "first_sub_layer.value_net",
    "self_attention.out": "first_sub_layer.out_projection",
    "norm_cross": "layer_norm_2",
    "cross_attention.query": "second_sub_layer.query_net",
    "cross_attention.key": "second_sub_layer.key_net",
    "cross_attention.value": "second_sub_layer.value_net",
    "cross_attention.out": "second_sub_layer.out_projection",
    "norm_feed_forward": "layer_norm_3",
    "feed_forward.linear1": "third_sub_layer.dense_in",
    "feed_forward.linear2": "third_sub_layer.dense_out",
}
SORTFORMER_NAMES: Names = {
    "encoder_proj.": ("sortformer_modules.encoder_proj.", {}),
    "hidden.": ("sortformer_modules.first_hidden_to_hidden.", {}),
    "speakers.": ("sortformer_modules.single_hidden_to_spks.", {}),
    "transformer.": ("transformer_encoder.", TRANSFORMER_NAMES),
}
NEMOTRON_NAMES: Names = {
    "stacking.": ("encoder.pre_encode.proj.", {}),
    "norm_in.": ("encoder.embed_norm.", {}),
    "norm_out.": ("encoder.final_norm.", {}),
    "layers.": (
        "encoder.layers.",
        {
            "norm_attention": "norm1",
            "query_key_value": "attn.w_qkv",
            "out": "attn.out_proj",
            "norm_feed_forward": "norm2",
            "linear1": "ffn.net.0",
            "linear2": "ffn.net.3",
        },
    ),
    "encoder_proj.": ("sortformer_modules.encoder_proj.", {}),
    "upsampling.conv.": ("sortformer_modules.subpixel_upsample.", {}),
    "hidden.": ("sortformer_modules.first_hidden_to_hidden.", {}),
    "speakers.": ("sortformer_modules.single_hidden_to_spks.", {}),
    "learned_silence": ("sortformer_modules.learnable_sil_emb", {}),
}
CANARY_NAMES: Names = {
    "encoder_proj.": ("encoder_decoder_proj.", {}),
    "transformer.": ("transf_encoder.", TRANSFORMER_NAMES),
    "decoder.embedding.": (f"{EMBEDDING}.token_embedding.", {}),
    "decoder.norm_in.": (f"{EMBEDDING}.layer_norm.", {}),
    "decoder.layers.": ("transf_decoder._decoder.layers.", DECODER_NAMES),
    "decoder.norm_out.": ("transf_decoder._decoder.final_layer_norm.", {}),
    "decoder.bias": (f"{OUTPUT}.bias", {}),
}
TRANSDUCER_NAMES: Names = {
    "transducer.prediction.embed.": ("decoder.prediction.embed.", {}),
    "transducer.prediction.lstm.": ("decoder.prediction.dec_rnn.lstm.", {}),
    "transducer.joint.out.": ("joint.joint_net.2.", {}),
    "transducer.joint.": ("joint.", {}),
}
PARAKEET_NAMES: Names = {**TRANSDUCER_NAMES, "ctc.": ("ctc_decoder.decoder_layers.0.", {})}
CTC_NAMES: Names = {"ctc.": ("decoder.decoder_layers.0.", {})}
KERNEL_NAMES = {"linear1": "0", "linear2": "3"}
MULTITALKER_NAMES: Names = {
    **TRANSDUCER_NAMES,
    "kernels.": ("spk_kernels.", KERNEL_NAMES),
    "background_kernels.": ("bg_spk_kernels.", KERNEL_NAMES),
}


@dataclass(frozen=True)
class Converted:
    """A model of ours, ready for a model folder."""

    config: dict[str, Any]
    weights: dict[str, Tensor]
    left_out: dict[str, str]  # tensors of the published model that ours does not need: name -> reason
    files: dict[str, str]  # tokenizers: name in a model folder -> name in the archive


def convert_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a model folder: `model`, `options` and, for a streaming model, `streaming`."""
    return _find_kind(config).convert_config(config)


def convert(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Converted:
    """Return a model of ours. ValueError if the config or a tensor is not one that sortk supports."""
    kind = _find_kind(config)
    converted = kind.convert_config(config)
    if "joint.joint_net.2.weight" not in tensors:  # without dropout, the last layer of a joint network is number 1
        tensors = {name.replace("joint.joint_net.1.", "joint.joint_net.2."): own for name, own in tensors.items()}
    model = build_on_meta(converted, len(tensors))
    expected = model.state_dict()
    left_out = {name: why for name in tensors for prefix, why in kind.left_out.items() if name.startswith(prefix)}
    found = {name: tensor for name, tensor in tensors.items() if name not in left_out}
    named = {name_tensor(ours, kind.names): tensor for ours, tensor in expected.items()}
    weights = take_weights(expected, kind.names, found, _name_absent(config, named))
    _check_constants(tensors, converted["options"]["features"]["n_mels"])
    if isinstance(model, Canary):
        _check_decoder(tensors, model.decoder)
    if START in weights:
        weights[START] = weights[START].clone()
        weights[START][-1] = 0  # NeMo reads a zero vector before the first token, whatever this row holds
    return Converted(converted, _separate(weights), left_out, kind.find_files(config))


def _name_absent(config: Mapping[str, Any], named: Mapping[str, Tensor]) -> set[str]:
    """Return the names of tensors that NVIDIA's model does without."""
    absent: set[str] = set()
    if config["encoder"].get("use_bias") is False:
        layers = (name for name in named if name.startswith("encoder.layers.") and "norm" not in name)
        absent |= {name for name in layers if name.endswith(".bias")}
    projection = "sortformer_modules.encoder_proj"
    if f"{projection}.weight" in named and len(set(named[f"{projection}.weight"].shape)) == 1:  # not needed, then
        absent |= {f"{projection}.weight", f"{projection}.bias"}
    return absent


def _separate(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights, each with its own memory: NVIDIA's layers may share it (untie_biases: false)."""
    used: set[int] = set()
    separate = {}
    for name, tensor in weights.items():
        storage = tensor.untyped_storage()
        shared = storage.data_ptr() in used or storage.nbytes() > tensor.nbytes
        used.add(storage.data_ptr())
        separate[name] = tensor.clone() if shared else tensor
    return separate


def _check_constants(tensors: Mapping[str, Tensor], n_mels: int) -> None:
    """Raise ValueError if window or mel filters, which a checkpoint holds, are not ours."""
    constants = {
        "preprocessor.featurizer.window": torch.hann_window(WINDOW_SAMPLES, periodic=False),
        "preprocessor.featurizer.fb": mel_filters(n_mels).T[None],
    }
    for name, ours in constants.items():
        theirs = tensors.get(name, ours)
        if theirs.shape != ours.shape or not torch.allclose(theirs.float(), ours, rtol=1e-2, atol=1e-6):
            raise ValueError(f"tensor {name!r} is not what the config's preprocessor makes: other features than ours")


def _check_decoder(tensors: Mapping[str, Tensor], decoder: Decoder) -> None:
    """Raise ValueError if the positions are not ours, or the output layer is not the embedding."""
    positions, embedding = tensors.get(f"{EMBEDDING}.position_embedding.pos_enc"), f"{EMBEDDING}.token_embedding.weight"
    if positions is not None:
        fits = positions.shape == (decoder.max_tokens, decoder.embedding.embedding_dim)
        if not fits or not torch.allclose(
            positions.float(), decoder.count(len(positions), positions.device), atol=1e-3
        ):
            raise ValueError(
                f"tensor '{EMBEDDING}.position_embedding.pos_enc' does not hold the positions that sortk counts"
            )
    output = tensors.get(f"{OUTPUT}.weight")
    if output is not None and not torch.equal(output, tensors[embedding]):
        raise ValueError(f"tensor '{OUTPUT}.weight' is not {embedding!r}; sortk supports one for both only")


CONSTANTS = {
    "preprocessor.featurizer.window": "a constant that sortk computes",
    "preprocessor.featurizer.fb": "a constant that sortk computes",
}


@dataclass(frozen=True)
class NemoKind:
    """How to make a model of ours from one class of NeMo."""

    convert_config: Callable[[Mapping[str, Any]], dict[str, Any]]
    names: Names
    left_out: Mapping[str, str]  # how names of tensors that we do without begin, and why
    find_files: Callable[[Mapping[str, Any]], dict[str, str]] = lambda _config: {}  # see `Converted.files`


_SORTFORMER = NemoKind(
    convert_sortformer,
    SORTFORMER_NAMES,
    CONSTANTS | {"sortformer_modules.hidden_to_spks.": "never used, not even by NVIDIA"},
)
_NEMOTRON = NemoKind(
    convert_nemotron,
    NEMOTRON_NAMES,
    CONSTANTS
    | {"sortformer_modules.hidden_to_spks.": "never used, not even by NVIDIA"}
    | {
        f"{module}activity_head.": "a loss of NVIDIA's training only"
        for module in ("", "sortformer_modules.", "encoder.")
    },
)
_ENCODER = NemoKind(
    convert_encoder,
    {},
    CONSTANTS | dict.fromkeys(("decoder.", "quantizer.", "mask_processor."), "only for pretraining the encoder"),
)
_CANARY = NemoKind(
    convert_canary,
    CANARY_NAMES,
    CONSTANTS
    | {f"{EMBEDDING}.position_embedding.pos_enc": "a constant that sortk computes"}
    | {f"{OUTPUT}.weight": "the embedding once more"},
    find_tokenizers,
)
_PARAKEET = NemoKind(
    convert_parakeet,
    PARAKEET_NAMES,
    CONSTANTS,
    find_tokenizers,
)
_MULTITALKER = NemoKind(
    convert_multitalker,
    MULTITALKER_NAMES,
    CONSTANTS,
    find_tokenizers,
)
KINDS = {
    "SortformerEncLabelModel": _SORTFORMER,
    "EncDecMaskedTokenPredModel": _ENCODER,
    "EncDecDenoiseMaskedTokenPredModel": _ENCODER,
    "EncDecMultiTaskModel": _CANARY,
    "EncDecRNNTBPEModel": _PARAKEET,
    "EncDecHybridRNNTCTCBPEModel": _PARAKEET,
    "EncDecCTCModelBPE": replace(_PARAKEET, names=CTC_NAMES),
    "EncDecMultiTalkerRNNTBPEModel": _MULTITALKER,
}


def _find_kind(config: Mapping[str, Any]) -> NemoKind:
    target = str(config.get("target", ""))
    kind = KINDS.get(target.rpartition(".")[2])
    if kind is None:
        raise ValueError(f"target is {target!r}; sortk supports {', '.join(KINDS)}")
    encoder = config.get("encoder")
    if (
        kind is _SORTFORMER
        and isinstance(encoder, dict)
        and str(encoder.get("_target_")).endswith(".TransformerEncoder")
    ):
        return _NEMOTRON
    return kind
