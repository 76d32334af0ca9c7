"""`.nemo` archives as NVIDIA lays them out, with random weights of any size."""

from __future__ import annotations

import copy
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from sortk.models.canary import Canary, CanaryOptions
from sortk.models.fastconformer import FastConformerOptions
from sortk.models.features import WINDOW_SAMPLES, mel_filters
from sortk.models.nemo import CANARY_NAMES, CTC_NAMES, PARAKEET_NAMES, SORTFORMER_NAMES
from sortk.models.options import name_tensor
from sortk.models.parakeet import Parakeet, ParakeetOptions
from sortk.models.sortformer import Sortformer, SortformerOptions
from sortk.models.transformer import TransformerOptions

ASR = "nemo.collections.asr"


def sortformer_config(options: SortformerOptions, streaming: bool = False) -> dict[str, Any]:
    """NVIDIA's config of a Sortformer with these sizes."""
    encoder, transformer = options.encoder, options.transformer
    sizes = {"fc_d_model": encoder.d_model, "tf_d_model": transformer.d_model}
    return {
        "target": f"{ASR}.models.sortformer_diar_models.SortformerEncLabelModel",
        "streaming_mode": streaming,
        "model_defaults": dict(sizes),
        "preprocessor": preprocessor_config(options.features.n_mels, options.features.normalize),
        "encoder": fastconformer_config(encoder, options.features.n_mels),
        "transformer_encoder": transformer_config(transformer),
        "sortformer_modules": {
            "_target_": f"{ASR}.modules.sortformer_modules.SortformerModules",
            "num_spks": options.n_speakers,
            "dropout_rate": options.dropout,
            **sizes,
        },
    }


def fastconformer_config(options: FastConformerOptions, n_mels: int) -> dict[str, Any]:
    return {
        "_target_": f"{ASR}.modules.ConformerEncoder",
        "feat_in": n_mels,
        "feat_out": -1,
        "n_layers": options.n_layers,
        "d_model": options.d_model,
        "subsampling": "dw_striding",
        "subsampling_factor": 8,
        "subsampling_conv_channels": options.subsampling_channels,
        "ff_expansion_factor": options.ff_expansion,
        "self_attention_model": "rel_pos",
        "n_heads": options.n_heads,
        "att_context_size": [-1, -1],
        "xscaling": options.scale_input,
        "untie_biases": True,
        "conv_kernel_size": options.conv_kernel,
        "conv_norm_type": "batch_norm",
        "conv_context_size": None,
        "dropout": options.dropout,
    }


def transformer_config(options: TransformerOptions) -> dict[str, Any]:
    return {
        "_target_": f"{ASR}.modules.transformer.transformer_encoders.TransformerEncoder",
        "num_layers": options.n_layers,
        "hidden_size": options.d_model,
        "inner_size": options.d_inner,
        "num_attention_heads": options.n_heads,
        "ffn_dropout": options.dropout,
        "hidden_act": "relu",
        "pre_ln": options.pre_norm,
        "pre_ln_final_layer_norm": True,
    }


def preprocessor_config(n_mels: int, normalize: str) -> dict[str, Any]:
    return {
        "_target_": f"{ASR}.modules.AudioToMelSpectrogramPreprocessor",
        "normalize": "NA" if normalize == "none" else normalize,
        "window_size": 0.025,
        "window_stride": 0.01,
        "sample_rate": 16000,
        "window": "hann",
        "features": n_mels,
        "n_fft": 512,
        "frame_splicing": 1,
        "dither": 1e-5,
    }


def sortformer_tensors(model: Sortformer) -> dict[str, Tensor]:
    """NVIDIA's checkpoint of a model of ours."""
    tensors = {name_tensor(name, SORTFORMER_NAMES): tensor for name, tensor in model.state_dict().items()}
    n_speakers, width = model.speakers.weight.shape
    tensors["sortformer_modules.hidden_to_spks.weight"] = torch.zeros(n_speakers, 2 * width)
    tensors["sortformer_modules.hidden_to_spks.bias"] = torch.zeros(n_speakers)
    return constants(model.options.features.n_mels) | tensors


def constants(n_mels: int) -> dict[str, Tensor]:
    return {
        "preprocessor.featurizer.window": torch.hann_window(WINDOW_SAMPLES, periodic=False),
        "preprocessor.featurizer.fb": mel_filters(n_mels).T[None].clone(),
    }


def encoder_config(options: SortformerOptions) -> dict[str, Any]:
    """NVIDIA's config of a NEST with the encoder's sizes."""
    config = sortformer_config(options)
    return {
        "target": f"{ASR}.models.ssl_models.EncDecDenoiseMaskedTokenPredModel",
        "mask_position": "pre_conv",
        "preprocessor": config["preprocessor"],
        "encoder": config["encoder"],
    }


def encoder_tensors(model: Sortformer) -> dict[str, Tensor]:
    tensors = {f"encoder.{name}": tensor for name, tensor in model.encoder.state_dict().items()}
    pretraining = {"quantizer.projs": torch.zeros(1, 2), "mask_processor.mask_embedding": torch.zeros(3)}
    pretraining["decoder.layers.0.weight"] = torch.zeros(4)
    return constants(model.options.features.n_mels) | pretraining | tensors


def canary_config(options: CanaryOptions) -> dict[str, Any]:
    """NVIDIA's config of a Canary with these sizes."""
    decoder = options.decoder
    spl_tokens, english = ({"type": "bpe", "model_path": f"nemo:{n}_tokenizer.model"} for n in range(2))
    no_transformer = {"num_layers": 0, "hidden_size": decoder.d_model}
    return {
        "target": f"{ASR}.models.aed_multitask_models.EncDecMultiTaskModel",
        "prompt_format": "canary",
        "model_defaults": {"asr_enc_hidden": options.encoder.d_model, "lm_dec_hidden": decoder.d_model},
        "tokenizer": {"type": "agg", "dir": None, "langs": {"spl_tokens": spl_tokens, "en": english}},
        "preprocessor": preprocessor_config(options.features.n_mels, options.features.normalize),
        "encoder": fastconformer_config(options.encoder, options.features.n_mels),
        "transf_encoder": transformer_config(options.transformer) if options.transformer else no_transformer,
        "transf_decoder": {
            "_target_": f"{ASR}.modules.transformer.get_nemo_transformer",
            "model_name": None,
            "pretrained": False,
            "encoder": None,
            "pre_ln_final_layer_norm": True,
            "config_dict": {
                "max_sequence_length": options.max_tokens,
                "num_token_types": 0,
                "embedding_dropout": 0.1,
                "learn_positional_encodings": False,
                "hidden_size": decoder.d_model,
                "inner_size": decoder.d_inner,
                "num_layers": decoder.n_layers,
                "num_attention_heads": decoder.n_heads,
                "ffn_dropout": decoder.dropout,
                "hidden_act": "relu",
                "pre_ln": True,
                "vocab_size": "None",
            },
        },
        "head": {
            "_target_": f"{ASR}.parts.submodules.token_classifier.TokenClassifier",
            "num_layers": 1,
            "activation": "relu",
            "log_softmax": True,
            "hidden_size": decoder.d_model,
            "num_classes": options.n_tokens,
        },
    }


def canary_tensors(model: Canary) -> dict[str, Tensor]:
    """NVIDIA's checkpoint of a model of ours."""
    decoder = model.decoder
    tensors = {name_tensor(name, CANARY_NAMES): tensor for name, tensor in model.state_dict().items()}
    tensors["log_softmax.mlp.layer0.weight"] = decoder.embedding.weight.detach()
    positions = decoder.count(decoder.max_tokens, torch.device("cpu"))
    tensors["transf_decoder._embedding.position_embedding.pos_enc"] = positions
    return constants(model.options.features.n_mels) | tensors


def parakeet_config(options: ParakeetOptions, use_bias: bool = True) -> dict[str, Any]:
    """NVIDIA's config of a Parakeet: hybrid, or with one head."""
    vocabulary = [f"piece {number}" for number in range(options.n_tokens)]
    causal, head = options.encoder.right_context >= 0, options.transducer
    streaming = {
        "causal_downsampling": True,
        "conv_context_size": "causal",
        "conv_norm_type": "layer_norm",
        "att_context_style": "chunked_limited",
        "att_context_size": [[options.encoder.left_context, options.encoder.right_context], [28, 0]],
    }
    config: dict[str, Any] = {
        "preprocessor": preprocessor_config(
            options.features.n_mels, "NA" if options.features.normalize == "none" else options.features.normalize
        ),
        "encoder": fastconformer_config(options.encoder, options.features.n_mels)
        | {"use_bias": use_bias}
        | (streaming if causal else {}),
        "tokenizer": {"type": "bpe", "model_path": "nemo:0_tokenizer.model"},
    }
    ctc = {
        "_target_": f"{ASR}.modules.ConvASRDecoder",
        "feat_in": options.encoder.d_model,
        "num_classes": options.n_tokens,
        "vocabulary": vocabulary,
    }
    if head is None:
        return config | {"target": f"{ASR}.models.ctc_bpe_models.EncDecCTCModelBPE", "decoder": ctc}
    hybrid = "hybrid_rnnt_ctc_bpe_models.EncDecHybridRNNTCTCBPEModel"
    return (
        config
        | {
            "target": f"{ASR}.models.{hybrid if options.ctc else 'rnnt_bpe_models.EncDecRNNTBPEModel'}",
            "decoder": {
                "_target_": f"{ASR}.modules.RNNTDecoder",
                "blank_as_pad": True,
                "prednet": {"pred_hidden": head.d_prediction, "pred_rnn_layers": head.n_layers, "dropout": 0.2},
                "vocab_size": options.n_tokens,
            },
            "joint": {
                "_target_": f"{ASR}.modules.RNNTJoint",
                "jointnet": {
                    "joint_hidden": head.d_joint,
                    "activation": "relu",
                    "dropout": 0.2,
                    "encoder_hidden": options.encoder.d_model,
                    "pred_hidden": head.d_prediction,
                },
                "num_extra_outputs": len(head.durations),
                "num_classes": options.n_tokens,
                "vocabulary": vocabulary,
            },
            "decoding": {
                "strategy": "greedy_batch",
                "greedy": {"max_symbols": head.max_symbols},
                "durations": list(head.durations),
            },
        }
        | ({"aux_ctc": {"decoder": ctc}} if options.ctc else {})
    )


def parakeet_tensors(model: Parakeet, use_bias: bool = True) -> dict[str, Tensor]:
    """Its weights under NVIDIA's names."""
    names = PARAKEET_NAMES if model.transducer is not None else CTC_NAMES
    named = {name_tensor(name, names): tensor for name, tensor in model.state_dict().items()}
    if not use_bias:
        layers = {name for name in named if name.startswith("encoder.layers.") and "norm" not in name}
        named = {name: named[name] for name in named if name not in layers or not name.endswith(".bias")}
    return named | constants(model.options.features.n_mels)


def random_sortformer(options: SortformerOptions, seed: int = 0) -> Sortformer:
    """No tensor is 0 or 1 all over, as new ones would be: a wrong one is noticed."""
    torch.manual_seed(seed)
    model = Sortformer(options).eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith("running_var"):
                tensor.uniform_(0.5, 2.0)
            elif tensor.dim() == 1:
                tensor.add_(0.1 * torch.randn_like(tensor))
            elif name.endswith(("pos_bias_u", "pos_bias_v")):
                tensor.normal_(std=0.1)
    return model


def changed(config: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """The config with another value at `section.key`."""
    config = copy.deepcopy(dict(config))
    *sections, last = key.split(".")
    table = config
    for section in sections:
        table = table[section]
    table[last] = value
    return config


def write_nemo(
    path: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    files: Mapping[str, bytes] | None = None,
    mode: str = "w",
) -> Path:
    """An archive in which every name has ./ in front, as NVIDIA's have."""
    weights = io.BytesIO()
    torch.save(dict(tensors), weights)
    members = {
        "model_config.yaml": yaml.safe_dump(dict(config), sort_keys=False).encode(),
        "model_weights.ckpt": weights.getbuffer(),
    }
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        folder = tarfile.TarInfo("./")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, content in (members | dict(files or {})).items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path
