"""CH109, on a miniature of CALLHOME American English: the LDC's transcripts, or TalkBank's."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from spheres import write_call

from sortk.corpora import ch109
from sortk.corpora.registry import PrepareOptions, prepare_corpus
from sortk.corpora.sessions import RecordedSession
from sortk.formats import manifest, uem
from sortk.formats.annotation import session_segments
from sortk.records import Region, Segment

TWO = """5.25 8.02 A: %um, I met &Jan
yesterday. {laugh}

7.43 9.36 B: {laugh}
9.50 11.00 A: (( ))
"""
THREE = """5.25 8.02 A: hello
8.00 9.00 B: hi
9.00 9.50 B1: hi there
"""
CHAT = """@UTF8
@Begin
@Media:\t5555, audio
*A:\t&-um I met Jan yesterday . \x155250_8020\x15
*B:\t&=laughs \x157430_9360\x15
*A:\txxx . \x159500_11000\x15
@End
"""
TRANSCRIPTS = {
    "LDC97T14/transcrpt/train/en_4065.txt": TWO,
    "LDC97T14/transcrpt/devtest/en_4580.txt": THREE,
    "LDC97T14/transcrpt/train/en_4902.txt": TWO,  # two speakers, but not of the 109
    "talkbank/5555.cha": CHAT,
    "talkbank/4065.cha": CHAT.replace("Jan", "nobody"),  # the LDC's own is there, too
}
RECORDINGS = (
    "LDC97S42/data/train/en_4065.sph",
    "LDC97S42/data/devtest/en_4580.sph",
    "LDC97S42/data/train/en_4902.sph",
    "talkbank/5555.wav",
)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    for name, text in TRANSCRIPTS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for name in RECORDINGS:
        write_call(tmp_path / name, 20.0)
    return tmp_path


def expected(name: str, audio_path: Path) -> RecordedSession:
    a, b = f"{name}-A", f"{name}-B"
    return RecordedSession(
        name,
        audio_path,
        5.75,
        segments=(Segment(name, a, 5.25, 8.02), Segment(name, b, 7.43, 9.36), Segment(name, a, 9.5, 11.0)),
        transcript=(Segment(name, a, 5.25, 8.02, "um i met jan yesterday"),),
        regions=(Region(name, 5.25, 11.0),),
        offset=5.25,
    )


def test_calls_of_two_speakers_scored_where_they_are_transcribed(corpus: Path) -> None:
    assert ch109.read(corpus, map) == {
        "test": [
            expected("en_4065", corpus / "LDC97S42/data/train/en_4065.sph"),
            expected("en_5555", corpus / "talkbank/5555.wav"),
        ]
    }


def test_stage_0_writes_regions_and_compares_the_count(
    corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out"
    with caplog.at_level(logging.WARNING):
        prepare_corpus(PrepareOptions(corpus="ch109", corpus_dir=str(corpus)), out, 0)
    assert "ch109 test: 2 sessions, 0.00 h, but published are 109 sessions, 16.74 h" in caplog.text
    session = manifest.read(out / "test.jsonl")[0]
    assert (session.offset, session.duration) == (5.25, 5.75)
    assert [segment.text for segment in session_segments(session)] == ["um i met jan yesterday"]
    assert session.uem_path and uem.read(session.uem_path) == [Region("en_4065", 5.25, 11.0)]


def test_the_first_missing_file_is_named(corpus: Path) -> None:
    (corpus / RECORDINGS[0]).unlink()
    with pytest.raises(FileNotFoundError, match=r"no en_4065\.sph"):
        ch109.read(corpus, map)


def test_audio_that_is_not_the_whole_call_is_refused(corpus: Path) -> None:
    write_call(corpus / RECORDINGS[0], 5.0)
    with pytest.raises(ValueError, match=r"en_4065\.txt: its first turn starts at 5\.25 s, but .* ends at 5\.0 s"):
        ch109.read(corpus, map)


def test_a_folder_without_transcripts_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no transcript \(en_4065\.txt or 4065\.cha"):
        ch109.read(tmp_path, map)
