"""The paper's tables as RESULTS.md has them: worked out by hand, and the paper's numbers held against its source."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sortk.scoring import paper_tables as paper
from sortk.scoring.paper_tables import Measured, PaperTables, format_tables, read_scores, summarize

PAPER = Path(__file__).parents[3] / "shared" / "paper.tex"


def der(postprocessing: str, by_speakers: dict[str, float | None], overall: float | None) -> dict[str, Any]:
    return {
        "system": "Sortformer",
        "test_set": "test",
        "postprocessing": postprocessing,
        "settings": {"collar": 0.25, "skip_overlap": False},
        "overall": {"der": overall},
        "by_speakers": {n: {"der": rate} for n, rate in by_speakers.items()},
    }


def wer(metric: str, rate: float | None, system: str = "1: no supervision") -> dict[str, Any]:
    settings = {"metric": metric, "normalizer": "lower"}
    return {
        "system": system,
        "test_set": "test",
        "decoding": "free",
        "settings": settings,
        "overall": {metric: rate},
    }


def scores(**results: list[dict[str, Any]]) -> dict[str, Any]:
    return summarize({"commit": "abc", "date": "2026-01-01", "der": [], "wer": []} | results)


def write(**tables: list[Measured]) -> str:
    notes = ["6: no canary-1b.nemo"]
    page = PaperTables(
        "mine", "def", "2026-02-02", "2 cores (X), no GPU", tables, notes, "Little.", first=["run a", "run b"]
    )
    return format_tables(page)


def cells(text: str, start: str) -> list[str]:
    [line] = [line for line in text.splitlines() if line.startswith(f"| {start} |")]
    return line.strip("| ").split(" | ")


def test_table_1_by_number_of_speakers_without_and_with_postprocessing() -> None:
    entries = [der("none", {"2": 0.1234, "3": 0.2}, 0.1617), der("tuned", {"2": 0.1, "3": None}, 0.1)]
    text = write(
        table1=[
            Measured(
                "Sortformer-PIL",
                "pil",
                scores(der=entries),
                {"train-diar": 90.0, "score": 30.0},
                False,
                (3,),
                (1.25,),
                "sortk run",
            )
        ]
    )
    header = cells(text, "system")
    assert header[:5] == ["system", "postprocessing", "test 2 spk", "test 3 spk", "test all"]
    assert header[5] == "paper: DIHARD III, up to 4 spk" and header[-1] == "paper: CH109"
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| Sortformer-PIL")]
    assert rows[0] == ["Sortformer-PIL", "none", "12.34", "20.00", "16.17", "18.33", "7.28", "11.57", "18.80", "5.66"]
    # Three speakers were not scored: that is no zero.
    assert rows[1] == ["Sortformer-PIL", "tuned", "10.00", "-", "10.00", "17.04", "6.94", "10.30", "17.52", "6.89"]
    assert "- test: collar 0.25, skip_overlap False" in text
    assert cells(text, "pil") == ["pil", "3", "1.2", "1.5", "0.5", "2.0", "abc, 2026-01-01", "`sortk run`"]
    assert "## What this shows, and what it does not\n\nLittle.\n" in text
    assert "commit def, 2 cores (X), no GPU" in text and "- 6: no canary-1b.nemo" in text
    assert "were not measured here" in text
    assert "Some runs start from models of others, so first run `run a`, then `run b`.\n" in text


def test_table_2_with_a_row_that_the_paper_has_not_and_a_baseline_without_speakers() -> None:
    rows = [
        Measured("baseline", "b", scores(wer=[wer("wer", 0.5, "baseline: x"), wer("cpwer", 0.9, "baseline: x")])),
        Measured("2", "", scores(wer=[wer("wer", 0.25), wer("cpwer", 0.375)])),
        Measured("mine", "m", scores(wer=[wer("wer", None)])),
    ]
    text = write(table2=rows)
    assert cells(text, "system")[2:4] == ["test WER", "test cpWER"]
    assert "- test: metric wer, normalizer lower, decoding free" in text
    assert cells(text, "baseline")[2:] == ["50.00", "-", "26.93", "-", "21.81", "-"]
    assert cells(text, "2")[2:] == ["25.00", "37.50", "20.08", "28.17", "18.65", "22.22"]
    assert cells(text, "mine")[2:] == ["-"] * 6
    assert "Table 1" not in text and cells(text, "the recipe itself")[-3] == "0.0"


def test_table_3() -> None:
    entries = [wer("wer", 0.02) | {"test_set": f"test-{n}mix"} for n in (1, 2, 3)]
    text = write(table3=[Measured("MS-Canary", "ms", scores(wer=entries))])
    assert cells(text, "MS-Canary")[2:] == ["2.00", "2.00", "2.00", "2.74", "6.55", "12.14"]


def test_scores_that_are_none_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "scores.json"
    path.write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="scores.json is damaged .*; run stage 8 again"):
        read_scores(path)
    path.write_text(json.dumps({"der": []}), encoding="utf-8")
    with pytest.raises(ValueError, match="is not a file of results; run stage 8 again"):
        read_scores(path)


def test_columns_fit_the_numbers() -> None:
    for rows, columns in (
        (paper.TABLE_1.values(), paper.TABLE_1_COLUMNS),
        (paper.TABLE_2.values(), paper.TABLE_2_COLUMNS),
        (paper.TABLE_3.values(), paper.TABLE_3_COLUMNS),
    ):
        assert {len(numbers) for numbers in rows} == {len(columns)}


@pytest.mark.skipif(not PAPER.is_file(), reason="the shared data are not on this machine")
def test_the_numbers_are_those_of_the_paper() -> None:
    text = PAPER.read_text(encoding="utf-8")
    tables = [part.partition(r"\end{table")[0] for part in text.split(r"\begin{table")[1:]]
    by_label = {match[1]: table for table in tables if (match := re.search(r"\\label\{table:(\w+)\}", table))}
    rows = [*paper.TABLE_1.values(), *paper.TABLE_2.values(), *paper.TABLE_3.values()]
    sources = ["sd"] * len(paper.TABLE_1) + ["msasr_results"] * len(paper.TABLE_2) + ["lsm_eval"] * len(paper.TABLE_3)
    for numbers, label in zip(rows, sources, strict=True):
        # The numbers of a row in their order, with whatever marks between them; "-" where there is none.
        parts = ["-" if number is None else re.escape(f"{number:g}") + "0?" for number in numbers]
        assert re.search(r"\D" + r"[^0-9\n]*".join(parts) + r"\D", _plain(by_label[label])), (label, numbers)


def _plain(table: str) -> str:
    """One line per row of a LaTeX table, numbers of \\multirow as they stand."""
    rows = table.replace("\n", " ").split(r"\\")
    return "\n".join(re.sub(r"\\multirow\{\d\}\{\*\}\{([^{}]*)\}", r"\1", row) for row in rows)


def seconds(scored: float, wrong: float) -> dict[str, float]:
    return {"scored_seconds": scored, "miss_seconds": wrong, "false_alarm_seconds": 0.0, "confusion_seconds": 0.0}


def test_table_1_says_how_sure_a_rate_is() -> None:
    entry = der("none", {"2": 0.1}, 0.1)
    entry["sessions"] = {"a": seconds(10, 0.5), "b": seconds(10, 1.5)}  # a quarter of the drawn sets is a alone
    text = write(table1=[Measured("Sortformer-PIL", "pil", scores(der=[entry]))])
    assert cells(text, "system")[2:4] == ["test 2 spk", "test 95 %"]
    assert cells(text, "Sortformer-PIL")[2:4] == ["10.00", "5.00 to 15.00"]


def test_runs_of_one_row_are_their_mean_and_its_interval_covers_runs() -> None:
    first, second = der("none", {"2": 0.1, "3": 0.3}, 0.2), der("none", {"2": 0.2, "3": None}, 0.25)
    # All sessions are alike. Of two drawn runs, a quarter of the draws has only the first (10 %) and a quarter only the
    # second (30 %): 20 +- 10 %, times sqrt(2).
    first["sessions"] = {"a": seconds(10, 1), "b": seconds(10, 1)}
    second["sessions"] = {"a": seconds(10, 3), "b": seconds(10, 3)}
    rows = [Measured("Sortformer-PIL", name, scores(der=[run])) for name, run in (("pil", first), ("again", second))]
    text = write(table1=[*rows, Measured("EEND-SA", "sa", scores(der=[der("none", {"2": 0.4, "3": 0.5}, 0.45)]))])
    assert cells(text, "system")[2:7] == ["test 2 spk", "test 3 spk", "test all", "test 95 %", "test each run"]
    assert cells(text, "Sortformer-PIL")[2:7] == ["15.00", "-", "22.50", "5.86 to 34.14", "20.00, 25.00"]
    assert cells(text, "EEND-SA")[2:7] == ["40.00", "50.00", "45.00", "-", "-"]
    assert "rates are their mean" in text and cells(text, "again")[0] == "again"


def words(errors: int, n_words: int, n_speakers: int = 2) -> dict[str, int]:
    return {"errors": errors, "words": n_words, "ref_speakers": n_speakers}


def test_runs_of_a_row_of_table_2() -> None:
    """cpWER has the mean, that of each run, its interval, and that by number of speakers; WER the mean alone."""
    runs = []
    for rate, errors in ((0.2, (2, 2)), (0.4, (4, 4))):
        entry = wer("cpwer", rate)
        entry["sessions"] = {"a": words(errors[0], 10), "b": words(errors[1], 10, 3)}
        entry["by_speakers"] = {"2": {"cpwer": rate}, "3": {"cpwer": rate / 2}}
        runs.append(scores(wer=[wer("wer", rate / 4), entry]))
    text = write(table2=[Measured("2", name, run) for name, run in zip(("", "again"), runs, strict=True)])
    assert cells(text, "system")[2:8] == [
        "test WER",
        "test cpWER",
        "test 2 spk cpWER",
        "test 3 spk cpWER",
        "test cpWER 95 %",
        "test cpWER each run",
    ]
    assert cells(text, "2")[2:8] == ["7.50", "30.00", "30.00", "15.00", "15.86 to 44.14", "20.00, 40.00"]
    assert "rates are their mean" in text and cells(text, "again")[0] == "again"


def test_the_order_of_arrival_is_a_table() -> None:
    def arrival(right: int) -> dict[str, Any]:
        tally = {"n": 4, "right": right}
        none = {"n": 0, "right": 0}
        pairs = {"up to 0.25 s": tally, "up to 0.5 s": none, "up to 1 s": none, "more than 1 s": tally}
        return {"pairs": pairs, "sessions": {"n": 2, "right": 1}, "by_speakers": {}}

    entries = [der("none", {"2": 0.1}, 0.1) | {"arrival": arrival(right)} for right in (1, 3)]
    rows = [Measured("Sort", name, scores(der=[entry])) for name, entry in zip("ab", entries, strict=True)]
    text = write(table1=rows).partition("order of arrival")[2]
    assert cells(text, "Sort") == ["Sort", "50.00 (8)", "-", "-", "50.00 (8)", "50.00 (16)", "50.00 (4)"]
