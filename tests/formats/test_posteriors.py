"""Files of posteriors, and when speakers are active in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sortk.formats import posteriors
from sortk.formats.files import FormatError
from sortk.records import Session

PROBS = np.array([[0.9, 0.1], [0.9, 0.1], [0.1, 0.1], [0.6, 0.9], [0.5, 0.1]], np.float32)


def test_active_frames_become_spans() -> None:
    assert posteriors.find_active_spans(PROBS, 0.5) == [[(0, 160_000), (240_000, 320_000)], [(240_000, 320_000)]]
    assert posteriors.find_active_spans(PROBS, 0.5, 0.01) == [[(0, 20_000), (30_000, 40_000)], [(30_000, 40_000)]]
    # One frame wider, and from 1 s on: spans that then touch are one, and none begins before the first frame.
    wider = posteriors.find_active_spans(PROBS, 0.5, start=1_000_000, extra_frames=1)
    assert wider == [[(1_000_000, 1_400_000)], [(1_160_000, 1_400_000)]]
    assert posteriors.find_active_spans(PROBS[:0], 0.5) == [[], []]


def test_written_and_read_in_half_precision(tmp_path: Path) -> None:
    path = posteriors.path_of(tmp_path / "probs", Session("a", Path("a.wav")))
    posteriors.write(path, PROBS)
    found = posteriors.read(path)
    assert found.probs.dtype == np.float32 and np.allclose(found.probs, PROBS, atol=5e-4)
    assert found.frame_seconds == 0.08
    assert [file.name for file in path.parent.iterdir()] == ["a.npy"]


def test_a_folder_says_how_long_its_frames_are(tmp_path: Path) -> None:
    for name in "ab":
        posteriors.write(tmp_path / f"{name}.npy", PROBS, 0.01)
    assert posteriors.read(tmp_path / "b.npy").frame_seconds == 0.01
    with pytest.raises(ValueError, match=r"has posteriors with frames of 0.01 s; write 0.08 s elsewhere"):
        posteriors.write(tmp_path / "c.npy", PROBS)
    posteriors.write(tmp_path / "other" / "a.npy", PROBS)
    with pytest.raises(ValueError, match=r"has posteriors with frames of 0.08 s; write 0.01 s elsewhere"):
        posteriors.write(tmp_path / "other" / "b.npy", PROBS, 0.01)
    (tmp_path / "frames.json").write_text('{"frame_seconds": 0}')
    with pytest.raises(FormatError, match="frame_seconds must be more than 0, got 0"):
        posteriors.read(tmp_path / "a.npy")


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros(3), "posteriors must be an array of numbers, frames x speakers"),
        (np.zeros((3, 2), np.int64), "posteriors must be an array of numbers"),
        (np.full((3, 2), 1.5), "has values that are not probabilities"),
        (np.full((3, 2), np.nan), "has values that are not probabilities"),
    ],
)
def test_arrays_that_are_no_posteriors(tmp_path: Path, array: np.ndarray, reason: str) -> None:
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(FormatError, match=rf"a\.npy: {reason}"):
        posteriors.read(tmp_path / "a.npy")


def test_found_by_session_or_audio(tmp_path: Path) -> None:
    session = Session("m", tmp_path / "audio.flac")
    with pytest.raises(FileNotFoundError, match=r"no posteriors of session m \(m.npy\)"):
        posteriors.find(tmp_path, session)
    for name in ("audio.npy", "m.npy"):
        posteriors.write(tmp_path / name, PROBS)
        assert posteriors.find(tmp_path, session) == tmp_path / name


@pytest.mark.parametrize("frame_seconds", [0.08, 0.01])
def test_a_window_gets_its_part_of_the_recording(tmp_path: Path, frame_seconds: float) -> None:
    n_frames = round(20 / frame_seconds)
    probs = np.linspace(0, 1, n_frames, dtype=np.float32)[:, None]
    posteriors.write(tmp_path / "rec.npy", probs, frame_seconds)
    found = posteriors.read_session(tmp_path, Session("w", Path("rec.wav"), offset=8.0, duration=4.0))
    first, length = round(8 / frame_seconds), round(4 / frame_seconds)
    assert np.allclose(found.probs, probs[first : first + length], atol=5e-4)
    assert len(posteriors.read_session(tmp_path, Session("rec", Path("rec.wav"))).probs) == n_frames
    assert len(posteriors.read_session(tmp_path, Session("rec", Path("rec.wav"), duration=20.02)).probs) == n_frames
    with pytest.raises(FormatError, match=r"frames cover 20.00 s, but the session lasts 30.00 s"):
        posteriors.read_session(tmp_path, Session("rec", Path("rec.wav"), duration=30))
