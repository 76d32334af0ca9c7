"""How fast Nemotron-3-Diarization is at its published size (99M, random weights) on one core.

90 s of audio in the 30.4 s setting, as `sortk diarize` does it, beside the rate of a plain matrix product in that run;
then with int8. The peer, transformers 5.22 with sdpa, took 7.7 CPU s where the product had 77-87 GFLOP/s.
Then the real-time factor of the low-latency presets: above 1, a core does not keep up with the microphone.

CPU time, the best of some runs: what else runs on the machine only adds.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from bench_diarize import cpu_seconds, make_speech, measure_gemm, tell

from sortk.formats.model_folder import save_model
from sortk.inference.diarize import DiarizeOptions, load
from sortk.models.nemotron import LATENCIES, Nemotron, NemotronOptions

SECONDS, STREAMED_SECONDS = 90, 60
PEER_SECONDS, PEER_GEMM = 7.7, 82e9
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
            plain = min(plain, cpu_seconds(lambda: exact.hear_samples(samples), 1))
            fast = min(fast, cpu_seconds(lambda: int8.hear_samples(samples), 1))
        print(f"{SECONDS} s in the 30.4 s setting: {plain:.2f} s; matrix product {gemm / 1e9:.0f} GFLOP/s")
        print(f"against the peer at that rate: {tell(PEER_SECONDS * PEER_GEMM / gemm / plain, 1.0)}")
        print(f"int8: {fast:.2f} s, {tell(plain / fast, MIN_INT8_RATIO)}")
        for preset in LATENCIES:
            streamed = load(folder, DiarizeOptions(streaming=preset), device="cpu")
            spoken = make_speech(STREAMED_SECONDS)[: (4 * 16000)]
            seconds = cpu_seconds(lambda streamed=streamed, spoken=spoken: streamed.hear_samples(spoken), 1)
            print(f"latency {preset} s, its first 4 s: real-time factor {seconds / 4:.2f}")


if __name__ == "__main__":
    main()
