"""What a user sees of long work: a bar on a terminal, lines in a log."""

from __future__ import annotations

import io
import itertools
import logging

import pytest

from sortk import progress
from sortk.progress import Progress, ProgressBar, format_clock, show_progress


@pytest.mark.parametrize(
    ("seconds", "clock"), [(0, "0:00:00"), (59.6, "0:01:00"), (3725, "1:02:05"), (360000, "100:00:00")]
)
def test_clock(seconds: float, clock: str) -> None:
    assert format_clock(seconds) == clock


def test_the_bar_says_how_long_it_took_and_will_take() -> None:
    bar = ProgressBar(total=100, desc="tuning", unit=" trials", disable=False, file=io.StringIO(), ncols=100)
    bar.n = 10
    bar.start_t -= 3725  # seconds for 10 trials: 90 take 9 x 3725 s = 9 h 18 min 45 s
    shown = str(bar)
    assert shown.startswith("tuning:  10 % |") and shown.endswith("| 10 of 100 trials, 1:02:05, 9:18:45 left"), shown
    bar.close()


def test_a_resumed_bar_counts_only_what_was_done_now() -> None:
    bar = ProgressBar(total=100, initial=80, desc="training", unit="", disable=False, file=io.StringIO(), ncols=100)
    bar.n = 90
    bar.start_t -= 60
    assert str(bar).endswith("0:01:00, 0:01:00 left")
    bar.close()


def test_a_log_gets_a_line_now_and_then(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0, 10)  # one look at it at the start, and one for each item: 10 s apart
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with caplog.at_level(logging.INFO, "sortk.progress"):
        assert list(show_progress("abcde", 5, "read call")) == list("abcde")
    # Items end at 10, 20, ... s; a line comes when more than 15 s have passed since the last.
    assert caplog.messages == ["read call: 40 % done, 0:00:30 left", "read call: 80 % done, 0:00:10 left"]


def test_nothing_to_do() -> None:
    assert list(show_progress([], 0, "read call")) == []
    with Progress("diarizing", 0.0, "s") as empty:
        empty.update(0.0)
