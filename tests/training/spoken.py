"""Sessions in which hums are words: small enough for a model to learn by heart in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sortk.formats import audio, rttm, seglst
from sortk.formats.sst import build_sst
from sortk.models.canary import CanaryOptions
from sortk.models.fastconformer import FastConformerOptions
from sortk.models.features import FeatureOptions
from sortk.models.sortformer import SortformerOptions
from sortk.models.transformer import TransformerOptions
from sortk.records import Segment, Session

HERTZ = {"one": 150, "two": 500, "three": 1700}
WORD_SECONDS = 0.32
ENCODER = FastConformerOptions(
    d_model=32, n_layers=1, n_heads=2, subsampling_channels=8, scale_input=False, dropout=0.0
)
FEATURES = FeatureOptions(n_mels=16)
SMALL_ASR = CanaryOptions(
    max_tokens=60,
    features=FEATURES,
    encoder=ENCODER,
    decoder=TransformerOptions(d_model=32, n_layers=2, n_heads=2, d_inner=64, dropout=0.0, pre_norm=True),
)
SMALL_DIARIZER = SortformerOptions(
    n_speakers=2,
    dropout=0.0,
    features=FEATURES,
    encoder=ENCODER,
    transformer=TransformerOptions(d_model=16, n_layers=1, n_heads=2, d_inner=32, dropout=0.0),
)


def make_samples(folder: Path, n_sessions: int, seed: int = 0) -> list[Session]:
    """Three words each, said by ann, bob, or both; manifest lines as stage 4 writes them."""
    rng = np.random.default_rng(seed)
    sessions = []
    for n in range(n_sessions):
        session_id = f"s{n}"
        names = [str(name) for name in rng.choice(list(HERTZ), 3)]
        speakers = [str(name) for name in rng.choice(["ann", "bob"], 3)]
        words = [
            Segment(session_id, speaker, round(WORD_SECONDS * k, 3), round(WORD_SECONDS * (k + 1), 3), name)
            for k, (name, speaker) in enumerate(zip(names, speakers, strict=True))
        ]
        time = np.arange(round(16000 * WORD_SECONDS)) / 16000
        samples = np.concatenate([0.3 * np.sin(2 * np.pi * HERTZ[name] * time) for name in names])
        samples = samples + 0.01 * rng.standard_normal(len(samples))
        audio.write_flac(folder / f"{session_id}.flac", samples.astype(np.float32))
        rttm.write(folder / f"{session_id}.rttm", words)
        seglst.write(folder / f"{session_id}.json", words)
        sessions.append(
            Session(
                session_id,
                folder / f"{session_id}.flac",
                duration=3 * WORD_SECONDS,
                text=build_sst(words),
                rttm_path=folder / f"{session_id}.rttm",
                seglst_path=folder / f"{session_id}.json",
            )
        )
    return sessions
