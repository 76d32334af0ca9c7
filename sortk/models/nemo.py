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
from sortk.models.nemo_names import (
    CANARY_NAMES,
    CTC_NAMES,
    EMBEDDING,
    MULTITALKER_NAMES,
    NEMOTRON_NAMES,
    OUTPUT,
    PARAKEET_NAMES,
    SORTFORMER_NAMES,
    Names,
    name_tensor,
)
from sortk.models.registry import build_on_meta
from sortk.models.weights import check_weights


@dataclass(frozen=True)
class Converted:
    """A model of ours, ready for a model folder."""

    config: dict[str, Any]
    weights: dict[str, Tensor]
    left_out: dict[str, str]  # NVIDIA's tensors that are not needed: name -> why
    files: dict[str, str]  # its tokenizers: name in a model folder -> name in the archive


def convert_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a model folder: `model`, `options` and, of a streaming model, `streaming`."""
    return _find_kind(config).convert_config(config)


def convert(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Converted:
    """A whole model."""
    kind = _find_kind(config)
    converted = kind.convert_config(config)
    tensors = _number_joint(tensors)
    model = build_on_meta(converted, len(tensors))
    expected = model.state_dict()
    left_out = {name: why for name in tensors for prefix, why in kind.left_out.items() if name.startswith(prefix)}
    found = {name: tensor for name, tensor in tensors.items() if name not in left_out}
    named = {name_tensor(ours, kind.names): tensor for ours, tensor in expected.items()}
    absent = _name_absent(config, named) - found.keys()
    check_weights(named, found | {name: named[name] for name in absent})
    _check_constants(tensors, converted["options"]["features"]["n_mels"])
    if isinstance(model, Canary):
        _check_decoder(tensors, model.decoder)
    found |= {name: _make_neutral(named[name].shape) for name in absent}
    weights = {ours: found[name_tensor(ours, kind.names)].to(tensor.dtype) for ours, tensor in expected.items()}
    return Converted(converted, _separate(weights), left_out, kind.find_files(config))


def _number_joint(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The last layer of a joint network is number 2, or 1 in a model without dropout: always 2 here."""
    if "joint.joint_net.2.weight" in tensors:
        return tensors
    return {name.replace("joint.joint_net.1.", "joint.joint_net.2."): tensor for name, tensor in tensors.items()}


def _name_absent(config: Mapping[str, Any], named: Mapping[str, Tensor]) -> set[str]:
    """Tensors of ours that NVIDIA's model does without."""
    absent: set[str] = set()
    if config["encoder"].get("use_bias") is False:
        layers = (name for name in named if name.startswith("encoder.layers.") and "norm" not in name)
        absent |= {name for name in layers if name.endswith(".bias")}
    projection = "sortformer_modules.encoder_proj"
    if f"{projection}.weight" in named and len(set(named[f"{projection}.weight"].shape)) == 1:  # not needed, then
        absent |= {f"{projection}.weight", f"{projection}.bias"}
    return absent


def _make_neutral(shape: torch.Size) -> Tensor:
    """A matrix or a bias that changes nothing."""
    return torch.eye(*shape) if len(shape) == 2 else torch.zeros(shape)


def _separate(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same with memory of its own for each: NVIDIA's layers may share one (untie_biases: false)."""
    used: set[int] = set()
    separate = {}
    for name, tensor in weights.items():
        storage = tensor.untyped_storage()
        shared = storage.data_ptr() in used or storage.nbytes() > tensor.nbytes
        used.add(storage.data_ptr())
        separate[name] = tensor.clone() if shared else tensor
    return separate


def _check_constants(tensors: Mapping[str, Tensor], n_mels: int) -> None:
    """Window and mel filters of the features lie beside the weights; ours must be the same."""
    constants = {
        "preprocessor.featurizer.window": torch.hann_window(WINDOW_SAMPLES, periodic=False),
        "preprocessor.featurizer.fb": mel_filters(n_mels).T[None],
    }
    for name, ours in constants.items():
        theirs = tensors.get(name, ours)
        if theirs.shape != ours.shape or not torch.allclose(theirs.float(), ours, rtol=1e-2, atol=1e-6):
            raise ValueError(f"tensor {name!r} is not what the config's preprocessor makes: other features than ours")


def _check_decoder(tensors: Mapping[str, Tensor], decoder: Decoder) -> None:
    """Positions that are counted as ours, and an output layer that is the embedding."""
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


def _no_files(_config: Mapping[str, Any]) -> dict[str, str]:
    return {}


CONSTANTS = {
    "preprocessor.featurizer.window": "a constant that sortk computes",
    "preprocessor.featurizer.fb": "a constant that sortk computes",
}


@dataclass(frozen=True)
class _Kind:
    """How to make a model of ours from one class of NeMo."""

    convert_config: Callable[[Mapping[str, Any]], dict[str, Any]]
    names: Names
    left_out: Mapping[str, str]  # how names of tensors that we do without begin, and why
    find_files: Callable[[Mapping[str, Any]], dict[str, str]] = _no_files  # see `Converted.files`


_SORTFORMER = _Kind(
    convert_sortformer,
    SORTFORMER_NAMES,
    CONSTANTS | {"sortformer_modules.hidden_to_spks.": "never used, by NVIDIA neither"},
)
_NEMOTRON = _Kind(
    convert_nemotron,
    NEMOTRON_NAMES,
    CONSTANTS
    | {"sortformer_modules.hidden_to_spks.": "never used, by NVIDIA neither"}
    | {
        f"{module}activity_head.": "a loss of NVIDIA's training only"
        for module in ("", "sortformer_modules.", "encoder.")
    },
)
_ENCODER = _Kind(
    convert_encoder,
    {},
    CONSTANTS | dict.fromkeys(("decoder.", "quantizer.", "mask_processor."), "only for pretraining the encoder"),
)
_CANARY = _Kind(
    convert_canary,
    CANARY_NAMES,
    CONSTANTS
    | {f"{EMBEDDING}.position_embedding.pos_enc": "a constant that sortk computes"}
    | {f"{OUTPUT}.weight": "the embedding once more"},
    find_tokenizers,
)
_PARAKEET = _Kind(
    convert_parakeet,
    PARAKEET_NAMES,
    CONSTANTS,
    find_tokenizers,
)
_MULTITALKER = _Kind(
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


def _find_kind(config: Mapping[str, Any]) -> _Kind:
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
