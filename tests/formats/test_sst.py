"""Sorted serialized transcripts: built by hand at every level, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sessions_by_hand import ALONE, BACKCHANNEL, OVERLAP, TIE, words

from sortk.formats.sst import (
    LEVELS,
    Level,
    SstOptions,
    SstTurn,
    build_sst,
    join_by_segment,
    join_words,
    order_turns,
    parse_any,
    parse_sst,
    serialize,
    strip_tokens,
)
from sortk.records import Segment, arrival_order
from sortk.training.targets import frame_targets

# ---------------------------------------------------------------------------------------------------------------------
# Sessions with transcripts written out by hand

DOMINANT = words("amy 0.0 0.2 hi", "bob 0.5 1.5 now", "bob 1.5 2.5 listen", "eve 2.4 3.0 please", "amy 4.0 4.1 ok")


@pytest.mark.parametrize(
    ("session", "level", "sst"),
    [
        (OVERLAP, "word", "<spk0> well <spk1> yes <spk0> i <spk0> think <spk1> really <spk0> so"),
        (OVERLAP, "segment", "<spk0> well i think <spk1> yes <spk1> really <spk0> so"),
        (OVERLAP, "change", "<spk0> well <spk1> yes <spk0> i think <spk1> really <spk0> so"),
        (OVERLAP, "sot", "well i think <cs> yes really <cs> so"),
        (OVERLAP, "dom-sot", "well i think so <cs> yes really"),  # 1.4 s and 0.9 s
        (BACKCHANNEL, "word", "<spk0> conversation <spk1> mhm <spk0> today"),
        (BACKCHANNEL, "segment", "<spk0> conversation today <spk1> mhm"),
        (BACKCHANNEL, "change", "<spk0> conversation <spk1> mhm <spk0> today"),
        (BACKCHANNEL, "sot", "conversation today <cs> mhm"),
        (BACKCHANNEL, "dom-sot", "conversation today <cs> mhm"),
        (TIE, "word", "<spk0> yes <spk1> no <spk1> way <spk0> bob <spk1> amy"),  # amy before bob, as in the alphabet
        (TIE, "segment", "<spk0> yes <spk1> no way <spk0> bob <spk1> amy"),
        (TIE, "change", "<spk0> yes <spk1> no way <spk0> bob <spk1> amy"),
        (TIE, "sot", "yes <cs> no way <cs> bob <cs> amy"),
        (TIE, "dom-sot", "no way amy <cs> yes bob"),  # 0.8 s and 0.6 s
        (ALONE, "word", "<spk0> all <spk0> by <spk0> myself"),
        (ALONE, "segment", "<spk0> all by <spk0> myself"),
        (ALONE, "change", "<spk0> all by myself"),
        (ALONE, "sot", "all by myself"),
        (ALONE, "dom-sot", "all by myself"),
        (DOMINANT, "word", "<spk0> hi <spk1> now <spk1> listen <spk2> please <spk0> ok"),
        (DOMINANT, "segment", "<spk0> hi <spk1> now listen <spk2> please <spk0> ok"),
        (DOMINANT, "change", "<spk0> hi <spk1> now listen <spk2> please <spk0> ok"),
        (DOMINANT, "sot", "hi <cs> now listen <cs> please <cs> ok"),
        (DOMINANT, "dom-sot", "now listen <cs> please <cs> hi ok"),  # 2.0, 0.6 and 0.3 s
    ],
)
def test_by_hand(session: list[Segment], level: Level, sst: str) -> None:
    assert build_sst(session, SstOptions(level)) == sst
    assert serialize(parse_sst(sst, level), level) == sst


def test_the_example_of_the_paper_has_a_token_before_each_and_every_word() -> None:
    session = words("x 0 1 well", "x 1 2 i", "y 1.5 2 yes", "x 2 3 think")
    assert build_sst(session) == "<spk0> well <spk0> i <spk1> yes <spk0> think"


def test_ties_of_words_go_by_arrival_then_by_position() -> None:
    session = words("amy 0 1 a", "bob 2 3 d", "amy 2 3 b", "amy 2 3 c")
    assert build_sst(session) == "<spk0> a <spk0> b <spk0> c <spk1> d"


def test_ties_of_dominance_go_by_arrival() -> None:
    session = words("amy 0.0 0.1 a", "amy 0.1 0.3 b", "bob 0.5 0.8 c")  # 0.1 + 0.2 is not 0.3 in floating point
    assert build_sst(session, SstOptions("dom-sot")) == "a b <cs> c"
    assert build_sst(session[::-1], SstOptions("dom-sot")) == "a b <cs> c"


def test_own_overlap_counts_once_for_dominance() -> None:
    session = words("amy 0 2 a", "amy 0 2 b", "bob 3 6 c")
    assert build_sst(session, SstOptions("dom-sot")) == "c <cs> a b"


def test_arrival_is_the_first_word_and_not_the_first_entry() -> None:
    session = [Segment("m", "mute", 0.0, 9.0, ""), *words("bob 5 6 late", "amy 1 2 early")]
    assert arrival_order(session[1:]) == {"amy": 0, "bob": 1}
    assert build_sst(session) == "<spk0> early <spk1> late"


def test_nothing_said_is_an_empty_text() -> None:
    assert [build_sst([], SstOptions(level)) for level in LEVELS] == [""] * 5
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
    assert build_sst(session, SstOptions("segment")) == "<spk0> how are you <spk1> fine thanks <spk0> amy"
    assert build_sst(session, SstOptions("sot")) == "how are you <cs> fine thanks <cs> amy"
    assert build_sst(session, SstOptions("dom-sot")) == "how are you amy <cs> fine thanks"
    with pytest.raises(
        ValueError, match=r"session m, amy at 0.000 s: 'how are you' is more than one word; use `sortk times"
    ):
        build_sst(session, SstOptions("word"))


# ---------------------------------------------------------------------------------------------------------------------
# Errors


@pytest.mark.parametrize("text", ["<spk1>", "<cs>", "<CS>", "<spkx>", "<spk>", "oh<spk0>", "<Spk12>no", "<|spk1|>"])
@pytest.mark.parametrize("level", LEVELS)
def test_words_like_tokens_are_refused(text: str, level: Level) -> None:
    with pytest.raises(ValueError, match=r"session m, amy at 1.500 s: the transcript holds '<.*>', which is a token"):
        build_sst(words(f"amy 1.5 2 {text}"), SstOptions(level))


@pytest.mark.parametrize("text", ["<unk>", "<", "a<b", "spk0", "<spk", "cs>", "[noise]"])
def test_other_words_are_not(text: str) -> None:
    assert parse_sst(build_sst(words(f"amy 1.5 2 {text}")), "word") == [SstTurn(0, (text,))]


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
        ("word", "<spk0> a <spkx> b", "token 3, '<spkx>', is not a speaker token"),
        ("word", "<spk0> a <spk01> b", "token 3, '<spk01>', is not a speaker token"),
        ("word", "<spk0> a <spk１> b", "token 3, '<spk１>', is not a speaker token"),
        ("word", "<spk0> a <spk1>b", "token 3, '<spk1>b', is not a speaker token"),
        ("word", "<spk0> a <cs> b", "token 3, '<cs>', is not a speaker token"),
        ("word", "<spk1> a", "token 1, '<spk1>', comes before <spk0>"),
        ("segment", "<spk0> a <spk2> b", "token 3, '<spk2>', comes before <spk1>"),
        ("change", "<spk0> a <spk0> b", "token 3, '<spk0>', is speaking already"),
        ("word", "<spk0> a b", "token 3, 'b', has no token before it; at level word each word has one"),
        ("word", f"<spk{'9' * 5000}> a", "is not a speaker token"),
        ("word", "<spk0> <spk1> b", "token 1, '<spk0>', has no word after it"),
        ("word", "<spk0> a <spk1>", "token 3, '<spk1>', has no word after it"),
        ("sot", "<cs> a", "token 1, '<cs>', has no word before it"),
        ("sot", "a <cs>", "token 2, '<cs>', has no word after it"),
        ("dom-sot", "a <cs> <cs> b", "token 2, '<cs>', has no word after it"),
        ("sot", "a <spk1> b", "token 2, '<spk1>', is not a token of level sot"),
    ],
)
def test_what_is_no_sst_is_refused(level: Level, text: str, fault: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_sst(text, level)
    assert fault in str(caught.value)


def test_options_are_checked_when_they_are_made() -> None:
    with pytest.raises(ValueError, match=r"level must be one of word, segment, change, sot, dom-sot, got 'turn'"):
        SstOptions(level="turn")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="segment_gap must be 0 or more, got -1"):
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
def test_turns_to_sst_to_turns_is_the_identity(session: list[Segment], level: Level) -> None:
    turns = order_turns(session, SstOptions(level))
    assert parse_sst(serialize(turns, level), level) == turns


@given(WORDS, st.sampled_from(["word", "segment", "change"]))
def test_each_speaker_gets_the_own_words_back(session: list[Segment], level: Level) -> None:
    parsed = parse_sst(build_sst(session, SstOptions(level)), level)
    for speaker, number in arrival_order(session).items():
        own = sorted((word for word in session if word.speaker == speaker), key=lambda word: word.start)
        assert [word for turn in parsed if turn.speaker == number for word in turn.words] == [w.text for w in own]


@given(WORDS, st.sampled_from(["word", "segment", "change"]))
def test_strict_and_lenient_parsers_agree(session: list[Segment], level: Level) -> None:
    text = build_sst(session, SstOptions(level))
    strict = [(f"spk{turn.speaker}", " ".join(turn.words)) for turn in parse_sst(text, level)]
    assert parse_any(text) == strict


@given(WORDS)
def test_speakers_arrive_in_order_and_words_by_onset(session: list[Segment]) -> None:
    parsed = parse_sst(build_sst(session), "word")
    assert list(dict.fromkeys(turn.speaker for turn in parsed)) == list(range(len({word.speaker for word in session})))
    expected = sorted(word.start for word in session)
    queues = {
        number: sorted(w.start for w in session if w.speaker == who) for who, number in arrival_order(session).items()
    }
    assert [queues[turn.speaker].pop(0) for turn in parsed] == expected


@given(st.lists(st.sampled_from(["<spk0>", "<spk1>", "<spk2>", "<cs>", "<spkx>", "a", "b"])), st.sampled_from(LEVELS))
def test_what_is_parsed_is_written_the_same(tokens: list[str], level: Level) -> None:
    try:
        parsed = parse_sst(" ".join(tokens), level)
    except ValueError:
        return
    assert serialize(parsed, level) == " ".join(tokens)


# ---------------------------------------------------------------------------------------------------------------------
# Annotated segments


def test_words_join_as_they_were_annotated() -> None:
    """Two segments of amy are 0.2 s apart, and one has a pause of 1 s inside; bob has a word before his segment."""
    session = words("bob 0 0.2 um", "amy 0 1 a", "amy 1.2 2 b", "amy 3 4 c", "bob 2 3 d")
    segments = words("amy 0 1 a", "amy 1.2 4 b c", "bob 2 3 d")
    assert join_by_segment(session, segments) == words("bob 0 0.2 um", "amy 0 1 a", "amy 1.2 4 b c", "bob 2 3 d")
    segment, joined = SstOptions("segment"), SstOptions("segment", segments="joined")
    assert build_sst(session, segment, segments) == "<spk0> a <spk1> um <spk0> b c <spk1> d"
    assert build_sst(session, joined, segments) == "<spk0> a b <spk1> um <spk1> d <spk0> c"
    assert build_sst(session, segment) == build_sst(session, joined)


# ---------------------------------------------------------------------------------------------------------------------
# Ties


def test_ties_are_broken_alike_in_transcripts_and_in_targets() -> None:
    """A speaks from 0 to 1.0, B from 0 to 0.5: <spk0> and the first column are the same speaker, in any order."""
    for session in (words("A 0 1.0 alpha", "B 0 0.5 bravo"), words("B 0 0.5 bravo", "A 0 1.0 alpha")):
        assert build_sst(session) == "<spk0> alpha <spk1> bravo"
        assert frame_targets(session, 0.0, 13, 4)[1] == ["A", "B"]
    # Their words are shorter than their segments: that changes nothing.
    assert arrival_order(words("B 0 0.9 two words", "A 0 2 and some more")) == {"A": 0, "B": 1}
    assert arrival_order(words("B 0 0.5 two", "B 0.5 0.9 words", "A 0 0.7 and", "A 0.7 2 some")) == {"A": 0, "B": 1}


def test_in_a_window_all_who_speak_already_arrive_together() -> None:
    session = words("joe 1 9 a", "bob 2 9 b", "amy 5 9 c", "eve 4.5 9 d")
    assert list(arrival_order(session)) == ["joe", "bob", "eve", "amy"]
    assert list(arrival_order(session, offset=4.0)) == ["bob", "joe", "eve", "amy"]
    assert frame_targets(session, 4.0, 50, 4)[1] == ["bob", "joe", "eve", "amy"]


# ---------------------------------------------------------------------------------------------------------------------
# Whatever a decoder writes


@pytest.mark.parametrize(
    ("text", "turns"),
    [
        ("<spk0> well i <spk1> yes <spk0> so", [("spk0", "well i"), ("spk1", "yes"), ("spk0", "so")]),
        ("<SPK1>yes<spk01>well", [("spk1", "yes"), ("spk1", "well")]),
        ("<|spk2|> hm <|cs|> so", [("spk2", "hm"), ("turn2", "so")]),
        ("<spk0> <spk1> <spk1> yes <spk2>", [("spk1", "yes")]),
        ("well <spk1> yes", [("spk0", "well"), ("spk1", "yes")]),
        ("well i <cs> yes <cs> so", [("spk0", "well i"), ("turn1", "yes"), ("turn2", "so")]),
        ("<spkx> a <spk> b", [("spkx", "a"), ("spk", "b")]),
        (f"<spk{'9' * 5000}> a", [(f"spk{'9' * 5000}", "a")]),
        ("<unk> < spk0> well", [("spk0", "<unk> < spk0> well")]),
        ("", []),
        ("  \n ", []),
    ],
)
def test_turns_of_whatever_a_decoder_writes(text: str, turns: list[tuple[str, str]]) -> None:
    assert parse_any(text) == turns


PIECES = st.one_of(
    st.sampled_from(["<spk0>", "<spk12>", "<cs>", "<spk", "<|spk1|>", "<unk>", " ", "a", "b"]), st.text()
)


@given(st.lists(PIECES).map("".join))
def test_every_word_is_in_one_turn(text: str) -> None:
    turns = parse_any(text)
    assert " ".join(words for _, words in turns).split() == strip_tokens(text).split()
