from __future__ import annotations

import pytest
import torch
from torch import nn

from sortk.training.optimizer import (
    N_ITERATIONS,
    RMS_RATIO,
    A,
    B,
    C,
    Muon,
    build_optimizer,
    orthogonalize,
    stacked_matrices,
)
from sortk.training.options import LoopOptions


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4)])
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return self.head(x)


def test_singular_values_become_about_one() -> None:
    matrices = torch.randn(3, 20, 8, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalize(matrices))
    assert values.min() > 0.6 and values.max() < 1.3
    u, _, v = torch.linalg.svd(matrices, full_matrices=False)
    cosine = torch.cosine_similarity(orthogonalize(matrices).flatten(1), (u @ v).flatten(1))
    assert cosine.min() > 0.97


@pytest.mark.parametrize("shape", [(64, 16), (16, 64), (16, 16), (24, 16)])
def test_short_cuts_change_nothing(shape: tuple[int, int]) -> None:
    """The iteration as it is written down: X <- a X + (b X X^T + c (X X^T)^2) X."""
    generator = torch.Generator().manual_seed(4)
    matrices = torch.randn(3, *shape, generator=generator) * torch.logspace(0, -3, shape[1])
    plain = (matrices / matrices.norm(dim=(1, 2), keepdim=True)).double()
    for _ in range(N_ITERATIONS):
        square = plain @ plain.mT
        plain = A * plain + (B * square + C * square @ square) @ plain
    torch.testing.assert_close(orthogonalize(matrices).double(), plain, atol=2e-5, rtol=0)


def test_matrices_of_layers_are_muons_and_the_rest_adamws() -> None:
    torch.manual_seed(0)
    model, twin = Stack(), Stack()
    twin.load_state_dict(model.state_dict())
    optimizers = Muon(model, 0.01, 0.1), torch.optim.AdamW(twin.parameters(), lr=0.01, weight_decay=0.1)
    x = torch.randn(5, 6)
    before = model.layers[2].weight.detach().clone()
    for network, optimizer in zip((model, twin), optimizers, strict=True):
        network(x).square().sum().backward()
        optimizer.step()
    assert torch.allclose(model.head.weight, twin.head.weight) and torch.allclose(model.head.bias, twin.head.bias)
    assert torch.allclose(model.layers[0].bias, twin.layers[0].bias)
    update = model.layers[2].weight - before * (1 - 0.01 * 0.1)
    gradient = model.layers[2].weight.grad
    assert gradient is not None  # the first momentum has its direction; the longer side is 6
    assert torch.allclose(update, -0.01 * RMS_RATIO * 6**0.5 * orthogonalize(gradient[None])[0], atol=1e-5)


def test_frozen_and_unused_weights_stay() -> None:
    model = Stack()
    model.layers[0].requires_grad_(False)
    optimizer = Muon(model, 0.01, 0.1)
    frozen, unused = model.layers[0].weight.clone(), model.head.weight.clone()
    model.layers[1](torch.randn(2, 6)).sum().backward()
    optimizer.step()
    assert torch.equal(frozen, model.layers[0].weight) and torch.equal(unused, model.head.weight)


def test_which_matrices() -> None:
    assert [tuple(weight.shape) for weight in stacked_matrices(Stack())] == [(6, 6), (6, 6), (4, 6)]


@pytest.mark.parametrize("shape", [(64, 64), (64, 256), (256, 64)])
def test_in_bfloat16_muon_takes_nearly_the_same_step(shape: tuple[int, int]) -> None:
    """Momenta of real trainings have a few large singular values and many small ones."""
    generator = torch.Generator().manual_seed(0)
    rows, columns = shape
    gradient = torch.randn(rows, 12, generator=generator) @ torch.randn(12, columns, generator=generator)
    gradient += 1e-2 * torch.randn(shape, generator=generator)
    steps = []
    for precision in ("float32", "bfloat16"):
        model = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(columns, rows, bias=False)])})
        (weight,) = model.parameters()
        before, weight.grad = weight.detach().clone(), gradient
        build_optimizer(model, LoopOptions(optimizer="muon", learning_rate=0.1, precision=precision)).step()
        assert weight.dtype == torch.float32
        steps.append(weight.detach() - before)
    exact, rounded = steps
    assert not torch.equal(exact, rounded)
    assert torch.linalg.matrix_norm(rounded, 2) < 1.1 * torch.linalg.matrix_norm(exact, 2)
    assert torch.cosine_similarity(exact.flatten(), rounded.flatten(), 0) > 0.9
