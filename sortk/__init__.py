"""sortk: Sortformer, whole. Start reading at `stages.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from sortk.inference.diarize import Diarizer

__version__ = "0.1.0"


def load_diarizer(path: str | Path | None = None, **settings: Any) -> Diarizer:
    """Return a diarizer from a model folder or a `.nemo` file: call it with a path, or with samples, and get segments.

    Without a path it is the small one that comes with sortk (docs/model-card.md).
    `settings` are those of `sortk.inference.diarize.load`: options, device, int8.
    """
    from sortk.inference.diarize import load  # noqa: PLC0415 - torch takes seconds, and most commands need none

    return load(path, **settings)
