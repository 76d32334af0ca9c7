from __future__ import annotations

from pathlib import Path

import pytest

from sortk.recipe import find_recipe, load_recipe, load_shareable, merge_tables, parse_override, shipped_recipes


def write_recipe(folder: Path, text: str) -> str:
    (folder / "recipe.toml").write_text(text, encoding="utf-8")
    return str(folder)


def test_tables_become_typed_options(tmp_path: Path) -> None:
    path = write_recipe(tmp_path, "seed = 7\n[simulate]\nseconds = 30\nhours = {train = 2, test = 0.5}\n")
    recipe = load_recipe(path)
    assert (recipe.seed, recipe.name) == (7, tmp_path.name)
    assert recipe.simulate.seconds == 30.0 and isinstance(recipe.simulate.seconds, float)
    assert recipe.simulate.hours == {"train": 2.0, "test": 0.5}


def test_overrides_come_after_the_variant(tmp_path: Path) -> None:
    path = write_recipe(
        tmp_path, "[simulate]\noverlap = 0.1\n[variants.dense.simulate]\noverlap = 0.3\nsilence = 0.0\n"
    )
    assert load_recipe(path).simulate.overlap == 0.1
    assert load_recipe(path, variant="dense").simulate.overlap == 0.3
    both = load_recipe(path, ["simulate.overlap=0.2"], "dense").simulate
    assert (both.overlap, both.silence) == (0.2, 0.0)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[simulate]\noverlapp = 0.1\n", "unknown key 'overlapp'; did you mean 'overlap'?"),
        ("[simulatte]\n", "unknown key 'simulatte'; did you mean 'simulate'?"),
        ('[simulate]\noverlap = "much"\n', "simulate: overlap must be a number, got 'much'"),
        ("[simulate]\nmin_speakers = 2.5\n", "min_speakers must be a whole number, got 2.5"),
        ("[simulate]\nmin_speakers = true\n", "min_speakers must be a whole number, got True"),
        ("[simulate]\nhours = 3\n", "hours must be a table, got 3"),
        ("[simulate]\noverlap = nan\n", "overlap must be a number, got nan"),
        (f"[simulate]\noverlap = 1{'0' * 400}\n", "overlap must be a number, got 1000"),
        ("[simulate]\nhours = {train = -1}\n", "simulate: hours.train must be from 0 to 1e+06, got -1.0"),
        ("[simulate\n", "not valid TOML"),
    ],
)
def test_a_wrong_recipe_is_refused_with_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match="recipe.toml") as caught:
        load_recipe(write_recipe(tmp_path, text))
    assert sentence in str(caught.value)


def test_unknown_names_list_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="shipped recipes: .*mini"):
        find_recipe("nosuch")
    with pytest.raises(ValueError, match="no variant 'x'; variants: none"):
        load_recipe(write_recipe(tmp_path, ""), variant="x")


def test_a_path_is_never_taken_for_a_shipped_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mini").mkdir()
    write_recipe(tmp_path / "mini", "seed = 41\n")
    monkeypatch.chdir(tmp_path)
    assert load_recipe("./mini").seed == 41 and load_recipe("mini").seed != 41
    monkeypatch.chdir(tmp_path / "mini")
    assert load_recipe(".").name == "mini" and load_recipe(".").seed == 41


@pytest.mark.parametrize("name", shipped_recipes())
def test_shipped_recipes_load(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name and recipe.summary


def test_override_values_are_toml_or_text() -> None:
    assert parse_override("a.b=1e-4") == {"a": {"b": 1e-4}}
    assert parse_override("a.b=[1, 2]") == {"a": {"b": [1, 2]}}
    assert parse_override("prepare.corpus_dir=/data/x y") == {"prepare": {"corpus_dir": "/data/x y"}}
    for bad in ("novalue", "=1", "a..b=1"):
        with pytest.raises(ValueError, match="table.key=value"):
            parse_override(bad)


def test_merge_goes_into_tables_and_leaves_the_base_alone() -> None:
    base = {"a": {"x": 1, "y": 2}, "b": 3}
    assert merge_tables(base, {"a": {"y": 5}}) == {"a": {"x": 1, "y": 5}, "b": 3}
    assert base["a"] == {"x": 1, "y": 2}


def test_an_item_of_a_list_of_tables_goes_by_its_number(tmp_path: Path) -> None:
    path = write_recipe(
        tmp_path,
        """
        [[prepare.corpora]]
        corpus = "librispeech"
        [[prepare.corpora]]
        corpus = "ami"
        sets = {test = "ami-test"}
        """,
    )
    first, second = load_recipe(path, ["prepare.corpora.1.corpus_dir=/data/ami"]).prepare.corpora
    assert (first.corpus, first.corpus_dir) == ("librispeech", "")
    assert (second.corpus, second.corpus_dir, second.sets) == ("ami", "/data/ami", {"test": "ami-test"})
    for number in ("2", "-1", "ami"):
        about = f"--set prepare.corpora is a list, which has no item '{number}'; items: 0, 1"
        with pytest.raises(ValueError, match=about):
            load_recipe(path, [f"prepare.corpora.{number}.corpus_dir=/data/ami"])


def test_variants_are_stacked_and_know_what_they_may_share(tmp_path: Path) -> None:
    path = write_recipe(
        tmp_path,
        """
        [simulate]
        overlap = 0.1
        [variants.quick.simulate]
        seconds = 20
        [variants.dense.simulate]
        overlap = 0.3
        [variants.wrong.simulate]
        speeds = { 0.x = 1 }
        [variants.quiet.simulate]
        silence = 0.0
        """,
    )
    both = load_recipe(path, variant="quick+dense").simulate
    assert (both.seconds, both.overlap) == (20.0, 0.3)
    with pytest.raises(ValueError, match="no variant 'x'"):
        load_recipe(path, variant="quick+x")
    assert load_shareable(path, [], "") == {}
    assert list(load_shareable(path, [], "dense")) == ["", "quick"]
    shareable = load_shareable(path, ["seed=3"], "quick+quiet")
    assert list(shareable) == ["", "quick", "quick+quick", "quick+dense"]  # wrong is none of anybody's
    assert shareable["quick+dense"].simulate == both and {other.seed for other in shareable.values()} == {3}


@pytest.mark.parametrize("overrides", [[], ["simulate.silence=0.2"]])
def test_recipes_that_are_read_together_are_as_each_alone(overrides: list[str]) -> None:
    """What tables of variants have in common is converted once."""
    shareable = load_shareable("audiomnist", overrides, "debug+change")
    assert len(shareable) > 5
    for variant, recipe in shareable.items():
        assert recipe == load_recipe("audiomnist", overrides, variant), variant
