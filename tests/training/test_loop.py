from __future__ import annotations

import json
import logging
import math
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from toys import ToySource, ToyTask

from sortk.formats.files import FormatError
from sortk.training.checkpoint import TrainingProgress
from sortk.training.data import Batch, BatchLoader
from sortk.training.log import Bar
from sortk.training.loop import train
from sortk.training.optimizer import learning_rate
from sortk.training.options import BatchLimit, LoopOptions
from sortk.training.processes import Processes
from sortk.training.signals import TrainingStopped

OPTIONS = LoopOptions(steps=20, learning_rate=1e-2, warmup_steps=4, validate_every=5, checkpoint_every=5, log_every=1)
CPU = torch.device("cpu")


@pytest.fixture
def toy_loader() -> BatchLoader:
    return BatchLoader([ToySource([0.8] * 10 + [1.6] * 6)], BatchLimit(seconds=3.2), seed=0)


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


class Signalled(ToyTask):
    """Gets a signal in the middle of a step, or when it validates."""

    def __init__(self, number: int, at: float = 7 / 20, again: bool = False) -> None:
        super().__init__()
        self.number, self.at, self.again = number, at, again

    def forward(self, batch):  # type: ignore[no-untyped-def]
        if self.progress == self.at:
            for _ in range(1 + self.again):
                os.kill(os.getpid(), self.number)
        return super().forward(batch)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_save_a_checkpoint_and_stop(
    tmp_path: Path, toy_loader: BatchLoader, number: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    before = signal.getsignal(number)
    with pytest.raises(TrainingStopped, match="at step 8, with a checkpoint; run the same command again"):
        train(Signalled(number), toy_loader, OPTIONS, tmp_path / "stopped", CPU, "long")
    assert signal.getsignal(number) == before
    assert ("press Ctrl-C again to stop at once" in caplog.text) == (number == signal.SIGINT)
    caplog.set_level("INFO")
    resumed, undisturbed = ToyTask(), ToyTask()
    train(resumed, toy_loader, OPTIONS, tmp_path / "stopped", CPU, "long")
    assert "resuming phase long at step 8 of 20" in caplog.text
    train(undisturbed, toy_loader, OPTIONS, tmp_path / "whole", CPU, "long")
    assert torch.equal(weights_of(undisturbed), weights_of(resumed))


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path, toy_loader: BatchLoader) -> None:
    with pytest.raises(KeyboardInterrupt) as raised:
        train(Signalled(signal.SIGINT, again=True), toy_loader, OPTIONS, tmp_path, CPU)
    assert not isinstance(raised.value, TrainingStopped)


def test_a_signal_in_the_last_validation_is_not_lost(tmp_path: Path, toy_loader: BatchLoader) -> None:
    """The next phase must not start."""

    class Validating(ToyTask):
        def validate(self, device: torch.device) -> dict[str, float]:
            if self.progress == 19 / 20:
                os.kill(os.getpid(), signal.SIGINT)
            return super().validate(device)

    with pytest.raises(TrainingStopped, match="at step 20"):
        train(Validating(), toy_loader, OPTIONS, tmp_path, CPU)
    assert train(ToyTask(), toy_loader, OPTIONS, tmp_path, CPU).step == 20


def test_a_warm_up_longer_than_the_training_is_reported(
    tmp_path: Path, toy_loader: BatchLoader, caplog: pytest.LogCaptureFixture
) -> None:
    run(tmp_path / "short", toy_loader)
    assert "warmup_steps" not in caplog.text
    run(tmp_path / "long", toy_loader, replace(OPTIONS, steps=2, warmup_steps=20))
    assert "phase train: warmup_steps (20) is more than steps (2), so the learning rate stays below" in caplog.text


def test_a_finished_run_is_not_trained_further(tmp_path: Path, toy_loader: BatchLoader) -> None:
    first = run(tmp_path, toy_loader)
    again = run(tmp_path, toy_loader)
    assert torch.equal(weights_of(first), weights_of(again))


def test_accumulation_equals_a_larger_batch(tmp_path: Path) -> None:
    class NoDropout(ToyTask):
        def __init__(self) -> None:
            super().__init__()
            self.model.layers[1] = torch.nn.Identity()

    halves, whole = (BatchLoader([ToySource([0.8] * 8)], BatchLimit(seconds=seconds), seed=0) for seconds in (3.2, 6.4))
    one, two = NoDropout(), NoDropout()
    common = {"steps": 1, "learning_rate": 1e-2, "warmup_steps": 1}
    train(one, whole, LoopOptions(**common), tmp_path / "one", CPU)
    train(two, halves, LoopOptions(**common, accumulate=2), tmp_path / "two", CPU)
    assert torch.allclose(weights_of(one), weights_of(two), atol=1e-6)


def test_an_epoch_with_fewer_batches_than_an_update_goes_on(tmp_path: Path) -> None:
    task = ToyTask()
    progress = train(
        task,
        BatchLoader([ToySource([0.8] * 3)], BatchLimit(seconds=1.0), 0),
        LoopOptions(steps=3, accumulate=2),
        tmp_path,
        CPU,
    )
    assert (progress.epoch, progress.batch) == (1, 2)  # updates of 2, 1 and 2 batches


def test_nothing_to_learn_from(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing to learn from"):
        train(ToyTask(), BatchLoader([ToySource([])], BatchLimit(seconds=1.0), 0), OPTIONS, tmp_path, CPU)


class BadSteps(ToyTask):
    """A loss, or gradients, that are not finite at some steps; a batch norm that the samples of those steps reach."""

    def __init__(self, losses: set[int] = frozenset(), gradients: set[int] = frozenset()) -> None:
        super().__init__()
        self.model.norm = torch.nn.BatchNorm1d(1)
        self.losses, self.gradients = losses, gradients

    def forward(self, batch):  # type: ignore[no-untyped-def]
        step = round(self.progress * 20) + 1
        loss, about = super().forward(batch)
        bad = step in self.losses
        self.model.norm(torch.full((2, 1), math.nan if bad else 1.0))
        if step in self.gradients:
            loss = loss + (0 * self.model.layers[0].weight.sum()).sqrt()  # d sqrt(x) / dx is not finite at 0
        return loss * (math.nan if bad else 1.0), about


def test_a_loss_that_is_not_a_number_names_the_examples(tmp_path: Path, toy_loader: BatchLoader) -> None:
    always = set(range(1, 21))
    with pytest.raises(
        ValueError, match=r"the loss is nan at step 10, of \d-\d.*, the last of 10 updates in a row; look"
    ):
        train(BadSteps(always), toy_loader, OPTIONS, tmp_path / "ten", CPU)
    at_once = replace(OPTIONS, max_bad_updates=1)
    with pytest.raises(ValueError, match=r"the loss is nan at step 1, of 0-\d+.*; look at these examples"):
        train(BadSteps(always), toy_loader, at_once, tmp_path / "one", CPU)
    with pytest.raises(ValueError, match=r"the norm of the gradients is nan at step 3, of \d-\d"):
        train(BadSteps(gradients={3}), toy_loader, at_once, tmp_path / "gradients", CPU)


@pytest.mark.parametrize("kind", ["losses", "gradients"])
def test_a_bad_update_is_skipped_and_its_examples_are_logged(
    tmp_path: Path, toy_loader: BatchLoader, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    task = BadSteps(**{kind: {3, 4, 9}})
    progress = train(task, toy_loader, replace(OPTIONS, max_bad_updates=3), tmp_path, CPU)
    assert progress.step == 20 and progress.bad_updates == 0
    assert all(torch.isfinite(tensor).all() for tensor in task.state_dict().values())
    skipped = [line for line in read_log(tmp_path) if "skipped" in line]
    assert [line["step"] for line in skipped] == [3, 4, 9]
    assert all(line["examples"] for line in skipped)
    assert "step 3: the " in caplog.text and "the update is skipped" in caplog.text
    assert "NaN" not in (tmp_path / "log.jsonl").read_text(encoding="utf-8")


def test_a_skipped_update_leaves_weights_and_statistics_as_they_were(tmp_path: Path, toy_loader: BatchLoader) -> None:
    task, untouched = BadSteps({1}), BadSteps()
    train(task, toy_loader, replace(OPTIONS, steps=1), tmp_path, CPU)
    for name, tensor in untouched.state_dict().items():
        assert torch.equal(task.state_dict()[name], tensor), name


def test_of_accumulated_batches_the_bad_one_is_named(tmp_path: Path) -> None:
    class OneBad(ToyTask):
        calls = 0

        def forward(self, batch):  # type: ignore[no-untyped-def]
            loss, about = super().forward(batch)
            self.calls += 1
            self.bad = batch.names if self.calls == 2 else self.bad if self.calls > 2 else ()
            return loss * (math.inf if self.calls == 2 else 1.0), about

    task, loader = OneBad(), BatchLoader([ToySource([0.8] * 8)], BatchLimit(seconds=1.6), seed=0)
    train(task, loader, replace(OPTIONS, steps=1, accumulate=4), tmp_path, CPU)
    (line,) = [line for line in read_log(tmp_path) if "skipped" in line]
    assert tuple(line["examples"]) == task.bad and len(task.bad) == 2
    assert line["skipped"] == "the loss is inf"


def test_bad_updates_are_counted_over_a_restart(tmp_path: Path, toy_loader: BatchLoader) -> None:
    options = replace(OPTIONS, max_bad_updates=8)
    with pytest.raises(ValueError, match="at step 11, .* the last of 8 updates in a row"):
        train(BadSteps(set(range(4, 21))), toy_loader, options, tmp_path, CPU)
    with pytest.raises(ValueError, match="at step 11, .* the last of 8 updates in a row"):  # from step 10 on
        train(BadSteps(set(range(4, 21))), toy_loader, options, tmp_path, CPU)


def test_a_loss_that_jumps_is_logged_with_its_examples(tmp_path: Path, toy_loader: BatchLoader) -> None:
    class Jump(ToyTask):
        def forward(self, batch):  # type: ignore[no-untyped-def]
            loss, about = super().forward(batch)
            return loss * (9.0 if round(self.progress * 70) == 60 else 1.0), about

    train(Jump(), toy_loader, replace(OPTIONS, steps=70), tmp_path, CPU)
    (line,) = [line for line in read_log(tmp_path) if "spike" in line]
    assert line["step"] == 61 and line["examples"] and "times its mean" in line["spike"]


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 0x40  # of the last tensor: the file is still one that can be read
    path.write_bytes(content)


@pytest.mark.parametrize("harm", [damage, lambda path: path.write_bytes(path.read_bytes()[:-7]), Path.unlink])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    tmp_path: Path, toy_loader: BatchLoader, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    undisturbed = run(tmp_path / "whole", toy_loader)
    run(tmp_path / "harmed", toy_loader)
    folder = tmp_path / "harmed" / "checkpoints" / "train"
    harm(folder / "last.safetensors")
    resumed = run(tmp_path / "harmed", toy_loader)
    assert torch.equal(weights_of(undisturbed), weights_of(resumed))
    assert ("resuming from the checkpoint before it" in caplog.text) == (harm is not Path.unlink)
    assert {path.name for path in folder.iterdir()} == {"best", "last.safetensors", "before-last.safetensors"}
    damage(folder / "last.safetensors")  # the one before it is no damaged one, but that of step 15
    again = run(tmp_path / "harmed", toy_loader)
    assert torch.equal(weights_of(undisturbed), weights_of(again))


def test_without_a_whole_checkpoint_it_says_so(tmp_path: Path, toy_loader: BatchLoader) -> None:
    run(tmp_path, toy_loader)
    for name in ("last", "before-last"):
        damage(tmp_path / "checkpoints" / "train" / f"{name}.safetensors")
    with pytest.raises(FormatError, match=r"before-last.safetensors: damaged: .* no other checkpoint; --force"):
        run(tmp_path, toy_loader)


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


def test_a_training_that_has_diverged_is_not_done(tmp_path: Path, toy_loader: BatchLoader) -> None:
    """Fewer bad updates than stop it at once, but no good one after them; nor is it done when it is run again."""

    class Diverges(ToyTask):
        def forward(self, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            loss, about = super().forward(batch)
            return loss * (math.nan if self.progress > 0.1 else 1.0), about

    options = replace(OPTIONS, steps=8, checkpoint_every=4)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"phase train has diverged: none of the last 7 of 8 updates"):
            train(Diverges(), toy_loader, options, tmp_path, CPU)


def test_lines_of_a_log_have_words_and_the_time_that_is_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clock = iter([0.0, 10.0, 100.0])
    monkeypatch.setattr("sortk.training.log.time.monotonic", lambda: next(clock))
    progress = TrainingProgress(step=10)
    with Bar(progress, 60, Processes()) as bar:
        bar.scores = {"der": 0.1234}
        for step in (11, 20):  # ten steps in 100 s, 40 to go
            progress.step = step
            bar.show({"loss": 0.5, "audio_per_second": 53.84, "examples_per_second": 1.0, "learning_rate": 0.1})
    assert caplog.messages == ["step 20 of 60: loss 0.5, DER 12.3%, 53.8 x real time, 0:06:40 left"]
