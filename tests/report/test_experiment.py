"""The report of an experiment: what is in the page, without a browser."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from small_experiment import COLLAR, write_experiment

from sortk.cli import main
from sortk.report.experiment import format_report, open_experiment
from sortk.report.page import encode_data, format_page
from sortk.report.session import Budget, worst_middle_best
from sortk.stages import folder_names


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("exp") / "made-up"
    write_experiment(root)
    return root


def data_of(page: str) -> dict[str, Any]:
    [text] = re.findall(r'<script type="application/json" id="report">(.*?)</script>', page, re.DOTALL)
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.fixture(scope="module")
def page(made_up: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("page") / "report.html"
    result = CliRunner().invoke(main, ["report", "--exp", str(made_up), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert result.output.strip() == str(out)
    return out.read_text(encoding="utf-8")


def test_the_page_asks_no_host_for_anything(page: str) -> None:
    addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[\w./-]*", page.replace("\n", " ")))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert "default-src 'none'" in page and "@import" not in page and '<link rel="stylesheet' not in page


def test_all_that_the_stages_hold_is_in_it(page: str) -> None:
    data = data_of(page)
    assert data["title"] == "made <up>" and data["about"]["commit"] == "1234567"
    assert data["missing"] == ["00-prepare", "03-timestamps"]
    assert [(row["postprocessing"], row["test_set"]) for row in data["der"]] == [("none", "test"), ("tuned", "test")]
    assert [row["settings"]["metric"] for row in data["wer"]] == ["wer", "cpwer"]
    assert [model["name"] for model in data["training"]] == ["Diarizer", "ASR"]
    assert len(data["tuning"]["values"]) == 6 and data["cleaning"][0]["dropped"]["too_short"] > 0
    assert data["simulation"]["target"] == {"overlap": 0.12, "silence": 0.1}
    assert data["settings"] == [["score.normalizer", "lower"]]


def test_sessions_from_the_worst_on_with_errors_as_scored(page: str) -> None:
    sessions = data_of(page)["sessions"]
    rates = [session["der"] for session in sessions]
    assert len(sessions) == 6 and rates == sorted(rates, reverse=True)
    for session in sessions:
        marked = sum((mark[1] - mark[0]) * sum(mark[2:5]) for mark in session["view"]["marks"] if mark[5])
        assert marked / session["scored_seconds"] == pytest.approx(session["der"], abs=0.002)
        assert session["view"]["audio"] and session["view"]["audio_seconds"] == 20.0
        assert session["view"]["posteriors"]["frames"] == 250


def test_the_words_are_aligned_as_they_were_scored(page: str) -> None:
    for session in data_of(page)["sessions"]:
        samples = session["view"]["samples"]
        for sample in samples:
            pairs = [pair for _, _, pairs in sample["speakers"] for pair in pairs]
            assert sum(said != found for said, found in pairs) == sample["errors"]
            assert sum(said is not None for said, _ in pairs) == sample["words"]
        counted = sum(sample["errors"] for sample in samples) / sum(sample["words"] for sample in samples)
        assert counted == pytest.approx(session["cpwer"])
        sides = ("reference_words", "recognized_words")
        spoken, recognized = ({tuple(word) for word in session["view"][side]} for side in sides)
        assert max(end for _, _, end, _ in recognized) > 15.0
        assert {word for word in recognized if word[3] != "oops"} <= spoken
        assert {name for sample in samples for name, _, _ in sample["speakers"]} <= {word[0] for word in spoken}


def test_what_is_missing_is_left_out_and_named(made_up: Path, tmp_path: Path) -> None:
    exp = tmp_path / "exp"
    shutil.copytree(made_up, exp)
    for name in ("02-clean", "04-sst", "06-train-asr", "07-tune"):
        shutil.rmtree(exp / name)
    shutil.rmtree(exp / "08-score" / "hyp" / "test" / "probs")
    data = data_of(format_report(open_experiment(exp, folder_names())))
    assert {"02-clean", "06-train-asr", "07-tune"} <= set(data["missing"])
    scores_path = exp / "08-score" / "scores.json"
    scores = json.loads(scores_path.read_text())
    scores_path.write_text(json.dumps(scores | {"settings": {"train_diar": {}}}))  # a recipe with asr = false
    without_asr = data_of(format_report(open_experiment(exp, folder_names())))["missing"]
    assert set(data["missing"]) - set(without_asr) == {"06-train-asr"}
    assert data["tuning"] is None and data["cleaning"] is None and len(data["training"]) == 1
    assert data["sessions"][0]["view"]["posteriors"] is None and not data["sessions"][0]["view"]["samples"]
    shutil.rmtree(exp / "08-score")
    data = data_of(format_report(open_experiment(exp, folder_names())))
    assert data["title"] == "exp" and data["sessions"] == [] and data["simulation"]["sets"]


def test_variants_are_rows_of_the_same_tables(made_up: Path, tmp_path: Path) -> None:
    exp = tmp_path / "exp"
    shutil.copytree(made_up, exp)
    for stage in ("06-train-asr", "08-score"):
        shutil.copytree(exp / stage, exp / "variant-other" / stage)
    data = data_of(format_report(open_experiment(exp, folder_names())))
    assert [row["variant"] for row in data["wer"]] == ["", "", "other", "other"]
    assert len(data["der"]) == 2  # the same diarizer
    assert data["training"][-1]["name"] == "ASR, variant other"
    own = open_experiment(exp / "variant-other", folder_names())
    assert own.stages["score"].parent.name == "variant-other" and own.stages["tune"].parent == exp


def test_a_budget_bounds_the_page(made_up: Path) -> None:
    folders = open_experiment(made_up, folder_names())
    whole = data_of(format_report(folders))["sessions"]
    n_sound = len(whole[0]["view"]["audio"])
    sessions = data_of(format_report(folders, Budget(sound_bytes=2 * n_sound + 99)))["sessions"]
    assert sum("audio" in session["view"] for session in sessions) == 2 and "audio" in sessions[0]["view"]
    sessions = data_of(format_report(folders, Budget(sessions_with_sound=1, seconds_of_sound=5.0)))["sessions"]
    assert [session["view"].get("audio_seconds") for session in sessions] == [5.0] + 5 * [None]
    size = len(encode_data(whole[0]["view"])) - n_sound
    sessions = data_of(format_report(folders, Budget(view_bytes=size + 2000)))["sessions"]
    assert len(sessions) == 6 and "view" in sessions[0] and "view" not in sessions[1]


def test_worst_middle_and_best_come_first() -> None:
    rows = [{"n": n} for n in range(9)]
    order = [row["n"] for row in worst_middle_best(rows)]
    assert order[:6] == [0, 4, 8, 1, 3, 7] and sorted(order) == list(range(9))
    assert worst_middle_best([]) == []


def test_nothing_to_report_is_told(tmp_path: Path) -> None:
    for exp, reason in ((tmp_path, "has no finished stage"), (tmp_path / "none", "no such folder")):
        result = CliRunner().invoke(main, ["report", "--exp", str(exp)])
        assert result.exit_code == 1 and reason in result.output


def test_no_text_can_leave_the_data() -> None:
    page = format_page("</title><b>", {"text": "</script><!-- \u2028 {braces}", "rate": float("inf")})
    assert data_of(page) == {"text": "</script><!-- \u2028 {braces}", "rate": None}
    assert "<title>&lt;/title&gt;&lt;b&gt;</title>" in page and page.count("</script>") == 2


def test_the_collar_of_the_scores_is_used(page: str) -> None:
    assert data_of(page)["der"][0]["settings"]["collar"] == COLLAR


@pytest.mark.parametrize(
    "content", [b"", b"null", b"[1, 2]", b'{"der": [3]}', b'{"phase": 1}', b'{"versions": 3}', b"{"]
)
@pytest.mark.parametrize(
    "name", ["08-score/scores.json", "02-clean/summary.json", "05-train-diar/log.jsonl", "07-tune/postprocess.json"]
)
def test_a_damaged_file_is_one_sentence_that_names_it(made_up: Path, tmp_path: Path, name: str, content: bytes) -> None:
    shutil.copytree(made_up, tmp_path / "exp")
    (tmp_path / "exp" / name).write_bytes(content)
    try:
        format_report(open_experiment(tmp_path / "exp", folder_names()))
    except (ValueError, OSError) as error:
        assert Path(name).name in str(error)
