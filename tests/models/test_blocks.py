from __future__ import annotations

import numpy as np
import torch

from sortk.models.blocks import cluster, cut_blocks, paste_blocks


def cosines(*degrees: float) -> np.ndarray:
    angles = np.radians(degrees)
    return np.cos(angles[:, None] - angles)


def test_clusters_by_hand() -> None:
    assert cluster(cosines(0, 90, 5, 95), np.array([0, 0, 1, 1]), 0.75) == [0, 1, 0, 1]
    # 0 and 5 are alike, but of one block: each keeps to itself, and 10, of another block, joins the nearer one.
    assert cluster(cosines(0, 5, 10), np.array([0, 0, 1]), 0.75) == [0, 1, 1]
    # Mean linkage: 0 and 30 join (cos 0.87); of 61 the mean cosine to both is (0.48 + 0.86) / 2 = 0.67, too little.
    assert cluster(cosines(0, 30, 61), np.array([0, 1, 2]), 0.75) == [0, 0, 1]
    assert cluster(cosines(0, 30, 61), np.array([0, 1, 2]), 0.65) == [0, 0, 0]
    assert cluster(np.zeros((0, 0)), np.zeros(0, np.int64), 0.75) == []


def test_a_cluster_inherits_what_its_members_must_not_join() -> None:
    """Distances on a line: 0.0 and 0.1 (chunks 0 and 1) join first; 0.3, also of chunk 0, must then stay alone."""
    places = np.array([0.0, 0.1, 0.3])
    distance = np.abs(places[:, None] - places)
    assert cluster(-distance, np.array([0, 1, 0]), -1.0) == [0, 0, 1]
    assert cluster(-distance, np.array([0, 1, 2]), -1.0) == [0, 0, 0]
    # (0.3 + 0.2) / 2 = 0.25 between the pair and the third
    assert cluster(-distance, np.array([0, 1, 2]), -0.24) == [0, 0, 1]


def test_frames_are_cut_and_pasted() -> None:
    frames = torch.arange(10.0).view(2, 5, 1)
    cut = cut_blocks(frames, torch.tensor([5, 2]), 2)
    assert cut.frames[:, :, 0].tolist() == [[0, 1], [2, 3], [4, 0], [5, 6]]
    assert cut.clip.tolist() == [0, 0, 0, 1] and cut.first.tolist() == [0, 2, 4, 0]
    assert cut.lengths.tolist() == [2, 2, 1, 2]
    pasted = paste_blocks(cut.frames, cut.kept, 2, 5)
    assert pasted[:, :, 0].tolist() == [[0, 1, 2, 3, 4], [5, 6, 0, 0, 0]]
