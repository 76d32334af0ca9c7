from __future__ import annotations

import json
import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from toys import ToySource, ToyTask

from sortk.training.batches import BatchLoader
from sortk.training.loop import TrainingStopped, learning_rate, train
from sortk.training.options import LoopOptions

OPTIONS = LoopOptions(steps=20, learning_rate=1e-2, warmup_steps=4, validate_every=5, checkpoint_every=5, log_every=1)
CPU = torch.device("cpu")


@pytest.fixture
def toy_loader() -> BatchLoader:
    return BatchLoader([ToySource([0.8] * 10 + [1.6] * 6)], batch_seconds=3.2, seed=0)


def read_log(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines()]


def weights_of(task: ToyTask) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in task.parameters()])


def run(out: Path, loader: BatchLoader, options: LoopOptions = OPTIONS) -> ToyTask:
    task = ToyTask()
    train(task, loader, options, out, CPU)
    return task


def test_the_loss_falls_and_is_logged(tmp_path: Path, toy_loader: BatchLoader) -> None:
    run(tmp_path, toy_loader, LoopOptions(steps=150, learning_rate=3e-2, warmup_steps=5, log_every=1))
    losses = [line["loss"] for line in read_log(tmp_path) if "loss" in line]
    assert len(losses) == 150 and losses[-1] < 0.5 * losses[0]
    assert all(line["double"] == pytest.approx(2 * line["loss"]) for line in read_log(tmp_path) if "loss" in line)


class Killed(BaseException):
    """Stands for kill -9: nothing of the loop may catch it."""


@pytest.mark.parametrize(
    ("killed_at", "optimizer"), [(1, "adamw"), (6, "adamw"), (13, "adamw"), (19, "adamw"), (8, "muon")]
)
def test_a_killed_run_ends_with_the_same_weights(
    tmp_path: Path, toy_loader: BatchLoader, killed_at: int, optimizer: Literal["adamw", "muon"]
) -> None:
    options = replace(OPTIONS, optimizer=optimizer)
    undisturbed = run(tmp_path / "whole", toy_loader, options)

    class Bomb(ToyTask):
        calls = 0

        def forward(self, batch):  # type: ignore[no-untyped-def]
            Bomb.calls += 1
            if Bomb.calls == killed_at:
                raise Killed
            return super().forward(batch)

    with pytest.raises(Killed):
        train(Bomb(), toy_loader, options, tmp_path / "killed", CPU)
    resumed = run(tmp_path / "killed", toy_loader, options)
    assert torch.equal(weights_of(undisturbed), weights_of(resumed))
    kept = ("step", "loss", "score")
    curves = [
        [{k: v for k, v in line.items() if k in kept} for line in read_log(tmp_path / name)]
        for name in ("whole", "killed")
    ]
    assert curves[0] == curves[1]


def test_sigterm_saves_and_stops(tmp_path: Path, toy_loader: BatchLoader) -> None:
    class Terminated(ToyTask):
        def forward(self, batch):  # type: ignore[no-untyped-def]
            if self.progress == 7 / 20:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().forward(batch)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(TrainingStopped, match="at step 8; run the same command again"):
        train(Terminated(), toy_loader, OPTIONS, tmp_path / "stopped", CPU)
    assert signal.getsignal(signal.SIGTERM) == before
    resumed, undisturbed = run(tmp_path / "stopped", toy_loader), run(tmp_path / "whole", toy_loader)
    assert torch.equal(weights_of(undisturbed), weights_of(resumed))


def test_a_finished_run_is_not_trained_further(tmp_path: Path, toy_loader: BatchLoader) -> None:
    first = run(tmp_path, toy_loader)
    again = run(tmp_path, toy_loader)
    assert torch.equal(weights_of(first), weights_of(again))


def test_accumulation_equals_a_larger_batch(tmp_path: Path) -> None:
    class NoDropout(ToyTask):
        def __init__(self) -> None:
            super().__init__()
            self.model.layers[1] = torch.nn.Identity()

    halves, whole = (BatchLoader([ToySource([0.8] * 8)], seconds, seed=0) for seconds in (3.2, 6.4))
    one, two = NoDropout(), NoDropout()
    common = {"steps": 1, "learning_rate": 1e-2, "warmup_steps": 1}
    train(one, whole, LoopOptions(**common), tmp_path / "one", CPU)
    train(two, halves, LoopOptions(**common, accumulate=2), tmp_path / "two", CPU)
    assert torch.allclose(weights_of(one), weights_of(two), atol=1e-6)


def test_an_epoch_with_fewer_batches_than_an_update_goes_on(tmp_path: Path) -> None:
    task = ToyTask()
    progress = train(
        task, BatchLoader([ToySource([0.8] * 3)], 1.0, 0), LoopOptions(steps=3, accumulate=2), tmp_path, CPU
    )
    assert (progress.epoch, progress.batch) == (1, 2)  # updates of 2, 1 and 2 batches


def test_nothing_to_learn_from(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing to learn from"):
        train(ToyTask(), BatchLoader([ToySource([])], 1.0, 0), OPTIONS, tmp_path, CPU)


def test_a_loss_that_is_not_a_number_names_the_examples(tmp_path: Path, toy_loader: BatchLoader) -> None:
    class Broken(ToyTask):
        def forward(self, batch):  # type: ignore[no-untyped-def]
            loss, about = super().forward(batch)
            return loss * math.nan, about

    with pytest.raises(ValueError, match=r"the loss is nan at step 1, of 0-\d"):
        train(Broken(), toy_loader, OPTIONS, tmp_path, CPU)


def test_patience_ends_a_run_that_gets_no_better(tmp_path: Path, toy_loader: BatchLoader) -> None:
    class Stuck(ToyTask):
        def validate(self, device: torch.device) -> dict[str, float]:
            return {"score": 1.0}

    progress = train(
        Stuck(), toy_loader, LoopOptions(steps=50, validate_every=2, patience=3, warmup_steps=1), tmp_path, CPU
    )
    assert progress.step == 8  # the first is the best; three more are not better


def test_half_precision_on_the_cpu_trains(tmp_path: Path, toy_loader: BatchLoader) -> None:
    options = LoopOptions(steps=5, warmup_steps=1, precision="bfloat16")
    task = ToyTask()
    assert train(task, toy_loader, options, tmp_path, CPU).step == 5
    assert torch.isfinite(weights_of(task)).all()


def test_frozen_parts_do_not_learn(tmp_path: Path, toy_loader: BatchLoader) -> None:
    frozen, before = ToyTask(), ToyTask().state_dict()
    train(frozen, toy_loader, LoopOptions(steps=3, warmup_steps=1, freeze=("layers.0",)), tmp_path, CPU)
    after = frozen.state_dict()
    assert torch.equal(after["model.layers.0.weight"], before["model.layers.0.weight"])
    assert not torch.equal(after["model.layers.3.weight"], before["model.layers.3.weight"])
    with pytest.raises(ValueError, match="the model has no part 'encoder'; its parts are layers"):
        train(ToyTask(), toy_loader, LoopOptions(freeze=("encoder",)), tmp_path / "other", CPU)


def test_learning_rates() -> None:
    paper = LoopOptions()
    assert learning_rate(0, paper) == pytest.approx(1e-6)  # 1e-4 / 2500 is below the floor
    assert learning_rate(2499, paper) == pytest.approx(1e-4)
    assert learning_rate(9999, paper) == pytest.approx(0.5e-4)
    assert learning_rate(10**9, paper) == 1e-6
    short = LoopOptions(steps=110, warmup_steps=10, learning_rate=1.0, min_learning_rate=0.0, annealing="cosine")
    assert [learning_rate(step, short) for step in (0, 10, 60, 110)] == pytest.approx([0.1, 1.0, 0.5, 0.0])
