"""Sessions -> batches of (samples, targets), the same for the same seed, epoch and number, however often resumed.

SessionSource       recorded sessions of a manifest: a random window of each, every epoch
ConversationSource  conversations that are simulated on the fly, new ones every epoch
plan_epoch          which examples go into which batch of an epoch: nothing is loaded
BatchLoader         loads planned batches, in other processes if asked to
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sortk.formats import audio, rttm
from sortk.models.frames import SAMPLE_RATE, count_frames
from sortk.prepare.simulate import Simulator
from sortk.records import Segment, Session
from sortk.training.targets import NOBODY, Targets, frame_speakers, frame_targets


class Example(NamedTuple):
    """One training example: what is heard, and who speaks."""

    name: str
    samples: audio.Samples
    targets: Targets
    speakers: npt.NDArray[np.int64]  # (frames,): who, of all speakers of the training data, speaks alone


@dataclass(frozen=True)
class Batch:
    """Examples padded to one length."""

    names: tuple[str, ...]
    n_in_all: int  # examples, with those of the processes that share the batch
    samples: Tensor  # (batch, samples)
    lengths: Tensor | None  # (batch,) samples of each example; None if nothing is padded
    targets: Tensor  # (batch, frames, speakers)
    speakers: Tensor  # (batch, frames), NOBODY where nobody or more than one speaks, or it is not known who

    def to(self, device: torch.device) -> Batch:
        lengths = None if self.lengths is None else self.lengths.to(device, non_blocking=True)
        tensors = (tensor.to(device, non_blocking=True) for tensor in (self.samples, self.targets, self.speakers))
        samples, targets, speakers = tensors
        return Batch(self.names, self.n_in_all, samples, lengths, targets, speakers)

    @property
    def seconds(self) -> float:
        """Of audio, padding not counted."""
        return float(self.samples.numel() if self.lengths is None else self.lengths.sum()) / SAMPLE_RATE


class Source(Protocol):
    """A numbered collection of sessions that examples are taken from."""

    def __len__(self) -> int: ...
    def seconds(self, index: int) -> float:
        """An example's length, known before it is loaded."""

    def load(self, index: int, epoch: int) -> Example: ...


class SessionSource:
    """Recorded (or ready simulated) sessions; of a long one, another random window in every epoch."""

    def __init__(
        self,
        sessions: Sequence[Session],
        n_speakers: int,
        max_seconds: float,
        seed: int,
        number_of: Mapping[str, int] | None = None,
    ) -> None:
        for session in sessions:
            if session.rttm_path is None:
                raise ValueError(f"session {session.session_id} names no RTTM, so nobody can learn who speaks in it")
        self.sessions = [_with_duration(session) for session in sessions]
        self.n_speakers, self.max_seconds, self.seed = n_speakers, max_seconds, seed
        self.number_of = number_of or {}

    def __len__(self) -> int:
        return len(self.sessions)

    def seconds(self, index: int) -> float:
        return min(_duration(self.sessions[index]), self.max_seconds)

    def load(self, index: int, epoch: int) -> Example:
        session = self.sessions[index]
        room = _duration(session) - self.seconds(index)
        start = session.offset + Random(f"{self.seed} {epoch} {session.session_id}").uniform(0.0, room)
        samples = audio.read(session.audio_path, start, self.seconds(index), SAMPLE_RATE)
        if count_frames(len(samples)) == 0:
            raise ValueError(f"session {session.session_id} has {len(samples)} samples at {start} s: not one frame")
        targets, names = frame_targets(read_segments(session), start, count_frames(len(samples)), self.n_speakers)
        return Example(session.session_id, samples, targets, frame_speakers(targets, names, self.number_of))


def _with_duration(session: Session) -> Session:
    return session if session.duration else replace(session, duration=audio.info(session.audio_path).seconds)


def _duration(session: Session) -> float:
    assert session.duration is not None
    return session.duration


def read_segments(session: Session) -> list[Segment]:
    """Who speaks when in the session's recording."""
    assert session.rttm_path is not None
    by_session = _read_rttm(session.rttm_path)
    # The RTTM of one recording may serve many windows of it, whose ids are not the recording's.
    if len(by_session) == 1:
        return next(iter(by_session.values()))
    return by_session.get(session.session_id, [])


@lru_cache(maxsize=4096)
def _read_rttm(path: Path) -> dict[str, list[Segment]]:
    by_session: dict[str, list[Segment]] = {}
    for segment in rttm.stream(path):
        by_session.setdefault(segment.session_id, []).append(segment)
    return by_session


class ConversationSource:
    """Conversations simulated on the fly: `n_sessions` an epoch, none of them ever twice."""

    def __init__(self, simulator: Simulator, n_sessions: int, n_speakers: int, number_of: Mapping[str, int]) -> None:
        self.simulator, self.n_sessions, self.n_speakers, self.number_of = simulator, n_sessions, n_speakers, number_of

    def __len__(self) -> int:
        return self.n_sessions

    def seconds(self, index: int) -> float:
        return self.simulator.options.seconds

    def load(self, index: int, epoch: int) -> Example:
        plan = self.simulator.plan(epoch * self.n_sessions + index)
        samples = self.simulator.render(plan).astype(np.float32) / np.float32(32768)
        targets, names = frame_targets(plan.segments(), 0.0, count_frames(len(samples)), self.n_speakers)
        return Example(plan.session_id, samples, targets, frame_speakers(targets, names, self.number_of))


Place = tuple[int, int]
"""An example: the number of its source, and its number there."""


def plan_epoch(sources: Sequence[Source], batch_seconds: float, seed: int, epoch: int) -> list[list[Place]]:
    """Every example of every source once, in batches of at most `batch_seconds` of padded audio, in random order.

    Examples of about the same length go together, so that little is padded; which ones is drawn anew every epoch.
    """
    rng = Random(f"{seed} {epoch} batches")
    places = [(number, index) for number, source in enumerate(sources) for index in range(len(source))]
    rng.shuffle(places)
    # Sorted by length rounded to a second: within a second, the order stays random.
    places.sort(key=lambda place: round(sources[place[0]].seconds(place[1])))
    batches: list[list[Place]] = []
    for place in places:
        seconds = sources[place[0]].seconds(place[1])  # the longest so far, since they are sorted
        if batches and (len(batches[-1]) + 1) * seconds <= batch_seconds:
            batches[-1].append(place)
        else:
            batches.append([place])
    rng.shuffle(batches)
    return batches


def collate(examples: Sequence[Example], n_in_all: int | None = None) -> Batch:
    """Pads examples to the longest."""
    lengths = [len(example.samples) for example in examples]
    n_frames, n_speakers = count_frames(max(lengths)), examples[0].targets.shape[1]
    samples = torch.zeros(len(examples), max(lengths))
    targets = torch.zeros(len(examples), n_frames, n_speakers)
    speakers = torch.full((len(examples), n_frames), NOBODY)
    for row, example in enumerate(examples):
        samples[row, : len(example.samples)] = torch.from_numpy(example.samples)
        targets[row, : len(example.targets)] = torch.from_numpy(example.targets)
        speakers[row, : len(example.speakers)] = torch.from_numpy(example.speakers)
    equal = min(lengths) == max(lengths)
    names = tuple(example.name for example in examples)
    lengths_or_none = None if equal else torch.tensor(lengths)
    return Batch(names, n_in_all or len(names), samples, lengths_or_none, targets, speakers)


class BatchLoader:
    """The batches of an epoch, loaded."""

    def __init__(self, sources: Sequence[Source], batch_seconds: float, seed: int, n_workers: int = 0) -> None:
        self.sources, self.batch_seconds, self.seed, self.n_workers = sources, batch_seconds, seed, n_workers

    def load_epoch(self, epoch: int, first: int = 0, share: int = 0, n_shares: int = 1) -> Iterator[Batch]:
        """From batch number `first` on; of each batch the `share` of one of `n_shares` processes.

        A batch is `batch_seconds` long for each process. One with fewer examples than processes is left out.
        """
        plan = plan_epoch(self.sources, self.batch_seconds * n_shares, self.seed, epoch)
        shares = [(batch[share::n_shares], len(batch)) for batch in plan if len(batch) >= n_shares]
        return self._load(shares[first:], epoch)

    def load_part(self, part: int = 0, n_parts: int = 1) -> Iterator[Batch]:
        """Every `n_parts`-th batch, the same ones every time: what one of several processes validates."""
        plan = plan_epoch(self.sources, self.batch_seconds, self.seed, epoch=0)
        return self._load([(batch, len(batch)) for batch in plan[part::n_parts]], epoch=0)

    def _load(self, batches: Sequence[tuple[Sequence[Place], int]], epoch: int) -> Iterator[Batch]:
        dataset = _PlannedBatches(self.sources, batches, epoch)
        # A generator of its own: the loader would otherwise take a number from the one that dropout uses.
        own = torch.Generator()
        loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=self.n_workers, generator=own)
        for batch in loader:
            if isinstance(batch, Exception):
                raise batch
            yield batch


class _PlannedBatches(torch.utils.data.Dataset[Batch | Exception]):
    """An error travels as a value: raised in a worker, it would arrive with that process's traceback in its message."""

    def __init__(self, sources: Sequence[Source], batches: Sequence[tuple[Sequence[Place], int]], epoch: int) -> None:
        self.sources, self.batches, self.epoch = sources, batches, epoch

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: int) -> Batch | Exception:
        places, n_in_all = self.batches[number]
        try:
            return collate([self.sources[source].load(index, self.epoch) for source, index in places], n_in_all)
        except (ValueError, OSError) as error:
            return error
