"""What training and inference ask of a diarizer: the interface of every diarizing model, and of those that stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Protocol

from torch import Tensor, nn

from sortk.models.features import FeatureOptions, LogMel
from sortk.models.frames import FRAME_SECONDS, SpeakerOutput
from sortk.models.options import MAX_SIZE


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
    rows_per_frame: int = 1  # of posteriors, for each model frame of 80 ms
    teacher_forcing: bool = False  # in training, `forward` takes the targets, (batch, frames, speakers), too

    @property
    def row_seconds(self) -> float:
        """Return the duration of a row of posteriors."""
        return FRAME_SECONDS / self.rows_per_frame

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
        """Return the parts that hold most of the work; `--int8` quantizes the linear layers in them."""
        raise NotImplementedError


@dataclass(frozen=True)
class StreamingOptions:
    """How a stream is cut and remembered. Lengths are in frames of 80 ms; the defaults are those of NVIDIA's models."""

    chunk: int = 188  # new frames of a step
    left_context: int = 1  # frames before the chunk that are given with it
    right_context: int = 1  # frames after it; the step waits for them
    fifo: int = 0  # recent frames that are kept as they are
    update_period: int = 188  # frames that move from a full FIFO to the cache, at least
    cache: int = 188  # frames in the speaker cache
    silence_per_speaker: int = 3  # frames of mean silence after each speaker's frames in the cache
    silence_threshold: float = 0.2  # a frame is silent if all speakers' probabilities together are below this
    prob_floor: float = 0.25  # p and 1 - p count as no less in a score
    recent_bonus: float = 0.05  # added to the score of frames that are new in the cache
    strong_boost: float = 0.75  # of a speaker's share of the cache: so many of the best frames get 2 log 2
    weak_boost: float = 1.5  # likewise: so many get log 2
    min_alone: float = 0.5  # likewise: a speaker with at least so many frames with s > 0 keeps only those

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            least, value = int(name in ("chunk", "update_period", "cache")), getattr(self, name)
            if not least <= value <= MAX_SIZE:
                raise ValueError(f"{name} must be from {least} to {MAX_SIZE}, got {value}")

    def check_cache(self, n_speakers: int) -> None:
        """Raise ValueError if the speaker cache has no frame for each speaker beside the silence."""
        least = n_speakers * (1 + self.silence_per_speaker)
        if self.cache < least:
            raise ValueError(f"a cache of {self.cache} frames is too small for {n_speakers} speakers: give {least}")

    @property
    def latency_seconds(self) -> float:
        """Return how long a frame waits, at most, until its step can run."""
        return (self.chunk + self.right_context) * FRAME_SECONDS


class StreamableDiarizer(DiarizerModel):
    """A diarizer that sorts speakers by arrival, so that a speaker cache can carry them from step to step.

    `forward` is `features`, `subsample` and `diarize_frames` in a row; a stream puts its cache between the last two.
    """

    presets: Mapping[str, StreamingOptions]  # by their latency in seconds
    default_preset: str  # for streams, if none is named
    long_steps: StreamingOptions  # for recordings whose latency does not matter, but that are too long for one pass
    whole_clips: bool = True  # short recordings are processed in one pass, else in `long_steps`, too
    frame_size: int  # features of a frame that `subsample` returns

    def subsample(self, mel: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """(batch, mel frames, n_mels), (batch,) -> (batch, frames of 80 ms, frame_size), (batch,)."""
        raise NotImplementedError

    def diarize_frames(self, frames: Tensor, lengths: Tensor | None = None) -> SpeakerOutput:
        """Return the output for (batch, frames, frame_size) as `subsample` makes them."""
        raise NotImplementedError

    def find_silence(self) -> Tensor | None:
        """Return the learned frame, (frame_size,), for silence in the speaker cache; None: the mean silent frame."""
        return None
