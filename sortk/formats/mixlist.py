"""Lists of LibriSpeechMix (Kanda et al., 2020): JSON Lines, one mixture of LibriSpeech utterances per line.

    {"id": "dev-clean-2mix/dev-clean-2mix-0000", "mixed_wav": "dev-clean-2mix/dev-clean-2mix-0000.wav",
     "wavs": ["dev-clean/1272/128104/1272-128104-0000.wav", ...], "delays": [0.0, 4.469], "durations": [5.855, 10.43],
     "speakers": ["1272", "6295"], "genders": ["m", "m"], "texts": ["MISTER QUILTER ...", ...]}

(on one line). `delays` says when each utterance starts in the mixture, in seconds. Other keys are not used. `wavs` are
relative to the LibriSpeech folder in the official lists, and to the folder of the list in those that are written here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sortk.formats.files import Lines, path_text, quote, read_lines
from sortk.formats.objects import Entry, entries, write_lines


@dataclass(frozen=True, slots=True)
class Delayed:
    """One utterance of a mixture."""

    wav: str  # as the list names it
    speaker: str
    text: str
    delay: float
    duration: float


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
    """All mixtures of a list; `.gz` is unpacked."""
    return list(parse(read_lines(path), path))


def parse(lines: Lines, path: Path) -> Iterator[Mixture]:
    for _, entry in entries(lines, path):
        yield _mixture(entry)


def _mixture(entry: Entry) -> Mixture:
    wavs, speakers, texts = (_column(entry, key) for key in ("wavs", "speakers", "texts"))
    delays, durations = _column(entry, "delays"), _column(entry, "durations")
    if not len(wavs) == len(speakers) == len(texts) == len(delays) == len(durations) > 0:
        raise entry.error("wavs, speakers, texts, delays and durations must be lists of one length")
    utterances = []
    for row in zip(wavs, speakers, texts, delays, durations, strict=True):
        fields = Entry(
            dict(zip(("wav", "speaker", "text", "delay", "duration"), row, strict=True)), entry.path, entry.line
        )
        utterances.append(
            Delayed(
                fields.need(fields.name, "wav"),
                fields.need(fields.name, "speaker"),
                fields.need(fields.text, "text").lower(),
                fields.need(fields.seconds, "delay"),
                fields.need(fields.duration, "duration"),
            )
        )
    # "dev-clean-2mix/dev-clean-2mix-0000": the folder repeats the name of the list.
    return Mixture(entry.need(entry.name, "id").rpartition("/")[2], tuple(utterances))


def _column(entry: Entry, key: str) -> list[Any]:
    value = entry.values.get(key)
    if not isinstance(value, list):
        raise entry.error(f"{key} is not a list: {quote(value)}")
    return value


def write(path: Path, mixtures: Iterable[Mixture]) -> None:
    """One line per mixture, in the order given; `wav` must be a path that holds here and now."""
    write_lines(path, (_as_object(mixture, path) for mixture in mixtures), parse)


def _as_object(mixture: Mixture, path: Path) -> dict[str, Any]:
    utterances = mixture.utterances
    return {
        "id": mixture.mixture_id,
        "wavs": [path_text(Path(utterance.wav), path) for utterance in utterances],
        "delays": [utterance.delay for utterance in utterances],
        "durations": [utterance.duration for utterance in utterances],
        "speakers": [utterance.speaker for utterance in utterances],
        "texts": [utterance.text for utterance in utterances],
    }
