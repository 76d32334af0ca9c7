"""Two processes, started as torchrun starts them, against one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from spoken import WORD_SECONDS, make_samples
from test_diarizer import make_sessions

from sortk.formats import manifest
from sortk.formats.model_folder import load_model

CONFIG = """
size = "tiny"
n_speakers = 2
global_speakers = true
encoder_warmup = {{ steps = 2, simulated = 0.0, batch_seconds = {batch_seconds} }}
[[phases]]
speaker_weight = 0.1
[phases.loop]
steps = 4
learning_rate = 1e-3
warmup_steps = 2
batch_seconds = {batch_seconds}
log_every = 1
validate_every = 2
accumulate = 2
"""


ASR_CONFIG = """
size = "tiny"
supervision = "truth"
n_speakers = 2
n_tokens = 40
[[phases]]
word_weight = 0.5
[phases.loop]
steps = 4
learning_rate = 1e-3
warmup_steps = 2
batch_seconds = {batch_seconds}
log_every = 1
validate_every = 2
"""


def train(command: str, settings: str, folder: Path, n_processes: int, batch_seconds: float) -> list[dict[str, float]]:
    """Runs `sortk train-diar` or `train-asr`; its log."""
    out, config = folder / f"out{n_processes}", folder / f"config{n_processes}.toml"
    config.write_text(settings.format(batch_seconds=batch_seconds), encoding="utf-8")
    launcher = [] if n_processes == 1 else ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    data = ["--train", folder / "m.jsonl", "--valid", folder / "m.jsonl", "--config", config, "--out", out]
    line = [sys.executable, "-m", *launcher, "sortk", command, *map(str, data), "-q"]
    finished = subprocess.run(line, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return [json.loads(line) for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines()]


def check_equal(one: list[dict[str, float]], two: list[dict[str, float]], rel: float = 2e-3) -> None:
    for line, other in zip(one, two, strict=True):
        assert line.keys() == other.keys()
        for name in line.keys() - {"audio_per_second", "examples_per_second", "phase"}:
            assert other[name] == pytest.approx(line[name], rel=rel, abs=2e-4), (name, line, other)


def test_two_processes_learn_as_one_with_twice_the_batch(tmp_path: Path) -> None:
    """Batches of 5 sessions, so that the shares are unequal; with batch norm, the auxiliary loss and accumulation."""
    manifest.write(tmp_path / "m.jsonl", make_sessions(tmp_path, 10))
    one, two = (train("train-diar", CONFIG, tmp_path, n, 20.0 / n) for n in (1, 2))
    assert len(one) == 1 + 1 + 4 + 2
    check_equal(one, two)
    alone, together = (load_model(tmp_path / f"out{n}" / "model")[0] for n in (1, 2))
    running = "encoder.layers.0.conv.batch_norm.running_var"
    assert together[running].tolist() == pytest.approx(alone[running].tolist(), rel=1e-3)


def test_two_processes_train_an_asr_as_one(tmp_path: Path) -> None:
    manifest.write(tmp_path / "m.jsonl", make_samples(tmp_path, 6))
    one, two = (train("train-asr", ASR_CONFIG, tmp_path, n, 6 * WORD_SECONDS / n) for n in (1, 2))
    assert len(one) == 4 + 2
    check_equal(one, two, rel=1e-2)  # dropout differs
