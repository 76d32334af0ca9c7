"""Each rule on a hand-made excerpt; times in seconds, written as (start, end)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from sortk.prepare.clean import CleanOptions, sample_rules, window_rules
from sortk.prepare.recordings import Recording, TimedWord
from sortk.prepare.windows import (
    Excerpt,
    RecordingView,
    cuts_words,
    find_violation,
    has_no_cut,
    has_no_speech,
    has_no_words,
    has_too_many_speakers,
    is_too_short,
    overlaps_at_end,
    overlaps_at_start,
    plain_word,
    starts_with_fillers,
)
from sortk.spans import to_us

SECOND = 1_000_000
Times = tuple[float, float]


def excerpt(
    span: Times = (0, 15), said: Sequence[tuple[str, float, float, str]] | None = None, **turns: Sequence[Times]
) -> Excerpt:
    """A sample of a recording with these turns and words; without words, each turn is one."""
    spans = {name: [(to_us(start), to_us(end)) for start, end in times] for name, times in turns.items()}
    if said is None:
        said = [(name, start, end, "word") for name, times in turns.items() for start, end in times]
    words = sorted(TimedWord(to_us(start), to_us(end), name, text) for name, start, end, text in said)
    whole = (0, 100 * SECOND)
    recording = Recording("rec", whole, whole, spans, [], words, Counter())
    view = RecordingView(recording, spans)
    return view.sample((to_us(span[0]), to_us(span[1])))


def test_an_excerpt_knows_speakers_words_and_speech() -> None:
    found = excerpt((0, 15), A=[(1, 4), (20, 22)], B=[(3, 6)], C=[(16, 17)])
    assert found.speakers == {"A", "B"} and found.speech_us == 5 * SECOND
    assert [(word.speaker, word.start) for word in found.words] == [("A", SECOND), ("B", 3 * SECOND)]


def test_cut_word() -> None:
    assert cuts_words(excerpt((0, 15), A=[(14, 16)])) == 1
    assert cuts_words(excerpt((10, 15), A=[(9, 11), (14, 16)])) == 2
    assert cuts_words(excerpt((10, 15), A=[(9, 10), (15, 16)])) is None
    assert cuts_words(excerpt((10, 15), A=[(9, 10.000001)])) is None  # rounding


def test_too_short() -> None:
    assert is_too_short(excerpt((0, 9.5)), 10 * SECOND) == 9.5
    assert is_too_short(excerpt((0, 10)), 10 * SECOND) is None


def test_no_cut() -> None:
    assert has_no_cut(excerpt((0, 20.25)), 20 * SECOND) == 20.25
    assert has_no_cut(excerpt((0, 20)), 20 * SECOND) is None


def test_no_speech_and_no_words() -> None:
    assert has_no_speech(excerpt()) == 0 and has_no_words(excerpt()) == 0
    spoken = excerpt(A=[(1, 2)])
    assert has_no_speech(spoken) is None and has_no_words(spoken) is None
    untranscribed = excerpt(said=[], A=[(1, 2)])
    assert has_no_speech(untranscribed) is None and has_no_words(untranscribed) == 0


def test_max_speakers() -> None:
    five = excerpt(A=[(0, 1)], B=[(1, 2)], C=[(2, 3)], D=[(3, 4)], E=[(14.9, 18)])
    assert has_too_many_speakers(five, 4) == 5
    assert has_too_many_speakers(five, 5) is None
    assert has_too_many_speakers(excerpt(said=[("X", 1, 2, "hi")], A=[(0, 1)]), 1) == 2  # words count as well


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ({"A": [(1, 5)], "B": [(1, 2.5)]}, 1.5),  # begins with the first speech
        ({"A": [(1, 5)], "B": [(1.25, 2.5)]}, 1.25),  # soon after it
        ({"A": [(1, 5)], "B": [(1.5, 3)]}, 1.5),
        ({"A": [(1, 5)], "B": [(1.75, 4)]}, None),  # later
        ({"A": [(1, 5)], "B": [(1, 2)]}, None),  # exactly one second is allowed
        ({"A": [(1, 5)], "B": [(1, 1.75)], "C": [(1.5, 2.25)]}, 1.25),  # two, then three, then two speak
        ({"A": [(1, 5)], "B": [(1, 1.5), (1.75, 2.5)]}, None),  # two overlaps, each too short
        ({"A": [(1, 2)], "B": [(3, 5)], "C": [(3, 5)]}, None),  # not the first speech
        ({"A": [(-3, 5)], "B": [(-1, 1.25)]}, 1.25),  # only what lies inside counts
        ({"A": [(1, 5)]}, None),
        ({}, None),
    ],
)
def test_overlap_at_start(turns: dict[str, list[Times]], expected: float | None) -> None:
    shifted = {name: [(start + 10, end + 10) for start, end in times] for name, times in turns.items()}
    assert overlaps_at_start(excerpt((10, 25), None, **shifted), SECOND, SECOND // 2) == expected
    # and the mirror image at the end
    mirrored = {name: [(40 - end, 40 - start) for start, end in times] for name, times in turns.items()}
    assert overlaps_at_end(excerpt((25, 40), None, **mirrored), SECOND, SECOND // 2) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("A:um B:hello A:fine", 1),
        ("A:Uh, A:yeah B:hello A:fine", 2),
        ("A:uh A:yeah A:okay B:hello", None),  # three
        ("A:uh A:seven B:hello", None),  # not only fillers
        ("A:seven B:hello", None),
        ("A:mm", 1),  # nobody else at all
        ("A:um B:um A:hello", 1),
        ("B:hello A:um", None),
        ("", None),
    ],
)
def test_filler_start(words: str, expected: float | None) -> None:
    parts = [part.split(":") for part in words.split()]
    said = [(name, n, n + 0.5, text) for n, (name, text) in enumerate(parts)]
    fillers = CleanOptions().fillers["en"]
    assert starts_with_fillers(excerpt(said=said), fillers, 2) == expected


def test_fillers_are_those_of_the_transcripts() -> None:
    assert "um" in CleanOptions().find_fillers("en_US") and "um" not in CleanOptions().find_fillers("de_DE")
    assert "ähm" in CleanOptions().find_fillers("de_DE")
    assert "ähm" in CleanOptions(filler_lang="de").find_fillers("en_US")  # unless another list is asked for
    none = CleanOptions().find_fillers("it_IT")
    assert not none and starts_with_fillers(excerpt(said=[("A", 0, 1, "um")]), none, 2) is None


def test_plain_words() -> None:
    assert [plain_word(text) for text in ("Okay,", "uh-huh.", "[Mm]", "don't", "“So”", "...")] == [
        "okay",
        "uh-huh",
        "mm",
        "don't",
        "so",
        "",
    ]


def test_the_first_rule_that_drops_is_named() -> None:
    options = CleanOptions(max_speakers=1)
    assert find_violation(excerpt((0, 5)), sample_rules(options, ())) == ("too_short", 5.0)
    assert find_violation(excerpt((0, 15)), sample_rules(options, ())) == ("no_words", 0.0)
    two = excerpt((0, 15), A=[(0, 5)], B=[(0, 5)])
    assert find_violation(two, sample_rules(options, ())) == ("max_speakers", 2.0)
    assert find_violation(two, window_rules(options)) == ("max_speakers", 2.0)
    assert find_violation(two, sample_rules(CleanOptions(), ())) == ("overlap_start", 5.0)
    assert find_violation(two, sample_rules(CleanOptions(max_edge_overlap_seconds=5), ())) is None
    assert find_violation(excerpt((0, 15)), window_rules(options)) == ("no_speech", 0.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sad": "webrtc"}, "sad must be one of silero, none, got 'webrtc'"),
        ({"sad_threshold": 1.0}, "sad_threshold must be more than 0 and less than 1, got 1.0"),
        ({"outward_seconds": -0.1}, "outward_seconds must be 0 or more, got -0.1"),
        ({"max_speakers": 0}, "max_speakers must be 1 or more, got 0"),
        ({"window_max_seconds": 15.0}, "window_max_seconds"),
        ({"sample_min_seconds": 30.0}, "sample_min_seconds must be at most sample_max_seconds"),
        ({"max_filler_words": -1}, "max_filler_words"),
        ({"filler_lang": "xx"}, "no fillers for language 'xx', only for de, en"),
    ],
)
def test_options_say_what_is_wrong(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CleanOptions(**settings)
