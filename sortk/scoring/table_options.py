"""Which rows of the paper's tables a recipe has. Nothing heavy is imported here: a recipe is read quickly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sortk.options import Options, option


@dataclass(frozen=True)
class RowOptions(Options):
    """What a row shows: variants of the recipe that are trained and scored, or what another system has found.

    A row that is just a string, or a list of strings, names variants.
    """

    SHORTHAND: ClassVar[str] = "variants"

    variants: tuple[str, ...] = ()  # "" is the recipe itself; of several, such as other seeds, the table shows the mean
    rttm: str = ""  # Table 1: another system's RTTM, a file or a folder
    words: str = ""  # Tables 2 and 3: another system's SegLST, STM or CTM, a file or a folder

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.variants) + bool(self.rttm) + bool(self.words) != 1:
            raise ValueError("a row needs either variants, or rttm, or words")


@dataclass(frozen=True)
class TableOptions(Options):
    """For each table: the name of a row, as the paper has it if it is the paper's -> what the row shows."""

    # who speaks when: DER without and with postprocessing
    table1: dict[str, RowOptions] = option(default_factory=dict)
    table2: dict[str, RowOptions] = option(default_factory=dict)  # who said what: WER and cpWER
    table3: dict[str, RowOptions] = option(default_factory=dict)  # the same in mixtures: LibriSpeechMix's WER

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, row in self.table1.items():
            if row.words:
                raise ValueError(f"table1: {name}: Table 1 shows who speaks when; give rttm, not words")
        for table, rows in (("table2", self.table2), ("table3", self.table3)):
            for name, row in rows.items():
                if row.rttm:
                    raise ValueError(f"{table}: {name}: this table shows words; give words, not rttm")
