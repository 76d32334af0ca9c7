"""Cuts a recording into pieces that tile it: windows for the diarizer, shorter samples for MS-ASR and its scores."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise

from sortk.prepare.recordings import TimedWord
from sortk.spans import Profile, Span

ROUNDING_US = 1  # times of words are rounded to microseconds, so neighbours may seem to overlap by one


def best_cut(allowed: Iterable[Span], profile: Profile, is_good: Callable[[int], bool] | None = None) -> int | None:
    """The best place to cut in allowed stretches of time; None if there are none.

    It is the middle of the longest stretch in which nobody speaks or, if somebody always does, as few as possible; of
    equally long ones the last. With `is_good`, it is the longest of these whose middle is good, if any is.
    """
    stretches = [stretch for start, end in allowed for stretch in profile.stretches(start, end)]
    if not stretches:
        return None
    fewest = min(stretch.n_speakers for stretch in stretches)
    quietest = [stretch for stretch in stretches if stretch.n_speakers == fewest]
    quietest.sort(key=lambda stretch: (stretch.start - stretch.end, -stretch.start))
    middles = [(stretch.start + stretch.end) // 2 for stretch in quietest]
    return next((middle for middle in middles if is_good is None or is_good(middle)), middles[0])


def cut_windows(
    span: Span, gaps: Sequence[Span], profile: Profile, min_us: int, max_us: int, search_us: int
) -> list[Span]:
    """Windows of at most `max_us`, each cut from the next at the best place in the last `search_us` of it.

    The place lies in a gap between words: if there is none so late, in the last gap that leaves the window `min_us`;
    if there is none at all, the cut goes through a word (see `count_word_cuts`). The window before the last is shorter
    if need be, so that `min_us` remain for the last. (The options see to it that `min_us` + `search_us` is less than
    `max_us`.)
    """
    start, end = span
    windows = []
    while end - start > max_us:
        limit = min(start + max_us, end - min_us)
        late = _gaps_between(gaps, limit - search_us, limit)
        allowed = late or _gaps_between(gaps, start + min_us, limit)[-1:] or [(limit - search_us, limit)]
        cut = best_cut(allowed, profile)
        assert cut is not None
        windows.append((start, cut))
        start = cut
    return [*windows, (start, end)]


def count_word_cuts(windows: Sequence[Span], gaps: Sequence[Span]) -> int:
    """How many windows are cut from the next inside a word."""
    return sum(not _gaps_between(gaps, end, end) for _, end in windows[:-1])


def find_gaps(words: Sequence[TimedWord], span: Span) -> list[Span]:
    """Stretches of a span in which nobody says a word, in order; words that touch leave a gap of length zero.

    `words` are in the order of their start.
    """
    at, end = span
    gaps = []
    for word in words:
        if word.start >= end:
            break
        if word.start >= at - ROUNDING_US:
            gaps.append((at, max(at, word.start)))
        at = max(at, word.end)
    return [*gaps, (at, end)] if at <= end else gaps


def cut_samples(
    span: Span,
    gaps: Sequence[Span],
    profile: Profile,
    min_us: int,
    max_us: int,
    is_good_cut: Callable[[int, int], bool] = lambda start, cut: True,
) -> list[Span]:
    """Samples of `min_us` to `max_us` that begin and end in a gap between words, and the pieces between them.

    A piece is outside these lengths where words leave no choice: before the first gap, after the last, and where no
    gap lies between `min_us` and `max_us` after the last cut. Of several silences to cut at, those are preferred that
    `is_good_cut` likes, given the start of the sample and the cut.
    """
    if not gaps:
        return [span]
    cuts = [span[0], gaps[0][0]]
    last = gaps[-1][1]
    while cuts[-1] < last:
        start = cuts[-1]
        cut = _next_cut(start, last, gaps, profile, min_us, max_us, partial(is_good_cut, start))
        cuts.append(cut)
    cuts.append(span[1])
    return [(start, end) for start, end in pairwise(cuts) if start < end]


def cut_scored(span: Span, gaps: Sequence[Span], profile: Profile, min_us: int, max_us: int) -> list[Span]:
    """Return pieces of `min_us` to `max_us` that tile the span, for scoring: nothing between them is left out.

    A cut is made at the best place in a gap between words; where words leave no gap, where the fewest speak (a word
    then belongs to the piece that its middle is in). The last piece, or a span that is shorter, may be below `min_us`.
    """
    start, end = span
    pieces = []
    while end - start > max_us:
        both_long = start + min_us, min(start + max_us, end - min_us)  # leaves enough for the next piece
        this_long = start + min_us, start + max_us
        allowed = _gaps_between(gaps, *both_long) or _gaps_between(gaps, *this_long)
        if not allowed:
            allowed = [both_long if both_long[0] <= both_long[1] else this_long]
        cut = best_cut(allowed, profile)
        assert cut is not None
        pieces.append((start, cut))
        start = cut
    return [*pieces, (start, end)]


def _next_cut(
    start: int,
    last: int,
    gaps: Sequence[Span],
    profile: Profile,
    min_us: int,
    max_us: int,
    is_good: Callable[[int], bool],
) -> int:
    if last - start <= max_us:
        return last
    # First choice: leave enough for the sample after this one, too.
    for latest in (min(start + max_us, last - min_us), start + max_us):
        cut = best_cut(_gaps_between(gaps, start + min_us, latest), profile, is_good)
        if cut is not None:
            return cut
    # The piece will be dropped, so let it be short: up to the last gap before, else to the first one after.
    before = _gaps_between(gaps, start + 1, start + min_us)
    return before[-1][1] if before else _gaps_between(gaps, start + max_us, last)[0][0]


def _gaps_between(gaps: Sequence[Span], start: int, end: int) -> list[Span]:
    """Gaps inside [start, end], cut to it; a gap may be a single moment."""
    if start > end:
        return []
    first = bisect_left(gaps, start, key=lambda gap: gap[1])
    last = bisect_right(gaps, end, key=lambda gap: gap[0])
    return [(max(gap[0], start), min(gap[1], end)) for gap in gaps[first:last]]
