"""`sortk score der` as a user meets it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sortk.cli import main
from sortk.scoring.compare import name_systems


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
    assert cells["m1"][1:] == ["20.00", "0.00", "0.00", "10.00", "10.00", "18.33", "2", "2", "yes"]
    assert cells["m2"][1:] == ["20.00", "25.00", "0.00", "0.00", "25.00", "25.00", "1", "1", "yes"]
    assert cells["OVERALL"][1:] == ["40.00", "12.50", "0.00", "5.00", "17.50", "20.56", "3", "3", "2", "of", "2"]
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
    assert "| OVERALL | 40.00 | 12.50 | 0.00 | 5.00 | 17.50 | 20.56 | 3 | 3 | 2 of 2 |" in markdown
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


def test_several_hypotheses_stand_side_by_side(ref: Path, hyp: Path, tmp_path: Path) -> None:
    perfect = write(tmp_path / "good.rttm", ("m1", 0, 10, "x"), ("m1", 10, 20, "y"), ("m2", 0, 20, "x"))
    written = tmp_path / "der.json"
    result = score_der("--ref", ref, "--hyp", hyp, "--hyp", perfect, "--collar", 0, "--json", written)
    assert result.exit_code == 0, result.output
    cells = {row.split("  ")[0]: row.split()[-2:] for row in result.stdout.splitlines() if row}
    assert cells["session"] == ["hyp.rttm", "good.rttm"]
    assert cells["m1"] == ["10.00", "0.00"] and cells["m2"] == ["25.00", "0.00"]
    assert result.stdout.startswith("DER in %; collar 0 s")
    assert cells["OVERALL right number of speakers"] == ["of", "2"] and cells["OVERALL JER"] == ["20.56", "0.00"]
    assert cells["OVERALL"] == ["17.50", "0.00"] and cells["OVERALL miss"] == ["12.50", "0.00"]
    systems = json.loads(written.read_text())["systems"]
    assert [systems[name]["overall"]["der"] for name in ("hyp.rttm", "good.rttm")] == [0.175, 0.0]
    result = score_der("--ref", ref, "--hyp", hyp, "--hyp", hyp)
    assert "is given twice" in failed(result)


def test_a_system_has_the_shortest_name_that_tells_it_from_the_others() -> None:
    assert name_systems([Path("exp/a/hyp.rttm"), Path("/data/other.rttm")]) == ["hyp.rttm", "other.rttm"]
    assert name_systems([Path("exp/a/hyp"), Path("exp/b/hyp"), Path("c")]) == ["a/hyp", "b/hyp", f"{Path.cwd().name}/c"]
    with pytest.raises(ValueError, match="is given twice"):
        name_systems([Path("a.rttm"), Path.cwd() / "b" / ".." / "a.rttm"])


def test_an_option_that_takes_one_value_is_refused_if_it_is_given_twice(ref: Path, hyp: Path) -> None:
    result = score_der("--ref", ref, "--ref", ref, "--hyp", hyp)
    assert result.exit_code == 2 and "--ref is given 2 times; give it once" in result.stderr
    result = CliRunner().invoke(main, ["status", "--recipe", "mini", "--recipe", "ami"])
    assert result.exit_code == 2 and "--recipe is given 2 times; give it once" in result.stderr
    result = CliRunner().invoke(main, ["status", "--recipe", "mini", "--set", "seed=1", "--set", "asr=false"])
    assert result.exit_code == 0, result.output


def test_compare(ref: Path, hyp: Path, tmp_path: Path) -> None:
    """Two sessions, 20 s each: the first system is wrong for 2 and 5 s, the second for 4 and 1 s.

    The four sets of two sessions have the differences 4/40 (twice the first session), -2/40, -2/40 and -8/40: one of
    four is positive, so p = 2 * 1/4.
    """
    other = write(tmp_path / "other.rttm", ("m1", 0, 14, "x"), ("m1", 14, 20, "y"), ("m2", 0, 19, "x"))
    arguments = ["score", "compare", "--ref", ref, "--hyp", hyp, "--hyp", other, "--collar", 0]
    result = CliRunner().invoke(main, [str(argument) for argument in [*arguments, "--json", tmp_path / "c.json"]])
    assert result.exit_code == 0, result.output
    rows = [row.split() for row in result.stdout.splitlines()[2:]]
    assert rows[1] == ["hyp.rttm", "2", "17.50"]
    assert rows[2][:4] == ["other.rttm", "2", "12.50", "-5.00"] and rows[2][-1] == "0.5000"
    found = json.loads((tmp_path / "c.json").read_text())
    assert found["first"] == "hyp.rttm" and found["differences"]["other.rttm"]["p_value"] == 0.5
    result = CliRunner().invoke(main, [str(argument) for argument in arguments[:6]])
    assert result.exit_code == 2 and "give --hyp at least twice" in result.stderr


def test_compare_words(tmp_path: Path) -> None:
    lines = {"ref": ("a b c d", "e f"), "one": ("a b c x", "e f"), "two": ("a x y d", "e")}
    for name, (first, second) in lines.items():
        (tmp_path / f"{name}.stm").write_text(f"s1 1 a 0 1 {first}\ns2 1 a 0 1 {second}\n")
    files = [tmp_path / f"{name}.stm" for name in lines]
    arguments = ["score", "compare", "--metric", "cpwer", "--ref", files[0], "--hyp", files[1], "--hyp", files[2]]
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    # 1 of 6 words against 3 of 6; no set of sessions has the first system worse.
    assert result.stdout.splitlines()[-1].split()[:4] == ["two.stm", "2", "50.00", "+33.33"]
    assert result.stdout.splitlines()[-1].split()[-1] == "0.0000"


# md-eval-22 -c 0: NOSCORE is not evaluated; laughter and the like is not scored, nor what is around it, up to half a
# second, to the next word or boundary of a segment.
NOSCORE = "SPEAKER a 1 0 5 <NA> <NA> x <NA>\nSPEAKER a 1 5 5 <NA> <NA> y <NA>\nNOSCORE a 1 5 5 <NA> <NA> <NA> <NA>\n"
LAUGH = "SPEAKER a 1 0 10 <NA> <NA> x <NA>\nNON-LEX a 1 4 1 <NA> laugh x <NA>\n"
WORDS = "LEXEME a 1 3.8 0.2 so lex x <NA>\nLEXEME a 1 5.2 0.4 yes lex x <NA>\n"


@pytest.mark.parametrize(
    ("text", "spoken", "scored"),
    [
        (NOSCORE, [(0, 5)], 5.0),
        (LAUGH, [(0, 3.5), (5.5, 10)], 8.0),
        (LAUGH + WORDS, [(0, 4), (5.2, 10)], 8.8),
    ],
)
def test_nist_leaves_out_what_md_eval_leaves_out(
    tmp_path: Path, text: str, spoken: list[tuple[float, float]], scored: float
) -> None:
    (tmp_path / "ref.rttm").write_text(text)
    hyp = write(tmp_path / "hyp.rttm", *(("a", start, end, "s") for start, end in spoken))
    common = ("--ref", tmp_path / "ref.rttm", "--hyp", hyp, "--collar", 0, "--json", tmp_path / "der.json")
    assert score_der(*common, "--scorer", "nist").exit_code == 0
    overall = json.loads((tmp_path / "der.json").read_text())["overall"]
    assert overall["der"] == 0.0
    assert overall["scored_seconds"] == pytest.approx(scored)
    result = score_der(*common)
    assert json.loads((tmp_path / "der.json").read_text())["overall"]["der"] > 0.1
    assert ("NOSCORE lines count for --scorer nist only" in result.output) == (text == NOSCORE)


def test_what_is_not_a_score_or_not_rttm_is_explained(tmp_path: Path) -> None:
    def score(*arguments: object) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["score", *map(str, arguments)])
        return result.exit_code, result.stderr

    assert score("--ref", "a", "--hyp", "b")[1].endswith(
        "name the score first: der, cpwer, tcpwer, orcwer, wer, compare\n"
    )
    assert score("jer", "--ref", "a")[1].endswith("JER is a column of `sortk score der`\n")
    (tmp_path / "x.json").write_text('[{"session_id": "a"}]\n')
    code, said = score("der", "--ref", tmp_path / "x.json", "--hyp", tmp_path / "x.json")
    assert code == 1 and "line 1: is JSON, not RTTM; `sortk convert IN OUT.rttm --to rttm` converts it" in said
