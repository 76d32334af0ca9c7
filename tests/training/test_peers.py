"""The systems that Table 1 compares with: each one learns eight short sessions by heart."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from sortk.models.eend_gla import EendGla
from sortk.models.frames import SpeakerOutput
from sortk.training.diarizer import build_diarizer, count_errors
from sortk.training.losses import diarization_loss
from sortk.training.options import TrainDiarOptions

PITCHES = (110, 190, 330)  # Hz: the voices are hums


def make_batch(n_sessions: int = 8, n_frames: int = 100) -> tuple[Tensor, Tensor]:
    """Return samples (sessions, samples) and targets (sessions, frames, 3): two or three voices, with overlaps."""
    rng = np.random.default_rng(0)
    time = np.arange(n_frames * 1280) / 16000
    samples = 0.01 * rng.standard_normal((n_sessions, len(time)))
    targets = np.zeros((n_sessions, n_frames, 3), np.float32)
    for row in range(n_sessions):
        voices = rng.permutation(3)[: 2 + row % 2]
        start = 5
        for turn in range(6):
            end = min(start + rng.integers(12, 18), n_frames)
            targets[row, start:end, voices[turn % len(voices)]] = 1
            start = min(end + rng.integers(-4, 5), n_frames - 1)
        for voice, pitch in enumerate(PITCHES):
            samples[row] += 0.1 * np.sign(np.sin(2 * np.pi * pitch * time)) * targets[row, :, voice].repeat(1280)
        by_arrival = np.argsort([column.argmax() if column.any() else n_frames for column in targets[row].T])
        targets[row] = targets[row][:, by_arrival]
    return torch.from_numpy(samples.astype(np.float32)), torch.from_numpy(targets)


@pytest.mark.parametrize(("model", "steps"), [("aed-eend", 75), ("aed-eend-ee", 75), ("eend-gla", 125)])
def test_it_learns_eight_sessions_by_heart(model: str, steps: int) -> None:
    torch.manual_seed(0)
    built, _ = build_diarizer(TrainDiarOptions(model=model, size="tiny", n_speakers=3))
    samples, targets = make_batch()
    optimizer = torch.optim.AdamW(built.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    built.train()
    for _ in range(steps):
        reference = (targets,) if built.teacher_forcing else ()
        loss = diarization_loss(built(samples, None, *reference), targets, alpha=0.0)
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
        schedule.step()
    with torch.inference_mode():
        errors = count_errors(built.eval()(samples), targets)
        if isinstance(built, EendGla):  # each of its clips has few speakers, so blocks decided nothing yet
            blocks = built.diarize_blocks(*built.encode(samples, None))
            for logits, target in zip(built.join_blocks(blocks, len(samples), targets.shape[1]), targets, strict=True):
                joined = functional.pad(logits, (0, max(3 - logits.shape[1], 0)), value=-1e4)[None]
                assert count_errors(SpeakerOutput(joined, None, joined), target[None]).der < 0.02
    print(f"{model}: DER {100 * errors.der:.2f} %, loss {loss.total.item():.4f}")
    assert errors.der < 0.02
