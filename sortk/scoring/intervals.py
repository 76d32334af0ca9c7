"""What a diarization error rate is, and the exact DER of many sessions in one sweep over all boundaries, with numpy.

    DER = (miss + false alarm + confusion) / scored

in seconds of speaker time. While R reference and H hypothesis speakers talk, C of them rightly after the best
one-to-one mapping of speakers, each second counts

    scored = R,  miss = R - min(R, H),  false alarm = H - min(R, H),  confusion = min(R, H) - C

The score of a set is that of the sums, not a mean of sessions.

Time is in whole microseconds, the resolution of RTTM files, so that boundaries that should be equal are. All sessions
are on one axis, SESSION_US apart. Who speaks is a step function of it: the sorted times at which it changes, and after
each of them a row of 0 and 1, one per speaker. The changes of reference and hypothesis together cut the axis into
intervals in which nothing changes; only their length and the numbers of speakers count. Where the hypothesis has no
speech (H = 0), all is missed, so only the other intervals are looked at. Summed over a session, C is the time that
mapped speakers have in common: the common time of all pairs of speakers is a product of two matrices, and the mapping
is the assignment with the largest sum of it. Nothing of the reference depends on the hypothesis (without a UEM all
time is scored, but silence counts nothing), so it is prepared once for all trials of a search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from sortk.inference.postprocess import Floats, Ints, SegmentArrays
from sortk.options import Options, option
from sortk.records import Counts, Region, Segment

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
    # a UEM, leaves out what is before the first and after the last reference segment.


@dataclass(frozen=True)
class ErrorSeconds(Counts):
    """Speaker time: what was scored, and what was wrong of it."""

    scored: float = 0.0
    miss: float = 0.0
    false_alarm: float = 0.0
    confusion: float = 0.0

    @property
    def wrong(self) -> float:
        return self.miss + self.false_alarm + self.confusion

    @property
    def der(self) -> float:
        return self.rate(self.wrong)

    def rate(self, seconds: float) -> float:
        """Return seconds as a fraction of what was scored: infinite if nothing was, but something is wrong."""
        if self.scored > 0:
            return seconds / self.scored
        return inf if seconds > 0 else 0.0


@dataclass(frozen=True)
class DerCounts:
    """Counts of a session or, as their sum, of a set."""

    errors: ErrorSeconds = field(default_factory=ErrorSeconds)
    regions: Mapping[str, ErrorSeconds] = field(default_factory=dict)  # the same by REGIONS
    jaccard_error: float = 0.0  # summed over reference speakers: 1 - intersection / union with the mapped speaker
    n_jaccard: int = 0  # reference speakers with scored speech
    n_ref_speakers: int = 0  # with speech in the UEM, scored or not
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


# ---------------------------------------------------------------------------------------------------------------------
# The fast scorer


SESSION_US = 1 << 42  # 50 days: room for a session ...
MAX_SESSIONS = 1 << 21  # ... so many times in 64 bits


def tabulate_segments(sessions: Sequence[Sequence[Segment]]) -> SegmentArrays:
    """Records as arrays; speakers are numbered within their session, by name."""
    session = np.repeat(np.arange(len(sessions)), [len(segments) for segments in sessions])
    speaker = []
    for segments in sessions:
        numbers = {name: number for number, name in enumerate(sorted({segment.speaker for segment in segments}))}
        speaker += [numbers[segment.speaker] for segment in segments]
    start = [segment.start for segments in sessions for segment in segments]
    end = [segment.end for segments in sessions for segment in segments]
    return SegmentArrays(session, np.array(speaker, np.int64), np.array(start, float), np.array(end, float))


@dataclass(frozen=True)
class StepFunction:
    """What holds at a time: `values[n]` after the first n of the changes; before all of them, nothing."""

    changes: Ints  # in microseconds on the axis of all sessions, sorted
    values: Floats  # (changes + 1, columns): whole numbers, but matrix products of floats are fast

    @classmethod
    def of_spans(cls, column: Ints, begin: Ints, finish: Ints, n_columns: int) -> StepFunction:
        """Return how many spans of each column hold a time."""
        times = np.concatenate([begin, finish])
        order = np.argsort(times, kind="stable")
        steps = np.zeros((len(times) + 1, n_columns))
        steps[np.arange(1, len(times) + 1), np.tile(column, 2)[order]] = np.where(order < len(begin), 1, -1)
        return cls(times[order], np.cumsum(steps, axis=0))

    def simplify(self) -> StepFunction:
        """Remove the changes that change nothing, or that are not the last of their moment."""
        is_last = np.append(self.changes[1:] != self.changes[:-1], True)[: len(self.changes)]
        changes, values = self.changes[is_last], self.values[1:][is_last]
        differs = np.any(np.diff(values, axis=0, prepend=self.values[:1]), axis=1)
        return StepFunction(changes[differs], np.concatenate([self.values[:1], values[differs]]))


@dataclass(frozen=True)
class Reference:
    """Of many sessions, ready to score hypotheses of all of them at once, again and again."""

    options: DerOptions
    n_sessions: int
    speech: StepFunction  # of the speakers
    n_speaking: Floats  # for each row of it
    is_evaluated: npt.NDArray[np.bool_]  # inside the UEM
    is_scored: npt.NDArray[np.bool_]  # of this, neither in a collar nor, if it is skipped, in overlap
    scored_us: Floats  # (sessions, speakers)
    region_us: Floats  # (sessions, regions): speaker time that is scored
    n_speakers: Ints  # of each session, with speech in the UEM

    def score(self, hypothesis: SegmentArrays) -> list[DerCounts]:
        """Return a result per session; `hypothesis.session` counts them as in the reference."""
        walk = self._walk(hypothesis, self.is_evaluated)
        scored_us = walk.us * self.is_scored[walk.ref_row]
        region = np.minimum(walk.n_ref, 2).astype(np.int64)
        bins = walk.session * len(REGIONS) + region
        sums = [
            np.bincount(bins, scored_us * counts, self.n_sessions * len(REGIONS)).reshape(-1, len(REGIONS))
            for counts in (walk.n_hyp, walk.n_both)
        ]
        totals = np.stack([self.region_us, *sums], axis=2) / 1e6  # (sessions, regions, scored | hypothesis | both)
        weights = np.stack([walk.us, *(scored_us * (region == n) for n in range(len(REGIONS)))])
        return [
            self._count(n, totals[n], weights[:, part], walk.refs[part], walk.hyps[part])
            for n, part in enumerate(walk.slices)
        ]

    def score_pooled(self, hypothesis: SegmentArrays) -> ErrorSeconds:
        """Return the errors of all sessions together, and nothing else: what a search asks for thousands of times."""
        if self.options.scorer == "nist":
            return sum((counts.errors for counts in self.score(hypothesis)), ErrorSeconds())
        walk = self._walk(hypothesis, self.is_scored)
        refs_us = walk.refs * walk.us[:, None]
        # No @ here: on matrices this small BLAS gains nothing, but its threads spin on all cores.
        common_us = (np.einsum("ir,ih->rh", refs_us[part], walk.hyps[part]) for part in walk.slices)
        correct_us = sum(_map_speakers(us)[1] for us in common_us)
        hyp_us, both_us = ((walk.us * counts).sum() for counts in (walk.n_hyp, walk.n_both))
        scored_us = self.region_us.sum()
        errors_us = scored_us, scored_us - both_us, hyp_us - both_us, both_us - correct_us
        return ErrorSeconds(*(float(us) / 1e6 for us in errors_us))

    def walk(self, hypothesis: StepFunction) -> tuple[Ints, Ints, Ints, Ints]:
        """Return the changes of reference and hypothesis together, the time to the next, and the row of each in it."""
        changes = np.concatenate([self.speech.changes, hypothesis.changes])
        order = np.argsort(changes, kind="stable")
        changes = changes[order]
        ref_row = np.cumsum(order < len(self.speech.changes), dtype=np.int64)  # so many of its changes are passed
        hyp_row = np.arange(1, len(order) + 1) - ref_row
        return changes, np.diff(changes, append=changes[-1:]), ref_row, hyp_row

    def _walk(self, hypothesis: SegmentArrays, counts: npt.NDArray[np.bool_]) -> _Walk:
        """Return the intervals in which a hypothesis has speech, of those that count."""
        speech = _find_speech(hypothesis)
        changes, us, ref_row, hyp_row = self.walk(speech)
        n_hyp = speech.values.sum(axis=1)
        kept = np.flatnonzero((us > 0) & (n_hyp > 0)[hyp_row] & counts[ref_row])
        ref_row, hyp_row, session = ref_row[kept], hyp_row[kept], changes[kept] // SESSION_US
        bounds = np.searchsorted(session, np.arange(self.n_sessions + 1)).tolist()
        return _Walk(
            session,
            [slice(first, last) for first, last in pairwise(bounds)],
            us[kept].astype(np.float64),
            ref_row,
            self.n_speaking[ref_row],
            n_hyp[hyp_row],
            self.speech.values[ref_row],
            speech.values[hyp_row],
        )

    def _count(self, session: int, totals: Floats, weights: Floats, refs: Floats, hyps: Floats) -> DerCounts:
        """Count one session: weights (evaluated, scored by region; intervals), refs and hyps (intervals, speakers)."""
        common_us = (weights[:, None] * refs.T) @ hyps  # (weights, ref speakers, hyp speakers)
        scored_common_us = common_us[1:].sum(axis=0)
        mapped_us = common_us[0] if self.options.scorer == "nist" else scored_common_us
        ref, hyp = _map_met_speakers(mapped_us)

        correct = common_us[1:, ref, hyp].sum(axis=1) / 1e6  # by region
        regions = {
            name: ErrorSeconds(scored, scored - both, found - both, both - right)
            for name, (scored, found, both), right in zip(REGIONS, totals.tolist(), correct.tolist(), strict=True)
        }
        intersection_us = scored_common_us[ref, hyp]
        union_us = self.scored_us[session][ref] + (weights[1:].sum(axis=0) @ hyps)[hyp] - intersection_us
        n_jaccard = int(np.count_nonzero(self.scored_us[session]))
        similarity = float((intersection_us[union_us > 0] / union_us[union_us > 0]).sum())
        n_ref_speakers, n_hyp_speakers = int(self.n_speakers[session]), int(np.count_nonzero(weights[0] @ hyps))
        return DerCounts(
            sum(regions.values(), ErrorSeconds()),
            regions,
            n_jaccard - similarity,
            n_jaccard,
            n_ref_speakers,
            n_hyp_speakers,
            n_sessions=1,
            n_right_counts=int(n_ref_speakers == n_hyp_speakers),
        )


@dataclass(frozen=True, slots=True)
class Mark:
    """A span with errors, in seconds; each kind counts speakers, as several may be wrong at once."""

    start: float
    end: float
    missed: int
    false_alarm: int
    confusion: int
    is_scored: bool = True  # false in a collar, and in overlap that is skipped: the DER does not count it


@dataclass(frozen=True, slots=True)
class ErrorMarks:
    """Where the hypothesis of one session is wrong."""

    mapping: Mapping[str, str]
    """Reference speakers, by the hypothesis speakers that are mapped to them."""
    marks: tuple[Mark, ...]


def find_errors(
    reference: Sequence[Segment], hypothesis: Sequence[Segment], uem: Sequence[Region] | None, options: DerOptions
) -> ErrorMarks:
    """Return the places of the errors that `Reference.score` adds up, for pictures."""
    prepared = prepare_reference([reference], None if uem is None else [uem], options)
    speech = _find_speech(tabulate_segments([hypothesis]))
    changes, us, ref_row, hyp_row = prepared.walk(speech)
    kept = (us > 0) & prepared.is_evaluated[ref_row]
    start_us, us, ref_row, hyp_row = changes[kept], us[kept], ref_row[kept], hyp_row[kept]
    refs, hyps = prepared.speech.values[ref_row], speech.values[hyp_row]
    is_scored = prepared.is_scored[ref_row]
    counted_us = us if options.scorer == "nist" else us * is_scored
    common_us = (refs * counted_us[:, None]).T @ hyps
    ref, hyp = _map_met_speakers(common_us)

    n_ref, n_hyp = refs.sum(axis=1), hyps.sum(axis=1)
    n_both, n_right = np.minimum(n_ref, n_hyp), (refs[:, ref] * hyps[:, hyp]).sum(axis=1)
    kinds = np.stack([n_ref - n_both, n_hyp - n_both, n_both - n_right], axis=1).astype(np.int64)
    marks: list[Mark] = []
    for start, length, (missed, false_alarm, confusion), scored in zip(
        start_us.tolist(), us.tolist(), kinds.tolist(), is_scored.tolist(), strict=True
    ):
        mark = Mark(start / 1e6, (start + length) / 1e6, missed, false_alarm, confusion, scored)
        if marks and replace(marks[-1], start=mark.start, end=mark.end) == mark and marks[-1].end == mark.start:
            marks[-1] = replace(mark, start=marks[-1].start)
        elif missed + false_alarm + confusion:
            marks.append(mark)
    ref_names, hyp_names = (sorted({segment.speaker for segment in side}) for side in (reference, hypothesis))
    pairs = zip(ref.tolist(), hyp.tolist(), strict=True)
    # Speakers without time in common are mapped only because no others are left.
    return ErrorMarks({hyp_names[h]: ref_names[r] for r, h in pairs if common_us[r, h] > 0}, tuple(marks))


class _Walk(NamedTuple):
    """Intervals in which a hypothesis has speech and nothing changes."""

    session: Ints
    slices: list[slice]  # of each session's intervals
    us: Floats  # how long they are
    ref_row: Ints  # of the reference's step function
    n_ref: Floats  # speakers
    n_hyp: Floats
    refs: Floats  # (intervals, speakers) of 0 and 1
    hyps: Floats

    @property
    def n_both(self) -> Floats:
        return np.minimum(self.n_ref, self.n_hyp)


def _map_speakers(common_us: Floats) -> tuple[tuple[Ints, Ints], float]:
    """Return the one-to-one mapping of speakers with the most time in common, and that time."""
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415 - slow to import

    ref, hyp = linear_sum_assignment(common_us, maximize=True)
    return (ref, hyp), float(common_us[ref, hyp].sum())


def _map_met_speakers(common_us: Floats) -> tuple[Ints, Ints]:
    """Return the mapping of the speakers of one session.

    Between equally good mappings, speakers of other sessions (zeros here) must not decide: JER depends on which.
    """
    met = np.ix_(common_us.any(axis=1), common_us.any(axis=0))
    (row, column), _ = _map_speakers(common_us[met])
    return met[0][row, 0], met[1][0, column]


def prepare_reference(
    sessions: Sequence[Sequence[Segment]],
    uem: Sequence[Sequence[Region]] | None,
    options: DerOptions,
    not_evaluated: Sequence[Sequence[Region]] | None = None,
    not_scored: Sequence[Sequence[Region]] | None = None,
) -> Reference:
    """Return all that scoring needs to know of the reference; `uem` has the regions of each session.

    Time in `not_evaluated` counts for nothing. Time in `not_scored` is like that in collars: with `nist` it counts for
    the mapping of speakers.
    """
    speaker, begin, finish = _merge_touching(tabulate_segments(sessions))
    n_speakers = int(speaker.max(initial=-1)) + 1
    evaluated = _find_evaluated(begin, finish, len(sessions), uem, options.scorer)
    collars = _find_collars(np.concatenate([begin, finish]), round(options.collar * 1e6))
    unscored, excluded = _place_regions(not_scored or []), _place_regions(not_evaluated or [])
    kinds = ((begin, finish), evaluated, collars, unscored, excluded)
    numbers = (n_speakers, n_speakers + 1, n_speakers + 1, n_speakers + 2)
    columns = StepFunction.of_spans(
        np.concatenate([speaker, *(np.full(len(kind[0]), n) for n, kind in zip(numbers, kinds[1:], strict=True))]),
        np.concatenate([kind[0] for kind in kinds]),
        np.concatenate([kind[1] for kind in kinds]),
        n_speakers + 3,
    )
    values = columns.values  # how many spans hold a time; of the last three columns it only matters whether any does
    is_evaluated = (values[:, n_speakers] > 0) & (values[:, n_speakers + 2] == 0)
    is_scored = is_evaluated & (values[:, n_speakers + 1] == 0)
    if options.skip_overlap:
        is_scored &= values[:, :n_speakers].sum(axis=1) < 2
    values[:, n_speakers], values[:, n_speakers + 1] = is_evaluated, is_scored
    values[:, n_speakers + 2] = 0
    columns = columns.simplify()
    speech = StepFunction(columns.changes, columns.values[:, :n_speakers])
    n_speaking = speech.values.sum(axis=1)
    is_evaluated = columns.values[:, n_speakers] > 0
    is_scored = columns.values[:, n_speakers + 1] > 0
    scored_us = _sum_by_session(speech, speech.values, is_scored, len(sessions))
    by_region = n_speaking[:, None] * (np.minimum(n_speaking, 2)[:, None] == np.arange(len(REGIONS)))
    region_us = _sum_by_session(speech, by_region, is_scored, len(sessions))
    evaluated_us = _sum_by_session(speech, speech.values, is_evaluated, len(sessions))
    return Reference(
        options,
        len(sessions),
        speech,
        n_speaking,
        is_evaluated,
        is_scored,
        scored_us,
        region_us,
        n_speakers=np.count_nonzero(evaluated_us, axis=1),
    )


def _find_evaluated(
    begin: Ints, finish: Ints, n_sessions: int, uem: Sequence[Sequence[Region]] | None, scorer: str
) -> tuple[Ints, Ints]:
    """Return the spans in which anything counts: the UEM or, without one, all time; for md-eval, the reference's
    extent."""
    first = np.arange(n_sessions) * SESSION_US
    if uem is not None:
        return _place_regions(uem)
    if scorer != "nist":
        return first, first + SESSION_US - 1
    earliest, latest = first + SESSION_US, first.copy()
    np.minimum.at(earliest, begin // SESSION_US, begin)
    np.maximum.at(latest, finish // SESSION_US, finish)
    spoken = earliest < latest
    return earliest[spoken], latest[spoken]


def _place_regions(sessions: Sequence[Sequence[Region]]) -> tuple[Ints, Ints]:
    """Return the regions of each session as spans of the axis."""
    session = np.repeat(np.arange(len(sessions)), [len(regions) for regions in sessions]).astype(np.int64)
    start = np.array([region.start for regions in sessions for region in regions], np.float64)
    end = np.array([region.end for regions in sessions for region in regions], np.float64)
    last = (SESSION_US - 1) / 1e6  # some write a UEM that ends never
    return _to_axis(session, np.minimum(start, last)), _to_axis(session, np.minimum(end, last))


def _find_collars(edges: Ints, collar_us: int) -> tuple[Ints, Ints]:
    """Return the spans around reference boundaries that are not scored; none reaches into the session before."""
    if collar_us == 0:
        return edges[:0], edges[:0]
    first = edges // SESSION_US * SESSION_US
    return np.maximum(first, edges - collar_us), np.minimum(first + SESSION_US - 1, edges + collar_us)


def _sum_by_session(speech: StepFunction, values: Floats, counts: npt.NDArray[np.bool_], n_sessions: int) -> Floats:
    """Microseconds, times a row of values for each step of the function, in time that counts: (sessions, columns)."""
    us = np.diff(speech.changes, append=speech.changes[-1:]) * counts[1:]
    sums = np.zeros((n_sessions, values.shape[1]))
    np.add.at(sums, speech.changes // SESSION_US, us[:, None] * values[1:])
    return sums


def _find_speech(segments: SegmentArrays) -> StepFunction:
    speaker, begin, finish = _merge_touching(segments)
    return StepFunction.of_spans(speaker, begin, finish, int(speaker.max(initial=-1)) + 1)


def _merge_touching(segments: SegmentArrays) -> tuple[Ints, Ints, Ints]:
    """Speaker, begin and finish; of one speaker, segments that overlap or touch are one, and empty ones none.

    Else a speaker's own overlap would count twice, and there would be collars inside speech.
    """
    kept = segments.end > segments.start
    session, speaker, start, end = (
        segments.session[kept],
        segments.speaker[kept],
        segments.start[kept],
        segments.end[kept],
    )
    # Speakers one after the other, each with an axis of its own, so that no one reaches into the next.
    n_speakers = int(speaker.max(initial=-1)) + 1
    row = session * n_speakers + speaker
    begin, finish = _to_axis(row, start), _to_axis(row, end)
    order = np.argsort(begin, kind="stable")
    begin, reach = begin[order], np.maximum.accumulate(finish[order])
    edge = np.ones(min(1, len(begin)), np.bool_)
    opens = begin[1:] > reach[:-1]
    begin, finish = begin[np.concatenate([edge, opens])], reach[np.concatenate([opens, edge])]
    row = begin // SESSION_US
    session, speaker = row // max(1, n_speakers), row % max(1, n_speakers)
    shift = (session - row) * SESSION_US
    return speaker, begin + shift, finish + shift


def _to_axis(session: Ints, seconds: Floats) -> Ints:
    us = np.rint(seconds * 1e6)
    if us.max(initial=0) >= SESSION_US or session.max(initial=0) >= MAX_SESSIONS:
        seconds, n_rows = us.max(initial=0) / 1e6, session.max(initial=0) + 1
        raise ValueError(f"{seconds:.0f} s, or {n_rows} sessions x speakers, is more than can be scored at once")
    return session * SESSION_US + us.astype(np.int64)
