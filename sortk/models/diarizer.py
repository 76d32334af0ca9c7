"""What training and inference ask of a diarizer: the interface of every diarizing model, and of those that stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor, nn

from sortk.models.features import FeatureOptions, LogMel
from sortk.models.frames import SpeakerOutput


class DiarizerOptions(Protocol):
    """The options that every diarizer has."""

    @property
    def n_speakers(self) -> int: ...

    @property
    def features(self) -> FeatureOptions: ...


class DiarizerModel(nn.Module):
    """A module that maps samples to the speaker probabilities of every frame."""

    options: DiarizerOptions
    features: LogMel
    embedding_size: int  # of `SpeakerOutput.embeddings`
    by_layer: bool = False  # in training, also return what lower layers decide, if the model can

    def forward(self, samples: Tensor, lengths: Tensor | None = None) -> SpeakerOutput:
        """(batch, samples) at 16 kHz, (batch,) samples of each clip or None if nothing is padded."""
        raise NotImplementedError

    def embed(self, samples: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the embeddings of `forward` alone."""
        embeddings: Tensor = self(samples, lengths).embeddings
        return embeddings

    def freeze_for_inference(self) -> None:
        """Trade flexibility for speed: afterwards the weights must not change and are not those of a checkpoint."""

    def quantized_parts(self) -> Sequence[nn.Module]:
        """The parts that hold most of the work; `--int8` quantizes the linear layers in them."""
        raise NotImplementedError


class StreamableDiarizer(DiarizerModel):
    """A diarizer that sorts speakers by arrival, so that a speaker cache can carry them from step to step.

    `forward` is `features`, `subsample` and `diarize_frames` in a row; a stream puts its cache between the last two.
    """

    frame_size: int  # features of a frame that `subsample` returns

    def subsample(self, mel: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """(batch, mel frames, n_mels), (batch,) -> (batch, frames of 80 ms, frame_size), (batch,)."""
        raise NotImplementedError

    def diarize_frames(self, frames: Tensor, lengths: Tensor | None = None) -> SpeakerOutput:
        """Return the output for (batch, frames, frame_size) as `subsample` makes them."""
        raise NotImplementedError
