from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from sortk.formats.files import FormatError
from sortk.formats.model_folder import load_config, load_model, load_tensors, save_model, save_tensors


def test_a_model_folder_is_read_back(tmp_path: Path) -> None:
    weights = {"a": torch.arange(6.0).view(2, 3).T, "n": torch.tensor(7)}  # not contiguous
    save_model(tmp_path / "model", weights, {"model": "x", "options": {"d": 1}})
    found, config = load_model(tmp_path / "model")
    assert config == {"model": "x", "options": {"d": 1}}
    assert found.keys() == weights.keys() and all(torch.equal(found[name], weights[name]) for name in weights)


def test_others_may_read_it_as_far_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        save_model(tmp_path, {"a": torch.zeros(1)}, {"model": "x", "options": {}})
    finally:
        os.umask(before)
    assert {oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir()} == {"0o644"}


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*about: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", fail)
    with pytest.raises(OSError, match=r"w\.safetensors: cannot be written \(I/O error: No space left"):
        save_tensors(tmp_path / "w.safetensors", {"a": torch.zeros(1)})
    assert not list(tmp_path.iterdir())


def test_damage_is_one_sentence(tmp_path: Path) -> None:
    save_model(tmp_path, {"a": torch.zeros(100)}, {"model": "x", "options": {}})
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-10])
    with pytest.raises(FormatError, match="damaged safetensors"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text('{"model": 1}', encoding="utf-8")
    with pytest.raises(FormatError, match="not the config of a model"):
        load_model(tmp_path)
    with pytest.raises(FormatError, match="no such file"):
        load_tensors(tmp_path / "nothing.safetensors")
    with pytest.raises(FormatError, match="not a model folder"):
        load_model(tmp_path / "nowhere")


def test_weights_that_are_not_those_of_the_config_are_refused(tmp_path: Path) -> None:
    save_model(tmp_path, {"a": torch.zeros(100)}, {"model": "x", "options": {}})
    save_tensors(tmp_path / "model.safetensors", {"a": torch.ones(100)})
    with pytest.raises(
        FormatError, match=r"model\.safetensors: is not the file .* \(sha256\); copy the model folder again"
    ):
        load_model(tmp_path)


def test_a_folder_of_another_version(tmp_path: Path) -> None:
    weights, config = {"a": torch.zeros(2)}, {"model": "x", "options": {}}
    save_model(tmp_path, weights, config)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")  # as before there were versions
    assert load_model(tmp_path)[1] == load_config(tmp_path) == config
    for version, about in ((2, "newer sortk: format 2, this one reads up to 1"), ("1", "is a number, not '1'")):
        path.write_text(json.dumps(config | {"format": version}), encoding="utf-8")
        with pytest.raises(FormatError, match=about):
            load_model(tmp_path)
    path.write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(FormatError, match="nested too deeply"):
        load_model(tmp_path)


def test_a_tokenizer_that_is_not_that_of_the_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"one")
    save_model(tmp_path, {"a": torch.zeros(1)}, {"model": "canary", "options": {}})
    assert load_model(tmp_path)[1] == {"model": "canary", "options": {}}
    (tmp_path / "tokenizer.model").write_bytes(b"two")
    with pytest.raises(FormatError, match=r"tokenizer\.model: is not the file that config\.json was written with"):
        load_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["files_sha256"]  # as older folders are
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_model(tmp_path)[1] == {"model": "canary", "options": {}}


def test_a_pipe_is_not_waited_at(tmp_path: Path) -> None:
    save_model(tmp_path, {"a": torch.zeros(1)}, {"model": "canary", "options": {}})
    (tmp_path / "model.safetensors").unlink()
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(FormatError, match=r"model\.safetensors: is not a plain file"):
        load_model(tmp_path)
