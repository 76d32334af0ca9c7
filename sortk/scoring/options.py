"""Settings of stage 8 and of `sortk tables`. Nothing heavy is imported here, so that a recipe is read quickly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from sortk.formats.files import quote
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
    # For a table: variants that are run before its rows, which start from their models (`init` names the folder).
    first: dict[str, tuple[str, ...]] = option(default_factory=dict)
    about: str = ""  # what the results show and what they do not, for RESULTS.md
    runtime: Literal["", "tiny", "base"] = ""  # size of models whose run time is compared with the paper's; empty: not

    @property
    def rows(self) -> dict[str, dict[str, RowOptions]]:
        """Return the tables by name: each name of a row, and what it shows."""
        return {"table1": self.table1, "table2": self.table2, "table3": self.table3}

    def __post_init__(self) -> None:
        super().__post_init__()
        for table in self.first.keys() - self.rows.keys():
            raise ValueError(f"first must name table1, table2 or table3, got {quote(table)}")
        for name, row in self.table1.items():
            if row.words:
                raise ValueError(f"table1: {name}: Table 1 shows who speaks when; give rttm, not words")
        for table, rows in (("table2", self.table2), ("table3", self.table3)):
            for name, row in rows.items():
                if row.rttm:
                    raise ValueError(f"{table}: {name}: this table shows words; give words, not rttm")
