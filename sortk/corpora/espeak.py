"""Synthetic speech without a download: the voices of espeak-ng speak sentences from a grammar.

A speaker is a voice variant with an accent, a pitch and a rate. Word times come from the synthesizer and are exact.

    flac/<speaker>.flac       all utterances of a speaker, end to end
    speakers/<speaker>.jsonl  their sources; written last: when it is there, the speaker is complete
"""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import espeakng_loader
import numpy as np

from sortk.corpora.sentences import Sentence, make_sentence
from sortk.corpora.splits import TEST, TRAIN, VALID, stable_random
from sortk.formats import audio, sources
from sortk.formats.audio import Int16
from sortk.options import Options, option
from sortk.records import SAMPLE_RATE, RunJobs, Source, Word

LEVEL_DB = -26.0  # of the words of a speaker, below full scale

# The variants of espeak-ng that sound like people and unlike each other. Left out are
# - whispering and croaking, with less than 30 % periodic speech: whisper, whisperf, croak, grandpa;
# - robots and effects: robosoft*, UniRobot, anikaRobot, announcer, RicishayMax*, Demonic, Marco, fast;
# - the Klatt synthesizers, some of which draw noise that cannot be seeded: klatt*, Reed, adam, caleb, david, ...;
# - vocal tracts that no adult has: zac, ian, travis, kaukovalta, boris, Lee, Jacky, Andy, AnxiousAndy, Tweaky;
# - near copies: less than about 2.6 dB (root mean square over 40 mel bands) from the mean spectrum of one that is here.
FEMALE_VARIANTS = (
    "f1", "Annie", "f3", "f4", "Andrea", "f2", "steph",
    "Alicia", "belinda", "f5", "anika", "grandma", "shelby", "linda",
)  # fmt: skip
MALE_VARIANTS = (
    "m3", "m1", "m7", "m5", "m8", "michel", "sandro",
    "pablo", "Mario", "pedro", "Storm", "iven2", "norbert", "gustave",
    "quincy", "Hugo", "paul", "victor", "ed", "robert", "antonio",
)  # fmt: skip

# Of each row of seven above: a variant is in one split only, so that test voices are new in every respect.
SPLIT_OF_COLUMN = (TRAIN, VALID, TEST, TRAIN, TRAIN, TRAIN, TRAIN)

# Every variant speaks at each of these pitches, as so many speakers.
FEMALE_PITCHES = (46, 24, 66)
MALE_PITCHES = (36, 64)

# "en" is British English; under its other name, en-gb, espeak-ng ignores the variant.
ACCENTS = (
    "en-us", "en", "en-gb-scotland", "en-gb-x-rp", "en-029", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-us-nyc",
)  # fmt: skip
MELODIES = ((6, 60), (-6, 40), (0, 50))  # what is added to the pitch, and the pitch range; by variant
RATES = (155, 175, 165)  # words per minute


@dataclass(frozen=True)
class EspeakOptions(Options):
    """How much synthetic speech to make."""

    # Up to 84, alternately women and men; with 6 or more, every split has a woman and a man.
    speakers: int = option(84, at_least=1, at_most=84)
    utterances_per_speaker: int = option(60, at_least=1)  # about 2.1 s each
    # How many alternatives of each grammar rule are used: 4 give 132 words. Not set: all of them, 529 words.
    alternatives: int | None = option(None, at_least=2, hash_only_if_set=True)


@dataclass(frozen=True, slots=True)
class EspeakVoice:
    """A voice of espeak-ng and how it speaks."""

    accent: str  # e.g. en-us
    variant: str  # e.g. f2
    pitch: int  # 0 to 99; 50 is the variant's own
    pitch_range: int  # 0 (monotone) to 99; 50 is the variant's own
    words_per_minute: int


@dataclass(frozen=True, slots=True)
class EspeakSpeaker:
    """One speaker of the table."""

    name: str
    gender: str
    split: str
    voice: EspeakVoice


def all_speakers() -> list[EspeakSpeaker]:
    """Return the table of speakers: women and men in turn, every variant once before any is repeated."""
    women = _speakers_of("f", FEMALE_VARIANTS, FEMALE_PITCHES)
    men = _speakers_of("m", MALE_VARIANTS, MALE_PITCHES)
    return [speaker for pair in zip(women, men, strict=True) for speaker in pair]


def _speakers_of(gender: str, variants: Sequence[str], pitches: Sequence[int]) -> list[EspeakSpeaker]:
    speakers = []
    for take, pitch in enumerate(pitches):
        for index, variant in enumerate(variants):
            # A variant changes its accent with its pitch. The melody stays: a wide range also raises the mean pitch.
            accent = ACCENTS[(index + 3 * take) % len(ACCENTS)]
            pitch_offset, pitch_range = MELODIES[index % len(MELODIES)]
            voice = EspeakVoice(accent, variant, pitch + pitch_offset, pitch_range, RATES[(index + take) % len(RATES)])
            split = SPLIT_OF_COLUMN[index % len(SPLIT_OF_COLUMN)]
            speakers.append(EspeakSpeaker(f"{variant.lower()}-{accent}", gender, split, voice))
    return speakers


def prepare(options: EspeakOptions, out_dir: Path, seed: int, run_jobs: RunJobs) -> list[Source]:
    """Synthesize every utterance that does not exist yet; a job is one speaker."""
    synthesize = partial(synthesize_speaker, options=options, seed=seed, out_dir=out_dir)
    parts = run_jobs(synthesize, all_speakers()[: options.speakers])
    return [source for part in parts for source in sources.read(part)]


def synthesize_speaker(speaker: EspeakSpeaker, options: EspeakOptions, seed: int, out_dir: Path) -> Path:
    """Write one speaker's audio and sources, unless they exist; return the path of the sources."""
    sources_path = out_dir / "speakers" / f"{speaker.name}.jsonl"
    audio_path = out_dir / "flac" / f"{speaker.name}.flac"
    if not sources_path.exists():
        samples, utterances = _speak_utterances(speaker, options, seed, audio_path)
        audio.write_flac(audio_path, samples, SAMPLE_RATE)
        sources.write(sources_path, utterances)
    return sources_path


def _speak_utterances(
    speaker: EspeakSpeaker, options: EspeakOptions, seed: int, audio_path: Path
) -> tuple[audio.Samples, list[Source]]:
    blocks: list[audio.Samples] = []
    utterances: list[Source] = []
    n_before = 0
    with open_synthesizer(speaker.voice, stable_random(seed, speaker.name).getrandbits(31)) as synthesizer:
        for index in range(options.utterances_per_speaker):
            sentence = make_sentence(seed, speaker.name, index, options.alternatives)
            speech = synthesizer.speak(sentence.spoken, sentence.word_positions)
            block = _resample(speech)
            name = f"{speaker.name}-{index:04d}"
            utterances.append(
                _source(speaker, name, sentence, speech, path=audio_path, n_before=n_before, n_samples=len(block))
            )
            blocks.append(block)
            n_before += len(block)
    return _set_level(np.concatenate(blocks), utterances), utterances


def _source(
    speaker: EspeakSpeaker,
    name: str,
    sentence: Sentence,
    speech: Speech,
    *,
    path: Path,
    n_before: int,
    n_samples: int,
) -> Source:
    # A tenth of a millisecond is as fine as the resampled signal can show.
    words = tuple(
        Word(text, round(start / speech.sample_rate, 4), round(end / speech.sample_rate, 4))
        for text, (start, end) in zip(sentence.words, speech.word_spans, strict=True)
    )
    return Source(
        utterance_id=name,
        audio_path=path,
        offset=n_before / SAMPLE_RATE,
        duration=n_samples / SAMPLE_RATE,
        speaker=speaker.name,
        text=sentence.text,
        words=words,
        speech_start=words[0].start,
        speech_end=words[-1].end,
        gender=speaker.gender,
        split=speaker.split,
    )


def _resample(speech: Speech) -> audio.Samples:
    """Return the samples at 16 kHz: 22050 * 320 / 441 = 16000."""
    from scipy.signal import resample_poly  # noqa: PLC0415  (takes a second to import)

    divisor = math.gcd(SAMPLE_RATE, speech.sample_rate)
    scaled = speech.samples.astype(np.float32) / np.float32(32768)
    resampled = resample_poly(scaled, SAMPLE_RATE // divisor, speech.sample_rate // divisor)
    return resampled.astype(np.float32, copy=False)


def _set_level(samples: audio.Samples, utterances: Sequence[Source]) -> audio.Samples:
    """Apply one gain to all utterances of a speaker: variants differ by 15 dB, people in one room do not."""
    times = [(source.offset + w.start, source.offset + w.end) for source in utterances for w in source.words]
    spoken = np.concatenate([samples[round(start * SAMPLE_RATE) : round(end * SAMPLE_RATE)] for start, end in times])
    rms = float(np.sqrt(np.mean(np.square(spoken, dtype=np.float64))))
    return samples * np.float32(10 ** (LEVEL_DB / 20) / rms)


# ---------------------------------------------------------------------------------------------------------------------
# The espeak-ng library of the package `espeakng-loader`, driven through ctypes: text in, samples and word times out.
#
# espeak-ng calls back with blocks of samples and with events. Each event carries the sample at which it happens; WORD
# events give the place of a word in the text, PHONEME events its sounds and the pauses around it. So the word times
# are those of the synthesis, not an estimate. (Constants and structures: espeak-ng's speak_lib.h.)

AUDIO_OUTPUT_SYNCHRONOUS = 2
INITIALIZE_PHONEME_EVENTS, INITIALIZE_DONT_EXIT = 0x0001, 0x8000
EVENT_LIST_TERMINATED, EVENT_WORD, EVENT_PHONEME = 0, 1, 7
POS_CHARACTER, CHARS_UTF8 = 1, 1
RATE, VOLUME, PITCH, RANGE = 1, 2, 3, 4
QUIET = 30  # in percent: at 100 the loudest variants clip

# In espeak-ng's English dictionary some pairs ("in the", "there are") are one entry, and then one WORD event. A
# no-break space keeps the words apart. After punctuation it would hide the end of a clause, and is not needed.
_SPACE_INSIDE_CLAUSE = re.compile(r"(?<=[a-z']) (?=[a-z'])")


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),  # counts characters, from 1
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),  # the same moment as `sample`, cut to milliseconds
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("phoneme", ctypes.c_char * 8),
    )


_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))


@dataclass(frozen=True, slots=True)
class Speech:
    """Spoken text: samples, and the first and last (exclusive) sample of each word."""

    samples: Int16
    sample_rate: int
    word_spans: list[tuple[int, int]]


class Synthesizer:
    """espeak-ng with one voice. Use `open_synthesizer`."""

    def __init__(self, library: ctypes.CDLL, voice: EspeakVoice, seed: int) -> None:
        self._library = library
        self._blocks: list[Int16] = []
        self._words: dict[int, int] = {}
        self._pauses: list[int] = []
        self._callback = _Callback(self._receive)  # kept here, because the library does not own it
        data = Path(espeakng_loader.get_data_path())
        options = INITIALIZE_PHONEME_EVENTS | INITIALIZE_DONT_EXIT
        self._sample_rate: int = library.espeak_Initialize(AUDIO_OUTPUT_SYNCHRONOUS, 0, str(data).encode(), options)
        if self._sample_rate <= 0:
            raise OSError(
                f"{data}: espeak-ng cannot read its data here; reinstall espeakng-loader, in a folder whose path is "
                "shorter than 150 characters"
            )
        library.espeak_SetSynthCallback(self._callback)
        library.espeak_ng_SetRandSeed(ctypes.c_long(seed))  # breath and roughness are random, seeded with the time
        has_variant = (data / "voices" / "!v" / voice.variant).is_file()  # espeak-ng ignores one that is not there
        if not has_variant or library.espeak_SetVoiceByName(f"{voice.accent}+{voice.variant}".encode()) != 0:
            raise OSError(f"{data}: no voice {voice.accent}+{voice.variant} here; reinstall espeakng-loader")
        settings = {RATE: voice.words_per_minute, VOLUME: QUIET, PITCH: voice.pitch, RANGE: voice.pitch_range}
        for parameter, value in settings.items():
            library.espeak_SetParameter(parameter, value, 0)

    def speak(self, text: str, word_positions: Sequence[int]) -> Speech:
        """Synthesize the text, whose words start at the given characters."""
        self._blocks, self._words, self._pauses = [], {}, []
        encoded = _SPACE_INSIDE_CLAUSE.sub("\u00a0", text).encode()
        size = ctypes.c_size_t(len(encoded) + 1)
        with _errors_of_callbacks():
            code = self._library.espeak_Synth(encoded, size, 0, POS_CHARACTER, 0, CHARS_UTF8, None, None)
        if code != 0:
            raise OSError(f"espeak-ng could not speak {text!r}")
        samples = np.concatenate(self._blocks)
        return Speech(samples, self._sample_rate, time_words(word_positions, self._words, self._pauses, len(samples)))

    def _receive(self, samples: Any, n_samples: int, events: Any) -> int:
        if samples and n_samples > 0:
            self._blocks.append(np.ctypeslib.as_array(samples, (n_samples,)).copy())
        for number in itertools.count():
            event = events[number]
            if event.type == EVENT_LIST_TERMINATED:
                break
            if event.type == EVENT_WORD:
                self._words[event.text_position - 1] = event.sample
            elif event.type == EVENT_PHONEME and event.phoneme.startswith(b"_"):  # _ _: _! _| are silence
                self._pauses.append(event.sample)
        return 0  # go on


@contextmanager
def _errors_of_callbacks() -> Iterator[None]:
    """Raise an exception of a callback, such as that of Ctrl-C, when the call is over. ctypes would only print it, and
    a block of speech would be missing."""
    ignored: list[BaseException | None] = []
    before = sys.unraisablehook
    sys.unraisablehook = lambda about: ignored.append(about.exc_value)
    try:
        yield
    finally:
        sys.unraisablehook = before
    if ignored:
        raise ignored[0] or OSError("espeak-ng: a block of speech was lost")


@contextmanager
def open_synthesizer(voice: EspeakVoice, seed: int) -> Iterator[Synthesizer]:
    """Open a synthesizer whose speech depends on the voice, the seed and what it has spoken since it was opened.

    espeak-ng keeps the phases of its oscillators in global variables that not even espeak_Initialize resets, so the
    same sentence sounds a little different the second time. A freshly loaded library starts from zero.
    """
    path = str(espeakng_loader.get_library_path())
    if _is_loaded(path):
        raise OSError(f"{path} is in use in this process already; its speech would depend on what it spoke before")
    library = ctypes.CDLL(path)
    try:
        yield Synthesizer(library, voice, seed)
        library.espeak_Terminate()
    finally:
        _unload(library)


def _is_loaded(path: str) -> bool:
    try:
        _unload(ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY))
    except OSError:
        return False
    return True


def _unload(library: ctypes.CDLL) -> None:
    dlclose = ctypes.CDLL(None).dlclose
    dlclose.argtypes = (ctypes.c_void_p,)
    dlclose(library._handle)


def time_words(
    word_positions: Sequence[int], word_starts: dict[int, int], pauses: Sequence[int], n_samples: int
) -> list[tuple[int, int]]:
    """Return the first and last (exclusive) sample of each word.

    `word_starts` maps the position of a word in the text to the sample of its WORD event. A word ends where the next
    one starts, or where the silence before that starts. A word without an event of its own was joined with the word
    before it; they share its time in equal parts.
    """
    groups: list[int] = []  # for each event, how many words it stands for
    starts: list[int] = []
    for position in word_positions:
        if position in word_starts or not groups:
            starts.append(word_starts.get(position, 0))
            groups.append(1)
        else:
            groups[-1] += 1
    spans: list[tuple[int, int]] = []
    for start, next_start, n_words in zip(starts, [*starts[1:], n_samples], groups, strict=True):
        end = min((pause for pause in pauses if start < pause < next_start), default=next_start)
        edges = [start + (end - start) * part // n_words for part in range(n_words + 1)]
        spans += itertools.pairwise(edges)
    return spans
