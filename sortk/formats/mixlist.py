"""Lists of LibriSpeechMix (Kanda et al., 2020): JSON Lines, one mixture of LibriSpeech utterances per line.

    {"id": "dev-clean-2mix/dev-clean-2mix-0000", "mixed_wav": "dev-clean-2mix/dev-clean-2mix-0000.wav",
     "wavs": ["dev-clean/1272/128104/1272-128104-0000.wav", ...], "delays": [0.0, 4.469], "durations": [5.855, 10.43],
     "speakers": ["1272", "6295"], "genders": ["m", "m"], "texts": ["MISTER QUILTER ...", ...]}

(on one line). `delays` says when each utterance starts in the mixture, in seconds. Other keys are not used. `wavs` are
relative to the LibriSpeech folder in the official lists, and to the folder of the list in those that are written here,
which may also have `offsets`: where in its audio file each utterance starts, if not at 0.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from sortk.formats.files import FormatError, Lines, path_text, quote, read_lines
from sortk.formats.objects import Entry, entries, write_lines


@dataclass(frozen=True, slots=True)
class Delayed:
    """One utterance of a mixture."""

    wav: str  # as the list names it
    speaker: str
    text: str
    delay: float
    duration: float
    offset: float = 0.0  # in the audio file


@dataclass(frozen=True, slots=True)
class Mixture:
    """What sounds together."""

    mixture_id: str
    utterances: tuple[Delayed, ...]

    @property
    def duration(self) -> float:
        """To the end of the last utterance, by the list's own durations."""
        return max(utterance.delay + utterance.duration for utterance in self.utterances)


def read(path: Path) -> list[Mixture]:
    """Return all mixtures of a list; `.gz` is unpacked."""
    return list(parse(read_lines(path), path))


class IndexedList(Sequence[Mixture]):
    """A list of any number of mixtures, each read from the file when it is asked for.

    Memory holds where every 16th line starts, which is half a byte per mixture.
    """

    LINES_APART = 16  # between two known places; so many lines are skipped at most

    def __init__(self, path: Path) -> None:
        self.path = path
        self._places, self._n_lines = array("Q"), 0
        with path.open("rb") as file:
            at = 0
            for line in file:
                if self._n_lines % self.LINES_APART == 0:
                    self._places.append(at)
                self._n_lines += 1
                at += len(line)

    def __len__(self) -> int:
        return self._n_lines

    @overload
    def __getitem__(self, index: int) -> Mixture: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Mixture]: ...
    def __getitem__(self, index: int | slice) -> Mixture | Sequence[Mixture]:
        if isinstance(index, slice):
            wanted = range(*index.indices(self._n_lines))
            if wanted.step == 1 and wanted:  # neighbours are read in one go
                return list(itertools.islice(self.read_from(wanted.start), len(wanted)))
            return [self[number] for number in wanted]
        if not 0 <= index < self._n_lines:
            raise IndexError(index)
        return next(self.read_from(index))

    def __iter__(self) -> Iterator[Mixture]:
        return self.read_from(0)

    def read_from(self, first: int) -> Iterator[Mixture]:
        """Yield the mixtures from a number on, in order."""
        with self.path.open("rb") as file:
            file.seek(self._places[first // self.LINES_APART])
            lines = enumerate(itertools.islice(file, first % self.LINES_APART, None), start=first + 1)
            yield from parse(((number, self._decode(number, line)) for number, line in lines), self.path)

    def _decode(self, number: int, line: bytes) -> str:
        try:
            return line.decode()
        except UnicodeDecodeError:
            raise FormatError(self.path, number, "is not UTF-8") from None


def parse(lines: Lines, path: Path) -> Iterator[Mixture]:
    """Yield the mixtures of numbered lines; `path` is only for messages."""
    for _, entry in entries(lines, path):
        wavs, speakers, texts = (_column(entry, key) for key in ("wavs", "speakers", "texts"))
        delays, durations = _column(entry, "delays"), _column(entry, "durations")
        if not len(wavs) == len(speakers) == len(texts) == len(delays) == len(durations) > 0:
            raise entry.error("wavs, speakers, texts, delays and durations must be lists of one length")
        offsets = _column(entry, "offsets") if "offsets" in entry.values else [0.0] * len(wavs)
        if len(offsets) != len(wavs):
            raise entry.error("offsets must have an entry for each of wavs")
        utterances = []
        for row in zip(wavs, speakers, texts, delays, durations, offsets, strict=True):
            names = ("wav", "speaker", "text", "delay", "duration", "offset")
            fields = Entry(dict(zip(names, row, strict=True)), entry.path, entry.line)
            utterances.append(
                Delayed(
                    fields.need(fields.name, "wav"),
                    fields.need(fields.name, "speaker"),
                    fields.need(fields.text, "text").lower(),
                    fields.need(fields.seconds, "delay"),
                    fields.need(fields.duration, "duration"),
                    fields.need(fields.seconds, "offset"),
                )
            )
        # "dev-clean-2mix/dev-clean-2mix-0000": the folder repeats the name of the list.
        yield Mixture(entry.need(entry.name, "id").rpartition("/")[2], tuple(utterances))


def _column(entry: Entry, key: str) -> list[Any]:
    value = entry.values.get(key)
    if not isinstance(value, list):
        raise entry.error(f"{key} is not a list: {quote(value)}")
    return value


def write(path: Path, mixtures: Iterable[Mixture]) -> None:
    """Write one line per mixture, in the order given; `wav` must be the path of an existing file."""
    write_lines(path, (_as_object(mixture, path) for mixture in mixtures), parse)


def _as_object(mixture: Mixture, path: Path) -> dict[str, Any]:
    utterances = mixture.utterances
    offsets = [utterance.offset for utterance in utterances]
    return {
        "id": mixture.mixture_id,
        "wavs": [path_text(Path(utterance.wav), path) for utterance in utterances],
        "delays": [utterance.delay for utterance in utterances],
        "durations": [utterance.duration for utterance in utterances],
        "speakers": [utterance.speaker for utterance in utterances],
        "texts": [utterance.text for utterance in utterances],
        **({"offsets": offsets} if any(offsets) else {}),
    }
