"""Models in Hugging Face's form as ours: what a `config.json` of transformers means, and which tensor is which.

    nemotron3_diarization                       -> Nemotron-3-Diarization
    parakeet_ctc, parakeet_rnnt, parakeet_tdt   -> Parakeet with one head

A setting that would change what a model computes is understood or refused. Others, of training or of the library, are
ignored: every config of transformers has dozens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sortk.models.diarizer import StreamingOptions
from sortk.models.fastconformer import FastConformerOptions
from sortk.models.features import WINDOW_SAMPLES, FeatureOptions
from sortk.models.frames import HOP_SAMPLES, MEL_PER_FRAME, SAMPLE_RATE
from sortk.models.nemo import Converted
from sortk.models.nemo_config import MAX_ROPE_BASE, Section
from sortk.models.nemotron import NemotronOptions
from sortk.models.options import Names, name_tensor, take_weights
from sortk.models.parakeet import ParakeetOptions
from sortk.models.registry import build_on_meta
from sortk.models.rnnt import TransducerOptions

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


PARAKEET_NAMES: Names = {
    "encoder.pre_encode.conv.": ("encoder.subsampling.layers.", {}),
    "encoder.pre_encode.out.": ("encoder.subsampling.linear.", {}),
    "encoder.layers.": (
        "encoder.layers.",
        {
            "self_attn.linear_q": "self_attn.q_proj",
            "self_attn.linear_k": "self_attn.k_proj",
            "self_attn.linear_v": "self_attn.v_proj",
            "self_attn.linear_out": "self_attn.o_proj",
            "self_attn.linear_pos": "self_attn.relative_k_proj",
            "self_attn.pos_bias_u": "self_attn.bias_u",
            "self_attn.pos_bias_v": "self_attn.bias_v",
            "conv.batch_norm": "conv.norm",
        },
    ),
    "transducer.prediction.embed.": ("decoder.embedding.", {}),
    "transducer.prediction.lstm.": ("decoder.lstm.", {}),
    "transducer.joint.enc.": ("encoder_projector.", {}),
    "transducer.joint.pred.": ("decoder.decoder_projector.", {}),
    "transducer.joint.out.": ("joint.head.", {}),
    "ctc.": ("ctc_head.", {}),
}


def convert_config(config: Mapping[str, Any], processor: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the config of a model folder: `model` and `options`. ValueError if sortk does not support the model.

    `processor` are the settings of the features (processor_config.json), if the folder has them.
    """
    converted = _find_kind(config).convert_config(config)
    _check_features(processor or {}, converted["options"]["features"]["n_mels"])
    return converted


def convert(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], processor: Mapping[str, Any] | None = None
) -> Converted:
    """Return a model of ours. ValueError if sortk does not support the model, or if it is damaged."""
    kind, converted = _find_kind(config), convert_config(config, processor)
    expected = build_on_meta(converted, len(tensors)).state_dict()
    absent = kind.name_absent(config, {name_tensor(ours, kind.names) for ours in expected})
    return Converted(converted, take_weights(expected, kind.names, kind.prepare(tensors), absent), {}, {})


def _find_kind(config: Mapping[str, Any]) -> HuggingFaceKind:
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in KINDS:
        raise ValueError(f"model_type is {str(model_type)[:40]!r}; sortk supports {', '.join(KINDS)}")
    return KINDS[model_type]


def _check_features(processor: Mapping[str, Any], n_mels: int) -> None:
    """Raise ValueError if the model's features are not those that sortk computes."""
    own = processor.get("feature_extractor", processor)  # older folders have it in a file of its own
    section = Section({"feature_extractor": own}, "feature_extractor")
    section.check("feature_size", n_mels, n_mels)
    section.check("sampling_rate", SAMPLE_RATE, SAMPLE_RATE)
    section.check("hop_length", HOP_SAMPLES, HOP_SAMPLES)
    section.check("win_length", WINDOW_SAMPLES, WINDOW_SAMPLES)
    section.check("n_fft", 512, 512)
    section.check("preemphasis", 0.97, 0.97)


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
        rope_base=rope.number("rope_theta", 10000.0, MAX_ROPE_BASE),
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


def _convert_parakeet(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a Parakeet; which head it has is its model_type."""
    whole, encoder = Section({"config": dict(config)}, "config"), Section(config, "encoder_config")
    d_model, n_heads = encoder.count("hidden_size"), encoder.count("num_attention_heads")
    d_inner, conv_kernel = encoder.count("intermediate_size"), encoder.count("conv_kernel_size", 9)
    if d_inner % d_model:
        raise ValueError(f"encoder_config.intermediate_size is {d_inner}, which is not a multiple of {d_model}")
    encoder.check("hidden_act", "silu", "silu")
    encoder.check("num_key_value_heads", n_heads, n_heads)
    encoder.check("head_dim", d_model // n_heads, d_model // n_heads)
    encoder.check("subsampling_factor", MEL_PER_FRAME, MEL_PER_FRAME)
    encoder.check("subsampling_conv_kernel_size", 3, 3)
    encoder.check("subsampling_conv_stride", 2, 2)
    n_tokens = whole.count("vocab_size", least=2) - 1
    transducer = None
    if config["model_type"] == "parakeet_ctc":
        whole.check("pad_token_id", n_tokens, n_tokens)  # blank
    else:
        whole.check("blank_token_id", n_tokens, n_tokens)
        whole.check("hidden_act", "relu", "relu")
        d_hidden = whole.count("decoder_hidden_size", 640)
        durations = whole.get("durations", [0, 1, 2, 3, 4]) if config["model_type"] == "parakeet_tdt" else []
        if not isinstance(durations, list) or not all(type(value) is int for value in durations):
            raise ValueError(f"durations is {durations!r}, not a list of numbers of frames")
        transducer = TransducerOptions(
            d_prediction=d_hidden,
            n_layers=whole.count("num_decoder_layers", 2),
            d_joint=d_hidden,
            durations=tuple(durations),
            max_symbols=whole.count("max_symbols_per_step", 10),
        )
    options = ParakeetOptions(
        n_tokens=n_tokens,
        features=FeatureOptions(encoder.count("num_mel_bins", 80), gain=False),
        encoder=FastConformerOptions(
            d_model=d_model,
            n_layers=encoder.count("num_hidden_layers"),
            n_heads=n_heads,
            ff_expansion=d_inner // d_model,
            conv_kernel=conv_kernel,
            subsampling_channels=encoder.count("subsampling_conv_channels", 256),
            scale_input=encoder.flag("scale_input", True),
            dropout=encoder.number("dropout", 0.1),
        ),
        transducer=transducer,
        ctc=transducer is None,
    )
    return {"model": "parakeet", "options": options.to_json()}


def _name_absent_biases(config: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Return the biases that the layers of a Parakeet do without."""
    encoder = Section(config, "encoder_config")
    modules = []
    if not encoder.flag("attention_bias", True):
        modules += [".feed_forward1.", ".feed_forward2.", ".self_attn."]
    if not encoder.flag("convolution_bias", True):
        modules += [".conv.pointwise_conv1.", ".conv.pointwise_conv2.", ".conv.depthwise_conv."]
    return [name for name in names if name.endswith(".bias") and any(module in name for module in modules)]


@dataclass(frozen=True)
class HuggingFaceKind:
    """How to make a model of ours from one model_type of transformers."""

    convert_config: Callable[[Mapping[str, Any]], dict[str, Any]]
    names: Names
    prepare: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]  # the tensors before they are renamed
    name_absent: Callable[[Mapping[str, Any], Iterable[str]], Collection[str]]  # tensors that it does without


_PARAKEET = HuggingFaceKind(_convert_parakeet, PARAKEET_NAMES, dict, _name_absent_biases)
KINDS = {
    "nemotron3_diarization": HuggingFaceKind(
        _convert_nemotron, NEMOTRON_NAMES, _join_projections, lambda _config, _names: ()
    ),
    "parakeet_ctc": _PARAKEET,
    "parakeet_rnnt": _PARAKEET,
    "parakeet_tdt": _PARAKEET,
}
