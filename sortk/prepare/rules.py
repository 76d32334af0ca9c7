"""The rules that drop a piece: each is a small function that gives the measured value if it drops the piece, else None.

Overlap is time with two or more active speakers. The paper's Appendix A excludes "samples with more than a 1-second
overlap at the beginning or end" and "where the first speaker only has one or two filler words at the beginning".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

from sortk.prepare.clean_options import CleanOptions
from sortk.prepare.recordings import Recording, TimedWord, Turns
from sortk.prepare.windows import ROUNDING_US
from sortk.spans import Profile, Span, Stretch, clip, length, merge, to_seconds, to_us


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A window or a sample, with all that the rules look at."""

    span: Span
    speakers: frozenset[str]
    """Who has a turn or a word in it."""
    stretches: Sequence[Stretch]
    """How many speak when, from its start to its end."""
    words: Sequence[TimedWord] = ()
    """Whose middle lies in it, in the order of their start."""
    n_cut_words: int = 0
    """Words that one of its ends cuts."""

    @property
    def speech_us(self) -> int:
        """Time in which at least one speaks."""
        return length((start, end) for start, end, n_speakers in self.stretches if n_speakers > 0)


Rule = Callable[[Excerpt], float | None]


def judge(excerpt: Excerpt, rules: Mapping[str, Rule]) -> tuple[str, float] | None:
    """The first rule that drops the piece, and the measured value; None if it is kept."""
    for name, rule in rules.items():
        value = rule(excerpt)
        if value is not None:
            return name, value
    return None


def cuts_words(excerpt: Excerpt) -> float | None:
    """An end of the piece lies inside a word: the session itself begins or ends there. Value: how many words."""
    return excerpt.n_cut_words or None


def is_too_short(excerpt: Excerpt, min_us: int) -> float | None:
    """What remains at the end of a recording, or before words that cannot be cut. Value: its seconds."""
    duration = excerpt.span[1] - excerpt.span[0]
    return to_seconds(duration) if duration < min_us else None


def has_no_cut(excerpt: Excerpt, max_us: int) -> float | None:
    """Words leave no place to cut before it gets too long. Value: its seconds."""
    duration = excerpt.span[1] - excerpt.span[0]
    return to_seconds(duration) if duration > max_us else None


def has_no_speech(excerpt: Excerpt) -> float | None:
    """Nobody has a turn in it. Value: 0."""
    return None if excerpt.speech_us else 0


def has_no_words(excerpt: Excerpt) -> float | None:
    """There is nothing to recognize. Value: 0."""
    return None if excerpt.words else 0


def has_too_many_speakers(excerpt: Excerpt, max_speakers: int) -> float | None:
    """More speakers than the model has outputs. Value: how many."""
    return len(excerpt.speakers) if len(excerpt.speakers) > max_speakers else None


def overlaps_at_start(excerpt: Excerpt, max_us: int, edge_us: int) -> float | None:
    """A long overlap begins with the first speech, or at most `edge_us` after it. Value: its seconds."""
    speech, overlaps = _find_speech_and_overlaps(excerpt)
    longest = max((end - start for start, end in overlaps if start <= speech[0][0] + edge_us), default=0)
    return to_seconds(longest) if longest > max_us else None


def overlaps_at_end(excerpt: Excerpt, max_us: int, edge_us: int) -> float | None:
    """A long overlap ends with the last speech, or at most `edge_us` before it. Value: its seconds."""
    speech, overlaps = _find_speech_and_overlaps(excerpt)
    longest = max((end - start for start, end in overlaps if end >= speech[-1][1] - edge_us), default=0)
    return to_seconds(longest) if longest > max_us else None


def _find_speech_and_overlaps(excerpt: Excerpt) -> tuple[list[Span], list[Span]]:
    speech = [(start, end) for start, end, n_speakers in excerpt.stretches if n_speakers >= 1]
    overlaps = merge((start, end) for start, end, n_speakers in excerpt.stretches if n_speakers >= 2)
    return speech, overlaps


def starts_with_fillers(excerpt: Excerpt, fillers: Collection[str], max_words: int) -> float | None:
    """What the first speaker says before anybody else does is one or two words, and all fillers. Value: how many."""
    opening = list(takewhile(lambda word: word.speaker == excerpt.words[0].speaker, excerpt.words))
    if 0 < len(opening) <= max_words and all(plain_word(word.text) in fillers for word in opening):
        return len(opening)
    return None


def plain_word(text: str) -> str:
    """Lower case, without punctuation at its ends: "Okay," -> "okay"."""
    return text.lower().strip("\"'`.,;:!?…-–—()[]<>{}*~«»“”‘’。，、；：？！")


def window_rules(options: CleanOptions) -> dict[str, Rule]:
    """What drops a diarization window, in this order."""
    return {
        "no_speech": has_no_speech,
        "max_speakers": partial(has_too_many_speakers, max_speakers=options.max_speakers),
    }


def sample_rules(options: CleanOptions, fillers: Collection[str]) -> dict[str, Rule]:
    """What drops an MS-ASR sample, in this order."""
    return {
        "cut_word": cuts_words,
        "too_short": partial(is_too_short, min_us=to_us(options.sample_min_seconds)),
        "no_cut": partial(has_no_cut, max_us=to_us(options.sample_max_seconds)),
        "no_words": has_no_words,
        "max_speakers": partial(has_too_many_speakers, max_speakers=options.max_speakers),
        **start_rules(options, fillers),
        **end_rules(options),
    }


def scored_rules() -> dict[str, Rule]:
    """What leaves a piece of a test set unscored: nothing but that it has no word. Appendix A is about training."""
    return {"no_words": has_no_words}


def start_rules(options: CleanOptions, fillers: Collection[str]) -> dict[str, Rule]:
    """What may be wrong with the beginning of a sample."""
    max_us, edge_us = to_us(options.max_edge_overlap_seconds), to_us(options.edge_seconds)
    return {
        "overlap_start": partial(overlaps_at_start, max_us=max_us, edge_us=edge_us),
        "filler_start": partial(starts_with_fillers, fillers=fillers, max_words=options.max_filler_words),
    }


def end_rules(options: CleanOptions) -> dict[str, Rule]:
    """What may be wrong with its end."""
    max_us, edge_us = to_us(options.max_edge_overlap_seconds), to_us(options.edge_seconds)
    return {"overlap_end": partial(overlaps_at_end, max_us=max_us, edge_us=edge_us)}


class RecordingView:
    """Looks at one recording through windows and samples."""

    def __init__(self, recording: Recording, turns: Turns, profile: Profile) -> None:
        self.profile = profile
        self._turns, self._words = turns, recording.words
        self._starts = [word.start for word in recording.words]
        self._longest = max((word.end - word.start for word in recording.words), default=0)

    def window(self, span: Span) -> Excerpt:
        """A piece for the diarizer: turns only."""
        speakers = frozenset(speaker for speaker, spans in self._turns.items() if clip(spans, *span))
        return Excerpt(span, speakers, self.profile.stretches(*span))

    def sample(self, span: Span) -> Excerpt:
        """A piece for MS-ASR: turns and words."""
        start, end = span
        first = bisect_left(self._starts, start - self._longest)
        near = [word for word in self._words[first : bisect_left(self._starts, end)] if word.end > start]
        words = [word for word in near if word.is_in(span)]
        n_cut = sum(_lies_across(word, start) or _lies_across(word, end) for word in near)
        window = self.window(span)
        speakers = window.speakers | {word.speaker for word in words}
        return Excerpt(span, speakers, window.stretches, words, n_cut)


def _lies_across(word: TimedWord, time: int) -> bool:
    return word.start < time - ROUNDING_US and word.end > time + ROUNDING_US
