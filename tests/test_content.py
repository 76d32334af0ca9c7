"""Keys of inputs: what was edited has another key, whatever its size and name; what was not has the same."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path

import pytest

from sortk.formats import manifest
from sortk.recipe import load_recipe
from sortk.records import Session
from sortk.run import content
from sortk.run.content import MISSING, REMEMBERED_BYTES, content_key
from sortk.run.experiment import Experiment
from sortk.run.folders import build_folder
from sortk.stages import STAGES

LARGE = REMEMBERED_BYTES * 2


def write_model(folder: Path, weights: bytes = b"w" * 40, pieces: bytes = b"p" * 40) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}", encoding="utf-8")
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "tokenizer.model").write_bytes(pieces)
    return folder


def test_a_model_folder_counts_by_the_content_of_all_its_files(tmp_path: Path) -> None:
    key = content_key(write_model(tmp_path / "a"))
    assert content_key(write_model(tmp_path / "b")) == key  # where it lies does not matter
    assert content_key(write_model(tmp_path / "a", weights=b"v" * 40)) != key
    assert content_key(write_model(tmp_path / "a", pieces=b"q" * 40)) != key
    assert content_key(write_model(tmp_path / "a")) == key
    (tmp_path / "a" / ".cache").mkdir()
    (tmp_path / "a" / ".cache" / "when.txt").write_text("downloaded today", encoding="utf-8")
    assert content_key(tmp_path / "a") == key
    assert content_key(tmp_path / "c") == MISSING


@pytest.mark.parametrize("key", ["rttm_path", "seglst_path", "ctm_path", "uem_path", "audio_path"])
def test_what_a_manifest_names_counts(tmp_path: Path, key: str) -> None:
    named = {name: tmp_path / f"{name}.file" for name in ("rttm_path", "seglst_path", "ctm_path", "uem_path")}
    named["audio_path"] = tmp_path / "m1.wav"
    for path in named.values():
        path.write_text("as it was", encoding="utf-8")
    listed = tmp_path / "list.jsonl"
    manifest.write(listed, [Session("m1", duration=1.0, **named)])  # type: ignore[arg-type]
    before, of_folder = content_key(listed), content_key(tmp_path)
    assert content_key(listed) == before
    named[key].write_text("as it IS ", encoding="utf-8")  # of the same size
    assert content_key(listed) != before and content_key(tmp_path) != of_folder
    named[key].unlink()
    assert content_key(listed) != before


def test_a_manifest_in_a_folder_names_files_outside_of_it(tmp_path: Path) -> None:
    audio = tmp_path / "m1.wav"
    audio.write_bytes(b"1234")
    (tmp_path / "lists").mkdir()
    manifest.write(tmp_path / "lists" / "list.jsonl", [Session("m1", audio, duration=1.0)])
    before = content_key(tmp_path / "lists")
    audio.write_bytes(b"1243")
    assert content_key(tmp_path / "lists") != before


def test_large_files_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cache, audio = tmp_path / "cache" / "sortk" / "content-keys.json", tmp_path / "long.wav"
    audio.write_bytes(b"a" * LARGE)
    monkeypatch.setattr(content, "SETTLED_SECONDS", 1000.0)
    key = content_key(audio)
    assert not cache.exists()  # it changed just now, and may again
    monkeypatch.setattr(content, "SETTLED_SECONDS", 0.05)
    time.sleep(0.1)
    assert content_key(audio) == key
    known = json.loads(cache.read_text(encoding="utf-8"))
    assert list(known) == [str(audio)]
    known[str(audio)][-1] = "remembered"
    cache.write_text(json.dumps(known), encoding="utf-8")
    assert content_key(audio) == "remembered"
    audio.write_bytes(b"b" * LARGE)  # of the same size and inode; its time is that of the old file
    os.utime(audio, ns=(known[str(audio)][2], known[str(audio)][2]))
    assert content_key(audio) not in (key, "remembered")
    cache.write_text("not JSON", encoding="utf-8")
    assert content_key(audio) not in (key, "remembered")


def test_a_folder_that_cannot_hold_the_cache_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    audio = tmp_path / "long.wav"
    audio.write_bytes(b"a" * LARGE)
    monkeypatch.setattr(content, "SETTLED_SECONDS", 0.0)
    assert content_key(audio) == content_key(audio)


def test_files_of_the_working_folder_are_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sortk score der --json der.json` must not make the training stale."""
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe("mini")
    before = [Experiment(STAGES, recipe, tmp_path / "exp").identity(stage).key for stage in STAGES]
    (tmp_path / "der.json").write_text("{}", encoding="utf-8")
    (tmp_path / "model.safetensors").touch()
    assert [Experiment(STAGES, recipe, tmp_path / "exp").identity(stage).key for stage in STAGES] == before


@pytest.mark.parametrize(("key", "number"), [("clean.diarizer", 2), ("train_diar.init", 5), ("train_asr.init", 6)])
def test_another_model_of_the_same_size_makes_the_stage_stale(tmp_path: Path, key: str, number: int) -> None:
    def keys_with(weights: bytes) -> list[str]:
        recipe = load_recipe("mini", [f"{key}={write_model(tmp_path / 'model', weights)}"])
        return [Experiment(STAGES, recipe, tmp_path / "exp").identity(stage).key for stage in STAGES]

    before, after = keys_with(b"w" * 40), keys_with(b"v" * 40)
    assert before[:number] == after[:number] and before[number] != after[number]


def test_an_edited_rttm_of_own_sessions_makes_the_stages_stale(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "m1.wav").write_bytes(b"0" * 100)
    rttm = corpus / "m1.rttm"

    def key_with(line: str) -> str:
        rttm.write_text(line, encoding="utf-8")
        given = ["prepare.corpus=sessions", f"prepare.corpus_dir={corpus}"]
        return Experiment(STAGES, load_recipe("mini", given), tmp_path / "exp").identity(STAGES[-1]).key

    assert key_with("SPEAKER m1 1 0.50 1.00 <NA> <NA> ann <NA> <NA>\n") != key_with(
        "SPEAKER m1 1 0.51 1.00 <NA> <NA> ann <NA> <NA>\n"
    )


def make_stage_1(tmp_path: Path) -> Experiment:
    """An experiment with a finished stage 1, whose files were made by hand."""
    experiment = Experiment(STAGES, load_recipe("mini"), tmp_path / "exp")

    def work(out: Path) -> None:
        for name in ("train.jsonl", "rttm/a.rttm", "audio/a.flac", "checkpoints/last.safetensors", "log/x.txt"):
            (out / name).parent.mkdir(exist_ok=True)
            (out / name).write_text("as it was", encoding="utf-8")

    build_folder(experiment.folder(STAGES[1]), experiment.identity(STAGES[1]), work)
    return experiment


@pytest.mark.parametrize("name", ["train.jsonl", "rttm/a.rttm", "rttm/new.rttm"])
def test_an_edited_file_of_a_finished_stage_makes_later_ones_stale(tmp_path: Path, name: str) -> None:
    folder = make_stage_1(tmp_path).folder(STAGES[1]).final

    def find_keys() -> list[str]:
        experiment = Experiment(STAGES, load_recipe("mini"), tmp_path / "exp")
        return [experiment.identity(stage).key for stage in STAGES]

    before = find_keys()
    times = (folder / "train.jsonl").stat()
    (folder / name).write_text("as it IS ", encoding="utf-8")  # of the same size and time of change
    os.utime(folder / name, ns=(times.st_atime_ns, times.st_mtime_ns))
    after = find_keys()
    assert after[:2] == before[:2]
    assert not set(after[2:]) & set(before[2:])
    if name == "rttm/new.rttm":
        (folder / name).unlink()
    else:
        (folder / name).write_text("as it was", encoding="utf-8")
    assert find_keys() == before


def test_what_is_removed_to_save_space_does_not_count(tmp_path: Path) -> None:
    experiment = make_stage_1(tmp_path)
    before = experiment.identity(STAGES[-1]).key
    for name in ("audio", "checkpoints", "log"):
        shutil.rmtree(experiment.folder(STAGES[1]).final / name)
    shutil.copytree(tmp_path / "exp", tmp_path / "copy")  # all its files are new
    for root in ("exp", "copy"):
        assert Experiment(STAGES, load_recipe("mini"), tmp_path / root).identity(STAGES[-1]).key == before


def test_a_pipe_in_a_finished_stage_is_named(tmp_path: Path) -> None:
    experiment = make_stage_1(tmp_path)
    pipe = experiment.folder(STAGES[1]).final / "audio" / "b.flac"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match=rf"{re.escape(str(pipe))} is a pipe or a device"):
        Experiment(STAGES, load_recipe("mini"), tmp_path / "exp").identity(STAGES[2])


def test_another_teacher_of_the_same_size_makes_the_training_stale(tmp_path: Path) -> None:
    teacher = tmp_path / "teacher.npz"

    def key_with(content: bytes) -> str:
        teacher.write_bytes(content)
        recipe = load_recipe("mini", [f"train_diar.encoder_warmup.teacher={teacher}"])
        return Experiment(STAGES, recipe, tmp_path / "exp").identity(STAGES[5]).key

    assert key_with(b"0" * 40) != key_with(b"1" * 40)
