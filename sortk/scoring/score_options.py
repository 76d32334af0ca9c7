"""Settings of stage 8. Nothing heavy is imported here, so that a recipe can be read quickly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sortk.options import Options, option
from sortk.scoring.normalizers import NormalizerName


@dataclass(frozen=True)
class ScoreOptions(Options):
    """Settings of stage 8; the paper's are collar 0.25 for CALLHOME and CH109, 0 for DIHARD3, with overlap."""

    sets: tuple[str, ...] = ("test",)  # splits of the corpus, and of the simulated sessions
    collar: float = 0.25  # seconds on each side of a reference boundary that are not scored
    skip_overlap: bool = False
    normalizer: NormalizerName = "lower"  # of words, on both sides
    # Word errors as LibriSpeechMix counts them (Table 3 of the paper), in place of WER and cpWER (Table 2).
    mixtures: bool = option(False, hash_only_if_set=True)
    # free: the ASR writes what it prefers, as in the paper; valid: only texts with speaker tokens where its level has
    # them.
    decoding: Literal["free", "valid"] = "free"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.sets:
            raise ValueError("sets must name at least one split to score")
