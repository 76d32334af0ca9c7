"""NVIDIA's golden numbers: the small ones lie in tests/fixtures, all of them beside the checkout."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from nemo_names import LEFT_OUT, rename
from torch import Tensor

from sortk.models.sortformer import Sortformer, SortformerOptions

TESTS = Path(__file__).parents[1]
FOLDERS = (TESTS / "fixtures" / "nemo", TESTS.parents[1] / "shared" / "fixtures" / "nemo")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """These tensors are small: threads would only wait for each other."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


@pytest.fixture(scope="session")
def nemo_file() -> Callable[[str], Path]:
    def find(name: str) -> Path:
        for folder in FOLDERS:
            if (folder / name).exists():
                return folder / name
        pytest.skip(f"needs {name} of ../shared/fixtures/nemo")

    return find


@pytest.fixture(scope="session")
def clip(nemo_file: Callable[[str], Path]) -> Callable[[str], Tensor]:
    """(1, samples) of a fixture's wav file."""

    def read(name: str) -> Tensor:
        samples, sample_rate = soundfile.read(nemo_file(f"{name}.wav"), dtype="float32")
        assert sample_rate == 16000
        return torch.from_numpy(samples)[None]

    return read


@pytest.fixture(scope="session")
def golden(nemo_file: Callable[[str], Path]) -> Callable[[str], dict[str, Tensor]]:
    def read(name: str) -> dict[str, Tensor]:
        with np.load(nemo_file(f"{name}.npz")) as arrays:
            return {key: torch.from_numpy(arrays[key]) for key in arrays}

    return read


@pytest.fixture(scope="session")
def nemo_weights(nemo_file: Callable[[str], Path]) -> Callable[[str], dict[str, Tensor]]:
    def read(name: str) -> dict[str, Any]:
        with tarfile.open(nemo_file(f"{name}.nemo")) as tar:
            member = next(member for member in tar.getmembers() if member.name.endswith("model_weights.ckpt"))
            file = tar.extractfile(member)
            assert file is not None
            weights: dict[str, Any] = torch.load(io.BytesIO(file.read()), weights_only=True)
        return weights

    return read


@pytest.fixture(scope="session")
def nvidia_model(nemo_weights: Callable[[str], dict[str, Tensor]]) -> Callable[[str, SortformerOptions], Sortformer]:
    """A Sortformer with NVIDIA's weights; that they map one to one is part of the test."""

    def build(name: str, options: SortformerOptions) -> Sortformer:
        weights = nemo_weights(name)
        renamed = {rename(key): value for key, value in weights.items() if not key.startswith(LEFT_OUT)}
        model = Sortformer(options)
        model.load_state_dict(renamed, strict=True)
        return model.eval()

    return build
