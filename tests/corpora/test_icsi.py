from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from miniatures import write_audio

from sortk.cli import main
from sortk.corpora.icsi import ALL, MEETINGS, PUBLISHED, read
from sortk.corpora.miniature import write_icsi_annotations
from sortk.formats import manifest, seglst
from sortk.formats.nxt import Token, find_words
from sortk.records import Word

# "you're" and "mm-hmm" in pieces; "two hour long" with its times on the outer words; then digits without any.
WORDS_A = """\
<w nite:id="@ID.w.1" starttime="0.5" endtime="0.7" c="W" qut="">you</w>
<w nite:id="@ID.w.2" starttime="0.7" endtime="0.8" c="APOSS" qut="">'re</w>
<w nite:id="@ID.w.3" starttime="" endtime="" c="CM">,</w>
<w nite:id="@ID.w.4" starttime="1.0" endtime="" c="W">two</w>
<w nite:id="@ID.w.5" starttime="" endtime="" c="W">hour</w>
<w nite:id="@ID.w.6" starttime="" endtime="1.5" c="W">long</w>
<vocalsound nite:id="@ID.vocalsound.1" starttime="1.5" endtime="1.7" description="breath"/>
<w nite:id="@ID.w.7" starttime="1.8" endtime="2.0" c="W">mm</w>
<w nite:id="@ID.w.8" c="HYPH">-</w>
<w nite:id="@ID.w.9" starttime="2.0" endtime="2.2" c="W">hmm</w>
<w nite:id="@ID.w.10" c=".">.</w>
<w nite:id="@ID.w.11" starttime="3.0" endtime="3.1" c="W">zero</w>
<w nite:id="@ID.w.12" c="W">nine</w>
<w nite:id="@ID.w.13" c="W">five</w>
<w nite:id="@ID.w.14" c="W">@@</w>
"""
SEGMENTS_A = """\
<segment nite:id="@ID.segment.1" type="supersegment" starttime="0.4" endtime="4.0" participant="me011">
 <segment nite:id="@ID.segment.2" starttime="0.4" endtime="2.3" timing-provenance="segment" participant="me011">
  <nite:child href="@ID.A.words.xml#id(@ID.w.1)..id(@ID.w.10)"/>
 </segment>
 <segment nite:id="@ID.segment.3" starttime="2.9" endtime="3.8" participant="me011">
  <nite:child href="@ID.A.words.xml#id(@ID.w.11)..id(@ID.w.13)"/>
 </segment>
 <segment nite:id="@ID.segment.4" starttime="3.9" endtime="4.0" participant="me011">
  <nite:child href="@ID.A.words.xml#id(@ID.w.14)"/>
 </segment>
</segment>
"""
WORDS_B = '<w nite:id="@ID.w.20" starttime="0.6" endtime="0.9" c="W">Right</w>\n'
SEGMENTS_B = (
    '<segment nite:id="@ID.segment.9" starttime="0.6" endtime="1.0" participant="fe008">'
    '<nite:child href="@ID.B.words.xml#id(@ID.w.20)"/></segment>\n'
)
RTTM = """\
SPEAKER Bmr021 1 0.500 0.300 <NA> <NA> me011 <NA> <NA>
SPEAKER Bmr021 1 0.600 0.300 <NA> <NA> fe008 <NA> <NA>
SPEAKER Bmr021 1 1.000 0.500 <NA> <NA> me011 <NA> <NA>
SPEAKER Bmr021 1 1.800 0.400 <NA> <NA> me011 <NA> <NA>
SPEAKER Bmr021 1 2.900 0.900 <NA> <NA> me011 <NA> <NA>
SPEAKER Bmr021 1 3.900 0.100 <NA> <NA> me011 <NA> <NA>
"""


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """The development part."""
    folder = tmp_path / "icsi"
    for meeting in MEETINGS["dev"]:
        write_audio(folder / "audio" / f"{meeting}.interaction.wav", 4.0)
        for agent, *texts in (("A", WORDS_A, SEGMENTS_A), ("B", WORDS_B, SEGMENTS_B)):
            words, segments = (text.replace("@ID", meeting).splitlines() for text in texts)
            write_icsi_annotations(folder, f"{meeting}.{agent}", words, segments)
    return folder


def test_words_and_segments_without_times_of_words_are_read(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = CliRunner().invoke(main, ["prepare", "icsi", "--corpus-dir", str(corpus), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "icsi dev: 2 sessions, 0.00 h, but published are 2 sessions, 2.28 h" in result.stderr
    sessions = {session.session_id: session for session in manifest.read(out / "valid.jsonl")}
    session = sessions["Bmr021"]
    assert session.audio_path == corpus / "audio" / "Bmr021.interaction.wav"
    assert session.rttm_path and session.rttm_path.read_text() == RTTM
    assert session.seglst_path
    assert [(e.start, e.end, e.speaker, e.text) for e in seglst.read(session.seglst_path)] == [
        (0.5, 0.8, "me011", "you're"),
        (0.6, 0.9, "fe008", "Right"),
        (1.0, 1.5, "me011", "two hour long"),
        (1.8, 2.2, "me011", "mm-hmm"),
        (2.9, 3.8, "me011", "zero nine five"),
    ]


def test_the_audio_may_lie_as_lhotse_puts_it(corpus: Path) -> None:
    for meeting in MEETINGS["dev"]:
        (corpus / "speech" / meeting).mkdir(parents=True)
        (corpus / "audio" / f"{meeting}.interaction.wav").rename(corpus / "speech" / meeting / "Mix-Headset.wav")
    assert read(corpus, map)["dev"][0].audio_path == corpus / "speech" / "Bmr021" / "Mix-Headset.wav"


@pytest.mark.parametrize(
    "name", ["audio/Bns001.interaction.wav", "ICSI/Segments/Bmr021.B.segs.xml", "ICSI/Words/Bmr021.*.words.xml"]
)
def test_the_first_missing_file_is_named(corpus: Path, name: str) -> None:
    for path in corpus.glob(name):
        path.unlink()
    with pytest.raises(FileNotFoundError, match=name.replace("*", "A") + ": no such file"):
        read(corpus, map)


def test_without_annotation_it_says_what_to_unpack(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"ICSI/Words: no such folder; unpack ICSI_core_NXT\.zip there"):
        read(tmp_path, map)


def test_words_that_lose_their_times_are_noticed() -> None:
    def token(text: str, start: float | None = None, end: float | None = None) -> Token:
        return Token("", text, start, end)

    assert find_words([token("a", 1.0, 2.0), token(".")]) == ([Word("a", 1.0, 2.0)], False)
    assert find_words([token("a", 1.0, 2.0), token("b")]) == ([Word("a", 1.0, 2.0)], True)
    assert find_words([token("a", 1.0), token("b", 2.0, 3.0)]) == ([Word("b", 2.0, 3.0)], True)
    assert find_words([token("a", 1.0)]) == ([], True)
    assert find_words([token("and", 1.0, 2.0), token("'cause", 2.0, 3.0)])[0][1] == Word("'cause", 2.0, 3.0)


def test_the_parts_are_all_meetings_once() -> None:
    assert sorted(name for names in MEETINGS.values() for name in names) == sorted(ALL) and len(set(ALL)) == 75
    assert {part: len(names) for part, names in MEETINGS.items()} == {p: PUBLISHED[p].sessions for p in PUBLISHED}
