"""Whether weights are those of a model."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


def check_weights(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """ValueError that names the first tensor that is missing, superfluous, of another shape or kind, or not finite.

    `expected` is the state of a model; on the meta device, with shapes but no numbers, is enough.
    """
    for name, tensor in expected.items():
        if name not in found:
            raise ValueError(f"tensor {name!r} is missing")
        other = found[name]
        if other.shape != tensor.shape:
            raise ValueError(f"tensor {name!r} is {_shape(other)}, but the config asks for {_shape(tensor)}")
        if other.is_floating_point() != tensor.is_floating_point() or other.is_complex():
            raise ValueError(f"tensor {name!r} holds {other.dtype}, not {tensor.dtype}")
        if other.is_floating_point() and not other.is_meta and not other.isfinite().all():
            raise ValueError(f"tensor {name!r} holds NaN or infinite numbers: the file is damaged")
    for name in found:
        if name not in expected:
            raise ValueError(f"tensor {name!r} is not part of this model")


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "a single number"
