"""Two processes, started as torchrun starts them, against one."""

from __future__ import annotations

import json
import subprocess
import sys
import time
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


def write_line(command: str, folder: Path, config: Path, out: Path, n_processes: int) -> list[str]:
    launcher = [] if n_processes == 1 else ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    data = ["--train", folder / "m.jsonl", "--valid", folder / "m.jsonl", "--config", config, "--out", out]
    return [sys.executable, "-m", *launcher, "sortk", command, *map(str, data), "-q"]


def train(command: str, settings: str, folder: Path, n_processes: int, batch_seconds: float) -> list[dict[str, float]]:
    """Runs `sortk train-diar` or `train-asr`; its log."""
    out, config = folder / f"out{n_processes}", folder / f"config{n_processes}.toml"
    config.write_text(settings.format(batch_seconds=batch_seconds), encoding="utf-8")
    line = write_line(command, folder, config, out, n_processes)
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


def test_two_processes_that_share_the_weights_learn_as_one(tmp_path: Path) -> None:
    """FSDP2: the same losses, and a model folder like any other."""
    manifest.write(tmp_path / "m.jsonl", make_sessions(tmp_path, 10))
    one = train("train-diar", CONFIG, tmp_path, 1, 20.0)
    two = train("train-diar", CONFIG.replace("accumulate = 2", "accumulate = 2\nshard = true"), tmp_path, 2, 10.0)
    check_equal(one, two)
    alone, together = (load_model(tmp_path / f"out{n}" / "model")[0] for n in (1, 2))
    assert {name: tensor.shape for name, tensor in alone.items()} == {
        name: tensor.shape for name, tensor in together.items()
    }


LONG_CONFIG = """
size = "tiny"
n_speakers = 2
[[phases]]
[phases.loop]
steps = {steps}
learning_rate = 1e-3
warmup_steps = 2
batch_seconds = 8.0
log_every = 1
validate_every = 1000
checkpoint_every = 1000
"""


def read_steps(path: Path) -> list[int]:
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [fields["step"] for fields in map(json.loads, lines) if "loss" in fields]


def test_one_process_goes_on_where_two_were_stopped(tmp_path: Path) -> None:
    manifest.write(tmp_path / "m.jsonl", make_sessions(tmp_path, 10))
    config, out = tmp_path / "config.toml", tmp_path / "out"
    config.write_text(LONG_CONFIG.format(steps=25), encoding="utf-8")
    log = out.with_name("out.partial") / "log.jsonl"
    two = subprocess.Popen(write_line("train-diar", tmp_path, config, out, 2), stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while len(read_steps(log)) < 3:
        assert time.monotonic() < deadline and two.poll() is None
        time.sleep(0.05)
    two.terminate()
    said = two.communicate()[1]
    stopped_at = len(read_steps(log))
    assert 3 <= stopped_at < 25
    assert said.count("sortk: interrupted") == 1
    one = subprocess.run(
        write_line("train-diar", tmp_path, config, out, 1), capture_output=True, text=True, check=False
    )
    assert one.returncode == 0, one.stderr
    assert read_steps(out / "log.jsonl") == list(range(1, 26))


def test_an_error_in_one_process_ends_all_with_one_message(tmp_path: Path) -> None:
    sessions = make_sessions(tmp_path, 10)
    manifest.write(tmp_path / "m.jsonl", sessions)
    sessions[4].audio_path.write_bytes(b"no audio")
    config = tmp_path / "config.toml"
    config.write_text(LONG_CONFIG.format(steps=20), encoding="utf-8")
    line = write_line("train-diar", tmp_path, config, tmp_path / "out", 2)
    finished = subprocess.run(line, capture_output=True, text=True, check=False)
    assert finished.returncode == 1
    told = [line for line in finished.stderr.splitlines() if line.startswith("sortk: ")]
    assert len(told) == 1, finished.stderr
    assert sessions[4].audio_path.name in told[0]


LOST = """
import os, sys
from sortk.training.processes import join_processes, wait_for_all
try:
    with join_processes() as processes:
        wait_for_all()
        if processes.rank == 1:
            os.kill(os.getpid(), 9)
        wait_for_all()
except OSError as error:
    sys.exit(f"sortk: {error}")
"""


def test_a_killed_process_is_one_sentence_of_the_others(tmp_path: Path) -> None:
    script = tmp_path / "lost.py"
    script.write_text(LOST, encoding="utf-8")
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3", str(script)]
    finished = subprocess.run(line, capture_output=True, text=True, check=False)
    assert finished.returncode == 1
    told = [line for line in finished.stderr.splitlines() if line.startswith("sortk: ")]
    assert len(told) <= 1, finished.stderr  # none if torchrun was faster
    assert all("has lost the others" in line for line in told)
