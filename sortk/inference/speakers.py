"""How many speakers a recording has, when a user knows it: posteriors that keep to that number.

Speakers are columns of the posteriors, by arrival. Their strength is the sum of a column: the expected time that a
speaker speaks.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

ACTIVE = 0.5  # posterior above which a speaker speaks
RAISED = 0.75  # the highest posterior of a speaker who must be there, but is never active

Posteriors = npt.NDArray[np.float32]


def keep_strongest(probs: Posteriors, n_speakers: int) -> Posteriors:
    """The strongest columns, in the order in which they were. What others say is said by the likeliest of these."""
    if n_speakers >= probs.shape[1]:
        return probs
    strongest = np.sort(np.argsort(-probs.sum(axis=0), kind="stable")[:n_speakers])
    others = np.setdiff1d(np.arange(probs.shape[1]), strongest)
    return merge_columns(probs, strongest, others)


def merge_columns(probs: Posteriors, kept: npt.NDArray[np.intp], others: npt.NDArray[np.intp]) -> Posteriors:
    """The kept columns; where another one is higher, the likeliest of the kept has its value."""
    if len(probs) == 0:
        return probs[:, kept]
    merged, most = probs[:, kept].copy(), probs[:, others].max(axis=1)
    frame, likeliest = np.arange(len(merged)), merged.argmax(axis=1)
    merged[frame, likeliest] = np.maximum(merged[frame, likeliest], most)
    return merged


def raise_weak(probs: Posteriors, n_speakers: int) -> Posteriors:
    """At least so many columns that are active somewhere: the strongest of the silent ones are scaled until they are.

    A guess: such a speaker is where the model thought of one, but did not believe it.
    """
    if len(probs) == 0:
        return probs
    highest = probs.max(axis=0)
    n_missing = min(n_speakers, probs.shape[1]) - int((highest > ACTIVE).sum())
    if n_missing <= 0:
        return probs
    silent = [int(column) for column in np.argsort(-probs.sum(axis=0), kind="stable") if highest[column] <= ACTIVE]
    raised = probs.copy()
    for column in silent[:n_missing]:
        if highest[column] > 0:
            raised[:, column] *= RAISED / highest[column]
    return raised
