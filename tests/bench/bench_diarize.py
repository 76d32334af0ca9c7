"""How fast the 123M model and the one that comes with sortk are on one core, and how much memory recordings take.

1. 90 s of audio: the model's own floating-point operations, counted, per second, against the rate of a plain matrix
   product of its size in the same run. Then with int8, beside the ratio of the same matrix product with int8 and
   without, which is what the processor can gain; and what it changes in the posteriors (random weights).
2. 10 minutes and 1 hour in steps: time per second of audio, and the peak of memory, each in a process of its own;
   `bench_diarize.py 10 60 240` takes other minutes. Then 8 hours with a tiny model, whose time and memory are mostly
   those of reading.
3. The model that comes with sortk on 5 minutes, in onnxruntime and in torch, in turn; then `sortk diarize` with all its
   imports, in a process of its own.

CPU time, the best of some runs: what else runs on the machine only adds.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import soundfile
import torch
from torch import nn
from torch.nn import functional

from sortk.formats.hub import SHIPPED_MODEL
from sortk.formats.model_folder import save_model
from sortk.inference.diarize import DiarizeOptions, Diarizer, load
from sortk.inference.int8 import Int8Linear
from sortk.inference.load import load_diarizer
from sortk.models.frames import count_frames
from sortk.models.sortformer import SIZES, Sortformer, SortformerOptions

SECONDS = 90
GEMM_FLOPS = 2 * 1125 * 512 * 2048
SHIPPED_SECONDS = 300
MIN_SHARE_OF_GEMM, MIN_INT8_RATIO, MAX_GIGABYTES = 0.65, 1.4, 2.5
DIARIZE = """if True:
    import sys, time
    from pathlib import Path
    from sortk.cli import main
    main(["diarize", sys.argv[1]], standalone_mode=False)
    peak = Path("/proc/self/status").read_text(encoding="utf-8").split("VmHWM:")[1].split()[0]
    print(time.process_time(), peak, file=sys.stderr)"""
MIN_ONNX_RATIO, MIN_REAL_TIME, MAX_SHIPPED_GIGABYTES = 1.0, 100, 0.4


def count_flops(options: SortformerOptions, n_frames: int) -> float:
    """Two for each weight and frame, and the products of attention; nothing for norms, softmax and the like.

    Projected positions are kept between clips, so they are not counted.
    """
    encoder, transformer = options.encoder, options.transformer
    d, inner, channels = encoder.d_model, encoder.d_model * encoder.ff_expansion, encoder.subsampling_channels
    n_bins = options.features.n_mels // 8
    layer = 2 * 2 * d * inner + 4 * d * d + 3 * n_frames * d + (2 * d + d) * d + encoder.conv_kernel * d
    below = 9 * channels * 64 * n_bins / 4 + (9 + channels) * channels * n_bins * (4 + 1) + channels * n_bins * d
    d, inner = transformer.d_model, transformer.d_inner
    above = transformer.n_layers * (2 * d * inner + 4 * d * d + 2 * n_frames * d) + encoder.d_model * d + d * d
    return 2.0 * n_frames * (encoder.n_layers * layer + below + above)


def cpu_seconds(work: Callable[[], object], repeats: int) -> float:
    fastest = float("inf")
    for _ in range(repeats):
        began = time.process_time()
        work()
        fastest = min(fastest, time.process_time() - began)
    return fastest


def measure_gemm() -> float:
    """Operations per second of the product that a feed-forward layer is."""
    x, weight = torch.randn(1125, 512), torch.randn(2048, 512)
    return GEMM_FLOPS / cpu_seconds(lambda: functional.linear(x, weight), 20)


def measure_int8_gemm() -> float:
    """The same, with int8."""
    x, linear = torch.randn(1125, 512), Int8Linear(nn.Linear(512, 2048, bias=False))
    return GEMM_FLOPS / cpu_seconds(lambda: linear(x), 20)


def make_speech(seconds: int) -> np.ndarray:
    """Noise that comes and goes."""
    rng = np.random.default_rng(0)
    loudness = np.repeat(rng.choice([0.0, 0.02, 0.2], seconds), 16000)
    return (loudness * rng.standard_normal(16000 * seconds)).astype(np.float32)


def bench_90_seconds(folder: Path) -> None:
    samples = make_speech(SECONDS)
    exact, int8 = load(folder, device="cpu"), load(folder, int8=True)
    probs, rounded = (
        exact.posteriors_of_samples(samples),
        int8.posteriors_of_samples(samples),
    )
    gemm, int8_gemm, plain, fast = 0.0, 0.0, float("inf"), float("inf")
    for _ in range(3):  # in turn, so that each has its share of quiet moments
        gemm, int8_gemm = max(gemm, measure_gemm()), max(int8_gemm, measure_int8_gemm())
        plain = min(plain, cpu_seconds(lambda: exact.posteriors_of_samples(samples), 1))
        fast = min(fast, cpu_seconds(lambda: int8.posteriors_of_samples(samples), 1))
    rate = count_flops(SIZES["base"], count_frames(len(samples))) / plain
    print(f"{SECONDS} s: {plain:.2f} s, real-time factor {plain / SECONDS:.4f}")
    print(f"{rate / 1e9:.0f} GFLOP/s, matrix product {gemm / 1e9:.0f}: {tell(rate / gemm, MIN_SHARE_OF_GEMM)}")
    limit = f"the matrix product alone {int8_gemm / gemm:.2f} x"
    print(f"int8: {fast:.2f} s, {tell(plain / fast, MIN_INT8_RATIO)}; {limit}")
    difference, turned = np.abs(probs - rounded), (probs > 0.5) != (rounded > 0.5)
    print(f"      posteriors differ by {difference.mean():.5f}, at most {difference.max():.4f}")
    print(f"      decisions at 0.5 differ in {turned.mean():.3%}")


def tell(ratio: float, least: float) -> str:
    return f"{ratio:.2f} x ({least} wanted{'' if ratio >= least else ': MISSED'})"


def bench_long(folder: Path, minutes: Sequence[int], size: str) -> None:
    for length in minutes:
        with tempfile.TemporaryDirectory() as temporary:
            path = Path(temporary) / "long.flac"
            write_looped(path, length)
            command = [sys.executable, __file__, "--one", str(folder), str(path)]
            told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        seconds, gigabytes = float(told[0]), float(told[1])
        factor = seconds / 60 / length
        print(f"{size}, {length} min in steps: {seconds:.1f} s, real-time factor {factor:.4f}, peak {gigabytes:.2f} GB")
        assert gigabytes < MAX_GIGABYTES


def bench_shipped() -> None:
    samples = make_speech(SHIPPED_SECONDS)
    loaded = load_diarizer(SHIPPED_MODEL)
    loaded.model.freeze_for_inference()
    diarizers = {"onnxruntime": load(device="cpu"), "torch": Diarizer(loaded)}
    seconds = dict.fromkeys(diarizers, float("inf"))
    for _ in range(3):
        for name, diarizer in diarizers.items():
            spent = cpu_seconds(lambda chosen=diarizer: chosen.posteriors_of_samples(samples), 1)  # type: ignore[misc]
            seconds[name] = min(seconds[name], spent)
    times = ", ".join(f"{name} {spent:.2f} s" for name, spent in seconds.items())
    ratio = tell(seconds["torch"] / seconds["onnxruntime"], MIN_ONNX_RATIO)
    print(f"the model of sortk, {SHIPPED_SECONDS} s: {times}; onnxruntime is as fast as torch {ratio}")
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "talk.wav"
        soundfile.write(path, samples, 16000)
        command = [sys.executable, "-c", DIARIZE, str(path)]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stderr.split()[-2:]
    spent, gigabytes = float(told[0]), int(told[1]) / 1e6
    speed = tell(SHIPPED_SECONDS / spent, MIN_REAL_TIME)
    print(f"`sortk diarize`: {spent:.2f} s with imports, real time {speed}, peak {gigabytes:.2f} GB")
    assert gigabytes < MAX_SHIPPED_GIGABYTES


def write_looped(path: Path, minutes: int) -> None:
    block = make_speech(60)
    with soundfile.SoundFile(path, "w", 16000, 1) as file:
        for _ in range(minutes):
            file.write(block)


def diarize_one(folder: Path, path: Path) -> None:
    """CPU seconds and gigabytes at the peak."""
    diarizer: Diarizer = load(folder, DiarizeOptions(whole_seconds=0), device="cpu")
    seconds = cpu_seconds(lambda: diarizer(path), 1)
    # Not `resource.getrusage`: its peak is that of the process which started this one, if that was larger.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    print(seconds, int(status.split("VmHWM:")[1].split()[0]) / 1e6)


def save_random(folder: Path, size: str) -> Path:
    torch.manual_seed(0)
    config = {"model": "sortformer", "options": SIZES[size].to_json()}
    save_model(folder / size, Sortformer(SIZES[size]).state_dict(), config)
    return folder / size


def main() -> None:
    torch.set_num_threads(1)
    if "--one" in sys.argv:
        diarize_one(*map(Path, sys.argv[2:4]))
        return
    with tempfile.TemporaryDirectory() as temporary:
        base, tiny = save_random(Path(temporary), "base"), save_random(Path(temporary), "tiny")
        bench_shipped()
        bench_90_seconds(base)
        bench_long(tiny, [10, 480], "tiny")
        bench_long(base, [int(minutes) for minutes in sys.argv[1:]] or [10, 60], "base")


if __name__ == "__main__":
    main()
