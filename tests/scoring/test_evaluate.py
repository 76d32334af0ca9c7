"""Stage 8 after a kill: what was heard is not heard again, and pools stay together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from sortk.formats import rttm
from sortk.formats.postprocess import Postprocess
from sortk.inference import diarize
from sortk.inference.diarize import unfinished_pools
from sortk.records import Segment, Session
from sortk.scoring import evaluate
from sortk.scoring.intervals import DerOptions
from sortk.scoring.wer import WerOptions


@pytest.fixture(autouse=True)
def small_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diarize, "POOL", 2)


class Model:
    """GivesPosteriors somebody from frame 25 (2 s) to 50 (4 s) of every session; is killed after so many."""

    decoding, frame_seconds = "free", 0.08

    def __init__(self, n_before_kill: int = 99) -> None:
        self.n_before_kill, self.heard = n_before_kill, list[str]()

    def _meet(self, sessions: Sequence[Session]) -> Iterator[Session]:
        for session in sessions:
            if len(self.heard) == self.n_before_kill:
                raise KeyboardInterrupt
            self.heard.append(session.session_id)
            yield session

    def posteriors_of(self, sessions: Sequence[Session]) -> Iterator[tuple[Session, np.ndarray]]:
        probs = np.zeros((100, 1), np.float32)
        probs[25:50] = 0.9
        return ((session, probs) for session in self._meet(sessions))

    def transcribe_samples(self, sessions: Sequence[Session]) -> Iterator[tuple[Session, str, list[Segment]]]:
        return ((session, f"<spk0> word {session.session_id}", []) for session in self._meet(sessions))


def make_sessions(folder: Path) -> list[Session]:
    """Five windows of 8 s, from 10 s of their files on; somebody speaks from 2 s to 6 s of each."""
    for name in "abcde":
        rttm.write(folder / f"{name}.rttm", [Segment(name, "s", 12.0, 16.0)])
    return [Session(n, folder / f"{n}.wav", 8.0, 10.0, n, rttm_path=folder / f"{n}.rttm") for n in "abcde"]


def test_pools_with_something_to_do_stay_whole() -> None:
    sessions = [Session(name, Path(name)) for name in "abcde"]
    missing = unfinished_pools(sessions, lambda session: session.session_id in "abc")
    assert [session.session_id for session in missing] == ["c", "d", "e"]
    assert unfinished_pools(sessions, lambda session: True) == []


def test_a_killed_diarizer_goes_on(tmp_path: Path) -> None:
    sessions = make_sessions(tmp_path)

    def run(model: Model) -> list[float]:
        chosen = {"none": Postprocess(), "early": Postprocess(pad_onset=0.5)}
        results = evaluate.evaluate_diarizer(
            model,  # type: ignore[arg-type]
            "system",
            "test",
            sessions,
            chosen,
            DerOptions(collar=0.0),
            tmp_path / "hyp",
        )
        return [result.report.overall.der for result in results]

    with pytest.raises(KeyboardInterrupt):
        run(Model(n_before_kill=3))
    second = Model()
    assert run(second) == pytest.approx([2 / 4, 2.5 / 4])  # 2 s of 4 s missed; and 0.5 s of false alarm
    assert second.heard == ["c", "d", "e"]
    assert rttm.read(tmp_path / "hyp" / "none" / "a.rttm") == [Segment("a", "speaker_0", 12.0, 14.0)]
    third = Model()
    assert run(third) == pytest.approx([2 / 4, 2.5 / 4]) and third.heard == []


def test_a_killed_transcriber_goes_on(tmp_path: Path) -> None:
    sessions = make_sessions(tmp_path)

    def run(model: Model) -> None:
        evaluate.evaluate_asr(
            model,  # type: ignore[arg-type]
            "system",
            "test",
            sessions,
            WerOptions(),
            True,
            tmp_path / "words",
        )

    with pytest.raises(KeyboardInterrupt):
        run(Model(n_before_kill=3))
    second = Model()
    run(second)
    assert second.heard == ["c", "d", "e"]
    lines = (tmp_path / "words" / "sst.jsonl").read_text(encoding="utf-8").splitlines()
    assert lines[4] == '{"session_id": "e", "text": "<spk0> word e"}' and len(lines) == 5


def test_words_of_another_system_by_sample_or_by_recording(tmp_path: Path) -> None:
    """Two samples of one recording, cut at 5 s; the other system's words are 4 of 5 right."""
    samples = [
        Session("m-0", tmp_path / "m.wav", 5.0, 0.0, "<spk0> a <spk1> b"),
        Session("m-1", tmp_path / "m.wav", 5.0, 5.0, "<spk0> c <spk0> d <spk1> e"),
    ]
    (tmp_path / "by_recording.stm").write_text("m 1 x 0 1 a\nm 1 y 4.2 5.6 b\nm 1 y 6 8 c d\nm 1 x 9 10 z\n")
    (tmp_path / "by_sample.stm").write_text("m-0 1 x 0 1 a\nm-0 1 y 1 2 b\nm-1 1 y 0 1 c d\nm-1 1 x 4 5 z\n")
    for name in ("by_recording", "by_sample"):
        wer, cpwer = evaluate.evaluate_words(tmp_path / f"{name}.stm", "theirs", "test", samples, WerOptions())
        assert (wer.report.overall.wrong, wer.report.overall.words) == (1, 5)
        assert (cpwer.report.overall.substitutions, cpwer.report.overall.wrong) == (1, 1)
        assert {session.session_id: session.errors.wrong for session in wer.report.sessions} == {"m-0": 0, "m-1": 1}
    (tmp_path / "other.stm").write_text("n 1 x 0 1 a\n")
    with pytest.raises(ValueError, match="has no words of the test set test, such as of m-0"):
        evaluate.evaluate_words(tmp_path / "other.stm", "theirs", "test", samples, WerOptions())
