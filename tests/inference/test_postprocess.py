"""Posteriors to segments: NVIDIA's own results, a plain loop over frames, and cases by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sortk.formats.postprocess import PRESETS, Postprocess
from sortk.inference.postprocess import find_all_segments, find_segments, join_posteriors, name_segments

NVIDIA = Path(__file__).parents[1] / "fixtures" / "nemo" / "postproc.npz"


@pytest.mark.parametrize("name", ["none", "callhome", "dihard3"])
def test_segments_are_nvidias(name: str) -> None:
    golden = np.load(NVIDIA)
    found = find_segments(golden["preds"], PRESETS[name])
    for speaker, times in enumerate(found):
        expected = golden[f"{'default' if name == 'none' else name}_{speaker}"]
        np.testing.assert_allclose(times, expected, atol=1e-3)


def by_frames(column: np.ndarray, n_units: int, options: Postprocess) -> list[tuple[float, float]]:
    """What the module's docstring says, frame by frame."""
    spans: list[tuple[np.float32, np.float32]] = []
    speaks, begin = False, 0
    units = np.repeat(column, n_units)

    def close(end: float, is_last: bool = False) -> None:
        start, end = max(0.0, begin * 0.01 - options.pad_onset), end + options.pad_offset
        if end > start or is_last:
            spans.append((np.float32(start), np.float32(end)))

    for unit, prob in enumerate(units):
        if speaks and prob < np.float32(options.offset):
            close(unit * 0.01)
            speaks = False
        elif not speaks and prob > np.float32(options.onset):
            begin, speaks = unit, True
    if speaks:
        close((len(units) - (n_units > 1)) * 0.01, is_last=True)  # with frames of 10 ms it ends at the end

    def joined(gap_is_closed: object) -> None:
        merged: list[tuple[np.float32, np.float32]] = []
        for start, end in spans:
            if merged and gap_is_closed(start - merged[-1][1]):  # type: ignore[operator]
                merged[-1] = (merged[-1][0], end)
            else:
                merged.append((start, end))
        spans[:] = merged

    joined(lambda gap: gap <= 0)
    spans[:] = [(start, end) for start, end in spans if end - start >= np.float32(options.min_duration_on)]
    joined(lambda gap: gap < np.float32(options.min_duration_off))
    rounded = [(round(float(start), 3), round(float(end), 3)) for start, end in spans]
    return [(start, end) for start, end in rounded if end > start]


hundredths = st.integers(0, 30).map(lambda n: n / 100)
settings = st.builds(
    Postprocess,
    st.sampled_from([0.2, 0.5, 0.7]),
    st.sampled_from([0.2, 0.5, 0.7]),
    hundredths,
    hundredths,
    hundredths,
    hundredths,
)
posteriors = arrays(
    np.float32, st.tuples(st.integers(0, 12), st.integers(1, 3)), elements=st.sampled_from([0, 0.3, 0.6, 1])
)


@given(st.lists(posteriors, max_size=3), settings, st.sampled_from([0.01, 0.03, 0.08]))
def test_all_sessions_at_once_are_as_each_frame_by_frame(
    sessions: list[np.ndarray], options: Postprocess, frame_seconds: float
) -> None:
    found = find_all_segments(join_posteriors(sessions, frame_seconds), options)
    for number, probs in enumerate(sessions):
        for speaker in range(probs.shape[1]):
            own = (found.session == number) & (found.speaker == speaker)
            times = list(zip(found.start[own].tolist(), found.end[own].tolist(), strict=True))
            assert times == by_frames(probs[:, speaker], round(frame_seconds * 100), options)


def test_hysteresis_padding_and_durations_by_hand() -> None:
    #                 0    1    2    3    4    5    6    7    8    9 x 80 ms
    probs = np.array([[0.1, 0.9, 0.5, 0.1, 0.1, 0.9, 0.1, 0.1, 0.1, 0.1]], np.float32).T

    def times(**options: float) -> list[list[float]]:
        return find_segments(probs, Postprocess(**options))[0].tolist()

    assert times() == [[0.08, 0.24], [0.4, 0.48]]  # 0.5 is not below 0.5: it goes on
    assert times(offset=0.6) == [[0.08, 0.16], [0.4, 0.48]]
    assert times(pad_onset=0.1, pad_offset=0.05) == [[0.0, 0.29], [0.3, 0.53]]
    assert times(pad_onset=0.1, pad_offset=0.06) == [[0.0, 0.54]]  # they meet at 0.30
    assert times(min_duration_on=0.1) == [[0.08, 0.24]]
    assert times(min_duration_off=0.17) == [[0.08, 0.48]]
    assert times(min_duration_on=0.1, min_duration_off=0.17) == [[0.08, 0.24]]  # dropped first, filled then
    assert times(onset=0.95) == []


def test_speech_to_the_end_ends_where_the_last_unit_begins() -> None:
    assert find_segments(np.ones((2, 1), np.float32), Postprocess())[0].tolist() == [[0.0, 0.15]]


def test_records_are_named_by_the_models_outputs() -> None:
    probs = np.array([[0, 1], [0, 1], [0, 0]], np.float32)
    [segment] = name_segments("a", find_segments(probs, Postprocess()))
    assert (segment.session_id, segment.speaker, segment.start, segment.end) == ("a", "speaker_1", 0.0, 0.16)


def test_frames_must_be_whole_units() -> None:
    with pytest.raises(ValueError, match=r"frames must last a multiple of 0.01 s, got 0.025 s"):
        join_posteriors([np.zeros((1, 1), np.float32)], 0.025)
