"""How long the DER of a real system on AMI takes (18 meetings, 9.7 h): the fast scorer against pyannote.metrics.

Both score the same segments in the same run, and every session must agree to 1e-6 points; reading files is not counted.
`--all` compares all settings (collar, overlap, UEM), which takes minutes.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from sortk.records import Region, Segment
from sortk.scoring.der import DerReport, read_regions, read_segments, score_der
from sortk.scoring.intervals import DerOptions

REFS = Path(__file__).parents[3] / "shared" / "data" / "refs"
MIN_RATIO = 50

Segments = Mapping[str, Sequence[Segment]]
Sides = tuple[Segments, Segments, Mapping[str, Sequence[Region]] | None]


def timed(sides: Sides, options: DerOptions, repeats: int) -> tuple[DerReport, float]:
    """The report, and the median of processor seconds: other processes on the machine count for neither scorer."""
    seconds = []
    for _ in range(repeats):
        began = time.process_time()
        report = score_der(*sides, options)
        seconds.append(time.process_time() - began)
    return report, statistics.median(seconds)


def largest_difference(ours: DerReport, theirs: DerReport) -> float:
    """Between the rates of a session, in points."""
    largest = 0.0
    for one, other in zip(ours.sessions, theirs.sessions, strict=True):
        for name in ("miss", "false_alarm", "confusion", "wrong"):
            rates = [100 * errors.rate(getattr(errors, name)) for errors in (one.counts.errors, other.counts.errors)]
            largest = max(largest, abs(rates[0] - rates[1]))
    return largest


def main() -> None:
    if not REFS.exists():
        print("bench_der: the data beside the repository is not here")
        return
    references = read_segments(REFS / "ami" / "dev.rttm")
    hypotheses = read_segments(REFS / "vbx_outputs" / "AMI_Mix-Headset.dev.rttm")
    regions = read_regions(REFS / "ami" / "dev.uem")
    score_der(references, hypotheses, regions, DerOptions())  # imports
    score_der({"s": []}, {"s": []}, None, DerOptions(scorer="pyannote"))
    settings = list(itertools.product([0.25, 0.0], [False, True], [True, False]))
    for collar, skip_overlap, has_uem in settings if "--all" in sys.argv else settings[:1]:
        sides = (references, hypotheses, regions if has_uem else None)
        ours, our_seconds = timed(sides, DerOptions(collar, skip_overlap, "fast"), 5)
        theirs, their_seconds = timed(sides, DerOptions(collar, skip_overlap, "pyannote"), 1)
        difference = largest_difference(ours, theirs)
        ratio = their_seconds / our_seconds
        print(f"collar {collar}, skip overlap {skip_overlap}, UEM {has_uem}: DER {100 * ours.overall.der:.2f} %")
        print(
            f"  fast {1000 * our_seconds:.0f} ms, pyannote.metrics {their_seconds:.1f} s: {ratio:.0f} times faster "
            f"(wanted: {MIN_RATIO}); largest difference of a session {difference:.0e} points"
        )
        assert difference < 1e-6


if __name__ == "__main__":
    main()
