"""Items of a stage in shards, and every file that tells how far they are."""

from __future__ import annotations

import itertools
import json
import logging
import os
import pickle
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sortk.formats.files import ROOT_VARIABLE, atomic_path, atomic_text

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
            yield from pickle.loads(self.results(span).read_bytes())

    @property
    def n_failed(self) -> int:
        """Jobs that have ended without results, and were followed by others."""
        return sum(self.read_submission(span).attempts - 1 for span in self.spans(".json"))


@dataclass(frozen=True)
class Shard:
    """What a task of an array does: some of the items of a call."""

    call: Call
    span: Span
    root: str | None  # what files name each other relative to; see formats.files

    def __call__(self) -> None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        if self.root:
            os.environ[ROOT_VARIABLE] = self.root
        work, items = pickle.loads(self.call.content.read_bytes())
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
    """The content of a call, for its shards."""
    return pickle.dumps((work, items))


def cut_missing(taken: Collection[Span], n_items: int, size: int) -> list[Span]:
    """The items in no span, as spans of at most `size`."""
    edges = [(0, 0), *sorted(taken), (n_items, n_items)]
    gaps = [(before[1], after[0]) for before, after in itertools.pairwise(edges)]
    return [(start, min(start + size, stop)) for begin, stop in gaps for start in range(begin, stop, size)]
