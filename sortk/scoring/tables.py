"""Tables of scores: for a terminal, as Markdown, or as CSV. Cells are text; `percent` writes a rate in one way."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from typing import Literal, get_args

TableFormat = Literal["text", "md", "csv"]

NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?%?|inf|-|")  # cells that are aligned to the right


def percent(rate: float) -> str:
    """0.1234 -> 12.34; infinite if errors have nothing to be a fraction of."""
    return f"{100 * rate:.2f}" if math.isfinite(rate) else "inf"


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]], style: TableFormat = "text") -> str:
    """Return the table, without a line break at its end; every row must be as long as the header."""
    if any(len(row) != len(header) for row in rows):
        raise ValueError("a row of the table has not as many cells as its header")
    if style == "csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([header, *rows])
        return text.getvalue().removesuffix("\n")
    # Columns, the first one aside, in which all cells are numbers.
    columns = [[row[index] for row in rows] for index in range(len(header))]
    is_numeric = [index > 0 and all(map(NUMBER.fullmatch, cells)) for index, cells in enumerate(columns)]
    if style == "md":
        rule = ["---:" if right else "---" for right in is_numeric]
        # The id of a session may hold what ends a cell, or opens an HTML tag.
        lines = [
            [" ".join(cell.replace("|", "\\|").replace("<", "&lt;").split()) for cell in row] for row in (header, *rows)
        ]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in (lines[0], rule, *lines[1:]))
    if style == "text":
        widths = [max(map(len, [name, *cells])) for name, cells in zip(header, columns, strict=True)]
        aligned = [
            [cell.rjust(n) if right else cell.ljust(n) for cell, n, right in zip(row, widths, is_numeric, strict=True)]
            for row in (header, *rows)
        ]
        return "\n".join("  ".join(cells).rstrip() for cells in aligned)
    raise ValueError(f"unknown format {style!r} of a table; formats: {', '.join(get_args(TableFormat))}")
