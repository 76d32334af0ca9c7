"""`sortk score der` as a user meets it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sortk.cli import main


def score_der(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["score", "der", *map(str, arguments)])


def failed(result: Result) -> str:
    assert result.exit_code == 1, result.output
    [line] = result.stderr.splitlines()
    assert line.startswith("sortk: ") and result.stdout == ""
    return line


def write(path: Path, *segments: tuple[str, float, float, str]) -> Path:
    lines = (
        f"SPEAKER {name} 1 {start} {end - start} <NA> <NA> {who} <NA> <NA>\n" for name, start, end, who in segments
    )
    path.write_text("".join(lines))
    return path


@pytest.fixture
def ref(tmp_path: Path) -> Path:
    return write(tmp_path / "ref.rttm", ("m1", 0, 10, "a"), ("m1", 10, 20, "b"), ("m2", 0, 20, "a"))


@pytest.fixture
def hyp(tmp_path: Path) -> Path:
    return write(tmp_path / "hyp.rttm", ("m1", 0, 12, "x"), ("m1", 12, 20, "y"), ("m2", 0, 15, "x"))


@pytest.mark.parametrize("scorer", ["fast", "pyannote", "nist"])
def test_text(ref: Path, hyp: Path, scorer: str) -> None:
    result = score_der("--ref", ref, "--hyp", hyp, "--collar", 0, "--by-speakers", "--scorer", scorer)
    assert result.exit_code == 0, result.output
    first, _, header, *rows = result.stdout.splitlines()
    assert first.startswith("collar 0 s on each side, overlap scored, UEM none: ") and scorer in first
    assert header.split()[0] == "session"
    cells = {row.split("  ")[0]: row.split() for row in rows if row}
    # m1: 2 of 20 s confused; x and a share 10 of 12 s, y and b 8 of 10. m2: 5 of 20 s missed.
    assert cells["m1"][1:] == ["20.00", "0.00", "0.00", "10.00", "10.00", "18.33", "2", "2", "100.00"]
    assert cells["m2"][1:] == ["20.00", "25.00", "0.00", "0.00", "25.00", "25.00", "1", "1", "100.00"]
    assert cells["OVERALL"][1:] == ["40.00", "12.50", "0.00", "5.00", "17.50", "20.56", "3", "3", "100.00"]
    assert cells["OVERALL 1-speaker"][2:7] == ["20.00", "25.00", "0.00", "0.00", "25.00"]
    assert "DER of OVERALL, 95 % interval: 10.00 to 25.00 (1000 draws of 2 sessions)" in rows[-1]
    assert result.stderr == ""


def test_json_has_fractions(ref: Path, hyp: Path, tmp_path: Path) -> None:
    path = tmp_path / "der.json"
    assert score_der("--ref", ref, "--hyp", hyp, "--collar", 0, "--json", path).exit_code == 0
    found = json.loads(path.read_text())
    settings = {
        "collar": 0.0,
        "skip_overlap": False,
        "scorer": "fast",
        "uem": "none: extent of reference and hypothesis",
    }
    assert found["settings"] == settings
    assert found["overall"]["der"] == 0.175 and found["overall"]["speaker_count_accuracy"] == 1
    assert found["overall"]["der_interval_95"] == [0.1, 0.25]
    assert found["sessions"]["m2"]["miss"] == 0.25 and found["sessions"]["m2"]["miss_seconds"] == 5
    assert found["by_speakers"]["2"]["der"] == 0.1
    assert found["overall"]["regions"]["overlap"]["der"] is None  # there is none


def test_markdown_and_csv(ref: Path, hyp: Path) -> None:
    markdown = score_der("--ref", ref, "--hyp", hyp, "--collar", 0, "--format", "md").stdout
    assert "| OVERALL | 40.00 | 12.50 | 0.00 | 5.00 | 17.50 | 20.56 | 3 | 3 | 100.00 |" in markdown
    result = score_der("--ref", ref, "--hyp", hyp, "--collar", 0, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [row["DER %"] for row in rows][:3] == ["10.00", "25.00", "17.50"]
    assert "collar 0 s" in result.stderr


def test_what_does_not_fit_is_told(ref: Path, tmp_path: Path) -> None:
    hyp = write(tmp_path / "hyp.rttm", ("m1", 0, 20, "x"), ("m3", 0, 1, "x"), ("m1", 3, 3, "y"))
    result = score_der("--ref", ref, "--hyp", hyp, "--collar", 0)
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        "sortk: no hypothesis, counted as all missed: 1 session (m2)",
        "sortk: not in the reference, so not scored: 1 session (m3)",
        "sortk: segments of zero length in the hypothesis, which hold no speech: 1 session (m1)",
    ]
    assert "75.00" in result.stdout  # m1: 10 of 20 s confused; m2: all of 20 s missed


def test_empty_hypothesis(ref: Path, tmp_path: Path) -> None:
    result = score_der("--ref", ref, "--hyp", write(tmp_path / "empty.rttm"), "--collar", 0)
    assert result.exit_code == 0 and "counted as all missed: 2 sessions (m1, m2)" in result.stderr
    assert "OVERALL             40.00  100.00" in result.stdout


def test_what_cannot_be_scored_is_one_sentence(ref: Path, hyp: Path, tmp_path: Path) -> None:
    empty, upper, uem = (
        write(tmp_path / "empty.rttm"),
        write(tmp_path / "upper.rttm", ("M1", 0, 1, "x")),
        tmp_path / "u.uem",
    )
    uem.write_text("other 1 0 10\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "broken.rttm").write_text("SPEAKER m1 1 zero 1 <NA> <NA> a <NA> <NA>\n")
    assert "the reference has no sessions" in failed(score_der("--ref", empty, "--hyp", hyp))
    assert "'m1' of the reference is 'M1' in the hypothesis" in failed(score_der("--ref", ref, "--hyp", upper))
    assert "the UEM is for other recordings" in failed(score_der("--ref", ref, "--hyp", hyp, "--uem", uem))
    assert "collar must be from 0" in failed(score_der("--ref", ref, "--hyp", hyp, "--collar", -1))
    assert "no such file" in failed(score_der("--ref", ref, "--hyp", tmp_path / "nowhere.rttm"))
    assert "no .rttm or .rttm.gz file" in failed(score_der("--ref", ref, "--hyp", tmp_path / "folder"))
    assert "broken.rttm, line 1: start is not a number" in failed(
        score_der("--ref", ref, "--hyp", tmp_path / "broken.rttm")
    )
