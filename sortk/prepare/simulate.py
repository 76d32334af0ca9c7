"""Stage 1: single-speaker speech -> conversations, as files or on the fly.

    sources --index--> pieces --plan (random)--> plan --render (deterministic)--> audio, RTTM, SegLST, CTM

A plan follows from the seed and the session's name alone, so any number of jobs writes the same bytes, and a killed
run resumes with the first session that is missing.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Literal

from sortk.formats.audio import Int16
from sortk.formats.files import check_file_name, plural
from sortk.options import Options, option
from sortk.prepare.conversation import (
    PlacedTurn,
    TurnStatistics,
    TurnTaking,
    compare,
    measure,
    plan_turns,
    read_turn_taking,
)
from sortk.prepare.pieces import (
    SpeakerIndex,
    SpeechPiece,
    at_speed,
    cut_piece,
    index_speaker,
    read_index,
    summarize_index,
)
from sortk.prepare.render import (
    Bursts,
    PlannedPiece,
    PlannedSpeaker,
    PlannedTurn,
    RoomTone,
    SessionPlan,
    SetSummary,
    SoundClip,
    SourceAudio,
    find_clips,
    render,
    write_set,
)
from sortk.records import SAMPLE_RATE, RunJobs, Source

log = logging.getLogger(__name__)

MAX_OVERLAP = 0.35  # of a session; what two people at a time reach with turns of natural length
QUANTILE_STEPS = (math.sqrt(5) / 2 - 0.5, math.sqrt(2), math.sqrt(3))  # of overlap, silence, number of speakers
MEASURED_SESSIONS = 200  # of a set, for statistics of turn-taking
ENOUGH_SESSIONS = 40  # for their mean ratios to be held against the targets
SIMILAR_SHARE = 0.1  # of the voices: those of the most similar pitch
SENTENCE_MS = 1200  # mean length of the utterances of a speaker who says more than single words
ROOM_TONE_DB = (20.0, 60.0)  # below the speech
BURSTS_PER_SECOND = (0.1, 2.0)
BURSTS_DB = (0.0, 25.0)  # below the speech
ROOM_TONE_POLE = 0.97  # the largest, of the filter that makes room tone darker than white noise
SPEAKERS_IN_MEMORY = 4096  # whose pieces a simulator keeps; a corpus may have thousands


@dataclass(frozen=True)
class SimulateOptions(Options):
    """Settings of simulated conversations; the defaults are the paper's."""

    # hours of each split; 0: only on the fly
    hours: dict[str, float] = option(default_factory=lambda: {"train": 1.0}, at_least=0, at_most=1e6)
    min_speakers: int = option(2, at_least=1)  # of a session; the number is drawn uniformly
    max_speakers: int = 4
    # Time with two speakers / time with at least one, mean over sessions.
    overlap: float = option(0.12, at_least=0, at_most=0.3)
    silence: float = option(0.10, at_least=0, at_most=0.8)  # time without speech / duration, mean over sessions
    # Standard deviation of a session's own two ratios, as a share of their means (AMI: 0.4).
    spread: float = option(0.4, at_least=0, below=1)
    seconds: float = option(90.0, at_least=1)  # length of a session
    turn_change: float = option(0.875, at_least=0, at_most=1)  # probability that another speaker takes the next turn
    level_db: float = -26.0  # level of each speaker's speech, relative to full scale
    level_spread_db: float = 3.0  # a speaker is up to this much louder or softer
    # playback speeds; a voice at another speed is used as another speaker
    speeds: tuple[float, ...] = option((1.0,), at_least=0.5, at_most=2)
    noise_dir: str = ""  # a folder with noise; none by default
    min_snr_db: float = 5.0
    max_snr_db: float = 20.0
    rir_dir: str = ""  # a folder with room impulse responses; none by default
    sample_rate: int = SAMPLE_RATE
    # In addition, this many mixtures of one to three complete utterances for each split, as in LibriSpeechMix.
    mixtures: dict[str, int] = option(default_factory=dict, at_least=1, hash_only_if_set=True)
    # If sources are single words: how many of them a speaker of a mixture says, one after the other. 0: one source.
    joined_sources: int = option(0, at_least=0, hash_only_if_set=True)
    # Splits of `mixtures` that stage 1 only lists; training renders them on the fly, so that they need no files.
    on_the_fly: tuple[str, ...] = option((), hash_only_if_set=True)
    # Share of sessions without noise, if there is a noise_dir.
    clean_share: float = option(0.0, at_least=0, at_most=1, hash_only_if_set=True)
    # Share of sessions without a room, if there is a rir_dir.
    dry_share: float = option(0.0, at_least=0, at_most=1, hash_only_if_set=True)
    # A folder of RTTM files: overlap, silence, their spread, turn_change, and the lengths of turns, pauses, early
    # starts and back-channels are as in them. Pieces are cut to the length of a turn.
    like: str = option("", hash_only_if_set=True)
    # With `like`: share of sessions whose turn-taking is that of the settings above all the same.
    usual_share: float = option(0.0, at_least=0, at_most=1, hash_only_if_set=True)
    # Share of sessions whose speakers all come from one folder of audio: their microphones are alike, so only their
    # voices distinguish them.
    same_collection: float = option(0.0, at_least=0, at_most=1, hash_only_if_set=True)
    # Share of sessions whose speakers have a similar pitch, as played. They are the hardest to distinguish.
    same_pitch: float = option(0.0, at_least=0, at_most=1, hash_only_if_set=True)
    cut_long: bool = option(False, hash_only_if_set=True)  # cut what is too long for a session; else it is left out
    # Share of sessions whose speakers say sentences; in the others, single words are joined. 0: any speakers.
    sentences: float = option(0.0, at_least=0, at_most=1, hash_only_if_set=True)
    # Share of sessions with room tone: steady noise 20 to 60 dB below the speech. Without it, pauses are digital
    # silence, which recordings do not have.
    room_tone: float = option(0.0, at_least=0, at_most=1, hash_only_if_set=True)
    # Share of sessions with short noises: knocks, clicks, rustle, breath.
    bursts: float = option(0.0, at_least=0, at_most=1, hash_only_if_set=True)
    # Share of sessions that are encoded and decoded again, by one of `codecs`.
    coded_share: float = option(0.0, at_least=0, at_most=1, hash_only_if_set=True)
    codecs: tuple[Literal["telephone", "mp3", "opus"], ...] = option((), hash_only_if_set=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in (*self.hours, *self.mixtures):
            check_file_name(name, what="set")  # <set>.jsonl
        for name in self.on_the_fly:
            _require(name in self.mixtures, f"on_the_fly names {name!r}, which is not a key of mixtures")
        _require(
            self.min_speakers <= self.max_speakers,
            f"speakers must be a range such as 2-4, got {self.min_speakers}-{self.max_speakers}",
        )
        _require(bool(self.speeds), "speeds must be one or more numbers from 0.5 to 2, got none")
        _require(bool(self.codecs) or not self.coded_share, "coded_share is set, but codecs names none")
        _require(self.min_snr_db <= self.max_snr_db, "min_snr_db must be at most max_snr_db")
        _require(self.sample_rate in (8000, 16000), f"sample_rate must be 8000 or 16000, got {self.sample_rate}")


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise ValueError(sentence)


@dataclass(frozen=True)
class SessionTargets:
    """What one session is to reach."""

    n_speakers: int
    overlap: float
    silence: float


def draw_targets(options: SimulateOptions, seed: int, set_name: str, index: int) -> SessionTargets:
    """Return the targets of the index-th session: evenly spread over their distributions for any number of sessions.

    The quantiles of successive sessions are multiples, modulo one, of three irrational numbers, which fill the unit
    interval as evenly as any sequence can. So the mean over a set is the mean of the distribution even for few
    sessions, and no session needs to know how many there are.
    """
    start = Random(f"{seed} {set_name} targets")
    quantiles = [(start.random() + index * step) % 1 for step in QUANTILE_STEPS]
    counts = range(options.min_speakers, options.max_speakers + 1)
    n_speakers = counts[int(quantiles[2] * len(counts))]
    # Sessions with one speaker have no overlap; the others make up for them.
    overlap = options.overlap * len(counts) / sum(count > 1 for count in counts) if options.max_speakers > 1 else 0.0
    overlap_std = min(options.spread * overlap, (MAX_OVERLAP - overlap) / 2)
    return SessionTargets(
        n_speakers,
        min(_beta_quantile(overlap, overlap_std, quantiles[0]), MAX_OVERLAP),
        _beta_quantile(options.silence, options.spread * options.silence, quantiles[1]),
    )


def _beta_quantile(mean: float, std: float, quantile: float) -> float:
    """Return a quantile of the Beta distribution with that mean and standard deviation."""
    if mean <= 0 or std <= 0:
        return mean
    from scipy.special import betaincinv  # noqa: PLC0415 - slow to import, not needed to read the options

    precision = mean * (1 - mean) / std**2 - 1
    return float(betaincinv(mean * precision, (1 - mean) * precision, quantile))


@dataclass(frozen=True, slots=True)
class Voice:
    """A speaker at some speed."""

    index: SpeakerIndex
    speed: float

    @property
    def name(self) -> str:
        return name_voice(self.index.speaker, self.speed)

    @property
    def pitch_hz(self) -> float:
        return self.index.pitch_hz * self.speed


def name_voice(speaker: str, speed: float) -> str:
    """Return the name of a speaker at a speed: another speed is another voice."""
    return speaker if speed == 1 else f"{speaker}@{speed:g}"


class Simulator:
    """Plans and renders the sessions of a set, by number and in any order."""

    def __init__(self, speakers: Sequence[SpeakerIndex], options: SimulateOptions, seed: int, set_name: str) -> None:
        share_ms = 1000 * options.seconds * (1 - options.silence) / options.max_speakers
        slowest = min(options.speeds)
        self.speakers = [
            speaker for speaker in speakers if options.cut_long or speaker.shortest_ms <= share_ms * slowest
        ]
        if len(self.speakers) < len(speakers):
            skipped = plural(len(speakers) - len(self.speakers), "speaker")
            log.warning("simulation (%s): %s skipped, without an utterance that is short enough", set_name, skipped)
        if len(self.speakers) < options.max_speakers:
            raise ValueError(
                f"sessions of up to {options.max_speakers} speakers need as many different ones, but the sources of "
                f"{set_name!r} have {len(self.speakers)} with speech that fits into {options.seconds:g} s"
            )
        self.options, self.seed, self.set_name = options, seed, set_name
        self.like: TurnStatistics | None = None
        self._like_share, self._like_options, self._like_habits = 0.0, options, TurnTaking()
        if options.like:
            self.like, self._like_habits = read_turn_taking(Path(options.like))
            self._like_share = 1 - options.usual_share
            self._like_options = replace(
                options,
                overlap=min(self.like.overlap, 0.3),
                silence=min(self.like.silence, 0.8),
                spread=self.like.spread,
                turn_change=self.like.turn_change,
            )
        self.noises = find_clips(Path(options.noise_dir)) if options.noise_dir else []
        self.rirs = find_clips(Path(options.rir_dir)) if options.rir_dir else []
        self._pieces: dict[str, list[list[SpeechPiece]]] = {}
        self._audio = SourceAudio(options.sample_rate)

    def session_id(self, index: int) -> str:
        return f"{self.set_name}-{index:06d}"

    def is_like(self, index: int) -> bool:
        """Return whether people take turns in the index-th session as in the recordings of `like`."""
        return Random(f"{self.seed} {self.session_id(index)} like").random() < self._like_share

    def mean_targets(self) -> dict[str, float]:
        """Return the mean overlap and silence ratios that sessions aim at."""
        of_like, usual = self._like_share, 1 - self._like_share
        return {
            name: of_like * getattr(self._like_options, name) + usual * getattr(self.options, name)
            for name in ("overlap", "silence")
        }

    def plan(self, index: int) -> SessionPlan:
        """Make all random choices for the index-th session."""
        session_id = self.session_id(index)
        options, habits = self.options, TurnTaking()
        if self.is_like(index):
            options, habits = self._like_options, self._like_habits
        targets = draw_targets(options, self.seed, self.set_name, index)
        rng = Random(f"{self.seed} {session_id}")
        cast = self._cast(targets.n_speakers, rng)
        pieces = {voice.name: self._fitting_pieces(voice) for voice in cast}
        length_ms = round(1000 * options.seconds)
        turns = plan_turns(pieces, length_ms, targets.overlap, targets.silence, options.turn_change, rng, habits)
        arrived = list(dict.fromkeys(turn.turn.speaker for turn in turns))  # in the order of arrival
        voices = {voice.name: voice for voice in cast}
        n_samples = max([length_ms, *(turn.end_ms for turn in turns)]) * options.sample_rate // 1000
        rirs = self.rirs if not options.dry_share or rng.random() >= options.dry_share else []
        noises = self.noises if not options.clean_share or rng.random() >= options.clean_share else []
        return SessionPlan(
            session_id=session_id,
            sample_rate=options.sample_rate,
            n_samples=n_samples,
            speakers=tuple(
                PlannedSpeaker(
                    name, self._gain(voices[name].index.energy, rng), self._pick(rirs, rng), voices[name].speed
                )
                for name in arrived
            ),
            turns=tuple(_planned_turn(turn, arrived, options.sample_rate) for turn in turns),
            noise=self._pick_noise(noises, rng),
            snr_db=round(rng.uniform(options.min_snr_db, options.max_snr_db), 2),
            # Drawn only where they are asked for, so that other plans stay as they are.
            room_tone=(
                RoomTone(round(rng.uniform(*ROOM_TONE_DB), 2), round(rng.uniform(0.0, ROOM_TONE_POLE), 4))
                if options.room_tone and rng.random() < options.room_tone
                else None
            ),
            bursts=(
                Bursts(round(rng.uniform(*BURSTS_PER_SECOND), 3), round(rng.uniform(*BURSTS_DB), 2))
                if options.bursts and rng.random() < options.bursts
                else None
            ),
            codec=rng.choice(options.codecs) if options.coded_share and rng.random() < options.coded_share else "",
        )

    def render(self, plan: SessionPlan) -> Int16:
        """Return the samples of a planned session."""
        return render(plan, self._audio)

    def _cast(self, n_speakers: int, rng: Random) -> list[Voice]:
        """Draw the voices of a session."""
        options, pool = self.options, self._pool(n_speakers, rng)

        def draw_speed() -> float:
            return options.speeds[0] if len(options.speeds) == 1 else rng.choice(options.speeds)

        if not options.same_pitch or rng.random() >= options.same_pitch:
            return [Voice(speaker, draw_speed()) for speaker in rng.sample(pool, n_speakers)]
        voices = [Voice(speaker, draw_speed()) for speaker in rng.sample(pool, len(pool))]
        if sum(voice.pitch_hz > 0 for voice in voices) < n_speakers:
            return voices[:n_speakers]
        first, *others = (voice for voice in voices if voice.pitch_hz > 0)
        others.sort(key=lambda voice: abs(math.log(voice.pitch_hz / first.pitch_hz)))
        nearest = others[: max(round(SIMILAR_SHARE * len(others)), n_speakers - 1)]
        return [first, *rng.sample(nearest, n_speakers - 1)]

    def _pool(self, n_speakers: int, rng: Random) -> Sequence[SpeakerIndex]:
        """Return the speakers from whom a session of so many is drawn."""
        options, pool = self.options, self.speakers
        if options.sentences:
            long = rng.random() < options.sentences
            pool = [speaker for speaker in pool if (speaker.utterance_ms >= SENTENCE_MS) == long]
            pool = pool if len(pool) >= n_speakers else self.speakers
        if options.same_collection and rng.random() < options.same_collection:
            collection = rng.choice(pool).collection  # one with many speakers more often
            alike = [speaker for speaker in pool if speaker.collection == collection]
            pool = alike if len(alike) >= n_speakers else pool
        return pool

    def _fitting_pieces(self, voice: Voice) -> list[list[SpeechPiece]]:
        if voice.name not in self._pieces:
            if len(self._pieces) >= SPEAKERS_IN_MEMORY * len(self.options.speeds):
                self._pieces.pop(next(iter(self._pieces)))
            # At most half of a session's speech, so that others can speak, too.
            longest_ms = 1000 * self.options.seconds * (1 - self.options.silence) / min(2, self.options.max_speakers)
            spoken = [[at_speed(p, voice.name, voice.speed) for p in pieces] for pieces in read_index(voice.index.path)]
            if self.options.cut_long:
                share_ms = int(1000 * self.options.seconds * (1 - self.options.silence) / self.options.max_speakers)
                spoken = [[part for p in pieces for part in cut_piece(p, share_ms, voice.speed)] for pieces in spoken]
            fitting = [[p for p in pieces if p.duration_ms <= longest_ms] for pieces in spoken]
            self._pieces[voice.name] = [pieces for pieces in fitting if pieces]
        return self._pieces[voice.name]

    def _gain(self, energy: float, rng: Random) -> float:
        spread_db = rng.uniform(-self.options.level_spread_db, self.options.level_spread_db)
        return round(10 ** ((self.options.level_db + spread_db) / 20) / math.sqrt(energy), 6)

    def _pick_noise(self, noises: Sequence[SoundClip], rng: Random) -> SoundClip | None:
        """Return some noise; of a long recording, a part."""
        clip = self._pick(noises, rng)
        if clip is None or clip.duration <= self.options.seconds:
            return clip
        start = clip.start + rng.uniform(0.0, clip.duration - self.options.seconds)
        return SoundClip(clip.audio_path, round(start, 3), self.options.seconds)

    @staticmethod
    def _pick(clips: Sequence[SoundClip], rng: Random) -> SoundClip | None:
        return rng.choice(clips) if clips else None


def _planned_turn(placed: PlacedTurn, arrived: Sequence[str], sample_rate: int) -> PlannedTurn:
    per_ms = sample_rate // 1000
    at_ms, pieces = placed.start_ms, []
    for piece, pause_ms in zip(placed.turn.pieces, placed.turn.pauses_ms, strict=True):
        at_ms += pause_ms
        lengths = (piece.duration_ms * per_ms, piece.lead_ms * per_ms, piece.tail_ms * per_ms)
        pieces.append(PlannedPiece(piece.audio_path, piece.start, *lengths, at_ms * per_ms, piece.words))
        at_ms += piece.duration_ms
    speaker = arrived.index(placed.turn.speaker)
    return PlannedTurn(speaker, placed.start_ms * per_ms, placed.end_ms * per_ms, tuple(pieces))


# ---------------------------------------------------------------------------------------------------------------------
# Files


def simulate_set(
    speakers: Sequence[SpeakerIndex],
    options: SimulateOptions,
    seed: int,
    set_name: str,
    hours: float,
    manifest_path: Path,
    run_jobs: RunJobs,
) -> SetSummary:
    """Write one set of sessions beside its manifest, which comes last."""
    simulator = Simulator(speakers, options, seed, set_name)
    n_sessions = max(1, round(3600 * hours / options.seconds))
    summary = write_set(simulator, n_sessions, manifest_path, run_jobs)
    targets = simulator.mean_targets()
    log.info("%s: %s (targets %.3f, %.3f)", manifest_path.name, summary, *targets.values())
    if simulator.like is not None:
        numbers = [number for number in range(n_sessions) if simulator.is_like(number)][:MEASURED_SESSIONS]
        try:
            own_statistics, _ = measure(simulator.plan(number).segments() for number in numbers)
            summary.like = compare(simulator.like, own_statistics)
        except ValueError as error:
            log.info("%s: %s", manifest_path.name, error)
        for name, (wanted, own) in summary.like.items():
            log.info("  %-18s %8.3f, in %s %8.3f", name, own, options.like, wanted)
    reached = summary.to_json()
    for name, target in targets.items():
        if n_sessions >= ENOUGH_SESSIONS and abs(reached[name] - target) > 0.01:
            log.warning("%s: the sources do not allow the requested %s", manifest_path.name, name)
    return summary


def index_sources(sources: Iterable[Source], out: Path, sample_rate: int, run_jobs: RunJobs) -> list[SpeakerIndex]:
    """Find the speech of every speaker, and write it to `out`/pieces/; what an earlier run has written is kept."""
    by_speaker: dict[str, list[Source]] = {}
    for source in sources:
        by_speaker.setdefault(source.speaker, []).append(source)
    jobs = [(by_speaker[name], out / "pieces" / f"{n:05d}.json") for n, name in enumerate(sorted(by_speaker))]
    indexed = run_jobs(partial(_find_speech, sample_rate), jobs)
    found = []
    for name, speaker in zip(sorted(by_speaker), indexed, strict=True):
        if speaker is None:
            log.warning("speaker %s is skipped: no speech in any of %d utterances", name, len(by_speaker[name]))
        else:
            found.append(speaker)
    return found


def read_speakers(folder: Path) -> list[SpeakerIndex]:
    """Return the speakers that `index_sources` found, of a finished folder."""
    found = (summarize_index(path) for path in sorted((folder / "pieces").glob("*.json")))
    return [speaker for speaker in found if speaker is not None]


def _find_speech(sample_rate: int, job: tuple[Sequence[Source], Path]) -> SpeakerIndex | None:
    sources, path = job
    return summarize_index(path) if path.exists() else index_speaker(sources, path, sample_rate)


def simulate_splits(
    sources: Iterable[Source], options: SimulateOptions, seed: int, out: Path, run_jobs: RunJobs
) -> dict[str, SetSummary]:
    """Write one set for each split that `options.hours` names, from the speakers of that split only.

    Of a split with 0 hours only the speech is found, for conversations on the fly.
    """
    sources = [source for source in sources if source.split in options.hours]
    split_of: dict[str, str] = {}
    for source in sources:
        if split_of.setdefault(source.speaker, source.split) != source.split:
            raise ValueError(
                f"speaker {source.speaker} is in two splits, {split_of[source.speaker]} and {source.split}"
            )
    speakers = index_sources(sources, out, options.sample_rate, run_jobs)
    summaries = {}
    for split, hours in options.hours.items():
        if hours == 0:
            continue
        of_split = [speaker for speaker in speakers if split_of[speaker.speaker] == split]
        summaries[split] = simulate_set(of_split, options, seed, split, hours, out / f"{split}.jsonl", run_jobs)
    return summaries
