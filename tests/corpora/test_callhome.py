"""CALLHOME of NIST SRE 2000, on a miniature of its disc and of Kaldi's reference."""

from __future__ import annotations

from pathlib import Path

import pytest
from spheres import write_call

from sortk.corpora import callhome
from sortk.corpora.sessions import RecordedSession
from sortk.records import Segment

REFERENCE = """SPEAKER iaaa 0 0.50 2.00 <NA> <NA> A <NA> <NA>
SPEAKER iaaa 0 2.00 0.00 <NA> <NA> B <NA> <NA>
SPEAKER iaaa 0 2.25 1.50 <NA> <NA> B <NA> <NA>
SPEAKER iaab 0 1.00 3.00 <NA> <NA> A <NA> <NA>
SPEAKER iaeu 0 1.00 3.00 <NA> <NA> A <NA> <NA>
"""
SHARED = Path(__file__).parents[3] / "shared" / "data" / "refs" / "vbx_outputs"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    for name in ("iaaa", "iaab", "iaeu"):
        write_call(tmp_path / "r65_8_1" / "sid00sg1" / "data" / f"{name}.sph", 5.0, channels=1)
    (tmp_path / "sre2000-key").mkdir()
    (tmp_path / "sre2000-key" / "fullref.rttm").write_text(REFERENCE)
    return tmp_path


def test_the_folds_with_their_turns(corpus: Path) -> None:
    audio = corpus / "r65_8_1" / "sid00sg1" / "data"
    segments = (
        Segment("iaaa", "iaaa-A", 0.5, 2.5, channel="0"),
        Segment("iaaa", "iaaa-B", 2.25, 3.75, channel="0"),
    )
    assert callhome.read(corpus, map) == {
        "part1": [RecordedSession("iaaa", audio / "iaaa.sph", 5.0, segments)],
        "part2": [
            RecordedSession("iaab", audio / "iaab.sph", 5.0, (Segment("iaab", "iaab-A", 1.0, 4.0, channel="0"),))
        ],
    }


def test_the_turns_of_a_peer(corpus: Path) -> None:
    peer = pytest.importorskip("lhotse.recipes.callhome_english")
    theirs = [turn for turn in peer.read_rttm(corpus / "sre2000-key" / "fullref.rttm") if turn.recording_id != "iaeu"]
    ours = [
        turn for sessions in callhome.read(corpus, map).values() for session in sessions for turn in session.segments
    ]
    assert [(turn.start, turn.end, turn.speaker.replace("-", "_")) for turn in ours] == [
        (turn.start, turn.end, turn.speaker) for turn in theirs
    ]


def test_the_folds_are_those_of_the_literature() -> None:
    parts = callhome.read_parts()
    assert {part: len(names) for part, names in parts.items()} == {
        part: published.sessions for part, published in callhome.PUBLISHED.items()
    }
    assert not set(parts["part1"]) & set(parts["part2"])
    assert all(names == sorted(names) for names in parts.values())


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data are not on this machine")
def test_published_hours_are_those_of_a_system_output() -> None:
    ends: dict[str, float] = {}
    for line in (SHARED / "CALLHOME.rttm").read_text().splitlines():
        _, name, _, start, duration, *_ = line.split()
        ends[name] = max(ends.get(name, 0.0), float(start) + float(duration))
    for part, names in callhome.read_parts().items():
        assert names == (SHARED / f"CALLHOME.{part}.txt").read_text().split()
        assert sum(ends[name] for name in names) / 3600 == pytest.approx(callhome.PUBLISHED[part].hours, abs=0.01)


def test_the_first_missing_file_is_named(corpus: Path) -> None:
    (corpus / "r65_8_1" / "sid00sg1" / "data" / "iaab.sph").unlink()
    with pytest.raises(FileNotFoundError, match=r"no iaab\.sph"):
        callhome.read(corpus, map)
    (corpus / "sre2000-key" / "fullref.rttm").unlink()
    with pytest.raises(FileNotFoundError, match=r"no fullref\.rttm .* unpack sre2000-key\.tar\.gz"):
        callhome.read(corpus, map)
