"""Measures how voices and their vectors vary, and writes the space in which windows are linked (voices.safetensors).

    python recipes/small/voices.py --exp exp/small --corpora /data --model small --out small/voices.safetensors

In simulated sessions with voices of the training, each speaker of a window is named by the reference. The covariance of
vectors of one voice (W) and that of voices within a session (B) are diagonalised together, as in LDA: in the N_AXES
directions that separate voices best, W is the identity and B is diagonal.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy.linalg
import torch
from evaluate import make_sets

from sortk.formats import audio, rttm
from sortk.formats.model_folder import save_tensors
from sortk.inference.diarize import load
from sortk.inference.linking import ACTIVE, LinkingOptions, cut_windows, process_windows
from sortk.models.frames import count_frames
from sortk.records import SAMPLE_RATE, Session
from sortk.training.targets import frame_targets

SESSIONS = 16  # of each set
MIN_ALONE = 12  # frames
PURITY = 0.9  # share of the time alone in which the reference has the same speaker
SHRINK = 0.1  # of W, towards a multiple of the identity: there are few voices
N_AXES = 64

# The variance of a vector is NOISE / frames. Measured: 65 / frames, on voices of the training and of the validation
# alike. Five times as much was best on validation sessions: frames that follow each other, and windows that overlap,
# are no independent measurements. Voices of the training are further apart than others, so their variance is halved.
NOISE = 325.0
UNSEEN = 0.5

Doubles = npt.NDArray[np.float64]


def collect_vectors(model: Path, sessions: list[Session]) -> tuple[Doubles, Doubles, list[tuple[str, int]]]:
    """Return the vectors, (n, d), of the speakers of all windows, their times alone in frames, and whose they are."""
    diarizer, options = load(model), LinkingOptions()
    vectors, times, voices = [], [], []
    for session in sessions:
        assert session.rttm_path is not None
        samples = audio.read(session.audio_path, sample_rate=SAMPLE_RATE)
        spoken, _ = frame_targets(rttm.read(session.rttm_path), 0.0, count_frames(len(samples)), 4)
        for window in process_windows(diarizer.loaded.run_windows, cut_windows([samples], options)):
            own = spoken[window.first : window.first + len(window.probs)]
            active = window.probs > ACTIVE
            is_alone = active & (active.sum(axis=1, keepdims=True) == 1)
            for column, vector, alone in zip(window.columns, window.vectors, window.alone, strict=True):
                said = own[is_alone[:, column]].sum(axis=0)
                if alone >= MIN_ALONE and said.max() >= PURITY * alone:
                    vectors.append(vector)
                    times.append(alone)
                    voices.append((session.session_id, int(said.argmax())))
    return np.array(vectors, np.float64), np.array(times, np.float64), voices


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exp", type=Path, required=True)
    parser.add_argument("--corpora", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sets = make_sets(options.exp, options.corpora, "train", SESSIONS)
    sessions = [session for own in sets.values() for session in own[:SESSIONS]]
    vectors, times, names = collect_vectors(options.model, sessions)
    found = sorted(set(names))
    voice = np.array([found.index(name) for name in names])
    means = np.stack([np.average(vectors[voice == n], axis=0, weights=times[voice == n]) for n in range(len(found))])
    within = np.cov(vectors - means[voice], rowvar=False, aweights=times, ddof=0)
    within = (1 - SHRINK) * within + SHRINK * np.trace(within) / len(within) * np.eye(len(within))
    centred = means.copy()
    for session_id in {name for name, _ in found}:
        own = np.array([name == session_id for name, _ in found])
        centred[own] -= means[own].mean(axis=0)
    between = centred.T @ centred / (len(found) - len(sessions))
    spread, axes = scipy.linalg.eigh(between, within)  # ascending; axes.T @ within @ axes is the identity
    spread, axes = spread[::-1][:N_AXES], axes[:, ::-1][:, :N_AXES]
    print(f"{len(vectors)} vectors of {len(found)} voices in {len(sessions)} sessions")
    space = {"mean": means.mean(axis=0), "axes": axes / NOISE**0.5, "spread": UNSEEN * spread / NOISE}
    save_tensors(options.out, {name: torch.from_numpy(values.copy()).float() for name, values in space.items()})


if __name__ == "__main__":
    main()
