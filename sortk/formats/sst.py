"""Sorted serialized transcripts (SST, section 4.3 of the paper): words with times -> one text, and back.

Speakers are numbered by arrival: <spk0> says the first word. A turn is a token and the words that belong to it. Five
levels, for a session in which one speaker says "well i think", pauses and goes on with "so", while another says "yes"
during "i":

    word     <spk0> well <spk0> i <spk1> yes <spk0> think <spk0> so   a token before each word; words by their starts
    segment  <spk0> well i think <spk1> yes <spk0> so                 a token before each segment; segments by starts
    change   <spk0> well i <spk1> yes <spk0> think so                 `word` with tokens only where the speaker changes
    sot      well i think <cs> yes <cs> so                            segments, speakers not named (Kanda et al., 2020)
    dom-sot  well i think so <cs> yes                                 speaker by speaker, who speaks longest first

`word` and `segment` are the paper's. At level `segment` a token also stands where the same speaker goes on.

Words and segments that start together are ordered by the arrival of their speaker, then as given; `arrival_order` in
records.py says who of two speakers arrives first.

`parse_sst` is strict and the inverse of `serialize`: parse_sst(serialize(turns, level), level) == turns for all turns
that `order_turns` returns, and serialize(parse_sst(text, level), level) == text for every text it accepts (white space
aside). `parse_any` is lenient: it takes whatever a decoder may write.
"""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Literal, NamedTuple, get_args

from sortk.formats.files import quote
from sortk.options import Options, option
from sortk.records import Segment, arrival_order

Level = Literal["word", "segment", "change", "sot", "dom-sot"]
LEVELS: tuple[Level, ...] = get_args(Level)

SPEAKER_CHANGE = "<cs>"
TOKEN = re.compile(r"<\|?(spk[^<>|\s]*|cs)\|?>", re.IGNORECASE)
"""Everything that stands for a speaker token or <cs>, in whatever spelling; the group is its name."""
_NUMBERED = re.compile(r"spk0*(0|[1-9]\d{0,8})", re.ASCII | re.IGNORECASE)


class SstTurn(NamedTuple):
    """What belongs to one token: the number of the speaker (level `sot`: of the turn), and at least one word."""

    speaker: int
    words: tuple[str, ...]


@dataclass(frozen=True)
class SstGrammar:
    """Where tokens stand."""

    named: bool  # <spk0>, <spk1>, ... before every turn; else <cs> between turns
    one_word: bool  # every turn is one word
    same_again: bool  # a turn may follow another one of the same speaker


GRAMMARS: Mapping[Level, SstGrammar] = {
    "word": SstGrammar(named=True, one_word=True, same_again=True),
    "segment": SstGrammar(named=True, one_word=False, same_again=True),
    "change": SstGrammar(named=True, one_word=False, same_again=False),
    "sot": SstGrammar(named=False, one_word=False, same_again=False),
    "dom-sot": SstGrammar(named=False, one_word=False, same_again=False),
}


@dataclass(frozen=True)
class SstOptions(Options):
    """Settings of sorted serialized transcripts."""

    level: Level = "word"  # word, segment, change, sot or dom-sot
    segment_gap: float = option(0.5, at_least=0)  # seconds; words of a speaker without a longer pause are one segment
    # Segments are those of the transcript, where it has entries of several words; "joined": always by segment_gap.
    segments: Literal["annotated", "joined"] = "annotated"


# ---------------------------------------------------------------------------------------------------------------------
# Words -> text


def build_sst(
    words: Sequence[Segment], options: SstOptions | None = None, segments: Sequence[Segment] | None = None
) -> str:
    """Return the SST of one session; empty if nothing is said. See `order_turns`."""
    options = options or SstOptions()
    return serialize(order_turns(words, options, segments), options.level)


def order_turns(
    words: Sequence[Segment], options: SstOptions, segments: Sequence[Segment] | None = None
) -> list[SstTurn]:
    """Return the turns in the order of the SST.

    `words` are entries of one word each. From entries of several words, levels other than `word` and `change` can be
    built as well: such entries are segments as they stand. `segments` are the annotated segments that the words were
    taken from, if they are known; else segments are joined by `segment_gap`.
    """
    spoken = [segment for segment in words if segment.text and not segment.text.isspace()]
    for word in spoken:
        if "<" in word.text and (found := TOKEN.search(word.text)):
            where = f"session {word.session_id}, {word.speaker} at {word.start:.3f} s"
            raise ValueError(f"{where}: the transcript holds {quote(found[0])}, which is a token of SST")
    if len({word.session_id for word in spoken}) > 1:
        raise ValueError(f"an SST is of one session, not of {spoken[0].session_id} and others")
    arrival, level = arrival_order(spoken), options.level
    if level == "dom-sot":
        return _order_by_dominance(spoken, arrival)
    if level in ("word", "change"):
        for word in spoken:
            if len(word.text.split()) > 1:
                where = f"session {word.session_id}, {word.speaker} at {word.start:.3f} s"
                raise ValueError(f"{where}: {quote(word.text)} is more than one word; use `sortk timestamps` first")
        entries: Sequence[Segment] = spoken
    elif segments and options.segments == "annotated":
        entries = join_by_segment(spoken, segments)
    else:
        entries = join_words(spoken, options.segment_gap)
    # The sort is stable, so that words of one speaker that start together stay as given.
    in_order = sorted(entries, key=lambda entry: (entry.start, arrival[entry.speaker]))
    turns = [SstTurn(arrival[entry.speaker], tuple(entry.text.split())) for entry in in_order]
    if not GRAMMARS[level].same_again:
        turns = _merge_turns(turns)
    return [SstTurn(number, turn.words) for number, turn in enumerate(turns)] if level == "sot" else turns


def serialize(turns: Sequence[SstTurn], level: Level) -> str:
    """Return the text: words, and tokens where the grammar of the level has them."""
    parts = [" ".join(turn.words) for turn in turns]
    if not GRAMMARS[level].named:
        return f" {SPEAKER_CHANGE} ".join(parts)
    return " ".join(f"<spk{turn.speaker}> {part}" for turn, part in zip(turns, parts, strict=True))


def _order_by_dominance(words: Sequence[Segment], arrival: Mapping[str, int]) -> list[SstTurn]:
    by_speaker = _group_speakers(words)
    seconds = dict.fromkeys(by_speaker, 0.0)  # of speech, own overlap once
    for speaker, own in by_speaker.items():
        end = 0.0
        for word in own:
            seconds[speaker] += max(0.0, word.end - max(word.start, end))
            end = max(end, word.end)
    # To the microsecond, so that ties are ties.
    dominance = sorted(by_speaker, key=lambda speaker: (-round(seconds[speaker], 6), arrival[speaker]))
    return [
        SstTurn(number, tuple(word for segment in by_speaker[speaker] for word in segment.text.split()))
        for number, speaker in enumerate(dominance)
    ]


def _merge_turns(turns: Iterable[SstTurn]) -> list[SstTurn]:
    """Return turns of which no two of one speaker follow each other."""
    merged: list[SstTurn] = []
    for turn in turns:
        if merged and merged[-1].speaker == turn.speaker:
            merged[-1] = SstTurn(turn.speaker, merged[-1].words + turn.words)
        else:
            merged.append(turn)
    return merged


# ---------------------------------------------------------------------------------------------------------------------
# Words -> segments


def join_words(words: Sequence[Segment], segment_gap: float) -> list[Segment]:
    """Return segments of single words: a speaker's words with pauses of at most `segment_gap` seconds between them.

    If any entry holds more than one word, the entries are segments already and stay as they are.
    """
    if any(len(word.text.split()) > 1 for word in words):
        return list(words)
    segments: list[Segment] = []
    for own in _group_speakers(words).values():
        groups: list[list[Segment]] = []
        end = -math.inf
        for word in own:
            if groups and word.start - end <= segment_gap:
                groups[-1].append(word)
            else:
                groups.append([word])
            end = max(end, word.end)
        segments += map(_join, groups)
    return segments


def join_by_segment(words: Sequence[Segment], segments: Sequence[Segment]) -> list[Segment]:
    """Return the words joined as the annotated segments have them; a word belongs to the speaker's last segment that
    has begun by the middle of the word. A word before all of them is a segment of its own."""
    starts = {speaker: [segment.start for segment in own] for speaker, own in _group_speakers(segments).items()}
    groups: dict[tuple[str, float], list[Segment]] = {}
    for word in sorted(words, key=attrgetter("start")):
        own = starts.get(word.speaker, [])
        place = bisect.bisect_right(own, (word.start + word.end) / 2)
        groups.setdefault((word.speaker, own[place - 1] if place else word.start), []).append(word)
    return [_join(group) for group in groups.values()]


def _join(words: Sequence[Segment]) -> Segment:
    text = " ".join(word.text.strip() for word in words)
    return replace(words[0], end=max(word.end for word in words), text=text)


def _group_speakers(words: Iterable[Segment]) -> dict[str, list[Segment]]:
    """Return the words of each speaker in the order of their starts."""
    by_speaker: dict[str, list[Segment]] = {}
    for word in sorted(words, key=attrgetter("start")):
        by_speaker.setdefault(word.speaker, []).append(word)
    return by_speaker


# ---------------------------------------------------------------------------------------------------------------------
# Text -> words, strict


def parse_sst(text: str, level: Level) -> list[SstTurn]:
    """Return the turns of an SST; ValueError, with the place, for a text that is not an SST of that level.

    At named levels the number of a turn is the speaker's place by arrival, at `dom-sot` by dominance; at `sot` it is
    the number of the turn.
    """
    grammar = GRAMMARS[level]
    turns: list[SstTurn] = [] if grammar.named else [SstTurn(0, ())]
    n_speakers = 0
    tokens = text.split()
    for place, token in enumerate(tokens, start=1):
        if not TOKEN.search(token):
            if not turns:
                raise _sst_error(place, token, "is a word before any speaker token")
            speaker, words = turns[-1]
            if grammar.one_word and words:
                raise _sst_error(place, token, f"has no token before it; at level {level} each word has one")
            turns[-1] = SstTurn(speaker, (*words, token))
            continue
        if grammar.named:
            speaker = _parse_speaker(place, token, n_speakers)
            if turns and not grammar.same_again and speaker == turns[-1].speaker:
                fault = f"is speaking already; at level {level} a token stands only where the speaker changes"
                raise _sst_error(place, token, fault)
            n_speakers = max(n_speakers, speaker + 1)
        elif token != SPEAKER_CHANGE:
            raise _sst_error(place, token, f"is not a token of level {level}, which has only {SPEAKER_CHANGE}")
        elif place == 1:
            raise _sst_error(place, token, "has no word before it")
        else:
            speaker = len(turns)
        if place == len(tokens) or TOKEN.search(tokens[place]):
            raise _sst_error(place, token, "has no word after it")
        turns.append(SstTurn(speaker, ()))
    if not tokens:
        raise ValueError("SST is empty")
    return turns


def _parse_speaker(place: int, token: str, n_speakers: int) -> int:
    match = re.fullmatch(r"<spk(0|[1-9]\d{0,8})>", token, re.ASCII)
    if match is None:
        raise _sst_error(place, token, "is not a speaker token; they are <spk0>, <spk1> and so on")
    if int(match[1]) > n_speakers:
        raise _sst_error(place, token, f"comes before <spk{n_speakers}>, but speakers are numbered by arrival")
    return int(match[1])


def _sst_error(place: int, token: str, fault: str) -> ValueError:
    return ValueError(f"not an SST: token {place}, {quote(token)}, {fault}")


# ---------------------------------------------------------------------------------------------------------------------
# Text -> words, lenient


class WrittenTurn(NamedTuple):
    """What was written after one token."""

    speaker: str  # spk0, spk1, ...; turn1, turn2, ... after <cs>; or another name
    text: str  # words with single blanks between them


def parse_any(text: str) -> list[WrittenTurn]:
    """Return the turns of any text; every word of it is in one turn, and it never fails.

    <spk0> ...             the words up to the next token belong to that speaker. The token may be in capitals, have
                           leading zeros, be repeated, stick to a word, come in any order, or be written <|spk0|>
    <spk0> <spk1> ...      a token without words is a turn in which nothing is said: it is left out
    <spkx>, <spk>          a speaker of that name
    <cs>                   a new speaker without a name from here on (SOT)
    words before a token   belong to spk0, who speaks first. Without any token, all words belong to one speaker
    <unk>, any other       is a word
    """
    # Splitting at a pattern with one group gives words, token, words, token, ..., words.
    first, *rest = TOKEN.split(text)
    turns = [WrittenTurn("spk0", first)]
    for place, (name, words) in enumerate(zip(rest[::2], rest[1::2], strict=True), start=1):
        number = speaker_number(name)
        speaker = f"turn{place}" if name.lower() == "cs" else name.lower() if number is None else f"spk{number}"
        turns.append(WrittenTurn(speaker, words))
    return [WrittenTurn(speaker, " ".join(words.split())) for speaker, words in turns if words.strip()]


def speaker_number(name: str) -> int | None:
    """Return 3 for spk3, in any spelling that `parse_any` takes; None for other names."""
    match = _NUMBERED.fullmatch(name)
    return int(match[1]) if match else None


def strip_tokens(text: str) -> str:
    """Return the words alone."""
    return " ".join(TOKEN.sub(" ", text).split())
