"""Sessions -> batches for both models, the same for the same seed, epoch and number, however often a run is resumed.

RecordedSource    sessions of a manifest: a random window of each, every epoch, or all of it
SimulatedSource   conversations that are simulated on the fly, new ones every epoch
MixtureSource     mixtures of a list, rendered on the fly; an epoch is the next part of the list
plan_epoch        which examples go into which batch of an epoch: nothing is loaded
BatchLoader       loads planned batches, in other processes if asked to
"""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from sortk.formats import audio
from sortk.formats.annotation import prefer_rttm, recorded_segments
from sortk.formats.tokens import Tokenizer
from sortk.models.frames import SAMPLE_RATE, count_frames
from sortk.prepare.librispeechmix import ListedMixtures
from sortk.prepare.pieces import SpeakerIndex
from sortk.prepare.render import cut_plan
from sortk.prepare.simulate import SimulateOptions, Simulator
from sortk.records import Segment, Session
from sortk.training.options import BatchLimit, PhaseOptions
from sortk.training.targets import NO_SPAN, NO_SPEAKER, NOT_KNOWN, Example, LabelledClip, Labels


@dataclass(frozen=True)
class Batch:
    """Examples padded to one length."""

    names: tuple[str, ...]
    n_in_all: int  # examples, with those of the processes that share the batch
    samples: Tensor  # (batch, samples)
    lengths: Tensor | None  # (batch,) samples of each example; None if nothing is padded
    targets: Tensor  # (batch, frames, speakers)
    speakers: Tensor  # (batch, frames), NO_SPEAKER where none or more than one speaks, or the name is unknown
    texts: tuple[str, ...] = ()
    tokens: Tensor | None = None  # (batch, n) of an ASR: prompt, text, end, and then NOT_KNOWN
    frame_tokens: Tensor | None = None  # (batch, frames) of an ASR
    token_spans: Tensor | None = None  # (batch, n, 2) of an ASR

    def to(self, device: torch.device) -> Batch:
        fields: dict[str, Any] = {
            name: value.to(device, non_blocking=True) if isinstance(value, Tensor) else value
            for name, value in vars(self).items()
        }
        return Batch(**fields)

    @property
    def seconds(self) -> float:
        """Seconds of audio, padding not counted."""
        return float(self.samples.numel() if self.lengths is None else self.lengths.sum()) / SAMPLE_RATE


class ExampleSource(Protocol):
    """A numbered collection of examples."""

    def __len__(self) -> int: ...
    def seconds(self, index: int, epoch: int) -> float:
        """Return an example's length, known before it is loaded."""

    def load(self, index: int, epoch: int) -> Example: ...


class RecordedSource:
    """Sessions of a manifest; of one longer than `max_seconds`, another random window in every epoch."""

    def __init__(
        self, sessions: Sequence[Session], labels: Labels, max_seconds: float = math.inf, seed: int = 0
    ) -> None:
        for session in sessions:
            labels.check(session)
        self.sessions = [
            session if session.duration else replace(session, duration=audio.info(session.audio_path).seconds)
            for session in sessions
        ]
        self.labels, self.max_seconds, self.seed = labels, max_seconds, seed

    def __len__(self) -> int:
        return len(self.sessions)

    def seconds(self, index: int, epoch: int) -> float:
        return min(self.sessions[index].duration or 0.0, self.max_seconds)

    def load(self, index: int, epoch: int) -> Example:
        session, seconds = self.sessions[index], self.seconds(index, epoch)
        room = (session.duration or 0.0) - seconds
        start = session.offset + Random(f"{self.seed} {epoch} {session.session_id}").uniform(0.0, room)
        samples = audio.read(session.audio_path, start, seconds, SAMPLE_RATE)
        if count_frames(len(samples)) == 0:
            raise ValueError(f"session {session.session_id} has {len(samples)} samples at {start} s: not one frame")
        words = _find_words(session) if self.labels.needs_words else []
        turns = recorded_segments(prefer_rttm(session)) if session.rttm_path else words
        return self.labels.make_example(
            LabelledClip(session.session_id, samples, start, turns, words, session.text or "")
        )


def _find_words(session: Session) -> list[Segment]:
    """Return the words of a session, if its SegLST has one entry per word (stage 3); else none."""
    if session.seglst_path is None:
        return []
    end = session.offset + (session.duration or 0.0)
    words = recorded_segments(session, zero_duration="keep")
    inside = [word for word in words if word.start < end and word.end > session.offset]
    return inside if all(len(word.text.split()) == 1 for word in inside) else []


class SimulatedSource:
    """Conversations simulated on the fly, or one speaker at a time: `n_sessions` an epoch, none of them ever twice.

    With `min_seconds`, their length is drawn between that and the simulator's: an ASR that was trained on clips of one
    length learns how long a text is, and writes on in shorter clips. With `window_seconds`, an example is a random
    window of a conversation.
    """

    def __init__(
        self,
        simulator: Simulator,
        n_sessions: int,
        labels: Labels,
        min_seconds: float = 0.0,
        window_seconds: float = 0.0,
    ) -> None:
        self.simulator, self.n_sessions, self.labels, self.min_seconds = simulator, n_sessions, labels, min_seconds
        self.window_seconds = window_seconds

    def __len__(self) -> int:
        return self.n_sessions

    def seconds(self, index: int, epoch: int) -> float:
        return self.window_seconds or self.simulator.options.seconds

    def load(self, index: int, epoch: int) -> Example:
        plan = self.simulator.plan(epoch * self.n_sessions + index)
        words = plan.words() if self.labels.needs_words else []
        start, end = 0.0, plan.duration
        if self.min_seconds > 0:
            wanted = Random(plan.session_id).uniform(self.min_seconds, self.simulator.options.seconds)
            end = find_end(words, wanted)
            words = [word for word in words if word.end <= end]
        if self.window_seconds > 0:
            start = Random(plan.session_id).uniform(0.0, end - self.window_seconds)
            end = start + self.window_seconds
        first, last = round(start * SAMPLE_RATE), round(end * SAMPLE_RATE)
        window = cut_plan(plan, first, last - first) if self.window_seconds > 0 else plan
        if window.turns:
            samples = self.simulator.render(window)[: last - first]
        else:  # the level of noise follows from that of speech, so where nobody speaks it takes the complete session
            samples = self.simulator.render(plan)[first:last]
        scaled = samples.astype(np.float32) / np.float32(32768)
        return self.labels.make_example(LabelledClip(plan.session_id, scaled, start, plan.segments(), words))


class MixtureSource:
    """Mixtures of a list, each rendered when it is loaded, and cut to `max_seconds`.

    Epoch e is the e-th part of the list, of at most `per_epoch` mixtures; after the last part comes the first. So
    memory does not grow with the list, which should be in random order.
    """

    def __init__(
        self, mixer: ListedMixtures, labels: Labels, max_seconds: float = math.inf, per_epoch: int = 20_000
    ) -> None:
        self.mixer, self.labels, self.max_seconds = mixer, labels, max_seconds
        self.n_sessions = min(per_epoch, len(mixer))
        self._durations: tuple[int, list[float]] = (-1, [])  # of the mixtures of an epoch

    def __len__(self) -> int:
        return self.n_sessions

    def seconds(self, index: int, epoch: int) -> float:
        if self._durations[0] != epoch:
            first = self._place(0, epoch)
            part = [*self.mixer.mixtures[first : first + self.n_sessions]]
            part += self.mixer.mixtures[: self.n_sessions - len(part)]  # after its end the list starts again
            self._durations = epoch, [mixture.duration for mixture in part]
        return min(self._durations[1][index], self.max_seconds)

    def load(self, index: int, epoch: int) -> Example:
        plan = self.mixer.plan(self._place(index, epoch))
        samples = self.mixer.render(plan).astype(np.float32) / np.float32(32768)
        if len(samples) > self.max_seconds * SAMPLE_RATE:
            samples = samples[: round(self.max_seconds * SAMPLE_RATE)]
        words = plan.words() if self.labels.needs_words else []
        return self.labels.make_example(LabelledClip(plan.session_id, samples, 0.0, plan.segments(), words))

    def _place(self, index: int, epoch: int) -> int:
        return (epoch * self.n_sessions + index) % len(self.mixer)


def find_end(words: Sequence[Segment], wanted: float) -> float:
    """Return the time nearest to the wanted one that is not inside a word."""

    def cuts_a_word(time: float) -> bool:
        return any(word.start < time < word.end for word in words)

    if not cuts_a_word(wanted):
        return wanted
    return min((word.end for word in words if not cuts_a_word(word.end)), key=lambda end: abs(end - wanted))


Place = tuple[int, int]
"""An example: the number of its source, and its number there."""


def plan_epoch(sources: Sequence[ExampleSource], limit: BatchLimit, seed: int, epoch: int) -> list[list[Place]]:
    """Return every example of every source once, in batches of at most `limit`, in random order.

    Examples of about the same length go together, so that little is padded; which ones is drawn again every epoch.
    """
    rng = Random(f"{seed} {epoch} batches")
    places = [(number, index) for number, source in enumerate(sources) for index in range(len(source))]
    rng.shuffle(places)
    # Sorted by length rounded to a second: within a second, the order stays random.
    places.sort(key=lambda place: round(sources[place[0]].seconds(place[1], epoch)))
    batches: list[list[Place]] = []
    for place in places:
        seconds = sources[place[0]].seconds(place[1], epoch)  # the longest so far, since they are sorted
        if batches and limit.allows(len(batches[-1]) + 1, seconds):
            batches[-1].append(place)
        else:
            batches.append([place])
    rng.shuffle(batches)
    return batches


def collate(examples: Sequence[Example], n_in_all: int | None = None) -> Batch:
    """Pad examples to the longest."""
    lengths = [len(example.samples) for example in examples]
    n_frames, n_speakers = count_frames(max(lengths)), examples[0].targets.shape[1]
    n_rows = max(len(example.targets) for example in examples)
    samples = torch.zeros(len(examples), max(lengths))
    targets = torch.zeros(len(examples), n_rows, n_speakers)
    speakers = torch.full((len(examples), n_frames), NO_SPEAKER)
    for row, example in enumerate(examples):
        samples[row, : len(example.samples)] = torch.from_numpy(example.samples)
        targets[row, : len(example.targets)] = torch.from_numpy(example.targets)
        speakers[row, : len(example.speakers)] = torch.from_numpy(example.speakers)
    names = tuple(example.name for example in examples)
    padded = None if min(lengths) == max(lengths) else torch.tensor(lengths)
    batch = Batch(names, n_in_all or len(names), samples, padded, targets, speakers)
    return batch if examples[0].tokens is None else _add_transcripts(batch, examples)


def _add_transcripts(batch: Batch, examples: Sequence[Example]) -> Batch:
    tokens = torch.full((len(examples), max(len(example.tokens or ()) for example in examples)), NOT_KNOWN)
    frame_tokens = torch.full(batch.speakers.shape, NOT_KNOWN)
    token_spans = torch.full((*tokens.shape, 2), NO_SPAN)
    for row, example in enumerate(examples):
        assert example.tokens is not None and example.frame_tokens is not None and example.token_spans is not None
        tokens[row, : len(example.tokens)] = torch.tensor(example.tokens)
        frame_tokens[row, : len(example.frame_tokens)] = torch.from_numpy(example.frame_tokens)
        token_spans[row, : len(example.token_spans)] = torch.from_numpy(example.token_spans)
    texts = tuple(example.text for example in examples)
    return replace(batch, texts=texts, tokens=tokens, frame_tokens=frame_tokens, token_spans=token_spans)


class BatchLoader:
    """The batches of an epoch, loaded."""

    def __init__(self, sources: Sequence[ExampleSource], limit: BatchLimit, seed: int, n_workers: int = 0) -> None:
        self.sources, self.limit, self.seed, self.n_workers = sources, limit, seed, n_workers

    def load_epoch(self, epoch: int, first: int = 0, share: int = 0, n_shares: int = 1) -> Iterator[Batch]:
        """Load the batches from number `first` on; of each batch the `share` of one of `n_shares` processes.

        The limit of a batch is that of each process. A batch with fewer examples than processes is left out.
        """
        plan = plan_epoch(self.sources, self.limit.times(n_shares), self.seed, epoch)
        shares = [(batch[share::n_shares], len(batch)) for batch in plan if len(batch) >= n_shares]
        return self._load(shares[first:], epoch)

    def load_part(self, part: int = 0, n_parts: int = 1) -> Iterator[Batch]:
        """Load every `n_parts`-th batch, the same ones every time: what one of several processes validates."""
        plan = plan_epoch(self.sources, self.limit, self.seed, epoch=0)
        return self._load([(batch, len(batch)) for batch in plan[part::n_parts]], epoch=0)

    def _load(self, batches: Sequence[tuple[Sequence[Place], int]], epoch: int) -> Iterator[Batch]:
        loader = torch.utils.data.DataLoader(
            _PlannedBatches(self.sources, batches, epoch),
            batch_size=None,
            num_workers=self.n_workers,
            worker_init_fn=_ignore_interrupt,
            # A generator of its own: the loader would otherwise take a number from the one that dropout uses.
            generator=torch.Generator(),
        )
        for batch in loader:
            if isinstance(batch, Exception):
                raise batch
            yield batch


def _ignore_interrupt(worker: int) -> None:
    """Ctrl-C reaches all processes of a terminal; the training process still needs the batch of its last step."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class _PlannedBatches(torch.utils.data.Dataset[Batch | Exception]):
    """An error travels as a value: raised in a worker, it would arrive with that process's traceback in its message."""

    def __init__(
        self, sources: Sequence[ExampleSource], batches: Sequence[tuple[Sequence[Place], int]], epoch: int
    ) -> None:
        self.sources, self.batches, self.epoch = sources, batches, epoch

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: int) -> Batch | Exception:
        places, n_in_all = self.batches[number]
        try:
            return collate([self.sources[source].load(index, self.epoch) for source, index in places], n_in_all)
        except (ValueError, OSError) as error:
            return error


# ---------------------------------------------------------------------------------------------------------------------
# What a phase learns from

SIMULATED_SECONDS_PER_EPOCH = 36_000.0  # where no recorded sessions determine how long an epoch is


@dataclass(frozen=True)
class TrainingData:
    """What there is to learn from."""

    train: Sequence[Session]  # may be empty if all phases simulate
    valid: Sequence[Session]
    speakers: Sequence[SpeakerIndex] = ()  # sources of conversations on the fly
    simulate: SimulateOptions | None = None  # their ratios and levels
    mixtures: ListedMixtures | None = None  # rendered on the fly; they count as recorded


@dataclass(frozen=True)
class Pretrained:
    """A trained model, as its folder has it."""

    weights: Mapping[str, Tensor]
    config: Mapping[str, Any]
    tokenizer: Tokenizer | None = None  # of an ASR


def check_data(data: TrainingData, phases: Sequence[PhaseOptions]) -> None:
    """Raise ValueError if there is nothing to validate on, or a phase has nothing to learn from."""
    if not data.valid:
        raise ValueError("the validation manifest is empty")
    for phase in phases:
        if phase.recorded and not data.train and not data.mixtures:
            raise ValueError(
                f"phase {phase.name!r} learns from the training manifest, which is empty; give one, or set "
                "recorded = false and simulated = 1"
            )
        if phase.simulated > 0 and (not data.speakers or data.simulate is None):
            raise ValueError(f"phase {phase.name!r} simulates on the fly, but there are no sources (--sources)")


def recorded_source(
    data: TrainingData, phase: PhaseOptions, labels: Labels, max_seconds: float, seed: int
) -> list[ExampleSource]:
    """Return the phase's part of the training manifest and of the list of mixtures, if it reads them."""
    sources: list[ExampleSource] = []
    if phase.recorded and data.train:
        sources.append(RecordedSource(data.train, labels, max_seconds, seed))
    if phase.recorded and data.mixtures:
        sources.append(MixtureSource(data.mixtures, labels, max_seconds))
    return sources


def simulated_source(
    data: TrainingData, phase: PhaseOptions, labels: Labels, set_name: str, seed: int, min_seconds: float = 0.0
) -> list[ExampleSource]:
    """Return the phase's conversations on the fly, if it has any; their names begin with `set_name`."""
    if phase.simulated == 0:
        return []
    assert data.simulate is not None
    simulated = replace(
        data.simulate,
        seconds=phase.seconds,
        min_speakers=phase.min_speakers,
        max_speakers=phase.max_speakers,
        speeds=phase.speeds,
    )
    simulator = Simulator(data.speakers, simulated, seed, set_name)
    n_recorded = sum(len(source) for source in recorded_source(data, phase, labels, phase.seconds, seed))
    n_simulated = count_simulated(phase, n_recorded)
    return [SimulatedSource(simulator, n_simulated, labels, min_seconds, phase.window_seconds)]


def count_simulated(phase: PhaseOptions, n_recorded: int) -> int:
    """Return how many simulated examples of an epoch make the wanted share of all; at least one."""
    if not phase.recorded or phase.simulated == 1:
        return round(SIMULATED_SECONDS_PER_EPOCH / (phase.window_seconds or phase.seconds))
    return max(1, round(n_recorded * phase.simulated / (1 - phase.simulated)))
