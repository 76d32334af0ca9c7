"""How often a diarizer's outputs are in the order of arrival: Sort Loss asks for it, PIL does not (section 3.3).

Outputs are mapped to reference speakers by the time that they have in common. Of two speakers who arrive one after the
other, the order is right if the output of the earlier one has the smaller number; a speaker without an output makes it
wrong. It is harder the closer together the two arrive, so pairs are counted by the distance of their first starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from sortk.records import Counts, Segment

DISTANCES = {"up to 0.25 s": 0.25, "up to 0.5 s": 0.5, "up to 1 s": 1.0, "more than 1 s": float("inf")}
"""Name of each range of distances between two arrivals, and its upper end in seconds."""


@dataclass(frozen=True)
class Tally(Counts):
    """How many there are, and how many of them are right."""

    n: int = 0
    right: int = 0

    def to_json(self) -> dict[str, float | None]:
        return {"n": self.n, "right": self.right, "accuracy": self.right / self.n if self.n else None}


@dataclass
class ArrivalReport:
    """Pairs of successive arrivals by number of speakers and distance; complete sessions by number of speakers."""

    pairs: dict[tuple[int, str], Tally] = field(default_factory=dict)
    sessions: dict[int, Tally] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        numbers = sorted(self.sessions)
        return {
            "pairs": {
                name: sum((self.pairs.get((n, name), Tally()) for n in numbers), Tally()).to_json()
                for name in DISTANCES
            },
            "sessions": sum(self.sessions.values(), Tally()).to_json(),
            "by_speakers": {
                str(n): {
                    "pairs": {name: self.pairs.get((n, name), Tally()).to_json() for name in DISTANCES},
                    "sessions": self.sessions[n].to_json(),
                }
                for n in numbers
            },
        }


def measure_arrival(
    references: Mapping[str, Sequence[Segment]], hypotheses: Mapping[str, Sequence[Segment]]
) -> ArrivalReport:
    """Return the counts of all sessions with several speakers; hypotheses name outputs: speaker_0, speaker_1, ..."""
    report = ArrivalReport()
    for name, reference in references.items():
        starts: dict[str, float] = {}
        for segment in sorted(reference, key=lambda segment: segment.start):
            starts.setdefault(segment.speaker, segment.start)
        if len(starts) < 2:
            continue
        output_of = map_outputs(reference, hypotheses.get(name, ()))
        n_speakers, all_right = len(starts), True
        for (earlier, first), (later, second) in pairwise(starts.items()):
            right = earlier in output_of and later in output_of and output_of[earlier] < output_of[later]
            all_right &= right
            distance = next(label for label, limit in DISTANCES.items() if second - first <= limit)
            key = n_speakers, distance
            report.pairs[key] = report.pairs.get(key, Tally()) + Tally(1, int(right))
        report.sessions[n_speakers] = report.sessions.get(n_speakers, Tally()) + Tally(1, int(all_right))
    return report


def map_outputs(reference: Sequence[Segment], hypothesis: Sequence[Segment]) -> dict[str, int]:
    """Return the number of the output of each reference speaker who has one: the mapping with the most common time."""
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415 - slow to import

    speakers, outputs = (sorted({segment.speaker for segment in side}) for side in (reference, hypothesis))
    common = np.zeros((len(speakers), len(outputs)))
    for row, speaker in enumerate(speakers):
        for column, output in enumerate(outputs):
            own = np.array([(part.start, part.end) for part in reference if part.speaker == speaker])
            found = np.array([(part.start, part.end) for part in hypothesis if part.speaker == output])
            shared = np.minimum(own[:, None, 1], found[:, 1]) - np.maximum(own[:, None, 0], found[:, 0])
            common[row, column] = shared.clip(min=0).sum()
    pairs = zip(*linear_sum_assignment(common, maximize=True), strict=True)
    return {speakers[row]: int(outputs[column].rpartition("_")[2]) for row, column in pairs if common[row, column] > 0}
