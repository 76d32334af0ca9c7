"""Samples with transcripts -> batches of (samples, tokens, who speaks), for the loop that trains all models.

SampleSource     samples of a manifest of stage 4, each whole
SpokenSource     conversations, or one speaker at a time, that are simulated on the fly
AsrLoader        loads planned batches of them
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sortk.formats import audio, seglst
from sortk.formats.sst import SstOptions, build_sst, strip_tokens
from sortk.formats.tokens import Tokenizer
from sortk.models.frames import FRAME_SECONDS, SAMPLE_RATE, count_frames
from sortk.prepare.simulate import Simulator
from sortk.records import Segment, Session, arrival_order
from sortk.training.batches import Batch, BatchLoader, Example, Place, Source, collate, read_segments
from sortk.training.targets import NOBODY, Targets, frame_targets

NOT_KNOWN = -100  # instead of a token: what cross_entropy leaves out


class AsrExample(NamedTuple):
    """One training example: what is heard, who speaks, and what is written."""

    example: Example
    text: str
    tokens: list[int]  # with prompt and end
    frame_tokens: npt.NDArray[np.int64]  # (frames,): the piece that is spoken, padding in silence, or NOT_KNOWN


@dataclass(frozen=True)
class AsrBatch(Batch):
    """Examples padded to one length."""

    texts: tuple[str, ...]
    tokens: Tensor  # (batch, n): prompt, text, end, and then NOT_KNOWN
    frame_tokens: Tensor  # (batch, frames)

    @classmethod
    def of(cls, batch: Batch, texts: tuple[str, ...], tokens: Tensor, frame_tokens: Tensor) -> AsrBatch:
        """A batch with transcripts."""
        about: dict[str, Any] = {field.name: getattr(batch, field.name) for field in fields(Batch)}
        return cls(**about, texts=texts, tokens=tokens, frame_tokens=frame_tokens)

    def to(self, device: torch.device) -> AsrBatch:
        tokens, frame_tokens = (tensor.to(device, non_blocking=True) for tensor in (self.tokens, self.frame_tokens))
        return AsrBatch.of(super().to(device), self.texts, tokens, frame_tokens)


class AsrSource(Source, Protocol):
    """A numbered collection of samples with transcripts."""

    def load_asr(self, index: int, epoch: int) -> AsrExample: ...


@dataclass(frozen=True)
class Transcription:
    """How texts are written: the same for all sources of a model."""

    tokenizer: Tokenizer
    n_speakers: int
    sst: SstOptions
    speaker_tokens: bool = True
    max_tokens: int = 1024  # that the decoder can count

    def write(self, name: str, text: str) -> tuple[str, list[int]]:
        """The text as it is to be learned, and its tokens with prompt and end; `name` is for messages."""
        if not self.speaker_tokens:
            text = strip_tokens(text)
        try:
            tokens = [*self.tokenizer.prompt, *self.tokenizer.encode(text), self.tokenizer.end]
        except ValueError as error:
            raise ValueError(f"session {name}: {error}") from None
        if len(tokens) > self.max_tokens:
            raise ValueError(
                f"session {name}: its text has {len(tokens)} tokens, more than the {self.max_tokens} that the decoder "
                "can count; cut it into shorter samples (`sortk clean`)"
            )
        return text, tokens

    def name_frames(self, words: Sequence[Segment], offset: float, n_frames: int) -> npt.NDArray[np.int64]:
        """(n_frames,): the piece that is spoken where one word is; its pieces share the time of a word evenly."""
        frame_tokens = np.full(n_frames, self.tokenizer.pad)
        n_words = np.zeros(n_frames, np.int64)
        for word in words:
            first = max(round((word.start - offset) / FRAME_SECONDS), 0)
            last = min(max(round((word.end - offset) / FRAME_SECONDS), first + 1), n_frames)
            pieces = self.tokenizer.encode(word.text)
            if first >= last or not pieces:
                continue
            frame_tokens[first:last] = np.array(pieces)[np.arange(last - first) * len(pieces) // (last - first)]
            n_words[first:last] += 1
        return np.where(n_words > 1, NOT_KNOWN, frame_tokens)

    def say_who(self, segments: Sequence[Segment], words: Sequence[Segment], offset: float, n_frames: int) -> Targets:
        """(n_frames, n_speakers): who speaks; columns in the order in which the transcript numbers the speakers."""
        targets, names = frame_targets(segments, offset, n_frames, self.n_speakers)
        order = arrival_order(words)
        # A speaker without words comes after those with.
        places = sorted(range(len(names)), key=lambda column: (order.get(names[column], len(order)), column))
        return targets[:, [*places, *range(len(names), self.n_speakers)]]


class SampleSource:
    """Samples of a manifest whose `text` is the transcript; RTTM and words are used where they are named."""

    def __init__(self, sessions: Sequence[Session], transcription: Transcription, needs_truth: bool) -> None:
        for session in sessions:
            if session.text is None:
                raise ValueError(f"session {session.session_id} has no text, so nothing can be learned from it")
            if session.duration is None:
                raise ValueError(f"session {session.session_id} has no duration; `sortk clean` writes samples with one")
            if needs_truth and session.rttm_path is None:
                raise ValueError(
                    f"session {session.session_id} names no RTTM, so that who speaks is not known (supervision truth)"
                )
        self.sessions, self.transcription = list(sessions), transcription

    def __len__(self) -> int:
        return len(self.sessions)

    def seconds(self, index: int) -> float:
        return self.sessions[index].duration or 0.0

    def load(self, index: int, epoch: int) -> Example:
        return self.load_asr(index, epoch).example

    def load_asr(self, index: int, epoch: int) -> AsrExample:
        session, write = self.sessions[index], self.transcription
        text, tokens = write.write(session.session_id, session.text or "")
        samples = audio.read(session.audio_path, session.offset, session.duration, SAMPLE_RATE)
        n_frames = count_frames(len(samples))
        words = _find_words(session)
        segments = read_segments(session) if session.rttm_path else words
        targets = write.say_who(segments, words, session.offset, n_frames)
        frame_tokens = write.name_frames(words, session.offset, n_frames)
        if not words:  # nobody knows when what is said
            frame_tokens = np.full(n_frames, NOT_KNOWN)
        example = Example(session.session_id, samples, targets, np.full(n_frames, NOBODY))
        return AsrExample(example, text, tokens, frame_tokens)


def _find_words(session: Session) -> list[Segment]:
    """The words of a sample, if its SegLST has one entry per word (stage 3)."""
    if session.seglst_path is None:
        return []
    by_session = _read_words(session.seglst_path)
    own = next(iter(by_session.values())) if len(by_session) == 1 else by_session.get(session.session_id, [])
    end = session.offset + (session.duration or 0.0)
    inside = [word for word in own if word.start < end and word.end > session.offset]
    return inside if all(len(word.text.split()) == 1 for word in inside) else []


@lru_cache(maxsize=4096)
def _read_words(path: Path) -> Mapping[str, list[Segment]]:
    by_session: dict[str, list[Segment]] = {}
    for word in seglst.read(path, zero_duration="keep"):
        by_session.setdefault(word.session_id, []).append(word)
    return by_session


class SpokenSource:
    """Conversations simulated on the fly, or one speaker at a time: `n_sessions` an epoch, none of them ever twice.

    With `min_seconds`, they are from so long up to as long as the simulator makes them: an ASR that has met only clips
    of one length tells by the length of a text when it ends, and goes on in shorter ones.
    """

    def __init__(
        self, simulator: Simulator, n_sessions: int, transcription: Transcription, min_seconds: float = 0.0
    ) -> None:
        self.simulator, self.n_sessions, self.transcription = simulator, n_sessions, transcription
        self.min_seconds = min_seconds

    def __len__(self) -> int:
        return self.n_sessions

    def seconds(self, index: int) -> float:
        return self.simulator.options.seconds

    def load(self, index: int, epoch: int) -> Example:
        return self.load_asr(index, epoch).example

    def load_asr(self, index: int, epoch: int) -> AsrExample:
        plan, write = self.simulator.plan(epoch * self.n_sessions + index), self.transcription
        samples = self.simulator.render(plan).astype(np.float32) / np.float32(32768)
        words = plan.words()
        if self.min_seconds > 0:
            wanted = Random(plan.session_id).uniform(self.min_seconds, self.simulator.options.seconds)
            end = find_end(words, wanted)
            words, samples = [word for word in words if word.end <= end], samples[: round(end * SAMPLE_RATE)]
        n_frames = count_frames(len(samples))
        text, tokens = write.write(plan.session_id, build_sst(words, write.sst))
        targets = write.say_who(plan.segments(), words, 0.0, n_frames)
        example = Example(plan.session_id, samples, targets, np.full(n_frames, NOBODY))
        return AsrExample(example, text, tokens, write.name_frames(words, 0.0, n_frames))


def find_end(words: Sequence[Segment], wanted: float) -> float:
    """The time nearest to the wanted one at which nobody is in the middle of a word, and a word or silence ends."""

    def cuts_a_word(time: float) -> bool:
        return any(word.start < time < word.end for word in words)

    if not cuts_a_word(wanted):
        return wanted
    return min((word.end for word in words if not cuts_a_word(word.end)), key=lambda end: abs(end - wanted))


def collate_asr(examples: Sequence[AsrExample], n_in_all: int | None = None) -> AsrBatch:
    """Pads examples to the longest."""
    batch = collate([example.example for example in examples], n_in_all)
    tokens = torch.full((len(examples), max(len(example.tokens) for example in examples)), NOT_KNOWN)
    frame_tokens = torch.full(batch.speakers.shape, NOT_KNOWN)
    for row, example in enumerate(examples):
        tokens[row, : len(example.tokens)] = torch.tensor(example.tokens)
        frame_tokens[row, : len(example.frame_tokens)] = torch.from_numpy(example.frame_tokens)
    return AsrBatch.of(batch, tuple(example.text for example in examples), tokens, frame_tokens)


class AsrLoader(BatchLoader):
    """The batches of an epoch, loaded, with their transcripts."""

    def __init__(self, sources: Sequence[AsrSource], batch_seconds: float, seed: int, n_workers: int = 0) -> None:
        super().__init__(sources, batch_seconds, seed, n_workers)
        self.asr_sources = sources

    def _load(self, batches: Sequence[tuple[Sequence[Place], int]], epoch: int) -> Iterator[Batch]:
        dataset = _PlannedBatches(self.asr_sources, batches, epoch)
        # A generator of its own: the loader would otherwise take a number from the one that dropout uses.
        own = torch.Generator()
        return iter(torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=self.n_workers, generator=own))


class _PlannedBatches(torch.utils.data.Dataset[AsrBatch]):
    def __init__(
        self, sources: Sequence[AsrSource], batches: Sequence[tuple[Sequence[Place], int]], epoch: int
    ) -> None:
        self.sources, self.batches, self.epoch = sources, batches, epoch

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: int) -> AsrBatch:
        places, n_in_all = self.batches[number]
        return collate_asr([self.sources[source].load_asr(index, self.epoch) for source, index in places], n_in_all)
