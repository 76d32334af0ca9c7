"""What a diarization error rate is, and the exact DER of many sessions in one sweep over all boundaries, with numpy.

    DER = (miss + false alarm + confusion) / scored

in seconds of speaker time. While R reference and H hypothesis speakers talk, C of them rightly after the best
one-to-one mapping of speakers, each second counts

    scored = R,  miss = R - min(R, H),  false alarm = H - min(R, H),  confusion = min(R, H) - C

The score of a set is that of the sums, not a mean of sessions.

Time is in whole microseconds, the resolution of RTTM files, so that boundaries that should be equal are. All sessions
are on one axis, SESSION_US apart. The changes of the reference (who speaks, what is scored) and of the hypothesis cut
the axis into intervals in which nothing changes; only their length and the numbers of speakers count. Where the
hypothesis has no speech (H = 0), all is missed, so only the other intervals are looked at.

Summed over a session, C is the time that mapped speakers have in common. Let W(t) be the scored time before t. It never
falls, so a turn [b, f) of a reference speaker and a turn [b', f') of a hypothesis speaker that overlap have

    W(min(f, f')) - W(max(b, b')) = min(W(f), W(f')) - max(W(b), W(b'))

of it in common: W is needed at the ends of turns alone. The common time of two speakers is the sum over their turns,
and the mapping is the assignment with the largest sum of it. Nothing of the reference depends on the hypothesis
(without a UEM all time is scored, but silence counts nothing), so it is prepared once for all trials of a search.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from sortk.inference.postprocess import Ints, SegmentArrays, Times
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

    @property
    def right_counts(self) -> str:
        """Say whether the number of speakers is right; of several sessions, in how many."""
        if self.n_sessions == 1:
            return "yes" if self.n_right_counts else "no"
        return f"{self.n_right_counts} of {self.n_sessions}"


# ---------------------------------------------------------------------------------------------------------------------
# The fast scorer


SESSION_US = 1 << 42  # 50 days: room for a session ...
MAX_SESSIONS = 1 << 21  # ... so many times in 64 bits
MAX_SPEAKER_PAIRS = 10_000_000  # of one session; mapping more takes minutes
MAX_OVERLAPS = 50_000_000  # pairs of segments; they take some 100 bytes each


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


class Turns(NamedTuple):
    """Speech of one speaker without a pause, of many sessions, by its begin."""

    session: Ints
    speaker: Ints  # its number in the session
    begin: Ints  # in microseconds on the axis of all sessions
    finish: Ints
    n_speakers: Ints  # of each session

    def sum_by_speaker(self, clock: Clock) -> list[Times]:
        """Return for each session the time of its speakers, in microseconds."""
        first = _first_columns(self.n_speakers)
        us = clock.at(self.finish) - clock.at(self.begin)
        return np.split(_sum_bins(first[self.session] + self.speaker, us, int(first[-1])), first[1:-1])


def _sum_bins(bins: Ints, values: Ints | Times, n_bins: int) -> Times:
    """Return the sum of the values of each bin."""
    return np.bincount(bins, values, n_bins).astype(np.float64)


def _first_columns(n_speakers: Ints) -> Ints:
    """Return the number of the first speaker of each session among those of all, and of one that would follow."""
    return np.concatenate([[0], np.cumsum(n_speakers)])


class Clock(NamedTuple):
    """A clock that runs only in some intervals: W of the module's header."""

    changes: Ints
    runs: Ints  # 1 in the interval that follows the first n changes, else 0; before all of them 0
    elapsed: Ints  # at each of the changes

    @classmethod
    def that_runs(cls, changes: Ints, runs: npt.NDArray[np.bool_]) -> Clock:
        running = runs.astype(np.int64)
        return cls(changes, running, np.concatenate([[0], np.cumsum(np.diff(changes) * running[1:-1])]))

    def at(self, times: Ints) -> Ints:
        """Return what the clock shows."""
        if not len(self.changes):
            return np.zeros_like(times)
        passed = np.searchsorted(self.changes, times, "right")
        last = np.maximum(passed - 1, 0)
        return self.elapsed[last] + (times - self.changes[last]) * self.runs[passed]


@dataclass(frozen=True)
class Reference:
    """Of many sessions, ready to score hypotheses of all of them at once, again and again."""

    options: DerOptions
    turns: Turns
    changes: Ints  # of any of the following, sorted; each of these has a value after the first n changes
    n_speaking: Ints
    is_evaluated: npt.NDArray[np.bool_]  # inside the UEM
    is_scored: npt.NDArray[np.bool_]  # of this, neither in a collar nor, if it is skipped, in overlap
    region_us: Times  # (sessions, regions): speaker time that is scored

    @property
    def n_sessions(self) -> int:
        return len(self.turns.n_speakers)

    def score(self, hypothesis: SegmentArrays) -> list[DerCounts]:
        """Return a result per session; `hypothesis.session` counts them as in the reference."""
        turns = merge_touching(hypothesis, self.n_sessions)
        walk = self._walk(turns, self.is_evaluated)
        us = walk.us * self.is_scored[walk.ref_row]
        bins = walk.session * len(REGIONS) + np.minimum(walk.n_ref, 2)
        sums = [
            _sum_bins(bins, us * counts, self.n_sessions * len(REGIONS)).reshape(-1, len(REGIONS))
            for counts in (walk.n_hyp, walk.n_both)
        ]
        totals = np.stack([self.region_us, *sums], axis=2) / 1e6  # (sessions, regions, scored | hypothesis | both)

        evaluated, scored = self.clock(self.is_evaluated), self.clock(self.is_scored)
        single = self.clock(self.is_scored & (self.n_speaking == 1))
        evaluated_us, scored_us = (
            list(zip(self.turns.sum_by_speaker(clock), turns.sum_by_speaker(clock), strict=True))
            for clock in (evaluated, scored)
        )
        return [
            self._count(totals[n], common_us, evaluated_us[n], scored_us[n])
            for n, common_us in enumerate(self.common_us(turns, [evaluated, single, scored]))
        ]

    def score_pooled(self, hypothesis: SegmentArrays) -> ErrorSeconds:
        """Return the errors of all sessions together, and nothing else: what a search asks for thousands of times."""
        if self.options.scorer == "nist":
            return sum((counts.errors for counts in self.score(hypothesis)), ErrorSeconds())
        turns = merge_touching(hypothesis, self.n_sessions)
        walk = self._walk(turns, self.is_scored)
        correct_us = sum(_map_speakers(us)[1] for [us] in self.common_us(turns, [self.clock(self.is_scored)]))
        hyp_us, both_us = ((walk.us * counts).sum() for counts in (walk.n_hyp, walk.n_both))
        scored_us = self.region_us.sum()
        errors_us = scored_us, scored_us - both_us, hyp_us - both_us, both_us - correct_us
        return ErrorSeconds(*(float(us) / 1e6 for us in errors_us))

    def _walk(self, hypothesis: Turns, counts: npt.NDArray[np.bool_]) -> _Walk:
        """Return the intervals in which a hypothesis has speech, of those that count."""
        times = np.concatenate([self.changes, hypothesis.begin, hypothesis.finish])
        order = np.argsort(times, kind="stable")
        n_changes, n_begins = len(self.changes), len(hypothesis.begin)
        steps = np.concatenate([np.zeros(n_changes, np.int64), np.ones(n_begins, np.int64), np.full(n_begins, -1)])
        times = times[order]
        # Of several changes at one moment, the time to the next is more than 0 only after the last.
        us = np.diff(times, append=times[-1:])
        ref_row, n_hyp = np.cumsum(order < n_changes, dtype=np.int64), np.cumsum(steps[order])
        kept = np.flatnonzero((us > 0) & (n_hyp > 0) & counts[ref_row])
        ref_row = ref_row[kept]
        return _Walk(times[kept] // SESSION_US, us[kept], ref_row, self.n_speaking[ref_row], n_hyp[kept])

    def clock(self, runs: npt.NDArray[np.bool_]) -> Clock:
        """Return a clock that runs after the changes for which `runs` is true."""
        return Clock.that_runs(self.changes, runs)

    def common_us(self, hypothesis: Turns, clocks: Sequence[Clock]) -> Iterator[Times]:
        """Yield for each session the time that speakers have in common: (clocks, ref speakers, hyp speakers)."""
        ref, hyp = _find_overlaps(self.turns, hypothesis)
        session = self.turns.session[ref]
        order = np.argsort(session, kind="stable")
        ref, hyp = ref[order], hyp[order]
        sizes = self.turns.n_speakers * hypothesis.n_speakers
        if sizes.max(initial=0) > MAX_SPEAKER_PAIRS:
            n_ref, n_hyp = (int(side.n_speakers[sizes.argmax()]) for side in (self.turns, hypothesis))
            raise ValueError(f"a session has {n_ref} reference and {n_hyp} hypothesis speakers, too many to map")
        pair = self.turns.speaker[ref] * hypothesis.n_speakers[session[order]] + hypothesis.speaker[hyp]
        common_us = []
        for clock in clocks:
            at = [clock.at(times) for side in (self.turns, hypothesis) for times in (side.begin, side.finish)]
            common_us.append(np.minimum(at[1][ref], at[3][hyp]) - np.maximum(at[0][ref], at[2][hyp]))
        bounds = np.searchsorted(session[order], np.arange(self.n_sessions + 1)).tolist()
        shapes = zip(self.turns.n_speakers.tolist(), hypothesis.n_speakers.tolist(), strict=True)
        for (first, last), (n_ref, n_hyp) in zip(pairwise(bounds), shapes, strict=True):
            own = [_sum_bins(pair[first:last], us[first:last], n_ref * n_hyp) for us in common_us]
            yield np.stack(own).reshape(len(clocks), n_ref, n_hyp)

    def _count(
        self, totals: Times, common_us: Times, evaluated_us: tuple[Times, Times], scored_us: tuple[Times, Times]
    ) -> DerCounts:
        """Count one session: time in common (evaluated, single, scored; ref speakers, hyp speakers), and time of each
        speaker of the reference and of the hypothesis."""
        _, single_us, both_us = common_us
        mapped_us = common_us[0] if self.options.scorer == "nist" else both_us
        ref, hyp = _map_met_speakers(mapped_us)

        right_single_us, right_us = single_us[ref, hyp].sum(), both_us[ref, hyp].sum()
        correct = np.array([0.0, right_single_us, right_us - right_single_us]) / 1e6  # by region
        regions = {
            name: ErrorSeconds(scored, scored - both, found - both, both - right)
            for name, (scored, found, both), right in zip(REGIONS, totals.tolist(), correct.tolist(), strict=True)
        }
        intersection_us = both_us[ref, hyp]
        union_us = scored_us[0][ref] + scored_us[1][hyp] - intersection_us
        n_jaccard = int(np.count_nonzero(scored_us[0]))
        similarity = float((intersection_us[union_us > 0] / union_us[union_us > 0]).sum())
        n_ref_speakers, n_hyp_speakers = (int(np.count_nonzero(us)) for us in evaluated_us)
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


def _find_overlaps(one: Turns, other: Turns) -> tuple[Ints, Ints]:
    """Return the indices of all pairs of turns that overlap."""
    # Either the turn of `other` begins in that of `one`, or that of `one` begins in the other, later than it.
    inside = np.searchsorted(other.begin, one.begin, "left"), np.searchsorted(other.begin, one.finish, "left")
    around = np.searchsorted(one.begin, other.begin, "right"), np.searchsorted(one.begin, other.finish, "left")
    n_pairs = sum(int((last - first).sum()) for first, last in (inside, around))
    if n_pairs > MAX_OVERLAPS:
        raise ValueError(f"{n_pairs} pairs of segments overlap, which is more than can be scored at once")
    ones, others = _enumerate_ranges(*inside)
    others_too, ones_too = _enumerate_ranges(*around)
    return np.concatenate([ones, ones_too]), np.concatenate([others, others_too])


def _enumerate_ranges(first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """Return for each number in [first[n], last[n]) n and the number."""
    lengths = last - first
    index = np.repeat(np.arange(len(first)), lengths)
    return index, np.arange(len(index)) + np.repeat(first - (np.cumsum(lengths) - lengths), lengths)


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
    turns = merge_touching(tabulate_segments([hypothesis]), 1)
    own = prepared.turns
    # At a change of speakers in which as many talk as before, counts stay, but not which speakers are right.
    edges = np.unique(np.concatenate([prepared.changes, own.begin, own.finish, turns.begin, turns.finish]))
    start_us, us = edges[:-1], np.diff(edges)
    ref_row = np.searchsorted(prepared.changes, start_us, "right")
    kept = prepared.is_evaluated[ref_row]
    start_us, us, ref_row = start_us[kept], us[kept], ref_row[kept]
    n_hyp = _count_spans(turns.begin, turns.finish, start_us)
    n_ref, is_scored = prepared.n_speaking[ref_row], prepared.is_scored[ref_row]
    mapped_by = prepared.is_evaluated if options.scorer == "nist" else prepared.is_scored
    [[common_us]] = prepared.common_us(turns, [prepared.clock(mapped_by)])
    ref, hyp = _map_met_speakers(common_us)

    mapped = np.full(int(own.n_speakers[0]), -1)
    mapped[ref] = hyp
    one, other = _find_overlaps(own, turns)
    is_right = mapped[own.speaker[one]] == turns.speaker[other]
    one, other = one[is_right], other[is_right]
    right = np.maximum(own.begin[one], turns.begin[other]), np.minimum(own.finish[one], turns.finish[other])
    n_both, n_right = np.minimum(n_ref, n_hyp), _count_spans(*right, start_us)
    kinds = np.stack([n_ref - n_both, n_hyp - n_both, n_both - n_right], axis=1)
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
    us: Ints  # how long they are
    ref_row: Ints  # after so many changes of the reference
    n_ref: Ints  # speakers
    n_hyp: Ints

    @property
    def n_both(self) -> Ints:
        return np.minimum(self.n_ref, self.n_hyp)


def _map_speakers(common_us: Times) -> tuple[tuple[Ints, Ints], float]:
    """Return the one-to-one mapping of speakers with the most time in common, and that time."""
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415 - slow to import

    ref, hyp = linear_sum_assignment(common_us, maximize=True)
    return (ref, hyp), float(common_us[ref, hyp].sum())


def _map_met_speakers(common_us: Times) -> tuple[Ints, Ints]:
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
    turns = merge_touching(tabulate_segments(sessions), len(sessions))
    evaluated = _find_evaluated(turns, uem, options.scorer)
    collars = _find_collars(np.concatenate([turns.begin, turns.finish]), round(options.collar * 1e6))
    unscored, excluded = _place_regions(not_scored or []), _place_regions(not_evaluated or [])
    kinds = ((turns.begin, turns.finish), evaluated, collars, unscored, excluded)
    changes = np.unique(np.concatenate([times for kind in kinds for times in kind]))
    n_speaking, *holds = (_count_spans(*kind, changes) for kind in kinds)
    is_evaluated = (holds[0] > 0) & (holds[3] == 0)
    is_scored = is_evaluated & (holds[1] == 0) & (holds[2] == 0)
    if options.skip_overlap:
        is_scored &= n_speaking < 2

    values = np.stack([n_speaking, is_evaluated, is_scored], axis=1)
    differs = np.any(np.diff(values, axis=0, prepend=np.zeros_like(values[:1])), axis=1)
    changes, values = changes[differs], np.concatenate([np.zeros((1, 3), np.int64), values[differs]])
    n_speaking, is_evaluated, is_scored = values[:, 0], values[:, 1] > 0, values[:, 2] > 0
    us = np.diff(changes, append=changes[-1:]) * is_scored[1:] * n_speaking[1:]
    bins = changes // SESSION_US * len(REGIONS) + np.minimum(n_speaking[1:], 2)
    region_us = _sum_bins(bins, us, len(sessions) * len(REGIONS)).reshape(-1, len(REGIONS))
    return Reference(options, turns, changes, n_speaking, is_evaluated, is_scored, region_us)


def _count_spans(begin: Ints, finish: Ints, times: Ints) -> Ints:
    """Return how many spans hold each of the times: those that have begun, less those that are over."""
    begun, over = (np.searchsorted(np.sort(edges), times, "right") for edges in (begin, finish))
    return begun - over


def _find_evaluated(turns: Turns, uem: Sequence[Sequence[Region]] | None, scorer: str) -> tuple[Ints, Ints]:
    """Return the spans in which anything counts: the UEM or, without one, all time; for md-eval, the reference's
    extent."""
    first = np.arange(len(turns.n_speakers)) * SESSION_US
    if uem is not None:
        return _place_regions(uem)
    if scorer != "nist":
        return first, first + SESSION_US - 1
    earliest, latest = first + SESSION_US, first.copy()
    np.minimum.at(earliest, turns.session, turns.begin)
    np.maximum.at(latest, turns.session, turns.finish)
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


def merge_touching(segments: SegmentArrays, n_sessions: int) -> Turns:
    """Return the turns; of one speaker, segments that overlap or touch are one, and empty ones none.

    Else a speaker's own overlap would count twice, and there would be collars inside speech.
    """
    n_speakers = np.zeros(n_sessions, np.int64)
    np.maximum.at(n_speakers, segments.session, segments.speaker + 1)
    first = _first_columns(n_speakers)
    kept = segments.end > segments.start
    # Speakers one after the other, each with an axis of its own, so that no one reaches into the next.
    column = (first[segments.session] + segments.speaker)[kept]
    begin, finish = _to_axis(column, segments.start[kept]), _to_axis(column, segments.end[kept])
    order = np.argsort(begin, kind="stable")
    begin, reach = begin[order], np.maximum.accumulate(finish[order])
    edge = np.ones(min(1, len(begin)), np.bool_)
    opens = begin[1:] > reach[:-1]
    begin, finish = begin[np.concatenate([edge, opens])], reach[np.concatenate([opens, edge])]
    column = begin // SESSION_US
    session = np.repeat(np.arange(n_sessions), n_speakers)[column]
    shift = (session - column) * SESSION_US
    begin, finish = begin + shift, finish + shift
    order = np.argsort(begin, kind="stable")
    session, column = session[order], column[order]
    return Turns(session, column - first[session], begin[order], finish[order], n_speakers)


def _to_axis(session: Ints, seconds: Times) -> Ints:
    us = np.rint(seconds * 1e6)
    if us.max(initial=0) >= SESSION_US or session.max(initial=0) >= MAX_SESSIONS:
        seconds, n_rows = us.max(initial=0) / 1e6, session.max(initial=0) + 1
        raise ValueError(f"{seconds:.0f} s, or {n_rows} sessions or speakers, is more than can be scored at once")
    return session * SESSION_US + us.astype(np.int64)
