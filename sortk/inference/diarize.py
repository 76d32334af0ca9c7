"""Who spoke when, in recordings of any length, rate and number: the diarizer as users meet it.

    diarizer = sortk.load_diarizer("model")
    for segment in diarizer("meeting.wav"):
        print(segment.speaker, segment.start, segment.end)

A recording that is short enough is processed in one pass, in a batch with others of similar length. A longer one is
processed in chunks with a speaker cache (`streaming.py`), in bounded memory: only its posteriors are kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

import numpy as np

from sortk.formats import audio, manifest, posteriors
from sortk.formats.audio import Samples
from sortk.formats.files import check_name
from sortk.formats.hub import SHIPPED_MODEL, find_model
from sortk.formats.objects import id_of
from sortk.formats.posteriors import Probs
from sortk.formats.postprocess import POSTPROCESS_NAME, Postprocess, read_postprocess
from sortk.formats.postprocess import PRESETS as POSTPROCESS_PRESETS
from sortk.inference.linking import (
    LinkingOptions,
    VoiceSpace,
    cut_windows,
    join_windows,
    process_windows,
    silence_pauses,
)
from sortk.inference.postprocess import find_segments, keep_strongest, merge_columns, name_segments, raise_weak
from sortk.inference.results import Segments
from sortk.inference.windows import OnnxDiarizer, has_graph
from sortk.models.frames import FRAME_SECONDS, SAMPLE_RATE, count_rows
from sortk.models.memory import keep_freed_memory
from sortk.prepare.activity import SpeechStream, load_network
from sortk.records import Segment, Session

if TYPE_CHECKING:  # torch takes seconds, and the model that comes with sortk does without
    from typing import Any

    import numpy.typing as npt
    import torch

    from sortk.inference.enrol import Enrolment
    from sortk.inference.load import LoadedDiarizer
    from sortk.inference.streaming import Stream
    from sortk.models.diarizer import DiarizerModel, StreamableDiarizer, StreamingOptions
    from sortk.models.speaker_cache import StreamingStep

AudioSource: TypeAlias = "str | PathLike[str] | Session | npt.NDArray[Any] | torch.Tensor | Mapping[str, Any]"
OnError = Callable[[Session, Exception], None]
OnProgress = Callable[[float], object]  # called with the seconds of audio that are newly done

OWN_STEPS = "own"
"""In the place of a preset: the settings in the model's file if it has some, else its default preset."""

NOT_STREAMED = "this model cannot be streamed: it does not sort speakers by arrival, so a cache cannot carry them on"
UNNAMED = "audio"  # session id of samples that come without a name
POOL = 64  # sessions; those of similar length are processed together
BATCH_SECONDS = {"cpu": 60.0, "cuda": 1800.0}  # of padded audio; larger batches are not faster


def _ignore(_seconds: float) -> None:
    """Report no progress."""


MAX_SPEAKERS = 1000  # that can be asked for: memory for their posteriors is taken


@dataclass(frozen=True)
class DiarizeOptions:
    """How recordings are processed."""

    streaming: str | StreamingOptions | None = None  # process everything in these chunks; None: only what is too long
    whole_seconds: float = 600.0  # up to here a recording is processed in one pass
    max_speakers: int | None = None  # that a recording can have; speech of later ones goes to the likeliest of these
    postprocess: Postprocess = field(default_factory=Postprocess)
    min_speakers: int | None = None  # that a recording has; the likeliest of the silent ones are raised if need be
    speakers: int | None = None  # that a recording has, exactly: the strongest of the model's
    enrol: Mapping[str, str | Path] = field(default_factory=dict)  # name -> sample of the voice, see enrol.py

    def __post_init__(self) -> None:
        for name in ("max_speakers", "min_speakers", "speakers"):
            if (value := getattr(self, name)) is not None and not 1 <= value <= MAX_SPEAKERS:
                raise ValueError(f"{name} must be from 1 to {MAX_SPEAKERS}, got {value}")
        if self.min_speakers is not None and self.max_speakers is not None and self.min_speakers > self.max_speakers:
            raise ValueError(f"min_speakers {self.min_speakers} is more than max_speakers {self.max_speakers}")
        if self.speakers is not None and (self.min_speakers is not None or self.max_speakers is not None):
            raise ValueError("speakers is an exact number: leave out min_speakers and max_speakers")
        if self.enrol and self.speakers is not None:
            raise ValueError("speakers does not go together with enrolled names: give max_speakers")
        if self.max_speakers is not None and len(self.enrol) > self.max_speakers:
            raise ValueError(f"{len(self.enrol)} speakers are enrolled, more than max_speakers {self.max_speakers}")


class Diarizer:
    """A trained model with all that it takes to use it."""

    def __init__(self, loaded: LoadedDiarizer | OnnxDiarizer, options: DiarizeOptions | None = None) -> None:
        self.loaded, self.options = loaded, options or DiarizeOptions()
        self.n_speakers, self.rows_per_frame = loaded.n_speakers, loaded.rows_per_frame
        self.speaker_names = list(self.options.enrol)  # of the first columns; the others are speaker_N
        # A stream, or voices that are enrolled, need the speaker cache.
        needs_steps = self.options.streaming is not None or bool(self.options.enrol)
        self._linking = None if needs_steps else loaded.linking
        if needs_steps and self._step is None:
            raise ValueError(NOT_STREAMED)
        self._enrolment: Enrolment | None = None
        if self.options.enrol:
            from sortk.inference.enrol import read_enrolment  # noqa: PLC0415

            self._enrolment = read_enrolment(self.options.enrol, self.n_speakers)

    @property
    def model(self) -> DiarizerModel:
        """Return the model in torch, which is imported here at the latest."""
        return self.loaded.model

    @property
    def frame_seconds(self) -> float:
        """Return the duration of a row of posteriors."""
        return FRAME_SECONDS / self.rows_per_frame

    @property
    def device(self) -> str:
        return self.loaded.device

    @cached_property
    def _step(self) -> StreamingStep | None:
        """Return the step of a stream; None if the model cannot be streamed."""
        from sortk.models.diarizer import StreamableDiarizer  # noqa: PLC0415
        from sortk.models.speaker_cache import StreamingStep  # noqa: PLC0415

        if not isinstance(self.model, StreamableDiarizer):
            return None
        return StreamingStep(self.model, _choose_steps(self.options.streaming, self.model, self.loaded.streaming))

    def __repr__(self) -> str:
        engine = "onnxruntime" if isinstance(self.loaded, OnnxDiarizer) else type(self.model).__name__
        return f"<Diarizer: {engine}, {self.n_speakers} speakers, {self.device}>"

    def __call__(self, source: AudioSource, sample_rate: int = SAMPLE_RATE) -> Segments:
        """Return the segments in an audio file, a session of a manifest, or samples (`audio.from_array`) of that rate.

        They are in the order of their start. `speaker_0` is who speaks first.
        """
        session, probs = self._diarize(source, sample_rate)
        return Segments(self.find_segments(session, probs))

    def posteriors(self, source: AudioSource, sample_rate: int = SAMPLE_RATE) -> Probs:
        """Return how likely each speaker is to speak in each row of `frame_seconds`: (rows, speakers), from 0 to 1."""
        return self._diarize(source, sample_rate)[1]

    def _diarize(self, source: AudioSource, sample_rate: int) -> tuple[Session, Probs]:
        if isinstance(source, str | PathLike):
            source = name_session(Path(source))
        if isinstance(source, Session):
            [(session, probs)] = self.posteriors_of([source])
            return session, probs
        return Session(UNNAMED, Path(UNNAMED)), self.posteriors_of_samples(audio.from_array(source, sample_rate))

    def find_segments(self, session: Session, probs: Probs) -> list[Segment]:
        """Return the segments of a session, in seconds from the start of its audio file."""
        found = name_segments(
            session.session_id, find_segments(probs, self.options.postprocess, self.frame_seconds), self.speaker_names
        )
        shifted = (segment.shift(session.offset) for segment in found)
        return sorted(shifted, key=lambda segment: (segment.start, segment.end, segment.speaker))

    def posteriors_of(
        self, sessions: Sequence[Session], on_error: OnError | None = None, on_progress: OnProgress = _ignore
    ) -> Iterator[tuple[Session, Probs]]:
        """Yield the posteriors of each session, in order.

        With `on_error`, it is called for a session whose audio cannot be read, and the others continue.
        """
        for first in range(0, len(sessions), POOL):
            yield from self._process_pool(sessions[first : first + POOL], on_error or _raise, on_progress)

    def posteriors_of_samples(self, samples: Samples) -> Probs:
        """(samples,) at 16 kHz -> (frames, speakers)."""
        if self._is_whole(len(samples)):
            return self._process_together([samples])[0]
        return self._process_in_chunks([samples])

    def stream(self) -> Stream:
        """Return a stream: `push` samples as they arrive, then `finish`. It does not limit speakers."""
        if self._step is None:
            raise ValueError(NOT_STREAMED)
        from sortk.inference.enrol import EnrolledStream  # noqa: PLC0415
        from sortk.inference.streaming import Stream  # noqa: PLC0415

        if self._enrolment is not None:
            return EnrolledStream(self._step, self._enrolment)
        return Stream(self._step)

    def limit_speakers(self, probs: Probs) -> Probs:
        """Return at most `max_speakers` columns; speech of later speakers goes to the likeliest of these."""
        limit, columns = self.options.max_speakers, np.arange(probs.shape[1])
        return (
            probs if limit is None or limit >= len(columns) else merge_columns(probs, columns[:limit], columns[limit:])
        )

    def count_speakers(self, probs: Probs) -> Probs:
        """Return the posteriors of a complete recording with as many speakers as the options ask for."""
        probs = self.limit_speakers(probs)
        if self.options.speakers is not None:
            if self.options.speakers > probs.shape[1]:
                raise ValueError(f"speakers is {self.options.speakers}, but the diarizer has {probs.shape[1]} outputs")
            probs = keep_strongest(probs, self.options.speakers)
        return raise_weak(probs, self.options.speakers or self.options.min_speakers or 0)

    def average_rows(self, probs: Probs) -> Probs:
        """Return posteriors of model frames, 80 ms: the mean of each frame's rows."""
        n_rows = self.rows_per_frame
        if n_rows == 1:
            return probs
        padded = np.pad(probs, ((0, -len(probs) % n_rows), (0, 0)), mode="edge" if len(probs) else "constant")
        averaged: Probs = padded.reshape(-1, n_rows, probs.shape[1]).mean(axis=1)
        return averaged

    def _is_whole(self, n_samples: int) -> bool:
        if self._linking is not None:
            return False
        if self._step is None:
            return True
        if self.options.streaming is not None or self._enrolment is not None or not self._step.model.whole_clips:
            return False
        return n_samples <= self.options.whole_seconds * SAMPLE_RATE

    def _process_pool(
        self, sessions: Sequence[Session], on_error: OnError, on_progress: OnProgress
    ) -> Iterator[tuple[Session, Probs]]:
        lengths = []
        for place, session in enumerate(sessions):
            with _caught(session, on_error):
                lengths.append(_Length(round(measure_seconds(session) * SAMPLE_RATE), place))
        batches = sorted(self._split_batches(sorted(lengths)), key=_first_place)
        found: dict[int, Probs] = {}
        for batch, later in itertools.pairwise([*batches, None]):
            assert batch is not None
            found |= self._process_batch(batch, sessions, on_error, on_progress)
            # A session is yielded as soon as all before it are.
            ready = [place for place in sorted(found) if later is None or place < _first_place(later)]
            yield from ((sessions[place], found.pop(place)) for place in ready)

    def _process_batch(
        self, batch: Sequence[_Length], sessions: Sequence[Session], on_error: OnError, on_progress: OnProgress
    ) -> dict[int, Probs]:
        """Return the posteriors of the sessions that can be read, by place."""
        found, clips = {}, {}
        for n_samples, place in batch:
            session = sessions[place]
            window = session.audio_path, session.offset, session.duration, SAMPLE_RATE, session.channel
            with _caught(sessions[place], on_error):
                if self._is_whole(n_samples):
                    clips[place] = audio.read(*window)
                else:
                    found[place] = self._process_in_chunks(audio.read_blocks(*window), on_progress)
        found |= zip(clips, self._process_together(list(clips.values())), strict=True)
        on_progress(sum(map(len, clips.values())) / SAMPLE_RATE)
        return found

    def _split_batches(self, lengths: Sequence[_Length]) -> Iterator[list[_Length]]:
        """Yield batches of similar length that are padded to the longest; one session at a time if in chunks."""
        limit = BATCH_SECONDS.get(self.device.partition(":")[0], BATCH_SECONDS["cpu"]) * SAMPLE_RATE
        batch: list[_Length] = []
        for length in lengths:
            if batch and (length.n_samples * (len(batch) + 1) > limit or not self._is_whole(length.n_samples)):
                yield batch
                batch = []
            batch.append(length)
        if batch:
            yield batch

    def _process_together(self, clips: Sequence[Samples]) -> list[Probs]:
        """Return the posteriors of clips that are processed in one pass. They do not depend on the other clips."""
        if max((count_rows(len(samples), self.rows_per_frame) for samples in clips), default=0) == 0:  # below 10 ms
            return [np.zeros((0, self.n_speakers), np.float32) for _ in clips]
        assert not isinstance(self.loaded, OnnxDiarizer)  # which processes everything in windows
        return [self.count_speakers(_check_finite(probs)) for probs in self.loaded.run_clips(clips)[0]]

    def _process_in_chunks(self, blocks: Iterable[Samples], on_progress: OnProgress = _ignore) -> Probs:
        if self._linking is not None:
            return self._process_windows(blocks, self._linking, on_progress)
        import torch  # noqa: PLC0415

        stream = self.stream()
        steps = []
        for block in blocks:
            steps.append(stream.push(torch.from_numpy(block)[None]))
            on_progress(len(block) / SAMPLE_RATE)
        probs = torch.cat([*steps, stream.finish()], dim=1)[0]
        return self.count_speakers(_check_finite(probs.float().cpu().numpy()))

    def _process_windows(self, blocks: Iterable[Samples], linking: LinkingOptions, on_progress: OnProgress) -> Probs:
        speech = SpeechStream(load_network()) if linking.speech > 0 else None

        def read() -> Iterator[Samples]:
            for block in blocks:
                yield block
                if speech is not None:
                    speech.push(block)
                on_progress(len(block) / SAMPLE_RATE)

        options = self.options
        windows = list(process_windows(self.loaded.run_windows, cut_windows(read(), linking)))
        for window in windows:
            _check_finite(window.probs)
        fewest = options.speakers or options.min_speakers or 1
        most = options.speakers or options.max_speakers
        n_columns = max(fewest, self.n_speakers)
        voices = self.loaded.voices or VoiceSpace.plain(self.loaded.embedding_size)
        probs = join_windows(windows, linking, voices, fewest, most, n_columns)
        if speech is not None:
            probs = silence_pauses(probs, speech.finish(), linking.speech)
        return self.count_speakers(probs)


def _check_finite(probs: Probs) -> Probs:
    """Return the posteriors; ArithmeticError if they are not numbers, because no session can be diarized then."""
    if not np.isfinite(probs).all():
        raise FloatingPointError("the posteriors of this model are not numbers (NaN): its weights are damaged")
    return probs


class _Length(NamedTuple):
    """Of a session, by which it is sorted."""

    n_samples: int
    place: int


def _first_place(batch: Sequence[_Length]) -> int:
    return min(length.place for length in batch)


def load(
    path: str | Path | None = None,
    options: DiarizeOptions | None = None,
    device: str | None = None,
    int8: bool = False,
) -> Diarizer:
    """Return a diarizer from a model folder, a `.nemo` file or a name (`formats/hub.py`), on the GPU if there is one.

    `int8`: faster, on CPU only.
    Without a path it is the one that comes with sortk, in onnxruntime on the CPU; in torch for another device, `int8`,
    streaming and enrolment. Without options, posteriors are read as the postprocess.toml of the model folder says, if
    there is one.
    """
    path = find_model(path) if path is not None else SHIPPED_MODEL
    options = options or DiarizeOptions(postprocess=choose_postprocess(None, path))
    in_windows = options.streaming is None and not options.enrol and not int8
    if in_windows and device in (None, "cpu") and has_graph(path):
        return Diarizer(OnnxDiarizer(path), options)
    import torch  # noqa: PLC0415

    from sortk.inference.load import load_diarizer  # noqa: PLC0415

    device = device or ("cuda" if torch.cuda.is_available() and not int8 else "cpu")
    if int8 and device != "cpu":
        raise ValueError(f"int8 runs on the CPU only, not on {device!r}")
    keep_freed_memory()
    try:
        loaded = load_diarizer(path, device)
    except RuntimeError as error:
        raise ValueError(f"device {device!r} cannot be used: {str(error).splitlines()[0]}") from None
    if loaded.model.features.window.is_meta:
        raise ValueError("device 'meta' cannot be used: it computes nothing")
    loaded.model.freeze_for_inference()
    if int8:
        from sortk.inference.int8 import quantize  # noqa: PLC0415

        quantize(loaded.model)
    return Diarizer(loaded, options)


def _choose_steps(
    wanted: str | StreamingOptions | None, model: StreamableDiarizer, own: StreamingOptions | None
) -> StreamingOptions:
    if wanted is None:
        return model.long_steps
    if not isinstance(wanted, str):
        return wanted
    if wanted == OWN_STEPS:
        return own or model.presets[model.default_preset]
    if wanted not in model.presets:
        raise ValueError(f"this model has no streaming preset {wanted!r}, only {', '.join(model.presets)}")
    return model.presets[wanted]


def measure_seconds(session: Session) -> float:
    """Return the duration of a session, from the header of its audio."""
    seconds = audio.info(session.audio_path).seconds - session.offset
    return seconds if session.duration is None else min(seconds, session.duration)


def count_seconds(sessions: Iterable[Session]) -> float:
    """Return the total duration of the sessions whose audio can be read."""
    seconds = 0.0
    for session in sessions:
        with suppress(ValueError, OSError):
            seconds += measure_seconds(session)
    return seconds


@contextmanager
def _caught(session: Session, on_error: OnError) -> Iterator[None]:
    try:
        yield
    except (ValueError, OSError) as error:
        on_error(session, error)


def _raise(_session: Session, error: Exception) -> None:
    raise error


def choose_postprocess(text: str | None, model: Path | None = None) -> Postprocess:
    """Return a preset by its name, or the options in a postprocess.toml. None: those in the folder of `model` or, if
    there are none, those that change nothing."""
    if text is None:
        own = model / POSTPROCESS_NAME if model else None
        return read_postprocess(own) if own and own.is_file() else Postprocess()
    if text in POSTPROCESS_PRESETS:
        return POSTPROCESS_PRESETS[text]
    if not Path(text).exists():
        raise FileNotFoundError(f"{text}: no such file, and not a preset; presets: {', '.join(POSTPROCESS_PRESETS)}")
    return read_postprocess(Path(text))


def name_session(path: Path) -> Session:
    """Return the session of an audio file, named after it."""
    session_id = id_of(path)
    try:
        check_name("session id", session_id)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; rename the file") from None
    return Session(session_id, path)


def find_sessions(paths: Iterable[Path], on_error: Callable[[Exception], None] | None = None) -> list[Session]:
    """Return audio files, folders of them, and manifests (`.jsonl`, `.json`) as sessions, each with a name of its own.

    With `on_error`, it is called for a file of a folder whose name cannot be that of a session, and the others go on.
    """
    sessions: dict[str, Session] = {}
    for session in itertools.chain.from_iterable(_sessions_of(path, on_error) for path in paths):
        other = sessions.setdefault(session.session_id, session)
        if other is not session:
            both = f"{other.audio_path} and {session.audio_path}"
            raise ValueError(f"two recordings are called {session.session_id}, {both}: diarize one at a time")
    return list(sessions.values())


def _sessions_of(path: Path, on_error: Callable[[Exception], None] | None) -> Iterator[Session]:
    if path.name.removesuffix(".gz").endswith((".jsonl", ".json")):
        yield from manifest.read(path)
        return
    for file in audio.files_below(path):
        try:
            yield name_session(file)
        except ValueError as error:
            if on_error is None or not path.is_dir():
                raise
            on_error(error)


class GivesPosteriors(Protocol):
    """A `Diarizer`, or several."""

    @property
    def frame_seconds(self) -> float: ...

    def posteriors_of(self, sessions: Sequence[Session]) -> Iterator[tuple[Session, Probs]]:
        """Return the posteriors of each session, in order."""


def unfinished_pools(sessions: Sequence[Session], is_done: Callable[[Session], bool]) -> list[Session]:
    """Return the sessions of all pools of which one is not done.

    In another batch, a session's posteriors differ in the last bits; so after a kill, the same pools are processed.
    """
    pools = (sessions[first : first + POOL] for first in range(0, len(sessions), POOL))
    return [session for pool in pools if not all(map(is_done, pool)) for session in pool]


def write_posteriors(diarizer: GivesPosteriors, sessions: Sequence[Session], folder: Path) -> None:
    """Write FOLDER/<session>.npy of each session that has none yet."""

    def is_done(session: Session) -> bool:
        return posteriors.path_of(folder, session).is_file()

    frame_seconds = diarizer.frame_seconds
    for session, probs in diarizer.posteriors_of(unfinished_pools(sessions, is_done)):
        if not is_done(session):
            posteriors.write(posteriors.path_of(folder, session), probs, frame_seconds)
