"""Several processes that train one model, as torchrun (or Slurm) starts them. One process alone needs none of this."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
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
        """Return the process's own GPU if there is one."""
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
    pulse = Pulse(rank, n)
    pulse.start()
    try:
        yield processes
    except (Exception, KeyboardInterrupt) as error:
        # The group is left as it is: taking it down would wait for processes that may be gone.
        if not _is_first(store, rank):
            raise SystemExit(1) from None
        if _is_lost_connection(error):
            raise OSError(
                f"process {rank} of {n} has lost the others: one of them was killed, or its machine is out of reach; "
                "run the same command again to resume from the last checkpoint"
            ) from error
        raise
    finally:
        pulse.stop()
    # The threads of the group may still release tensors of the last message, for which they need Python's lock. If the
    # group were deleted now, torch would hold that lock while it waits for them, forever (seen with torch 2.6).
    _ended_groups.append(distributed.group.WORLD)
    distributed.destroy_process_group()


_ended_groups: list[Any] = []


class Pulse(threading.Thread):
    """Reports that this process is alive, and ends it if another one does not for SILENT_SECONDS.

    A process that is stopped, or whose machine hangs, closes no connection: the others would wait for half an hour, the
    timeout of the process group. That cannot be shorter, because some steps take one process minutes.
    """

    SILENT_SECONDS = 45.0
    BEAT_SECONDS = 3.0

    def __init__(self, rank: int, n: int) -> None:
        super().__init__(daemon=True, name="pulse")
        # A second connection to the store, because the first one is blocked while the process waits for the others.
        # Not store.clone(), which torch 2.6 does not have.
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        connection = distributed.TCPStore(address, port, is_master=False)  # type: ignore[attr-defined]
        # torchrun keeps the store when it starts all processes again; beats of the ones before do not count.
        self._store: Any = PrefixStore(f"pulse {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", connection)
        self._rank, self._n = rank, n
        self._ended = threading.Event()

    def run(self) -> None:
        beats: dict[int, bytes] = {}
        last_beat = dict.fromkeys(range(self._n), time.monotonic())
        last = time.monotonic()
        for number in itertools.count():
            if self._ended.wait(self.BEAT_SECONDS):
                return
            now = time.monotonic()
            if now - last > self.SILENT_SECONDS / 2:  # this process itself was stopped, and could not listen
                last_beat = dict.fromkeys(last_beat, now)
            last = now
            try:
                self._store.set(_beat_key(self._rank), str(number))
                for rank in range(self._n):
                    if self._store.check([_beat_key(rank)]):
                        beat = self._store.get(_beat_key(rank))
                        if beat != beats.get(rank) or beat == ENDED:
                            beats[rank], last_beat[rank] = beat, now
            except RuntimeError:  # the store is gone, and with it the other processes
                return
            silent = [rank for rank, when in last_beat.items() if now - when > self.SILENT_SECONDS]
            if silent and not self._ended.is_set():
                os.write(
                    2,
                    f"sortk: process {silent[0]} of {self._n} has not answered for {self.SILENT_SECONDS:g} s: it was "
                    "stopped, or its machine is out of reach; run the same command again to resume from the last "
                    "checkpoint\n".encode(),
                )
                os._exit(1)

    def stop(self) -> None:
        """Report that this process has ended, so that no process waits for its next beat."""
        self._ended.set()
        with contextlib.suppress(RuntimeError):
            self._store.set(_beat_key(self._rank), ENDED)


ENDED = b"ended"


def _beat_key(rank: int) -> str:
    return f"sortk-beat-{rank}"


def _is_first(store: Store, rank: int) -> bool:
    """Return whether no other process has failed before; the store outlives them, for it is torchrun's."""
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
