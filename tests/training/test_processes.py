"""Two processes against one. How torchrun starts them, and ends them, is looked at where it matters."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from groups import PATIENCE_SECONDS, find_free_port, read_messages, run_group, run_torchrun, start_group
from spoken import SMALL_DIARIZER, WORD_SECONDS, make_samples
from test_diarizer import make_sessions

from sortk.cli import main
from sortk.formats import manifest
from sortk.formats.model_folder import load_model, save_model
from sortk.models.sortformer import Sortformer
from sortk.training.processes import Pulse, all_gather, join_processes, wait_for_all

CONFIG = """
n_speakers = 2
global_speakers = true
encoder_warmup = {{ steps = 2, simulated = 0.0, batch_seconds = {batch_seconds} }}
[[phases]]
speaker_weight = 0.1
[phases.loop]
steps = 8
learning_rate = 1e-3
warmup_steps = 2
batch_seconds = {batch_seconds}
log_every = 1
validate_every = 4
accumulate = 2
"""
LINES = 1 + 1 + 8 + 2  # of the log: the warm-up and its validation, each step, two validations

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


def choose_arguments(command: str, folder: Path, config: Path, out: Path) -> list[str]:
    init = ["--init", folder / "init"] if command == "train-diar" else []
    data = ["--train", folder / "m.jsonl", "--valid", folder / "m.jsonl", "--config", config, "--out", out]
    return [command, *map(str, (*data, *init)), "-q"]


def train(command: str, settings: str, out: Path, n_processes: int, batch_seconds: float) -> list[dict[str, float]]:
    """Runs `sortk train-diar` or `train-asr` on what is beside `out`, here or in two processes; its log."""
    folder, config = out.parent, out.with_suffix(".toml")
    config.write_text(settings.format(batch_seconds=batch_seconds), encoding="utf-8")
    arguments = choose_arguments(command, folder, config, out)
    if n_processes == 1:
        run_here(arguments)
    else:
        assert run_group(run_main, arguments, folder=folder) == [0, 0]
    return [json.loads(line) for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines()]


def run_main(arguments: list[str]) -> None:
    main(arguments)


def run_here(arguments: list[str]) -> None:
    finished = CliRunner().invoke(main, arguments)
    assert finished.exit_code == 0, finished.output


def check_equal(one: list[dict[str, float]], two: list[dict[str, float]], rel: float) -> None:
    """`rel` is for the loss. A rounding error weighs more in what is small, such as the norm of the gradients, and in
    validation, where a posterior of about 0.5 is speech or is not."""
    for line, other in zip(one, two, strict=True):
        assert line.keys() == other.keys()
        for name in line.keys() - {"audio_per_second", "examples_per_second", "phase"}:
            relative, absolute = (rel, 1e-6) if name == "loss" else (max(rel, 3e-2), 0.1 if "score" in line else 1e-6)
            assert other[name] == pytest.approx(line[name], rel=relative, abs=absolute), (name, line, other)


@pytest.fixture(scope="module")
def hums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine sessions, and a model so small that it learns from them in no time."""
    folder = tmp_path_factory.mktemp("hums")
    manifest.write(folder / "m.jsonl", make_sessions(folder, 9))
    torch.manual_seed(0)
    config = {"model": "sortformer", "options": SMALL_DIARIZER.to_json()}
    save_model(folder / "init", Sortformer(SMALL_DIARIZER).state_dict(), config)
    return folder


@pytest.fixture(scope="module")
def alone(hums: Path) -> list[dict[str, float]]:
    """The log of one process. Batches of 3 sessions; with batch norm, the auxiliary loss and accumulation."""
    log = train("train-diar", CONFIG, hums / "one", 1, 12.0)
    assert len(log) == LINES
    return log


def test_two_processes_learn_as_one_with_twice_the_batch(hums: Path, alone: list[dict[str, float]]) -> None:
    """Their shares of 3 sessions are unequal."""
    check_equal(alone, train("train-diar", CONFIG, hums / "two", 2, 6.0), rel=1e-4)
    one, two = (load_model(hums / name / "model")[0] for name in ("one", "two"))
    running = "encoder.layers.0.conv.batch_norm.running_var"
    assert two[running].tolist() == pytest.approx(one[running].tolist(), rel=1e-3)


@pytest.mark.skipif(not hasattr(torch.cpu.Stream, "record_event"), reason="FSDP2 on CPUs needs a newer torch")
def test_two_processes_that_share_the_weights_learn_as_one(hums: Path, alone: list[dict[str, float]]) -> None:
    """FSDP2: the same losses, and a model folder like any other."""
    shard = CONFIG.replace("accumulate = 2", "accumulate = 2\nshard = true")
    check_equal(alone, train("train-diar", shard, hums / "sharded", 2, 6.0), rel=1e-4)
    one, two = (load_model(hums / name / "model")[0] for name in ("one", "sharded"))
    assert {name: weight.shape for name, weight in one.items()} == {name: weight.shape for name, weight in two.items()}


def test_two_processes_train_an_asr_as_one(tmp_path: Path) -> None:
    manifest.write(tmp_path / "m.jsonl", make_samples(tmp_path, 6))
    one, two = (train("train-asr", ASR_CONFIG, tmp_path / f"out{n}", n, 6 * WORD_SECONDS / n) for n in (1, 2))
    assert len(one) == 4 + 2
    check_equal(one, two, rel=1e-2)  # dropout differs


STEPS = 8
STEPS_CONFIG = f"""
n_speakers = 2
[[phases]]
[phases.loop]
steps = {STEPS}
learning_rate = 1e-3
warmup_steps = 2
batch_seconds = 8.0
log_every = 1
validate_every = 1000
checkpoint_every = 1000
"""

# `sortk`, whose second process asks torchrun to stop in its fourth step, and goes on when torchrun has told it to stop.
STOPPED = """
import os, signal, sys, time
from sortk.cli import main
from sortk.training.diarizer import DiarizerTask

forward, n_steps, received = DiarizerTask.forward, 0, []

def forward_and_stop(task, batch):
    global n_steps
    n_steps += 1
    if n_steps == 4 and os.environ["RANK"] == "1":
        handle = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, lambda *signalled: (handle(*signalled), received.append(True)))
        os.kill(os.getppid(), signal.SIGTERM)
        while not received:
            time.sleep(0.01)
    return forward(task, batch)

DiarizerTask.forward = forward_and_stop
main(sys.argv[1:], prog_name="sortk")
"""


def read_steps(path: Path) -> list[int]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [fields["step"] for fields in map(json.loads, lines) if "loss" in fields]


def test_one_process_goes_on_where_two_were_stopped(hums: Path, tmp_path: Path) -> None:
    config, out, script = tmp_path / "config.toml", tmp_path / "out", tmp_path / "stopped.py"
    config.write_text(STEPS_CONFIG, encoding="utf-8")
    script.write_text(STOPPED, encoding="utf-8")
    arguments = choose_arguments("train-diar", hums, config, out)
    messages = run_torchrun(str(script), *arguments, folder=tmp_path)
    assert messages.count("sortk: interrupted") == 1, messages
    assert read_steps(out.with_name("out.partial") / "log.jsonl") == [1, 2, 3, 4]
    run_here(arguments)
    assert read_steps(out / "log.jsonl") == list(range(1, STEPS + 1))


def test_an_error_in_one_process_ends_all_with_one_message(hums: Path, tmp_path: Path) -> None:
    sessions = make_sessions(tmp_path, 10)
    manifest.write(tmp_path / "m.jsonl", sessions)
    sessions[4].audio_path.write_bytes(b"no audio")
    (tmp_path / "init").symlink_to(hums / "init")
    config = tmp_path / "config.toml"
    config.write_text(STEPS_CONFIG, encoding="utf-8")
    arguments = choose_arguments("train-diar", tmp_path, config, tmp_path / "out")
    assert run_group(run_main, arguments, folder=tmp_path) == [1, 1]
    [told] = [line for rank in range(2) for line in read_messages(tmp_path, rank)]
    assert sessions[4].audio_path.name in told


def lose_one() -> None:
    try:
        with join_processes() as processes:
            wait_for_all()
            if processes.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            wait_for_all()
    except OSError as error:
        sys.exit(f"sortk: {error}")


def test_a_killed_process_is_one_sentence_of_the_other(tmp_path: Path) -> None:
    assert run_group(lose_one, folder=tmp_path) == [1, -signal.SIGKILL]
    [told] = read_messages(tmp_path, 0)
    assert told.startswith("sortk: process 0 of 2 has lost the others: one of them was killed")


def stop_one() -> None:
    Pulse.BEAT_SECONDS = 0.2
    if os.environ["RANK"] == "0":  # on a busy machine, the other one must not find this one silent
        Pulse.SILENT_SECONDS = 4.0
    with join_processes() as processes:
        wait_for_all()
        if processes.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        wait_for_all()


def test_a_stopped_process_is_noticed(tmp_path: Path) -> None:
    first, second = start_group(stop_one, folder=tmp_path)
    first.join(PATIENCE_SECONDS)
    second.kill()
    second.join(PATIENCE_SECONDS)
    assert first.exitcode == 1
    [told] = read_messages(tmp_path, 0)
    assert told.startswith("sortk: process 1 of 2 has not answered for 4 s: it was stopped")


def join_and_leave(ports: list[int]) -> None:
    for port in ports:
        os.environ["MASTER_PORT"] = str(port)
        with join_processes():
            all_gather("its tensors are released by a thread of the group")


def test_processes_can_leave_right_after_a_message(tmp_path: Path) -> None:
    """With torch 2.6, one in twelve groups or so never ended."""
    ports = [find_free_port() for _ in range(12)]
    started = start_group(join_and_leave, ports, folder=tmp_path)
    for process in started:
        process.join(60)
        process.kill()
    assert [process.exitcode for process in started] == [0, 0]
