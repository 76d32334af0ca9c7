"""`sortk score cpwer|tcpwer|orcwer|wer` on files, among them those that others would drop without a word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sortk.cli import main

REFERENCE = "s 1 a 0 2 hello world\ns 1 b 1.5 3 how are you\n"


@pytest.fixture
def ref(tmp_path: Path) -> Path:
    path = tmp_path / "ref.stm"
    path.write_text(REFERENCE, encoding="utf-8")
    return path


def score(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["score", *map(str, arguments)])


def write_hypothesis(ref: Path, text: str, name: str = "hyp.stm") -> Path:
    path = ref.parent / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("metric", ["cpwer", "tcpwer", "orcwer", "wer"])
def test_a_table_on_standard_output_and_a_file(metric: str, ref: Path) -> None:
    hyp = write_hypothesis(ref, "s 1 x 0 2 hello word\ns 1 y 1.5 3 how are you\n")
    out = ref.parent / "out.json"
    result = score(metric, "--ref", ref, "--hyp", hyp, "--json", out)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1].split() == ["OVERALL", "5", "1", "0", "0", "20.00"]
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["settings"]["metric"] == metric
    assert found["overall"][metric] == 0.2
    assert found["sessions"]["s"]["substitutions"] == 1


def test_a_decoders_text_is_a_hypothesis(ref: Path) -> None:
    hyp = write_hypothesis(ref, '{"session_id": "s", "text": "<spk0> hello world<spk1> how are you"}\n', "hyp.jsonl")
    result = score("cpwer", "--ref", ref, "--hyp", hyp, "--format", "csv")
    assert result.stdout.splitlines()[-1] == "OVERALL,5,0,0,0,0.00,,,"
    assert "a=spk0, b=spk1" in result.stdout


def test_style_and_format(ref: Path) -> None:
    result = score("wer", "--ref", ref, "--hyp", ref, "--style", "librispeechmix", "--format", "md")
    assert "style librispeechmix, counted_as cpwer" in result.stdout
    assert "| OVERALL | 5 | 0 | 0 | 0 | 0.00 |" in result.stdout


@pytest.mark.parametrize(("name", "text"), [("hyp.stm", ""), ("hyp.json", "[]")])
def test_an_empty_hypothesis_is_all_deleted_and_told(ref: Path, name: str, text: str) -> None:
    result = score("cpwer", "--ref", ref, "--hyp", write_hypothesis(ref, text, name), "-q")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1].split()[-1] == "100.00"
    assert result.stderr == "sortk: no hypothesis, counted as all deleted: 1 session (s)\n"


@pytest.mark.parametrize(
    ("metric", "text", "name", "sentence"),
    [
        ("cpwer", "S 1 a 0 1 hello\n", "hyp.stm", "session 's' of the reference is 'S' in the hypothesis"),
        ("cpwer", "other 1 a 0 1 hello\n", "hyp.stm", "reference and hypothesis have no session in common"),
        ("tcpwer", '{"session_id": "s", "text": "hello"}', "hyp.jsonl", "tcpwer needs times"),
        ("wer", "s 1 a 1 0 hello\n", "hyp.stm", "hyp.stm, line 1: ends at 0.0 before it starts at 1.0"),
        ("cpwer", "".join(f"s 1 x{n} 0 1 a\n" for n in range(30)), "hyp.stm", "30 in the hypothesis"),
        ("wer", "SPEAKER s 1 0 1 <NA> <NA> a <NA> <NA>\n", "hyp.rttm", "is rttm, which holds no words"),
    ],
)
def test_one_sentence_for_what_cannot_be_scored(ref: Path, metric: str, text: str, name: str, sentence: str) -> None:
    result = score(metric, "--ref", ref, "--hyp", write_hypothesis(ref, text, name))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("sortk: ")
    assert result.stderr.count("\n") == 1
    assert sentence in result.stderr


def test_time_that_an_stm_says_to_ignore_is_not_a_word(tmp_path: Path) -> None:
    ref = "a 1 ann 0.00 2.00 so here we go\na 1 ann 2.00 4.00 <O> IGNORE_TIME_SEGMENT_IN_SCORING\n"
    (tmp_path / "ref.stm").write_text(ref)
    (tmp_path / "hyp.stm").write_text("a 1 s 0.00 2.00 so here we go\na 1 s 2.50 3.50 whatever that was\n")
    result = score("cpwer", "--ref", tmp_path / "ref.stm", "--hyp", tmp_path / "hyp.stm", "--json", tmp_path / "w.json")
    assert result.exit_code == 0, result.output
    overall = json.loads((tmp_path / "w.json").read_text())["overall"]
    assert overall["errors"] == 0 and overall["cpwer"] == 0.0 and 4 in overall.values()
