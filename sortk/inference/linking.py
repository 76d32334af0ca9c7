"""Recordings of any length by a Sortformer that learned from short windows: windows are linked by voice.

To sort speakers by arrival, a model must remember every voice from its first word on; the longer the recording, the
harder this is to learn. Within a short window it is easier. So, as in EEND-VC (Kinoshita et al. 2021), with the frames
of the encoder's lower half, which learned to distinguish voices (`encoder_warmup`), in place of speaker vectors:

1. The model processes overlapping windows. In a window, p_{k,t} is the posterior of its k-th speaker and e_t the
   embedding of frame t, of length 1.
2. Each speaker of a window who speaks gets a vector, in which frames with nobody else count most:

       v_k = sum_t w_{k,t} e_t / ||...||,    w_{k,t} = p_{k,t} (1 - max_{j != k} p_{j,t})^2    where p_{k,t} > 0.5

3. Vectors are clustered: average linkage of cosines, never two of one window. As in k-means, each window then assigns
   its speakers to the clusters, and a cluster's centre c becomes the mean of its vectors, until

       J = sum_i a_i v_i . c_{l(i)} / sum_i a_i                            a_i: time for which i speaks alone

   no longer grows. Two speakers of a window may be in one cluster, because the model may take one voice for two, but
   that costs SHARED of the cosine of one of them. A cluster without which J falls by less than `min_gain` is removed.
   Speakers with little time alone join the closest cluster in the end.
4. A cluster is a speaker of the recording. A turn in which a speaker of a window speaks alone for at least 0.64 s goes
   to the speaker whose centre is closest to the turn's own mean embedding: the model may take two voices for one. Where
   windows overlap, posteriors are averaged, and the middle of a window counts more than its edges. Speakers are sorted
   by arrival.

5. Where silero-vad finds no speech, nobody speaks (`speech`): a small model takes some noises for voices.

The number of speakers is not limited. Of a recording, only posteriors and vectors are kept. A model folder
whose config.json has the key "linking" is used this way, unless it is streamed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import linear_sum_assignment
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from sortk.formats.audio import Samples
from sortk.inference.postprocess import Ints
from sortk.models.blocks import cluster
from sortk.models.diarizer import DiarizerModel
from sortk.models.frames import HOP_SAMPLES, MEL_PER_FRAME, SAMPLE_RATE, SpeakerOutput, count_frames
from sortk.options import Options, option
from sortk.prepare.activity import WINDOW

Floats = npt.NDArray[np.float32]

ACTIVE = 0.5  # posterior above which a speaker of a window speaks
MIN_ACTIVE = 4  # frames in which a speaker of a window must speak to be one
MIN_TURN = 8  # frames of a turn whose voice is looked at by itself
WINDOWS_TOGETHER = 6  # that are processed in one batch; more are not faster on a CPU
CLUSTERED_TOGETHER = 1000  # vectors, about an hour: the time of clustering grows with their cube
SPEECH_MARGIN_SECONDS = 0.3  # around speech that silero-vad finds
SHARED = 0.1  # of a cosine, that it costs to be in one cluster with another speaker of the window
FORBIDDEN = -1e3  # instead of a cosine
ITERATIONS = 8  # of assigning vectors to centres; a handful is enough
MAX_OVERLAP = 8  # windows that hold a frame: the time that a recording takes grows with it
FRAME_SAMPLES = HOP_SAMPLES * MEL_PER_FRAME


@dataclass(frozen=True)
class LinkingOptions(Options):
    """How windows are cut and linked. Lengths are in frames of 80 ms."""

    window: int = option(188, at_least=1, at_most=7500)
    step: int = option(94, at_least=1, at_most=7500)  # from one window to the next
    threshold: float = option(0.7, at_least=-1, at_most=1)  # mean cosine from which two clusters are joined at first
    min_alone: int = option(12, at_least=0, at_most=7500)  # time alone that a speaker of a window needs to be clustered
    min_cluster: int = option(25, at_least=0, at_most=1_000_000)  # time alone that a cluster needs
    min_gain: float = option(0.02, at_least=0, at_most=1)  # of J, by each speaker of the recording
    speech: float = option(0.0, at_least=0, at_most=1)  # probability of speech below which nobody speaks; 0: unused

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.window <= MAX_OVERLAP * self.step <= MAX_OVERLAP * self.window:
            least = -(-self.window // MAX_OVERLAP)
            raise ValueError(f"step must be from {least} to {self.window} for this window, got {self.step}")


class LocalTurn(NamedTuple):
    """Frames of a window in which one speaker speaks alone."""

    column: int
    first: int
    end: int
    vector: Floats  # (d,)


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


def process_windows(model: DiarizerModel, windows: Iterator[tuple[int, Samples]]) -> Iterator[Window]:
    """Yield what the model says about each window."""
    device = model.features.window.device
    while together := list(itertools.islice(windows, WINDOWS_TOGETHER)):
        lengths = torch.tensor([len(samples) for _, samples in together], device=device)
        padded = pad_sequence([torch.from_numpy(samples) for _, samples in together], batch_first=True).to(device)
        with torch.inference_mode():
            output: SpeakerOutput = model(padded, None if len({*lengths.tolist()}) == 1 else lengths)
            probs = output.speaker_probs.float().cpu().numpy()
            embeddings = functional.normalize(output.embeddings.float(), dim=2).cpu().numpy()
        for (first, _), n_frames, own, frames in zip(
            together, count_frames(lengths).tolist(), probs, embeddings, strict=True
        ):
            yield describe_window(first, own[:n_frames], frames[:n_frames])


def describe_window(first: int, probs: Floats, embeddings: Floats) -> Window:
    """(frames, speakers), (frames, d) of length 1 -> the window, with a vector for each speaker who speaks."""
    active = probs > ACTIVE
    columns = np.flatnonzero(active.sum(axis=0) >= MIN_ACTIVE)
    vectors, alone = np.zeros((len(columns), embeddings.shape[1]), np.float32), np.zeros(len(columns), np.float32)
    for row, column in enumerate(columns):
        others = np.delete(probs, column, axis=1).max(axis=1, initial=0.0)
        weights = np.where(active[:, column], probs[:, column] * np.maximum(1 - others, 1e-3) ** 2, 0)
        vector = weights @ embeddings
        vectors[row] = vector / max(float(np.linalg.norm(vector)), 1e-6)
        alone[row] = (active[:, column] & (others <= ACTIVE)).sum()
    speaker = np.where(active.sum(axis=1) == 1, active.argmax(axis=1), -1)
    edges = [0, *(np.flatnonzero(np.diff(speaker)) + 1).tolist(), len(speaker)]
    turns = tuple(
        LocalTurn(int(speaker[start]), start, end, embeddings[start:end].mean(axis=0))
        for start, end in itertools.pairwise(edges)
        if end - start >= MIN_TURN and speaker[start] >= 0
    )
    return Window(first, probs, tuple(columns.tolist()), vectors, alone, turns)


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
    windows: Sequence[Window], options: LinkingOptions, fewest: int = 1, most: int | None = None, n_columns: int = 1
) -> Floats:
    """Return the posteriors of the recording, (frames, speakers), sorted by arrival.

    `fewest` and `most` bound the number of speakers that are looked for. There are at least `n_columns` columns.
    """
    n_frames = max((window.first + len(window.probs) for window in windows), default=0)
    labels, centres = label_speakers(windows, options, fewest, most)
    total = np.zeros((n_frames, max(n_columns, len(centres))), np.float32)
    weight = np.zeros((n_frames, 1), np.float32)
    for window, own in zip(windows, labels, strict=True):
        label_of = dict(zip(window.columns, own, strict=True))
        said = np.zeros((len(window.probs), total.shape[1]), np.float32)
        for column, label in label_of.items():
            said[:, label] = np.maximum(said[:, label], window.probs[:, column])
        for turn in window.turns:
            closest, frames = int((centres @ turn.vector).argmax()), slice(turn.first, turn.end)
            if closest != label_of[turn.column]:
                said[frames] = 0
                said[frames, closest] = window.probs[frames, turn.column]
        place = np.arange(len(said)) + 0.5
        trust = np.minimum(place, options.window - place)[:, None].astype(np.float32)  # less at the edges
        inside = slice(window.first, window.first + len(said))
        total[inside] += trust * said
        weight[inside] += trust
    probs = (total / np.maximum(weight, 1e-6)).astype(np.float32)
    active = np.vstack([probs > ACTIVE, np.ones((1, probs.shape[1]), np.bool_)])  # who never speaks comes last
    return probs[:, np.argsort(active.argmax(axis=0), kind="stable")]


def label_speakers(
    windows: Sequence[Window], options: LinkingOptions, fewest: int = 1, most: int | None = None
) -> tuple[list[list[int]], Floats]:
    """Return a label 0, 1, ... for each speaker of each window, and the centres of the clusters, (labels, d)."""
    group = np.array([number for number, window in enumerate(windows) for _ in window.columns], np.int64)
    if len(group) == 0:
        return [[] for _ in windows], np.zeros((0, 0), np.float32)
    vectors = np.concatenate([window.vectors for window in windows])
    alone = np.concatenate([window.alone for window in windows])
    sure = np.flatnonzero(alone >= min(options.min_alone, alone.max()))
    labels = np.full(len(group), -1)
    labels[sure], centres = find_speakers(vectors[sure], alone[sure] + 1, group[sure], options, fewest, most)
    for index in np.argsort(-alone, kind="stable"):  # those who speak longest choose first
        if labels[index] < 0:
            taken = np.isin(np.arange(len(centres)), labels[group == group[index]])
            labels[index] = (centres @ vectors[index] - SHARED * taken).argmax()
    return [labels[group == number].tolist() for number in range(len(windows))], centres


def find_speakers(
    vectors: Floats, times: Floats, group: Ints, options: LinkingOptions, fewest: int, most: int | None
) -> tuple[Ints, Floats]:
    """(n, d), (n,), (n,) -> n labels, and the centres of the clusters, (labels, d)."""
    labels = _cluster(vectors, times, group, options.threshold, fewest, most)
    time_of = np.bincount(labels, times)
    kept = np.argsort(-time_of, kind="stable")[: max(fewest, int((time_of >= options.min_cluster).sum()), 1)]
    centres = _mean_vectors(vectors, times, np.where(np.isin(labels, kept), labels, -1))[kept]
    windows = [np.flatnonzero(group == number) for number in np.unique(group)]
    labels, centres = _assign(vectors, times, windows, centres)
    while len(centres) > fewest:
        # What J loses without each of the clusters; only their own windows have to choose again.
        cosines = vectors @ centres.T
        loss = np.zeros(len(centres))
        for rows in windows:
            total = _choose(cosines[rows], times[rows])[1]
            for label in set(labels[rows].tolist()):
                loss[label] += total - _choose(np.delete(cosines[rows], label, axis=1), times[rows])[1]
        weakest = int(loss.argmin())
        if loss[weakest] >= options.min_gain * times.sum() and (most is None or len(centres) <= most):
            break
        labels, centres = _assign(vectors, times, windows, np.delete(centres, weakest, axis=0))
    return labels, centres


def _assign(vectors: Floats, times: Floats, windows: Sequence[Ints], centres: Floats) -> tuple[Ints, Floats]:
    """Return labels and centres after the iteration of step 3. `windows` are the rows of the vectors of each one."""
    labels = np.full(len(vectors), -1)
    for _ in range(ITERATIONS):
        before, cosines = labels.copy(), vectors @ centres.T
        for rows in windows:
            labels[rows], _total = _choose(cosines[rows], times[rows])
        if np.array_equal(labels, before):
            break
        moved = _mean_vectors(vectors, times, labels, len(centres))
        centres = np.where(moved.any(axis=1, keepdims=True), moved, centres)  # an empty cluster stays where it is
    return labels, centres


def _choose(cosines: Floats, times: Floats) -> tuple[Ints, float]:
    """(speakers of a window, clusters), (speakers,) -> the labels with the largest sum of a_i v_i . c, and that sum.

    A speaker can also share the closest cluster with another one, which costs SHARED of the cosine.
    """
    n_speakers, n_clusters = cosines.shape
    closest = cosines.argmax(axis=1) if n_clusters else np.zeros(n_speakers, np.int64)
    alternative = cosines.max(axis=1, initial=-1.0) - SHARED
    own = np.where(np.eye(n_speakers, dtype=np.bool_), alternative[:, None], FORBIDDEN)  # a column for each speaker
    gains = times[:, None] * np.hstack([cosines, own])
    rows, columns = linear_sum_assignment(gains, maximize=True)
    return np.where(columns < n_clusters, columns, closest), float(gains[rows, columns].sum())


def _mean_vectors(vectors: Floats, times: Floats, labels: Ints, n_labels: int = 0) -> Floats:
    """Return the mean direction of each label, (labels, d); 0 for one without a vector."""
    sums = np.zeros((max(n_labels, int(labels.max()) + 1), vectors.shape[1]), np.float32)
    np.add.at(sums, labels[labels >= 0], (times[:, None] * vectors)[labels >= 0])
    means: Floats = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-6)
    return means


def _cluster(vectors: Floats, times: Floats, group: Ints, threshold: float, fewest: int, most: int | None) -> Ints:
    """(n, d), (n,), (n,) -> n labels. Many vectors are clustered in parts, and then the means of these clusters."""
    if len(vectors) <= CLUSTERED_TOGETHER:
        similarity = (vectors @ vectors.T).astype(np.float64)
        return np.array(cluster(similarity, group, threshold, times.astype(np.float64), fewest, most))
    labels = np.zeros(len(vectors), np.int64)
    n_found, time_of = 0, []
    for first in range(0, len(vectors), CLUSTERED_TOGETHER):
        part = slice(first, first + CLUSTERED_TOGETHER)
        own = _cluster(vectors[part], times[part], group[part], threshold, fewest, most)
        time_of.append(np.bincount(own, times[part]))
        labels[part] = own + n_found
        n_found += len(time_of[-1])
    means = _mean_vectors(vectors, times, labels)
    of_means = _cluster(means, np.concatenate(time_of).astype(np.float32), np.arange(n_found), threshold, fewest, most)
    return of_means[labels]
