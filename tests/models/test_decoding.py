from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sortk.formats.sst import GRAMMARS, Level
from sortk.models.decoding import MAX_PERIOD, DecodingOptions, SstConstraint, search

END = 0
PROMPT = [1]


class TableSteps:
    """A language whose next token depends on the last one only: rows of log-probabilities, one table per clip."""

    def __init__(self, tables: Sequence[Tensor], beam: int = 1, max_tokens: int = 1000) -> None:
        self.tables = torch.stack(list(tables)).repeat_interleave(beam, dim=0)
        self.n_rows, self.max_tokens = len(self.tables), max_tokens
        self.texts = torch.zeros(self.n_rows, 0, dtype=torch.long)

    def __call__(self, tokens: Tensor) -> Tensor:
        self.texts = torch.cat([self.texts, tokens], dim=1)
        return self.tables[torch.arange(self.n_rows), self.texts[:, -1]]

    def select(self, rows: Tensor) -> None:
        self.texts = self.texts[rows]


def random_table(n_tokens: int, seed: int) -> Tensor:
    return (2 * torch.randn(n_tokens, n_tokens, generator=torch.Generator().manual_seed(seed))).log_softmax(dim=1)


def enumerate_best(table: Tensor, n_most: int, penalty: float = 1.0) -> tuple[int, ...]:
    """The best ended text of all, by trying each."""
    best, best_score = (), -math.inf
    for length in range(n_most):
        for text in itertools.product(range(1, len(table)), repeat=length):
            path = [*PROMPT, *text, END]
            total = sum(float(table[a, b]) for a, b in itertools.pairwise(path))
            if total / (length + 1) ** penalty > best_score:
                best, best_score = text, total / (length + 1) ** penalty
    return best


def test_greedy_takes_the_likeliest_token_each_time() -> None:
    table = torch.full((4, 4), -9.0)
    table[1, 2] = table[2, 3] = table[3, 0] = 0.0
    (found,) = search(TableSteps([table]), PROMPT, END, [10], DecodingOptions())
    assert found.tokens == (2, 3) and found.ended


@pytest.mark.parametrize("seed", range(5))
def test_a_wide_beam_finds_the_best_text_of_all(seed: int) -> None:
    table = random_table(4, seed)
    options = DecodingOptions(beam=200, length_penalty=0.0)
    (found,) = search(TableSteps([table], beam=200), PROMPT, END, [4], options)
    assert found.ended and found.tokens == enumerate_best(table, 4, penalty=0.0)


@pytest.mark.parametrize("beam", [1, 3])
def test_a_clip_does_not_depend_on_its_batch(beam: int) -> None:
    tables = [random_table(6, seed) for seed in range(5)]
    limits = [7, 3, 12, 5, 9]
    options = DecodingOptions(beam=beam)
    together = search(TableSteps(tables, beam), PROMPT, END, limits, options)
    for table, limit, found in zip(tables, limits, together, strict=True):
        (alone,) = search(TableSteps([table], beam), PROMPT, END, [limit], options)
        assert alone.tokens == found.tokens and alone.ended == found.ended
        assert alone.score == pytest.approx(found.score) and len(found.tokens) <= limit


def test_a_text_is_stopped_at_its_limit() -> None:
    table = torch.full((4, 4), -9.0)
    table[1, 2] = table[2, 3] = table[3, 1] = 0.0  # never ends; repeats itself only after three tokens
    options = DecodingOptions(max_repeats=100)
    (found,) = search(TableSteps([table]), PROMPT, END, [7], options)
    assert found.tokens == (2, 3, 1, 2, 3, 1, 2) and not found.ended
    (capped,) = search(TableSteps([table], max_tokens=5), PROMPT, END, [7], options)
    assert len(capped.tokens) == 4  # the prompt counts as well


@pytest.mark.parametrize("period", [1, 2, 5, MAX_PERIOD])
def test_a_text_that_repeats_itself_is_cut_to_one_of_the_repeats(period: int) -> None:
    n_tokens = period + 3
    table = torch.full((n_tokens, n_tokens), -9.0)
    table[1, 2] = 0.0  # a first word, then a circle
    for token in range(period):
        table[2 if token == 0 else 2 + token, 3 + token] = 0.0
    table[2 + period, 3] = 1.0
    (found,) = search(TableSteps([table]), PROMPT, END, [1000], DecodingOptions(max_repeats=4))
    assert found.tokens == (2, *range(3, 3 + period)) and not found.ended


class Script(TableSteps):
    """Says what is written."""

    def __init__(self, tokens: Sequence[int]) -> None:
        super().__init__([torch.zeros(3, 3)])
        self._tokens = iter(tokens)

    def __call__(self, tokens: Tensor) -> Tensor:
        return 20 * torch.nn.functional.one_hot(torch.tensor([next(self._tokens)]), 3).float()


def test_a_word_may_be_said_a_few_times() -> None:
    (found,) = search(Script([2] * 7 + [END]), PROMPT, END, [100], DecodingOptions(max_repeats=8))
    assert found.tokens == (2,) * 7 and found.ended


def test_limits_grow_with_the_clip() -> None:
    options = DecodingOptions(tokens_per_second=10.0, tokens_more=5)
    assert options.limit_tokens(2.5) == 30


def test_bad_options_are_errors() -> None:
    with pytest.raises(ValueError, match="beam must be from 1 to 1000 and max_repeats at least 2"):
        DecodingOptions(beam=0)
    with pytest.raises(ValueError, match="tokens_per_second must not be negative"):
        DecodingOptions(tokens_per_second=-1)
    with pytest.raises(ValueError, match="2 rows are not 1 clips with a beam of 1"):
        search(TableSteps([torch.zeros(3, 3)] * 2), PROMPT, END, [5], DecodingOptions())


# ---------------------------------------------------------------------------------------------------------------------
# Nothing but SST


@dataclass
class Words:
    """end, pad, <spk0>, <spk1>, <spk2>, two that begin a word, one that goes on, one that only says so, <cs>."""

    end: int = END
    speakers: tuple[int, ...] = (2, 3, 4)
    change: int | None = 9
    word_tokens: tuple[int, ...] = (5, 6)
    part_tokens: tuple[int, ...] = (7,)
    blank_tokens: tuple[int, ...] = (8,)


def constraint(level: Level, n_tokens: int = 10) -> SstConstraint:
    return SstConstraint(Words(), n_tokens, GRAMMARS[level])


def is_valid(text: Sequence[int], level: Level) -> bool:
    """By the rules, told another way: a small machine that reads the text."""
    speaker, n_speakers, before = -1, 0, "start"
    for token in text:
        if token in (2, 3, 4):
            number = token - 2
            if before not in ("start", "word") or number > n_speakers or (number == speaker and level == "change"):
                return False
            speaker, n_speakers, before = number, max(n_speakers, number + 1), "token"
        elif token in (5, 6, 8) and (before == "token" or (before == "word" and level != "word")):
            before = "blank" if token == 8 else "word"
        elif token == 7 and before in ("blank", "word"):
            before = "word"
        else:
            return False
    return before in ("start", "word")


@given(st.integers(0, 10**6), st.integers(1, 4), st.sampled_from(["word", "segment", "change"]))
def test_whatever_the_decoder_wants_the_text_is_valid(seed: int, beam: int, level: Level) -> None:
    torch.manual_seed(seed)
    table = 3 * torch.randn(10, 10)
    limit = random.Random(seed).randint(1, 25)
    options = DecodingOptions(beam=beam, max_repeats=3)
    (found,) = search(TableSteps([table], beam), [1], END, [limit], options, constraint(level))
    assert is_valid(found.tokens, level) and len(found.tokens) <= limit
    assert math.isfinite(found.score)


@pytest.mark.parametrize("level", ["word", "segment", "change"])
def test_every_valid_text_may_be_written(level: Level) -> None:
    may_follow = constraint(level)
    for length in range(1, 5):
        texts = torch.tensor(list(itertools.product(range(1, 10), repeat=length)))
        paths = torch.cat([texts, torch.full((len(texts), 1), END)], dim=1)
        rows = torch.arange(len(paths))
        allowed = torch.stack([may_follow(paths[:, :n])[rows, paths[:, n]] for n in range(length + 1)]).all(dim=0)
        assert allowed.tolist() == [is_valid(text, level) for text in texts.tolist()]


def test_each_word_has_its_token_at_level_word() -> None:
    """<spk0> well <spk0> i <spk1> yes, as the paper has it; at level change the second <spk0> may not stand."""
    text = torch.tensor([[2, 5, 7, 2, 6, 3, 5, END]])
    steps = [(text[:, :n], int(text[0, n])) for n in range(8)]
    assert all(bool(constraint("word")(before)[0, token]) for before, token in steps)
    assert not bool(constraint("change")(text[:, :3])[0, 2])
    assert not bool(constraint("word")(text[:, :2])[0, 6])  # another word without a token


@pytest.mark.parametrize("level", ["sot", "dom-sot"])
def test_without_names_a_change_stands_between_words(level: Level) -> None:
    may_follow = constraint(level, 12)  # two rows of padding

    def allowed(*text: int) -> list[int]:
        return may_follow(torch.tensor([text], dtype=torch.long))[0].nonzero().flatten().tolist()

    assert allowed() == [END, 5, 6, 8]
    assert allowed(5) == [END, 5, 6, 7, 8, 9]
    assert allowed(5, 9) == [5, 6, 8]
    assert allowed(5, 8) == [7]
