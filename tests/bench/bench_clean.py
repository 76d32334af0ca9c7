"""Speed of stage 2 on one core: cutting and judging, and detecting speech against silero-vad's own loop."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TypeVar

from sortk.formats import audio, rttm, seglst
from sortk.prepare.activity import DetectorOptions, detect_speech, load_network
from sortk.prepare.clean import CleanOptions, clean_sets
from sortk.prepare.timestamps import TimestampOptions
from sortk.records import Segment, Session

SHARED = Path(__file__).parents[3] / "shared" / "data"
WORDS = TimestampOptions()
Result = TypeVar("Result")


def make_meeting(folder: Path, name: str, seconds: float) -> Session:
    """Four speakers, as dense as AMI: a turn every two seconds, overlaps and pauses, three words a second."""
    rng, at, said = Random(name), 0.0, []
    while at < seconds - 10:
        length = min(rng.expovariate(0.4) + 0.3, 9)
        text = " ".join(rng.choice(["so", "remote", "yeah", "control", "animal"]) for _ in range(round(3 * length) + 1))
        said.append(Segment(name, f"spk{rng.randrange(4)}", round(at, 2), round(at + length, 2), text))
        at = max(0.0, at + length + rng.uniform(-1.2, 1.2))
    rttm.write(folder / f"{name}.rttm", said)
    seglst.write(folder / f"{name}.json", said)
    return Session(
        name,
        folder / f"{name}.flac",
        duration=seconds,
        rttm_path=folder / f"{name}.rttm",
        seglst_path=folder / f"{name}.json",
    )


def measure(work: Callable[[], Result]) -> tuple[Result, float]:
    """The result and the CPU seconds."""
    start = time.process_time()
    result = work()
    return result, time.process_time() - start


def bench_cutting(folder: Path, count: int, seconds: float) -> None:
    sessions = [make_meeting(folder / "in", f"m{seconds:.0f}-{n}", seconds) for n in range(count)]
    _, spent = measure(
        lambda: clean_sets({"x": sessions}, CleanOptions(sad="none", check_audio=False), WORDS, folder / f"out{count}")
    )
    speed = count * seconds / spent
    print(f"clean, sad none, {count} sessions of {seconds:.0f} s: {speed:,.0f} x real time (target 5,000)")


def bench_detection(folder: Path) -> None:
    import silero_vad
    import torch

    torch.set_num_threads(1)
    clips = sorted((SHARED / "conversation" / "flac").glob("*.flac"))[:5]
    clips += sorted((SHARED / "librispeech_sub" / "flac").glob("*.flac"))[:10]
    if not clips:
        print("clean, sad silero: not measured, the shared speech data is not here")
        return
    seconds = sum(audio.info(clip).seconds for clip in clips)
    model, _ = silero_vad.load_silero_vad(), load_network()

    def detect_with_package(clip: Path) -> list[tuple[int, int]]:
        found = silero_vad.get_speech_timestamps(torch.from_numpy(audio.read(clip)), model)
        return [(round(speech["start"] * 62.5), round(speech["end"] * 62.5)) for speech in found]

    def detect(clip: Path) -> list[tuple[int, int]]:
        return detect_speech(clip, (0, round(1e6 * audio.info(clip).seconds)), DetectorOptions())

    detect_with_package(clips[0]), detect(clips[0])  # warm up
    expected, package_spent = measure(lambda: [detect_with_package(clip) for clip in clips])
    found, spent = measure(lambda: [detect(clip) for clip in clips])
    assert found == expected, "other decisions than silero-vad's"
    print(f"silero-vad, get_speech_timestamps file by file: {seconds / package_spent:,.0f} x real time")
    ratio = package_spent / spent
    print(f"the same decisions here: {seconds / spent:,.0f} x real time, {ratio:.1f} times faster (target 3)")

    sessions = []
    for clip in clips:
        rttm.write(folder / "in" / f"{clip.stem}.rttm", [Segment(clip.stem, "A", 0.0, audio.info(clip).seconds)])
        sessions.append(Session(clip.stem, clip, rttm_path=folder / "in" / f"{clip.stem}.rttm"))
    _, spent = measure(lambda: clean_sets({"x": sessions}, CleanOptions(), WORDS, folder / "sad"))
    print(f"clean, sad silero, {len(clips)} sessions: {seconds / spent:,.0f} x real time")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        bench_cutting(Path(folder), count=4, seconds=3600.0)
        bench_cutting(Path(folder), count=40, seconds=90.0)
        bench_detection(Path(folder))


if __name__ == "__main__":
    main()
