"""What a model is built from: options that JSON can hold, and weights under their own or published names, checked."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from sortk.options import read_options

AnyOptions = TypeVar("AnyOptions")
MAX_SIZE = 1 << 16  # of anything that is counted in a config; no model comes near


class ModelOptions:
    """Base of the options of models, which are frozen dataclasses."""

    WHAT: ClassVar[str]  # what is built from them, for errors: "a Canary"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Return the inverse of `to_json`; a field that is left out has its default."""
        return options_from_json(cls, fields, cls.WHAT)


def options_from_json(options: type[AnyOptions], fields: Any, what: str) -> AnyOptions:
    """Return the options; fields that are left out have their defaults. `what` it is, for errors."""
    try:
        return read_options(options, fields, "options")
    except ValueError as error:
        raise ValueError(f"not the options of {what}: {error}") from None


def check_sizes(options: Any, *names: str) -> None:
    """Raise ValueError if one of these sizes is not from 1 to MAX_SIZE."""
    for name in names:
        value = getattr(options, name)
        if not 1 <= value <= MAX_SIZE:
            raise ValueError(f"{name} must be from 1 to {MAX_SIZE}, got {value!r:.40}")


# ---------------------------------------------------------------------------------------------------------------------
# Weights

Names = Mapping[str, tuple[str, Mapping[str, str]]]
"""Prefix of our names -> prefix of theirs, and their names of the modules and parameters after it. A name without a
matching prefix is the same in both."""


def name_tensor(ours: str, names: Names) -> str:
    """Return their name of a tensor of ours, such as transformer.layers.0.attention.query.weight."""
    for prefix, (theirs, inner) in names.items():
        if ours.startswith(prefix):
            rest = ours.removeprefix(prefix)
            module, _, parameter = rest.rpartition(".")
            for name, other in inner.items():
                if module == name or module.endswith(f".{name}"):
                    return f"{theirs}{module.removesuffix(name)}{other}.{parameter}"
                if rest.endswith(f".{name}"):
                    return f"{theirs}{rest.removesuffix(name)}{other}"
            return theirs + rest
    return ours


def take_weights(
    expected: Mapping[str, Tensor], names: Names, tensors: Mapping[str, Tensor], absent: Collection[str] = ()
) -> dict[str, Tensor]:
    """Return `tensors` under our names. ValueError if they are not those of the model whose state is `expected`.

    `absent` are their names of tensors that their model does without: ours get the identity matrix, or zeros.
    """
    theirs = {name_tensor(ours, names): ours for ours in expected}
    absent = [name for name in absent if name not in tensors]
    check_weights(
        {name: expected[ours] for name, ours in theirs.items()},
        {**tensors, **{name: expected[theirs[name]] for name in absent}},
    )
    weights = {}
    for name, ours in theirs.items():
        shape, dtype = expected[ours].shape, expected[ours].dtype
        if name in tensors:
            weights[ours] = tensors[name].to(dtype)
        else:
            weights[ours] = torch.eye(*shape) if len(shape) == 2 else torch.zeros(shape)
    return weights


def check_weights(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """Raise ValueError for the first tensor that is missing, superfluous, of another shape or type, or not finite.

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
