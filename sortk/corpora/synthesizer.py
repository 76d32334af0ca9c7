"""The espeak-ng library of the package `espeakng-loader`, driven through ctypes: text in, samples and word times out.

espeak-ng calls back with blocks of samples and with events. Each event carries the sample at which it happens; WORD
events give the place of a word in the text, PHONEME events its sounds and the pauses around it. So the word times are
those of the synthesis, not an estimate. (Constants and structures: espeak-ng's speak_lib.h.)
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import espeakng_loader
import numpy as np
import numpy.typing as npt

Int16 = npt.NDArray[np.int16]

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
class EspeakVoice:
    """A voice of espeak-ng and how it speaks."""

    accent: str  # e.g. en-us
    variant: str  # e.g. f2
    pitch: int  # 0 to 99; 50 is the variant's own
    pitch_range: int  # 0 (monotone) to 99; 50 is the variant's own
    words_per_minute: int


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
        self._sample_rate = self._initialize()
        library.espeak_SetSynthCallback(self._callback)
        library.espeak_ng_SetRandSeed(ctypes.c_long(seed))  # breath and roughness are random, seeded with the time
        self._set_voice(voice)

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

    def _initialize(self) -> int:
        data = espeakng_loader.get_data_path()
        options = INITIALIZE_PHONEME_EVENTS | INITIALIZE_DONT_EXIT
        sample_rate: int = self._library.espeak_Initialize(AUDIO_OUTPUT_SYNCHRONOUS, 0, data.encode(), options)
        if sample_rate <= 0:
            raise OSError(
                f"{data}: espeak-ng cannot read its data here; reinstall espeakng-loader, in a folder whose path is "
                "shorter than 150 characters"
            )
        return sample_rate

    def _set_voice(self, voice: EspeakVoice) -> None:
        data = Path(espeakng_loader.get_data_path())
        has_variant = (data / "voices" / "!v" / voice.variant).is_file()  # espeak-ng ignores one that is not there
        if not has_variant or self._library.espeak_SetVoiceByName(f"{voice.accent}+{voice.variant}".encode()) != 0:
            raise OSError(f"{data}: no voice {voice.accent}+{voice.variant} here; reinstall espeakng-loader")
        settings = {RATE: voice.words_per_minute, VOLUME: QUIET, PITCH: voice.pitch, RANGE: voice.pitch_range}
        for parameter, value in settings.items():
            self._library.espeak_SetParameter(parameter, value, 0)

    def _receive(self, samples: Any, n_samples: int, events: Any) -> int:
        if samples and n_samples > 0:
            self._blocks.append(np.ctypeslib.as_array(samples, (n_samples,)).copy())
        for event in _until_terminated(events):
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


def _until_terminated(events: Any) -> Iterator[_Event]:
    index = 0
    while events[index].type != EVENT_LIST_TERMINATED:
        yield events[index]
        index += 1


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
