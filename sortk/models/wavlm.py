"""WavLM (Chen et al. 2022) as a front end: samples -> a vector every 80 ms. It is torchaudio's, and so are the names.

    samples -> 7 convolutions -> 24 Transformer layers -> weighted sum of all layers -> mean of 4 frames of 20 ms

The weights come from a file that the user has: a state dict with the names of torchaudio (`WAVLM_LARGE`) or of Hugging
Face (`microsoft/wavlm-large`), which `convert_weights` renames. A bare state dict has no config, so `guess_options`
takes the sizes from the shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sortk.models.frames import FRAME_SECONDS, SAMPLE_RATE
from sortk.models.options import ModelOptions, check_sizes

FRAME_SAMPLES = round(FRAME_SECONDS * SAMPLE_RATE)
PER_FRAME = 4  # WavLM frames, 20 ms, in a model frame
LOOK_AHEAD = 80  # samples: a window has 400, the hop is 320
CONVOLUTIONS = ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2))  # kernel and stride, of all published sizes


@dataclass(frozen=True)
class WavlmOptions(ModelOptions):
    """Sizes of a WavLM; the defaults are those of WavLM Large."""

    WHAT = "a WavLM"

    d_model: int = 1024
    n_layers: int = 24
    n_heads: int = 16
    d_inner: int = 4096
    channels: int = 512  # of the convolutions
    large: bool = True  # normalisation before each layer, as in Large; else after it, as in Base and Base+

    def __post_init__(self) -> None:
        check_sizes(self, "d_model", "n_layers", "n_heads", "d_inner", "channels")
        if self.d_model % self.n_heads or self.d_model % 16:
            raise ValueError(f"d_model {self.d_model} must be a multiple of 16 and of n_heads {self.n_heads}")


class WavlmFrontEnd(nn.Module):
    """Samples at 16 kHz -> frames of 80 ms. Pretrained weights alone are a model of the kind `wavlm`, to start from."""

    def __init__(self, options: WavlmOptions) -> None:
        super().__init__()
        self.is_large = options.large
        self.wavlm = build_wavlm(options)
        self.layer_weights = nn.Parameter(torch.zeros(options.n_layers))

    def forward(self, samples: Tensor) -> Tensor:
        """(batch, frames * 1280 samples), none of them padding -> (batch, frames, d_model)."""
        n_frames = samples.shape[1] // FRAME_SAMPLES
        # WavLM Large was trained on samples of mean 0 and variance 1.
        samples = functional.layer_norm(samples, samples.shape[1:])
        layers, _ = self.wavlm.extract_features(functional.pad(samples, (0, LOOK_AHEAD)))
        if self.is_large:  # torchaudio returns the last layer as it is before the last normalisation
            layers[-1] = self.wavlm.encoder.transformer.layer_norm(layers[-1])
        weights = self.layer_weights.softmax(dim=0)
        mixed = sum(weight * layer for weight, layer in zip(weights, layers, strict=True))
        assert isinstance(mixed, Tensor)
        return mixed.view(len(mixed), n_frames, PER_FRAME, -1).mean(dim=2)


def build_wavlm(options: WavlmOptions) -> Any:
    """Return torchaudio's module."""
    try:
        from torchaudio.models import wavlm_model  # noqa: PLC0415 - the only model that needs torchaudio
    except (ImportError, OSError, RuntimeError) as error:  # not installed, or built for another CUDA than torch
        reason = str(error).partition("\n")[0].partition(". ")[0]
        how = "pip install 'sortk[wavlm]', with a torch that it fits"
        raise ValueError(f"WavLM needs torchaudio, which cannot be imported ({reason}): {how}") from None
    return wavlm_model(
        extractor_mode="layer_norm" if options.large else "group_norm",
        extractor_conv_layer_config=[(options.channels, kernel, stride) for kernel, stride in CONVOLUTIONS],
        extractor_conv_bias=False,
        encoder_embed_dim=options.d_model,
        encoder_projection_dropout=0.1,
        encoder_pos_conv_kernel=128,
        encoder_pos_conv_groups=16,
        encoder_num_layers=options.n_layers,
        encoder_num_heads=options.n_heads,
        encoder_num_buckets=320,
        encoder_max_distance=800,
        encoder_attention_dropout=0.1,
        encoder_ff_interm_features=options.d_inner,
        encoder_ff_interm_dropout=0.0,
        encoder_dropout=0.1,
        encoder_layer_norm_first=options.large,
        encoder_layer_drop=0.0,
        aux_num_out=None,
    )


def convert_weights(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights with torchaudio's names. ValueError if they are not those of a WavLM."""
    weights = {name.removeprefix("wavlm."): tensor for name, tensor in state.items()}
    if any(name.endswith("attention.q_proj.weight") for name in weights):
        weights = _rename_huggingface(weights)
    if "encoder.transformer.layers.0.attention.rel_attn_embed.weight" not in weights:
        raise ValueError(
            "not the weights of a WavLM: expected a state dict with the names of torchaudio (WAVLM_LARGE) or of "
            "Hugging Face (microsoft/wavlm-large)"
        )
    return {name: weight for name, weight in weights.items() if name.startswith(("feature_extractor.", "encoder."))}


def _rename_huggingface(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the same weights by torchaudio's names; queries, keys and values are one matrix there."""
    ours = {}
    prefix = {"encoder": "encoder.transformer", "feature_projection": "encoder.feature_projection"}
    for name, tensor in theirs.items():
        first, _, rest = name.partition(".")
        rest = rest.replace(".attention.out_proj.", ".attention.attention.out_proj.")
        rest = rest.replace("conv.weight_g", "conv.parametrizations.weight.original0")
        rest = rest.replace("conv.weight_v", "conv.parametrizations.weight.original1")
        ours[f"{prefix.get(first, first)}.{rest}"] = tensor
    for name in [name for name in ours if ".attention.q_proj." in name]:
        parts = [ours.pop(name.replace("q_proj", part), None) for part in ("q_proj", "k_proj", "v_proj")]
        if any(part is None for part in parts):
            raise ValueError(f"not the weights of a WavLM: k_proj or v_proj is missing beside {name!r}")
        joined = name.replace(".attention.q_proj.", ".attention.attention.in_proj_")
        ours[joined] = torch.cat([part for part in parts if part is not None])
    return ours


def guess_options(weights: Mapping[str, Tensor]) -> WavlmOptions:
    """Return the sizes of a WavLM with these weights, which have torchaudio's names."""
    layers = "encoder.transformer.layers."
    try:
        return WavlmOptions(
            d_model=len(weights["encoder.feature_projection.projection.weight"]),
            n_layers=len({name.split(".")[3] for name in weights if name.startswith(layers)}),
            n_heads=weights[f"{layers}0.attention.rel_attn_embed.weight"].shape[1],
            d_inner=len(weights[f"{layers}0.feed_forward.intermediate_dense.weight"]),
            channels=len(weights["feature_extractor.conv_layers.0.conv.weight"]),
            large="feature_extractor.conv_layers.1.layer_norm.weight" in weights,
        )
    except (KeyError, IndexError) as error:
        raise ValueError(f"not the weights of a WavLM: {error} is missing or of another shape") from None
