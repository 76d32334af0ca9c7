"""Windows that are linked by voice. Voices are unit vectors in a plane, given by their angle in degrees.

In SPACE, a vector of one frame has the variance 1, and voices 100: with few frames, an angle says who speaks.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from nemo_models import random_sortformer
from test_streaming import OFFLINE

from sortk.formats.files import FormatError
from sortk.formats.model_folder import save_model
from sortk.inference import linking
from sortk.inference.diarize import DiarizeOptions, Diarizer, load
from sortk.inference.linking import (
    LinkingOptions,
    LocalTurn,
    Speakers,
    VoiceSpace,
    Window,
    cost_of_sharing,
    cut_windows,
    describe_window,
    find_speakers,
    join_windows,
    label_speakers,
    silence_pauses,
)
from sortk.inference.load import LoadedDiarizer
from sortk.models.diarizer import DiarizerModel
from sortk.models.frames import SpeakerOutput
from sortk.records import Session

OPTIONS = LinkingOptions(window=4, step=2, min_alone=2)
SPACE = VoiceSpace(np.zeros(2, np.float32), 5 * np.eye(2, dtype=np.float32), np.full(2, 100, np.float32))


def voice(degrees: float) -> np.ndarray:
    return np.array([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))], np.float32)


def window(first: int, *speakers: tuple[float, float], n_frames: int = 4) -> Window:
    """Speakers: the angle of the voice, and the time alone. Each one speaks in all frames."""
    vectors = np.stack([voice(angle) for angle, _ in speakers])
    alone = np.array([time for _, time in speakers], np.float32)
    probs = np.ones((n_frames, len(speakers)), np.float32)
    return Window(first, probs, tuple(range(len(speakers))), vectors, alone)


def labels_of(windows: list[Window], options: LinkingOptions, **bounds: int) -> list[list[int]]:
    return label_speakers(windows, options, SPACE, **bounds)[0]


def test_windows_overlap_and_cover_everything() -> None:
    samples = np.arange(9 * 1280, dtype=np.float32)
    blocks = [samples[:3000], samples[3000:3001], samples[3001:]]
    found = list(cut_windows(blocks, OPTIONS))
    assert [(first, len(part) / 1280) for first, part in found] == [(0, 4), (2, 4), (4, 4), (6, 3)]
    assert all(np.array_equal(part, samples[first * 1280 :][: len(part)]) for first, part in found)
    assert [len(part) for _, part in cut_windows([samples[:5120]], OPTIONS)] == [5120]
    assert list(cut_windows([samples[:159]], OPTIONS)) == []  # not one frame


def test_the_vector_of_a_speaker_is_the_voice_where_nobody_else_speaks() -> None:
    probs = np.array([[0.9, 0.1, 0.0]] * 4 + [[0.8, 1.0, 0.2]] * 5 + [[0.0, 0.0, 0.9]] * 3, np.float32)
    embeddings = np.stack([voice(0)] * 4 + [voice(90)] * 5 + [voice(45)] * 3)
    found = describe_window(7, probs, embeddings)
    assert found.first == 7 and found.columns == (0, 1)  # the third speaks for 3 frames, which is too short
    assert found.alone.tolist() == [4, 0]
    # Alone 0.9 x 0.9^2 in 4 frames; in overlap the weight is 0.8 x 0.001^2, which is nothing. The second speaker has
    # only overlap: 1.0 x 0.2^2, of whose direction the length does not matter.
    assert np.allclose(found.vectors, [voice(0), voice(90)], atol=1e-4)


def test_speakers_of_windows_are_matched_by_voice_in_whatever_order() -> None:
    windows = [window(0, (0, 3), (90, 3)), window(2, (85, 3), (5, 3)), window(4, (2, 3))]
    assert labels_of(windows, OPTIONS) == [[0, 1], [1, 0], [0]]
    assert labels_of([], OPTIONS) == []


def test_two_clusters_are_joined_if_the_likelihood_grows() -> None:
    """One axis, voices with the variance 3, two vectors of one frame at y and -y.

    Apart: 2 x 1/2 (3 y^2 / 4 - log 4) = 0.75 y^2 - 1.386. Together: S = 0, Q = 2, so -1/2 log 7 = -0.973. So they are
    joined if 0.75 y^2 < 0.413, which is y < 0.742. Four frames each at y = 0.5: apart 3 (4 x 0.5)^2 / 13 - log 13 =
    -1.642, together -1/2 log 25 = -1.609, joined; at y = 0.6: apart 3 x 2.4^2 / 13 - log 13 = -1.236, not joined.
    """
    spread = np.array([3.0], np.float32)

    def joined(y: float, n_frames: float, group: tuple[int, int] = (0, 1), **bounds: int) -> bool:
        places, times = np.array([[y], [-y]], np.float32), np.full(2, n_frames, np.float32)
        return len(find_speakers(places, times, np.array(group), spread, **bounds)[1].times) == 1

    assert joined(0.74, 1) and not joined(0.75, 1)
    assert joined(0.5, 4) and not joined(0.6, 4)
    assert joined(9, 4, most=1) and not joined(0, 4, fewest=2)
    # Two of the only window: it costs 16. 6000 frames each count as 1500, and the cost as 4: they gain 1/2 log(4501^2 /
    # 9001) = 3.86. The cost of 12000 frames each counts as 2.
    assert not joined(0, 6000, group=(0, 0)) and joined(0, 12000, group=(0, 0))
    # Q frames each are joined if about Q y^2 < 1/2 log(1.5 Q): 3000, which count as 1500, if y < 0.0507 (not 0.0374).
    assert joined(0.05, 3000) and not joined(0.052, 3000)


def test_the_fewer_windows_the_more_it_costs_to_be_one_person() -> None:
    assert [cost_of_sharing(np.array(group)) for group in ([0, 0], [0, 0, 1], [0, 0, 2, 5, 5, 9])] == [16, 7, 4.75]


def test_likelihood_of_a_voice() -> None:
    """Variance of voices 3, a cluster with S = 2, Q = 1: h ~ N(3/4 x 2, 3/4). 4 frames add 1/4, so N(1.5, 1)."""
    speakers = Speakers(np.array([[2.0], [0.0]], np.float32), np.array([1.0, 0.0], np.float32))
    found = speakers.likelihoods(
        np.array([[0.5]], np.float32), np.array([4.0], np.float32), np.array([3.0], np.float32)
    )
    # The second cluster has no vector: N(0, 3 + 1/4).
    assert np.allclose(found, [[-0.5, -0.5 * (0.25 / 3.25 + np.log(3.25))]])


def test_who_hardly_speaks_alone_joins_the_likeliest_speaker() -> None:
    windows = [window(0, (0, 9), (90, 9)), window(2, (80, 1), (0, 9)), window(4, (0, 9), (90, 9), (10, 1))]
    assert labels_of(windows, OPTIONS) == [[0, 1], [1, 0], [0, 1, 0]]  # in the last window with another one


def test_the_number_of_speakers_can_be_given() -> None:
    windows = [window(0, (0, 9)), window(2, (30, 9)), window(4, (100, 9)), window(6, (120, 9))]
    assert labels_of(windows, OPTIONS, most=2) == [[0], [0], [1], [1]]
    assert labels_of(windows, OPTIONS, most=1) == [[0]] * 4
    # 120 and 100 are closest (20 degrees), so they are joined first.
    assert labels_of(windows, OPTIONS, fewest=3, most=3) == [[0], [1], [2], [2]]


def test_a_long_recording_is_clustered_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    windows = [window(2 * n, (n % 3 * 100, 3), (n % 3 * 100 + 50, 3)) for n in range(20)]
    at_once = labels_of(windows, OPTIONS)
    monkeypatch.setattr(linking, "CLUSTERED_TOGETHER", 7)
    assert labels_of(windows, OPTIONS) == at_once


def test_posteriors_are_averaged_where_windows_overlap_and_sorted_by_arrival() -> None:
    first, second = window(0, (0, 3), (90, 3)), window(2, (90, 3), n_frames=3)
    first.probs[:] = [[0.0, 0.9], [0.8, 0.0], [0.4, 0.6], [1.0, 0.0]]
    second.probs[:] = [[1.0], [0.6], [0.7]]
    # Frames 2 and 3: distance 1.5 and 0.5 to the end of the first window, 0.5 and 1.5 to the start of the second.
    joined = join_windows([first, second], OPTIONS, SPACE)
    # In frame 3, the windows disagree about who speaks (averages 0.45 and 0.25), but not about how many.
    later = [0.0, 0.8, 1.5 * 0.4 / 2, 0.0, 0.0]
    sooner = [0.9, 0.0, (1.5 * 0.6 + 0.5 * 1.0) / 2, (0.5 * 1.0 + 1.5 * 0.6) / 2, 0.7]
    assert np.allclose(joined, np.column_stack([sooner, later]))
    assert join_windows([first], OPTIONS, SPACE, n_columns=4).shape == (4, 4)
    assert join_windows([], OPTIONS, SPACE, n_columns=4).shape == (0, 4)


def test_a_turn_goes_to_the_speaker_whose_voice_it_has() -> None:
    windows = [window(0, (0, 20), (90, 20), n_frames=20), window(10, (0, 20), n_frames=10)]
    windows[0].probs[:] = np.repeat([[0.9, 0.1], [0.2, 0.8]], 10, axis=0)
    windows[1].probs[:] = 0.7
    # In the second window, one output has two voices: the turn in frames 12 to 20 is the second speaker's.
    windows[1] = replace(windows[1], turns=(LocalTurn(0, 2, 10, voice(80)),))
    joined = join_windows(windows, LinkingOptions(window=20, step=10), SPACE)
    assert joined[:12].argmax(axis=1).tolist() == [0] * 10 + [1] * 2
    weights = np.array([[20 - frame - 0.5, frame - 10 + 0.5] for frame in range(12, 20)])
    assert np.allclose(joined[12:, 1], (weights @ [0.8, 0.7]) / 10)
    assert np.allclose(joined[12:, 0], (weights @ [0.2, 0.0]) / 10)


def test_turns_are_found() -> None:
    probs = np.array([[0.9, 0.1]] * 8 + [[0.9, 0.9]] * 9 + [[0.1, 0.9]] * 9 + [[0.9, 0.1]] * 7, np.float32)
    embeddings = np.repeat(voice(0)[None], len(probs), axis=0)
    turns = describe_window(0, probs, embeddings).turns
    assert [turn[:3] for turn in turns] == [(0, 0, 8), (1, 17, 26)]  # the last one has 7 frames, one too few
    assert np.allclose(turns[0].vector, voice(0))


def test_nobody_speaks_far_from_speech() -> None:
    """silero-vad's windows have 512 samples and 0.3 s are 9 of them; frames have 1280 samples."""
    speech = np.zeros(100, np.float32)
    speech[50] = 0.5
    probs = silence_pauses(np.ones((40, 2), np.float32), speech, 0.5)
    # Windows 41 to 59 are samples 20,992 to 30,720: the middles of frames 16 (21,120) to 23 (30,080).
    assert np.flatnonzero(probs[:, 0]).tolist() == np.flatnonzero(probs[:, 1]).tolist() == list(range(16, 24))
    assert not silence_pauses(np.ones((40, 2), np.float32), speech, 0.6).any()
    assert silence_pauses(np.ones((0, 2), np.float32), np.zeros(0, np.float32), 0.5).shape == (0, 2)


class Scripted(DiarizerModel):
    """Who speaks is in the samples: 0.1 is one voice, 0.2 another, up to 0.6. Columns are by arrival in the window."""

    def __init__(self) -> None:
        super().__init__()
        built = random_sortformer(OFFLINE)
        self.options, self.features, self.embedding_size = built.options, built.features, 7

    def forward(self, samples: torch.Tensor, lengths: torch.Tensor | None = None) -> SpeakerOutput:
        said = (10 * samples[:, ::1280]).round().long()
        logits = torch.full((*said.shape, 4), -9.0)
        for row, clip in zip(logits, said.tolist(), strict=True):
            order = list(dict.fromkeys(value for value in clip if value))
            for frame, value in enumerate(clip):
                if value:
                    row[frame, order.index(value)] = 9.0
        return SpeakerOutput(logits, None, torch.eye(7)[said])


def test_a_recording_can_have_more_speakers_than_the_model_has_outputs() -> None:
    said = np.repeat([1, 2, 1, 3, 4, 5, 3, 6, 1, 2], 20)
    samples = np.repeat(said / 10, 1280).astype(np.float32)
    loaded = LoadedDiarizer(Scripted(), linking=LinkingOptions(window=60, step=30))
    segments = Diarizer(loaded)(samples)
    assert {s.speaker for s in segments} == {f"speaker_{n}" for n in range(6)}
    assert [s.speaker[-1] for s in segments] == list("0102342501")
    assert [s.start for s in segments] == pytest.approx([1.6 * n for n in range(10)], abs=0.01)
    few = Diarizer(loaded, DiarizeOptions(max_speakers=3))(samples)
    assert len({s.speaker for s in few}) == 3


def test_silero_decides_where_there_is_speech_at_all() -> None:
    samples = np.full(48000, 0.1, np.float32)  # somebody speaks, the model says; silero-vad does not agree
    for threshold in (0.0, 0.5):
        loaded = LoadedDiarizer(Scripted(), linking=LinkingOptions(window=60, step=30, speech=threshold))
        assert Diarizer(loaded).posteriors(samples).any() == (threshold == 0)


def test_the_config_of_a_model_says_how_it_is_linked(tmp_path: Path) -> None:
    model, samples = random_sortformer(OFFLINE), np.random.default_rng(0).standard_normal(16000 * 9, np.float32)
    config = {"model": "sortformer", "options": OFFLINE.to_json()}
    save_model(tmp_path / "linked", model.state_dict(), config | {"linking": {"window": 50, "step": 25}})
    save_model(tmp_path / "plain", model.state_dict(), config)
    linked, plain = load(tmp_path / "linked"), load(tmp_path / "plain")
    assert linked.posteriors(samples[: 50 * 1280]).shape[1] == OFFLINE.n_speakers
    assert not np.allclose(linked.posteriors(samples)[:, : OFFLINE.n_speakers], plain.posteriors(samples), atol=1e-3)
    streamed = [
        load(tmp_path / name, DiarizeOptions(streaming="10")).posteriors(samples) for name in ("linked", "plain")
    ]
    assert np.array_equal(*streamed)
    seconds: list[float] = []
    session = Session("x", tmp_path / "x.wav")
    soundfile.write(session.audio_path, samples * 0.1, 16000)
    list(linked.posteriors_of([session], on_progress=seconds.append))
    assert sum(seconds) == pytest.approx(9)
    for step in (25, 1):  # a step of 1 would take a hundred times as long
        save_model(tmp_path / "wrong", model.state_dict(), config | {"linking": {"window": 10, "step": step}})
        with pytest.raises(FormatError, match=f"step must be from 2 to 10 for this window, got {step}"):
            load(tmp_path / "wrong")
