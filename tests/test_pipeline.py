"""Stages and experiments, on toy stages that write one file."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from sortk.options import HASH_ONLY_IF_SET
from sortk.prepare.clean import CleanOptions
from sortk.recipe import Recipe
from sortk.run.experiment import Experiment
from sortk.run.folders import settings_of
from sortk.run.locks import hold_for_reading
from sortk.run.stage import Input, Stage, StageTask


def copy_seconds(task: StageTask) -> None:
    (task.out / "seconds.txt").write_text(str(task.settings.simulate.seconds), encoding="utf-8")


def copy_input(task: StageTask) -> None:
    text = (task.inputs["first"] / "seconds.txt").read_text(encoding="utf-8")
    (task.out / "copy.txt").write_text(text, encoding="utf-8")


STAGES = (
    Stage(0, "first", ("simulate",), (), copy_seconds),
    Stage(1, "second", ("prepare",), (Input("first", "first"),), copy_input),
)


def make_recipe(seconds: float = 90.0, overlap: float = 0.12) -> Recipe:
    recipe = Recipe("toy")
    return replace(recipe, simulate=replace(recipe.simulate, seconds=seconds, overlap=overlap))


def run_all(experiment: Experiment, force: bool = False) -> list[bool]:
    return [experiment.run(stage, map, force) for stage in STAGES]


def test_stages_run_in_order_and_are_skipped_when_done(tmp_path: Path) -> None:
    experiment = Experiment(STAGES, make_recipe(), tmp_path)
    with pytest.raises(ValueError, match=r"stage 1 \(second\) reads stage 0 \(first\), which is missing; run stage 0"):
        experiment.run(STAGES[1], map)
    [refused] = experiment.dry_run(STAGES[1:], force=False, redo_done=False)
    assert "would be refused: it reads stage 0 (first), which is missing" in refused
    assert "would run" in list(experiment.dry_run(STAGES, force=False, redo_done=False))[1]
    assert run_all(experiment) == [True, True]
    assert (tmp_path / "01-second" / "copy.txt").read_text(encoding="utf-8") == "90.0"
    assert run_all(Experiment(STAGES, make_recipe(), tmp_path)) == [False, False]


def test_a_changed_setting_makes_its_stage_and_all_after_it_stale(tmp_path: Path) -> None:
    run_all(Experiment(STAGES, make_recipe(), tmp_path))
    changed = Experiment(STAGES, make_recipe(seconds=30.0), tmp_path)
    assert [changed.status(stage).state for stage in STAGES] == ["stale", "stale"]
    assert changed.status(STAGES[0]).why == "simulate.seconds was 90.0, is now 30.0"
    assert changed.status(STAGES[1]).why == "its input 00-first changed"
    with pytest.raises(ValueError, match="stage 0"):
        changed.run(STAGES[1], map, force=True)
    lines = list(changed.dry_run(STAGES, force=False, redo_done=False))
    assert lines[0].startswith("stage 0 (first): would be refused as stale (simulate.seconds was 90.0")
    assert run_all(changed, force=True) == [True, True]
    assert (tmp_path / "01-second" / "copy.txt").read_text(encoding="utf-8") == "30.0"


def test_a_variant_shares_the_stages_that_it_does_not_change(tmp_path: Path) -> None:
    stages = (STAGES[0], Stage(1, "second", ("prepare",), (), copy_seconds))  # the second one reads nothing changed
    plain = make_recipe()
    for stage in stages:
        Experiment(stages, plain, tmp_path).run(stage, map)
    variant = Experiment(stages, make_recipe(seconds=30.0), tmp_path, "short", {"": plain})
    assert [variant.status(stage).state for stage in stages] == ["missing", "done"]
    variant.run(stages[0], map)
    assert (tmp_path / "variant-short" / "00-first" / "seconds.txt").read_text(encoding="utf-8") == "30.0"
    assert (tmp_path / "00-first" / "seconds.txt").read_text(encoding="utf-8") == "90.0"


def test_a_variant_shares_the_stages_of_variants_before_it(tmp_path: Path) -> None:
    shareable = {"": make_recipe(), "short": make_recipe(seconds=30.0)}
    later = Experiment(STAGES, make_recipe(seconds=30.0), tmp_path, "later", shareable)
    assert {later.folder(stage).final.parent for stage in STAGES} == {tmp_path / "variant-short"}
    without_second = (STAGES[0], replace(STAGES[1], wanted=lambda recipe: recipe.asr))
    shareable["short"] = replace(shareable["short"], asr=False)  # so it has no folder to share
    later = Experiment(without_second, make_recipe(seconds=30.0), tmp_path, "later", shareable)
    assert [later.folder(stage).final.parent.name for stage in without_second] == ["variant-short", "variant-later"]


def test_an_option_that_came_later_makes_nothing_stale_until_it_is_used() -> None:
    @dataclass(frozen=True)
    class Inner:
        old: tuple[int, ...] = (1, 2)
        new: str = field(default="", metadata=HASH_ONLY_IF_SET)

    @dataclass(frozen=True)
    class Outer:
        inner: Inner
        table: dict[str, Inner]
        new: int = field(default=0, metadata=HASH_ONLY_IF_SET)

    assert settings_of(Outer(Inner(), {"a": Inner(new="x")})) == {
        "inner": {"old": [1, 2]},
        "table": {"a": {"old": [1, 2], "new": "x"}},
    }
    assert settings_of(Outer(Inner(), {}, new=3)) == {"inner": {"old": [1, 2]}, "table": {}, "new": 3}


def test_an_option_that_became_a_constant_makes_no_stage_stale() -> None:
    """The key of stage 2 is that of the settings it had when they could be set."""
    options = CleanOptions()
    settings = settings_of(options)
    assert settings["window_min_seconds"] == settings["window_search_seconds"] == 10.0
    assert settings["sad_pad_seconds"] == 0.03 and settings["edge_seconds"] == settings["diarizer_threshold"] == 0.5
    assert not hasattr(options, "window_min_seconds") and len(settings) == 19


def test_a_finished_experiment_can_be_moved(tmp_path: Path) -> None:
    run_all(Experiment(STAGES, make_recipe(), tmp_path / "here"))
    (tmp_path / "here").rename(tmp_path / "there")
    assert run_all(Experiment(STAGES, make_recipe(), tmp_path / "there")) == [False, False]


def test_files_from_outside_count_by_their_content(tmp_path: Path) -> None:
    outside = tmp_path / "sources.jsonl"
    outside.write_text("one", encoding="utf-8")
    stages = (replace(STAGES[0], files=lambda recipe: [outside]),)
    Experiment(stages, make_recipe(), tmp_path / "exp").run(stages[0], map)
    assert Experiment(stages, make_recipe(), tmp_path / "exp").status(stages[0]).state == "done"
    outside.write_text("two", encoding="utf-8")
    assert "content of" in Experiment(stages, make_recipe(), tmp_path / "exp").status(stages[0]).why


def test_an_input_cannot_be_replaced_while_it_is_read(tmp_path: Path) -> None:
    first = Experiment(STAGES, make_recipe(), tmp_path)
    first.run(STAGES[0], map)
    other = Experiment(STAGES, make_recipe(seconds=30.0), tmp_path)

    def read_slowly(task: StageTask) -> None:
        with pytest.raises(ValueError, match="stage 0 .* is being read by one"):
            other.run(STAGES[0], map, force=True)
        copy_input(task)

    stages = (STAGES[0], replace(STAGES[1], run=read_slowly))
    Experiment(stages, make_recipe(), tmp_path).run(stages[1], map)
    assert other.run(STAGES[0], map, force=True)


def test_a_stage_whose_input_vanishes_is_not_done(tmp_path: Path) -> None:
    def lose_input(task: StageTask) -> None:
        copy_input(task)
        task.inputs["first"].rename(tmp_path / "away")

    stages = (STAGES[0], replace(STAGES[1], run=lose_input))
    experiment = Experiment(stages, make_recipe(), tmp_path)
    experiment.run(stages[0], map)
    with pytest.raises(FileNotFoundError, match=r"00-first vanished while stage 1 \(second\) ran; put it back"):
        experiment.run(stages[1], map)
    assert not (tmp_path / "01-second").exists()
    (tmp_path / "away").rename(tmp_path / "00-first")
    assert Experiment(STAGES, make_recipe(), tmp_path).run(STAGES[1], map)


def test_a_lock_that_a_killed_run_has_left_is_cleared_by_who_skips_the_stage(tmp_path: Path) -> None:
    experiment = Experiment(STAGES, make_recipe(), tmp_path)
    run_all(experiment)
    locks = [experiment.folder(stage).lock for stage in STAGES]
    for lock in locks:
        lock.touch()
    with hold_for_reading(locks[0], "stage 0"):
        assert not experiment.run(STAGES[1], map)
        assert [lock.exists() for lock in locks] == [True, False]  # the first is in use
    locks[0].touch()
    assert not experiment.run(STAGES[1], map)
    assert not locks[0].exists()


def test_a_stage_holds_what_its_inputs_name(tmp_path: Path) -> None:
    """Stage 6 reads files of stages 2 and 3 that manifests of stage 4 name: nobody may replace them meanwhile."""
    recipe = make_recipe()
    first = STAGES[0]
    held = Input("named", "first", is_key=False)
    first_only = Stage(2, "third", ("clean",), (Input("second", "second"),), copy_seconds)
    third = replace(first_only, inputs=(*first_only.inputs, held))
    assert Experiment((*STAGES, third), recipe, tmp_path).identity(third) == (
        Experiment((*STAGES, first_only), recipe, tmp_path).identity(first_only)
    )  # its key is in that of the second

    def replace_first(task: StageTask) -> None:
        with pytest.raises(ValueError, match="stage 0 .* is being read by one"):
            Experiment(STAGES, recipe, tmp_path).run(first, map, force=True)

    experiment = Experiment((*STAGES, replace(third, run=replace_first)), recipe, tmp_path)
    assert [experiment.run(stage, map) for stage in experiment.stages] == [True, True, True]


def test_stages_that_read_samples_hold_what_these_name() -> None:
    from sortk.stages import find_stage

    for name in ("train-asr", "score"):
        assert {"clean", "timestamps", "sst"} <= set(find_stage(name).reads)
    assert "timestamps" not in {given.stage for given in find_stage("train-asr").inputs if given.is_key}


def test_what_a_stage_returns_is_shown_once(tmp_path: Path) -> None:
    def report(task: StageTask) -> str:
        copy_seconds(task)
        return "90 seconds"

    stages, shown = [replace(STAGES[0], run=report), STAGES[1]], list[str]()
    experiment = Experiment(stages, make_recipe(), tmp_path)
    for _ in range(2):
        experiment.run_stages(stages, lambda stage: map, shown.append)
    assert shown == ["90 seconds"]
    experiment.run_stages(stages[:1], lambda stage: map, shown.append, redo_done=True)
    assert shown == ["90 seconds"] * 2
