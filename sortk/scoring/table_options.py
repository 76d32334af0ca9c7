"""Which rows of the paper's tables a recipe has. Nothing heavy is imported here: a recipe is read quickly."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class TableOptions:
    """For each table: the name of a row in the paper -> the variant that measures it; "" is the recipe itself."""

    table1: dict[str, str] = field(default_factory=dict)  # who speaks when: DER without and with postprocessing
    table2: dict[str, str] = field(default_factory=dict)  # who said what: WER and cpWER
    table3: dict[str, str] = field(default_factory=dict)  # the same in mixtures: WER as LibriSpeechMix counts it
