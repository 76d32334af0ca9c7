"""Two processes of which one meets a bad example: both skip the update, and both stop."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from groups import run_group
from torch import Tensor
from toys import ToySource, ToyTask

from sortk.training.data import Batch, BatchLoader
from sortk.training.loop import train
from sortk.training.options import BatchLimit, LoopOptions
from sortk.training.processes import join_processes

STEPS = 12


class OneBad(ToyTask):
    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        loss, about = super().forward(batch)
        step = round(self.progress * STEPS) + 1
        is_bad = step in (3, 4, 8, 9, 10) and any(name.endswith("-1") for name in batch.names)
        return loss * (math.nan if is_bad else 1.0), about


def learn(out: Path, shard: bool) -> None:
    options = LoopOptions(steps=STEPS, learning_rate=1e-2, warmup_steps=2, log_every=1, max_bad_updates=3, shard=shard)
    with join_processes() as processes:
        task = OneBad()
        try:
            loader = BatchLoader([ToySource([0.8] * 4)], BatchLimit(seconds=1.6), 0)
            train(task, loader, options, out, torch.device("cpu"))
        except ValueError as error:
            weights = torch.cat([weight.detach().flatten() for weight in task.parameters()])
            line = f"{bool(torch.isfinite(weights).all())} {error}"
            (out / f"said-{processes.rank}").write_text(line, encoding="utf-8")


def run(folder: Path, shard: bool) -> list[str]:
    """What each of the two processes said."""
    assert run_group(learn, folder / "out", shard, folder=folder) == [0, 0]
    return [(folder / "out" / f"said-{rank}").read_text(encoding="utf-8") for rank in range(2)]


def test_all_processes_skip_and_stop_together(tmp_path: Path) -> None:
    first, second = run(tmp_path, shard=False)
    assert first.startswith("True the loss is nan at step 10, of ")
    assert second == first, "both name the same examples"
    lines = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    skipped = [line for line in lines if "skipped" in line]
    assert [line["step"] for line in skipped] == [3, 4, 8, 9]
    assert all(any(name.endswith("-1") for name in line["examples"]) for line in skipped)


@pytest.mark.skipif(not hasattr(torch.cpu.Stream, "record_event"), reason="FSDP2 on CPUs needs a newer torch")
def test_so_do_processes_that_share_the_weights(tmp_path: Path) -> None:
    first, second = run(tmp_path, shard=True)
    assert first.startswith("True the loss is nan at step 10, of ")
    assert second == first
