"""Lhotse manifests."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sortk.formats import audio, lhotse
from sortk.formats.convert import convert
from sortk.formats.files import FormatError, atomic_text
from sortk.records import Segment, Session

GOOD: dict[str, Any] = {"id": "u", "recording_id": "r", "start": 0.1, "duration": 0.2, "speaker": "a", "text": "hi"}
RECORDING: dict[str, Any] = {
    "id": "r",
    "sources": [{"type": "file", "channels": [0], "source": "r.flac"}],
    "sampling_rate": 16000,
    "num_samples": 16000,
    "duration": 1.0,
}


def folder_of(folder: Path, supervision: dict[str, Any], recording: dict[str, Any] | None = None) -> Path:
    with atomic_text(folder / lhotse.SUPERVISIONS) as file:
        file.write(json.dumps(supervision))
    if recording:
        with atomic_text(folder / lhotse.RECORDINGS) as file:
            file.write(json.dumps(recording))
    return folder


def test_reading_needs_no_lhotse(tmp_path: Path) -> None:
    segments, sessions = lhotse.read(folder_of(tmp_path, GOOD, RECORDING))
    assert segments == [Segment("r", "a", 0.1, 0.3, "hi")]
    assert sessions == [Session("r", tmp_path / "r.flac", 1.0)]
    assert lhotse.read(tmp_path / lhotse.SUPERVISIONS) == (segments, [])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speaker": None}, "speaker is missing"),
        ({"duration": 0}, "duration is zero"),
        ({"start": -1}, "start is negative: '-1'"),
        ({"recording_id": 1}, "recording_id is not text: 1"),
    ],
)
def test_errors_in_supervisions(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError) as caught:
        lhotse.read(folder_of(tmp_path, GOOD | changes))
    assert str(caught.value).endswith(f"supervisions.jsonl.gz, line 1: {message}")


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (None, "sources is not a list of one audio file: None"),
        ([{"type": "command", "source": "rm -r ."}], "sources: type is not 'file': 'command'"),
        ([{"type": "file"}], "sources: source is missing"),
        ([1], "sources: not a JSON object: 1"),
    ],
)
def test_errors_in_recordings(tmp_path: Path, sources: object, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        lhotse.read(folder_of(tmp_path, GOOD, RECORDING | {"sources": sources}))
    assert str(caught.value).endswith(f"recordings.jsonl.gz, line 1: {message}")


def test_without_lhotse_there_is_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lhotse", None)
    with pytest.raises(ValueError, match=r'lhotse cannot be imported .*: pip install "sortk\[corpora\]"'):
        lhotse.write(tmp_path, [], [])


def test_round_trip_that_lhotse_reads(tmp_path: Path) -> None:
    library = pytest.importorskip("lhotse", exc_type=ImportError)
    path = tmp_path / "r.flac"
    audio.write_flac(path, np.ones(16_000, dtype=np.int16))
    segments = [Segment("r", "a", 0.1, 0.3, "hi"), Segment("r", "b", 0.2, 0.9)]
    lhotse.write(tmp_path / "out", segments, [Session("r", path, 0.5, offset=0.25)])
    assert lhotse.read(tmp_path / "out") == (segments, [Session("r", path, 1.0)])
    recordings = library.RecordingSet.from_file(tmp_path / "out" / lhotse.RECORDINGS)
    supervisions = library.SupervisionSet.from_file(tmp_path / "out" / lhotse.SUPERVISIONS)
    library.validate_recordings_and_supervisions(recordings, supervisions)
    convert(tmp_path / "out", tmp_path / "again", "lhotse")
    for name in (lhotse.RECORDINGS, lhotse.SUPERVISIONS):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()
