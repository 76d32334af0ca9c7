"""Words with times from the tokens of a Parakeet, by the rules of NVIDIA's NeMo.

A token spans, in frames:

    TDT     from its frame t to t + duration
    RNNT    from t to t + 1
    CTC     from the frame of the token before to its own (the first: from one frame before)

A punctuation mark takes no time: in TDT it is at the end of the token before, in CTC at its own start. A word begins
with a piece that begins with the word mark, and goes from the start of its first token to the end of its last.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from sortk.formats.tokens import WORD_MARK, Tokenizer
from sortk.models.rnnt import TimedTokens

TIME = re.compile(r"<\|(\d{1,6})\|>", re.ASCII)  # a number of frames, as Canary writes it

TokenKind = Literal["tdt", "rnnt", "ctc"]


class FrameWord(NamedTuple):
    """A word with its times in frames, and how sure the model is of it, 0 to 1."""

    text: str
    start: int
    end: int
    confidence: float


def find_punctuation(pieces: Iterable[str]) -> frozenset[str]:
    """The punctuation marks that a vocabulary can write at the end of a word."""
    inner = (piece for piece in pieces if not piece.startswith(WORD_MARK))
    return frozenset(mark for piece in inner for mark in piece if unicodedata.category(mark).startswith("P"))


def find_spans(
    tokens: TimedTokens, texts: Sequence[str], kind: TokenKind, punctuation: frozenset[str]
) -> list[tuple[int, int]]:
    """The first frame of each token and the one after its last; `texts` are without word marks."""
    if kind == "tdt":
        spans = [(frame, frame + duration) for frame, duration in zip(tokens.frames, tokens.durations, strict=True)]
    elif kind == "rnnt":
        spans = [(frame, frame + 1) for frame in tokens.frames]
    else:
        before = [max(frame - 1, 0) for frame in tokens.frames[:1]] + tokens.frames[:-1]
        spans = list(zip(before, tokens.frames, strict=True))
    for place, text in enumerate(texts):
        if place and text in punctuation and kind != "rnnt":
            at = spans[place - 1][1] if kind == "tdt" else spans[place][0]
            spans[place] = (at, at)
    return spans


def find_words(tokens: TimedTokens, tokenizer: Tokenizer, kind: TokenKind, marks: frozenset[str]) -> list[FrameWord]:
    """The words of a clip; `marks` as `find_punctuation` gives them. A word's confidence is the mean of its tokens'.

    A word mark alone is a word without letters, as in NeMo.
    """
    pieces = [tokenizer.spell(token) for token in tokens.ids]
    texts = [piece.removeprefix(WORD_MARK) for piece in pieces]
    spans = find_spans(tokens, texts, kind, marks)
    words: list[list[int]] = []  # the places of their tokens
    for place, (piece, text) in enumerate(zip(pieces, texts, strict=True)):
        if not words or (piece.startswith(WORD_MARK) and text not in marks):
            words.append([place])
        else:
            words[-1].append(place)
    return [
        FrameWord(
            tokenizer.decode(tokens.ids[place] for place in word),
            spans[word[0]][0],
            spans[word[-1]][1],
            sum(tokens.probs[place] for place in word) / len(word),
        )
        for word in words
    ]


def find_canary_words(tokens: Sequence[int], probs: Sequence[float], tokenizer: Tokenizer) -> list[FrameWord]:
    """The words of a text that Canary writes with times, `<|3|> School<|20|><|21|> night?<|40|>`; times are frames.

    Times come in pairs; what is between the two of a pair is said in this time.
    """
    numbers = [TIME.fullmatch(tokenizer.spell(token)) for token in tokens]
    places = [place for place, number in enumerate(numbers) if number]
    words = []
    for first, last in zip(places[::2], places[1::2], strict=False):
        text = tokenizer.decode(tokens[first + 1 : last])
        start, end = numbers[first], numbers[last]
        if text and start and end:
            own = probs[first + 1 : last]
            words.append(FrameWord(text, int(start[1]), int(end[1]), sum(own) / len(own)))
    return words
