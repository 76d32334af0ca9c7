from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from sortk.models.frames import SpeakerOutput
from sortk.training.losses import (
    DiarizationLoss,
    arrival_order,
    best_permutation,
    diarization_loss,
    eda_loss,
    hybrid_loss,
    permute_speakers,
    pil_loss,
    sort_loss,
)
from sortk.training.small_scale import alignment_losses
from sortk.training.targets import NO_SPAN

NVIDIA = Path(__file__).parents[1] / "fixtures" / "nemo" / "losses.npz"


def random_batch(n_speakers: int, seed: int = 0, n_samples: int = 3, n_frames: int = 20) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (n_samples, n_frames, n_speakers)
    return 3 * torch.randn(shape, generator=generator), (torch.rand(shape, generator=generator) < 0.4).float()


def brute_force_pil(logits: Tensor, targets: Tensor) -> Tensor:
    """(frames, speakers) both: the definition."""
    permutations = itertools.permutations(range(targets.shape[1]))
    losses = [functional.binary_cross_entropy_with_logits(logits, targets[:, list(p)]) for p in permutations]
    return torch.stack(losses).min()


# ---------------------------------------------------------------------------------------------------------------------
# By hand


def test_losses_by_hand() -> None:
    # Speaker 1 arrives first, so the outputs should be (y1, y0); these say the reverse, with p = 3/4 where it is right.
    targets = torch.tensor([[[0.0, 1.0], [1.0, 1.0], [1.0, 0.0]]])
    logits = (2 * targets - 1) * math.log(3)
    right, wrong = -math.log(3 / 4), -math.log(1 / 4)
    # In the order of arrival frame 0 and 2 are wrong for both speakers, frame 1 is right for both.
    assert sort_loss(logits, targets).item() == pytest.approx((4 * wrong + 2 * right) / 6)
    assert pil_loss(logits, targets).item() == pytest.approx(right)
    loss = hybrid_loss(logits, targets, alpha=0.25)
    assert loss.total.item() == pytest.approx(0.25 * (4 * wrong + 2 * right) / 6 + 0.75 * right)
    assert loss.sort.item() == pytest.approx((4 * wrong + 2 * right) / 6)
    assert loss.pil.item() == pytest.approx(right)
    assert loss.permutation.tolist() == [[0, 1]]  # PIL pairs output 0 with speaker 0, who arrived second
    assert loss.arrival_accuracy.item() == 0.0


@pytest.mark.parametrize(
    ("activity", "order"),
    [
        ([[0, 1], [1, 1]], [1, 0]),
        ([[1, 0], [0, 1]], [0, 1]),
        ([[0, 1, 1], [1, 0, 0]], [1, 2, 0]),  # 1 and 2 start together: the order of their indices
        ([[0, 0, 0], [0, 0, 1]], [2, 0, 1]),  # 0 and 1 never speak: last, in the order of their indices
        ([[0, 0], [0, 0]], [0, 1]),
        ([[0, 0.2], [1, 0]], [1, 0]),  # soft targets: active is whatever is not 0
    ],
)
def test_arrival_order_by_hand(activity: list[list[float]], order: list[int]) -> None:
    targets = torch.tensor([activity], dtype=torch.float32)
    assert arrival_order(targets).tolist() == [order]
    assert arrival_order((targets > 0).long()).tolist() == [order]


def test_arrival_order_does_not_look_into_padding() -> None:
    targets = torch.tensor([[[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]], [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]]])
    assert arrival_order(targets, torch.tensor([3, 1])).tolist() == [[1, 0], [0, 1]]


def test_each_sample_counts_the_same_whatever_its_length() -> None:
    logits, targets = random_batch(3)
    lengths = [20, 7, 1]
    for loss in (sort_loss, pil_loss):
        alone = [loss(logits[b : b + 1, :n], targets[b : b + 1, :n]) for b, n in enumerate(lengths)]
        torch.testing.assert_close(loss(logits, targets, torch.tensor(lengths)), torch.stack(alone).mean())
    together = hybrid_loss(logits, targets, torch.tensor(lengths))
    parts = [hybrid_loss(logits[b : b + 1, :n], targets[b : b + 1, :n]) for b, n in enumerate(lengths)]
    for field in ("total", "sort", "pil", "arrival_accuracy"):
        expected = torch.stack([getattr(part, field) for part in parts]).mean()
        torch.testing.assert_close(getattr(together, field), expected)
    assert together.permutation.tolist() == [part.permutation[0].tolist() for part in parts]


@pytest.mark.parametrize("lengths", [None, [20, 7, 1]])
def test_what_training_runs_is_the_stated_losses(lengths: list[int] | None) -> None:
    """hybrid_loss at alpha 1 and 0, bit by bit, and in between their mixture; the gradients, too."""
    logits, targets = random_batch(4)
    logits.requires_grad_()
    valid = None if lengths is None else torch.tensor(lengths)

    def gradient(loss: Tensor) -> Tensor:
        return torch.autograd.grad(loss, logits, retain_graph=True)[0]

    sort, pil = sort_loss(logits, targets, valid), pil_loss(logits, targets, valid)
    for stated, alpha in ((sort, 1.0), (pil, 0.0)):
        run = hybrid_loss(logits, targets, valid, alpha).total
        assert torch.equal(run, stated) and torch.equal(gradient(run), gradient(stated))
    mixed = hybrid_loss(logits, targets, valid, 0.3).total
    torch.testing.assert_close(gradient(mixed), 0.3 * gradient(sort) + 0.7 * gradient(pil))


def test_padding_has_no_gradient() -> None:
    logits, targets = random_batch(3)
    logits.requires_grad_()
    hybrid_loss(logits, targets, torch.tensor([20, 7, 0])).total.backward()
    assert logits.grad is not None and logits.grad.isfinite().all()
    assert logits.grad[1, :7].all() and not logits.grad[1, 7:].any() and not logits.grad[2].any()


def test_order_is_right_when_pil_agrees_with_arrival() -> None:
    targets = torch.tensor([[[0.0, 1.0, 0.0], [1.0, 1.0, 0.0]]]).repeat(2, 1, 1)  # arrival 1, 0; 2 never speaks
    sorted_logits = 20 * permute_speakers(targets, torch.tensor([[1, 0, 2]] * 2)) - 10
    assert hybrid_loss(sorted_logits, targets).arrival_accuracy.item() == 1.0
    sorted_logits[1] = sorted_logits[1].flip(1)
    assert hybrid_loss(sorted_logits, targets).arrival_accuracy.item() == 0.5
    # A model that knows nothing has all permutations equal: the order of arrival is given the benefit of the doubt.
    assert hybrid_loss(torch.zeros(2, 2, 3), targets).arrival_accuracy.item() == 1.0


def test_targets_may_be_truth_values() -> None:
    logits, targets = random_batch(3)
    expected, loss = hybrid_loss(logits, targets), hybrid_loss(logits, targets.bool())
    assert torch.equal(loss.total, expected.total) and torch.equal(
        arrival_order(targets.bool()), arrival_order(targets)
    )
    torch.testing.assert_close(sort_loss(logits, targets.bool()), expected.sort)
    torch.testing.assert_close(pil_loss(logits, targets.bool()), expected.pil)


def test_confident_outputs_have_finite_losses() -> None:
    targets = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])
    loss = hybrid_loss(1000 * (2 * targets - 1), targets)
    assert loss.total.item() == 0.0
    assert hybrid_loss(-1000 * (2 * targets - 1), targets).sort.item() == pytest.approx(1000)


# ---------------------------------------------------------------------------------------------------------------------
# Against the definition


@pytest.mark.parametrize("n_speakers", range(1, 7))
def test_pil_is_the_minimum_over_all_permutations(n_speakers: int) -> None:
    for seed in range(5 if n_speakers < 6 else 1):
        logits, targets = random_batch(n_speakers, seed)
        expected = torch.stack([brute_force_pil(z, y) for z, y in zip(logits, targets, strict=True)]).mean()
        torch.testing.assert_close(pil_loss(logits, targets), expected)
        torch.testing.assert_close(hybrid_loss(logits, targets).pil, expected)


@pytest.mark.parametrize("n_speakers", [7, 8, 16, 20])
def test_the_solver_finds_a_hidden_permutation(n_speakers: int) -> None:
    _, targets = random_batch(n_speakers, n_frames=200)
    hidden = torch.stack([torch.randperm(n_speakers) for _ in targets])
    logits = 8 * permute_speakers(targets, hidden) - 4 + torch.randn(targets.shape)
    loss = hybrid_loss(logits, targets)
    assert loss.permutation.tolist() == hidden.tolist()
    torch.testing.assert_close(
        loss.pil, functional.binary_cross_entropy_with_logits(logits, permute_speakers(targets, hidden))
    )


def test_both_solvers_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    affinity = torch.randn(50, 5, 5)
    enumerated = best_permutation(affinity)
    monkeypatch.setattr("sortk.training.losses.MAX_ENUMERATED", 0)
    assert torch.equal(best_permutation(affinity), enumerated)


@given(st.integers(0, 10_000), st.integers(1, 5))
def test_what_must_hold_for_any_batch(seed: int, n_speakers: int) -> None:
    logits, targets = random_batch(n_speakers, seed, n_frames=6)
    loss = hybrid_loss(logits, targets)
    assert loss.pil <= loss.sort + 1e-6
    torch.testing.assert_close(loss.total, 0.5 * loss.sort + 0.5 * loss.pil)
    torch.testing.assert_close(loss.sort, sort_loss(logits, targets))
    torch.testing.assert_close(loss.pil, pil_loss(logits, targets))
    # The order of the columns in the targets is arbitrary: no loss may depend on it, unless two start together.
    shuffled = targets[:, :, torch.randperm(n_speakers)]
    torch.testing.assert_close(hybrid_loss(logits, shuffled).pil, loss.pil)
    firsts = [tuple(t.argmax(dim=0).tolist()) for t in targets]
    if all(len(set(first)) == n_speakers for first in firsts):
        torch.testing.assert_close(hybrid_loss(logits, shuffled).total, loss.total)


@pytest.mark.parametrize("n_speakers", [2, 4, 7])
def test_gradients_are_those_of_the_loss(n_speakers: int) -> None:
    logits, targets = random_batch(n_speakers, n_samples=2, n_frames=4)
    logits = logits.double().requires_grad_()
    for lengths in (None, torch.tensor([4, 3])):
        assert torch.autograd.gradcheck(lambda z: sort_loss(z, targets, lengths), logits)  # noqa: B023
        assert torch.autograd.gradcheck(lambda z: pil_loss(z, targets, lengths), logits)  # noqa: B023
        assert torch.autograd.gradcheck(lambda z: hybrid_loss(z, targets, lengths, 0.3).total, logits)  # noqa: B023


# ---------------------------------------------------------------------------------------------------------------------
# Against NVIDIA


def read_nvidia(n_speakers: int) -> dict[str, Tensor]:
    with np.load(NVIDIA) as arrays:
        return {key[3:]: torch.from_numpy(arrays[key]) for key in arrays if key.startswith(f"s{n_speakers}_")}


@pytest.mark.parametrize("n_speakers", [3, 4, 5])
def test_the_order_of_arrival_is_nvidias(n_speakers: int) -> None:
    """Unless speakers start together: then NVIDIA takes the order that fits the outputs best, we the indices'."""
    theirs = read_nvidia(n_speakers)
    ordered = permute_speakers(theirs["labels"], arrival_order(theirs["labels"], theirs["lens"]))
    untied = [b for b, y in enumerate(theirs["labels"]) if len(set(y.argmax(dim=0).tolist())) == n_speakers]
    assert len(untied) == 2
    for b in untied:
        n_valid = int(theirs["lens"][b])
        assert torch.equal(ordered[b, :n_valid], theirs["ats_targets"][b, :n_valid])


@pytest.mark.parametrize("n_speakers", [3, 4, 5])
def test_losses_and_gradients_are_nvidias(n_speakers: int) -> None:
    """Its PIL goes by the sum of label * prediction, which in these items finds the permutation of least cross-entropy.
    Its mean is over all valid frames of the batch: that of our samples, weighted by their lengths."""
    theirs = read_nvidia(n_speakers)
    logits, lengths = theirs["logits"].requires_grad_(), theirs["lens"]
    targets = theirs["ats_targets"]  # sorted, ties as NVIDIA has them: arrival_order leaves them so
    shares = (lengths / lengths.sum()).tolist()
    losses = [hybrid_loss(logits[b, None], targets[b, None], lengths[b, None]) for b in range(len(shares))]

    def weighted(field: str) -> Tensor:
        return torch.stack([share * getattr(loss, field) for share, loss in zip(shares, losses, strict=True)]).sum()

    torch.testing.assert_close(weighted("sort"), theirs["ats_loss"])
    torch.testing.assert_close(weighted("pil"), theirs["pil_loss"])
    (gradient,) = torch.autograd.grad(weighted("total"), logits)
    torch.testing.assert_close(gradient, theirs["grad_logits_hybrid"], atol=1e-8, rtol=1e-4)
    for b, n_valid in enumerate(lengths.tolist()):
        paired = permute_speakers(targets[b, None], losses[b].permutation)
        assert torch.equal(paired[0, :n_valid], theirs["pil_targets"][b, :n_valid])


# ---------------------------------------------------------------------------------------------------------------------
# EEND-EDA


def test_eda_trains_the_outputs_of_present_speakers_only() -> None:
    # Two of three speakers are present, so outputs 0 and 1 are trained; the third says nonsense at no cost.
    targets = torch.tensor([[[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]])
    logits = torch.tensor([[[math.log(3), -math.log(3), 50.0], [-math.log(3), math.log(3), 50.0]]])
    existence = torch.zeros(1, 4)  # probability 1/2 for all; the first three are counted, the fourth is not
    loss = eda_loss(logits, existence, targets)
    assert loss.pil.item() == pytest.approx(-math.log(3 / 4))
    assert loss.permutation.tolist() == [[1, 0, 2]]
    assert loss.existence is not None and loss.existence.item() == pytest.approx(math.log(2))
    assert loss.total.item() == pytest.approx(loss.pil.item() + math.log(2))

    perfect = torch.tensor([[50.0, 50.0, -50.0, 50.0]])
    assert eda_loss(logits, perfect, targets).existence.item() == pytest.approx(0, abs=1e-6)  # type: ignore[union-attr]


def test_eda_without_any_speaker() -> None:
    loss = eda_loss(torch.randn(1, 5, 3), torch.zeros(1, 4), torch.zeros(1, 5, 3))
    assert loss.pil.item() == 0.0
    assert loss.existence is not None and loss.existence.item() == pytest.approx(math.log(2))


def test_the_model_decides_on_the_loss() -> None:
    logits, targets = random_batch(3)
    embeddings, lengths = torch.zeros(3, 20, 8), torch.tensor([20, 10, 5])
    plain = diarization_loss(SpeakerOutput(logits, lengths, embeddings), targets, alpha=0.2)
    torch.testing.assert_close(plain.total, hybrid_loss(logits, targets, lengths, 0.2).total)
    counted = diarization_loss(SpeakerOutput(logits, lengths, embeddings, torch.zeros(3, 4)), targets)
    assert counted.existence is not None


# ---------------------------------------------------------------------------------------------------------------------
# Devices, precision, bad input


def all_tensors(loss: DiarizationLoss) -> list[Tensor]:
    return [loss.total, loss.sort, loss.pil, loss.permutation, loss.arrival_accuracy]


@pytest.mark.usefixtures("fake_cuda")
@pytest.mark.parametrize("n_speakers", range(1, 7))
def test_up_to_six_speakers_all_of_it_is_on_the_device(n_speakers: int) -> None:
    with FakeTensorMode(), torch.device("cuda"):
        shape = (2, 30, n_speakers)
        loss = hybrid_loss(torch.randn(shape), torch.zeros(shape), torch.full((2,), 20))
    assert {tensor.device.type for tensor in all_tensors(loss)} == {"cuda"}


def test_half_precision_chooses_the_same_permutation() -> None:
    logits, targets = random_batch(4, n_samples=20)
    logits = (0.01 * logits).bfloat16()  # so close together that a sum in bfloat16 could not tell them apart
    with torch.autocast("cpu", torch.bfloat16):
        loss = hybrid_loss(logits, targets)
    expected = hybrid_loss(logits.float(), targets)
    assert loss.total.dtype == torch.float32
    torch.testing.assert_close(loss.total, expected.total)
    assert torch.equal(loss.permutation, expected.permutation)


@pytest.mark.parametrize("n_speakers", [3, 8])
def test_nan_is_left_to_the_caller(n_speakers: int) -> None:
    logits, targets = random_batch(n_speakers)
    logits[0, 0, 0] = math.nan
    assert hybrid_loss(logits, targets).total.isnan()


def test_errors_are_sentences() -> None:
    logits, targets = random_batch(3)
    for loss in (sort_loss, pil_loss, hybrid_loss):
        with pytest.raises(ValueError, match=r"logits of shape \(3, 20, 3\) do not fit targets of shape \(3, 19, 3\)"):
            loss(logits, targets[:, 1:])
    with pytest.raises(ValueError, match="alpha must be from 0 to 1, got 2"):
        hybrid_loss(logits, targets, alpha=2)


def test_the_loss_of_an_alignment_is_that_of_the_attention_beside_the_word() -> None:
    """Frames 2 to 3 are the word's; one frame before and after counts, too: 0.1 + 0.2 + 0.3 + 0.2 of the attention."""
    attention = torch.tensor([0.05, 0.1, 0.2, 0.3, 0.2, 0.15]).log().expand(1, 3, 6).clone().requires_grad_()
    spans = torch.tensor([[[2, 4], [0, 1], [NO_SPAN, NO_SPAN]]])
    losses = alignment_losses(attention, spans)
    assert losses[0].tolist() == pytest.approx([-math.log(0.8), -math.log(0.15), 0.0], abs=1e-6)
    losses.sum().backward()
    assert attention.grad is not None and attention.grad.isfinite().all()
