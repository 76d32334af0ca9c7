"""NVIDIA's tiny models: their sizes, and the names of their weights."""

from __future__ import annotations

from sortk.models.fastconformer import FastConformerOptions
from sortk.models.features import FeatureOptions
from sortk.models.sortformer import SortformerOptions
from sortk.models.transformer import TransformerOptions

ENCODER = FastConformerOptions(d_model=64, n_layers=2, n_heads=4, subsampling_channels=32)
TRANSFORMER = TransformerOptions(d_model=32, n_layers=2, n_heads=4, d_inner=64)
OFFLINE = SortformerOptions(encoder=ENCODER, transformer=TRANSFORMER)
STREAMING = SortformerOptions(
    features=FeatureOptions(n_mels=128, gain=False, normalize="none"), encoder=ENCODER, transformer=TRANSFORMER
)

# The table in models/sortformer.py, for all names that do not begin with "encoder."
RENAMED = {
    "sortformer_modules.first_hidden_to_hidden": "hidden",
    "sortformer_modules.single_hidden_to_spks": "speakers",
    "sortformer_modules.encoder_proj": "encoder_proj",
    "transformer_encoder.": "transformer.",
    "layer_norm_1": "norm_attention",
    "layer_norm_2": "norm_feed_forward",
    "first_sub_layer.out_projection": "attention.out",
    "first_sub_layer.": "attention.",
    "_net.": ".",
    "second_sub_layer.dense_in": "feed_forward.linear1",
    "second_sub_layer.dense_out": "feed_forward.linear2",
}
LEFT_OUT = ("preprocessor.", "sortformer_modules.hidden_to_spks.")


def rename(name: str) -> str:
    if not name.startswith("encoder."):
        for theirs, ours in RENAMED.items():
            name = name.replace(theirs, ours)
    return name


# ---------------------------------------------------------------------------------------------------------------------
# Canary

TRANSFORMER_NAMES = {
    "transf_encoder.final_layer_norm": "transformer.norm_out",
    "transf_encoder.": "transformer.",
    "first_sub_layer": "attention",
    "second_sub_layer": "feed_forward",
    "layer_norm_1": "norm_attention",
    "layer_norm_2": "norm_feed_forward",
}
DECODER_NAMES = {
    "transf_decoder._embedding.token_embedding": "decoder.embedding",
    "transf_decoder._embedding.layer_norm": "decoder.norm_in",
    "transf_decoder._decoder.final_layer_norm": "decoder.norm_out",
    "transf_decoder._decoder.": "decoder.",
    "first_sub_layer": "self_attention",
    "second_sub_layer": "cross_attention",
    "third_sub_layer": "feed_forward",
    "layer_norm_1": "norm_self",
    "layer_norm_2": "norm_cross",
    "layer_norm_3": "norm_feed_forward",
}
LAYER_NAMES = {"_net.": ".", "out_projection": "out", "dense_in": "linear1", "dense_out": "linear2"}
OTHER_NAMES = {"encoder_decoder_proj": "encoder_proj", "log_softmax.mlp.layer0.bias": "decoder.bias"}
CANARY_LEFT_OUT = (
    "preprocessor.featurizer.",
    "transf_decoder._embedding.position_embedding.pos_enc",
    "log_softmax.mlp.layer0.weight",
)


def rename_canary(name: str) -> str | None:
    """The name here of a tensor of NVIDIA's Canary; None if it is left out. The table in models/canary.py, as code."""
    if name.startswith(CANARY_LEFT_OUT):
        return None
    if name.startswith("encoder."):
        return name
    names = OTHER_NAMES
    if name.startswith("transf_encoder."):
        names = TRANSFORMER_NAMES | LAYER_NAMES
    elif name.startswith("transf_decoder."):
        names = DECODER_NAMES | LAYER_NAMES
    for theirs, ours in names.items():
        name = name.replace(theirs, ours)
    return name
