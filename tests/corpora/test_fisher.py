"""Fisher English, on a miniature of both parts as they are unpacked."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from spheres import write_call, write_sphere

from sortk.corpora import fisher
from sortk.corpora.registry import PrepareOptions, prepare_corpus
from sortk.corpora.sessions import RecordedSession
from sortk.formats import manifest, rttm, seglst
from sortk.records import Segment

AUDIO_1 = "fe_03_p1_sph1/audio/000/fe_03_00001.sph"
AUDIO_2 = (
    "fisher_eng_tr_sp_d1/audio/114/fe_03_11487.sph"  # the second part has such folders since it was published anew
)
TEXT_1 = "fe_03_p1_tran/data/trans/000/fe_03_00001.txt"
TEXT_2 = "fe_03_p2_tran/data/trans/114/fe_03_11487.txt"

TRANSCRIPT_1 = """# fe_03_00001.sph
# Transcribed at the LDC

3.76 5.54 A: and i generally prefer [laughter]

5.00 6.25 B: (( is that )) right

7.00 7.50 B: [noise]

8.00 8.50 A: (( ))

9.00 9.75 B: [laughter]
"""
TRANSCRIPT_2 = """# fe_03_11487.sph
# Transcribed by BBN/WordWave

31.09 234.06 A: on t._v. you know

234.00 236.00 B: mhm
"""


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    write_call(tmp_path / AUDIO_1, 10.0)
    write_call(tmp_path / AUDIO_2, 240.0)
    for name, text in {TEXT_1: TRANSCRIPT_1, TEXT_2: TRANSCRIPT_2}.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def segment(name: str, side: str, start: float, end: float, text: str = "") -> Segment:
    return Segment(name, f"{name}-{side}", start, end, text)


def test_turns_become_segments_and_a_transcript(corpus: Path) -> None:
    first, second = fisher.read(corpus, map)["train"]
    name = "fe_03_00001"
    assert first == RecordedSession(
        name,
        corpus / AUDIO_1,
        10.0,
        segments=(
            segment(name, "A", 3.76, 5.54),
            segment(name, "B", 5.0, 6.25),
            segment(name, "A", 8.0, 8.5),
            segment(name, "B", 9.0, 9.75),
        ),
        transcript=(
            segment(name, "A", 3.76, 5.54, "and i generally prefer"),
            segment(name, "B", 5.0, 6.25, "is that right"),
        ),
    )
    name = "fe_03_11487"
    assert second.transcript == (
        segment(name, "A", 231.09, 234.06, "on t v you know"),
        segment(name, "B", 234.0, 236.0, "mhm"),
    )


def test_the_turns_of_a_peer(corpus: Path) -> None:
    peer = pytest.importorskip("lhotse.recipes.fisher_english")
    people = {"00001": {"A": "2602", "B": "1790"}, "11487": {"A": "1", "B": "2"}}
    for call in fisher.find_calls(corpus):
        theirs = peer.create_supervision((people, call.transcript))
        ours = fisher.read_call(call).segments
        heard = [(turn.start, turn.end, "AB"[turn.channel]) for turn in theirs if turn.text != "[noise]"]
        assert [(turn.start, pytest.approx(turn.end), turn.speaker[-1]) for turn in ours] == heard


def test_stage_0_writes_it_and_compares_the_counts(
    corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out"
    with caplog.at_level(logging.WARNING):
        prepare_corpus(PrepareOptions(corpus="fisher", corpus_dir=str(corpus)), out, 0)
    assert "fisher train: 2 sessions, 0.07 h, but published are 11699 sessions, 1960.00 h" in caplog.text
    session = manifest.read(out / "train.jsonl")[0]
    assert (session.audio_path, session.duration, session.num_speakers) == (corpus / AUDIO_1, 10.0, 2)
    assert session.rttm_path and len(rttm.read(session.rttm_path)) == 4
    assert session.seglst_path and seglst.read(session.seglst_path)[1].text == "is that right"


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        (AUDIO_1, r"no fe_03_00001\.sph \(nor"),
        (TEXT_2, r"no fe_03_11487\.txt here or below, the transcript of .*fe_03_11487\.sph"),
    ],
)
def test_the_first_missing_file_is_named(corpus: Path, missing: str, message: str) -> None:
    (corpus / missing).unlink()
    with pytest.raises(FileNotFoundError, match=message):
        fisher.read(corpus, map)


def test_a_folder_without_transcripts_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no transcript"):
        fisher.read(tmp_path, map)


def test_packed_audio_must_be_unpacked_and_may_lie_beside(corpus: Path) -> None:
    write_sphere(corpus / AUDIO_1, b"ajkg" + bytes(96), "ulaw,embedded-shorten-v2.00")
    with pytest.raises(ValueError, match=r"unpack it: sph2pipe -p -f wav fe_03_00001\.sph fe_03_00001\.wav"):
        fisher.read(corpus, map)
    unpacked = (corpus / AUDIO_1).with_suffix(".wav")
    write_call(unpacked, 11.0)  # libsndfile looks at the content, not at the name
    assert fisher.read(corpus, map)["train"][0].audio_path == unpacked
