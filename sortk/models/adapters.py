"""Adapters: a few new weights beside a pretrained model, which stays as it is (Houlsby et al., 2019).

    y + W_up relu(W_down norm(y))

follows the output y of every attention and of the last feed-forward layer of each layer, before it is added to the
layer's input. W_up is 0 at first: a model with new adapters computes what it did without.

The adapters stand apart from the model that they adapt. They listen to its layers (forward hooks), so its weights keep
their names, and whole modules are frozen or trained.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from sortk.models.canary import Canary, DecoderLayer
from sortk.models.fastconformer import ConformerLayer
from sortk.models.transformer import TransformerLayer

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
        for name, part in _find_adapted(asr).items():
            adapter = Adapter(_find_width(part), bottleneck)
            self[name.replace(".", "-")] = adapter  # a module's name cannot have dots
            part.register_forward_hook(_Hook(adapter))


class _Hook:
    """Puts an adapter behind a module."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter

    def __call__(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        adapted: Tensor = self._adapter(output)
        return adapted


def _find_adapted(asr: Canary) -> dict[str, nn.Module]:
    return {
        f"{name}.{part}": getattr(layer, part)
        for name, layer in asr.named_modules()
        for part in ADAPTED.get(type(layer), ())
    }


def _find_width(part: nn.Module) -> int:
    """d_model of an attention or feed-forward layer: what its last linear layer gives out."""
    *_, last = (module for module in part.modules() if isinstance(module, nn.Linear))
    return last.out_features
