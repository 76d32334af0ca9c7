"""How fast Nemotron-3-Diarization is at its published size (99M, random weights) on one core.

90 s of audio in the 30.4 s setting, as `sortk diarize` does it, beside the rate of a plain matrix product in that run;
then with int8. The peer, transformers 5.22 with sdpa, took 7.7 CPU s where the product had 77-87 GFLOP/s.
Then the real-time factor of the low-latency presets: above 1, a core does not keep up with the microphone.

CPU time, the best of some runs: what else runs on the machine only adds.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import torch
from bench_diarize import cpu_seconds, make_speech, measure_gemm, tell

from sortk.formats.model_folder import save_model
from sortk.inference.diarize import load
from sortk.models.diarizer import StreamingOptions
from sortk.models.frames import FRAME_SECONDS
from sortk.models.nemotron import LATENCIES, Nemotron, NemotronOptions
from sortk.models.speaker_cache import StreamingStep

SECONDS = 90
PEER_SECONDS, PEER_GEMM = 7.7, 87e9  # the best product of the hour in which the peer was measured
MIN_INT8_RATIO = 1.4


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        options = NemotronOptions()
        save_model(folder, Nemotron(options).state_dict(), {"model": "nemotron", "options": options.to_json()})
        samples = make_speech(SECONDS)
        exact, int8 = load(folder, device="cpu"), load(folder, int8=True)
        gemm, plain, fast = 0.0, float("inf"), float("inf")
        for _ in range(2):  # in turn, so that each has its share of quiet moments
            gemm = max(gemm, measure_gemm())
            plain = min(plain, cpu_seconds(lambda: exact.posteriors_of_samples(samples), 1))
            fast = min(fast, cpu_seconds(lambda: int8.posteriors_of_samples(samples), 1))
        print(f"{SECONDS} s in the 30.4 s setting: {plain:.2f} s; matrix product {gemm / 1e9:.0f} GFLOP/s")
        print(f"against the peer at that rate: {tell(PEER_SECONDS * PEER_GEMM / gemm / plain, 1.0)}")
        print(f"int8: {fast:.2f} s, {tell(plain / fast, MIN_INT8_RATIO)}")
        model = exact.model
        assert isinstance(model, Nemotron)
        for preset in LATENCIES:
            seconds = measure_step(model, model.presets[preset])
            factor = seconds / (model.presets[preset].chunk * FRAME_SECONDS)
            n_cores = math.ceil(factor)
            print(f"latency {preset} s, cache and FIFO full: real-time factor {factor:.2f}, {n_cores} cores")


@torch.inference_mode()
def measure_step(model: Nemotron, options: StreamingOptions) -> float:
    """Return the time of a step whose cache and FIFO are full: the most that a step takes."""
    step = StreamingStep(model, options)
    full = step.start()._replace(n_cache=torch.tensor([options.cache]), n_fifo=torch.tensor([options.fifo]))
    frames = torch.randn(1, options.chunk + options.right_context, model.frame_size)
    return cpu_seconds(lambda: step(full, frames, 0, options.right_context), 3)


if __name__ == "__main__":
    main()
