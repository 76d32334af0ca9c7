"""Recordings of any length by a Sortformer that learned from short windows: windows are linked by voice.

To sort speakers by arrival, a model must remember every voice from its first word on; the longer the recording, the
harder this is to learn. Within a short window it is easier. So, as in EEND-VC (Kinoshita et al. 2021), with the frames
of the encoder's lower half, which learned to distinguish voices (`encoder_warmup`), in place of speaker vectors:

1. The model processes overlapping windows. In a window, p_{k,t} is the posterior of its k-th speaker and e_t the
   embedding of frame t, of length 1.
2. Each speaker of a window who speaks gets a vector, in which frames with nobody else count most:

       v_k = sum_t w_{k,t} e_t / ||...||,    w_{k,t} = p_{k,t} (1 - max_{j != k} p_{j,t})^2    where p_{k,t} > 0.5

3. Vectors are clustered by a probabilistic model of voices (PLDA with two covariances; Ioffe 2006): `VoiceSpace` maps
   them to y_i = (v_i - mean) A, in which a person has the voice h ~ N(0, diag(s)), and

       y_i ~ N(h, I / a_i)                                                 a_i: frames in which i speaks alone

   so a speaker who says little says little about the voice. With Q = sum a_i and S = sum a_i y_i over a cluster, h can
   be integrated out, and up to a constant the log-likelihood of a partition is the sum over its clusters of

       F(S, Q) = 1/2 sum_d [ s_d S_d^2 / (1 + s_d Q) - log(1 + s_d Q) ]

   At first each vector is a cluster. The two clusters whose union increases the log-likelihood most are joined, as long
   as it grows: this decides how many speakers there are, without a threshold. Two speakers of a window may be in one
   cluster, because the model may take one voice for two, but each such pair has a cost (`cost_of_sharing`). Speakers
   with little time alone are left out, and join the likeliest cluster in the end. In a long recording, a voice also
   varies in ways that do not average out, so its log-likelihood, and the cost, are scaled as if there were FULL_TRUST
   frames in all.
4. A cluster is a speaker of the recording. A turn in which a speaker of a window speaks alone for at least 0.64 s goes
   to the speaker who is likeliest to have the voice of the turn: the model may take two voices for one. Where windows
   overlap, posteriors are averaged, and the middle of a window counts more than its edges. Windows may disagree about
   who speaks, and agree that one person does; so the averages only decide who is first, second, ... in a frame, and
   that speaker gets the average of the windows' highest, second highest, ... posterior. Speakers are sorted by arrival.

5. Where silero-vad finds no speech, nobody speaks (`speech`): a small model takes some noises for voices.

The number of speakers is not limited. Of a recording, only posteriors and vectors are kept. A model folder
whose config.json has the key "linking" is used this way, unless it is streamed; its voices.safetensors has the space.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sortk.formats.audio import Samples
from sortk.formats.files import FormatError
from sortk.formats.model_folder import load_arrays
from sortk.inference.postprocess import Ints
from sortk.models.frames import HOP_SAMPLES, MEL_PER_FRAME, SAMPLE_RATE, count_frames
from sortk.options import Options, option
from sortk.prepare.activity import WINDOW

Floats = npt.NDArray[np.float32]
RunWindows = Callable[[Sequence[Samples]], Iterable[tuple[Floats, Floats]]]
"""Posteriors, (frames, speakers), and embeddings of length 1, (frames, d), of each of some windows."""

VOICES_NAME = "voices.safetensors"  # in a model folder: the space in which voices are linked
ACTIVE = 0.5  # posterior above which a speaker of a window speaks
MIN_ACTIVE = 4  # frames in which a speaker of a window must speak to be one
MIN_TURN = 8  # frames of a turn whose voice is looked at by itself
WINDOWS_TOGETHER = 6  # that are processed in one batch; more are not faster on a CPU
CLUSTERED_TOGETHER = 1000  # vectors, about an hour: the time of clustering grows with their cube
SPEECH_MARGIN_SECONDS = 0.3  # around speech that silero-vad finds
SHARED = 4.0  # of the log-likelihood, that it costs to be in one cluster with another speaker of the window,
SHARED_ALONE = 12.0  # and more if this is the only window
FULL_TRUST = 3000.0  # frames alone, in about 2.5 minutes; more count as so many, or one voice becomes many speakers
PLAIN_NOISE, PLAIN_SPREAD = 0.15, 0.012  # of `VoiceSpace.plain`: what the model that comes with sortk has on average
MAX_OVERLAP = 8  # windows that hold a frame: the time that a recording takes grows with it
FRAME_SAMPLES = HOP_SAMPLES * MEL_PER_FRAME


@dataclass(frozen=True)
class LinkingOptions(Options):
    """How windows are cut and linked. Lengths are in frames of 80 ms."""

    window: int = option(188, at_least=1, at_most=7500)
    step: int = option(94, at_least=1, at_most=7500)  # from one window to the next
    min_alone: int = option(6, at_least=0, at_most=7500)  # time alone that a speaker of a window needs to be clustered
    speech: float = option(0.0, at_least=0, at_most=1)  # probability of speech below which nobody speaks; 0: unused

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.window <= MAX_OVERLAP * self.step <= MAX_OVERLAP * self.window:
            least = -(-self.window // MAX_OVERLAP)
            raise ValueError(f"step must be from {least} to {self.window} for this window, got {self.step}")


@dataclass(frozen=True)
class VoiceSpace:
    """What is known about voices and their vectors, from voices of the training (`recipes/small/voices.py`)."""

    mean: Floats  # (d,), of vectors
    axes: Floats  # (d, n): A of step 3
    spread: Floats  # (n,): s of step 3, the variance of voices; that of a vector of one frame is 1

    @classmethod
    def plain(cls, size: int) -> VoiceSpace:
        """Return a space in which all directions are alike, for a model without statistics."""
        axes = np.eye(size) / PLAIN_NOISE**0.5
        return cls(np.zeros(size, np.float32), axes.astype(np.float32), np.full(size, PLAIN_SPREAD, np.float32))

    def place(self, vectors: Floats) -> Floats:
        """(n, d) -> (n, axes)."""
        return np.asarray((vectors - self.mean) @ self.axes, np.float32)


def read_voices(path: Path, size: int) -> VoiceSpace:
    """Return the space of voices in a file, for embeddings of this size."""
    arrays = {name: array.astype(np.float32) for name, array in load_arrays(path).items()}
    n_axes = len(arrays.get("spread", ()))
    shapes = {"mean": (size,), "axes": (size, n_axes), "spread": (n_axes,)}
    if {name: array.shape for name, array in arrays.items()} != shapes:
        raise FormatError(path, None, f"needs mean, axes and spread for embeddings of size {size}, and nothing else")
    if not all(np.isfinite(array).all() for array in arrays.values()) or (arrays["spread"] < 0).any():
        raise FormatError(path, None, "has values that are not finite, or a spread below 0")
    return VoiceSpace(**arrays)


class Speakers(NamedTuple):
    """Clusters of vectors: S and Q of step 3."""

    sums: Floats  # (speakers, axes)
    times: Floats  # (speakers,)

    def likelihoods(self, places: Floats, times: Floats, spread: Floats) -> Floats:
        """(n, axes), (n,) -> (n, speakers): log p(y | speaker), up to a constant for all speakers."""
        variance = spread / (1 + self.times[:, None] * spread)  # of h, given the vectors of the cluster
        total = variance + 1 / times[:, None, None]
        distances = (places[:, None] - variance * self.sums) ** 2 / total
        found: Floats = -0.5 * (distances + np.log(total)).sum(axis=2)
        return found


class LocalTurn(NamedTuple):
    """Frames of a window in which one speaker speaks alone."""

    column: int
    first: int
    end: int
    vector: Floats  # (d,), of length 1


@dataclass(frozen=True)
class Window:
    """What the model says about a window; the vectors and times are of the speakers who speak in it."""

    first: int  # frame of the recording
    probs: Floats  # (frames, speakers)
    columns: tuple[int, ...]  # of `probs`, of those who speak
    vectors: Floats  # (len(columns), d), of length 1
    alone: Floats  # (len(columns),): frames in which only this one speaks
    turns: tuple[LocalTurn, ...] = ()  # those of at least MIN_TURN frames


def cut_windows(blocks: Iterable[Samples], options: LinkingOptions) -> Iterator[tuple[int, Samples]]:
    """Yield overlapping windows of a recording at 16 kHz, each with its first frame. The last one may be shorter."""
    kept, first = np.zeros(0, np.float32), 0
    for block in blocks:
        kept = np.concatenate([kept, block])
        while len(kept) > options.window * FRAME_SAMPLES:
            yield first, kept[: options.window * FRAME_SAMPLES]
            kept, first = kept[options.step * FRAME_SAMPLES :], first + options.step
    if count_frames(len(kept)) > 0:
        yield first, kept


def process_windows(run: RunWindows, windows: Iterator[tuple[int, Samples]]) -> Iterator[Window]:
    """Yield what the model says about each window."""
    while together := list(itertools.islice(windows, WINDOWS_TOGETHER)):
        found = run([samples for _, samples in together])
        for (first, _), (probs, embeddings) in zip(together, found, strict=True):
            yield describe_window(first, probs, embeddings)


def describe_window(first: int, probs: Floats, embeddings: Floats) -> Window:
    """(frames, speakers), (frames, d) of length 1 -> the window, with a vector for each speaker who speaks."""
    active = probs > ACTIVE
    columns = np.flatnonzero(active.sum(axis=0) >= MIN_ACTIVE)
    vectors, alone = np.zeros((len(columns), embeddings.shape[1]), np.float32), np.zeros(len(columns), np.float32)
    for row, column in enumerate(columns):
        others = np.delete(probs, column, axis=1).max(axis=1, initial=0.0)
        weights = np.where(active[:, column], probs[:, column] * np.maximum(1 - others, 1e-3) ** 2, 0)
        vectors[row] = _unit(weights @ embeddings)
        alone[row] = (active[:, column] & (others <= ACTIVE)).sum()
    speaker = np.where(active.sum(axis=1) == 1, active.argmax(axis=1), -1)
    edges = [0, *(np.flatnonzero(np.diff(speaker)) + 1).tolist(), len(speaker)]
    turns = tuple(
        LocalTurn(int(speaker[start]), start, end, _unit(embeddings[start:end].sum(axis=0)))
        for start, end in itertools.pairwise(edges)
        if end - start >= MIN_TURN and speaker[start] >= 0
    )
    return Window(first, probs, tuple(columns.tolist()), vectors, alone, turns)


def _unit(vector: Floats) -> Floats:
    scaled: Floats = vector / max(float(np.linalg.norm(vector)), 1e-6)
    return scaled


def silence_pauses(probs: Floats, speech: Floats, threshold: float) -> Floats:
    """Return the posteriors, (frames, speakers), with 0 in frames that are far from any speech.

    `speech` is the probability in each window of silero-vad, 32 ms.
    """
    margin = round(SPEECH_MARGIN_SECONDS * SAMPLE_RATE / WINDOW)
    highest = np.array([speech[max(n - margin, 0) : n + margin + 1].max() for n in range(len(speech))])
    middle = (np.arange(len(probs)) + 0.5) * FRAME_SAMPLES
    at = np.minimum(middle.astype(np.int64) // WINDOW, len(speech) - 1)
    return probs * (highest[at, None] >= threshold) if len(probs) else probs


def join_windows(
    windows: Sequence[Window],
    options: LinkingOptions,
    space: VoiceSpace,
    fewest: int = 1,
    most: int | None = None,
    n_columns: int = 1,
) -> Floats:
    """Return the posteriors of the recording, (frames, speakers), sorted by arrival.

    `fewest` and `most` bound the number of speakers that are looked for. There are at least `n_columns` columns.
    """
    n_frames = max((window.first + len(window.probs) for window in windows), default=0)
    labels, speakers = label_speakers(windows, options, space, fewest, most)
    total = np.zeros((n_frames, max(n_columns, len(speakers.times))), np.float32)
    ranked, weight = np.zeros_like(total), np.zeros((n_frames, 1), np.float32)
    for window, own in zip(windows, labels, strict=True):
        label_of = dict(zip(window.columns, own, strict=True))
        said = np.zeros((len(window.probs), total.shape[1]), np.float32)
        for column, label in label_of.items():
            said[:, label] = np.maximum(said[:, label], window.probs[:, column])
        for turn in window.turns:
            frames, length = slice(turn.first, turn.end), np.array([turn.end - turn.first], np.float32)
            likeliest = int(speakers.likelihoods(space.place(turn.vector[None]), length, space.spread).argmax())
            if likeliest != label_of[turn.column]:
                said[frames] = 0
                said[frames, likeliest] = window.probs[frames, turn.column]
        place = np.arange(len(said)) + 0.5
        trust = np.minimum(place, options.window - place)[:, None].astype(np.float32)  # less at the edges
        inside = slice(window.first, window.first + len(said))
        total[inside] += trust * said
        ranked[inside] -= trust * np.sort(-said, axis=1)
        weight[inside] += trust
    probs = np.zeros_like(total)
    np.put_along_axis(probs, np.argsort(-total, axis=1, kind="stable"), ranked / np.maximum(weight, 1e-6), axis=1)
    active = np.vstack([probs > ACTIVE, np.ones((1, probs.shape[1]), np.bool_)])  # who never speaks comes last
    return probs[:, np.argsort(active.argmax(axis=0), kind="stable")]


def label_speakers(
    windows: Sequence[Window], options: LinkingOptions, space: VoiceSpace, fewest: int = 1, most: int | None = None
) -> tuple[list[list[int]], Speakers]:
    """Return a label 0, 1, ... for each speaker of each window, and the speakers of the recording."""
    group = np.array([number for number, window in enumerate(windows) for _ in window.columns], np.int64)
    if len(group) == 0:
        return [[] for _ in windows], Speakers(np.zeros((0, len(space.spread)), np.float32), np.zeros(0, np.float32))
    places = space.place(np.concatenate([window.vectors for window in windows]))
    alone = np.concatenate([window.alone for window in windows])
    times = np.maximum(alone, 1)
    sure = np.flatnonzero(alone >= min(options.min_alone, alone.max()))
    labels = np.full(len(group), -1)
    labels[sure], speakers = find_speakers(places[sure], times[sure], group[sure], space.spread, fewest, most)
    for index in np.argsort(-alone, kind="stable"):  # those who speak longest choose first
        if labels[index] < 0:
            likelihoods = speakers.likelihoods(places[index, None], times[index, None], space.spread)[0]
            taken = np.isin(np.arange(len(likelihoods)), labels[group == group[index]])
            labels[index] = (likelihoods - cost_of_sharing(group) * taken).argmax()
    return [labels[group == number].tolist() for number in range(len(windows))], speakers


def cost_of_sharing(group: Ints) -> float:
    """Return what it costs that two speakers of a window are one person; `group` is the window of each vector.

    The fewer windows there are, the less is known about voices, and the more the model is to be believed.
    """
    return SHARED + SHARED_ALONE / max(len(np.unique(group)), 1) ** 2


def find_speakers(
    places: Floats, times: Floats, group: Ints, spread: Floats, fewest: int = 1, most: int | None = None
) -> tuple[Ints, Speakers]:
    """(n, axes), (n,), (n,) -> n labels in the order of first appearance, and the clusters.

    `group` is the window of each vector. Many vectors are clustered in parts, each with the clusters of those before.
    """
    sums, n_frames = np.zeros((0, places.shape[1]), np.float32), np.zeros(0, np.float32)
    members: list[list[int]] = []
    for first in range(0, len(places), CLUSTERED_TOGETHER):
        part = np.arange(first, min(first + CLUSTERED_TOGETHER, len(places)))
        sums = np.concatenate([sums, times[part, None] * places[part]])
        n_frames = np.concatenate([n_frames, times[part]])
        members += [[index] for index in part.tolist()]
        names, inside = np.unique(group[part], return_inverse=True)
        held = np.zeros((len(members), len(names)), np.float32)  # speakers of each window that a cluster has
        held[np.arange(len(members) - len(part), len(members)), inside] = 1
        trust = min(1.0, FULL_TRUST / float(times[part].sum()))
        costs = (trust * cost_of_sharing(group)) ** 0.5 * held
        joined = _join(trust * sums, trust * n_frames, costs, spread, fewest, most)
        members = [[index for old in own for index in members[old]] for own in joined]
        sums = np.stack([sums[own].sum(axis=0) for own in joined])
        n_frames = np.array([n_frames[own].sum() for own in joined], np.float32)
    labels = np.zeros(len(places), np.int64)
    for label, own in enumerate(members):
        labels[own] = label
    return labels, Speakers(sums, n_frames)


def _join(sums: Floats, times: Floats, costs: Floats, spread: Floats, fewest: int, most: int | None) -> list[list[int]]:
    """(n, axes), (n,), (n, windows) -> the clusters that step 3 makes of n clusters, as lists of these.

    To join two clusters costs the product of their rows of `costs`.
    """
    sums, times, costs = sums.copy(), times.copy(), costs.copy()
    own = _likelihood(sums, times, spread)

    def gains_of(index: int) -> Floats:
        """Return by how much the log-likelihood grows if a cluster is joined with each of the others."""
        together = _likelihood(sums + sums[index], times + times[index], spread)
        gains: Floats = np.where(is_left, together - own - own[index] - costs @ costs[index], -np.inf)
        gains[index] = -np.inf
        return gains

    is_left = np.ones(len(times), np.bool_)
    gains = np.stack([gains_of(index) for index in range(len(times))])
    members = [[index] for index in range(len(times))]
    while (n_left := int(is_left.sum())) > fewest:
        keep, gone = sorted(divmod(int(gains.argmax()), len(gains)))
        if gains[keep, gone] <= 0 and (most is None or n_left <= most):
            break
        for values in (sums, times, costs):
            values[keep] += values[gone]
        own[keep] = _likelihood(sums[keep], times[keep], spread)
        members[keep] += members[gone]
        is_left[gone] = False
        gains[gone], gains[:, gone] = -np.inf, -np.inf
        gains[keep] = gains[:, keep] = gains_of(keep)
    return sorted(sorted(members[index]) for index in np.flatnonzero(is_left))


def _likelihood(sums: Floats, times: Floats, spread: Floats) -> Floats:
    """(..., axes), (...) -> F of step 3, (...)."""
    scale = 1 + times[..., None] * spread
    found: Floats = 0.5 * (spread * sums**2 / scale - np.log(scale)).sum(axis=-1)
    return found
