from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortk.formats import manifest, seglst
from sortk.prepare.sst import (
    Level,
    SstOptions,
    SstSummary,
    build_sst,
    cut_window,
    join_words,
    number_speakers,
    parse_sst,
    serialize,
    serialize_sessions,
    write_sst,
)
from sortk.records import Segment, Session

LEVELS: tuple[Level, ...] = get_args(Level)


def words(*entries: str, session_id: str = "m") -> list[Segment]:
    """One segment for each "speaker start end text"."""
    fields = [entry.split(maxsplit=3) for entry in entries]
    return [Segment(session_id, who, float(start), float(end), text) for who, start, end, text in fields]


# ---------------------------------------------------------------------------------------------------------------------
# Sessions with transcripts written out by hand

OVERLAP = words(
    "amy 0.0 0.4 well",
    "bob 0.2 0.6 yes",
    "amy 0.5 0.7 i",
    "amy 0.7 1.1 think",
    "bob 1.9 2.4 really",  # 1.3 s after bob's first word: another segment
    "amy 3.0 3.4 so",  # 1.9 s after "think"
)
BACKCHANNEL = words("amy 1.0 2.0 conversation", "bob 1.3 1.5 mhm", "amy 2.0 2.4 today")
TIE = words("bob 1.0 1.2 no", "amy 1.0 1.5 yes", "bob 1.2 1.4 way", "amy 2.5 2.6 bob", "bob 2.5 2.9 amy")
ALONE = words("amy 0.5 0.9 all", "amy 0.9 1.2 by", "amy 5.0 5.9 myself")
DOMINANT = words("amy 0.0 0.2 hi", "bob 0.5 1.5 now", "bob 1.5 2.5 listen", "eve 2.4 3.0 please", "amy 4.0 4.1 ok")


@pytest.mark.parametrize(
    ("session", "level", "sst"),
    [
        (OVERLAP, "word", "<spk0> well <spk1> yes <spk0> i think <spk1> really <spk0> so"),
        (OVERLAP, "segment", "<spk0> well i think <spk1> yes really <spk0> so"),
        (OVERLAP, "sot", "well i think <cs> yes really <cs> so"),
        (OVERLAP, "dom-sot", "well i think so <cs> yes really"),  # 1.4 s and 0.9 s
        (BACKCHANNEL, "word", "<spk0> conversation <spk1> mhm <spk0> today"),
        (BACKCHANNEL, "segment", "<spk0> conversation today <spk1> mhm"),
        (BACKCHANNEL, "sot", "conversation today <cs> mhm"),
        (BACKCHANNEL, "dom-sot", "conversation today <cs> mhm"),
        (TIE, "word", "<spk0> no <spk1> yes <spk0> way amy <spk1> bob"),  # bob is given first, so he is 0
        (TIE, "segment", "<spk0> no way <spk1> yes <spk0> amy <spk1> bob"),
        (TIE, "sot", "no way <cs> yes <cs> amy <cs> bob"),
        (TIE, "dom-sot", "no way amy <cs> yes bob"),  # 0.8 s and 0.6 s
        (ALONE, "word", "<spk0> all by myself"),
        (ALONE, "segment", "<spk0> all by myself"),
        (ALONE, "sot", "all by myself"),
        (ALONE, "dom-sot", "all by myself"),
        (DOMINANT, "word", "<spk0> hi <spk1> now listen <spk2> please <spk0> ok"),
        (DOMINANT, "segment", "<spk0> hi <spk1> now listen <spk2> please <spk0> ok"),
        (DOMINANT, "sot", "hi <cs> now listen <cs> please <cs> ok"),
        (DOMINANT, "dom-sot", "now listen <cs> please <cs> hi ok"),  # 2.0, 0.6 and 0.3 s
    ],
)
def test_by_hand(session: list[Segment], level: Level, sst: str) -> None:
    assert build_sst(session, level) == sst
    assert serialize(parse_sst(sst, level), level) == sst


def test_the_example_of_the_definition() -> None:
    session = words("x 0 1 well", "y 0.5 1 yes", "x 1 2 i", "x 2 3 think")
    assert build_sst(session) == "<spk0> well <spk1> yes <spk0> i think"


def test_ties_of_words_go_by_arrival_then_by_position() -> None:
    session = words("amy 0 1 a", "bob 2 3 d", "amy 2 3 b", "amy 2 3 c")
    assert build_sst(session) == "<spk0> a b c <spk1> d"


def test_ties_of_dominance_go_by_arrival() -> None:
    session = words("amy 0.0 0.1 a", "amy 0.1 0.3 b", "bob 0.5 0.8 c")  # 0.1 + 0.2 is not 0.3 in floating point
    assert build_sst(session, "dom-sot") == "a b <cs> c"
    assert build_sst(session[::-1], "dom-sot") == "a b <cs> c"


def test_own_overlap_counts_once_for_dominance() -> None:
    session = words("amy 0 2 a", "amy 0 2 b", "bob 3 6 c")
    assert build_sst(session, "dom-sot") == "c <cs> a b"


def test_arrival_is_the_first_word_and_not_the_first_entry() -> None:
    session = [Segment("m", "mute", 0.0, 9.0, ""), *words("bob 5 6 late", "amy 1 2 early")]
    assert number_speakers(session[1:]) == {"amy": 0, "bob": 1}
    assert build_sst(session) == "<spk0> early <spk1> late"


def test_nothing_said_is_an_empty_text() -> None:
    assert [build_sst([], level) for level in LEVELS] == [""] * 4
    assert build_sst([Segment("m", "amy", 0.0, 1.0, " ")]) == ""


# ---------------------------------------------------------------------------------------------------------------------
# Segments


def test_words_join_over_short_pauses() -> None:
    session = words("amy 0 1 a", "amy 1.4 2 b", "amy 2.6 3 c", "bob 0 9 d")
    assert join_words(session, 0.5) == words("amy 0 2 a b", "amy 2.6 3 c", "bob 0 9 d")
    assert join_words(session, 0.0) == session
    assert join_words(session, 1e9) == words("amy 0 3 a b c", "bob 0 9 d")


def test_a_word_inside_another_does_not_end_the_segment() -> None:
    assert join_words(words("amy 0 5 long", "amy 1 2 short", "amy 5.1 6 next"), 0.5) == words("amy 0 6 long short next")


def test_entries_of_several_words_are_segments_as_they_stand() -> None:
    session = words("amy 0 2 how are you", "amy 2 3 amy", "bob 1 4 fine thanks")
    assert join_words(session, 0.5) == session
    assert build_sst(session, "segment") == "<spk0> how are you <spk1> fine thanks <spk0> amy"
    assert build_sst(session, "sot") == "how are you <cs> fine thanks <cs> amy"
    assert build_sst(session, "dom-sot") == "how are you amy <cs> fine thanks"
    with pytest.raises(
        ValueError, match=r"session m, amy at 0.000 s: 'how are you' is more than one word; `sortk times"
    ):
        build_sst(session, "word")


# ---------------------------------------------------------------------------------------------------------------------
# Errors


@pytest.mark.parametrize("text", ["<spk1>", "<cs>", "<CS>", "<spkx>", "<spk>", "oh<spk0>", "<Spk12>no"])
@pytest.mark.parametrize("level", LEVELS)
def test_words_like_tokens_are_refused(text: str, level: Level) -> None:
    with pytest.raises(ValueError, match=r"session m, amy at 1.500 s: the transcript holds '<.*>', which is a token"):
        build_sst(words(f"amy 1.5 2 {text}"), level)


@pytest.mark.parametrize("text", ["<unk>", "<", "a<b", "spk0", "<spk", "cs>", "[noise]"])
def test_other_words_are_not(text: str) -> None:
    assert parse_sst(build_sst(words(f"amy 1.5 2 {text}"))) == [(0, text)]


def test_sessions_do_not_mix() -> None:
    with pytest.raises(ValueError, match="of one session, not of m and others"):
        build_sst([*words("amy 0 1 a"), *words("amy 0 1 b", session_id="other")])


@pytest.mark.parametrize(
    ("level", "text", "fault"),
    [
        ("word", "", "SST is empty"),
        ("word", "  ", "SST is empty"),
        ("sot", "", "SST is empty"),
        ("word", "hello <spk0> you", "token 1, 'hello', is a word before any speaker token"),
        ("word", "<spk0> a <spkx> b", "token 3, '<spkx>', is no speaker token"),
        ("word", "<spk0> a <spk01> b", "token 3, '<spk01>', is no speaker token"),
        ("word", "<spk0> a <spk１> b", "token 3, '<spk１>', is no speaker token"),
        ("word", "<spk0> a <spk1>b", "token 3, '<spk1>b', is no speaker token"),
        ("word", "<spk0> a <cs> b", "token 3, '<cs>', is no speaker token"),
        ("word", "<spk1> a", "token 1, '<spk1>', comes before <spk0>"),
        ("segment", "<spk0> a <spk2> b", "token 3, '<spk2>', comes before <spk1>"),
        ("word", "<spk0> a <spk0> b", "token 3, '<spk0>', is speaking already"),
        ("word", "<spk0> <spk1> b", "token 1, '<spk0>', has no word after it"),
        ("word", "<spk0> a <spk1>", "token 3, '<spk1>', has no word after it"),
        ("sot", "<cs> a", "token 1, '<cs>', has no word before it"),
        ("sot", "a <cs>", "token 2, '<cs>', has no word after it"),
        ("dom-sot", "a <cs> <cs> b", "token 2, '<cs>', has no word after it"),
        ("sot", "a <spk1> b", "token 2, '<spk1>', is no token of this level"),
    ],
)
def test_what_is_no_sst_is_refused(level: Level, text: str, fault: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_sst(text, level)
    assert fault in str(caught.value)


def test_options_are_checked_when_they_are_made() -> None:
    with pytest.raises(ValueError, match=r"unknown level 'turn' of SST; levels: word, segment, sot, dom-sot"):
        SstOptions(level="turn")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="segment_gap must not be negative"):
        SstOptions(segment_gap=-1)


# ---------------------------------------------------------------------------------------------------------------------
# Inverse


def has_no_token(text: str) -> bool:
    return "<spk" not in text.lower() and "<cs>" not in text.lower()


WORD_TEXT = st.text(st.characters(exclude_categories=["Cs", "Zs", "Zl", "Zp", "Cc"]), min_size=1, max_size=6)
WORDS = st.lists(
    st.builds(
        lambda who, start, length, text: Segment("m", who, start / 10, (start + length) / 10, text),
        st.sampled_from(["amy", "bob", "eve", "joe"]),
        st.integers(0, 60),
        st.integers(1, 20),
        WORD_TEXT.filter(has_no_token),
    ),
    min_size=1,
    max_size=20,
)


@given(WORDS, st.sampled_from(LEVELS))
def test_sst_to_words_to_sst_is_the_identity(session: list[Segment], level: Level) -> None:
    sst = build_sst(session, level)
    assert serialize(parse_sst(sst, level), level) == sst


@given(WORDS)
def test_each_speaker_gets_the_own_words_back(session: list[Segment]) -> None:
    arrival_order = number_speakers(session)
    for level in ("word", "segment"):
        parsed = parse_sst(build_sst(session, level), level)
        for speaker, number in arrival_order.items():
            own = sorted((word for word in session if word.speaker == speaker), key=lambda word: word.start)
            assert [text for who, text in parsed if who == number] == [word.text for word in own]


@given(WORDS)
def test_speakers_arrive_in_order_and_words_by_onset(session: list[Segment]) -> None:
    parsed = parse_sst(build_sst(session))
    assert list(dict.fromkeys(who for who, _ in parsed)) == list(range(len({word.speaker for word in session})))
    expected = sorted(word.start for word in session)
    queues = {
        number: sorted(w.start for w in session if w.speaker == who) for who, number in number_speakers(session).items()
    }
    assert [queues[who].pop(0) for who, _ in parsed] == expected


@given(st.lists(st.sampled_from(["<spk0>", "<spk1>", "<spk2>", "<cs>", "<spkx>", "a", "b"])), st.sampled_from(LEVELS))
def test_what_is_parsed_is_written_the_same(tokens: list[str], level: Level) -> None:
    try:
        parsed = parse_sst(" ".join(tokens), level)
    except ValueError:
        return
    assert serialize(parsed, level) == " ".join(tokens)


# ---------------------------------------------------------------------------------------------------------------------
# Windows


def test_every_window_numbers_its_speakers_anew() -> None:
    first, second = cut_window(OVERLAP, 0.0, 1.5), cut_window(OVERLAP, 1.5, 2.0)
    assert build_sst(first) == "<spk0> well <spk1> yes <spk0> i think"
    assert build_sst(second) == "<spk0> really <spk1> so"
    assert build_sst(cut_window(OVERLAP, 1.5)) == "<spk0> really <spk1> so"
    assert cut_window(OVERLAP, 10.0, 5.0) == []


def test_words_that_touch_the_edge_belong_to_one_window() -> None:
    session = words("amy 0 1 a", "amy 1 2 b", "amy 2 3 c")
    assert cut_window(session, 1.0, 1.0) == [session[1]]
    assert cut_window(session, 1.0000004, 0.9999992) == [session[1]]  # times in files are rounded


@pytest.mark.parametrize(("offset", "duration"), [(0.5, 5.0), (-1.0, 1.5), (0.2, 0.3)])
def test_a_cut_word_is_an_error(offset: float, duration: float) -> None:
    with pytest.raises(
        ValueError, match=r"session m: the window from .* s cuts 'conversation' of amy, 0.000 to 1.000 s"
    ):
        cut_window(words("amy 0 1 conversation"), offset, duration)


# ---------------------------------------------------------------------------------------------------------------------
# Files


def run_in_processes(work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
    with ProcessPoolExecutor(2) as pool:
        yield from pool.map(work, items)


def in_session(session_id: str, session: Sequence[Segment]) -> list[Segment]:
    return [replace(word, session_id=session_id) for word in session]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files: one with two sessions, of which one has no words, and one with nothing at all."""
    wordless = [Segment("wordless", "amy", 0.0, 1.0)]
    seglst.write(tmp_path / "in" / "a.json", in_session("meeting2", TIE) + wordless + in_session("meeting1", OVERLAP))
    seglst.write(tmp_path / "in" / "silence.json", [])
    return tmp_path


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_sessions_become_lines(folder: Path) -> None:
    summary = write_sst(folder / "in", folder / "sst.jsonl")
    assert read_lines(folder / "sst.jsonl") == [
        {"session_id": "meeting2", "text": "<spk0> no <spk1> yes <spk0> way amy <spk1> bob"},
        {"session_id": "meeting1", "text": "<spk0> well <spk1> yes <spk0> i think <spk1> really <spk0> so"},
    ]
    assert summary == SstSummary(sessions=2, words=11, empty_sessions=("wordless", "silence"))
    assert summary.to_json() == {"sessions": 2, "words": 11, "empty_sessions": ["wordless", "silence"]}
    assert str(summary) == "2 sessions, 11 words; 2 left out, without any word: wordless, silence"
    assert str(SstSummary(1, 2)) == "1 sessions, 2 words"


def test_one_file_and_another_level(folder: Path) -> None:
    write_sst(folder / "in" / "a.json", folder / "sst.jsonl", SstOptions("sot"))
    assert [line["text"] for line in read_lines(folder / "sst.jsonl")] == [
        "no way <cs> yes <cs> amy <cs> bob",
        "well i think <cs> yes really <cs> so",
    ]


def test_segments_depend_on_the_gap(folder: Path) -> None:
    write_sst(folder / "in" / "a.json", folder / "sst.jsonl", SstOptions("segment", segment_gap=5.0))
    assert [line["text"] for line in read_lines(folder / "sst.jsonl")] == [
        "<spk0> no way amy <spk1> yes bob",
        "<spk0> well i think so <spk1> yes really",
    ]


def test_any_number_of_jobs_writes_the_same(folder: Path) -> None:
    here = write_sst(folder / "in", folder / "here.jsonl")
    there = write_sst(folder / "in", folder / "there.jsonl", run_jobs=run_in_processes)
    assert here == there
    assert (folder / "here.jsonl").read_bytes() == (folder / "there.jsonl").read_bytes()


def test_a_session_in_two_files_is_refused(folder: Path) -> None:
    seglst.write(folder / "in" / "b.json", in_session("meeting1", TIE))
    with pytest.raises(ValueError, match=r"session 'meeting1' is in two files; the second is .*b.json"):
        write_sst(folder / "in", folder / "sst.jsonl")
    assert not (folder / "sst.jsonl").exists()


def make_windows(words_path: Path) -> list[Session]:
    audio = words_path.parent / "audio" / "meeting1.flac"
    return [
        Session("meeting1-late", audio, duration=2.0, offset=1.5, num_speakers=9, seglst_path=words_path),
        Session("other", audio.with_name("other.flac"), duration=5.0, seglst_path=words_path.with_name("other.json")),
        Session("meeting1-silent", audio, duration=9.0, offset=20.0, seglst_path=words_path),
        Session("meeting1-early", audio, duration=1.5, seglst_path=words_path, extra={"lang": "en"}),
    ]


@pytest.mark.parametrize("run_jobs", [map, run_in_processes])
def test_windows_of_a_manifest_get_their_sst(tmp_path: Path, run_jobs: Any) -> None:
    seglst.write(tmp_path / "words.json", in_session("meeting1", OVERLAP))
    seglst.write(tmp_path / "other.json", in_session("other", BACKCHANNEL))
    windows = make_windows(tmp_path / "words.json")
    serialized, summary = serialize_sessions(windows, run_jobs=run_jobs)
    late = replace(windows[0], text="<spk0> really <spk1> so", num_speakers=2)
    other = replace(windows[1], text="<spk0> conversation <spk1> mhm <spk0> today", num_speakers=2)
    early = replace(windows[3], text="<spk0> well <spk1> yes <spk0> i think", num_speakers=2)
    assert serialized == [late, other, early]
    assert summary == SstSummary(sessions=3, words=9, empty_sessions=("meeting1-silent",))
    manifest.write(tmp_path / "train.jsonl", serialized)
    assert manifest.read(tmp_path / "train.jsonl") == serialized


def test_windows_find_their_words_in_a_file_of_several_sessions(tmp_path: Path) -> None:
    path = tmp_path / "words.json"
    seglst.write(path, in_session("meeting1", OVERLAP) + in_session("other", ALONE))
    windows = make_windows(path)
    serialized, _ = serialize_sessions([windows[0], replace(windows[1], duration=None, seglst_path=path)])
    assert [session.text for session in serialized] == ["<spk0> really <spk1> so", "<spk0> all by myself"]
    stranger = replace(windows[0], audio_path=tmp_path / "stranger.flac")
    with pytest.raises(ValueError, match=r"words.json: none of its 2 sessions is 'meeting1-late'"):
        serialize_sessions([stranger])


def test_a_window_that_cuts_a_word_is_an_error(tmp_path: Path) -> None:
    seglst.write(tmp_path / "words.json", in_session("meeting1", OVERLAP))
    cut = replace(make_windows(tmp_path / "words.json")[0], offset=0.9)
    with pytest.raises(ValueError, match=r"the window from 0.900 to 2.900 s cuts 'think' of amy, 0.700 to 1.100 s"):
        serialize_sessions([cut])


def test_a_session_without_words_to_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="session 'x' names no SegLST"):
        serialize_sessions([Session("x", tmp_path / "x.flac")])


@given(WORDS, st.lists(st.integers(0, 90), min_size=1, max_size=5))
def test_a_track_finds_all_that_a_window_needs(session: list[Segment], edges: list[int]) -> None:
    from sortk.prepare.sst import Track

    track = Track.of(session)
    for edge in edges:
        for duration in (None, 1.0, 30.0):
            offset = edge / 10
            near = track.find(offset, duration)
            end = float("inf") if duration is None else offset + duration
            assert {id(word) for word in near} >= {id(w) for w in session if w.end > offset and w.start < end}
