"""NVIDIA's golden numbers of Parakeet, multitalker Parakeet and Canary flash: those of tests/fixtures, and all of them
beside the checkout."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from torch import Tensor

FIXTURES = Path(__file__).parent / "fixtures"
SHARED = Path(__file__).parents[2] / "shared" / "fixtures"
CLIPS = ("a_3p3", "b_10", "c_31p7")


def find(name: str, complete: bool = False) -> Path:
    """A file of the fixtures; `complete`: not one that was cut to be committed."""
    own = [FIXTURES / "nemo2" / name, FIXTURES / "nemo" / name]
    for path in ([] if complete else own) + [SHARED / "nemo2" / name, SHARED / "nemo" / name]:
        if path.exists():
            return path
    pytest.skip(f"needs {name} of ../shared/fixtures")


def clip(name: str) -> Tensor:
    """(samples,)"""
    samples, sample_rate = soundfile.read(find(f"{name}.wav"), dtype="float32")
    assert sample_rate == 16000
    return torch.from_numpy(samples)


@functools.cache  # it takes a third of a second, and no test changes them
def arrays(name: str, complete: bool = True) -> dict[str, Tensor]:
    with np.load(find(f"{name}.npz", complete)) as loaded:
        return {key: torch.from_numpy(loaded[key]) for key in loaded}


def results(name: str, complete: bool = True) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(find(f"{name}.json", complete).read_text(encoding="utf-8"))
    return loaded


def words_of(result: dict[str, Any]) -> list[tuple[str, float, float]]:
    """As a recogniser gives them: without words that have no letters."""
    return [(w["word"], round(w["start"], 3), round(w["end"], 3)) for w in result["word"] if w["word"]]
