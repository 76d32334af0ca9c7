"""Checkpoints: a kill between two renames leaves them as if it had not been."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sortk.training.checkpoint import Checkpoints, TrainingProgress


@pytest.mark.parametrize("n_renames", [0, 1, 2])
def test_a_kill_between_renames_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_renames: int) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    checkpoints = Checkpoints(tmp_path, keep_best=1)
    for step in (1, 2):
        checkpoints.save(TrainingProgress(step), model, optimizer)
    two = (tmp_path / "last.safetensors").read_bytes()
    replace, done = Path.replace, list[Path]()

    def replace_until_killed(path: Path, target: Path) -> Path:
        if not path.name.endswith(".tmp"):  # of a file that becomes whole
            if len(done) == n_renames:
                raise KeyboardInterrupt
            done.append(path)
        return replace(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", replace_until_killed)
        if n_renames < 2:
            with pytest.raises(KeyboardInterrupt):
                checkpoints.save(TrainingProgress(3), model, optimizer)
        else:
            checkpoints.save(TrainingProgress(3), model, optimizer)
    assert Checkpoints(tmp_path, keep_best=1).restore(model, optimizer).step == 3
    assert {path.name for path in tmp_path.iterdir()} == {"last.safetensors", "before-last.safetensors"}
    assert (tmp_path / "before-last.safetensors").read_bytes() == two
