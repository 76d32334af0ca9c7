"""How fast conversations are simulated on one core, and that memory does not grow with their number.

    simulate to FLAC      against writing the same FLAC files and nothing else, in the same run
    on the fly            no files
    peak memory           after some hours, and after four times as many

Uses the shared AudioMNIST sources if they are beside this checkout, else the embedded voices.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from sortk.corpora.espeak import EspeakOptions, prepare
from sortk.formats import audio, sources
from sortk.prepare.simulate import SimulateOptions, Simulator, index_sources, simulate_set
from sortk.records import Source

SHARED = Path(__file__).parents[3] / "shared" / "data" / "audiomnist" / "sources.jsonl"
NEMO_TIMES_REAL_TIME = 215  # NVIDIA's simulator, one core of such a machine, 90 s sessions to wav


def find_sources(folder: Path) -> list[Source]:
    if SHARED.exists():
        return sources.read(SHARED)
    return prepare(EspeakOptions(speakers=24, utterances_per_speaker=40), folder, 0, map)


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = SimulateOptions()
        began = time.perf_counter()
        speakers = index_sources(find_sources(folder), folder, options.sample_rate, map)
        print(f"index of {len(speakers)} speakers: {time.perf_counter() - began:.1f} s, once for all sessions")

        def to_flac(set_name: str, hours: float) -> float:
            began = time.perf_counter()
            simulate_set(speakers, options, 0, set_name, hours, folder / f"{set_name}.jsonl", map)
            return 3600 * hours / (time.perf_counter() - began)

        to_flac("first", 2.0)
        after_first = peak_megabytes()
        rate = to_flac("second", 6.0)
        after_second = peak_megabytes()

        simulator = Simulator(speakers, options, 0, "memory")
        simulator.render(simulator.plan(0))
        for index in range(60):
            simulator.render(simulator.plan(index))  # decodes what it needs
        began = time.perf_counter()
        rendered = [simulator.render(simulator.plan(index)) for index in range(80)]
        on_the_fly = 80 * options.seconds / (time.perf_counter() - began)

        began = time.perf_counter()
        for index, samples in enumerate(rendered):
            audio.write_flac(folder / "flac" / f"{index}.flac", samples)
        flac_only = sum(len(samples) for samples in rendered) / 16000 / (time.perf_counter() - began)
        assert all(samples.dtype == np.int16 for samples in rendered)

    print(f"simulate to FLAC: {rate:6.0f} x real time, {rate / NEMO_TIMES_REAL_TIME:.1f} x NVIDIA's simulator,")
    print(f"                  {rate / flac_only:.2f} of writing the FLAC files alone ({flac_only:.0f} x)")
    print(
        f"on the fly:       {on_the_fly:6.0f} x real time, {on_the_fly / NEMO_TIMES_REAL_TIME:.0f} x NVIDIA's simulator"
    )
    print(f"peak memory:      {after_first:.0f} MB after 2 h, {after_second:.0f} MB after 8 h")

    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "sortk", "--help"], check=True, stdout=subprocess.DEVNULL)
    print(f"sortk --help:     {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    main()
