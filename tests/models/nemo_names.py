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
