"""Sound of which everything is known."""

from __future__ import annotations

import numpy as np

RATE = 16000


def tone(seconds: float, level: float = 0.1, hertz: float = 220.0) -> np.ndarray:
    time = np.arange(round(seconds * RATE)) / RATE
    return (level * np.sqrt(2) * np.sin(2 * np.pi * hertz * time)).astype(np.float32)
