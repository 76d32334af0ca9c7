"""Synthetic speech whose every property is known: bursts of tone are words, silence is silence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tones import RATE, tone

from sortk.formats import audio
from sortk.records import Source, Word


@pytest.fixture
def make_sources(tmp_path: Path) -> Callable[..., list[Source]]:
    """Speakers who say `words` of 0.3 s with 0.1 s between them, after 0.2 s of silence; with or without word times."""

    def make(n_speakers: int = 4, utterances: int = 6, words: int = 5, timed: bool = True) -> list[Source]:
        sources = []
        for n in range(n_speakers):
            path = tmp_path / "sources" / f"spk{n}.flac"
            word = np.concatenate([tone(0.3, 0.05 * (n + 1), 150.0 + 40 * n), np.zeros(RATE // 10, np.float32)])
            utterance = np.concatenate([np.zeros(RATE // 5, np.float32), np.tile(word, words)])
            audio.write_flac(path, np.tile(utterance, utterances))
            seconds = len(utterance) / RATE
            times = tuple(Word(f"w{i}", 0.2 + 0.4 * i, 0.5 + 0.4 * i) for i in range(words))
            for i in range(utterances):
                text = " ".join(word.text for word in times)
                name = f"spk{n}"
                sources.append(
                    Source(f"{name}-{i}", path, i * seconds, seconds, name, text, times if timed else (), split="train")
                )
        return sources

    return make
