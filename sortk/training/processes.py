"""Several processes that train one model, as torchrun (or Slurm) starts them. One process alone needs none of this."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous


@dataclass(frozen=True)
class Processes:
    """How many there are, and which one this is."""

    rank: int = 0
    n: int = 1
    local_rank: int = 0  # among those of this machine: the number of its GPU

    @property
    def leads(self) -> bool:
        """Rank 0 writes files and messages; the others only compute."""
        return self.rank == 0

    def choose_device(self) -> torch.device:
        """The process's own GPU if there is one."""
        return torch.device("cuda", self.local_rank) if torch.cuda.is_available() else torch.device("cpu")


@contextlib.contextmanager
def join_processes() -> Iterator[Processes]:
    """Join the other processes that torchrun has started; without torchrun there is only this one.

    If one fails, all end, and only the first one that failed reports why.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Processes()
        return
    processes = Processes(*(int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")))
    if torch.cuda.is_available():
        torch.cuda.set_device(processes.local_rank)
    store, rank, n = next(rendezvous("env://"))
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    distributed.init_process_group(backend, store=PrefixStore("sortk", store), rank=rank, world_size=n)
    try:
        yield processes
    except (Exception, KeyboardInterrupt) as error:
        # The group is left as it is: taking it down would wait for processes that may be gone.
        if not _is_first(store, rank):
            raise SystemExit(1) from None
        if _is_lost_connection(error):
            raise OSError(
                f"process {rank} of {n} has lost the others: one of them was killed, or its machine is out of reach; "
                "run the same command again to go on from the last checkpoint"
            ) from error
        raise
    distributed.destroy_process_group()


def _is_first(store: Store, rank: int) -> bool:
    """Whether no other process has failed before; the store outlives them, for it is torchrun's."""
    try:
        return bool(store.compare_set("sortk-failed", "", str(rank)) == str(rank).encode())
    except RuntimeError:  # the store is gone
        return True


def _is_lost_connection(error: BaseException) -> bool:
    """Gloo's errors have no type of their own."""
    signs = ("gloo", "Connection closed by peer", "Connection reset by peer")
    return isinstance(error, distributed.DistError) or (
        isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)
    )


def current_processes() -> Processes:
    """Return the processes that were joined, or one."""
    if not distributed.is_initialized():
        return Processes()
    return Processes(distributed.get_rank(), distributed.get_world_size(), int(os.environ.get("LOCAL_RANK", "0")))


def broadcast(message: Any) -> Any:
    """Return the `message` of rank 0 in every process; those of the others do not matter."""
    box = [message]
    if distributed.is_initialized():
        distributed.broadcast_object_list(box, src=0)
    return box[0]


def all_gather(message: Any) -> list[Any]:
    """Return the messages of all processes, in their order; all must call this."""
    if not distributed.is_initialized():
        return [message]
    messages: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(messages, message)
    return messages


def wait_for_all() -> None:
    """Wait until every process has come this far."""
    if distributed.is_initialized():
        distributed.barrier()


@contextlib.contextmanager
def rank0_first() -> Iterator[None]:
    """Rank 0 runs the block first; the others find what it wrote."""
    if not current_processes().leads:
        wait_for_all()
    yield
    if current_processes().leads:
        wait_for_all()


def sum_numbers(numbers: Mapping[str, float], device: torch.device) -> dict[str, float]:
    """Return sums of named numbers over all processes; each must have the same names."""
    if not distributed.is_initialized():
        return dict(numbers)
    values = torch.tensor(list(numbers.values()), dtype=torch.float64, device=device)
    distributed.all_reduce(values)
    return dict(zip(numbers, values.tolist(), strict=True))
