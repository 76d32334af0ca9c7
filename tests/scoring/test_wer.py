"""Word errors worked out by hand."""

from __future__ import annotations

import math
from time import process_time

import pytest

from sortk.edits import WordErrors
from sortk.records import Region, Segment
from sortk.scoring import wer as scoring_wer
from sortk.scoring.wer import Metric, Transcripts, WerOptions, WerReport, as_json, format_report, score_words

# alice:  well(0)  i(1)           think(2)
# bob:                  yes(1.5)
WORDS = Transcripts.of(
    [
        Segment("s", "alice", 0.0, 0.5, "well"),
        Segment("s", "alice", 1.0, 1.4, "i"),
        Segment("s", "alice", 2.0, 2.5, "think"),
        Segment("s", "bob", 1.5, 1.9, "yes"),
    ]
)


def count(references: Transcripts, hypotheses: Transcripts | str, metric: Metric, **options: object) -> WordErrors:
    if isinstance(hypotheses, str):
        hypotheses = Transcripts.of_sst({"s": hypotheses})
    return score_words(references, hypotheses, metric, WerOptions(**options)).overall  # type: ignore[arg-type]


def test_counts_add_up() -> None:
    total = WordErrors(10, 1, 0, 2) + WordErrors(2, 0, 1, 0)
    assert total == WordErrors(words=12, substitutions=1, insertions=1, deletions=2)
    assert (total.wrong, total.rate) == (4, 4 / 12)
    assert WordErrors().rate == 0
    assert WordErrors(insertions=1).rate == math.inf


# ---------------------------------------------------------------------------------------------------------------------
# The paper's WERs (Appendix D)


@pytest.mark.parametrize(
    ("hypothesis", "wer", "cpwer"),
    [
        ("<spk0> well i <spk1> yes <spk0> think", WordErrors(4), WordErrors(4)),
        # No tokens: all words are right and in order, but bob's is missing, and alice says one more.
        ("well i yes think", WordErrors(4), WordErrors(4, insertions=1, deletions=1)),
        # Wrong order for the sorted WER: "yes" is deleted at one place and inserted at another.
        ("<spk0> well i think <spk1> yes", WordErrors(4, insertions=1, deletions=1), WordErrors(4)),
        # Numbers of speakers mean nothing by themselves.
        ("<spk1> well i <spk0> yes <spk1> think", WordErrors(4), WordErrors(4)),
        # "wall" and the last word are wrong; of alice's words the last is missing, bob says one more.
        ("<spk0> wall i <spk1> yes yes", WordErrors(4, substitutions=2), WordErrors(4, 1, 1, 1)),
        ("", WordErrors(4, deletions=4), WordErrors(4, deletions=4)),
    ],
)
def test_wer_without_speaker_tokens_and_cpwer(hypothesis: str, wer: WordErrors, cpwer: WordErrors) -> None:
    assert count(WORDS, hypothesis, "wer") == wer
    assert count(WORDS, hypothesis, "cpwer") == cpwer


def test_words_of_segments_are_sorted_by_where_they_would_start() -> None:
    # Four words of equal length in four seconds start at 0, 1, 2 and 3.
    references = Transcripts.of([Segment("s", "b", 1.5, 1.9, "yes"), Segment("s", "a", 0.0, 4.0, "no no no no")])
    assert count(references, "no no yes no no", "wer") == WordErrors(5)
    assert count(references, "no no no no yes", "wer") == WordErrors(5, insertions=1, deletions=1)


def test_of_words_that_start_together_those_of_who_came_first_are_first() -> None:
    references = Transcripts.of(
        [Segment("s", "b", 0.0, 1.0, "x"), Segment("s", "a", 2.0, 3.0, "y"), Segment("s", "b", 2.0, 3.0, "z")]
    )
    assert count(references, "x z y", "wer") == WordErrors(3)


def test_librispeechmix_is_orcwer_for_one_stream_and_cpwer_for_speakers() -> None:
    references = Transcripts.of([Segment("s", "a", 0.0, 3.0, "a b"), Segment("s", "b", 1.0, 2.0, "c d")])
    one_stream = score_words(
        references, Transcripts.of_sst({"s": "a b c d"}), "wer", WerOptions(style="librispeechmix")
    )
    assert (one_stream.counted_as, one_stream.overall) == ("orcwer", WordErrors(4))
    speakers = score_words(
        references, Transcripts.of_sst({"s": "<spk0> a b d <spk1> c"}), "wer", WerOptions(style="librispeechmix")
    )
    assert (speakers.counted_as, speakers.overall) == ("cpwer", WordErrors(4, insertions=1, deletions=1))
    turns = score_words(
        references, Transcripts.of_sst({"s": "c d <cs> a b"}), "wer", WerOptions(style="librispeechmix")
    )
    assert (turns.counted_as, turns.overall) == ("cpwer", WordErrors(4))


# ---------------------------------------------------------------------------------------------------------------------
# what is aligned with what


def test_orcwer_does_not_look_at_speakers() -> None:
    references = Transcripts.of([Segment("s", "a", 0.0, 1.0, "a b"), Segment("s", "b", 2.0, 3.0, "c d")])
    hypotheses = Transcripts.of([Segment("s", "x", 0.0, 3.0, "a b c d")])
    assert count(references, hypotheses, "orcwer") == WordErrors(4)
    assert count(references, hypotheses, "cpwer") == WordErrors(4, insertions=2, deletions=2)


def test_tcpwer_wants_words_at_their_time() -> None:
    references = Transcripts.of([Segment("s", "a", 0.0, 1.0, "hello")])
    hypotheses = Transcripts.of([Segment("s", "x", 10.0, 11.0, "hello")])
    # The word of the hypothesis is at 10.5 s: with 5 s around it, from 5.5 s on; with 10 s, from 0.5 s on.
    assert count(references, hypotheses, "tcpwer") == WordErrors(1, insertions=1, deletions=1)
    assert count(references, hypotheses, "tcpwer", collar=10.0) == WordErrors(1)


def test_speakers_are_assigned() -> None:
    hypothesis = "<spk0> yes <spk1> well i think <spk2> hm"
    report = score_words(WORDS, Transcripts.of_sst({"s": hypothesis}), "cpwer")
    assert set(report.sessions[0].assignment) == {("alice", "spk1"), ("bob", "spk0"), (None, "spk2")}
    orc = score_words(WORDS, Transcripts.of_sst({"s": hypothesis}), "orcwer").sessions[0]
    assert orc.assignment == (("alice", "spk1"), ("alice", "spk1"), ("bob", "spk0"), ("alice", "spk1"))


def test_a_speaker_who_overlaps_himself_has_words_at_their_times() -> None:
    overlapping = Transcripts.of([Segment("s", "a", 0.0, 9.0, "a b"), Segment("s", "a", 1.0, 2.0, "c d")])
    assert count(overlapping, overlapping, "tcpwer", collar=1.0) == WordErrors(4)


# ---------------------------------------------------------------------------------------------------------------------
# Sets of sessions


def test_a_set_is_scored_by_its_sums() -> None:
    references = Transcripts.of([Segment("a", "x", 0, 9, "a b c d e f g h i j"), Segment("b", "x", 0, 1, "a b")])
    hypotheses = Transcripts.of([Segment("a", "y", 0, 9, "a b c d e f g h i"), Segment("b", "y", 0, 1, "a c")])
    assert count(references, hypotheses, "cpwer") == WordErrors(12, substitutions=1, deletions=1)


@pytest.mark.parametrize("metric", ["cpwer", "tcpwer", "orcwer", "wer"])
def test_a_missing_session_is_all_deleted_and_an_extra_one_is_named(metric: Metric) -> None:
    references = Transcripts.of([Segment("a", "x", 0, 1, "a b"), Segment("b", "x", 0, 1, "a b c")])
    hypotheses = Transcripts.of([Segment("a", "x", 0, 1, "a b"), Segment("z", "x", 0, 1, "a b c")])
    report = score_words(references, hypotheses, metric)
    assert [session.errors for session in report.sessions] == [WordErrors(2), WordErrors(3, deletions=3)]
    assert report.notes == (
        "no hypothesis, counted as all deleted: 1 session (b)",
        "not in the reference, so not scored: 1 session (z)",
    )


@pytest.mark.parametrize("metric", ["cpwer", "tcpwer", "orcwer", "wer"])
def test_empty_sides(metric: Metric) -> None:
    spoken = Transcripts.of([Segment("s", "x", 0, 1, "a b")])
    silent = Transcripts({"s": []})
    assert count(spoken, Transcripts({}), metric) == WordErrors(2, deletions=2)
    assert count(silent, spoken, metric) == WordErrors(0, insertions=2)
    assert count(silent, silent, metric) == WordErrors()
    wordless = Transcripts.of([Segment("s", "x", 0, 1, " ")])
    assert count(wordless, wordless, metric) == WordErrors()
    with pytest.raises(ValueError, match="the reference has no sessions"):
        count(Transcripts({}), spoken, metric)


# ---------------------------------------------------------------------------------------------------------------------
# Normalisers


@pytest.mark.parametrize("metric", ["cpwer", "tcpwer", "orcwer", "wer"])
def test_both_sides_are_normalised(metric: Metric) -> None:
    references = Transcripts.of([Segment("s", "x", 0, 2, "Hello, WORLD (laughs) twenty one")])
    hypotheses = Transcripts.of([Segment("s", "y", 0, 2, "[noise] um hello World 21.")])
    assert count(references, hypotheses, metric, normalizer="whisper") == WordErrors(3)
    assert count(references, hypotheses, metric).wrong > 0


def test_the_cut_into_segments_does_not_matter() -> None:
    single_words = Transcripts.of([Segment("s", "x", 0, 1, "twenty"), Segment("s", "x", 1, 2, "one")])
    whole = Transcripts.of([Segment("s", "y", 0, 2, "21")])
    for metric in ("cpwer", "wer"):
        assert count(single_words, whole, metric, normalizer="whisper") == WordErrors(1)


def test_brackets_do_not_reach_into_other_entries() -> None:
    references = Transcripts.of([Segment("s", "x", 0, 1, "so (well"), Segment("s", "x", 1, 2, "yes) we")])
    hypotheses = Transcripts.of([Segment("s", "x", 0, 2, "so well yes we")])
    assert count(references, hypotheses, "cpwer", normalizer="chime8") == WordErrors(4)


# ---------------------------------------------------------------------------------------------------------------------
# What cannot be scored


def crowd(n_speakers: int) -> Transcripts:
    return Transcripts.of(Segment("s", f"x{n}", n, n + 1, "a b") for n in range(n_speakers))


@pytest.mark.parametrize("metric", ["cpwer", "tcpwer"])
def test_speakers_beyond_twenty(metric: Metric) -> None:
    assert count(crowd(20), crowd(20), metric) == WordErrors(40)
    with pytest.raises(
        ValueError, match="session 's': 1 speakers in the reference and 21 in the hypothesis.*at most 20"
    ):
        count(crowd(1), crowd(21), metric)


def test_orcwer_of_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="session 's': 11 speakers in the hypothesis; orcwer takes at most 10"):
        count(crowd(1), crowd(11), "orcwer")
    assert count(crowd(30), crowd(1), "orcwer") == WordErrors(60, deletions=58)
    # Two streams of two words and two segments: 2 x 3 x 3 cells.
    monkeypatch.setattr(scoring_wer, "MAX_ORC_CELLS", 17)
    with pytest.raises(ValueError, match=r"would need 1\.8e\+01 cells.*score cpwer or tcpwer"):
        count(crowd(2), crowd(2), "orcwer")


def test_wer_knows_no_limit() -> None:
    assert count(crowd(30), crowd(30), "wer") == WordErrors(60)


def test_tcpwer_needs_times() -> None:
    with pytest.raises(ValueError, match="tcpwer needs times, and the (reference|hypothesis) has none"):
        count(WORDS, "<spk0> well", "tcpwer")


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="collar must be 0 or more, got -1"):
        WerOptions(collar=-1)
    with pytest.raises(ValueError, match="style must be one of sorted, librispeechmix, got 'x'"):
        WerOptions(style="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="normalizer must be one of none, lower, whisper, chime8, got 'x'"):
        WerOptions(normalizer="x")  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------------------------
# What is told


def small_report() -> WerReport:
    references = Transcripts.of([Segment("a", "x", 0, 1, "a b c d"), Segment("b", "x", 0, 1, "a b")])
    references = Transcripts({**references.sessions, "c": []})
    hypotheses = Transcripts.of([Segment("a", "y", 0, 1, "a b c"), Segment("c", "y", 0, 1, "a")])
    return score_words(references, hypotheses, "cpwer", WerOptions(normalizer="lower"))


def test_text() -> None:
    settings, empty, *lines = format_report(small_report()).split("\n")
    assert settings.startswith("metric cpwer, normalizer lower, scorer kaldialign ")
    assert empty == ""
    assert lines == [
        "session  words  sub  ins  del  cpwer %  ref spk  hyp spk  assignment",
        "a            4    0    0    1    25.00        1        1  x=y",
        "b            2    0    0    2   100.00        1        0  x=-",
        "c            0    0    1    0      inf        0        1  -=y",
        "OVERALL      6    0    1    3    66.67",
    ]


def test_time_that_is_not_scored_of_many_segments() -> None:
    n_segments = 20_000
    spoken = Transcripts.of(Segment("s", "a", second, second + 0.5, "yes") for second in range(n_segments))
    regions = [Region("s", second - 0.1, second + 0.4) for second in range(0, n_segments, 2)]
    began = process_time()
    kept = spoken.without({"s": [*regions[::-1], Region("s", 0.0, 3.0)], "t": regions})
    assert process_time() - began < 5
    assert [segment.start for segment in kept.sessions["s"]] == [float(second) for second in range(3, n_segments, 2)]


def test_csv_is_the_table_alone() -> None:
    assert format_report(small_report(), "csv").split("\n")[:2] == [
        "session,words,sub,ins,del,cpwer %,ref spk,hyp spk,assignment",
        "a,4,0,0,1,25.00,1,1,x=y",
    ]


def test_json_has_fractions() -> None:
    found = as_json(small_report())
    assert list(found) == ["settings", "overall", "by_speakers", "sessions", "notes"]
    assert found["overall"] == {
        "cpwer": 4 / 6,
        "errors": 4,
        "words": 6,
        "substitutions": 0,
        "insertions": 1,
        "deletions": 3,
    }
    assert found["sessions"]["a"]["cpwer"] == 0.25
    assert found["sessions"]["a"]["assignment"] == [["x", "y"]]
    assert found["sessions"]["c"]["cpwer"] is None
    assert found["settings"]["normalizer"] == "lower"
    assert "collar" not in found["settings"]
