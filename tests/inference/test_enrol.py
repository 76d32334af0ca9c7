"""Enrolled names, with a diarizer made by hand: a voice is a tone, and outputs are sorted by arrival."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from click.testing import CliRunner
from test_diarize import EEND
from torch import Tensor

import sortk.inference.diarize
from sortk.cli import main
from sortk.inference.diarize import DiarizeOptions, Diarizer
from sortk.inference.enrol import FRAME_SAMPLES
from sortk.inference.live import diarize_pcm
from sortk.inference.load import LoadedDiarizer
from sortk.models.diarizer import StreamableDiarizer, StreamingOptions
from sortk.models.eend import Eend
from sortk.models.features import FeatureOptions, LogMel
from sortk.models.frames import SpeakerOutput

ALICE, BOB, CAROL = 400, 1200, 3000  # Hz
STEPS = StreamingOptions(chunk=10, right_context=1, left_context=0, fifo=10, update_period=10, cache=40)


@dataclass(frozen=True)
class ToneOptions:
    n_speakers: int = 3
    features: FeatureOptions = field(default_factory=lambda: FeatureOptions(n_mels=20, gain=False, normalize="none"))


class ToneDiarizer(StreamableDiarizer):
    """The loudest mel bin of a frame is its speaker; the bin that comes first has the first output."""

    presets, default_preset, long_steps = {"1.0": STEPS}, "1.0", STEPS

    def __init__(self) -> None:
        super().__init__()
        self.options = ToneOptions()
        self.features = LogMel(self.options.features)
        self.frame_size = self.embedding_size = 20

    def subsample(self, mel: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        padded = torch.nn.functional.pad(mel, (0, 0, 0, -mel.shape[1] % 8), value=-16.0)
        return padded.unflatten(1, (-1, 8)).mean(dim=2), None

    def diarize_frames(self, frames: Tensor, lengths: Tensor | None = None) -> SpeakerOutput:
        probs = torch.full((*frames.shape[:2], 3), 0.01)
        seen: list[int] = []
        for index, frame in enumerate(frames[0]):
            if frame.max() > -4:  # silence, also the zeros of a cache that is not full, is not louder than this
                tone = int(frame.argmax())
                if frame[tone] == 0:
                    continue
                seen += [tone] if tone not in seen else []
                probs[0, index, seen.index(tone)] = 0.99
        return SpeakerOutput(probs.logit(), None, frames)


def tone(hertz: float, n_frames: int) -> np.ndarray:
    time = np.arange(n_frames * FRAME_SAMPLES) / 16000
    return (0.5 * np.sin(2 * np.pi * hertz * time)).astype(np.float32)


def silence(n_frames: int) -> np.ndarray:
    return np.zeros(n_frames * FRAME_SAMPLES, np.float32)


@pytest.fixture
def samples(tmp_path: Path) -> dict[str, Path]:
    """One second of alice, and of bob: not a multiple of 80 ms."""
    for name, hertz in (("alice", ALICE), ("bob", BOB)):
        soundfile.write(tmp_path / f"{name}.wav", tone(hertz, 13)[:16000], 16000)
    return {name: tmp_path / f"{name}.wav" for name in ("alice", "bob")}


@pytest.fixture
def recording() -> np.ndarray:
    """Carol, bob and alice, in an order that is not that of the samples: at 0.8, 4.0 and 7.2 s, for 1.6 s each."""
    parts = [(silence(10), tone(hertz, 20), silence(10)) for hertz in (CAROL, BOB, ALICE)]
    return np.concatenate([piece for part in parts for piece in part])


def make(**options: object) -> Diarizer:
    return Diarizer(LoadedDiarizer(ToneDiarizer()), DiarizeOptions(**options))  # type: ignore[arg-type]


def found(segments: object) -> dict[str, list[tuple[float, float]]]:
    by_name: dict[str, list[tuple[float, float]]] = {}
    for segment in segments:  # type: ignore[attr-defined]
        by_name.setdefault(segment.speaker, []).append((segment.start, segment.end))
    return by_name


def near(times: list[tuple[float, float]], start: float, end: float) -> bool:
    """One segment, right to a frame of 80 ms: the window of the first mel frame reaches over the edge."""
    return len(times) == 1 and np.allclose(times[0], (start, end), atol=0.081)


def test_without_samples_speakers_are_numbered_by_arrival(recording: np.ndarray) -> None:
    assert list(found(make(streaming="1.0")(recording))) == ["speaker_0", "speaker_1", "speaker_2"]


def test_enrolled_speakers_have_their_names_and_times(samples: dict[str, Path], recording: np.ndarray) -> None:
    alone = found(make(streaming="1.0")(recording))
    named = found(make(enrol=samples)(recording))
    assert set(named) == {"speaker_2", "bob", "alice"}  # carol is unknown
    assert near(named["speaker_2"], 0.8, 2.4) and near(named["bob"], 4.0, 5.6) and near(named["alice"], 7.2, 8.8)
    assert [named[name] for name in ("speaker_2", "bob", "alice")] == list(alone.values())  # to the frame


def test_posteriors_are_those_of_the_recording_with_names_first(
    samples: dict[str, Path], recording: np.ndarray
) -> None:
    swapped = {"bob": samples["bob"], "alice": samples["alice"]}
    for enrolled in (samples, swapped):
        probs = make(enrol=enrolled).posteriors_of_samples(recording)
        assert probs.shape == (120, 3)
        columns = [int(probs[row].argmax()) for row in (20, 60, 100)]  # carol, bob, alice
        assert columns == [2, list(enrolled).index("bob"), list(enrolled).index("alice")]


def test_names_hold_in_a_second_recording_and_live(samples: dict[str, Path], recording: np.ndarray) -> None:
    diarizer = make(enrol=samples, streaming="1.0")
    whole = found(diarizer(recording))
    assert found(diarizer(tone(BOB, 30))) == {"bob": [(0.0, 2.39)]}
    pcm = io.BytesIO((recording * 32767).astype("<i2").tobytes())
    assert found(diarize_pcm(diarizer, pcm)) == whole


def test_a_recording_without_samples_of_its_own_length(samples: dict[str, Path]) -> None:
    assert make(enrol=samples).posteriors_of_samples(np.zeros(0, np.float32)).shape == (0, 3)


def test_samples_that_do_not_name_a_speaker_are_refused(
    tmp_path: Path, samples: dict[str, Path], recording: np.ndarray
) -> None:
    soundfile.write(tmp_path / "nobody.wav", silence(12), 16000)
    with pytest.raises(ValueError, match="finds no speaker in the sample of eve; give 5 to 15 s of clear speech"):
        make(enrol={"eve": tmp_path / "nobody.wav"})(recording)
    soundfile.write(tmp_path / "short.wav", silence(12)[:10], 16000)
    with pytest.raises(ValueError, match=r"short.wav: the sample of eve is too short; give 5 to 15 s of clear speech"):
        make(enrol={"eve": tmp_path / "short.wav"})
    with pytest.raises(ValueError, match="cannot distinguish alice and eve"):
        make(enrol={"alice": samples["alice"], "eve": samples["alice"]})(recording)
    with pytest.raises(ValueError, match="4 speakers are enrolled, but the model has only 3"):
        make(enrol=dict.fromkeys("abcd", samples["alice"]))
    with pytest.raises(ValueError, match="speaker_1 is what speakers without a name are called"):
        make(enrol={"speaker_1": samples["alice"]})
    with pytest.raises(ValueError, match="holds white space"):
        make(enrol={"alice b": samples["alice"]})
    with pytest.raises(ValueError, match="give max_speakers"):
        make(enrol=samples, speakers=2)
    with pytest.raises(ValueError, match="2 speakers are enrolled, more than max_speakers 1"):
        make(enrol=samples, max_speakers=1)
    with pytest.raises(ValueError, match="cannot be streamed"):
        Diarizer(LoadedDiarizer(Eend(EEND)), DiarizeOptions(enrol=samples))


def test_the_command(
    tmp_path: Path, samples: dict[str, Path], recording: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sortk.inference.load, "load_diarizer", lambda path, device: LoadedDiarizer(ToneDiarizer()))
    (tmp_path / "model").mkdir()
    soundfile.write(tmp_path / "talk.wav", recording, 16000)
    command = ["diarize", str(tmp_path / "talk.wav"), "--model", str(tmp_path / "model")]
    enrolled = [f"--enrol={name}={path}" for name, path in samples.items()]
    result = CliRunner().invoke(main, [*command, *enrolled])
    assert result.exit_code == 0, result.output
    assert [line.split()[7] for line in result.stdout.splitlines()] == ["speaker_2", "bob", "alice"]
    for wrong, reason in (("eve", "not NAME=FILE"), (f"alice={samples['bob']}", "enrolled twice")):
        result = CliRunner().invoke(main, [*command, *enrolled, "--enrol", wrong])
        assert result.exit_code == 2 and reason in result.stderr
