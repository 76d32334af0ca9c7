"""Multitalker Parakeet: a streaming Parakeet that transcribes one target speaker (Wang et al. 2025, "Speaker kernels").

Who speaks when comes from a diarizer. Before layer k of the encoder (k in `kernel_layers`, NVIDIA: 0 only)

    x += A_k(p x)      p_t: the posterior of the target speaker
    x += B_k(q x)      q_t: 1 where any other speaker's posterior is above 0.5, else 0

where A_k and B_k are two linear layers with a ReLU between. One pass for each speaker writes that speaker's words, in
complete overlap too. The passes of all speakers are one batch.

The encoder is causal, so that a recording can be written while it is spoken: `MultitalkerStream` computes exactly
what `encode` and `decode` compute on the complete recording.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from sortk.models.fastconformer import Context, FastConformerOptions, LayerCache
from sortk.models.features import FeatureOptions
from sortk.models.frames import MEL_PER_FRAME
from sortk.models.options import ModelOptions, check_sizes
from sortk.models.parakeet import Parakeet, ParakeetOptions
from sortk.models.rnnt import DecodingState, TransducerOptions

OTHER_THRESHOLD = 0.5  # posterior above which another speaker counts as active
SEEN_BEFORE = 2 * MEL_PER_FRAME  # mel frames before its own that a causal frame needs, rounded up to complete frames


@dataclass(frozen=True)
class MultitalkerOptions(ModelOptions):
    """Everything that a multitalker Parakeet is built from."""

    WHAT = "a multitalker Parakeet"

    n_tokens: int = 1024
    features: FeatureOptions = field(default_factory=lambda: FeatureOptions(n_mels=128, gain=False, normalize="none"))
    encoder: FastConformerOptions = field(
        default_factory=lambda: FastConformerOptions(
            d_model=1024,
            n_layers=24,
            scale_input=False,
            causal_subsampling=True,
            causal_convolution=True,
            conv_norm="layer_norm",
            left_context=70,
            right_context=13,
        )
    )
    transducer: TransducerOptions = field(default_factory=lambda: TransducerOptions(n_layers=2))
    contexts: tuple[tuple[int, int], ...] = ()  # that it was trained with, [left, right] frames, the default first
    kernel_layers: tuple[int, ...] = (0,)  # before which there are speaker kernels
    background: bool = True  # kernels of the other speakers, too

    def __post_init__(self) -> None:
        check_sizes(self, "n_tokens")
        if any(not 0 <= layer < self.encoder.n_layers for layer in self.kernel_layers):
            raise ValueError(f"kernel_layers must be layers of the encoder, got {list(self.kernel_layers)}")
        if len(set(self.kernel_layers)) < len(self.kernel_layers):
            raise ValueError(f"kernel_layers must differ, got {list(self.kernel_layers)}")
        for context in self.contexts:
            Context(*context).check()


class Kernel(nn.Module):
    """Two linear layers with a ReLU between. NVIDIA numbers them 0 and 3."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(d_model, d_model)
        self.linear2 = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear2(self.linear1(x).relu())
        return out


class Multitalker(nn.Module):
    """Speech of several speakers to the tokens of one of them."""

    def __init__(self, options: MultitalkerOptions) -> None:
        super().__init__()
        self.options = options
        parakeet = Parakeet(
            ParakeetOptions(options.n_tokens, options.features, options.encoder, options.transducer, ctc=False)
        )
        assert parakeet.transducer is not None
        self.features, self.encoder, self.transducer = parakeet.features, parakeet.encoder, parakeet.transducer
        self.kernels, self.background_kernels = (
            nn.ModuleDict({str(layer): Kernel(options.encoder.d_model) for layer in options.kernel_layers})
            for _ in range(2)
        )
        if not options.background:
            self.background_kernels = nn.ModuleDict()

    def encode(
        self,
        samples: Tensor,
        lengths: Tensor | None = None,
        target: Tensor | None = None,
        others: Tensor | None = None,
        context: Context | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """(batch, samples) at 16 kHz, (batch,), p and q -> (batch, frames, d_model), and (batch,) valid frames.

        p and q, (batch, frames), are as long as the output. Shorter ones are padded on the left, with p = 1 and q = 0;
        of longer ones the last frames count. Without them all speakers are transcribed.
        """
        mel, mel_lengths = self.features(samples, lengths)
        frames, n_frames = self.encoder.subsample(mel, mel_lengths)
        encoded = self.encode_frames(frames, n_frames, target, others, context)
        return encoded, n_frames

    def encode_frames(
        self,
        frames: Tensor,
        lengths: Tensor | None = None,
        target: Tensor | None = None,
        others: Tensor | None = None,
        context: Context | None = None,
        caches: list[LayerCache] | None = None,
    ) -> Tensor:
        """(batch, frames, d_model) that are subsampled -> (batch, frames, d_model); see `encode`."""
        n_frames = frames.shape[1]
        p, q = fit_frames(target, n_frames, 1.0), fit_frames(others, n_frames, 0.0)

        def apply_kernels(layer: int, x: Tensor) -> Tensor:
            # No target: the first kernels treat every frame as the target's, later ones are skipped.
            if layer not in self.options.kernel_layers or (target is None and layer > 0):
                return x
            x = x + self.kernels[str(layer)](x if p is None else x * p[:, :, None].to(x.dtype))
            if self.options.background:
                silenced = torch.zeros_like(x) if q is None else x * q[:, :, None].to(x.dtype)
                x = x + self.background_kernels[str(layer)](silenced)
            return x

        return self.encoder.encode(frames, lengths, context, apply_kernels, caches)[0]

    def decode(
        self, frames: Tensor, lengths: Tensor | None = None, state: DecodingState | None = None
    ) -> DecodingState:
        """(batch, frames, d_model) -> tokens; with a `state`, the frames follow on those before."""
        return self.transducer.decode(frames, lengths, state)


def fit_frames(activity: Tensor | None, n_frames: int, fill: float) -> Tensor | None:
    """(batch, any number of frames) -> (batch, n_frames): filled on the left, or the last ones."""
    if activity is None:
        return None
    activity = activity[:, max(activity.shape[1] - n_frames, 0) :]
    return functional.pad(activity, (n_frames - activity.shape[1], 0), value=fill)


def split_speakers(posteriors: Tensor, speakers: Tensor) -> tuple[Tensor, Tensor]:
    """(frames, speakers), (targets,) -> p and q of each target, (targets, frames) both."""
    active = posteriors > OTHER_THRESHOLD
    n_others = active.sum(dim=1)[:, None] - active[:, speakers].to(torch.long)
    return posteriors[:, speakers].T, (n_others > 0).to(posteriors.dtype).T


class MultitalkerStream:
    """A recording that is written while it is spoken, for several target speakers at once.

    Each step takes new mel frames, all that are needed for the frames that it computes. What came before is kept in the
    caches of the layers and in the state of the transducer, so a step costs the same however long the recording is.
    """

    def __init__(self, model: Multitalker, n_targets: int, context: Context | None = None) -> None:
        chosen = context or model.options.encoder.context
        if chosen is None:
            raise ValueError("this model sees the complete recording; it cannot write a stream")
        self.context = chosen
        self._model, self._n_targets = model, n_targets
        self._caches = [LayerCache(chosen) for _ in model.encoder.layers]
        self.state = model.transducer.start(n_targets)
        self.n_frames = 0  # so far

    def count_mel(self, n_frames: int) -> int:
        """Return how many mel frames `n_frames` frames need: frame t sees those up to 8 t."""
        return MEL_PER_FRAME * (n_frames - 1) + 1 if n_frames else 0

    def count_ready(self, n_mel: int) -> int:
        """Return how many more frames, in complete chunks, can be computed with so many mel frames."""
        n_whole = max(n_mel - 1, -1) // MEL_PER_FRAME + 1
        return (n_whole - self.n_frames) // self.context.chunk * self.context.chunk

    @property
    def first_mel(self) -> int:
        """Return the mel frame with which the next step must begin."""
        return max(MEL_PER_FRAME * self.n_frames - SEEN_BEFORE, 0)

    @torch.inference_mode()
    def step(self, mel: Tensor, target: Tensor | None, others: Tensor | None, is_last: bool = False) -> Tensor:
        """(mel frames from `first_mel` on, n_mels), (targets, new frames) twice -> (targets, new frames, d_model).

        The new frames are complete chunks, unless `is_last`: then mel frames and frames are those up to the end.
        """
        n_before = self.n_frames - self.first_mel // MEL_PER_FRAME
        frames = self._model.encoder.subsample(mel[None])[0][:, n_before:]
        if not is_last:
            frames = frames[:, : self.count_ready(self.first_mel + len(mel))]
        if frames.shape[1] == 0:
            return frames
        # The same frames for all targets: kernels make them differ, before the first layer.
        shared = frames.expand(self._n_targets, -1, -1)
        encoded = self._model.encode_frames(shared, None, target, others, self.context, self._caches)
        self.n_frames += frames.shape[1]
        self.state = self._model.decode(encoded, None, self.state)
        return encoded
