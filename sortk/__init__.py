"""sortk: Sortformer, whole. Start reading at `stages.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from sortk.inference.diarize import Diarizer
    from sortk.inference.pieces import Transcriber

__version__ = "0.1.0"


def load_diarizer(path: str | Path | None = None, **settings: Any) -> Diarizer:
    """Return a diarizer from a model folder or a `.nemo` file: call it with a path, or with samples, and get segments.

    Without a path it is the small one that comes with sortk (docs/model-card.md).
    `settings` are those of `sortk.inference.diarize.load`: options, device, int8.
    """
    from sortk.inference.diarize import load  # noqa: PLC0415 - torch takes seconds, and most commands need none

    return load(path, **settings)


def load_transcriber(
    asr: str | Path, diarizer: str | Path | Diarizer | None = None, **settings: Any
) -> Transcriber[Any]:
    """Return a transcriber: call it with a path, or with samples, and get the words with their speakers.

    `asr` and `diarizer` are model folders or `.nemo` files. `settings` are those of
    `sortk.inference.transcribe.load_transcriber`: options, device, diarize_options.
    """
    from sortk.inference.transcribe import load_transcriber as load  # noqa: PLC0415 - as above

    return load(asr, diarizer, **settings)
