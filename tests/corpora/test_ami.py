from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from miniatures import word, write_ami

from sortk.cli import main
from sortk.corpora.ami import MEETINGS, N_SPEAKERS, PUBLISHED, AmiOptions, read
from sortk.formats import manifest, rttm, seglst, uem
from sortk.formats.nxt import join_words
from sortk.records import Region, Segment

REFERENCE = Path(__file__).parents[3] / "shared" / "data" / "refs" / "ami"

ES2011A = {
    "A": [
        word("Okay", 0.5, 0.8),
        word(".", 0.8, 0.8, ' punc="true"'),
        word("L_C_D_", 0.8, 1.2),
        '<vocalsound starttime="1.2" endtime="1.4" type="laugh"/>',
        word("th", 1.41, 1.5, ' trunc="true"'),
        '<disfmarker starttime="1.5" endtime="1.5"/>',
        '<w starttime="1.6">lost</w>',
        '<w punc="true">,</w>',
        word("café's", 2.0, 2.5),
    ],
    "C": [word("Yeah", 1.0, 1.3), word("so", 1.2, 1.25), word("well", 1.25, 1.6)],
}
ES2011A_RTTM = """\
SPEAKER ES2011a 1 0.500 0.700 <NA> <NA> FEE000 <NA> <NA>
SPEAKER ES2011a 1 1.000 0.600 <NA> <NA> FEE002 <NA> <NA>
SPEAKER ES2011a 1 1.410 0.090 <NA> <NA> FEE000 <NA> <NA>
SPEAKER ES2011a 1 2.000 0.500 <NA> <NA> FEE000 <NA> <NA>
"""


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """The development part: ES2011a has words, the other meetings are silent."""
    write_ami(tmp_path / "ami", {name: {} for name in MEETINGS["dev"]} | {"ES2011a": ES2011A})
    return tmp_path / "ami"


def test_words_become_segments_and_a_transcript(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = CliRunner().invoke(main, ["prepare", "ami", "--corpus-dir", str(corpus), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "ami dev: 18 sessions, 0.01 h, but published are 18 sessions, 9.67 h" in result.stderr
    sessions = {session.session_id: session for session in manifest.read(out / "valid.jsonl")}
    assert set(sessions) == set(MEETINGS["dev"]) and not (out / "train.jsonl").exists()
    session = sessions["ES2011a"]
    assert session.audio_path == corpus / "amicorpus" / "ES2011a" / "audio" / "ES2011a.Mix-Headset.wav"
    assert (session.duration, session.num_speakers) == (3.0, 2)
    assert session.rttm_path and session.rttm_path.read_text() == ES2011A_RTTM
    assert uem.read(out / "uem" / "ES2011a.uem") == [Region("ES2011a", 0.0, 3.0)]
    assert session.seglst_path
    assert [(entry.start, entry.speaker, entry.text) for entry in seglst.read(session.seglst_path)] == [
        (0.5, "FEE000", "Okay"),
        (0.8, "FEE000", "L C D"),
        (1.0, "FEE002", "Yeah"),
        (1.2, "FEE002", "so"),
        (1.25, "FEE002", "well"),
        (1.41, "FEE000", "th"),
        (2.0, "FEE000", "café's"),
    ]
    assert rttm.read(out / "rttm" / "IB4001.rttm") == [] and sessions["IB4001"].seglst_path is None


def test_any_number_of_jobs_gives_the_same_files(corpus: Path, tmp_path: Path) -> None:
    for jobs in ("1", "2"):
        out = str(tmp_path / jobs)
        result = CliRunner().invoke(main, ["prepare", "ami", "--corpus-dir", str(corpus), "--out", out, "--nj", jobs])
        assert result.exit_code == 0, result.output
    files = [path.relative_to(tmp_path / "1") for path in (tmp_path / "1").rglob("*") if path.is_file()]
    data = [path for path in files if path.parts[0] != "log" and path.suffix in {".jsonl", ".rttm", ".json", ".uem"}]
    assert len(data) > 2 * 18
    for path in data:
        assert (tmp_path / "1" / path).read_bytes() == (tmp_path / "2" / path).read_bytes(), path


def test_the_table_microphone_is_an_option(corpus: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"amicorpus/EN2001a/audio/EN2001a\.Array1-01\.wav: no such file"):
        read(corpus, map, AmiOptions("sdm"))
    write_ami(corpus, {name: {} for name in MEETINGS["test"]}, signal="Array1-01")
    parts = read(corpus, map, AmiOptions("sdm"))
    assert list(parts) == ["test"] and len(parts["test"]) == 16
    assert all(session.audio_path.name.endswith(".Array1-01.wav") for session in parts["test"])


RECIPE = """
summary = "meetings alone"
[[prepare.corpora]]
corpus = "ami"
sets = {{ dev = "train" }}
[simulate]
hours = {{ {hours} }}
[clean]
sad = "none"
"""


def test_stages_0_to_4_need_nothing_to_simulate_from(tmp_path: Path) -> None:
    talk = [word("well", second, second + 1) for second in range(12)]
    meetings = {name: {} for name in MEETINGS["dev"]} | {"ES2011a": {"A": talk, "B": [word("yes", 12, 13)]}}
    write_ami(tmp_path / "ami", meetings, seconds=13.0)
    (tmp_path / "recipe.toml").write_text(RECIPE.format(hours=""), encoding="utf-8")
    run = ["run", "--recipe", str(tmp_path), "--exp", str(tmp_path / "exp"), "--stop-stage", "4"]
    result = CliRunner().invoke(main, run)
    assert result.exit_code == 1 and "--set prepare.corpora.0.corpus_dir=DIR" in result.stderr
    result = CliRunner().invoke(main, [*run, "--set", f"prepare.corpora.0.corpus_dir={tmp_path / 'ami'}"])
    assert result.exit_code == 0, result.output
    assert list((tmp_path / "exp" / "01-simulate").glob("*.jsonl")) == []
    (sample,) = manifest.read(tmp_path / "exp" / "04-sst" / "train.jsonl")
    assert sample.text and sample.text.split()[-2:] == ["<spk1>", "yes"]
    windows = manifest.read(tmp_path / "exp" / "02-clean" / "diar" / "train.jsonl")
    assert {window.audio_path.name for window in windows} >= {"ES2011a.Mix-Headset.wav"}


def test_hours_without_sources_are_refused(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE.format(hours="train = 1"), encoding="utf-8")
    where = ["--recipe", str(tmp_path), "--exp", str(tmp_path / "exp"), "--set"]
    result = CliRunner().invoke(main, ["run", *where, f"prepare.corpora.0.corpus_dir={corpus}", "--stop-stage", "1"])
    assert result.exit_code == 1 and "the sources of 'train' have 0" in result.stderr


@pytest.mark.parametrize(
    "name",
    [
        "amicorpus/IS1008b/audio/IS1008b.Mix-Headset.wav",
        "ami_public_manual_1.6.2/words/ES2011a.D.words.xml",
        "ami_public_manual_1.6.2/corpusResources/meetings.xml",
    ],
)
def test_the_first_missing_file_is_named(corpus: Path, tmp_path: Path, name: str) -> None:
    (corpus / name).unlink()
    result = CliRunner().invoke(main, ["prepare", "ami", "--corpus-dir", str(corpus), "--out", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert f"sortk: {corpus / name}: no such file" in result.stderr


def test_the_missing_corpus_and_annotation_are_explained(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["prepare", "ami", "--out", str(tmp_path / "out")])
    assert result.exit_code == 1 and "prepare.corpus_dir" in result.stderr and "groups.inf.ed.ac.uk" in result.stderr
    with pytest.raises(FileNotFoundError, match=r"unpack the manual annotations, ami_public_manual_1\.6\.2\.zip"):
        read(tmp_path, map)


def test_broken_xml_is_named_with_its_line(corpus: Path) -> None:
    path = corpus / "ami_public_manual_1.6.2" / "words" / "ES2011a.B.words.xml"
    path.write_text("<nite:root\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"ES2011a\.B\.words\.xml, line \d: broken XML"):
        read(corpus, map)


WORDS = st.lists(st.tuples(st.sampled_from("AB"), st.integers(0, 60), st.integers(1, 9)))


@given(WORDS)
def test_segments_cover_exactly_the_words_and_keep_every_pause(words: list[tuple[str, int, int]]) -> None:
    segments = list(join_words(Segment("m", who, start, start + length, "w") for who, start, length in words))
    for speaker in "AB":
        own = sorted((s for s in segments if s.speaker == speaker), key=lambda segment: segment.start)
        assert all(before.end < after.start for before, after in pairwise(own))
        covered = {second for s in own for second in range(round(s.start), round(s.end))}
        assert covered == {
            second for who, start, length in words if who == speaker for second in range(start, start + length)
        }


def test_no_meeting_is_in_two_parts() -> None:
    assert set(Counter(name for names in MEETINGS.values() for name in names).values()) == {1}
    for published in PUBLISHED.values():
        assert published["dev"].sessions == len(MEETINGS["dev"]) == 18
        assert published["test"].sessions == len(MEETINGS["test"]) == 16
    assert PUBLISHED["ihm-mix"]["train"].sessions == len(MEETINGS["train"]) == 136


@pytest.mark.skipif(not REFERENCE.is_dir(), reason="the shared data are not on this machine")
@pytest.mark.parametrize("part", ["train", "dev"])
def test_the_reference_of_landini_has_the_counts_of_the_table(part: str) -> None:
    published = PUBLISHED["ihm-mix"][part]
    regions = uem.read(REFERENCE / f"{part}.uem")
    assert {region.session_id for region in regions} == set(MEETINGS[part]) and len(regions) == published.sessions
    assert sum(region.end for region in regions) / 3600 == pytest.approx(published.hours, abs=0.005)
    segments = rttm.read(REFERENCE / f"{part}.rttm")
    speakers = defaultdict(set)
    for segment in segments:
        speakers[segment.session_id].add(segment.speaker)
    assert {name: len(own) for name, own in speakers.items()} == {name: N_SPEAKERS.get(name, 4) for name in speakers}
    # Its segments are runs of words by our rule: joining them again changes nothing.
    by_meeting = defaultdict(list)
    for segment in segments:
        by_meeting[segment.session_id].append(segment)
    for own in by_meeting.values():
        assert sorted(join_words(own), key=str) == sorted(own, key=str)


@pytest.mark.skipif(not REFERENCE.is_dir(), reason="the shared data are not on this machine")
def test_the_parts_are_those_of_landini() -> None:
    for part, meetings in MEETINGS.items():
        assert set(meetings) == set((REFERENCE / "lists" / f"{part}.meetings.txt").read_text().split()), part


@pytest.mark.skipif(not REFERENCE.is_dir(), reason="the shared data are not on this machine")
def test_sentences_of_lhotse_join_to_the_reference_of_landini() -> None:
    """lhotse cuts runs of words at full stops; by our rule they are whole again, and just the reference's segments."""
    with gzip.open(REFERENCE.parent / "lhotse_ami" / "ES2011a_sups.jsonl.gz", "rt", encoding="utf-8") as file:
        sentences = [json.loads(line) for line in file]
    spoken = [
        Segment("ES2011a", item["speaker"], item["start"], round(item["start"] + item["duration"], 6))
        for item in sentences
    ]
    reference = [segment for segment in rttm.read(REFERENCE / "dev.rttm") if segment.session_id == "ES2011a"]
    assert len(spoken) == 348 and len(reference) == 215
    assert sorted(join_words(spoken), key=str) == sorted(reference, key=str)
