"""LibriSpeechMix: complete utterances, delayed and added; levels are not changed.

The evaluation mixtures follow the official lists to the sample; training mixtures are random (Kanda et al., 2020).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from random import Random

from sortk.formats import audio, mixlist
from sortk.formats.audio import Int16
from sortk.formats.files import FormatError
from sortk.formats.mixlist import Delayed, Mixture
from sortk.prepare.render import (
    PlannedPiece,
    PlannedSpeaker,
    PlannedTurn,
    SessionPlan,
    SetSummary,
    SourceAudio,
    render,
    write_set,
)
from sortk.prepare.syllables import approximate_word_times
from sortk.records import SAMPLE_RATE, RunJobs, Source

log = logging.getLogger(__name__)

MAX_DEVIATION_SECONDS = 0.02  # of a listed duration from the audio's; more means another recording
MAX_SPEAKERS = 3  # of a training mixture
MIN_DELAY_SECONDS = 0.5  # between the starts of two utterances of a training mixture


class ListedMixtures:
    """The mixtures of a list, made from the LibriSpeech folder that its paths are relative to.

    An official list has entire files and `rounds` their durations, so those of the audio are used. The durations of a
    list that was drawn here (`list_at_random`) are exact.
    """

    def __init__(self, mixtures: Sequence[Mixture], librispeech: Path, rounds: bool = True) -> None:
        self.mixtures, self.librispeech, self.rounds = mixtures, librispeech, rounds
        self._audio = SourceAudio(SAMPLE_RATE)

    def session_id(self, index: int) -> str:
        return self.mixtures[index].mixture_id

    def plan(self, index: int) -> SessionPlan:
        mixture = self.mixtures[index]
        paths = [find_audio(self.librispeech, utterance.wav) for utterance in mixture.utterances]
        if self.rounds:
            mixture = replace(mixture, utterances=tuple(map(_with_true_duration, mixture.utterances, paths)))
        return plan_mixture(mixture, paths)

    def __len__(self) -> int:
        return len(self.mixtures)

    def render(self, plan: SessionPlan) -> Int16:
        return render(plan, self._audio)


def mix_lists(lists: Iterable[Path], out: Path, run_jobs: RunJobs) -> dict[str, SetSummary]:
    """Write one set for each list, with its name; paths of audio are relative to the list."""
    summaries = {}
    for path in lists:
        mixer = ListedMixtures(mixlist.read(path), path.parent)
        summaries[path.stem] = write_set(mixer, len(mixer.mixtures), out / path.name, run_jobs)
        log.info("%s: %s", path.name, summaries[path.stem])
    return summaries


def mix_at_random(
    sources: Sequence[Source], counts: Mapping[str, int], seed: int, out: Path, run_jobs: RunJobs, n_joined: int = 1
) -> dict[str, SetSummary]:
    """Write the given number of random mixtures of the speakers of each split, as a set of its name."""
    summaries = {}
    for split, count in counts.items():
        mixer = RandomMixtures([source for source in sources if source.split == split], seed, split, n_joined)
        summaries[split] = write_set(mixer, count, out / f"{split}.jsonl", run_jobs)
        log.info("%s.jsonl: %s", split, summaries[split])
    return summaries


def list_at_random(
    sources: Sequence[Source], counts: Mapping[str, int], seed: int, out: Path, n_joined: int = 1
) -> dict[str, dict[str, float]]:
    """Write mixtures/<split>.jsonl, the same mixtures as `mix_at_random` makes; training renders them on the fly.

    Returns how many mixtures and hours each list has. Memory does not grow with their number.
    """
    summaries = {}
    for split, count in counts.items():
        mixer = RandomMixtures([source for source in sources if source.split == split], seed, split, n_joined)
        hours = 0.0

        def draw_all(mixer: RandomMixtures = mixer, count: int = count) -> Iterator[Mixture]:
            nonlocal hours
            for index in range(count):
                mixture = mixer.draw(index)
                hours += mixture.duration / 3600
                yield mixture

        mixlist.write(list_path(out, split), draw_all())
        summaries[split] = {"mixtures": count, "hours": round(hours, 4)}
        log.info("%s: %d mixtures, %.2f h, to be rendered on the fly", list_path(out, split).name, count, hours)
    return summaries


def list_path(simulated: Path, split: str) -> Path:
    """Return where stage 1 lists the mixtures of a set that is rendered on the fly."""
    return simulated / "mixtures" / f"{split}.jsonl"


class RandomMixtures:
    """An unlimited set of training mixtures: one to three speakers, random delays, every utterance overlapped."""

    def __init__(self, sources: Sequence[Source], seed: int, set_name: str, n_joined: int = 1) -> None:
        """`n_joined`: sources of each speaker, one after the other."""
        by_speaker: dict[str, list[Source]] = {}
        for source in sources:
            by_speaker.setdefault(source.speaker, []).append(source)
        if len(by_speaker) < MAX_SPEAKERS:
            raise ValueError(f"mixtures of {MAX_SPEAKERS} need as many speakers; the sources have {len(by_speaker)}")
        self.by_speaker = [by_speaker[speaker] for speaker in sorted(by_speaker)]
        self.seed, self.set_name, self.n_joined = seed, set_name, max(n_joined, 1)
        self._audio = SourceAudio(SAMPLE_RATE)

    def session_id(self, index: int) -> str:
        return f"{self.set_name}-{index:07d}"

    def draw(self, index: int) -> Mixture:
        """Return the utterances of a mixture and their delays; `wav` is the path of the audio."""
        rng = Random(f"{self.seed} {self.session_id(index)}")
        speakers = rng.sample(self.by_speaker, rng.randint(1, MAX_SPEAKERS))
        chosen = [[rng.choice(utterances) for _ in range(self.n_joined)] for utterances in speakers]
        delays = _draw_delays([sum(source.duration for source in own) for own in chosen], rng)
        utterances = []
        for own, delay in zip(chosen, delays, strict=True):
            starts = accumulate((source.duration for source in own), initial=delay)
            for source, start in zip(own, starts, strict=False):
                placed = (start, source.duration, source.offset)
                utterances.append(Delayed(str(source.audio_path), source.speaker, source.text, *placed))
        return Mixture(self.session_id(index), tuple(utterances))

    def plan(self, index: int) -> SessionPlan:
        mixture = self.draw(index)
        return plan_mixture(mixture, [Path(utterance.wav) for utterance in mixture.utterances])

    def render(self, plan: SessionPlan) -> Int16:
        return render(plan, self._audio)


def _draw_delays(durations: Sequence[float], rng: Random) -> list[float]:
    """Draw delays: an utterance starts at least half a second after the one before it, and before all others end."""
    delays, end = [0.0], durations[0]
    for duration in durations[1:]:
        earliest = delays[-1] + MIN_DELAY_SECONDS
        delays.append(rng.uniform(earliest, max(earliest, end)))
        end = max(end, delays[-1] + duration)
    return delays


def plan_mixture(mixture: Mixture, audio_paths: Sequence[Path]) -> SessionPlan:
    """Return the plan of a mixture: utterance i, unchanged, from sample int(16000 delay_i) on."""
    parts = sorted(zip(mixture.utterances, audio_paths, strict=True), key=lambda part: part[0].delay)
    names = list(dict.fromkeys(utterance.speaker for utterance, _ in parts))
    turns = []
    for utterance, path in parts:
        first = int(utterance.delay * SAMPLE_RATE)  # truncated, not rounded, as in the official script
        n_samples = round(utterance.duration * SAMPLE_RATE)
        words = tuple(approximate_word_times(utterance.text.split(), 0.0, utterance.duration))
        piece = PlannedPiece(path, utterance.offset, n_samples, lead=0, tail=0, at_sample=first, words=words)
        turns.append(PlannedTurn(names.index(utterance.speaker), first, first + n_samples, (piece,)))
    return SessionPlan(
        session_id=mixture.mixture_id,
        sample_rate=SAMPLE_RATE,
        n_samples=max(turn.end_sample for turn in turns),
        speakers=tuple(PlannedSpeaker(name, gain=1.0) for name in names),
        turns=tuple(turns),
        exact=True,
    )


def _with_true_duration(utterance: Delayed, path: Path) -> Delayed:
    """Return the utterance with the exact duration of its audio, if that exists: the official lists round it."""
    if not path.exists():
        return utterance
    seconds = audio.info(path).seconds
    if abs(seconds - utterance.duration) > MAX_DEVIATION_SECONDS:
        raise FormatError(path, None, f"is {seconds:.3f} s long, but the list says {utterance.duration:.3f} s")
    return replace(utterance, duration=seconds)


def find_audio(librispeech: Path, wav: str) -> Path:
    """Return the path of a list's wav: as named, or the FLAC that LibriSpeech ships."""
    named = librispeech / wav
    return named if named.exists() else named.with_suffix(".flac")
