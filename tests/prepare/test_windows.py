from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from sortk.prepare.recordings import TimedWord
from sortk.prepare.windows import best_cut, count_word_cuts, cut_samples, cut_windows, find_gaps
from sortk.spans import Profile, Span, merge, to_us

SECOND = 1_000_000
spans = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40)).map(lambda pair: (pair[0], sum(pair))), max_size=25)


def seconds(*pairs: tuple[float, float]) -> list[Span]:
    return [(to_us(start), to_us(end)) for start, end in pairs]


def words(*pairs: tuple[float, float]) -> list[TimedWord]:
    return [TimedWord(start, end, "A", "word") for start, end in sorted(seconds(*pairs))]


# ---------------------------------------------------------------------------------------------------------------------
# Windows


def test_the_longest_silence_is_cut_in_its_middle() -> None:
    profile = Profile(seconds((0, 81), (82, 85), (87, 89), (89.5, 200)))
    assert best_cut(seconds((80, 90)), profile) == to_us(86)
    assert best_cut(seconds((80, 84)), profile) == to_us(81.5)
    assert best_cut(seconds((86.5, 89.4)), profile) == to_us(86.75)  # only what lies in the search range counts
    assert best_cut([], profile) is None


def test_of_equal_silences_the_last_is_cut() -> None:
    assert best_cut(seconds((80, 90)), Profile(seconds((0, 81), (82, 85), (86, 200)))) == to_us(85.5)


def test_without_silence_the_cut_is_where_the_fewest_speak() -> None:
    profile = Profile(seconds((0, 200), (0, 83), (84, 200), (0, 200)))
    assert best_cut(seconds((80, 90)), profile) == to_us(83.5)


def test_a_good_cut_is_preferred_among_silences_only() -> None:
    profile = Profile(seconds((0, 81), (82, 85), (87, 200)))
    assert best_cut(seconds((80, 90)), profile, lambda time: time < to_us(82)) == to_us(81.5)
    assert best_cut(seconds((80, 90)), profile, lambda time: time == to_us(83.5)) == to_us(86)  # there somebody speaks


def windows_of(duration: float, profile: Profile, *said: tuple[float, float]) -> list[Span]:
    span = (0, to_us(duration))
    return cut_windows(span, find_gaps(words(*said), span), profile, 10 * SECOND, 90 * SECOND, 10 * SECOND)


def test_windows_by_hand() -> None:
    profile = Profile(seconds((0, 84), (86, 170), (172, 240)))
    windows = windows_of(240, profile)
    assert windows == seconds((0, 85), (85, 171), (171, 240))
    assert windows_of(90, profile) == seconds((0, 90))


def test_the_last_window_is_no_crumb() -> None:
    windows = windows_of(91, Profile([]))
    assert windows == seconds((0, 76), (76, 91))  # the middle of 71 to 81, not of 80 to 90


def test_windows_are_cut_between_words() -> None:
    speech = Profile(seconds((0, 84), (86, 100)))
    assert windows_of(100, speech) == seconds((0, 85), (85, 100))
    # A word over the silence: the only gap in the search stretch lies between two words that touch.
    assert windows_of(100, speech, (0, 83), (83, 91)) == seconds((0, 83), (83, 100))
    # No gap there: the last one before, where its silence is longest.
    assert windows_of(100, speech, (0, 40), (41, 50), (50, 91)) == seconds((0, 50), (50, 100))
    # The last window's minimum counts for gaps as well: 91 s leave no cut after 81 s.
    assert windows_of(91, Profile([]), (0, 60), (62, 82), (83, 91)) == seconds((0, 61), (61, 91))


def test_words_are_cut_only_where_there_is_no_gap_and_that_is_counted() -> None:
    said, span = [(0.0, 5.0), (6.0, 92.0), (93.0, 200.0)], (0, to_us(200))
    gaps = find_gaps(words(*said), span)
    windows = windows_of(200, Profile(seconds(*said)), *said)
    assert windows[0] == seconds((0, 85))[0]  # the gap at 5 s would leave a crumb
    assert windows[1] == seconds((85, 170))[0]  # and so would the one at 92 s
    assert count_word_cuts(windows, gaps) == 2


@given(turns=spans, said=spans, length=st.integers(1, 340), offset=st.integers(0, 50))
@settings(deadline=None)
def test_windows_tile_and_are_short_enough(turns: list[Span], said: list[Span], length: int, offset: int) -> None:
    whole = (offset, offset + length)
    gaps = find_gaps([TimedWord(*word, "A", "w") for word in sorted(said)], whole)
    windows = cut_windows(whole, gaps, Profile(turns), 10, 90, 10)
    crossed = [end for _, end in windows[:-1] if any(word[0] < end - 1 and end + 1 < word[1] for word in said)]
    assert len(crossed) <= count_word_cuts(windows, gaps)
    assert [window[0] for window in windows] + [windows[-1][1]] == [offset, *(window[1] for window in windows)]
    assert windows[-1][1] == offset + length
    assert all(end - start <= 90 for start, end in windows)
    assert len(windows) == 1 or all(end - start >= 10 for start, end in windows)


# ---------------------------------------------------------------------------------------------------------------------
# Samples


def test_gaps_by_hand() -> None:
    found = find_gaps(words((1, 2), (2, 3), (2.5, 4), (6, 7)), (0, to_us(8)))
    assert found == seconds((0, 1), (2, 2), (4, 6), (7, 8))  # words that touch leave a moment between them
    assert find_gaps(words((0, 2), (7, 9)), (to_us(1), to_us(8))) == seconds((2, 7))
    assert find_gaps([], (0, 5)) == [(0, 5)]
    assert find_gaps(words((0, 9)), (to_us(1), to_us(8))) == []


def test_times_that_are_rounded_leave_a_gap() -> None:
    assert find_gaps([TimedWord(0, 101, "A", "a"), TimedWord(100, 200, "A", "b")], (0, 300)) == [
        (0, 0),
        (101, 101),
        (200, 300),
    ]


def cut(span: tuple[float, float], *pairs: tuple[float, float]) -> list[Span]:
    said = words(*pairs)
    whole = (to_us(span[0]), to_us(span[1]))
    profile = Profile(merge((word.start, word.end) for word in said))
    return cut_samples(whole, find_gaps(said, whole), profile, 10 * SECOND, 20 * SECOND)


def test_samples_are_cut_in_the_longest_pause() -> None:
    assert cut((0, 36), (1, 12), (12.5, 17), (18, 25), (26, 35)) == seconds((0, 17.5), (17.5, 36))


def test_samples_are_cut_between_words_that_touch() -> None:
    assert cut((0, 30), (0, 8), (8, 16), (16, 24), (24, 30)) == seconds((0, 16), (16, 30))


def test_two_samples_share_what_would_leave_a_crumb() -> None:
    # the longest pause, at 18, would leave 7 s
    assert cut((0, 25), (0, 13), (13.2, 17), (19, 25)) == seconds((0, 13.1), (13.1, 25))


def test_a_word_that_cannot_be_cut_makes_one_piece() -> None:
    assert cut((0, 60), (0, 5), (6, 28), (28, 40), (40, 60)) == seconds((0, 6), (6, 28), (28, 40), (40, 60))


def test_a_session_that_begins_and_ends_inside_words() -> None:
    assert cut((5, 30), (4, 6), (10, 12), (29, 31)) == seconds((5, 6), (6, 17.5), (17.5, 29), (29, 30))
    assert cut((5, 8), (4, 9)) == seconds((5, 8))


@given(
    said=st.lists(
        st.tuples(st.integers(0, 1200), st.integers(1, 60)).map(lambda pair: (pair[0], sum(pair))), max_size=80
    ),
    length=st.integers(1, 1200),
)
@settings(deadline=None)
def test_samples_tile_and_cut_no_word(said: list[Span], length: int) -> None:
    timed = [TimedWord(10 * start, 10 * end, "A", "w") for start, end in sorted(said)]
    span = (0, 10 * length)
    gaps = find_gaps(timed, span)
    samples = cut_samples(span, gaps, Profile(merge((w.start, w.end) for w in timed)), 1000, 2000)
    assert samples[0][0] == 0 and samples[-1][1] == span[1]
    assert all(before[1] == after[0] for before, after in pairwise(samples))
    for start, end in samples:
        assert start == 0 or end == span[1] or 1000 <= end - start <= 2000 or _has_no_choice(gaps, start, end)
        for edge in {start, end} - set(span):
            assert not any(word.start < edge - 1 and edge + 1 < word.end for word in timed)


def _has_no_choice(gaps: list[Span], start: int, end: int) -> bool:
    """No gap touches the range in which the sample should have ended."""
    return not any(gap[0] <= start + 2000 and gap[1] >= start + 1000 for gap in gaps)
