"""Search: from logits of the next token to the best text. Beam search over a batch; a beam of 1 is greedy.

Each clip has `beam` rows. In every step each row is continued by every token, and of all continuations of a clip the
`beam` with the largest total log-probability are kept. A row that has ended stays among them with its total as it is.

Decoders run away: they repeat themselves until something stops them. Here it is a limit that grows with the length of
the clip, and a look at the last tokens. A row that ends with the same few tokens again and again, `max_repeats` times,
is stopped there, and one of the repeats is kept.

`SstConstraint` lets a decoder write nothing but sorted serialized transcripts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

MAX_PERIOD = 16  # tokens that are looked at as something repeated

Decoding = Literal["free", "valid"]
"""Whether a constraint is used."""

Constraint = Callable[[Tensor], Tensor]
"""Which tokens may come next: (rows, n) of texts so far, without prompt -> (rows, n_tokens), true where one may."""

MAX_BEAM = 1000  # rows of a clip; more is a mistake, and fills the memory


class Steps(Protocol):
    """A decoder at work on some clips, `canary.PartialTexts` for one."""

    n_rows: int
    max_tokens: int

    def __call__(self, tokens: Tensor) -> Tensor:
        """(rows, n), the next tokens -> (rows, n_tokens), logits of those after them."""

    def select(self, rows: Tensor) -> None:
        """Continue row i from what was row rows[i]."""


@dataclass(frozen=True)
class DecodingOptions:
    """How a text is searched for."""

    beam: int = 1  # rows for each clip; 1 is greedy
    length_penalty: float = 1.0  # the score is the total log-probability / tokens to this power
    tokens_per_second: float = 25.0  # the limit of a text (2 for each frame: word level has a token per word), and
    tokens_more: int = 50  # so many in any case
    max_repeats: int = 8  # a text that ends with the same tokens so many times is stopped

    def __post_init__(self) -> None:
        if not 1 <= self.beam <= MAX_BEAM or self.max_repeats < 2:
            raise ValueError(
                f"beam must be from 1 to {MAX_BEAM} and max_repeats at least 2, got {self.beam} and {self.max_repeats}"
            )
        if not (self.tokens_per_second >= 0 and self.tokens_more >= 1):
            raise ValueError("tokens_per_second must not be negative, and tokens_more at least 1")

    def limit_tokens(self, seconds: float) -> int:
        """Return the most tokens of a text of this duration, its end included."""
        return self.tokens_more + int(self.tokens_per_second * seconds)


@dataclass(frozen=True)
class Hypothesis:
    """What was found for a clip: the tokens between prompt and end."""

    tokens: tuple[int, ...]
    score: float  # log-probability / tokens ** length_penalty
    ended: bool  # by itself; else it was stopped


@torch.inference_mode()
def search(
    steps: Steps,
    prompt: Sequence[int],
    end: int,
    limits: Sequence[int],
    options: DecodingOptions,
    constraint: Constraint | None = None,
    device: torch.device | None = None,
) -> list[Hypothesis]:
    """Return the best text of each clip, at most limits[clip] tokens with its end; `steps` is at its start."""
    if steps.n_rows != len(limits) * options.beam:
        raise ValueError(f"{steps.n_rows} rows are not {len(limits)} clips with a beam of {options.beam}")
    if not 1 <= len(prompt) < steps.max_tokens:
        raise ValueError(f"the prompt has {len(prompt)} tokens; it must have from 1 to {steps.max_tokens - 1}")
    beams = _Beams(len(limits), options, end, min(max(limits), steps.max_tokens - len(prompt)), device)
    row_limits = torch.tensor(limits, device=device).repeat_interleave(options.beam)
    logits = steps(torch.tensor(prompt, device=device).expand(steps.n_rows, -1))
    for n in range(beams.max_tokens):
        log_probs = logits.float().log_softmax(dim=1)
        if constraint is not None:
            log_probs = log_probs.masked_fill(~constraint(beams.texts()), -math.inf)
        parents = beams.extend(log_probs, stopped=row_limits <= n)
        if beams.are_over():
            break
        if options.beam > 1:
            steps.select(parents)
        logits = steps(beams.texts()[:, -1:])
    return [beams.best(clip, constraint) for clip in range(len(limits))]


class _Beams:
    """The rows of all clips, side by side, and how far each has come."""

    def __init__(
        self, n_clips: int, options: DecodingOptions, end: int, max_tokens: int, device: torch.device | None
    ) -> None:
        n_rows = n_clips * options.beam
        self.options, self.end, self.max_tokens, self.n = options, end, max_tokens, 0
        # Before the text are tokens that are equal to none, so that every token has MAX_PERIOD before it.
        self.tokens = torch.full((n_rows, MAX_PERIOD + max_tokens), -1, device=device)
        self.scores = torch.full((n_clips, options.beam), -math.inf, device=device)
        self.scores[:, 0] = 0.0  # at first the rows of a clip are the same
        self.lengths = torch.zeros(n_rows, dtype=torch.long, device=device)  # of the text that counts
        self.over = torch.zeros(n_rows, dtype=torch.bool, device=device)  # ended, or stopped
        self.ended = torch.zeros_like(self.over)
        self.repeated = torch.zeros((n_rows, MAX_PERIOD), dtype=torch.long, device=device)
        """How many of the last tokens equal the one 1, 2, ... MAX_PERIOD before."""
        self._first_rows = torch.arange(n_clips, device=device)[:, None] * options.beam
        self._periods = torch.arange(1, MAX_PERIOD + 1, device=device)

    def texts(self) -> Tensor:
        """(rows, n): the tokens so far; rows that are over continue with the end token."""
        return self.tokens[:, MAX_PERIOD : MAX_PERIOD + self.n]

    def are_over(self) -> bool:
        return bool(self.over.all())

    def extend(self, log_probs: Tensor, stopped: Tensor) -> Tensor:
        """Add one more token to every row. (rows, n_tokens), (rows,) -> (rows,): the row that each one continues."""
        self.over |= stopped
        log_probs = log_probs.masked_fill(self.over[:, None], -math.inf)
        log_probs[:, self.end].masked_fill_(self.over, 0.0)
        totals = self.scores[:, :, None] + log_probs.view(*self.scores.shape, -1)
        self.scores, best = totals.flatten(1).topk(self.options.beam)
        parents = (self._first_rows + best // log_probs.shape[1]).flatten()
        if self.options.beam > 1:
            self._select(parents)
        self._append((best % log_probs.shape[1]).flatten())
        return parents

    def _select(self, rows: Tensor) -> None:
        for name in ("tokens", "lengths", "over", "ended", "repeated"):
            setattr(self, name, getattr(self, name)[rows])

    def _append(self, new: Tensor) -> None:
        place = MAX_PERIOD + self.n
        before = self.tokens[:, self.n : place].flip(1)
        self.tokens[:, place] = new
        self.n += 1
        self.ended |= ~self.over & (new == self.end)
        self.over |= self.ended | (self.scores.flatten() == -math.inf)
        self.lengths = torch.where(self.over, self.lengths, self.n)
        self.repeated = (self.repeated + 1) * (before == new[:, None])
        too_often = self.repeated >= self._periods * (self.options.max_repeats - 1)
        runs_away = too_often.any(dim=1) & ~self.over
        period = too_often.int().argmax(dim=1, keepdim=True)  # the shortest
        self.lengths = self.lengths - runs_away * self.repeated.gather(1, period)[:, 0]
        self.over |= runs_away

    def best(self, clip: int, constraint: Constraint | None) -> Hypothesis:
        """Return the best row of a clip, of those that ended if any; its tail is cut to where it may end."""
        rows = range(clip * self.options.beam, (clip + 1) * self.options.beam)
        row = max(rows, key=lambda row: (bool(self.ended[row]), self._score(row)))
        text = self.texts()[row, : int(self.lengths[row])]
        while constraint is not None and len(text) and not constraint(text[None])[0, self.end]:
            text = text[:-1]
        return Hypothesis(tuple(text.tolist()), self._score(row), bool(self.ended[row]))

    def _score(self, row: int) -> float:
        n_tokens = int(self.lengths[row]) + 1
        return float(self.scores.flatten()[row] / n_tokens**self.options.length_penalty)


# ---------------------------------------------------------------------------------------------------------------------
# Transcripts that are always valid


class Vocabulary(Protocol):
    """What a tokenizer says about its tokens (`formats.tokens.Tokenizer` does)."""

    end: int
    change: int | None  # <cs>

    @property
    def speakers(self) -> Sequence[int]:
        """<spk0>, <spk1>, ..."""

    @property
    def word_tokens(self) -> Sequence[int]:
        """With which a word begins."""

    @property
    def part_tokens(self) -> Sequence[int]:
        """That continue a word."""

    @property
    def blank_tokens(self) -> Sequence[int]:
        """That only say that a word begins."""


class Grammar(Protocol):
    """Where a level of SST has its tokens (`formats.sst.Grammar` says it)."""

    @property
    def named(self) -> bool:
        """<spk0>, <spk1>, ... before every turn; else <cs> between turns."""

    @property
    def one_word(self) -> bool:
        """Every turn is one word."""

    @property
    def same_again(self) -> bool:
        """A turn may follow another one of the same speaker."""


class SstConstraint:
    """Which tokens may follow, so that a text is an SST, or empty.

    A word comes first, or <spk0> where speakers have names; after a speaker token a word begins; the next speaker to
    arrive has the next number; and the last token belongs to a word.
    """

    def __init__(
        self, vocabulary: Vocabulary, n_tokens: int, grammar: Grammar, device: torch.device | None = None
    ) -> None:
        """`n_tokens` are those of the model, which may be padded."""

        def mark(tokens: Sequence[int]) -> Tensor:
            marked = torch.zeros(n_tokens, dtype=torch.bool, device=device)
            marked[list(tokens)] = True
            return marked

        self._grammar = grammar
        self._end = mark([vocabulary.end])
        self._change = mark([] if grammar.named or vocabulary.change is None else [vocabulary.change])
        self._blank, self._part = mark(vocabulary.blank_tokens), mark(vocabulary.part_tokens)
        self._begins = mark(vocabulary.word_tokens) | self._blank
        self._inner = mark(vocabulary.word_tokens) | self._part
        # What may follow a piece of a word, tokens aside: another piece, the end, and unless each word has a token of
        # its own, another word.
        self._after_word = self._part | self._end | (torch.zeros_like(self._end) if grammar.one_word else self._begins)
        # The number of the speaker whose token it is; -1: it is none.
        self._number = torch.full((n_tokens,), -1, device=device)
        self._number[list(vocabulary.speakers)] = torch.arange(len(vocabulary.speakers), device=device)

    def __call__(self, texts: Tensor) -> Tensor:
        """(rows, n) -> (rows, n_tokens)."""
        if texts.shape[1] == 0:
            first = self._number == 0 if self._grammar.named else self._begins
            return (self._end | first).expand(len(texts), -1)
        last = texts[:, -1]
        after_word = self._after_word | self._may_speak(texts)
        after_other = torch.where(self._blank[last][:, None], self._part, self._begins)
        return torch.where(self._inner[last][:, None], after_word, after_other)

    def _may_speak(self, texts: Tensor) -> Tensor:
        """(rows, n_tokens): who may speak next."""
        if not self._grammar.named:
            return self._change
        numbers = self._number[texts]
        n_known = numbers.amax(dim=1, keepdim=True) + 1
        known_or_next = (self._number >= 0) & (self._number <= n_known)
        if self._grammar.same_again:
            return known_or_next
        places = torch.arange(1, texts.shape[1] + 1, device=texts.device)
        last = (places * (numbers >= 0)).argmax(dim=1, keepdim=True)
        return known_or_next & (self._number != numbers.gather(1, last))
