"""Parakeet: NVIDIA's speech recognisers with a FastConformer and one or two heads.

    samples -> LogMel -> FastConformer -> frames -> transducer (RNNT, TDT) -> tokens with their frames
                                                \\-> CTC                    -> tokens with their frames

NVIDIA's checkpoints map onto the parameters one to one; `encoder.` keeps its names, nemo.py renames the rest:

    decoder.prediction.embed           transducer.prediction.embed
    decoder.prediction.dec_rnn.lstm    transducer.prediction.lstm
    joint.enc, joint.pred              transducer.joint.enc, transducer.joint.pred
    joint.joint_net.2                  transducer.joint.out
    ctc_decoder.decoder_layers.0       ctc       (of a model with CTC alone: decoder.decoder_layers.0)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from sortk.models.fastconformer import FastConformer, FastConformerOptions, Pointwise
from sortk.models.features import FeatureOptions, LogMel
from sortk.models.options import ModelOptions, check_sizes
from sortk.models.rnnt import TimedTokens, Transducer, TransducerOptions

Head = Literal["transducer", "ctc"]


@dataclass(frozen=True)
class ParakeetOptions(ModelOptions):
    """Everything that a Parakeet is built from; the defaults are those of parakeet-tdt_ctc-110m."""

    WHAT = "a Parakeet"

    n_tokens: int = 1024  # of the tokenizer; blank comes after them
    features: FeatureOptions = field(default_factory=lambda: FeatureOptions(gain=False))
    encoder: FastConformerOptions = field(default_factory=lambda: FastConformerOptions(n_layers=17))
    transducer: TransducerOptions | None = field(default_factory=lambda: TransducerOptions(durations=(0, 1, 2, 3, 4)))
    ctc: bool = True

    def __post_init__(self) -> None:
        check_sizes(self, "n_tokens")
        if self.transducer is None and not self.ctc:
            raise ValueError("a Parakeet needs a head: transducer, ctc or both")


class Parakeet(nn.Module):
    """Speech to tokens with times."""

    def __init__(self, options: ParakeetOptions) -> None:
        super().__init__()
        self.options = options
        self.features = LogMel(options.features)
        self.encoder = FastConformer(options.encoder, options.features.n_mels)
        d_model, n_tokens = options.encoder.d_model, options.n_tokens
        self.transducer = None if options.transducer is None else Transducer(d_model, n_tokens, options.transducer)
        self.ctc = Pointwise(d_model, n_tokens + 1, 1) if options.ctc else None

    @property
    def heads(self) -> tuple[Head, ...]:
        """Return the heads that the model has, the default first."""
        transducer: tuple[Head, ...] = () if self.transducer is None else ("transducer",)
        return (*transducer, "ctc") if self.ctc is not None else transducer

    def encode(self, samples: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """(batch, samples) at 16 kHz, (batch,) -> (batch, frames, d_model), and (batch,) valid frames."""
        frames: Tensor
        frames, lengths = self.encoder(*self.features(samples, lengths))
        return frames, lengths

    def decode(self, frames: Tensor, lengths: Tensor | None = None, head: Head | None = None) -> list[TimedTokens]:
        """(batch, frames, d_model), (batch,) -> the best tokens of each clip."""
        head = head or self.heads[0]
        if head not in self.heads:
            raise ValueError(f"this Parakeet has no {head} head, but {' and '.join(self.heads)}")
        if head == "transducer":
            assert self.transducer is not None
            return self.transducer.decode(frames, lengths).tokens
        assert self.ctc is not None
        return collapse(self.ctc(frames).log_softmax(dim=2), lengths)


@torch.no_grad()
def collapse(log_probs: Tensor, lengths: Tensor | None = None) -> list[TimedTokens]:
    """Greedy CTC: (batch, frames, tokens + blank) -> tokens; one is written where a run of it begins."""
    blank = log_probs.shape[2] - 1
    best_probs, best = log_probs.max(dim=2)
    before = torch.nn.functional.pad(best[:, :-1], (1, 0), value=blank)
    begins = (best != blank) & (best != before)
    found = []
    for row in range(len(best)):
        n_frames = best.shape[1] if lengths is None else int(lengths[row])
        frames = begins[row, :n_frames].nonzero()[:, 0]
        probs = best_probs[row, frames].exp()
        found.append(TimedTokens(best[row, frames].tolist(), frames.tolist(), [], probs.tolist()))
    return found
