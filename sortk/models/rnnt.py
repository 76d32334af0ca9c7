"""Transducers: a prediction network that reads the tokens so far, a joint network, and greedy decoding (RNNT, TDT).

    prediction    g_u = LSTM(embedding of token u); before the first token, of blank (NVIDIA: a zero vector)
    joint         h_{t,u} = W relu(A f_t + B g_u) + b: scores of every token and of blank, and, in TDT, of durations

Greedy decoding is at frame t with state g. The best token is blank, and t advances; or it is written, g reads it,
and t stays (RNNT) or advances by the best duration (TDT, "token-and-duration transducer", Xu et al. 2023), which may be
0. After `max_symbols` tokens on one frame t advances by 1.

The loop runs over labels, for all clips of a batch at once: each pass finds the next token of every clip, each at its
own frame. A f_t is computed once for all frames. In RNNT, where blanks are frequent and advance by one frame, the joint
network looks at several frames at once and takes the first that is not blank; g is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from sortk.models.options import MAX_SIZE, check_sizes

FRAMES_AT_A_TIME = 8  # at which RNNT looks for the next token; of no influence on the result


@dataclass(frozen=True)
class TransducerOptions:
    """Sizes of prediction and joint network; the defaults are those of parakeet-tdt_ctc-110m."""

    d_prediction: int = 640
    n_layers: int = 1  # of the LSTM
    d_joint: int = 640
    durations: tuple[int, ...] = ()  # frames, of a TDT; empty: RNNT
    max_symbols: int = 10  # tokens on one frame

    def __post_init__(self) -> None:
        check_sizes(self, "d_prediction", "n_layers", "d_joint", "max_symbols")
        if not all(0 <= duration <= MAX_SIZE for duration in self.durations) or (
            self.durations and not any(self.durations)
        ):
            raise ValueError(f"durations must be from 0 to {MAX_SIZE}, and one above 0, got {list(self.durations)}")


class TimedTokens(NamedTuple):
    """Tokens of one clip with their frames."""

    ids: list[int]
    frames: list[int]  # at which each one is written
    durations: list[int]  # frames; RNNT and CTC: none
    probs: list[float]  # of each token among all tokens and blank


def no_tokens() -> TimedTokens:
    return TimedTokens([], [], [], [])


@dataclass
class DecodingState:
    """How far the decoding of each clip is; the frames that follow may be decoded later."""

    predicted: Tensor  # (batch, d_joint): B g
    hidden: Tensor  # (layers, batch, d_prediction)
    cell: Tensor
    start: Tensor  # (batch,): the frame to continue with, of those to come
    n_done: int = 0  # frames before those
    tokens: list[TimedTokens] = field(default_factory=list)


class Prediction(nn.Module):
    """Tokens -> g."""

    def __init__(self, n_tokens: int, options: TransducerOptions) -> None:
        super().__init__()
        self.embed = nn.Embedding(n_tokens + 1, options.d_prediction, padding_idx=n_tokens)  # blank is the last
        self.lstm = nn.LSTM(options.d_prediction, options.d_prediction, options.n_layers, batch_first=True)

    def step(self, embedded: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """(batch, d_prediction) of one token, hidden and cell -> g, (batch, d_prediction), and the next state.

        What `lstm` computes, three times faster: on a CPU, torch packs the weights again at every call of an LSTM.
        """
        x, hidden, cell = embedded, [], []
        for layer, (h, c) in enumerate(zip(*state, strict=True)):
            w_ih, w_hh, b_ih, b_hh = self.lstm.all_weights[layer]
            gates = functional.linear(x, w_ih, b_ih) + functional.linear(h, w_hh, b_hh)
            i, f, g, o = gates.chunk(4, dim=1)
            cell.append(f.sigmoid() * c + i.sigmoid() * g.tanh())
            x = o.sigmoid() * cell[-1].tanh()
            hidden.append(x)
        return x, (torch.stack(hidden), torch.stack(cell))


class Joint(nn.Module):
    """f and g -> scores."""

    def __init__(self, d_encoder: int, n_tokens: int, options: TransducerOptions) -> None:
        super().__init__()
        self.enc = nn.Linear(d_encoder, options.d_joint)
        self.pred = nn.Linear(options.d_prediction, options.d_joint)
        self.out = nn.Linear(options.d_joint, n_tokens + 1 + len(options.durations))

    def forward(self, encoded: Tensor, predicted: Tensor) -> Tensor:
        """Return scores, (..., tokens, blank, durations), of A f and B g, (..., d_joint) both."""
        scores: Tensor = self.out((encoded + predicted).relu_())
        return scores


class Transducer(nn.Module):
    """Frames of an encoder -> tokens."""

    def __init__(self, d_encoder: int, n_tokens: int, options: TransducerOptions) -> None:
        super().__init__()
        self.options, self.blank = options, n_tokens
        self.prediction = Prediction(n_tokens, options)
        self.joint = Joint(d_encoder, n_tokens, options)

    def start(self, batch: int) -> DecodingState:
        """Return the state before the first frame."""
        device = self.joint.enc.weight.device
        zeros = torch.zeros(self.options.n_layers, batch, self.options.d_prediction, device=device)
        with torch.no_grad():
            blank = self.prediction.embed.weight[self.blank].expand(batch, -1)
            g, (hidden, cell) = self.prediction.step(blank, (zeros, zeros))
            predicted = self.joint.pred(g)
        start = torch.zeros(batch, dtype=torch.long, device=device)
        return DecodingState(predicted, hidden, cell, start, tokens=[no_tokens() for _ in range(batch)])

    @torch.no_grad()
    def decode(
        self, frames: Tensor, lengths: Tensor | None = None, state: DecodingState | None = None
    ) -> DecodingState:
        """(batch, frames, d_encoder), (batch,) -> the state after them, with all tokens so far.

        With a `state`, the frames follow on those before; a batch with lengths must be complete.
        """
        options, blank = self.options, self.blank
        batch, n_frames = frames.shape[:2]
        state = state or self.start(batch)
        device = frames.device
        if n_frames == 0:
            return state
        ends = torch.full((batch,), n_frames, device=device) if lengths is None else lengths
        durations = torch.tensor(options.durations, device=device)
        window = 1 if options.durations else FRAMES_AT_A_TIME
        offsets, rows = torch.arange(window, device=device), torch.arange(batch, device=device)
        encoded = self.joint.enc(frames)
        t, n_here = state.start, torch.zeros(batch, dtype=torch.long, device=device)  # n_here: tokens on frame t
        predicted, lstm = state.predicted, (state.hidden, state.cell)
        written = []  # (is_token, token, frame, duration, prob) of every pass, (batch,) each
        while bool((t < ends).any()):
            places = t[:, None] + offsets
            scores = self.joint(encoded[rows[:, None], places.clamp(max=n_frames - 1)], predicted[:, None])
            best = scores[..., : blank + 1].argmax(dim=2)  # (batch, window)
            is_token = (best != blank) & (places < ends[:, None])
            found, place = is_token.any(dim=1), is_token.int().argmax(dim=1)
            token, scores = best[rows, place], scores[rows, place]
            t = t + place * found
            if options.durations:
                advance = durations[scores[:, blank + 1 :].argmax(dim=1)]
                skipped = advance.clamp(min=1)
            else:
                # All of the window was blank; none of the frames to come is skipped.
                advance, skipped = torch.zeros_like(t), (ends - t).clamp(max=window)
            n_here = torch.where(place > 0, 0, n_here) + 1
            if bool(found.any()):
                prob = (scores.gather(1, token[:, None])[:, 0] - scores[:, : blank + 1].logsumexp(dim=1)).exp()
                written.append((found, token, t, advance, prob))
                g, after = self.prediction.step(self.prediction.embed(token), lstm)
                predicted = torch.where(found[:, None], self.joint.pred(g), predicted)
                lstm = (
                    torch.where(found[:, None], after[0], lstm[0]),
                    torch.where(found[:, None], after[1], lstm[1]),
                )
            # A frame with the most tokens that it may have is left.
            advance = torch.where(n_here >= options.max_symbols, advance.clamp(min=1), advance)
            moved = torch.where(found, advance, skipped)
            n_here = torch.where(moved > 0, 0, n_here)
            t = torch.where(t < ends, t + moved, t)
        tokens = state.tokens
        self._append(tokens, written, state.n_done)
        return DecodingState(predicted, *lstm, (t - n_frames).clamp(min=0), state.n_done + n_frames, tokens)

    def _append(self, tokens: list[TimedTokens], written: Sequence[tuple[Tensor, ...]], n_done: int) -> None:
        if not written:
            return
        found, token, frame, duration, prob = (torch.stack(values).T.cpu() for values in zip(*written, strict=True))
        for row, own in enumerate(tokens):
            chosen = found[row]
            own.ids.extend(token[row][chosen].tolist())
            own.frames.extend((frame[row][chosen] + n_done).tolist())
            own.probs.extend(prob[row][chosen].tolist())
            if self.options.durations:
                own.durations.extend(duration[row][chosen].tolist())
