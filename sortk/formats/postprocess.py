"""postprocess.toml: the six parameters by which posteriors become segments (stage 7 finds them).

    onset = 0.64
    offset = 0.74
    pad_onset = 0.06
    pad_offset = 0.0
    min_duration_on = 0.1
    min_duration_off = 0.15

`inference/postprocess.py` applies them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import isfinite
from pathlib import Path

from sortk.formats.files import FormatError, atomic_text, quote
from sortk.formats.objects import read_toml

POSTPROCESS_NAME = "postprocess.toml"  # in a model folder: how its posteriors are best read

MAX_SECONDS = 3600.0


@dataclass(frozen=True)
class Postprocess:
    """How posteriors become segments; the defaults decide at one half and change nothing else."""

    onset: float = 0.5  # a speaker's speech begins above this posterior
    offset: float = 0.5  # and ends below this one
    pad_onset: float = 0.0  # seconds that a segment begins earlier
    pad_offset: float = 0.0  # seconds that it ends later
    min_duration_on: float = 0.0  # seconds; shorter segments are dropped
    min_duration_off: float = 0.0  # seconds; shorter gaps are filled

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not isfinite(value):
                raise ValueError(f"{name} must be a finite number, got {value}")
        for name in ("onset", "offset"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, got {getattr(self, name)}")
        for name in ("min_duration_on", "min_duration_off"):
            if not 0 <= getattr(self, name) <= MAX_SECONDS:
                raise ValueError(f"{name} must be from 0 to {MAX_SECONDS:g}, got {getattr(self, name)}")
        for name in ("pad_onset", "pad_offset"):
            if abs(getattr(self, name)) > MAX_SECONDS:
                raise ValueError(f"{name} must be from -{MAX_SECONDS:g} to {MAX_SECONDS:g}, got {getattr(self, name)}")


PRESETS = {
    "none": Postprocess(),
    # What NVIDIA found for its first hybrid-loss model.
    "callhome": Postprocess(0.53, 0.49, 0.23, 0.01, 0.42, 0.34),
    "dihard3": Postprocess(0.64, 0.74, 0.06, 0.0, 0.10, 0.15),
}


def read_postprocess(path: Path) -> Postprocess:
    """Return the parameters; what is not in the file keeps its default, and the table `notes` is for people."""
    table = read_toml(path)
    table.pop("notes", None)
    known = [field.name for field in fields(Postprocess)]
    for name, value in table.items():
        if name not in known:
            raise FormatError(path, None, f"unknown key {quote(name)}; keys: {', '.join(known)}, and the table notes")
        if type(value) not in (int, float):
            raise FormatError(path, None, f"{name} is {quote(value)}; it must be a number")
    try:
        return Postprocess(**table)
    except (ValueError, OverflowError) as error:
        raise FormatError(path, None, str(error)) from None


def write_postprocess(path: Path, options: Postprocess, notes: Mapping[str, str | float] | None = None) -> None:
    """Write the parameters; `notes` say where the values come from (trials, DER before and after, ...)."""
    with atomic_text(path) as file:
        file.writelines(f"{name} = {float(value)!r}\n" for name, value in asdict(options).items())
        if notes:
            file.write("\n[notes]\n")
            # A JSON string is a TOML string, and Python writes numbers as TOML does.
            file.writelines(f"{name} = {json.dumps(value)}\n" for name, value in notes.items())
