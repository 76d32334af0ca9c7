"""The systems that Table 1 compares with: each one learns eight short sessions by heart."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from sortk.models.eend_gla import EendGla
from sortk.models.frames import SpeakerOutput
from sortk.training.data import Batch, BatchLoader
from sortk.training.diarizer import DiarizerTask, build_diarizer, count_errors
from sortk.training.options import BatchLimit, TrainDiarOptions
from sortk.training.targets import NO_SPEAKER

PITCHES = (110, 190, 330)  # Hz: the voices are hums


def make_batch(n_sessions: int = 8, n_frames: int = 100) -> Batch:
    """Return two or three voices a session, with overlaps; the voices have numbers, 0 to 2."""
    rng = np.random.default_rng(0)
    time = np.arange(n_frames * 1280) / 16000
    samples = 0.01 * rng.standard_normal((n_sessions, len(time)))
    targets = np.zeros((n_sessions, n_frames, 3), np.float32)
    speakers = np.full((n_sessions, n_frames), NO_SPEAKER)
    for row in range(n_sessions):
        voices = rng.permutation(3)[: 2 + row % 2]
        start = 5
        for turn in range(6):
            end = min(start + rng.integers(12, 18), n_frames)
            targets[row, start:end, voices[turn % len(voices)]] = 1
            start = min(end + rng.integers(-4, 5), n_frames - 1)
        for voice, pitch in enumerate(PITCHES):
            samples[row] += 0.1 * np.sign(np.sin(2 * np.pi * pitch * time)) * targets[row, :, voice].repeat(1280)
        speakers[row] = np.where(targets[row].sum(axis=1) == 1, targets[row].argmax(axis=1), NO_SPEAKER)
        by_arrival = np.argsort([column.argmax() if column.any() else n_frames for column in targets[row].T])
        targets[row] = targets[row][:, by_arrival]
    return Batch(
        [f"session {row}" for row in range(n_sessions)],
        n_sessions,
        torch.from_numpy(samples.astype(np.float32)),
        None,
        torch.from_numpy(targets),
        torch.from_numpy(speakers),
    )


LEARNERS = [
    ("aed-eend", 40),
    ("aed-eend-ee", 40),
    ("eend-gla", 125),
    ("eend-vc", 100),
]


@pytest.mark.parametrize(("model", "steps"), LEARNERS)
def test_it_learns_eight_sessions_by_heart(model: str, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    built, _ = build_diarizer(TrainDiarOptions(model=model, size="tiny", n_speakers=3, global_speakers=True))
    batch = make_batch()
    samples, targets = batch.samples, batch.targets
    task = DiarizerTask(built, 0.0, BatchLoader([], BatchLimit(samples=8), 0), n_identities=len(PITCHES))
    features = built.features(samples)  # they take half of a step, and are the same in each
    monkeypatch.setattr(built.features, "forward", lambda samples, lengths=None: features)
    optimizer = torch.optim.AdamW(task.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    task.train()
    for _ in range(steps):
        loss, _ = task(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.inference_mode():
        errors = count_errors(built.eval()(samples), targets)
        if isinstance(built, EendGla):  # each of its clips has few speakers, so blocks decided nothing yet
            blocks = built.diarize_blocks(*built.encode(samples, None))
            for logits, target in zip(built.join_blocks(blocks, len(samples), targets.shape[1]), targets, strict=True):
                joined = functional.pad(logits, (0, max(3 - logits.shape[1], 0)), value=-1e4)[None]
                assert count_errors(SpeakerOutput(joined, None, joined), target[None]).der < 0.02
    print(f"{model}: DER {100 * errors.der:.2f} %, loss {loss.item():.4f}")
    assert errors.der < 0.02
