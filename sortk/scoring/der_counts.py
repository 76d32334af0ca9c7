"""What a diarization error rate is: the settings, and counts that add up.

    DER = (miss + false alarm + confusion) / scored

in seconds of speaker time: while R reference and H hypothesis speakers talk, C of them rightly after the best
one-to-one mapping of speakers, each second counts R scored, max(R - H, 0) missed, max(H - R, 0) false alarm and
min(R, H) - C confused. The score of a set is that of the sums, not a mean of sessions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from sortk.options import Options, option

Scorer = Literal["pyannote", "fast", "nist"]

REGIONS = ("silence", "single", "overlap")
"""Where no, one, or more than one reference speaker talks."""


@dataclass(frozen=True)
class DerOptions(Options):
    """Settings of scoring; the paper has collar 0.25 for CALLHOME and CH109, 0 for DIHARD3, and scores overlap."""

    # Seconds on EACH side of a reference boundary that are not scored.
    collar: float = option(0.25, at_least=0, at_most=3600)
    skip_overlap: bool = False  # leave out time in which several reference speakers talk
    scorer: Scorer = "fast"
    # fast: the meaning and the numbers of pyannote.metrics, which the paper reports, but many times faster.
    # pyannote: by pyannote.metrics itself, for those who want to see that it says the same.
    # nist: the meaning of md-eval, which maps speakers before collars and overlap are taken out, and which, without
    # a UEM, leaves out what lies before the first and after the last reference segment.


@dataclass(frozen=True)
class ErrorSeconds:
    """Speaker time: what was scored, and what was wrong of it."""

    scored: float = 0.0
    miss: float = 0.0
    false_alarm: float = 0.0
    confusion: float = 0.0

    def __add__(self, other: ErrorSeconds) -> ErrorSeconds:
        return ErrorSeconds(
            self.scored + other.scored,
            self.miss + other.miss,
            self.false_alarm + other.false_alarm,
            self.confusion + other.confusion,
        )

    @property
    def wrong(self) -> float:
        return self.miss + self.false_alarm + self.confusion

    @property
    def der(self) -> float:
        return self.rate(self.wrong)

    def rate(self, seconds: float) -> float:
        """As a fraction of what was scored: infinite if nothing was, but something is wrong."""
        if self.scored > 0:
            return seconds / self.scored
        return inf if seconds > 0 else 0.0


@dataclass(frozen=True)
class DerCounts:
    """Of a session or, as their sum, of a set."""

    errors: ErrorSeconds = field(default_factory=ErrorSeconds)
    regions: Mapping[str, ErrorSeconds] = field(default_factory=dict)  # the same by REGIONS
    jaccard_error: float = 0.0  # summed over reference speakers: 1 - intersection / union with the mapped speaker
    n_jaccard: int = 0  # reference speakers with scored speech
    n_ref_speakers: int = 0  # with speech in the UEM, be it scored or not
    n_hyp_speakers: int = 0
    n_sessions: int = 0
    n_right_counts: int = 0  # sessions with as many speakers as the reference has

    def __add__(self, other: DerCounts) -> DerCounts:
        names = self.regions.keys() | other.regions.keys()
        none = ErrorSeconds()
        return DerCounts(
            self.errors + other.errors,
            {name: self.regions.get(name, none) + other.regions.get(name, none) for name in REGIONS if name in names},
            self.jaccard_error + other.jaccard_error,
            self.n_jaccard + other.n_jaccard,
            self.n_ref_speakers + other.n_ref_speakers,
            self.n_hyp_speakers + other.n_hyp_speakers,
            self.n_sessions + other.n_sessions,
            self.n_right_counts + other.n_right_counts,
        )

    @property
    def der(self) -> float:
        return self.errors.der

    @property
    def jer(self) -> float:
        """Jaccard error rate of DIHARD: every reference speaker counts alike."""
        return self.jaccard_error / self.n_jaccard if self.n_jaccard else 0.0

    @property
    def count_accuracy(self) -> float:
        """Share of sessions with the right number of speakers."""
        return self.n_right_counts / self.n_sessions if self.n_sessions else 0.0
