"""The reference scorer: seconds of error by pyannote.metrics, which the paper reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sortk.records import Region, Segment
from sortk.scoring.der_counts import DerOptions, ErrorSeconds


def count_errors(
    reference: Sequence[Segment], hypothesis: Sequence[Segment], uem: Sequence[Region] | None, options: DerOptions
) -> ErrorSeconds:
    """Of one session; without a UEM, all time in which either of both has speech is scored."""
    from pyannote.core import Segment as Span  # noqa: PLC0415 - three seconds to import
    from pyannote.core import Timeline  # noqa: PLC0415
    from pyannote.metrics.diarization import DiarizationErrorRate  # noqa: PLC0415

    scored = uem if uem is not None else [*reference, *hypothesis]
    timeline = Timeline(Span(part.start, part.end) for part in scored if part.end > part.start).support()
    if uem is None:
        timeline = Timeline([timeline.extent()] if timeline else [])
    if not timeline:
        return ErrorSeconds()
    # It takes the whole width of a collar; ours is NIST's, on each side.
    metric = DiarizationErrorRate(collar=2 * options.collar, skip_overlap=options.skip_overlap)
    found = metric(_annotate(reference), _annotate(hypothesis), uem=timeline, detailed=True)
    return ErrorSeconds(found["total"], found["missed detection"], found["false alarm"], found["confusion"])


def _annotate(segments: Sequence[Segment]) -> Any:
    """As pyannote has it; `support` merges what overlaps or touches of one speaker, else it would count twice."""
    from pyannote.core import Annotation  # noqa: PLC0415
    from pyannote.core import Segment as Span  # noqa: PLC0415

    found = Annotation()
    for track, segment in enumerate(segments):
        if segment.duration > 0:
            found[Span(segment.start, segment.end), track] = segment.speaker
    return found.support()
