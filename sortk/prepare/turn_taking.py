"""How people take turns in a corpus: fitted to its RTTM, so that simulated conversations are like recorded ones.

Going through the segments of a recording by their starts, with M the latest end so far and H who holds it:

    start >= M, same speaker     a pause; `turn_change` is the share of the others
    start >= M, other speaker    a gap
    start < M, end > M           an early start, which takes the floor
    start < M, end <= M          a back-channel inside the turn of H
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from sortk.formats import rttm
from sortk.formats.files import files_in
from sortk.prepare.conversation import TurnTaking
from sortk.records import Segment
from sortk.spans import measure_activity, speaker_turns, to_seconds

N_QUANTILES = 101
MAX_SPREAD = 0.9
ENOUGH_TURNS = 50  # in a corpus, for its statistics to mean something


@dataclass(frozen=True)
class TurnStatistics:
    """Statistics of a corpus; ratios are means over recordings, lengths are medians in seconds unless they say mean."""

    overlap: float  # time with two or more speakers / time with at least one
    silence: float  # time without speech / time from the first start to the last end
    spread: float  # standard deviation of a recording's two ratios, as a share of their means
    turn_change: float  # share of turns that another speaker takes
    turn: float
    turn_mean: float
    gap: float
    early_start: float
    backchannel: float
    backchannel_share: float  # of the time that turns overlap
    dominant_share: float  # of the speech, by who speaks most; mean over recordings

    def to_json(self) -> dict[str, float]:
        return {name: round(value, 4) for name, value in asdict(self).items()}


def measure(recordings: Iterable[Sequence[Segment]]) -> tuple[TurnStatistics, TurnTaking]:
    """Return the statistics of recordings, and the habits from which conversations like them are drawn."""
    turns: list[float] = []
    gaps: list[float] = []
    early: list[float] = []
    inside: list[float] = []
    dominant: list[float] = []
    share_stds: list[float] = []
    overlaps: list[float] = []
    silences: list[float] = []
    n_pauses = n_changes = 0
    for segments in recordings:
        by_speaker = {
            speaker: [(to_seconds(start), to_seconds(end)) for start, end in spans]
            for speaker, spans in speaker_turns(segments).items()
        }
        ordered = sorted((start, end, speaker) for speaker, spans in by_speaker.items() for start, end in spans)
        if not ordered:
            continue
        first = ordered[0][0]
        latest, holder = first, ""
        for start, end, speaker in ordered:
            turns.append(end - start)
            if holder and start >= latest:
                n_pauses += speaker == holder
                n_changes += speaker != holder
                if speaker != holder:
                    gaps.append(start - latest)
            elif holder:
                n_changes += 1
                (early if end > latest else inside).append(min(latest, end) - start)
            if end > latest:
                latest, holder = end, speaker
        spoken = [sum(end - start for start, end in spans) for spans in by_speaker.values()]
        dominant.append(max(spoken) / sum(spoken))
        if len(spoken) > 1:
            share_stds.append(statistics.pstdev(part / sum(spoken) for part in spoken))
        activity = measure_activity((segment.shift(-first) for segment in segments), latest - first)
        overlaps.append(activity.overlap_ratio)
        silences.append(activity.silence_ratio)
    if len(turns) < ENOUGH_TURNS:
        raise ValueError(f"turn-taking needs {ENOUGH_TURNS} turns or more to be fitted to, got {len(turns)}")
    overlap, silence = statistics.fmean(overlaps), statistics.fmean(silences)
    spreads = [statistics.pstdev(values) / max(statistics.fmean(values), 1e-6) for values in (overlaps, silences)]
    found = TurnStatistics(
        overlap=overlap,
        silence=silence,
        spread=min(statistics.fmean(spreads), MAX_SPREAD),
        turn_change=n_changes / max(n_changes + n_pauses, 1),
        turn=statistics.median(turns),
        turn_mean=statistics.fmean(turns),
        gap=_median(gaps),
        early_start=_median(early),
        backchannel=_median(inside),
        backchannel_share=sum(inside) / max(sum(inside) + sum(early), 1e-6),
        dominant_share=statistics.fmean(dominant),
    )
    habits = TurnTaking(
        turn_ms=tuple(int(1000 * length) for length in np.quantile(turns, np.linspace(0, 1, N_QUANTILES))),
        share_std=statistics.fmean(share_stds) if share_stds else 0.0,
        backchannel_ms=int(1000 * np.quantile(inside, 0.95)) if inside else 0,
        backchannel_share=found.backchannel_share,
        mean_overlap_ms=max(1, int(1000 * statistics.fmean(early))) if early else TurnTaking.mean_overlap_ms,
        overlap_shape=_gamma_shape(early),
        gap_shape=_gamma_shape(gaps),
    )
    return found, habits


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0


def _gamma_shape(values: Sequence[float]) -> float:
    """Return the shape of the Gamma distribution with the mean and the median of the values, from 0.3 to 5.

    Their ratio is about (1 - 1 / (9 shape))^3 (Wilson and Hilferty 1931). Variances would say little: a few silences of
    minutes rule them.
    """
    if not values or statistics.fmean(values) <= 0:
        return 1.0
    root = (statistics.median(values) / statistics.fmean(values)) ** (1 / 3)
    return min(max(1 / (9 * (1 - root)), 0.3), 5.0) if root < 1 else 5.0


def read_turn_taking(folder: Path) -> tuple[TurnStatistics, TurnTaking]:
    """Return statistics and habits of all recordings in the RTTM files of a folder, or in one file."""
    recordings: dict[tuple[Path, str], list[Segment]] = {}
    for path in files_in(folder, ".rttm"):
        for segment in rttm.stream(path, zero_duration="keep"):
            recordings.setdefault((path, segment.session_id), []).append(segment)
    try:
        return measure(recordings.values())
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from None


def compare(target: TurnStatistics, reached: TurnStatistics) -> Mapping[str, tuple[float, float]]:
    """Return each statistic of the corpus that was asked for, beside that of the simulated sessions."""
    own = reached.to_json()
    return {name: (value, own[name]) for name, value in target.to_json().items()}
