"""Plans a conversation: who speaks when, with target overlap and silence ratios that the session really reaches.

The property-aware simulation of the paper's training data (Park et al., 2023), restated so that targets are solved
for and not chased. With session length L, overlap ratio o (time with two speakers / time with at least one) and
silence ratio s (time with none / L), the sum D of all turn lengths must be

    D = (1 - s) (1 + o) L        because speech covers (1 - s) L, and its share o is spoken twice.

1. Turns are drawn until they sum to D: speakers by dominance, lengths in words.
2. Some turns become back-channels inside the turn before; at some speaker changes the next turn starts early. The
   lengths of these overlaps are drawn from a Gamma distribution and scaled so that they sum to V = o D / (1 + o).
3. The rest of the time, L - D / (1 + o), is divided among the gaps in the same way.

At most two people speak at a time and no speaker overlaps themselves. All times are integer milliseconds.
"""

from __future__ import annotations

import bisect
import itertools
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import numpy as np

from sortk.formats import rttm
from sortk.formats.files import files_in
from sortk.prepare.pieces import SpeechPiece, shorten_piece
from sortk.records import Segment
from sortk.spans import measure_activity, speaker_turns, to_seconds

WORDS_PER_TURN = (0.4, 19.0)  # Gamma shape and scale: the negative binomial (.4, .05) of the original, continuous
SECONDS_PER_WORD = 0.35  # counts words where a piece has no transcript
PAUSE_IN_TURN_MS = (20, 120)  # between two pieces of one turn; short, so that the turn stays one segment
MIN_TURN_MS = 200  # the shortest turn that is cut out of a piece
MIN_SHARE = 0.05  # of the speech, by one speaker
MIN_PAUSE_MS = 200  # between two turns of the same speaker
TURN_LENGTH_SCALES = (1.0, 0.7, 0.5, 0.35, 0.25)  # shorter turns, hence more changes, where overlap does not fit
MAX_TURN_SHARE = 0.2  # of a session's speech, in one turn
MAX_TIMED_TURN_SHARE = 0.4  # the same, where the lengths of turns are those of a corpus


@dataclass(frozen=True)
class TurnTaking:
    """How people take turns; `read_turn_taking` fits it to a corpus. The default is the original simulator's."""

    turn_ms: tuple[int, ...] = ()  # quantiles of the length of a turn, evenly spaced; none: by words (WORDS_PER_TURN)
    share_std: float = 0.11  # speaker dominance ~ N(1/S, .11)
    backchannel_ms: int = 1500  # a longer turn takes the floor
    backchannel_share: float = 0.5  # of the overlap; the other part is early starts, whose lengths can be solved for
    mean_overlap_ms: int = 700  # of an early start; how many there are follows from it
    overlap_shape: float = 1.5  # of the Gamma distributions of early starts and gaps; close to AMI's skew
    gap_shape: float = 1.2


USUAL_HABITS = TurnTaking()


Cast = Mapping[str, Sequence[Sequence[SpeechPiece]]]
"""The speakers of a session, each with utterances, each of one or more pieces."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one speaker says without a break: pieces with the pause before each."""

    speaker: str
    pieces: tuple[SpeechPiece, ...]
    pauses_ms: tuple[int, ...]

    @property
    def duration_ms(self) -> int:
        return sum(piece.duration_ms for piece in self.pieces) + sum(self.pauses_ms)


@dataclass(frozen=True, slots=True)
class PlacedTurn:
    turn: Turn
    start_ms: int

    @property
    def end_ms(self) -> int:
        return self.start_ms + self.turn.duration_ms


def plan_turns(
    cast: Cast,
    length_ms: int,
    overlap: float,
    silence: float,
    turn_change: float,
    rng: Random,
    habits: TurnTaking = USUAL_HABITS,
) -> list[PlacedTurn]:
    """Return a conversation of the `cast` that reaches the two ratios in `length_ms`, sorted by start."""
    if len(cast) == 1:
        overlap = 0.0
    speech_ms = max(1, round((1 - silence) * (1 + overlap) * length_ms))
    for length_scale in TURN_LENGTH_SCALES:
        turns = _draw_turns(cast, speech_ms, turn_change, length_scale, rng, habits)
        turns = _fill_up(turns, cast, speech_ms, round((1 + overlap) * length_ms), rng)
        total_ms = sum(turn.duration_ms for turn in turns)
        overlap_ms = round(overlap * total_ms / (1 + overlap))
        # Where overlap is hard to fit, more and longer turns go inside.
        share = 1 - (1 - habits.backchannel_share) * length_scale
        longest_ms = round(habits.backchannel_ms / length_scale)
        floors = _choose_backchannels(turns, round(share * overlap_ms), longest_ms, rng)
        _start_early(floors, overlap_ms - sum(floor.inside_ms for floor in floors), rng, habits)
        if sum(floor.overlap_ms for floor in floors) == overlap_ms:
            break
    else:  # turns that overlap less than they should cover more time than there is: remove the last ones
        covered_ms = round((1 - silence) * length_ms)
        while len(floors) > 1 and sum(floor.turn.duration_ms - floor.early_ms for floor in floors) > covered_ms:
            floors.pop()
    return _place(floors, length_ms, rng, habits)


# ---------------------------------------------------------------------------------------------------------------------
# 1. Turns


def _draw_turns(
    cast: Cast, speech_ms: int, turn_change: float, length_scale: float, rng: Random, habits: TurnTaking
) -> list[Turn]:
    """Return turns that sum to no more than `speech_ms`; every speaker has one if there is room."""
    raw = [max(rng.gauss(1 / len(cast), habits.share_std), MIN_SHARE) for _ in cast]
    shares = {speaker: share / sum(raw) for speaker, share in zip(cast, raw, strict=True)}  # of the conversation
    streams = {speaker: _stream(utterances, rng) for speaker, utterances in cast.items()}
    shortest = {speaker: min(_pieces(cast[speaker]), key=lambda piece: piece.duration_ms) for speaker in cast}
    turns: list[Turn] = []
    waiting = set(cast)
    left_ms = speech_ms
    while True:
        speaker = _next_speaker(turns, shares, waiting, left_ms / speech_ms, turn_change, rng)
        reserved_ms = sum(shortest[other].duration_ms for other in waiting if other != speaker)
        limit_ms = left_ms - reserved_ms
        if habits.turn_ms:
            wanted_ms = max(1, round(length_scale * _draw_quantile(habits.turn_ms, rng)))
            wanted_ms = min(wanted_ms, int(MAX_TIMED_TURN_SHARE * speech_ms))
            turn = _draw_timed_turn(speaker, streams[speaker], wanted_ms, limit_ms, rng)
        else:
            n_words = 1 + length_scale * rng.gammavariate(*WORDS_PER_TURN)
            enough_ms = int(MAX_TURN_SHARE * speech_ms)
            turn = _draw_turn(speaker, streams[speaker], n_words, limit_ms, enough_ms, rng)
        if turn is None:
            break
        turns.append(turn)
        waiting.discard(speaker)
        left_ms -= turn.duration_ms
    for speaker in sorted(waiting, key=lambda name: (shortest[name].duration_ms, name)):
        if shortest[speaker].duration_ms <= left_ms:
            turns.append(Turn(speaker, (shortest[speaker],), (0,)))
            left_ms -= shortest[speaker].duration_ms
    if not turns:  # hardly any speech is wanted, but one speaker has to speak
        speaker = min(cast, key=lambda name: shortest[name].duration_ms)
        turns.append(Turn(speaker, (shortest[speaker],), (0,)))
    return turns


def _pieces(utterances: Iterable[Sequence[SpeechPiece]]) -> Iterator[SpeechPiece]:
    return itertools.chain.from_iterable(utterances)


def _draw_quantile(quantiles: Sequence[int], rng: Random) -> float:
    """Return a number from the distribution with these quantiles."""
    place = rng.random() * (len(quantiles) - 1)
    below = quantiles[int(place)]
    return below + (place - int(place)) * (quantiles[min(int(place) + 1, len(quantiles) - 1)] - below)


def _draw_timed_turn(
    speaker: str, stream: Iterator[SpeechPiece], wanted_ms: int, limit_ms: int, rng: Random
) -> Turn | None:
    """Return pieces of about `wanted_ms` in all, the last one cut to it; None if that is more than `limit_ms`."""
    wanted_ms = max(wanted_ms, MIN_TURN_MS)
    if wanted_ms > limit_ms:
        return None
    pieces: list[SpeechPiece] = []
    pauses_ms: list[int] = []
    left_ms = wanted_ms
    while left_ms >= MIN_TURN_MS:
        pause_ms = rng.randint(*PAUSE_IN_TURN_MS) if pieces else 0
        piece = next(stream)
        if left_ms - pause_ms < MIN_TURN_MS:
            break
        pieces.append(shorten_piece(piece, left_ms - pause_ms))
        pauses_ms.append(pause_ms)
        left_ms -= pause_ms + pieces[-1].duration_ms
    return Turn(speaker, tuple(pieces), tuple(pauses_ms))


def _stream(utterances: Sequence[Sequence[SpeechPiece]], rng: Random) -> Iterator[SpeechPiece]:
    """Yield the speaker's utterances in random order, over and over; the pieces of one stay together."""
    order = list(utterances)
    rng.shuffle(order)
    return itertools.cycle(_pieces(order))


def _next_speaker(
    turns: Sequence[Turn], shares: dict[str, float], waiting: set[str], left: float, turn_change: float, rng: Random
) -> str:
    last = turns[-1].speaker if turns else ""
    if last and rng.random() >= turn_change:
        return last
    candidates = [speaker for speaker in shares if speaker != last] or [last]
    # Newcomers get more weight as the session runs out, so that everybody speaks.
    weights = [shares[speaker] * (1 / max(left, 0.05) if speaker in waiting else 1.0) for speaker in candidates]
    return rng.choices(candidates, weights)[0]


def _draw_turn(
    speaker: str, stream: Iterator[SpeechPiece], n_words: float, limit_ms: int, enough_ms: int, rng: Random
) -> Turn | None:
    """Return pieces with enough words or milliseconds; None if the first piece does not fit into `limit_ms`."""
    pieces: list[SpeechPiece] = []
    pauses_ms: list[int] = []
    total_ms = 0
    while n_words > 0 and total_ms < enough_ms:
        piece = next(stream)
        pause_ms = rng.randint(*PAUSE_IN_TURN_MS) if pieces else 0
        total_ms += pause_ms + piece.duration_ms
        if total_ms > limit_ms:
            break
        pieces.append(piece)
        pauses_ms.append(pause_ms)
        n_words -= len(piece.words) or piece.duration_ms / 1000 / SECONDS_PER_WORD
    return Turn(speaker, tuple(pieces), tuple(pauses_ms)) if pieces else None


def _fill_up(turns: list[Turn], cast: Cast, speech_ms: int, limit_ms: int, rng: Random) -> list[Turn]:
    """Add single pieces, each the best fit to what is left, while that brings the sum closer to `speech_ms`."""
    pieces = sorted(_pieces(itertools.chain.from_iterable(cast.values())), key=lambda piece: piece.duration_ms)
    lengths_ms = [piece.duration_ms for piece in pieces]
    total_ms = sum(turn.duration_ms for turn in turns)
    while True:
        left_ms = speech_ms - total_ms
        place = bisect.bisect_left(lengths_ms, left_ms)
        best = min(pieces[max(place - 1, 0) : place + 1], key=lambda piece: abs(piece.duration_ms - left_ms))
        if abs(left_ms - best.duration_ms) >= abs(left_ms) or total_ms + best.duration_ms > limit_ms:
            return turns
        turns.insert(rng.randint(0, len(turns)), Turn(best.speaker, (best,), (0,)))
        total_ms += best.duration_ms


# ---------------------------------------------------------------------------------------------------------------------
# 2. and 3. Overlaps and gaps


@dataclass
class _Floor:
    """A turn that holds the floor, with the back-channels that others speak into it."""

    turn: Turn
    inside: list[Turn]
    early_ms: int = 0  # how long before the end of the floor turn before it starts

    @property
    def inside_ms(self) -> int:
        return sum(turn.duration_ms for turn in self.inside)

    @property
    def overlap_ms(self) -> int:
        return self.inside_ms + self.early_ms

    @property
    def room_ms(self) -> int:
        """How much of either end may be overlapped; both ends and the back-channels never meet."""
        return int(0.48 * (self.turn.duration_ms - self.inside_ms))


def _place(floors: Sequence[_Floor], length_ms: int, rng: Random, habits: TurnTaking) -> list[PlacedTurn]:
    """Put the turns on the time line, with gaps that fill the session."""
    speech_ms = sum(floor.turn.duration_ms - floor.early_ms for floor in floors)
    gaps_ms = _draw_gaps(floors, max(length_ms - speech_ms, 0), habits.gap_shape, rng)
    tails_ms = [*(floor.early_ms for floor in floors[1:]), 0]
    placed: list[PlacedTurn] = []
    end_ms = 0
    for floor, gap_ms, tail_ms in zip(floors, gaps_ms[:-1], tails_ms, strict=True):
        start_ms = end_ms + gap_ms - floor.early_ms
        end_ms = start_ms + floor.turn.duration_ms
        placed.append(PlacedTurn(floor.turn, start_ms))
        placed += _place_inside(floor, start_ms + floor.early_ms, end_ms - tail_ms, rng)
    return sorted(placed, key=lambda turn: turn.start_ms)


def _choose_backchannels(turns: Sequence[Turn], limit_ms: int, longest_ms: int, rng: Random) -> list[_Floor]:
    """Move some short turns into the turn that holds the floor, until they sum to the limit."""
    short_ms = sum(turn.duration_ms for turn in turns[1:] if turn.duration_ms <= longest_ms)
    share = limit_ms / short_ms if short_ms else 0.0  # so that they are spread over the session
    floors: list[_Floor] = []
    for turn in turns:
        floor = floors[-1] if floors else None
        if (
            floor is not None
            and turn.duration_ms <= min(longest_ms, limit_ms)
            and turn.speaker != floor.turn.speaker
            and floor.inside_ms + turn.duration_ms <= 2 * floor.turn.duration_ms // 3
            and rng.random() < 2 * share  # about every second one has no room
        ):
            floor.inside.append(turn)
            limit_ms -= turn.duration_ms
        else:
            floors.append(_Floor(turn, []))
    return floors


def _start_early(floors: Sequence[_Floor], total_ms: int, rng: Random, habits: TurnTaking) -> None:
    """Let turns start before the end of the one before them, by `total_ms` in all if that is possible."""
    changes = [
        (index, min(before.room_ms, after.room_ms))
        for index, (before, after) in enumerate(itertools.pairwise(floors), start=1)
        if before.turn.speaker != after.turn.speaker
    ]
    rng.shuffle(changes)
    chosen: list[int] = []
    limits_ms: list[int] = []
    for index, limit_ms in changes:
        if len(chosen) * habits.mean_overlap_ms >= total_ms and sum(limits_ms) >= 1.5 * total_ms:
            break
        chosen.append(index)
        limits_ms.append(limit_ms)
    lengths_ms = apportion(total_ms, [rng.gammavariate(habits.overlap_shape, 1) for _ in chosen], limits_ms)
    for index, early_ms in zip(chosen, lengths_ms, strict=True):
        floors[index].early_ms = early_ms


def _draw_gaps(floors: Sequence[_Floor], total_ms: int, gap_shape: float, rng: Random) -> list[int]:
    """Return the silence before each floor turn and after the last one; they sum to `total_ms`."""
    weights = [0.5 * rng.gammavariate(gap_shape, 1)]
    same_speaker = [False]
    for before, after in itertools.pairwise(floors):
        weights.append(0.0 if after.early_ms else rng.gammavariate(gap_shape, 1))
        same_speaker.append(before.turn.speaker == after.turn.speaker)
    weights.append(0.5 * rng.gammavariate(gap_shape, 1))
    same_speaker.append(False)
    least_ms = min(MIN_PAUSE_MS, total_ms // (2 * max(sum(same_speaker), 1)))
    floor_ms = [least_ms if same else 0 for same in same_speaker]
    rest_ms = apportion(total_ms - sum(floor_ms), weights, [total_ms] * len(weights))
    return [least + rest for least, rest in zip(floor_ms, rest_ms, strict=True)]


def _place_inside(floor: _Floor, first_ms: int, last_ms: int, rng: Random) -> list[PlacedTurn]:
    """Place back-channels at random of the floor turn's middle, in order, none over another."""
    free_ms = last_ms - first_ms - floor.inside_ms
    placed, shift_ms = [], 0
    for turn, cut_ms in zip(floor.inside, sorted(rng.randint(0, free_ms) for _ in floor.inside), strict=True):
        placed.append(PlacedTurn(turn, first_ms + cut_ms + shift_ms))
        shift_ms += turn.duration_ms
    return placed


def apportion(total: int, weights: Sequence[float], limits: Sequence[int]) -> list[int]:
    """Return integers in proportion to the weights, none above its limit, that sum to `total` (or to all limits).

    apportion(10, [1, 1, 2], [9, 1, 9]) == [3, 1, 6]
    """
    given = [0] * len(weights)
    open_items = [index for index, weight in enumerate(weights) if weight > 0 and limits[index] > 0]
    left = max(total, 0)
    while open_items and left > 0:
        scale = left / sum(weights[index] for index in open_items)
        full = [index for index in open_items if given[index] + weights[index] * scale >= limits[index]]
        if not full:
            # Down to integers, then up where most was cut off, so that they sum to `left`.
            parts = {index: weights[index] * scale for index in open_items}
            for index, part in parts.items():
                given[index] += int(part)
            most_cut = sorted(parts, key=lambda index: int(parts[index]) - parts[index])
            for index in most_cut[: left - sum(int(part) for part in parts.values())]:
                given[index] += 1
            break
        for index in full:
            left -= limits[index] - given[index]
            given[index] = limits[index]
        open_items = [index for index in open_items if index not in full]
    return given


# ---------------------------------------------------------------------------------------------------------------------
# How people take turns in a corpus: fitted to its RTTM, so that simulated conversations are like recorded ones.
#
# Going through the segments of a recording by their starts, with M the latest end so far and H who holds it:
#
#     start >= M, same speaker     a pause; `turn_change` is the share of the others
#     start >= M, other speaker    a gap
#     start < M, end > M           an early start, which takes the floor
#     start < M, end <= M          a back-channel inside the turn of H

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
