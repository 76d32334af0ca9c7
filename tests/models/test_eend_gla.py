from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from sortk.formats.model_folder import save_model
from sortk.inference.load import load_diarizer
from sortk.models.blocks import Blocks
from sortk.models.eend_gla import SIZES, EendGla, EendGlaOptions, spread_frames
from sortk.models.transformer import TransformerOptions
from sortk.training.losses import diarization_loss, pairwise_loss

SMALL = TransformerOptions(d_model=16, n_layers=1, n_heads=4, d_inner=32, dropout=0.0)
OPTIONS = EendGlaOptions(n_speakers=3, block=8, transformer=SMALL)


def test_size_of_table_1() -> None:
    with torch.device("meta"):
        model = EendGla(SIZES["eend-gla", "base"])
    assert sum(weight.numel() for weight in model.parameters()) / 1e6 == pytest.approx(10.7, abs=0.05)


def unit(*degrees: float) -> np.ndarray:
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def test_the_pairwise_loss_by_hand() -> None:
    vectors = torch.from_numpy(unit(0, 60, 0))
    speakers, clips = torch.tensor([0, 0, 1]), torch.tensor([0, 0, 0])
    # Speaker 0 with itself: cosines 1, 0.5, 0.5, 1 cost 0.25 on average; 1 with itself 0; 0 with 1, twice: cosines 1
    # and 0.5 above the margin 0.5 cost 0.25 on average. The mean over the four pairs of speakers is 0.75 / 4.
    torch.testing.assert_close(pairwise_loss(vectors, speakers, clips), torch.tensor(0.1875))
    # In another clip, 1 is not compared: (0.25 + 0) / 2.
    torch.testing.assert_close(pairwise_loss(vectors, speakers, torch.tensor([0, 0, 1])), torch.tensor(0.125))


def test_blocks_are_joined_by_their_vectors() -> None:
    """Two blocks of 2 frames with two speakers, swapped, and a third block with a new speaker."""
    vectors = torch.from_numpy(np.stack([unit(0, 90), unit(91, 1), unit(180, 45)]))
    logits = torch.tensor([[[1.0, 2.0]] * 2, [[3.0, 4.0]] * 2, [[5.0, 6.0]] * 2])
    existence = torch.tensor([[1.0, 1.0, -1.0], [1.0, 1.0, -1.0], [1.0, -1.0, -1.0]])
    blocks = Blocks(torch.zeros(3).long(), torch.tensor([0, 2, 4]), torch.tensor([2, 2, 1]), logits, vectors, existence)
    [joined] = EendGla(OPTIONS).join_blocks(blocks, 1, 5)
    off = -1e4
    assert joined.tolist() == [[1, 2, off], [1, 2, off], [4, 3, off], [4, 3, off], [off, off, 5]]


def test_more_speakers_than_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    model = EendGla(OPTIONS).eval()
    monkeypatch.setattr(model, "join_blocks", lambda blocks, n, n_frames: [torch.ones(n_frames, 5)] * n)
    assert model(torch.randn(2, 32000)).speaker_probs.shape == (2, 25, 5)
    monkeypatch.setattr(model, "join_blocks", lambda blocks, n, n_frames: [torch.ones(n_frames, 2)] * n)
    assert model(torch.randn(2, 32000)).speaker_probs.shape == (2, 25, 3)


def test_frames_are_spread_by_hand() -> None:
    frames = torch.arange(5.0)[None, :, None].expand(2, 5, 1)
    # The keys of frames 0 to 4 are 0, 0.618, 0.236, 0.854 and 0.472.
    found = spread_frames(frames, torch.tensor([5, 3]))[:, :, 0].tolist()
    assert found == [[0, 2, 4, 1, 3], [0, 2, 1, 3, 4]]


def test_a_padded_batch_equals_each_clip_alone() -> None:
    torch.manual_seed(0)
    model, samples, lengths = EendGla(OPTIONS).eval(), torch.randn(3, 32000), [32000, 21000, 400]
    frames, n_frames = model.encode(samples, torch.tensor(lengths))
    together = model.diarize_blocks(frames, n_frames)
    whole = model(samples, torch.tensor(lengths)).speaker_probs
    for row, n in enumerate(lengths):
        alone = model.diarize_blocks(*model.encode(samples[row : row + 1, :n], None))
        own = together.clip == row
        torch.testing.assert_close(together.vectors[own], alone.vectors, atol=1e-5, rtol=0)
        torch.testing.assert_close(together.existence[own], alone.existence, atol=1e-5, rtol=0)
        probs = model(samples[row : row + 1, :n]).speaker_probs[0]
        torch.testing.assert_close(whole[row, : len(probs), : probs.shape[1]], probs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_every_weight_learns(precision: torch.dtype) -> None:
    model = EendGla(OPTIONS)
    targets = (torch.rand(2, 25, 3) < 0.3).float()
    with torch.autocast("cpu", torch.bfloat16, enabled=precision is torch.bfloat16):
        loss = diarization_loss(model(torch.randn(2, 32000), torch.tensor([32000, 20000])), targets)
    loss.total.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


def test_it_is_read_from_a_folder(tmp_path: Path) -> None:
    assert EendGlaOptions.from_json(json.loads(json.dumps(OPTIONS.to_json()))) == OPTIONS
    model, samples = EendGla(OPTIONS).eval(), torch.randn(1, 16000)
    save_model(tmp_path, model.state_dict(), {"model": "eend-gla", "options": OPTIONS.to_json()})
    torch.testing.assert_close(load_diarizer(tmp_path).model(samples).speaker_probs, model(samples).speaker_probs)
    with pytest.raises(ValueError, match="not the options of an EEND-GLA"):
        EendGlaOptions.from_json({"layers": 3})
