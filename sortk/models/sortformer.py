"""Sortformer: who speaks when, the speakers in the order of their arrival. The paper's diarizer.

    samples -> LogMel -> FastConformer -> linear -> TransformerEncoder -> two feed-forward layers -> K logits a frame

NVIDIA's checkpoints map onto the parameters one to one; `encoder.` keeps its names, the rest is renamed:

    sortformer_modules.encoder_proj             encoder_proj
    sortformer_modules.first_hidden_to_hidden   hidden
    sortformer_modules.single_hidden_to_spks    speakers
    transformer_encoder.layers.N                transformer.layers.N
      first_sub_layer.{query,key,value}_net       attention.{query,key,value}
      first_sub_layer.out_projection              attention.out
      layer_norm_1, layer_norm_2                  norm_attention, norm_feed_forward
      second_sub_layer.dense_{in,out}             feed_forward.linear{1,2}

Left out are its constants `preprocessor.featurizer.*` and `sortformer_modules.hidden_to_spks`, which it never uses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from sortk.models.diarizer import StreamableDiarizer, StreamingOptions
from sortk.models.fastconformer import FastConformer, FastConformerOptions
from sortk.models.features import FeatureOptions, LogMel
from sortk.models.frames import SpeakerOutput
from sortk.models.options import check_sizes, options_from_json
from sortk.models.transformer import TransformerEncoder, TransformerOptions


@dataclass(frozen=True)
class SortformerOptions:
    """Everything that a Sortformer is built from; the defaults are the paper's, 123M parameters."""

    n_speakers: int = 4
    dropout: float = 0.5  # of the two feed-forward layers at the end
    features: FeatureOptions = field(default_factory=FeatureOptions)
    encoder: FastConformerOptions = field(default_factory=FastConformerOptions)
    transformer: TransformerOptions = field(default_factory=TransformerOptions)

    def __post_init__(self) -> None:
        check_sizes(self, "n_speakers")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> SortformerOptions:
        """Return the inverse of `to_json`; a field that is left out has its default."""
        return options_from_json(cls, fields, "a Sortformer")


SIZES = {
    "tiny": SortformerOptions(  # learns on two CPU cores: the mini recipe. Too short a time for dropout to be of use
        dropout=0.0,
        encoder=FastConformerOptions(d_model=128, n_layers=4, n_heads=4, subsampling_channels=32, dropout=0.0),
        transformer=TransformerOptions(d_model=96, n_layers=2, n_heads=4, d_inner=384, dropout=0.0, positions=True),
    ),
    # Appendix F: tiny, but no part of it above the subsampling knows the order of frames. It cannot sort.
    "tiny-no-positions": SortformerOptions(
        dropout=0.0,
        encoder=FastConformerOptions(
            d_model=128,
            n_layers=4,
            n_heads=4,
            conv_kernel=1,
            positions=False,
            subsampling_channels=32,
            dropout=0.0,
        ),
        transformer=TransformerOptions(d_model=96, n_layers=2, n_heads=4, d_inner=384, dropout=0.0),
    ),
    "compact": SortformerOptions(  # the model that sortk ships: 6.8M, 80 x real time in training on one core
        dropout=0.0,
        encoder=FastConformerOptions(d_model=192, n_layers=6, n_heads=4, subsampling_channels=32, dropout=0.0),
        transformer=TransformerOptions(d_model=192, n_layers=3, n_heads=4, d_inner=768, dropout=0.0, positions=True),
    ),
    "small": SortformerOptions(
        dropout=0.1,
        encoder=FastConformerOptions(d_model=256, n_layers=8, n_heads=4, subsampling_channels=128),
        transformer=TransformerOptions(d_model=128, n_layers=6, n_heads=4, d_inner=512, dropout=0.1, positions=True),
    ),
    "base": SortformerOptions(),
}


PRESETS = {
    "0.32": StreamingOptions(chunk=3, right_context=1, fifo=188, update_period=144),
    "1.04": StreamingOptions(chunk=6, right_context=7, fifo=188, update_period=144),
    "10": StreamingOptions(chunk=124, right_context=1, fifo=124, update_period=124),
    "30.4": StreamingOptions(chunk=340, right_context=40, fifo=40, update_period=300),
}
"""NVIDIA's published settings of the streaming models, by their latency in seconds."""

LONG = StreamingOptions(chunk=840, right_context=40, fifo=40, update_period=300)
"""With cache and contexts just below 90 s, the longest clips that Sortformer is trained on."""


class Sortformer(StreamableDiarizer):
    """f_Theta of Eq. 2, with logits for probabilities."""

    options: SortformerOptions
    presets, default_preset, long_steps = PRESETS, "10", LONG

    def __init__(self, options: SortformerOptions) -> None:
        super().__init__()
        self.options = options
        d_model = options.transformer.d_model
        self.embedding_size = self.frame_size = options.encoder.d_model
        self.features = LogMel(options.features)
        self.encoder = FastConformer(options.encoder, options.features.n_mels)
        self.encoder_proj = nn.Linear(options.encoder.d_model, d_model)
        self.transformer = TransformerEncoder(options.transformer)
        self.hidden = nn.Linear(d_model, d_model)
        self.speakers = nn.Linear(d_model, options.n_speakers)
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, samples: Tensor, lengths: Tensor | None = None) -> SpeakerOutput:
        """(batch, samples) at 16 kHz, (batch,) samples of each clip or None if nothing is padded."""
        mel, lengths = self.features(samples, lengths)
        frames, lengths = self.subsample(mel, lengths)
        return self.diarize_frames(frames, lengths)

    def embed(self, samples: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the frames of the encoder's lower half, (batch, frames, encoder.d_model), without the work above."""
        frames, lengths = self.subsample(*self.features(samples, lengths))
        return self.encoder.encode_lower(frames, lengths)

    def subsample(self, mel: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """(batch, mel frames, n_mels), (batch,) -> (batch, frames, encoder.d_model), (batch,)."""
        return self.encoder.subsample(mel, lengths)

    def diarize_frames(self, frames: Tensor, lengths: Tensor | None = None) -> SpeakerOutput:
        """Return the output for (batch, frames, encoder.d_model) as `subsample` makes them."""
        encoded, voices = self.encoder.encode(frames, lengths)
        if self.training and self.by_layer:
            *earlier, last = self.transformer.by_layer(self.encoder_proj(encoded), lengths)[1:]
            return SpeakerOutput(
                self._decide(last), lengths, voices, earlier=tuple(self._decide(frames) for frames in earlier)
            )
        return SpeakerOutput(self._decide(self.transformer(self.encoder_proj(encoded), lengths)), lengths, voices)

    def _decide(self, x: Tensor) -> Tensor:
        """(batch, frames, transformer.d_model) -> (batch, frames, n_speakers) logits."""
        x = self.hidden(self.dropout(functional.relu(x)))
        logits: Tensor = self.speakers(self.dropout(functional.relu(x)))
        return logits

    def freeze_for_inference(self) -> None:
        self.encoder.freeze_for_inference()

    def quantized_parts(self) -> Sequence[nn.Module]:
        return self.encoder, self.transformer.layers
