"""`sortk tables` on a recipe with three tiny variants: all stages, a stop, going on, what cannot be measured."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_recipe import STAGES, sortk

from sortk.run.experiment import Experiment
from sortk.run.tables import TablesRequest, list_first, list_missing, place_results, plan_tables, write_tables
from sortk.training import runtime

RECIPE = (
    STAGES
    + """
[tables.table1]
Sortformer-PIL = "pil"
Sortformer-Hybrid-Loss = ""
nowhere = "missing"
[variants.pil.train_diar]
alpha = 0.0
[variants.same.train_diar]
alpha = 0.0
[variants.missing.train_diar]
init = "nowhere.nemo"
[variants.other]
seed = 1
"""
)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    return tmp_path


def test_what_is_missing_is_run_once_and_a_stop_costs_nothing(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("STEP_SECONDS", 10), ("CLIP_SECONDS", 2), ("N_TOKENS", 10)):
        monkeypatch.setattr(runtime, name, value)
    exp = recipe / "exp"
    command = ("tables", "--recipe", recipe, "--exp", exp, "--set", "tables.runtime=tiny")
    planned = sortk(*command, "--dry-run").stdout
    assert planned.count("would run") == 16 and "pil: stage 5 (train-diar): would run" in planned
    plan = plan_tables(TablesRequest(str(recipe), exp))
    assert [experiment.variant for experiment in plan.experiments] == ["pil", ""]
    ran = []

    def stop_early(experiment: Experiment) -> None:
        ran.extend(experiment.run(stage, map) for stage in experiment.stages[:2])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_tables(plan, recipe / "RESULTS.md", stop_early)
    assert ran == [True, True] and not (recipe / "RESULTS.md").exists()
    result = sortk(*command)
    assert result.exit_code == 0, result.output
    # Of pil, stages 0 and 1 were there; of the recipe itself, what pil had to have done: 0 to 4.
    assert result.stderr.count("skipped") == 7 and "left out: nowhere: nowhere.nemo" in result.stderr
    assert {path.name for path in (exp / "variant-pil").glob("0*")} == {"05-train-diar", "07-tune", "08-score"}
    text = (recipe / "RESULTS.md").read_text(encoding="utf-8")
    assert result.stdout == text
    for name in ("Sortformer-PIL", "Sortformer-Hybrid-Loss"):  # in Table 1, and in that of the order of arrival
        assert [text.count(f"| {name} | {what}") for what in ("none |", "tuned |", "")] == [1, 1, 3]
    assert "| a training step with the hybrid loss, relative to PIL | " in text and "| +2.26 |" in text
    assert "## Left out" in text and "paper: CH109" in text and "cores" in text
    assert "2 runs are stored in" in sortk(*command).stderr
    same = sortk("status", "--recipe", recipe, "--exp", exp, "--variant", "same").stdout
    assert same.count(" done ") == 8  # a variant with the settings of another has its stages
    # What is stored is enough, without the experiment; another setting is measured anew.
    shutil.rmtree(exp)
    again = sortk(*command)
    assert again.exit_code == 0 and not exp.exists() and "skipped" not in again.stderr
    assert again.stdout.partition("## Runs")[0] == text.partition("## Runs")[0]
    other = sortk(*command, "--set", "train_diar.alpha=0.25", "--dry-run").stdout
    assert "stage 5 (train-diar): would run" in other
    stored = recipe / "results" / "pil.json"
    for damaged, why in (("{", "is damaged"), ("[]", "is not a file of results")):
        stored.write_text(damaged, encoding="utf-8")
        result = sortk(*command)
        assert result.exit_code == 1 and f"pil.json {why}" in result.stderr and "remove it" in result.stderr
    stored.unlink()
    result = sortk(*command, "--finished", "--out", recipe / "part.md")
    part = (recipe / "part.md").read_text(encoding="utf-8")
    assert result.exit_code == 0 and part == result.stdout and "| Sortformer-Hybrid-Loss | tuned |" in part
    assert "| Sortformer-PIL |" not in part and "table1, Sortformer-PIL: not measured yet: pil" in part
    # The model that a run starts from may still have to be made.
    assert "nowhere: not measured yet: missing" in part and "nowhere.nemo" not in part
    assert not exp.exists()


def test_one_table_and_what_it_needs_first(recipe: Path) -> None:
    rows = '[tables.table2]\n1 = ["large+same", "other"]\n[tables.first]\ntable2 = ["large"]\n'
    same, init = "[variants.same.train_diar]\n", recipe / "exp/variant-large/05-train-diar/model"
    text = RECIPE.replace(same, f'{same}init = "{init}"\n') + rows + "[variants.large]\nseed = 5\n"
    (recipe / "recipe.toml").write_text(text, encoding="utf-8")
    request = TablesRequest(str(recipe), recipe / "exp")
    # What is measured of a row stays valid if another starts from something else.
    assert {row.variant: len(row.first) for row in request.list_rows([]) if row.table == "table2"} == {
        "large+same": 1,
        "other": 0,
    }
    assert [experiment.variant for experiment in list_first(request.list_rows([]))] == ["large"]
    assert list_first(replace(request, tables=["table1"]).list_rows([])) == []
    plan = plan_tables(replace(request, tables=["table1"]))
    assert {row.table for row in plan.rows} == {"table1"}
    # The first run of every row comes before the second of any.
    missing = [experiment.variant for experiment in list_missing(request.list_rows([]))]
    assert missing == ["pil", "", "missing", "large+same", "other"]
    # A row starts from the model of the first variant, which need not exist for a dry run.
    lines = sortk("tables", "--recipe", recipe, "--exp", recipe / "exp", "--table", 2, "--dry-run").stdout.splitlines()
    assert list(dict.fromkeys(line.partition(":")[0] for line in lines)) == ["large", "large+same", "other"]
    (recipe / "recipe.toml").write_text(text.replace("table2 = [", "table4 = ["), encoding="utf-8")
    result = sortk("tables", "--recipe", recipe)
    assert result.exit_code == 1 and "first must name table1, table2 or table3, got 'table4'" in result.stderr


def test_nothing_is_finished(recipe: Path) -> None:
    text = (recipe / "recipe.toml").read_text(encoding="utf-8")
    (recipe / "other.rttm").touch()
    other = f'[tables.table1]\nother = {{ rttm = "{recipe / "other.rttm"}" }}\n'
    (recipe / "recipe.toml").write_text(text.replace("[tables.table1]\n", other), encoding="utf-8")
    result = sortk("tables", "--recipe", recipe, "--exp", recipe / "exp", "--finished")
    assert result.exit_code == 1 and "no row of the tables is finished" in result.output
    assert not (recipe / "exp").exists()  # also what the files are scored against is not made


def test_results_of_a_variant_are_not_those_of_the_recipe(recipe: Path) -> None:
    exp = recipe / "exp"
    plan = plan_tables(TablesRequest(str(recipe), exp, variant="other"))
    assert [experiment.variant for experiment in plan.experiments] == ["other+pil", "other"]
    assert place_results(str(recipe), exp, "other") == exp / "variant-other" / "RESULTS.md"
    assert place_results(str(recipe), exp, "") == recipe / "RESULTS.md"
    (recipe / "my.toml").write_text(RECIPE, encoding="utf-8")
    assert place_results(str(recipe / "my.toml"), None, "") == recipe / "my-RESULTS.md"


def test_what_cannot_be_measured_is_one_sentence(recipe: Path) -> None:
    (recipe / "recipe.toml").write_text("[simulate]\nseconds = 30\n", encoding="utf-8")
    result = sortk("tables", "--recipe", recipe)
    assert result.exit_code == 1 and "names no rows of the paper's tables: [tables.table1]" in result.stderr
    (recipe / "recipe.toml").write_text('[tables.table1]\nx = "nosuch"\n', encoding="utf-8")
    result = sortk("tables", "--recipe", recipe)
    assert result.exit_code == 1 and "no variant 'nosuch'" in result.stderr
    (recipe / "recipe.toml").write_text('[tables.table1]\nx = ""\n[train_diar]\ninit = "a.nemo"\n', encoding="utf-8")
    result = sortk("tables", "--recipe", recipe)
    assert result.exit_code == 1 and "no row of the tables can be measured; the first is x: a.nemo" in result.stderr


def test_another_systems_output_is_a_row_and_worse_rows_are_marked(recipe: Path) -> None:
    exp = recipe / "exp"
    assert sortk("run", "--recipe", recipe, "--exp", exp, "--stop-stage", 1).exit_code == 0
    rows = f'"the reference" = {{ rttm = "{exp / "01-simulate" / "rttm"}" }}\ngone = {{ rttm = "no/where" }}\n'
    text = RECIPE.replace('nowhere = "missing"\n', rows)
    (recipe / "recipe.toml").write_text(text, encoding="utf-8")
    result = sortk("tables", "--recipe", recipe, "--exp", exp)
    assert result.exit_code == 0, result.output
    [line] = [line for line in result.stdout.splitlines() if line.startswith("| the reference |")]
    assert line.split(" | ")[1] == "as given" and " 0.00 |" in line
    table_1 = result.stdout.partition("## Speakers in the order of arrival")[0]
    hybrid = [line for line in table_1.splitlines() if line.startswith("| Sortformer-Hybrid-Loss |")]
    assert len(hybrid) == 2 and all("\\*" in line for line in hybrid)  # a model of two steps
    assert "differs from the best of its column" in result.stdout
    assert "gone: no/where: no such file or folder" in result.stdout


def test_a_row_is_one_thing(recipe: Path) -> None:
    for row, sentence in (
        ('{ rttm = "a", variants = "pil" }', "a row needs either variants, or rttm, or words"),
        ('{ words = "a" }', "Table 1 shows who speaks when; give rttm, not words"),
        ("3", "must be a table, got 3"),
    ):
        (recipe / "recipe.toml").write_text(f"[tables.table1]\nx = {row}\n", encoding="utf-8")
        result = sortk("tables", "--recipe", recipe)
        assert result.exit_code == 1 and sentence in result.stderr, result.output
