from __future__ import annotations

import numpy as np
import pytest

from sortk.records import Segment
from sortk.training.targets import NO_SPEAKER, frame_speakers, frame_targets


def segment(speaker: str, start: float, end: float) -> Segment:
    return Segment("x", speaker, start, end)


def test_a_frame_is_active_when_half_of_it_is() -> None:
    # frames: 0-80, 80-160, 160-240, 240-320 ms; 40 of 80 ms are enough, 39 are not
    targets, names = frame_targets([segment("a", 0.04, 0.199), segment("b", 0.2, 0.281)], 0.0, 4, 3)
    assert names == ["a", "b"]
    assert targets.T.tolist() == [[1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 0]]


def test_two_segments_of_a_speaker_share_a_frame() -> None:
    targets, _ = frame_targets([segment("a", 0.0, 0.02), segment("a", 0.05, 0.075)], 0.0, 1, 1)
    assert targets.tolist() == [[1.0]]


def test_columns_follow_the_arrival_inside_the_window() -> None:
    segments = [segment("early", 0.0, 0.5), segment("late", 1.0, 3.0), segment("early", 2.0, 3.0)]
    assert frame_targets(segments, 0.0, 40, 2)[1] == ["early", "late"]
    assert frame_targets(segments, 0.8, 30, 2)[1] == ["late", "early"]


def test_of_too_many_speakers_the_longest_are_kept_in_order() -> None:
    segments = [segment("a", 0.0, 0.4), segment("b", 1.0, 3.0), segment("c", 3.0, 4.0), segment("d", 4.0, 4.5)]
    assert frame_targets(segments, 0.0, 60, 2)[1] == ["b", "c"]


def test_a_window_without_speech_has_no_speakers() -> None:
    targets, names = frame_targets([segment("a", 5.0, 6.0)], 0.0, 10, 4)
    assert names == [] and not targets.any() and targets.shape == (10, 4)


@pytest.mark.parametrize("offset", [0.0, 7.13])
def test_the_frames_agree_with_counting_milliseconds(offset: float) -> None:
    rng = np.random.default_rng(0)
    starts = np.sort(rng.uniform(0, 10, 12)).round(3)
    segments = [segment("a", float(start), float(start) + 0.357) for start in starts[::2] if True]
    segments = [s for i, s in enumerate(segments) if i == 0 or s.start >= segments[i - 1].end]
    grid = np.zeros(20000, bool)
    for s in segments:
        grid[round(1000 * s.start) : round(1000 * s.end)] = True
    first = round(1000 * offset)
    expected = [grid[first + 80 * k : first + 80 * (k + 1)].mean() >= 0.5 for k in range(60)]
    assert frame_targets(segments, offset, 60, 1)[0][:, 0].astype(bool).tolist() == expected


def test_who_speaks_alone() -> None:
    targets = np.array([[1, 0], [1, 1], [0, 1], [0, 0]], np.float32)
    assert frame_speakers(targets, ["x", "y"], {"x": 7, "y": 3}).tolist() == [7, NO_SPEAKER, 3, NO_SPEAKER]
    assert frame_speakers(targets, ["x", "y"], {"x": 7}).tolist() == [7, NO_SPEAKER, NO_SPEAKER, NO_SPEAKER]
