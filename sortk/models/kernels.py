"""Speaker kernels: how the diarizer's posteriors enter the states of the ASR's encoder (section "Speaker Kernel").

    gamma_k[z] = sin(2 pi k z / M)         k = 1 ... K speakers, z = 1 ... M features
    A~ = A / ||A||_2 + Gamma^T P           each frame by itself

A, M x T, are the encoder's states, ||A||_2 the norm of each of its columns, P, K x T, the posteriors. Here, as
everywhere, a frame is a row: A is (batch, frames, M), P is (batch, frames, K), and Gamma^T P becomes P Gamma.

A state has norm 1 after the division, a kernel sqrt(M / 2): 16 for M = 512.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from sortk.models.frames import FRAME_SECONDS

KernelKind = Literal["sinusoidal", "learned"]
MAX_FRAMES_OFF = 2  # by which posteriors may be longer or shorter than the states: how a recording's end is rounded


@dataclass(frozen=True)
class KernelOptions:
    """How speakers are marked; the defaults are the paper's."""

    kind: KernelKind = "sinusoidal"  # learned: the same at first, and then weights like others
    scale: float = 1.0  # of the kernels against the states
    keep_norm: bool = False  # A~ times ||A||_2 again: in silence the states are what a pretrained decoder knows

    def __post_init__(self) -> None:
        if self.kind not in get_args(KernelKind):
            raise ValueError(f"kind must be {' or '.join(get_args(KernelKind))}, got {self.kind!r}")
        if not self.scale >= 0:
            raise ValueError(f"scale must be 0 or more, got {self.scale}")


def sinusoidal_kernels(n_speakers: int, d_model: int, device: torch.device | None = None) -> Tensor:
    """Return Gamma, (n_speakers, d_model); its rows are orthogonal and have norm sqrt(d_model / 2)."""
    if not 1 <= n_speakers < d_model / 2:  # kernel M / 2 is 0, and kernel M - k is minus kernel k
        raise ValueError(f"{d_model} features have kernels for 1 to {(d_model - 1) // 2} speakers, got {n_speakers}")
    k = torch.arange(1, n_speakers + 1, device=device)[:, None]
    z = torch.arange(1, d_model + 1, device=device)
    # Full turns are left out: so the angle stays small, and the sine exact.
    return (2 * math.pi / d_model * (k * z % d_model)).sin()


class SpeakerKernels(nn.Module):
    """A, P -> A~; linear in P."""

    def __init__(self, options: KernelOptions, n_speakers: int, d_model: int) -> None:
        super().__init__()
        self.options, self.n_speakers = options, n_speakers
        gamma = sinusoidal_kernels(n_speakers, d_model)
        self.gamma = nn.Parameter(gamma) if options.kind == "learned" else None

    def forward(self, states: Tensor, speaker_probs: Tensor, frame_seconds: float = FRAME_SECONDS) -> Tensor:
        """(batch, frames, d_model), (batch, frames, speakers) of `frame_seconds` each -> (batch, frames, d_model)."""
        n_given = speaker_probs.shape[2]
        if n_given != self.n_speakers:
            raise ValueError(f"posteriors of {n_given} speakers do not fit the kernels of {self.n_speakers}")
        states = states.float()
        gamma = (
            sinusoidal_kernels(self.n_speakers, states.shape[2], states.device) if self.gamma is None else self.gamma
        )
        probs = resample_posteriors(speaker_probs.float(), states.shape[1], frame_seconds)
        encoded = functional.normalize(states, dim=2) + self.options.scale * (probs @ gamma)
        if self.options.keep_norm:
            encoded = encoded * states.norm(dim=2, keepdim=True)
        return encoded


def resample_posteriors(probs: Tensor, n_frames: int, frame_seconds: float = FRAME_SECONDS) -> Tensor:
    """Return posteriors on the model's frames of 80 ms: their mean over the time of each one; 0 beyond their end.

    (batch, frames of `frame_seconds`, speakers) -> (batch, n_frames, speakers)
    """
    ratio = FRAME_SECONDS / frame_seconds
    n_given = probs.shape[1]
    if abs(n_given / ratio - n_frames) > MAX_FRAMES_OFF:
        raise ValueError(
            f"posteriors of {n_given} frames of {frame_seconds:g} s do not fit {n_frames} frames of {FRAME_SECONDS:g} s"
        )
    if ratio == 1:
        return functional.pad(probs, (0, 0, 0, max(0, n_frames - n_given)))[:, :n_frames]
    # The integral of a step function from 0 to the edges of the new frames; between two old edges it is a line.
    integral = functional.pad(probs.cumsum(dim=1), (0, 0, 1, 0))
    edges = (torch.arange(n_frames + 1, device=probs.device) * ratio).clamp(max=n_given)
    before = edges.floor().clamp(max=n_given - 1).long()
    at_edges = integral[:, before].lerp(integral[:, before + 1], (edges - before)[:, None])
    return at_edges.diff(dim=1) / ratio
