"""Recordings of any length by a Sortformer that learned from short windows: windows are linked by voice.

To sort speakers by arrival, a model must remember every voice from its first word on; the longer the recording, the
harder this is to learn. Within a short window it is easy. So, as in EEND-VC (Kinoshita et al. 2021), with the frames of
the encoder's lower half, which learned to distinguish voices (`encoder_warmup`), in place of learned speaker vectors:

1. The model processes overlapping windows. In a window, p_{k,t} is the posterior of its k-th speaker and e_t the
   embedding of frame t, of length 1.
2. Each speaker of a window who speaks gets a vector, in which frames with nobody else count most:

       v_k = sum_t w_{k,t} e_t / ||...||,    w_{k,t} = p_{k,t} (1 - max_{j != k} p_{j,t})^2    where p_{k,t} > 0.5

3. Vectors are clustered: average linkage of cosines, weighted by the time for which a speaker speaks alone, and never
   two of one window. Speakers with little time alone, and clusters with little time, join the closest cluster.
4. A cluster is a speaker of the recording. Where windows overlap, posteriors are averaged, and the middle of a window
   counts more than its edges. Speakers are sorted by arrival.

The number of speakers is not limited. Of a recording, only posteriors and vectors are kept. A model folder
whose config.json has the key "linking" is used this way, unless it is streamed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from sortk.formats.audio import Samples
from sortk.models.blocks import cluster
from sortk.models.diarizer import DiarizerModel
from sortk.models.frames import HOP_SAMPLES, MEL_PER_FRAME, SpeakerOutput, count_frames
from sortk.options import Options, option

Floats = npt.NDArray[np.float32]

ACTIVE = 0.5  # posterior above which a speaker of a window speaks
MIN_ACTIVE = 4  # frames in which a speaker of a window must speak to be one
WINDOWS_TOGETHER = 6  # that are processed in one batch; more are not faster on a CPU
CLUSTERED_TOGETHER = 1000  # vectors, about an hour: the time of clustering grows with their cube
FRAME_SAMPLES = HOP_SAMPLES * MEL_PER_FRAME


@dataclass(frozen=True)
class LinkingOptions(Options):
    """How windows are cut and linked. Lengths are in frames of 80 ms."""

    window: int = option(188, at_least=1, at_most=7500)
    step: int = option(94, at_least=1, at_most=7500)  # from one window to the next
    threshold: float = option(0.6, at_least=-1, at_most=1)  # mean cosine from which two clusters are one speaker
    min_alone: int = option(12, at_least=0)  # time alone that a speaker of a window needs to be clustered
    min_cluster: int = option(12, at_least=0)  # time alone that a cluster needs to be a speaker

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step > self.window:
            raise ValueError(f"step must be at most window ({self.window}), got {self.step}")


@dataclass(frozen=True)
class Window:
    """What the model says about a window; the vectors and times are of the speakers who speak in it."""

    first: int  # frame of the recording
    probs: Floats  # (frames, speakers)
    columns: tuple[int, ...]  # of `probs`, of those who speak
    vectors: Floats  # (len(columns), d), of length 1
    alone: Floats  # (len(columns),): frames in which only this one speaks


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
    return Window(first, probs, tuple(columns.tolist()), vectors, alone)


def join_windows(
    windows: Sequence[Window], options: LinkingOptions, fewest: int = 1, most: int | None = None, n_columns: int = 1
) -> Floats:
    """Return the posteriors of the recording, (frames, speakers), sorted by arrival.

    `fewest` and `most` bound the number of speakers that are looked for. There are at least `n_columns` columns.
    """
    n_frames = max((window.first + len(window.probs) for window in windows), default=0)
    labels = label_speakers(windows, options, fewest, most)
    total = np.zeros((n_frames, max([n_columns, *(1 + label for own in labels for label in own)])), np.float32)
    weight = np.zeros((n_frames, 1), np.float32)
    for window, own in zip(windows, labels, strict=True):
        inside = slice(window.first, window.first + len(window.probs))
        place = np.arange(len(window.probs)) + 0.5
        trust = np.minimum(place, options.window - place).astype(np.float32)  # less at the edges
        weight[inside, 0] += trust
        for column, label in zip(window.columns, own, strict=True):
            if label >= 0:
                total[inside, label] += trust * window.probs[:, column]
    probs: Floats = (total / np.maximum(weight, 1e-6)).astype(np.float32)
    active = np.vstack([probs > ACTIVE, np.ones((1, probs.shape[1]), np.bool_)])  # who never speaks comes last
    return probs[:, np.argsort(active.argmax(axis=0), kind="stable")]


def label_speakers(
    windows: Sequence[Window], options: LinkingOptions, fewest: int = 1, most: int | None = None
) -> list[list[int]]:
    """Return a label 0, 1, ... for each speaker of each window; -1 for one who cannot be any of the speakers found."""
    group = np.array([number for number, window in enumerate(windows) for _ in window.columns], np.int64)
    if len(group) == 0:
        return [[] for _ in windows]
    vectors = np.concatenate([window.vectors for window in windows])
    alone = np.concatenate([window.alone for window in windows])
    sure = np.flatnonzero(alone >= min(options.min_alone, alone.max()))
    labels = np.full(len(group), -1)
    labels[sure] = _cluster(vectors[sure], alone[sure], group[sure], options.threshold, fewest, most)
    n_found = labels.max() + 1
    time = np.bincount(labels[sure], alone[sure], n_found)
    kept = np.argsort(-time, kind="stable")[: max(fewest, int((time >= options.min_cluster).sum()), 1)]
    labels = np.where(np.isin(labels, kept), labels, -1)
    centres = np.stack([(alone[labels == label] + 1) @ vectors[labels == label] for label in kept])
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    for index in np.argsort(-alone, kind="stable"):  # those who speak longest choose first
        if labels[index] < 0:
            free = [n for n, label in enumerate(kept) if label not in labels[group == group[index]]]
            if free:
                labels[index] = kept[max(free, key=lambda n: float(vectors[index] @ centres[n]))]
    number_of = {label: number for number, label in enumerate(kept.tolist())}
    return [[number_of.get(label, -1) for label in labels[group == number].tolist()] for number in range(len(windows))]


def _cluster(
    vectors: Floats, alone: Floats, group: npt.NDArray[np.int64], threshold: float, fewest: int, most: int | None
) -> npt.NDArray[np.int64]:
    """(n, d), (n,), (n,) -> n labels. Many vectors are clustered in parts, and then the means of these clusters."""
    sizes = (alone + 1).astype(np.float64)
    if len(vectors) <= CLUSTERED_TOGETHER:
        similarity = (vectors @ vectors.T).astype(np.float64)
        return np.array(cluster(similarity, group, threshold, sizes, fewest, most))
    labels = np.zeros(len(vectors), np.int64)
    n_found, means, times = 0, [], []
    for first in range(0, len(vectors), CLUSTERED_TOGETHER):
        part = slice(first, first + CLUSTERED_TOGETHER)
        own = _cluster(vectors[part], alone[part], group[part], threshold, fewest, most)
        for label in range(own.max() + 1):
            mean = sizes[part][own == label] @ vectors[part][own == label]
            means.append(mean / np.linalg.norm(mean))
            times.append(alone[part][own == label].sum())
        labels[part] = own + n_found
        n_found += own.max() + 1
    of_means = _cluster(
        np.stack(means).astype(np.float32), np.array(times, np.float32), np.arange(n_found), threshold, fewest, most
    )
    return of_means[labels]
