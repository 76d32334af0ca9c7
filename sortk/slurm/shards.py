"""Items of a stage in shards, and all files that record their progress."""

from __future__ import annotations

import hashlib
import importlib
import io
import itertools
import json
import logging
import os
import pickle
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

from sortk.formats.files import ROOT_VARIABLE, atomic_path, atomic_text, quote

DATA_TYPES = frozenset(
    ["builtins.set", "builtins.frozenset", "builtins.complex", "builtins.bytearray", "builtins.range"]
    + [f"collections.{name}" for name in ("Counter", "OrderedDict", "deque")]
    + [f"pathlib{local}.{name}" for local in ("", "._local") for name in ("Path", "PosixPath", "PurePosixPath")]
    + ["array.array", "array._array_reconstructor"]
)
"""What results may be made of, beside dataclasses and named tuples of sortk's own, numbers, texts, lists and tables."""

ROOMS_OF_DATA = ("records", "spans", "formats.", "corpora.", "prepare.", "inference.", "scoring.")
"""Where sortk's own are from."""

NUMPY_PARTS = frozenset(
    [("numpy", "ndarray"), ("numpy", "dtype")]
    + [(f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")]
    + [(f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")]
)
"""What an array is made of in a pickle."""

Span = tuple[int, int]
"""The items of a shard: number of the first, and of the first that is no longer in it."""


@dataclass(frozen=True)
class Submission:
    """A shard in the queue."""

    job_id: str
    attempts: int


@dataclass(frozen=True)
class Call:
    """Every file of one call of RunJobs, in a folder of its own.

    A rerun finds it by what is to be done: the same work on the same items. It may cut what is missing otherwise, so
    a shard goes by the items in it.
    """

    folder: Path

    @property
    def title(self) -> str:
        """What is done, for people."""
        return self.folder.name.rpartition("-")[0].replace("-", " ")

    @property
    def content(self) -> Path:
        return self.folder / "call.pickle"

    @property
    def logs(self) -> Path:
        return self.folder / "submitit"

    def log(self, submission: Submission) -> Path:
        return self.logs / f"{submission.job_id}_0_log.err"

    def results(self, span: Span) -> Path:
        return self.folder / f"{span[0]:08d}-{span[1]:08d}.results"

    def fault(self, span: Span) -> Path:
        """What is wrong with the input of a shard, for people; doing it again would not help."""
        return self.folder / f"{span[0]:08d}-{span[1]:08d}.fault"

    def submission(self, span: Span) -> Path:
        """Which job does a shard."""
        return self.folder / f"{span[0]:08d}-{span[1]:08d}.json"

    def spans(self, suffix: str) -> list[Span]:
        """Shards that have a file of this kind."""
        names = (path.stem.split("-") for path in self.folder.glob(f"*-*{suffix}"))
        return sorted((int(start), int(stop)) for start, stop in names)

    def open(self, content: bytes) -> None:
        """For the first time, or again: what was wrong with the input may have been mended."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_path(self.content) as path:
            path.write_bytes(content)
        for span in self.spans(".fault"):
            self.fault(span).unlink()

    def write_submission(self, span: Span, submission: Submission) -> None:
        with atomic_text(self.submission(span)) as file:
            json.dump(asdict(submission), file)

    def read_submission(self, span: Span) -> Submission:
        return Submission(**json.loads(self.submission(span).read_text(encoding="utf-8")))

    def read_results(self) -> Iterator[Any]:
        """Of all shards, in the order of the items."""
        for span in self.spans(".results"):
            path = self.results(span)
            try:
                results = _DataUnpickler(io.BytesIO(path.read_bytes())).load()
            except (pickle.UnpicklingError, ArithmeticError, EOFError, LookupError, TypeError, ValueError) as error:
                fault = f"{path} is not a file of results ({error})"
                raise ValueError(f"{fault}; remove it and run the stage again") from None
            yield from results

    @property
    def n_failed(self) -> int:
        """Jobs that have ended without results, and were followed by others."""
        return sum(self.read_submission(span).attempts - 1 for span in self.spans(".json"))


class _DataUnpickler(pickle.Unpickler):
    """Reads results, which may have come with an unfinished experiment from elsewhere: data, never code."""

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" in DATA_TYPES or (module, name) in NUMPY_PARTS:
            return super().find_class(module, name)
        if module.startswith(tuple(f"sortk.{room}" for room in ROOMS_OF_DATA)):
            found: Any = getattr(importlib.import_module(module), name, None)
            is_data = isinstance(found, type) and (is_dataclass(found) or issubclass(found, tuple))
            # A pickle could call an object that can be called, as a Shard can.
            if is_data and not any("__call__" in vars(base) for base in found.__mro__):
                return found
        raise pickle.UnpicklingError(f"{quote(f'{module}.{name}')} is not data")


@dataclass(frozen=True)
class Shard:
    """What a task of an array does: some of the items of a call."""

    call: Call
    digest: str  # SHA-256 of the content of the call: another one is not for this shard
    span: Span
    root: str | None  # what files name each other relative to; see formats.files

    def __call__(self) -> None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        if self.root:
            os.environ[ROOT_VARIABLE] = self.root
        content = self.call.content.read_bytes()
        if hashlib.sha256(content).hexdigest() != self.digest:
            raise OSError(f"{self.call.content} was changed after this job was submitted; run the stage again")
        work, items = pickle.loads(content)
        try:
            results = [work(item) for item in items[slice(*self.span)]]
        except ValueError as error:
            with atomic_text(self.call.fault(self.span)) as file:
                file.write(str(error))
            raise
        with atomic_path(self.call.results(self.span)) as path:
            path.write_bytes(pickle.dumps(results))

    def checkpoint(self) -> Any:
        """Its time is over: the same again, in a new job; items whose files are there are done at once."""
        from submitit.helpers import DelayedSubmission  # noqa: PLC0415 - an extra

        return DelayedSubmission(self)


def pack(work: Callable[[Any], Any], items: Sequence[Any]) -> bytes:
    """Return the content of a call, for its shards."""
    return pickle.dumps((work, items))


def cut_missing(taken: Collection[Span], n_items: int, size: int) -> list[Span]:
    """Return the items that are in no span, as spans of at most `size`."""
    edges = [(0, 0), *sorted(taken), (n_items, n_items)]
    gaps = [(before[1], after[0]) for before, after in itertools.pairwise(edges)]
    return [(start, min(start + size, stop)) for begin, stop in gaps for start in range(begin, stop, size)]
