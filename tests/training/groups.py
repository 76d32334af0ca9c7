"""Processes that train together, as torchrun would start them, but from a server that has imported torch already."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
from torch.distributed import run as torchrun

PATIENCE_SECONDS = 600  # on a machine that has other things to do
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        "sortk.run.experiment",
        "sortk.training.diarizer",
        "sortk.training.asr",
        "torch._dynamo",
        "torch.distributed.fsdp",
        "torch.distributed.run",
    ]
)


def start_group(work: Callable[..., None], *arguments: object, folder: Path) -> list[BaseProcess]:
    """Start two processes that run work(*arguments); the messages of each go to folder/stderr-<rank>."""
    port = find_free_port()
    started: list[BaseProcess] = [
        SERVER.Process(target=_run_as, args=(rank, port, folder, work, arguments), daemon=True) for rank in range(2)
    ]
    for process in started:
        process.start()
    return started


def find_free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def run_group(work: Callable[..., None], *arguments: object, folder: Path) -> list[int | None]:
    """Return the exit codes."""
    started = start_group(work, *arguments, folder=folder)
    for process in started:
        process.join(PATIENCE_SECONDS)
    return [process.exitcode for process in started]


def run_torchrun(*arguments: str, folder: Path) -> str:
    """Run torchrun with these arguments; return what it and its two processes wrote to standard error."""
    process = SERVER.Process(target=_run_torchrun, args=(folder, arguments))
    process.start()
    process.join(PATIENCE_SECONDS)
    assert process.exitcode is not None
    return (folder / "stderr").read_text(encoding="utf-8")


def read_messages(folder: Path, rank: int) -> list[str]:
    """Return the lines that sortk itself wrote."""
    lines = (folder / f"stderr-{rank}").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.startswith("sortk: ")]


def _run_torchrun(folder: Path, arguments: tuple[str, ...]) -> None:
    os.dup2(os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT, 0o600), 2)
    torchrun.main(["--standalone", "--nproc-per-node=2", *arguments])


def _run_as(rank: int, port: int, folder: Path, work: Callable[..., None], arguments: tuple[object, ...]) -> None:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": 2, "RANK": rank, "LOCAL_RANK": rank}
    os.environ.update({name: str(value) for name, value in place.items()})
    os.dup2(os.open(folder / f"stderr-{rank}", os.O_WRONLY | os.O_CREAT, 0o600), 2)
    torch.set_num_threads(1)
    work(*arguments)
