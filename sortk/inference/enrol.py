"""Speakers with names: short samples of known voices go before the recording, so that the speaker cache knows them.

    | sample of alice | silence | sample of bob | silence | recording |

is one stream. Speakers are sorted by arrival, so alice and bob have outputs of their own before the recording starts,
and its other speakers have the outputs after theirs. The output of a name is the one that is most active in its sample.
Rows before the recording are left out, and the outputs of the names come first, in the order in which they were given.
Samples last a multiple of 80 ms, so that the recording has the times that it has alone.

This is approximate: the model was trained to separate the speakers of one recording, not to recognise a voice from
another room or microphone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sortk.formats import audio
from sortk.formats.files import check_name
from sortk.inference.postprocess import ACTIVE
from sortk.inference.streaming import Stream
from sortk.models.frames import HOP_SAMPLES, MEL_PER_FRAME, SAMPLE_RATE
from sortk.models.speaker_cache import StreamingStep

FRAME_SAMPLES = HOP_SAMPLES * MEL_PER_FRAME
SILENT_FRAMES = 6  # after each sample: about half a second
MIN_SECONDS = 0.5  # of a sample; less is a mistake
MIN_ACTIVE = 0.2  # of a sample, in which its speaker has to be active


@dataclass(frozen=True)
class Enrolment:
    """The samples of all names, one after the other."""

    names: tuple[str, ...]
    samples: Tensor  # (1, n) at 16 kHz; n is a multiple of FRAME_SAMPLES
    spans: tuple[tuple[int, int], ...]  # of each sample, in frames

    @property
    def n_frames(self) -> int:
        return self.samples.shape[1] // FRAME_SAMPLES

    def find_columns(self, probs: Tensor) -> list[int]:
        """Return the output of each name, then the others, from the posteriors of the samples, (rows, speakers).

        ValueError if a sample has none, or two have the same.
        """
        rows = len(probs) // self.n_frames
        found: dict[int, str] = {}
        for name, (first, stop) in zip(self.names, self.spans, strict=True):
            active = (probs[first * rows : stop * rows] > ACTIVE).float().mean(dim=0)
            column = int(active.argmax())
            if active[column] < MIN_ACTIVE:
                raise ValueError(f"the model finds no speaker in the sample of {name}; give 5 to 15 s of clear speech")
            if column in found:
                raise ValueError(
                    f"the model cannot distinguish {found[column]} and {name}; give other or longer samples"
                )
            found[column] = name
        return [*found, *(column for column in range(probs.shape[1]) if column not in found)]


def read_enrolment(paths: Mapping[str, str | Path], n_speakers: int) -> Enrolment:
    """Return the samples of some names, for a model with so many speakers."""
    if len(paths) > n_speakers:
        raise ValueError(f"{len(paths)} speakers are enrolled, but the model has only {n_speakers}")
    pieces: list[Tensor] = []
    spans, end = [], 0
    for name, path in paths.items():
        check_speaker(name)
        samples = torch.from_numpy(audio.read(Path(path)).astype(np.float32, copy=False))
        if len(samples) < MIN_SECONDS * SAMPLE_RATE:
            raise ValueError(f"{path}: the sample of {name} is too short; give 5 to 15 s of clear speech")
        n_frames = -(-len(samples) // FRAME_SAMPLES)
        spans.append((end, end + n_frames))
        end += n_frames + SILENT_FRAMES
        pieces += [samples, samples.new_zeros((n_frames + SILENT_FRAMES) * FRAME_SAMPLES - len(samples))]
    return Enrolment(tuple(paths), torch.cat(pieces)[None], tuple(spans))


def check_speaker(name: str) -> None:
    """Raise ValueError for a name that cannot be written, or that a speaker without a name may have."""
    check_name("speaker", name)
    if re.fullmatch(r"speaker_\d+", name):
        raise ValueError(f"{name} is what speakers without a name are called; enrol under another name")


class EnrolledStream(Stream):
    """A stream that starts with the samples; it returns the rows of the recording alone."""

    def __init__(self, step: StreamingStep, enrolment: Enrolment) -> None:
        super().__init__(step)
        self._enrolment = enrolment
        self._n_before = enrolment.n_frames * step.model.rows_per_frame
        self._before: Tensor | None = None  # rows of the samples; None: nothing was processed yet
        self._columns: list[int] | None = None  # None: not all of these rows are there yet

    def push(self, samples: Tensor) -> Tensor:
        """(1, samples) of the recording -> (1, rows, speakers), names first."""
        if self._before is None:
            self._before = self._no_rows()
            samples = torch.cat([self._enrolment.samples.to(samples), samples], dim=1)
        return self._leave_out(super().push(samples))

    def finish(self) -> Tensor:
        return self._leave_out(super().finish())

    def _leave_out(self, probs: Tensor) -> Tensor:
        if self._columns is None:
            known = probs if self._before is None else torch.cat([self._before, probs], dim=1)
            if known.shape[1] < self._n_before:
                self._before = known
                return self._no_rows()
            self._columns = self._enrolment.find_columns(known[0, : self._n_before])
            probs = known[:, self._n_before :]
        return probs[:, :, self._columns]
