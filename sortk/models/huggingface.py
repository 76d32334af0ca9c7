"""Models in Hugging Face's form as ours: what a `config.json` of transformers means, and which tensor is which.

    nemotron3_diarization   -> Nemotron-3-Diarization

A setting that would change what a model computes is understood or refused. Others, of training or of the library, are
ignored: every config of transformers has dozens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from sortk.models.diarizer import StreamingOptions
from sortk.models.features import FeatureOptions
from sortk.models.frames import MEL_PER_FRAME
from sortk.models.nemo import Converted
from sortk.models.nemo_config import Section
from sortk.models.nemo_names import Names, name_tensor
from sortk.models.nemotron import NemotronOptions
from sortk.models.registry import build_on_meta
from sortk.models.weights import check_weights

Converter = Callable[[Mapping[str, Any]], dict[str, Any]]

NEMOTRON_NAMES: Names = {
    "stacking.": ("model.audio_tower.embedder.projection.", {}),
    "norm_in.": ("model.audio_tower.input_layer_norm.", {}),
    "norm_out.": ("model.audio_tower.layer_norm.", {}),
    "layers.": (
        "model.audio_tower.layers.",
        {
            "norm_attention": "layer_norm1",
            "query_key_value": "self_attn.qkv_proj",  # see `_join_projections`
            "out": "self_attn.o_proj",
            "norm_feed_forward": "layer_norm2",
            "linear1": "mlp.fc1",
            "linear2": "mlp.fc2",
        },
    ),
    "encoder_proj.": ("model.proj.", {}),
    "upsampling.conv.": ("model.upsampler.conv.", {}),
    "hidden.": ("classifier.dense.", {}),
    "speakers.": ("classifier.out_proj.", {}),
    "learned_silence": ("silence_embeds", {}),
}


def convert_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a model folder: `model` and `options`. ValueError if it is of another kind."""
    return _find_kind(config)[0](config)


def convert(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Converted:
    """Return a model of ours. ValueError if it is of another kind, or damaged."""
    converted, (_, names) = convert_config(config), _find_kind(config)
    expected = build_on_meta(converted, len(tensors)).state_dict()
    found = _join_projections(tensors)
    check_weights({name_tensor(ours, names): tensor for ours, tensor in expected.items()}, found)
    weights = {ours: found[name_tensor(ours, names)].to(tensor.dtype) for ours, tensor in expected.items()}
    return Converted(converted, weights, {}, {})


def _find_kind(config: Mapping[str, Any]) -> tuple[Converter, Names]:
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in KINDS:
        raise ValueError(f"model_type is {str(model_type)[:40]!r}; sortk supports {', '.join(KINDS)}")
    return KINDS[model_type]


def _convert_nemotron(config: Mapping[str, Any]) -> dict[str, Any]:
    whole, audio = Section({"config": dict(config)}, "config"), Section(config, "audio_config")
    head, streaming = Section(config, "head_config"), Section(config, "streaming_config")
    d_model, n_heads = audio.count("hidden_size"), audio.count("num_attention_heads")
    n_speakers = head.count("num_speakers")
    audio.check("hidden_act", "gelu", "gelu")
    audio.check("num_key_value_heads", n_heads, n_heads)
    audio.check("subsampling_factor", MEL_PER_FRAME, MEL_PER_FRAME)
    audio.check("attention_bias", False, False)
    for key in ("layer_norm_eps", "norm_eps"):
        audio.check(key, 1e-5, 1e-5)
    rope = Section(config["audio_config"], "rope_parameters")
    rope.check("rope_type", "default", "default")
    rope.check("partial_rotary_factor", 1.0, 1.0)
    head.check("audio_hidden_size", d_model, d_model)
    head.check("subsampling_factor", MEL_PER_FRAME, MEL_PER_FRAME)
    streaming.check("subsampling_factor", MEL_PER_FRAME, MEL_PER_FRAME)
    streaming.check("num_speakers", n_speakers, n_speakers)
    cache: dict[str, Any] = {
        "left_context": whole.count("chunk_left_context", 0, least=0),
        "cache": streaming.count("speaker_cache_length", 264),
        "silence_per_speaker": streaming.count("speaker_cache_silence_frames_per_speaker", 1, least=0),
        "prob_floor": streaming.number("prediction_score_threshold", 0.25),
        "recent_bonus": streaming.number("latest_frames_score_boost", 0.05),
        "strong_boost": streaming.number("strong_boost_rate", 0.75),
        "weak_boost": streaming.number("weak_boost_rate", 1.5),
        "min_alone": streaming.number("min_positive_scores_rate", 0.5),
    }
    published = NemotronOptions()
    options = NemotronOptions(
        n_speakers=n_speakers,
        d_model=d_model,
        n_layers=audio.count("num_hidden_layers"),
        n_heads=n_heads,
        d_inner=audio.count("intermediate_size"),
        d_head=head.count("hidden_size"),
        rope_base=rope.number("rope_theta", 10000.0),
        features=FeatureOptions(
            audio.count("num_mel_bins", 128), gain=False, normalize="none", dither=published.features.dither
        ),
        offline=StreamingOptions(
            chunk=whole.count("chunk_length", 340),
            right_context=whole.count("chunk_right_context", 40, least=0),
            fifo=whole.count("fifo_length", 40, least=0),
            update_period=whole.count("speaker_cache_update_period", 300),
            **cache,
        ),
        streaming=StreamingOptions(
            chunk=published.streaming.chunk,
            right_context=published.streaming.right_context,
            fifo=streaming.count("fifo_length", 264, least=0),
            update_period=streaming.count("speaker_cache_update_period", 222),
            **cache,
        ),
    )
    return {"model": "nemotron", "options": options.to_json()}


def _join_projections(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the same with queries, keys and values of a layer as one matrix."""
    joined: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        layer, found, parameter = name.partition(".self_attn.q_proj.")
        parts = [tensors.get(f"{layer}.self_attn.{part}_proj.{parameter}") for part in "qkv"]
        if found:
            for part, projection in zip("qkv", parts, strict=True):
                if projection is None or projection.shape != tensor.shape:
                    raise ValueError(
                        f"tensor '{layer}.self_attn.{part}_proj.{parameter}' is missing or of another shape"
                    )
            joined[f"{layer}.self_attn.qkv_proj.{parameter}"] = torch.cat([part for part in parts if part is not None])
        elif ".self_attn.k_proj." not in name and ".self_attn.v_proj." not in name:
            joined[name] = tensor
    return joined


KINDS: dict[str, tuple[Converter, Names]] = {"nemotron3_diarization": (_convert_nemotron, NEMOTRON_NAMES)}
"""model_type -> the converter of its config, and its names of tensors."""
