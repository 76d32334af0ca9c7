"""Cut a recording into windows for the diarizer and samples for MS-ASR, and decide which of these pieces to drop.

Cuts are made between words, where as few people as possible speak; the pieces tile the recording. A rule is a function
that returns the measured value if it drops the piece, else None. Overlap is time with two or more active speakers. The
paper's Appendix A excludes "samples with more than a 1-second overlap at the beginning or end" and "where the first
speaker only has one or two filler words at the beginning".
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, takewhile

from sortk.prepare.recordings import Recording, TimedWord, Turns
from sortk.spans import Profile, Span, Stretch, clip, length, merge, to_seconds

ROUNDING_US = 1  # times of words are rounded to microseconds, so neighbours may seem to overlap by one

# ---------------------------------------------------------------------------------------------------------------------
# Cutting


def find_gaps(words: Sequence[TimedWord], span: Span) -> list[Span]:
    """Return the gaps between words in a span, in order; words that touch leave a gap of length zero.

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


def cut_windows(
    span: Span, gaps: Sequence[Span], profile: Profile, min_us: int, max_us: int, search_us: int
) -> list[Span]:
    """Return windows of at most `max_us`, each cut from the next at the best place in its last `search_us`.

    A cut is made in a gap between words: if there is none so late, in the last gap that leaves the window `min_us`; if
    there is none at all, inside a word (see `count_word_cuts`). The window before the last is shorter if need be, so
    that `min_us` remain for the last. `min_us` + `search_us` must be less than `max_us`.
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


def cut_samples(
    span: Span,
    gaps: Sequence[Span],
    profile: Profile,
    min_us: int,
    max_us: int,
    is_good_cut: Callable[[int, int], bool] = lambda start, cut: True,
) -> list[Span]:
    """Return samples of `min_us` to `max_us` that begin and end in a gap between words, and the pieces between them.

    A piece has another length where words leave no choice: before the first gap, after the last, and where there is no
    gap between `min_us` and `max_us` after the last cut. Cuts for which `is_good_cut`, called with the start of the
    sample and the cut, returns True are preferred.
    """
    if not gaps:
        return [span]
    cuts = [span[0], gaps[0][0]]
    last = gaps[-1][1]
    while cuts[-1] < last:
        start = cuts[-1]
        cut: int | None = last
        if last - start > max_us:
            # First choice: leave enough for the sample after this one, too.
            for latest in (min(start + max_us, last - min_us), start + max_us):
                allowed = _gaps_between(gaps, start + min_us, latest)
                cut = best_cut(allowed, profile, partial(is_good_cut, start))
                if cut is not None:
                    break
        if cut is None:
            # The piece will be dropped, so make it short: up to the last gap before, else to the first one after.
            before = _gaps_between(gaps, start + 1, start + min_us)
            cut = before[-1][1] if before else _gaps_between(gaps, start + max_us, last)[0][0]
        cuts.append(cut)
    cuts.append(span[1])
    return [(start, end) for start, end in pairwise(cuts) if start < end]


def cut_scored(span: Span, gaps: Sequence[Span], profile: Profile, min_us: int, max_us: int) -> list[Span]:
    """Return pieces of `min_us` to `max_us` that tile the span, for scoring: nothing between them is left out.

    A cut is made at the best place in a gap between words or, without a gap, where the fewest speak (a word then
    belongs to the piece that contains its middle). The last piece, or a shorter span, may be below `min_us`.
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


def best_cut(allowed: Iterable[Span], profile: Profile, is_good: Callable[[int], bool] | None = None) -> int | None:
    """Return the best place to cut in the allowed spans; None if there are none.

    It is the middle of the longest stretch with the fewest speakers (none, if possible); of equally long ones the last.
    With `is_good`, it is the longest of these whose middle is good, if any is.
    """
    stretches = [stretch for start, end in allowed for stretch in profile.stretches(start, end)]
    if not stretches:
        return None
    fewest = min(stretch.n_speakers for stretch in stretches)
    quietest = [stretch for stretch in stretches if stretch.n_speakers == fewest]
    quietest.sort(key=lambda stretch: (stretch.start - stretch.end, -stretch.start))
    middles = [(stretch.start + stretch.end) // 2 for stretch in quietest]
    return next((middle for middle in middles if is_good is None or is_good(middle)), middles[0])


def count_word_cuts(windows: Sequence[Span], gaps: Sequence[Span]) -> int:
    """Return how many windows are cut from the next inside a word."""
    return sum(not _gaps_between(gaps, end, end) for _, end in windows[:-1])


def _gaps_between(gaps: Sequence[Span], start: int, end: int) -> list[Span]:
    """Return the parts of gaps inside [start, end]; a gap may be a single moment."""
    if start > end:
        return []
    first = bisect_left(gaps, start, key=lambda gap: gap[1])
    last = bisect_right(gaps, end, key=lambda gap: gap[0])
    return [(max(gap[0], start), min(gap[1], end)) for gap in gaps[first:last]]


# ---------------------------------------------------------------------------------------------------------------------
# Pieces, and the rules that drop them


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A window or a sample, with everything that the rules use."""

    span: Span
    speakers: frozenset[str]  # who has a turn or a word in it
    stretches: Sequence[Stretch]  # the number of speakers from its start to its end
    words: Sequence[TimedWord] = ()  # whose middle is in it, in the order of their start
    n_cut_words: int = 0  # words that one of its ends cuts

    @property
    def speech_us(self) -> int:
        """Time with at least one speaker."""
        return length((start, end) for start, end, n_speakers in self.stretches if n_speakers > 0)


class RecordingView:
    """The turns and words of one recording, seen through windows and samples."""

    def __init__(self, recording: Recording, turns: Turns) -> None:
        self.profile = Profile(span for spans in turns.values() for span in spans)
        self._turns, self._words = turns, recording.words
        self._starts = [word.start for word in recording.words]
        self._longest = max((word.end - word.start for word in recording.words), default=0)

    def window(self, span: Span) -> Excerpt:
        """Return a piece for the diarizer: turns only."""
        speakers = frozenset(speaker for speaker, spans in self._turns.items() if clip(spans, *span))
        return Excerpt(span, speakers, self.profile.stretches(*span))

    def sample(self, span: Span) -> Excerpt:
        """Return a piece for MS-ASR: turns and words."""
        start, end = span
        first = bisect_left(self._starts, start - self._longest)
        near = [word for word in self._words[first : bisect_left(self._starts, end)] if word.end > start]
        words = [word for word in near if word.is_in(span)]
        n_cut = sum(
            any(word.start < edge - ROUNDING_US and word.end > edge + ROUNDING_US for edge in span) for word in near
        )
        window = self.window(span)
        speakers = window.speakers | {word.speaker for word in words}
        return Excerpt(span, speakers, window.stretches, words, n_cut)


DropRule = Callable[[Excerpt], float | None]


def find_violation(excerpt: Excerpt, rules: Mapping[str, DropRule]) -> tuple[str, float] | None:
    """Return the first rule that drops the piece, and the measured value; None if it is kept."""
    for name, rule in rules.items():
        value = rule(excerpt)
        if value is not None:
            return name, value
    return None


def cuts_words(excerpt: Excerpt) -> float | None:
    """Drop a piece with an end inside a word: the session itself begins or ends there. Value: how many words."""
    return excerpt.n_cut_words or None


def is_too_short(excerpt: Excerpt, min_us: int) -> float | None:
    """Drop what remains at the end of a recording, or before words that cannot be cut. Value: its seconds."""
    duration = excerpt.span[1] - excerpt.span[0]
    return to_seconds(duration) if duration < min_us else None


def has_no_cut(excerpt: Excerpt, max_us: int) -> float | None:
    """Drop a piece that is too long because there is no gap between words. Value: its seconds."""
    duration = excerpt.span[1] - excerpt.span[0]
    return to_seconds(duration) if duration > max_us else None


def has_no_speech(excerpt: Excerpt) -> float | None:
    """Drop a piece without a turn. Value: 0."""
    return None if excerpt.speech_us else 0


def has_no_words(excerpt: Excerpt) -> float | None:
    """Drop a piece with nothing to recognize. Value: 0."""
    return None if excerpt.words else 0


def has_too_many_speakers(excerpt: Excerpt, max_speakers: int) -> float | None:
    """Drop a piece with more speakers than the model has outputs. Value: how many."""
    return len(excerpt.speakers) if len(excerpt.speakers) > max_speakers else None


def overlaps_at_start(excerpt: Excerpt, max_us: int, edge_us: int) -> float | None:
    """Drop a piece if a long overlap begins at most `edge_us` after its first speech. Value: its seconds."""
    speech, overlaps = _find_speech_and_overlaps(excerpt)
    longest = max((end - start for start, end in overlaps if start <= speech[0][0] + edge_us), default=0)
    return to_seconds(longest) if longest > max_us else None


def overlaps_at_end(excerpt: Excerpt, max_us: int, edge_us: int) -> float | None:
    """Drop a piece if a long overlap ends at most `edge_us` before its last speech ends. Value: its seconds."""
    speech, overlaps = _find_speech_and_overlaps(excerpt)
    longest = max((end - start for start, end in overlaps if end >= speech[-1][1] - edge_us), default=0)
    return to_seconds(longest) if longest > max_us else None


def _find_speech_and_overlaps(excerpt: Excerpt) -> tuple[list[Span], list[Span]]:
    speech = [(start, end) for start, end, n_speakers in excerpt.stretches if n_speakers >= 1]
    overlaps = merge((start, end) for start, end, n_speakers in excerpt.stretches if n_speakers >= 2)
    return speech, overlaps


def starts_with_fillers(excerpt: Excerpt, fillers: Collection[str], max_words: int) -> float | None:
    """Drop a piece whose first speaker says nothing but one or two fillers before the next one. Value: how many."""
    opening = list(takewhile(lambda word: word.speaker == excerpt.words[0].speaker, excerpt.words))
    if 0 < len(opening) <= max_words and all(plain_word(word.text) in fillers for word in opening):
        return len(opening)
    return None


def plain_word(text: str) -> str:
    """Return the word in lower case, without punctuation at its ends: "Okay," -> "okay"."""
    return text.lower().strip("\"'`.,;:!?…-–—()[]<>{}*~«»“”‘’。，、；：？！")
