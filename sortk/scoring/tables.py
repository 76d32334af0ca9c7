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
    """The table, without a line break at its end; every row must be as long as the header."""
    if any(len(row) != len(header) for row in rows):
        raise ValueError("a row of the table has not as many cells as its header")
    if style == "text":
        return _format_text(header, rows)
    if style == "md":
        return _format_markdown(header, rows)
    if style == "csv":
        return _format_csv(header, rows)
    raise ValueError(f"unknown format {style!r} of a table; formats: {', '.join(get_args(TableFormat))}")


def _format_text(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    columns = list(zip(header, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    numeric = _find_numeric(header, rows)
    lines = []
    for row in (header, *rows):
        cells = zip(row, widths, numeric, strict=True)
        lines.append("  ".join(cell.rjust(width) if right else cell.ljust(width) for cell, width, right in cells))
    return "\n".join(line.rstrip() for line in lines)


def _format_markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---:" if right else "---" for right in _find_numeric(header, rows)]
    lines = [[_escape(cell) for cell in row] for row in (header, *rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (lines[0], rule, *lines[1:]))


def _escape(cell: str) -> str:
    # The id of a session may hold what ends a cell, or opens an HTML tag.
    return " ".join(cell.replace("|", "\\|").replace("<", "&lt;").split())


def _format_csv(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue().removesuffix("\n")


def _find_numeric(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[bool]:
    """Columns, the first one aside, in which all cells are numbers."""
    columns = [[row[index] for row in rows] for index in range(len(header))]
    return [index > 0 and all(map(NUMBER.fullmatch, cells)) for index, cells in enumerate(columns)]
