"""Every kind of model, by the name that `config.json` gives it. Nothing else decides which class is built.

To add a diarizer or an ASR: one new file with its options and its module, and one line in `KINDS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sortk.models.aed_eend import AedEend, AedEendOptions
from sortk.models.canary import Canary, CanaryOptions
from sortk.models.diarizer import DiarizerModel, StreamableDiarizer
from sortk.models.eend import Eend, EendOptions
from sortk.models.eend_gla import EendGla, EendGlaOptions
from sortk.models.eend_vc import EendVc, EendVcOptions
from sortk.models.fastconformer import EncoderOptions, PretrainedEncoder
from sortk.models.features import LogMel
from sortk.models.msasr import MsAsr, MsAsrOptions
from sortk.models.multitalker import Multitalker, MultitalkerOptions
from sortk.models.nemotron import Nemotron, NemotronOptions
from sortk.models.options import check_weights
from sortk.models.parakeet import Parakeet, ParakeetOptions
from sortk.models.sortformer import Sortformer, SortformerOptions
from sortk.models.wavlm import WavlmFrontEnd, WavlmOptions


@dataclass(frozen=True)
class Kind:
    """How a model is built, and what it can do."""

    options: type[Any]  # a frozen dataclass with to_json and from_json
    module: type[nn.Module]  # built from these options
    is_asr: bool = False  # it has a tokenizer and writes text

    @property
    def is_diarizer(self) -> bool:
        return issubclass(self.module, DiarizerModel)

    @property
    def can_stream(self) -> bool:
        return issubclass(self.module, StreamableDiarizer)

    def build(self, options: Any) -> nn.Module:
        """Return the module with new weights."""
        return self.module(options)


KINDS = {
    "sortformer": Kind(SortformerOptions, Sortformer),
    "nemotron": Kind(NemotronOptions, Nemotron),
    "eend-sa": Kind(EendOptions, Eend),
    "eend-eda": Kind(EendOptions, Eend),
    "aed-eend": Kind(AedEendOptions, AedEend),
    "aed-eend-ee": Kind(AedEendOptions, AedEend),
    "eend-gla": Kind(EendGlaOptions, EendGla),
    "eend-vc": Kind(EendVcOptions, EendVc),
    "wavlm-eend-vc": Kind(EendVcOptions, EendVc),
    "wavlm": Kind(WavlmOptions, WavlmFrontEnd),  # to start training from
    "encoder": Kind(EncoderOptions, PretrainedEncoder),  # NEST: to start training from
    "canary": Kind(CanaryOptions, Canary, is_asr=True),
    "msasr": Kind(MsAsrOptions, MsAsr, is_asr=True),
    "parakeet": Kind(ParakeetOptions, Parakeet, is_asr=True),
    "multitalker": Kind(MultitalkerOptions, Multitalker, is_asr=True),
}


def find_kind(config: Mapping[str, Any]) -> Kind:
    """Return the kind that a model's config names."""
    name = config["model"]
    if not isinstance(name, str) or name not in KINDS:
        raise ValueError(f"the model {_shorten(name)} is unknown; this version of sortk knows {', '.join(KINDS)}")
    return KINDS[name]


def build(config: Mapping[str, Any]) -> nn.Module:
    """Return the model of a config, with new weights."""
    kind = find_kind(config)
    return kind.build(kind.options.from_json(config["options"]))


def build_on_meta(config: Mapping[str, Any], n_tensors: int) -> nn.Module:
    """Return the model with shapes only. `n_tensors`, how many the checkpoint holds, bounds the number of layers."""
    _check_layers(config["options"], n_tensors)
    with torch.device("meta"):
        return build(config)


def build_from(config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> nn.Module:
    """Return the model of a config with these weights, in eval mode. ValueError if they do not fit."""
    model = build_on_meta(config, len(weights))
    expected = model.state_dict()
    check_weights(expected, weights)
    model.load_state_dict({name: weights[name].to(tensor.dtype) for name, tensor in expected.items()}, assign=True)
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, LogMel):  # constants, which no checkpoint holds
                setattr(parent, name, LogMel(child.options))
    return model.eval()


def _check_layers(options: Any, n_tensors: int, where: str = "options") -> None:
    if not isinstance(options, Mapping):
        return
    n_layers = options.get("n_layers", 0)
    if isinstance(n_layers, int) and n_layers > n_tensors:
        raise ValueError(f"{where}.n_layers is {_shorten(n_layers)}, but there are only {n_tensors} tensors")
    for name, part in options.items():
        _check_layers(part, n_tensors, f"{where}.{name}")


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:36]} ..."
