r"""Multi-speaker ASR: Canary, supervised by Sortformer (section "Bridging Timestamps and Tokens").

    samples -> LogMel -> FastConformer -> A ----> A / ||A||_2 + Gamma^T P -> Canary's decoder -> tokens
          \-> Sortformer -> P, who speaks when --/

What is written are sorted serialized transcripts, and P is sorted by arrival, too: so <spk0> goes with kernel 1 from
the first step on, and plain cross-entropy is all that is needed.

The systems of Table 2, by `supervision` and `adapters`:

    1     none        no diarizer, no kernels: Canary as it is, with speaker tokens (Table 3: MS-Canary)
    2     frozen      Sortformer as it was trained (Table 3: Sortformer-MS-Canary)
    3     finetuned   gradients flow through the kernels into Sortformer
    4     truth       the annotation in training, Sortformer in inference
    5, 6  frozen      with adapters, everything else frozen; segment or word level is a matter of the transcripts

Names of the weights: `asr.` those of Canary (see canary.py), `diarizer.` those of Sortformer, `kernels.gamma` if
learned, `adapters.<name of what is adapted>.`
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from sortk.models.canary import Canary, CanaryOptions, DecoderLayer
from sortk.models.fastconformer import ConformerLayer
from sortk.models.features import FeatureOptions
from sortk.models.frames import FRAME_SECONDS
from sortk.models.kernels import KernelOptions, SpeakerKernels
from sortk.models.options import ModelOptions, check_sizes
from sortk.models.sortformer import Sortformer, SortformerOptions
from sortk.models.transformer import TransformerLayer

Supervision = Literal["none", "frozen", "finetuned", "truth"]


@dataclass(frozen=True)
class MsAsrOptions(ModelOptions):
    """Everything that a multi-speaker ASR model is built from."""

    WHAT = "a multi-speaker ASR"

    asr: CanaryOptions = field(default_factory=CanaryOptions)
    supervision: Supervision = "frozen"
    n_speakers: int = 4  # K, kernels and speaker tokens; the diarizer's if there is one
    diarizer: SortformerOptions | None = None  # None: P is given with every clip
    kernels: KernelOptions = field(default_factory=KernelOptions)
    adapters: int = 0  # size of their bottleneck; 0: none (the paper: 256)

    def __post_init__(self) -> None:
        if self.supervision not in get_args(Supervision):
            known = ", ".join(get_args(Supervision))
            raise ValueError(f"supervision must be one of {known}, got {self.supervision!r}")
        check_sizes(self, "n_speakers")
        if self.adapters < 0:
            raise ValueError(f"adapters must be 0 or more, got {self.adapters}")
        if self.diarizer is not None and self.diarizer.n_speakers != self.n_speakers:
            raise ValueError(
                f"the diarizer has {self.diarizer.n_speakers} outputs, but the ASR is for {self.n_speakers} speakers"
            )
        if self.supervision in ("none", "truth") or self.diarizer is not None:
            return
        raise ValueError(f"supervision {self.supervision!r} needs a diarizer")

    @property
    def shares_features(self) -> bool:
        """Return whether mel frames serve both models; dither does not count."""
        return self.diarizer is not None and _undithered(self.asr.features) == _undithered(self.diarizer.features)


def _undithered(features: FeatureOptions) -> FeatureOptions:
    return replace(features, dither=0.0)


class MsAsr(nn.Module):
    """Speech of several speakers to a sorted serialized transcript."""

    def __init__(self, options: MsAsrOptions, asr: Canary | None = None) -> None:
        """`asr`: the Canary to use; None: a new one."""
        super().__init__()
        self.options = options
        supervised = options.supervision != "none"
        self.asr = asr or Canary(options.asr)
        self.diarizer = Sortformer(options.diarizer) if supervised and options.diarizer is not None else None
        d_model = options.asr.encoder.d_model
        self.kernels = SpeakerKernels(options.kernels, options.n_speakers, d_model) if supervised else None
        self.adapters = Adapters(self.asr, options.adapters) if options.adapters else None

    @property
    def frozen_parts(self) -> tuple[str, ...]:
        """Return names of the parts that do not learn."""
        asr = ("asr",) if self.adapters is not None else ()
        is_fixed = self.diarizer is not None and self.options.supervision != "finetuned"
        return asr + (("diarizer",) if is_fixed else ())

    def forward(
        self, samples: Tensor, lengths: Tensor | None, tokens: Tensor, speaker_probs: Tensor | None = None
    ) -> Tensor:
        """(batch, samples) at 16 kHz, (batch,) or None, (batch, n) -> (batch, n, n_tokens) logits."""
        states, lengths = self.encode(samples, lengths, speaker_probs)
        logits: Tensor = self.asr.decoder(tokens, states, lengths)
        return logits

    def encode(
        self,
        samples: Tensor,
        lengths: Tensor | None = None,
        speaker_probs: Tensor | None = None,
        frame_seconds: float = FRAME_SECONDS,
    ) -> tuple[Tensor, Tensor | None]:
        """(batch, samples), (batch,) -> what the decoder attends to, (batch, frames, d_model), and (batch,) frames.

        With `speaker_probs`, P of (batch, frames of `frame_seconds`, speakers), the diarizer is not asked.
        """
        mel, mel_lengths = self.asr.features(samples, lengths)
        encoded, n_frames = self.asr.encoder(mel, mel_lengths)
        if self.kernels is not None:
            if speaker_probs is None:
                shared = (mel, mel_lengths) if self.options.shares_features else None
                speaker_probs = self.diarize(samples, lengths, shared)
            encoded = self.kernels(encoded, speaker_probs, frame_seconds)
        return self.asr.project(encoded, n_frames), n_frames

    def diarize(
        self, samples: Tensor, lengths: Tensor | None = None, features: tuple[Tensor, Tensor | None] | None = None
    ) -> Tensor:
        """Return P, (batch, frames, speakers); `features` are the mel frames, if the diarizer's are the same."""
        if self.diarizer is None:
            raise ValueError("this model has no diarizer inside: give a trained one, or posteriors")
        learns = self.options.supervision == "finetuned" and torch.is_grad_enabled()
        with torch.set_grad_enabled(learns):
            mel, mel_lengths = self.diarizer.features(samples, lengths) if features is None else features
            frames, n_frames = self.diarizer.subsample(mel, mel_lengths)
            return self.diarizer.diarize_frames(frames, n_frames).speaker_probs


# ---------------------------------------------------------------------------------------------------------------------
# Adapters: a few new weights beside a pretrained model, which stays as it is (Houlsby et al., 2019)
#
#     y + W_up relu(W_down norm(y))
#
# follows the output y of every attention and of the last feed-forward layer of each layer, before it is added to the
# layer's input. W_up is 0 at first: a model with new adapters computes what it did without. The adapters are forward
# hooks on its layers, so its weights keep their names, and whole modules are frozen or trained.

ADAPTED: dict[type[nn.Module], tuple[str, ...]] = {
    ConformerLayer: ("self_attn", "feed_forward2"),
    TransformerLayer: ("attention", "feed_forward"),
    DecoderLayer: ("self_attention", "cross_attention", "feed_forward"),
}
"""The parts of each kind of layer whose outputs are adapted."""


class Adapter(nn.Module):
    """(..., d_model) -> (..., d_model), through a bottleneck."""

    def __init__(self, d_model: int, bottleneck: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        self.down = nn.Linear(d_model, bottleneck)
        self.up = nn.Linear(bottleneck, d_model)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, y: Tensor) -> Tensor:
        out: Tensor = y + self.up(functional.relu(self.down(self.norm(y))))
        return out


class Adapters(nn.ModuleDict):
    """The adapters of an ASR model, by the name of what each adapts; from then on the model computes with them."""

    def __init__(self, asr: Canary, bottleneck: int) -> None:
        super().__init__()
        if bottleneck < 1:
            raise ValueError(f"the bottleneck of adapters must be 1 or more, got {bottleneck}")
        adapted = {
            f"{name}.{part}": getattr(layer, part)
            for name, layer in asr.named_modules()
            for part in ADAPTED.get(type(layer), ())
        }
        for name, part in adapted.items():
            *_, last = (module for module in part.modules() if isinstance(module, nn.Linear))
            adapter = Adapter(last.out_features, bottleneck)
            self[name.replace(".", "-")] = adapter  # a module's name cannot have dots
            part.register_forward_hook(_Hook(adapter))


class _Hook:
    """Puts an adapter behind a module."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter

    def __call__(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        adapted: Tensor = self._adapter(output)
        return adapted
