from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from toys import ToySource, ToyTask

from sortk.training import threads
from sortk.training.data import BatchLoader
from sortk.training.loop import train
from sortk.training.options import BatchLimit, LoopOptions
from sortk.training.threads import choose_threads, use_threads

Rates = dict[int, float]


def do_nothing() -> None:
    pass


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rates]:
    """A machine with four cores on which one thread, or four, compute at these rates; at first they are idle."""
    rates = {1: 100.0, 4: 350.0}
    monkeypatch.setattr(threads, "measure_rate", lambda compute, n_threads: rates[n_threads])
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with use_threads(4):
        yield rates


def test_busy_cores_are_given_one_thread(rates: Rates, caplog: pytest.LogCaptureFixture) -> None:
    assert choose_threads(do_nothing) == 4
    rates[4] = 83.0
    caplog.set_level("INFO")
    assert choose_threads(do_nothing) == 1
    assert "4 threads are only 0.8 times as fast" in caplog.text


def test_the_users_number_is_kept(rates: Rates, monkeypatch: pytest.MonkeyPatch) -> None:
    rates[4] = 2.0
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert choose_threads(do_nothing) == choose_threads(do_nothing, earlier=1) == 4


def test_a_resumed_run_has_as_many_threads_as_before(rates: Rates, tmp_path: Path) -> None:
    """Another number would change the last bits of the weights."""
    seen = []

    class Watched(ToyTask):
        def forward(self, batch):  # type: ignore[no-untyped-def]
            seen.append(torch.get_num_threads())
            return super().forward(batch)

    loader = BatchLoader([ToySource([0.8] * 10)], BatchLimit(seconds=3.2), seed=0)
    cpu = torch.device("cpu")
    for n_steps, busy in ((2, True), (4, False)):
        rates[4] = 50.0 if busy else 350.0
        train(Watched(), loader, LoopOptions(steps=n_steps, warmup_steps=1), tmp_path, cpu)
    # Of the first run, the first batch is tried before a number is chosen.
    assert seen == [4, *[1] * 4] and torch.get_num_threads() == 4


def test_the_measurement_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, statistics and random numbers are as in a run that measures nothing, because its threads are given."""
    loader = BatchLoader([ToySource([0.8] * 10)], BatchLimit(seconds=3.2), seed=0)
    weights = []
    for name, given in (("given", "1"), ("measured", None)):
        if given:
            monkeypatch.setenv("OMP_NUM_THREADS", given)
        else:
            monkeypatch.delenv("OMP_NUM_THREADS")
            monkeypatch.setattr(threads, "ROUND_SECONDS", 0.0)
            monkeypatch.setattr(threads, "MIN_GAIN", float("inf"))  # one thread is chosen in any case
        torch.manual_seed(0)
        task = ToyTask()
        with use_threads(1 if given else 2):
            train(task, loader, LoopOptions(steps=3, warmup_steps=1), tmp_path / name, torch.device("cpu"))
        weights.append(task.state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
