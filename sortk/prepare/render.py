"""Mixtures: a plan, its rendering, and the files of a set. The same plan always gives the same samples."""

from __future__ import annotations

import functools
import io
import json
import math
import statistics
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from sortk.formats import audio, ctm, manifest, rttm, seglst
from sortk.formats.audio import Int16
from sortk.formats.files import atomic_text, check_file_name, path_text, plural, read_lines, resolve_path
from sortk.formats.objects import entries, read_own
from sortk.records import RunJobs, Segment, Session, Word
from sortk.spans import Activity, measure_activity

if TYPE_CHECKING:
    import torch

FULL_SCALE = 32768
PEAK = 0.99  # a mixture that would clip is scaled down to this
CLICK_SECONDS = 0.005  # an edge without room tone still fades over this much of the speech
FILTER_ZEROS = 10  # samples of the lower rate to either side that a change of speed looks at
ROLLOFF = 0.99  # of the lower rate's bandwidth that it keeps
BURST_LOG_SECONDS = (-2.0, 0.2)  # bursts of 10 ms to 1.6 s
BURST_SPREAD_DB = 6.0  # standard deviation of their level
CACHE_BYTES = 1024**3  # of decoded sources, a worker: 9 hours of 16 kHz speech

AUDIO_SUFFIXES = (".wav", ".flac", ".ogg", ".sph")

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SoundClip:
    """A stretch of an audio file: noise, or a room impulse response."""

    audio_path: Path
    start: float
    duration: float


@dataclass(frozen=True, slots=True)
class PlannedPiece:
    """Samples of a source file, and where in the mixture they go. `lead` and `tail` samples around them fade."""

    audio_path: Path
    start: float
    n_samples: int
    lead: int
    tail: int
    at_sample: int
    words: tuple[Word, ...]  # times in seconds from the piece's start


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    speaker: int  # index into the plan's speakers
    start_sample: int
    end_sample: int
    pieces: tuple[PlannedPiece, ...]


@dataclass(frozen=True, slots=True)
class PlannedSpeaker:
    name: str
    gain: float
    rir: SoundClip | None = None
    speed: float = 1.0  # at which the sources are played: tempo and pitch change together, as on a tape


@dataclass(frozen=True, slots=True)
class RoomTone:
    """Steady Gaussian noise: white noise through the filter 1 / (1 - pole z^-1)."""

    snr_db: float
    pole: float


@dataclass(frozen=True, slots=True)
class Bursts:
    """Short noises, such as knocks, clicks, rustle and breath: coloured Gaussian noise that fades."""

    per_second: float
    snr_db: float  # of the mean burst


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """All random choices of one mixture."""

    session_id: str
    sample_rate: int
    n_samples: int
    speakers: tuple[PlannedSpeaker, ...]
    turns: tuple[PlannedTurn, ...]
    noise: SoundClip | None = None
    snr_db: float = 0.0
    room_tone: RoomTone | None = None
    bursts: Bursts | None = None
    codec: str = ""  # that the mixture is encoded with and decoded again; empty: none
    exact: bool = False  # the plain sum of the sources: no fades, and what clips is clipped, not scaled down

    @property
    def duration(self) -> float:
        return self.n_samples / self.sample_rate

    def segments(self) -> list[Segment]:
        """Return who speaks when: a segment per turn, in the order of their starts."""
        rate = self.sample_rate
        return [
            Segment(self.session_id, self.speakers[turn.speaker].name, turn.start_sample / rate, turn.end_sample / rate)
            for turn in self.turns
        ]

    def words(self) -> list[Segment]:
        """Return who says what when: a segment per word, in the order of their starts."""
        words = []
        for turn in self.turns:
            name = self.speakers[turn.speaker].name
            for piece in turn.pieces:
                at = piece.at_sample / self.sample_rate
                times = [(round(at + word.start, 6), round(at + word.end, 6)) for word in piece.words]
                words += [
                    Segment(self.session_id, name, *span, word.text)
                    for word, span in zip(piece.words, times, strict=True)
                ]
        return sorted(words, key=lambda word: (word.start, word.end))


# ---------------------------------------------------------------------------------------------------------------------
# JSON


def plan_to_json(plan: SessionPlan, path: Path) -> dict[str, Any]:
    """Return the plan as it is written to the file `path`, which the audio paths are relative to."""
    files = list(dict.fromkeys(piece.audio_path for turn in plan.turns for piece in turn.pieces))
    number_of = {file: number for number, file in enumerate(files)}

    def clip_json(clip: SoundClip | None) -> list[Any] | None:
        return [path_text(clip.audio_path, path), clip.start, clip.duration] if clip else None

    def piece_json(piece: PlannedPiece) -> list[Any]:
        words = [[word.text, word.start, word.end] for word in piece.words]
        numbers = [piece.start, piece.n_samples, piece.lead, piece.tail, piece.at_sample]
        return [number_of[piece.audio_path], *numbers, words]

    return {
        "session_id": plan.session_id,
        "sample_rate": plan.sample_rate,
        "n_samples": plan.n_samples,
        "exact": plan.exact,
        "speakers": [
            {"name": s.name, "gain": s.gain, "rir": clip_json(s.rir)} | ({"speed": s.speed} if s.speed != 1 else {})
            for s in plan.speakers
        ],
        "noise": clip_json(plan.noise),
        "snr_db": plan.snr_db,
        "audio": [path_text(file, path) for file in files],
        "turns": [
            [turn.speaker, turn.start_sample, turn.end_sample, [piece_json(piece) for piece in turn.pieces]]
            for turn in plan.turns
        ],
        **({"room_tone": [plan.room_tone.snr_db, plan.room_tone.pole]} if plan.room_tone else {}),
        **({"bursts": [plan.bursts.per_second, plan.bursts.snr_db]} if plan.bursts else {}),
        **({"codec": plan.codec} if plan.codec else {}),
    }


def plan_from_json(fields: dict[str, Any], path: Path) -> SessionPlan:
    """Invert `plan_to_json`."""
    files = [resolve_path(file, path) for file in fields["audio"]]

    def clip(value: list[Any] | None) -> SoundClip | None:
        return None if value is None else SoundClip(resolve_path(value[0], path), value[1], value[2])

    def piece(value: list[Any]) -> PlannedPiece:
        number, start, n_samples, lead, tail, at_sample, words = value
        spoken = tuple(Word(*word) for word in words)
        return PlannedPiece(files[number], start, n_samples, lead, tail, at_sample, spoken)

    return SessionPlan(
        session_id=fields["session_id"],
        sample_rate=fields["sample_rate"],
        n_samples=fields["n_samples"],
        speakers=tuple(
            PlannedSpeaker(s["name"], s["gain"], clip(s["rir"]), s.get("speed", 1.0)) for s in fields["speakers"]
        ),
        turns=tuple(
            PlannedTurn(speaker, start, end, tuple(piece(value) for value in pieces))
            for speaker, start, end, pieces in fields["turns"]
        ),
        noise=clip(fields["noise"]),
        snr_db=fields["snr_db"],
        room_tone=RoomTone(*fields["room_tone"]) if "room_tone" in fields else None,
        bursts=Bursts(*fields["bursts"]) if "bursts" in fields else None,
        codec=fields.get("codec", ""),
        exact=fields["exact"],
    )


# ---------------------------------------------------------------------------------------------------------------------
# Rendering


class SourceAudio:
    """Decoded source files, the latest used ones kept, as 16-bit samples at one rate."""

    def __init__(self, sample_rate: int, max_bytes: int = CACHE_BYTES) -> None:
        self.sample_rate, self.max_bytes = sample_rate, max_bytes
        self._files: OrderedDict[Path, Int16] = OrderedDict()
        self._n_bytes = 0

    def samples(self, path: Path, first: int, n_samples: int) -> Int16:
        """Return a part of the file, shorter where the file ends."""
        if path in self._files:
            self._files.move_to_end(path)
        else:
            self._load(path)
        return self._files[path][max(first, 0) : first + n_samples]

    def _load(self, path: Path) -> None:
        decoded = to_int16(audio.read(path, sample_rate=self.sample_rate))
        self._files[path] = decoded
        self._n_bytes += decoded.nbytes
        while self._n_bytes > self.max_bytes and len(self._files) > 1:
            _, oldest = self._files.popitem(last=False)
            self._n_bytes -= oldest.nbytes


def to_int16(samples: Float32) -> Int16:
    return np.clip(np.rint(samples * FULL_SCALE), -FULL_SCALE, FULL_SCALE - 1).astype(np.int16)


def render(plan: SessionPlan, sources: SourceAudio) -> Int16:
    """Return the samples of a mixture."""
    if any(speaker.rir for speaker in plan.speakers):
        mixture = np.zeros(plan.n_samples, np.float32)
        for index, speaker in enumerate(plan.speakers):
            track = np.zeros(plan.n_samples, np.float32)
            _add_pieces(track, plan, sources, speaker=index)
            mixture += _reverberate(track, speaker.rir, plan.sample_rate)
    else:
        mixture = np.zeros(plan.n_samples, np.float32)
        _add_pieces(mixture, plan, sources)
    background = np.zeros_like(mixture)
    if plan.noise:
        noise = np.resize(_read_clip(plan.noise, plan.sample_rate), plan.n_samples)
        background += _at_snr(noise, plan.snr_db, mixture, plan)
    if plan.room_tone:
        background += _at_snr(_make_room_tone(plan, plan.room_tone), plan.room_tone.snr_db, mixture, plan)
    if plan.bursts:
        background += _make_bursts(plan, plan.bursts, mixture)
    mixture += background
    if plan.codec:
        mixture = apply_codec(mixture, plan.sample_rate, plan.codec)
    peak = float(np.abs(mixture).max(initial=0.0))
    if peak > PEAK and not plan.exact:
        mixture *= PEAK / peak
    return to_int16(mixture)


def cut_plan(plan: SessionPlan, first: int, n_samples: int) -> SessionPlan:
    """Return the plan of a window of a mixture, `n_samples` from `first` on, with the speech in it and without words.

    It takes less time to render than the mixture. Where somebody speaks at an edge, speech fades over a few
    milliseconds; levels of noise are relative to the speech in the window.
    """
    turns = []
    for turn in plan.turns:
        speed, pieces = plan.speakers[turn.speaker].speed, []
        for piece in turn.pieces:
            begin, end = max(piece.at_sample, first), min(piece.at_sample + piece.n_samples, first + n_samples)
            if begin < end:
                n_before = begin - piece.at_sample
                start = piece.start + n_before * speed / plan.sample_rate
                lead = 0 if n_before else piece.lead
                tail = piece.tail if end == piece.at_sample + piece.n_samples else 0
                pieces.append(PlannedPiece(piece.audio_path, start, end - begin, lead, tail, begin - first, ()))
        if pieces:
            edges = (max(turn.start_sample - first, 0), min(turn.end_sample - first, n_samples))
            turns.append(PlannedTurn(turn.speaker, *edges, tuple(pieces)))
    return replace(plan, n_samples=n_samples, turns=tuple(turns))


def _add_pieces(track: Float32, plan: SessionPlan, sources: SourceAudio, speaker: int | None = None) -> None:
    """Add the pieces of one speaker, or of all, to the track."""
    shortest_fade = 0 if plan.exact else round(CLICK_SECONDS * plan.sample_rate)
    for turn in plan.turns:
        if speaker is not None and turn.speaker != speaker:
            continue
        gain = np.float32(plan.speakers[turn.speaker].gain / FULL_SCALE)
        speed = plan.speakers[turn.speaker].speed
        for piece in turn.pieces:
            lead = min(piece.lead, piece.at_sample)
            tail = min(piece.tail, len(track) - piece.at_sample - piece.n_samples)
            first = round(piece.start * plan.sample_rate) - round(lead * speed)
            n_samples = lead + piece.n_samples + tail
            samples = sources.samples(piece.audio_path, first, round(n_samples * speed)) * gain
            samples = change_speed(samples, speed)[:n_samples]
            # Raised-cosine edges.
            n_in, n_out = (min(max(n, shortest_fade), len(samples)) for n in (lead, tail))
            if n_in:
                samples[:n_in] *= _rise(n_in)
            if n_out:
                samples[-n_out:] *= _rise(n_out)[::-1]
            begin = piece.at_sample - lead
            track[begin : begin + len(samples)] += samples


def change_speed(samples: Float32, speed: float) -> Float32:
    """Return the samples as a tape that runs faster or slower plays them."""
    if speed == 1:
        return samples
    import torch  # noqa: PLC0415 - slow to import, rarely needed

    # Pieces of 2 to 8 seconds take 0.3 to 0.8 of the time of scipy's resample_poly, short ones 1.3 times as long.
    ratio = Fraction(speed).limit_denominator(100)
    old, new = ratio.numerator, ratio.denominator
    with torch.inference_mode():
        filters = _speed_filters(ratio)
        n_around = (filters.shape[2] - old) // 2
        padded = torch.nn.functional.pad(torch.from_numpy(samples), (n_around, n_around + old))
        resampled = torch.nn.functional.conv1d(padded[None], filters, stride=old)  # (new, len(samples) / old)
        changed: Float32 = resampled.T.flatten()[: -(-new * len(samples) // old)].numpy()
    return changed


@functools.lru_cache(maxsize=64)
def _speed_filters(speed: Fraction) -> torch.Tensor:
    """Return a sinc filter with a Hann window for each of the samples that `speed.numerator` samples become, as
    torchaudio's Resample has them. (speed.denominator, 1, taps)"""
    import torch  # noqa: PLC0415

    old, new = speed.numerator, speed.denominator  # samples in the same time
    bandwidth = ROLLOFF * min(old, new)
    at_new = torch.arange(new, dtype=torch.float64)[:, None] / new
    n_around = math.ceil(FILTER_ZEROS * old / bandwidth)
    at_old = torch.arange(-n_around, n_around + old, dtype=torch.float64) / old
    zeros = ((at_old - at_new) * bandwidth).clamp(-FILTER_ZEROS, FILTER_ZEROS)
    window = torch.cos(zeros * (math.pi / 2 / FILTER_ZEROS)).square()
    return (torch.sinc(zeros) * window * (bandwidth / old)).float()[:, None]


@functools.lru_cache(maxsize=64)
def _rise(n_samples: int) -> Float32:
    return (0.5 - 0.5 * np.cos(np.pi * (np.arange(n_samples) + 0.5) / n_samples)).astype(np.float32)


def _reverberate(track: Float32, rir: SoundClip | None, sample_rate: int) -> Float32:
    """Return the track in a room; the direct sound keeps its place, and the track its level."""
    if rir is None:
        return track
    from scipy.signal import oaconvolve  # noqa: PLC0415 - slow to import, rarely needed

    response = _read_clip(rir, sample_rate)
    direct = int(np.abs(response).argmax())
    energy = float(np.square(response).sum())
    if energy == 0:
        raise ValueError(f"{rir.audio_path}: the impulse response at {rir.start:g} s is silent")
    response = response / np.float32(math.sqrt(energy))
    reverberant: Float32 = oaconvolve(track, response)[direct : direct + len(track)].astype(np.float32)
    return reverberant


@functools.lru_cache(maxsize=128)
def _read_clip(clip: SoundClip, sample_rate: int) -> Float32:
    return audio.read(clip.audio_path, clip.start, clip.duration, sample_rate)


def _speech_power(mixture: Float32, plan: SessionPlan) -> float:
    """Return the mean power of the mixture's speech; there is nothing else in the mixture yet."""
    n_speech = sum(turn.end_sample - turn.start_sample for turn in plan.turns)
    return float(np.square(mixture).sum()) / max(n_speech, 1)


def _at_snr(noise: Float32, snr_db: float, mixture: Float32, plan: SessionPlan) -> Float32:
    """Return the noise scaled to `snr_db` below the mean power of the mixture's speech."""
    noise_power = float(np.square(noise).mean())
    if noise_power == 0:
        return noise
    return noise * np.float32(math.sqrt(_speech_power(mixture, plan) / noise_power / 10 ** (snr_db / 10)))


def _make_room_tone(plan: SessionPlan, tone: RoomTone) -> Float32:
    """Return noise of the mixture's length, the same for the same session."""
    from scipy.signal import lfilter  # noqa: PLC0415 - slow to import, rarely needed

    white = np.random.default_rng(list(plan.session_id.encode())).standard_normal(plan.n_samples, np.float32)
    return lfilter([1.0], [1.0, -tone.pole], white).astype(np.float32)


def _make_bursts(plan: SessionPlan, bursts: Bursts, mixture: Float32) -> Float32:
    """Return short noises at random places, the same for the same session.

    A burst is white noise through 1 / (1 - 2 r cos(w) z^-1 + r^2 z^-2), a resonance at a random frequency w, narrow or
    so broad that it is a hiss. It rises within 10 ms, and decays by 60 dB over its length.
    """
    from scipy.signal import lfilter  # noqa: PLC0415 - slow to import, rarely needed

    rng = np.random.default_rng([*plan.session_id.encode(), 1])
    found, level = np.zeros(plan.n_samples, np.float32), math.sqrt(_speech_power(mixture, plan))
    for _ in range(rng.poisson(bursts.per_second * plan.duration)):
        n_samples = min(round(plan.sample_rate * 10 ** rng.uniform(*BURST_LOG_SECONDS)), plan.n_samples)
        first = int(rng.integers(plan.n_samples - n_samples + 1))
        angle = math.pi * 10 ** rng.uniform(-2, 0)
        radius = rng.uniform(0, 0.97)
        white = rng.standard_normal(n_samples, np.float32)
        burst = lfilter([1.0], [1.0, -2 * radius * math.cos(angle), radius**2], white)
        burst *= 10 ** (-3 * np.arange(n_samples) / n_samples)
        n_rise = min(n_samples, plan.sample_rate // 100)
        burst[:n_rise] *= _rise(n_rise)
        loudness_db = rng.normal(-bursts.snr_db, BURST_SPREAD_DB)
        burst *= level * 10 ** (loudness_db / 20) / max(math.sqrt(float(np.square(burst).mean())), 1e-9)
        found[first : first + n_samples] += burst.astype(np.float32)
    return found


TELEPHONE_RATE = 8000
TELEPHONE_LOWEST_HZ = 300
MU = 255  # of the companding curve sign(x) ln(1 + mu |x|) / ln(1 + mu) (ITU-T G.711)
CODED = {
    "mp3": ("MP3", "MPEG_LAYER_III", 0.9),
    "opus": ("OGG", "OPUS", 0.9),
}  # as libsndfile writes it: 10 to 25 kbit/s


def apply_codec(samples: Float32, sample_rate: int, codec: str) -> Float32:
    """Return the samples as they are after `codec`; no codec delays them."""
    if codec == "telephone":
        return _telephone(samples, sample_rate)
    import soundfile  # noqa: PLC0415 - slow to import, rarely needed

    container, subtype, compression = CODED[codec]
    coded = io.BytesIO()
    peak = max(float(np.abs(samples).max(initial=0.0)), 1.0)  # encoders clip
    soundfile.write(
        coded, samples / np.float32(peak), sample_rate, format=container, subtype=subtype, compression_level=compression
    )
    coded.seek(0)
    decoded, _ = soundfile.read(coded, dtype="float32")
    return np.resize(decoded, len(samples)) * np.float32(peak)


def _telephone(samples: Float32, sample_rate: int) -> Float32:
    """Return the samples in the band of a telephone, 300 to 4,000 Hz, with the rounding of 8-bit mu-law."""
    from scipy.signal import butter, resample_poly, sosfilt  # noqa: PLC0415 - slow to import, rarely needed

    step = sample_rate // TELEPHONE_RATE
    high_pass = butter(2, TELEPHONE_LOWEST_HZ, "highpass", fs=TELEPHONE_RATE, output="sos")
    narrow = sosfilt(high_pass, resample_poly(samples, 1, step))
    peak = max(float(np.abs(narrow).max(initial=0.0)), 1.0)
    companded = np.sign(narrow) * np.log1p(MU * np.abs(narrow) / peak) / math.log1p(MU)
    rounded = np.rint(companded * (MU // 2)) / (MU // 2)
    expanded = np.sign(rounded) * np.expm1(np.abs(rounded) * math.log1p(MU)) / MU * peak
    return resample_poly(expanded, step, 1)[: len(samples)].astype(np.float32)


def find_clips(folder: Path) -> list[SoundClip]:
    """Return the noises or impulse responses that a folder's manifest.jsonl lists, else every audio file in it.

    A line has audio_filepath (or file), offset (or start) and duration.
    """
    clips, listed = [], folder / "manifest.jsonl"
    if listed.is_file():
        for _, entry in entries(read_lines(listed), listed):
            audio_path = entry.file("audio_filepath") or entry.need(entry.file, "file")
            start = entry.seconds("offset") or entry.seconds("start") or 0.0
            clips.append(SoundClip(audio_path, start, entry.need(entry.duration, "duration")))
    elif not folder.is_dir():
        raise ValueError(f"{folder}: no such folder")
    else:
        files = (path for path in sorted(folder.rglob("*")) if path.suffix.lower() in AUDIO_SUFFIXES)
        clips = [SoundClip(path, 0.0, audio.info(path).seconds) for path in files]
    if not clips:
        raise ValueError(f"{folder}: neither a manifest.jsonl nor any {', '.join(AUDIO_SUFFIXES)} file is there")
    return clips


# ---------------------------------------------------------------------------------------------------------------------
# Files of a set of mixtures: audio, RTTM, word-level SegLST, CTM, plan; and a manifest of all


class Mixer(Protocol):
    """Plans and renders sessions by their number."""

    def session_id(self, index: int) -> str: ...
    def plan(self, index: int) -> SessionPlan: ...
    def render(self, plan: SessionPlan) -> Int16: ...


@dataclass(frozen=True, slots=True)
class SessionPaths:
    """Every file of one session, named here and nowhere else."""

    folder: Path
    session_id: str

    @property
    def audio(self) -> Path:
        return self.folder / "audio" / f"{self.session_id}.flac"

    @property
    def rttm(self) -> Path:
        return self.folder / "rttm" / f"{self.session_id}.rttm"

    @property
    def seglst(self) -> Path:
        return self.folder / "seglst" / f"{self.session_id}.json"

    @property
    def ctm(self) -> Path:
        return self.folder / "ctm" / f"{self.session_id}.ctm"

    @property
    def plan(self) -> Path:
        """Written last: when it is there, the session is complete."""
        return self.folder / "plan" / f"{self.session_id}.json"


def write_set(mixer: Mixer, n_sessions: int, manifest_path: Path, run_jobs: RunJobs) -> SetSummary:
    """Write the sessions that do not exist yet, then their manifest. Memory does not grow with their number."""
    summary = SetSummary()

    def sessions() -> Iterator[Session]:
        work = functools.partial(write_session, mixer, manifest_path.parent)
        for session, activity in run_jobs(work, range(n_sessions)):
            summary.add(activity)
            yield session

    manifest.write(manifest_path, sessions())
    return summary


def write_session(mixer: Mixer, folder: Path, index: int) -> tuple[Session, Activity]:
    """SessionPlan, render and write one session, unless it is complete already; return its line of the manifest."""
    paths = SessionPaths(folder, check_file_name(mixer.session_id(index)))
    if paths.plan.exists():
        plan, activity = read_plan(paths.plan)
    else:
        plan = mixer.plan(index)
        audio.write_flac(paths.audio, mixer.render(plan), plan.sample_rate)
        rttm.write(paths.rttm, plan.segments())
        words = plan.words()
        seglst.write(paths.seglst, words)
        ctm.write(paths.ctm, words)
        with atomic_text(paths.plan) as file:
            file.write(json.dumps(plan_to_json(plan, paths.plan)))
        activity = _measure(plan)
    session = Session(
        plan.session_id,
        paths.audio,
        duration=plan.duration,
        num_speakers=len(plan.speakers),
        rttm_path=paths.rttm,
        ctm_path=paths.ctm,
        seglst_path=paths.seglst,
    )
    return session, activity


def read_plan(path: Path) -> tuple[SessionPlan, Activity]:
    """Return the plan of a session that is complete, and its statistics."""

    def parse(fields: Any) -> tuple[SessionPlan, Activity]:
        plan = plan_from_json(fields, path)
        if plan.session_id != path.stem:
            raise ValueError(f"the plan of session {plan.session_id}")
        return plan, _measure(plan)

    return read_own(path, parse)


def _measure(plan: SessionPlan) -> Activity:
    return measure_activity(plan.segments(), plan.duration)


@dataclass
class SetSummary:
    """Statistics of a set: ratios pooled over its sessions, and medians over sessions."""

    seconds: float = 0.0
    speech_seconds: float = 0.0
    overlap_seconds: float = 0.0
    speaker_counts: Counter[int] = field(default_factory=Counter)
    overlap_ratios: array[float] = field(default_factory=lambda: array("d"))
    silence_ratios: array[float] = field(default_factory=lambda: array("d"))
    like: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # statistics of `simulate.like`, and its own

    def add(self, activity: Activity) -> None:
        self.seconds += activity.duration
        self.speech_seconds += activity.speech
        self.overlap_seconds += activity.overlap
        self.speaker_counts[activity.n_speakers] += 1
        self.overlap_ratios.append(activity.overlap_ratio)
        self.silence_ratios.append(activity.silence_ratio)

    def to_json(self) -> dict[str, Any]:
        overlap = self.overlap_seconds / self.speech_seconds if self.speech_seconds else 0.0
        return {
            "sessions": len(self.overlap_ratios),
            "hours": round(self.seconds / 3600, 4),
            "sessions_by_speakers": {str(count): n for count, n in sorted(self.speaker_counts.items())},
            "overlap": round(overlap, 4),
            "overlap_median_session": round(statistics.median(self.overlap_ratios), 4),
            "silence": round(1 - self.speech_seconds / self.seconds, 4),
            "silence_median_session": round(statistics.median(self.silence_ratios), 4),
            **({"like": {name: list(both) for name, both in self.like.items()}} if self.like else {}),
        }

    def __str__(self) -> str:
        numbers = self.to_json()
        sessions = plural(numbers["sessions"], "session")
        return f"{sessions}, {{hours:.2f}} h, overlap {{overlap:.3f}}, silence {{silence:.3f}}".format(**numbers)
