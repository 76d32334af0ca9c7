"""Models by name: in ./models, in a cache as Hugging Face lays it out, and from a stand-in for `huggingface_hub`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
from click.testing import CliRunner
from nemo_models import random_sortformer, sortformer_config, sortformer_tensors, write_nemo

import sortk
from sortk.cli import main
from sortk.formats.hub import KNOWN_MODELS, SHIPPED_MODEL, find_local, find_model
from sortk.inference.load import read_model
from sortk.models.fastconformer import FastConformerOptions
from sortk.models.features import FeatureOptions
from sortk.models.sortformer import SortformerOptions
from sortk.models.transformer import TransformerOptions
from sortk.recipe import load_recipe
from sortk.run.experiment import Experiment
from sortk.stages import STAGES

NAME = "nvidia/diar_sortformer_4spk-v1"
OLD, NEW = "a" * 40, "b" * 40  # commits
SMALL = SortformerOptions(
    n_speakers=3,
    features=FeatureOptions(n_mels=40),
    encoder=FastConformerOptions(d_model=16, n_layers=1, n_heads=2, subsampling_channels=8),
    transformer=TransformerOptions(d_model=8, n_layers=1, n_heads=2, d_inner=24),
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; the working folder is empty, too, and there is no network."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # as if it were not installed
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "huggingface" / "hub"


def add(cache: Path, file_name: str, content: bytes, commit: str = NEW, ref: str = "main", name: str = NAME) -> Path:
    """Put a file into the cache: a blob, a link to it in the snapshot, and the commit of the branch."""
    folder = cache / f"models--{name.replace('/', '--')}"
    blob, link = folder / "blobs" / f"{commit}-{file_name}", folder / "snapshots" / commit / file_name
    for path in (blob, link, folder / "refs" / ref):
        path.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    link.symlink_to(Path("../../blobs") / blob.name)
    (folder / "refs" / ref).write_text(commit, encoding="utf-8")
    return link


def tiny_nemo(folder: Path, seed: int = 0) -> bytes:
    path = folder / "tiny.nemo"
    write_nemo(path, sortformer_config(SMALL), sortformer_tensors(random_sortformer(SMALL, seed)))
    return path.read_bytes()


def test_a_name_is_found_in_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    archive = add(cache, "diar_sortformer_4spk-v1.nemo", b"new")
    add(cache, "README.md", b"about")
    assert find_model(NAME) == archive and find_model(Path(NAME)) == archive
    monkeypatch.setenv("HF_HOME", str(tmp_path / "elsewhere"))
    assert find_local(NAME) is None
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    assert find_local(NAME) == archive


def test_a_revision_is_a_branch_a_tag_or_a_commit(cache: Path) -> None:
    old = add(cache, "diar_sortformer_4spk-v1.nemo", b"old", OLD, ref="v1.0")
    new = add(cache, "diar_sortformer_4spk-v1.nemo", b"new", NEW)
    pull = add(cache, "diar_sortformer_4spk-v1.nemo", b"pull", "c" * 40, ref="refs/pr/4")
    assert find_model(f"{NAME}@v1.0") == find_model(f"{NAME}@{OLD}") == old
    assert find_model(f"{NAME}@main") == find_model(NAME) == new
    assert find_model(f"{NAME}@refs/pr/4") == pull
    with pytest.raises(FileNotFoundError, match=f"hf download {NAME} --revision v3"):
        find_model(f"{NAME}@v3")
    assert find_local(f"{NAME}@../../blobs") is None


def test_what_a_snapshot_may_hold(cache: Path) -> None:
    folder = add(cache, "config.json", b"{}").parent
    assert find_local(NAME) is None  # the weights are missing
    add(cache, "model.safetensors", b"")
    assert find_local(NAME) == folder
    archive = add(cache, "other.nemo", b"")
    assert find_local(NAME) == archive
    own = add(cache, "diar_sortformer_4spk-v1.nemo", b"")
    assert find_local(NAME) == own
    own.unlink()
    add(cache, "third.nemo", b"")
    with pytest.raises(ValueError, match=r"several .nemo files \(other.nemo, third.nemo\)"):
        find_local(NAME)


def test_a_link_to_a_blob_that_is_gone_is_no_model(cache: Path) -> None:
    archive = add(cache, "diar_sortformer_4spk-v1.nemo", b"new")
    archive.resolve().unlink()
    assert find_local(NAME) is None


@pytest.mark.parametrize("hostile", ["pipe", "zeros", "folder", "text"])
def test_a_ref_that_is_not_a_file_of_one_line(cache: Path, hostile: str) -> None:
    add(cache, "a.nemo", b"x")
    ref = next(cache.glob("models--*/refs/main"))
    ref.unlink()
    if hostile == "pipe":
        os.mkfifo(ref)
    elif hostile == "zeros":
        ref.symlink_to("/dev/zero")
    elif hostile == "folder":
        ref.mkdir()
    else:
        ref.write_bytes(b"../" * 10_000_000)
    assert find_local(NAME) is None


def test_the_folder_models_comes_first(cache: Path) -> None:
    add(cache, "diar_sortformer_4spk-v1.nemo", b"new")
    folder = Path("models/diar_sortformer_4spk-v1")
    folder.mkdir(parents=True)
    (folder / "diar_sortformer_4spk-v1.nemo").touch()  # where `hf download --local-dir` puts it
    assert find_model(NAME) == folder / "diar_sortformer_4spk-v1.nemo"
    Path("models/diar_sortformer_4spk-v1.nemo").touch()
    assert find_model(NAME) == Path("models/diar_sortformer_4spk-v1.nemo")
    assert find_model(f"{NAME}@{NEW}").is_relative_to(cache)  # of those in ./models, the revision is not known


def test_a_name_of_thousands_of_letters(cache: Path) -> None:
    assert find_local("nvidia/" + "x" * 10_000) is None


def test_paths_are_not_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("asked the network")

    hub = SimpleNamespace(HfApi=refuse, snapshot_download=refuse)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    Path("exp").mkdir()
    for path in ("exp/model", "gone", "nvidia/model.nemo", "/a/b", "a/b/c"):
        with pytest.raises(FileNotFoundError, match=f"^{path}: no such model folder or .nemo file$"):
            find_model(path)


def test_one_sentence_says_how_to_get_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    how = f"run `hf download {NAME} --local-dir models/diar_sortformer_4spk-v1`, or put its .nemo file into models/diar"
    with pytest.raises(FileNotFoundError, match="pip install 'sortk\\[hub\\]' to download models by name, or " + how):
        find_model(NAME)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FileNotFoundError, match="HF_HUB_OFFLINE is set, so nothing is downloaded: " + how):
        find_model(NAME)
    result = CliRunner().invoke(main, ["diarize", "a.wav", "--model", NAME])
    assert result.exit_code == 1 and how in result.stderr and result.stderr.count("\n") == 1


def test_a_model_is_downloaded_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class HfApi:
        def list_repo_files(self, repository: str, *, revision: str | None) -> list[str]:
            return ["README.md", "diar_sortformer_4spk-v1.nemo", "onnx/other.nemo", "config.json"]

    def snapshot_download(repository: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((repository, revision, allow_patterns))
        return str(add(cache, allow_patterns[0], b"new").parent)

    hub = SimpleNamespace(HfApi=HfApi, snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    found = find_model(NAME)
    assert found.read_bytes() == b"new" and find_model(NAME) == found
    assert asked == [(NAME, None, ["diar_sortformer_4spk-v1.nemo"])]


def test_a_folder_is_downloaded_with_its_tokenizer(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = ["README.md", "config.json", "model.safetensors", "processor_config.json", "tokenizer.json"]

    class HfApi:
        def list_repo_files(self, repository: str, *, revision: str | None) -> list[str]:
            return files

    def snapshot_download(repository: str, *, revision: str | None, allow_patterns: list[str]) -> None:
        for name in files:
            if name in allow_patterns:
                add(cache, name, b"new")

    hub = SimpleNamespace(HfApi=HfApi, snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert sorted(path.name for path in find_model(NAME).iterdir()) == sorted(files[1:])


def test_a_failed_download_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    class GatedRepoError(Exception):
        pass

    class HfApi:
        def list_repo_files(self, repository: str, *, revision: str | None) -> list[str]:
            raise GatedRepoError("401 Client Error.\nCannot access gated repo")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(HfApi=HfApi))
    with pytest.raises(FileNotFoundError, match=r"downloaded \(GatedRepoError: 401 Client Error\): run `hf download"):
        find_model(NAME)


def test_models_are_read_by_name(cache: Path, tmp_path: Path) -> None:
    archive = add(cache, "diar_sortformer_4spk-v1.nemo", tiny_nemo(tmp_path))
    weights, config = read_model(Path(NAME))
    assert config["model"] == "sortformer" and set(weights) == set(read_model(archive)[0])
    samples = np.random.default_rng(0).normal(size=16000).astype(np.float32) / 10
    assert sortk.load_diarizer(NAME)(samples) == sortk.load_diarizer(archive)(samples)
    soundfile.write("talk.wav", samples, 16000)
    results = [
        CliRunner().invoke(main, ["diarize", "talk.wav", "--model", model, "--out-dir", f"out{n}", "--probs"])
        for n, model in enumerate([NAME, str(archive)])
    ]
    assert [result.exit_code for result in results] == [0, 0], results[0].output
    np.testing.assert_array_equal(np.load("out0/talk.npy"), np.load("out1/talk.npy"))


def test_a_name_in_a_recipe_stands_for_the_content_of_its_file(cache: Path, tmp_path: Path) -> None:
    stage = STAGES[5]

    def key() -> str:
        recipe = load_recipe("mini", [f"train_diar.init={NAME}"])
        return Experiment(STAGES, recipe, tmp_path / "exp").identity(stage).key

    missing = key()
    archive = add(cache, "diar_sortformer_4spk-v1.nemo", b"old", OLD)
    old = key()
    archive.unlink()
    add(cache, "diar_sortformer_4spk-v1.nemo", b"new", NEW)
    assert len({missing, old, key()}) == 3 and key() == key()


def test_a_model_that_a_recipe_names_is_downloaded_before_the_run(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load_recipe("mini", [f"train_diar.init={NAME}"])
    experiment, stage = Experiment(STAGES, recipe, tmp_path / "exp"), STAGES[5]
    missing = experiment.identity(stage).key
    with pytest.raises(FileNotFoundError, match="stage 5 \\(train-diar\\) is to read it; get it, or name another in"):
        experiment.check_files([stage])

    def snapshot_download(*_: object, **__: object) -> None:
        add(cache, "diar_sortformer_4spk-v1.nemo", b"new")

    hub = SimpleNamespace(
        HfApi=lambda: SimpleNamespace(list_repo_files=lambda *_, **__: []), snapshot_download=snapshot_download
    )
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    experiment.check_files([stage])
    found = experiment.identity(stage).key
    assert found != missing and found == Experiment(STAGES, recipe, tmp_path / "exp").identity(stage).key


def test_the_list_says_what_is_here(cache: Path) -> None:
    archive = add(cache, "diar_sortformer_4spk-v1.nemo", b"new")
    result = CliRunner().invoke(main, ["models"])
    assert result.exit_code == 0, result.output
    lines = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert lines[NAME].endswith(str(archive)) and "CC-BY-NC-4.0" in lines[NAME]
    assert {known.name for known in KNOWN_MODELS} <= set(lines)
    assert str(cache) not in lines["nvidia/parakeet-tdt-0.6b-v2"]


def test_the_model_that_comes_with_sortk_has_a_name() -> None:
    assert find_model("sortk/small") == SHIPPED_MODEL and (SHIPPED_MODEL / "config.json").is_file()
