"""Numbers that a page quotes from a recipe's RESULTS.md are those of RESULTS.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "recipes").glob("*/README.md"))]
LINK = re.compile(r"\]\(([^)]*RESULTS\.md)\)")
RATE = re.compile(r"(?<![\d.])\d+\.\d+(?=(?:\s*|&nbsp;)%|\s*\|)")  # 12.34 % in a sentence, or 12.34 in a cell


def find_wrong(page: Path, text: str) -> Iterator[str]:
    """Yield each number that stands in a paragraph or table with a link to a RESULTS.md that does not have it."""
    for paragraph in re.split(r"\n\s*\n", text):
        for link in LINK.findall(paragraph):
            known = set(re.findall(r"\d+\.\d+", (page.parent / link).read_text(encoding="utf-8")))
            yield from (f"{rate} is not in {link}" for rate in RATE.findall(paragraph) if rate not in known)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_quoted_numbers_are_those_of_the_results(page: Path) -> None:
    assert not list(find_wrong(page, page.read_text(encoding="utf-8")))


def test_a_wrong_number_is_found(tmp_path: Path) -> None:
    (tmp_path / "RESULTS.md").write_text("| hybrid | 12.34 | 5.60 |\n", encoding="utf-8")
    text = "As [measured](RESULTS.md): 12.34 % and 5.6 %, of 3 runs, with sortk 1.2.\n\nElsewhere 9.99 %."
    assert list(find_wrong(tmp_path / "page.md", text)) == ["5.6 is not in RESULTS.md"]
    table = "[RESULTS.md](RESULTS.md)\n| hybrid | 12.34 | 7.77 |"
    assert list(find_wrong(tmp_path / "page.md", table)) == ["7.77 is not in RESULTS.md"]
