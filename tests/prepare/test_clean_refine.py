from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sortk.formats.files import FormatError
from sortk.prepare.recordings import Turns, load_recording
from sortk.prepare.refine import find_speakers, match_speakers, refine_turns
from sortk.prepare.timestamps import TimestampOptions
from sortk.records import Session
from sortk.spans import Profile, Span, merge, to_us

WORDS = TimestampOptions()
Times = tuple[float, float]


def spans(*times: Times) -> list[Span]:
    return [(to_us(start), to_us(end)) for start, end in times]


def refine(
    speech: Sequence[Times] | None,
    outward: float = 0.1,
    heard: Mapping[str, Sequence[Times]] | None = None,
    **turns: Sequence[Times],
) -> dict[str, list[Times]]:
    refined, _ = refine_turns(
        {name: spans(*times) for name, times in turns.items()},
        None if speech is None else spans(*speech),
        {name: spans(*times) for name, times in (heard or {}).items()},
        to_us(outward),
    )
    return {name: [(start / 1e6, end / 1e6) for start, end in found] for name, found in refined.items()}


# ---------------------------------------------------------------------------------------------------------------------
# By hand


def test_boundaries_move_inward_to_the_speech() -> None:
    assert refine([(1.5, 4.25)], A=[(1, 5)]) == {"A": [(1.5, 4.25)]}
    assert refine([(1.5, 2), (3, 4.25)], A=[(1, 5)]) == {"A": [(1.5, 4.25)]}  # a pause inside a turn stays


def test_boundaries_move_outward_only_within_the_tolerance() -> None:
    assert refine([(0.95, 5.05)], A=[(1, 5)]) == {"A": [(0.95, 5.05)]}
    assert refine([(0.85, 5.5)], A=[(1, 5)]) == {"A": [(1, 5)]}
    assert refine([(0.85, 5.5)], 0.5, A=[(1, 5)]) == {"A": [(0.85, 5.5)]}
    assert refine([(0.95, 5.05)], 0.0, A=[(1, 5)]) == {"A": [(1, 5)]}


def test_speech_that_reaches_another_turn_does_not_move_a_boundary() -> None:
    unchanged = {"A": [(1.0, 5.0)], "B": [(5.05, 8.0)]}
    assert refine([(1, 8)], A=[(1, 5)], B=[(5.05, 8)]) == unchanged
    assert refine([(1, 5.02), (5.03, 8)], A=[(1, 5)], B=[(5.05, 8)]) == {"A": [(1, 5.02)], "B": [(5.03, 8)]}
    overlapping = {"A": [(1.0, 5.0)], "B": [(4.0, 8.0)]}  # nobody knows whose speech it is where both speak
    assert refine([(1, 8)], A=[(1, 5)], B=[(4, 8)]) == overlapping


def test_boundaries_stop_short_of_another_speakers_boundaries() -> None:
    # the detector hears nothing before 4 s, but B has a turn from 2 to 3 s: A still arrives first
    assert refine([(4, 8)], A=[(1, 8)], B=[(2, 3)]) == {"A": [(1.99, 8)], "B": [(2, 3)]}
    assert refine([(1, 4)], A=[(1, 7)], B=[(5, 6)]) == {"A": [(1, 6.01)], "B": [(5, 6)]}


def test_a_scrap_of_somebody_elses_speech_is_no_evidence() -> None:
    assert refine([(0, 1.05), (2, 5)], A=[(1, 5)]) == {"A": [(2, 5)]}


def test_turns_that_nobody_heard_stay_and_are_counted() -> None:
    turns: Turns = {"A": spans((1, 2)), "B": spans((3, 4), (5, 6)), "C": spans((7, 8))}
    refined, n_undetected = refine_turns(turns, spans((5.25, 6), (7.75, 8)), {}, 0)
    assert refined == {"A": spans((1, 2)), "B": spans((3, 4), (5.25, 6)), "C": spans((7, 8))}  # C would lose 75 %
    assert n_undetected == 3


def test_the_diarizer_tells_who_speaks() -> None:
    heard: dict[str, list[Times]] = {"A": [(0, 5)], "B": [(5.25, 10)]}
    assert refine([(0, 10)], heard=heard, A=[(0, 6)], B=[(4, 10)]) == heard
    assert refine(None, heard=heard, A=[(0, 6)], B=[(4, 10)]) == heard
    # where it hears nothing of a speaker, the speech detector alone decides
    assert refine([(0, 5.5), (7, 10)], heard={"A": [(20, 21)]}, A=[(0, 6)]) == {"A": [(0, 5.5)]}


# ---------------------------------------------------------------------------------------------------------------------
# Properties

turn = st.tuples(st.integers(0, 400), st.integers(1, 60)).map(lambda pair: (pair[0] * 50_000, sum(pair) * 50_000))
some_turns = st.dictionaries(st.sampled_from("ABCD"), st.lists(turn, min_size=1, max_size=6).map(merge), min_size=1)
piece = st.tuples(st.integers(0, 2000), st.integers(1, 300)).map(lambda pair: (pair[0] * 10_000, sum(pair) * 10_000))
evidence = st.lists(piece, max_size=20).map(merge)


@given(
    some_turns, st.none() | evidence, st.dictionaries(st.sampled_from("ABCD"), evidence), st.sampled_from([0, 100_000])
)
@settings(max_examples=300, deadline=None)
def test_refinement_keeps_its_promises(
    turns: Turns, speech: list[Span] | None, heard: dict[str, list[Span]], outward_us: int
) -> None:
    refined, _ = refine_turns(turns, speech, heard, outward_us)
    assert refined.keys() == turns.keys()
    profile = Profile(span for spans_of in turns.values() for span in spans_of)
    for speaker, before in turns.items():
        assert len(refined[speaker]) == len(before)  # no turn is lost, none is new
        assert all(earlier[1] <= later[0] for earlier, later in pairwise(refined[speaker]))
        others = [boundary for name in turns if name != speaker for span in turns[name] for boundary in span]
        for old, new in zip(before, refined[speaker], strict=True):
            assert new[0] < new[1]
            assert old[0] - outward_us <= new[0] and new[1] <= old[1] + outward_us
            for was, now in zip(old, new, strict=True):
                assert not any(min(was, now) < boundary < max(was, now) for boundary in others)
            outside = [(new[0], old[0])] * (new[0] < old[0]) + [(old[1], new[1])] * (new[1] > old[1])
            for start, end in outside:
                assert all(stretch.n_speakers == 0 for stretch in profile.stretches(start, end))
    for first in turns:  # who arrived before another one still does
        for second in turns:
            if turns[first][0][0] < turns[second][0][0]:
                assert refined[first][0][0] < refined[second][0][0]


# ---------------------------------------------------------------------------------------------------------------------
# Posteriors


def test_speakers_are_matched_by_common_time() -> None:
    turns = {"A": spans((0, 4)), "B": spans((4, 8)), "C": spans((8, 9))}
    columns = [spans((4.5, 8)), spans((0, 4.5))]
    assert match_speakers(turns, columns) == {"A": columns[1], "B": columns[0]}
    assert match_speakers(turns, [[], []]) == {}
    assert match_speakers({}, columns) == {}


def make_session(folder: Path, offset: float = 0.0) -> Session:
    rttm = folder / "m.rttm"
    rttm.write_text(f"SPEAKER m 1 {offset + 1} 2 <NA> <NA> A <NA> <NA>\n")
    return Session("m", folder / "audio.flac", duration=4.0, offset=offset, rttm_path=rttm)


@pytest.mark.parametrize("n_frames", [50, 150, 180])
def test_posteriors_of_the_session_or_of_the_whole_audio(tmp_path: Path, n_frames: int) -> None:
    session = make_session(tmp_path, offset=8.0)  # 4 s long: 50 frames; frame 100 is where it starts
    probs = np.zeros((n_frames, 4), np.float16)
    probs[20 + 100 * (n_frames > 50) :, 2][:10] = 1
    np.save(tmp_path / "m.npy", probs)
    heard = find_speakers(load_recording(session, WORDS, check_audio=False), tmp_path / "m.npy", 0.5)
    assert heard == {"A": spans((8 + 19 * 0.08, 8 + 31 * 0.08))}


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(50, np.float32), "frames x speakers"),
        (np.zeros((50, 4), np.int64), "frames x speakers"),
        (np.full((50, 4), np.nan, np.float32), "not probabilities"),
        (np.full((50, 4), 1.5, np.float32), "not probabilities"),
        (np.zeros((10, 4), np.float32), "10 frames cover 0.80 s, but the session lasts 4.00 s"),
        (np.zeros((60, 4), np.float32), "60 frames cover 4.80 s, but the session lasts 4.00 s"),
        (None, "not a NumPy array"),
    ],
)
def test_bad_posteriors_are_named(tmp_path: Path, array: np.ndarray | None, message: str) -> None:
    path = tmp_path / "m.npy"
    if array is None:
        path.write_text("hello")
    else:
        np.save(path, array)
    with pytest.raises(FormatError, match=message):
        find_speakers(load_recording(make_session(tmp_path), WORDS, check_audio=False), path, 0.5)
