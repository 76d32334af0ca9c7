"""Which rows of the paper's tables a recipe has. Nothing heavy is imported here: a recipe is read quickly."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class TableOptions:
    """For each table: the name of a row in the paper -> the variant that measures it; "" is the recipe itself.

    Of several, such as trainings that differ by chance only, Table 1 shows the mean.
    """

    # who speaks when: DER without and with postprocessing
    table1: dict[str, tuple[str, ...]] = field(default_factory=dict)
    table2: dict[str, str] = field(default_factory=dict)  # who said what: WER and cpWER
    table3: dict[str, str] = field(default_factory=dict)  # the same in mixtures: WER as LibriSpeechMix counts it
