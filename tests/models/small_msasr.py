"""A multi-speaker ASR model that learns in seconds."""

from __future__ import annotations

from sortk.models.canary import CanaryOptions
from sortk.models.fastconformer import FastConformerOptions
from sortk.models.features import FeatureOptions
from sortk.models.sortformer import SortformerOptions
from sortk.models.transformer import TransformerOptions

ENCODER = FastConformerOptions(
    d_model=32, n_layers=1, n_heads=2, subsampling_channels=8, scale_input=False, dropout=0.0
)
ASR = CanaryOptions(
    n_tokens=12,
    max_tokens=40,
    features=FeatureOptions(),
    encoder=ENCODER,
    decoder=TransformerOptions(d_model=32, n_layers=2, n_heads=2, d_inner=64, dropout=0.0, pre_norm=True),
)
DIARIZER = SortformerOptions(
    n_speakers=2,
    dropout=0.0,
    encoder=ENCODER,
    transformer=TransformerOptions(d_model=16, n_layers=1, n_heads=2, d_inner=32, dropout=0.0),
)
