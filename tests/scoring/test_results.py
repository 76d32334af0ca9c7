"""RESULTS.md and scores.json of small sets whose scores are worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sortk.formats.objects import encode
from sortk.records import Segment
from sortk.scoring.der import DerReport, score_der
from sortk.scoring.intervals import DerOptions
from sortk.scoring.results import Coverage, DerResult, Results, WerResult, as_json, format_results, format_summary
from sortk.scoring.wer import Metric, Style, Transcripts, WerOptions, WerReport, score_words

# Ten seconds of one speaker; ten seconds each of two, one after the other.
REFERENCE = {
    "one": [Segment("one", "a", 0.0, 10.0)],
    "two": [Segment("two", "a", 0.0, 10.0), Segment("two", "b", 10.0, 20.0)],
}


def measure_der(missed: float, collar: float = 0.0) -> DerReport:
    """So many seconds of "two" are missed: of its 20, and of 30 in all."""
    hypothesis = {
        "one": REFERENCE["one"],
        "two": [Segment("two", "x", missed, 10.0), Segment("two", "y", 10.0, 20.0)],
    }
    return score_der(REFERENCE, hypothesis, options=DerOptions(collar=collar))


def measure_wer(text: str, metric: Metric, style: Style = "sorted") -> WerReport:
    references = Transcripts.of([Segment("s", "a", 0.0, 1.0, "a b"), Segment("s", "b", 1.0, 2.0, "c d")])
    return score_words(references, Transcripts.of_sst({"s": text}), metric, WerOptions(style=style))


def small_results() -> Results:
    return Results(
        recipe="mini",
        commit="abc1234",
        date="2026-11-16",
        settings={"seed": 1, "score": {"collar": 0.0, "sets": ["test"]}},
        der=[
            DerResult("hybrid", "test", "none", measure_der(6.0)),
            DerResult("hybrid", "test", "tuned", measure_der(3.0)),
            DerResult("pil", "test", "none", measure_der(0.0)),
        ],
        wer=[
            WerResult("system 1", "test", measure_wer("<spk0> a b <spk1> c x", "wer"), "free"),
            WerResult("system 1", "test", measure_wer("<spk0> a b <spk1> c x", "cpwer"), "free"),
            WerResult("system 2", "test", measure_wer("<spk0> a b c <spk1> d", "cpwer"), "free"),
        ],
        coverage=[Coverage("test", 1.25, 300, 4, {"no_words": {"hours": 0.5, "segments": 90}}, 2)],
    )


def tables_of(text: str) -> list[list[str]]:
    """The rows of each table."""
    blocks = (block.split("\n") for block in text.split("\n\n"))
    return [block for block in blocks if block[0].startswith("|")]


def test_der_has_the_rows_and_columns_of_table_1() -> None:
    table, parts, *_ = tables_of(format_results(small_results()))
    assert table == [
        "| system | postprocessing | test 1 spk | test 2 spk | test all |",
        "| --- | --- | ---: | ---: | ---: |",
        "| hybrid | none | 0.00 | 30.00 | 20.00 |",
        "| hybrid | tuned | 0.00 | 15.00 | 10.00 |",
        "| pil | none | 0.00 | 0.00 | 0.00 |",
    ]
    cells = dict(zip(parts[0].split(" | "), parts[2].split(" | "), strict=True))
    assert (cells["sessions"], cells["miss"], cells["false alarm"], cells["DER"]) == ("2", "20.00", "0.00", "20.00")


def test_word_errors_have_those_of_table_2() -> None:
    *_, table, parts = tables_of(format_results(small_results()))
    # x for d is a quarter. With c at the wrong speaker: one inserted, one deleted.
    assert table == [
        "| system | test WER | test cpWER |",
        "| --- | ---: | ---: |",
        "| system 1 | 25.00 | 25.00 |",
        "| system 2 | - | 50.00 |",
    ]
    assert parts[-1] == "| system 2 | test | cpWER | 1 | 4 | 0 | 1 | 1 | 50.00 |"


def test_results_say_how_texts_were_decoded() -> None:
    valid = replace(small_results().wer[2], decoding="valid")
    results = replace(small_results(), wer=[*small_results().wer[:2], valid])
    assert [entry["decoding"] for entry in as_json(results)["wer"]] == ["free", "free", "valid"]
    lines = [line for line in format_results(results).splitlines() if line.startswith("- test: metric")]
    assert [line.rpartition("; ")[2] for line in lines] == ["decoding free", "decoding free", "decoding valid"]


def test_librispeechmix_may_be_counted_in_two_ways_in_one_column() -> None:
    text = format_results(
        Results(
            recipe="mix",
            commit="abc1234",
            date="2026-11-16",
            wer=[
                WerResult("Canary", "2mix", measure_wer("a b c d", "wer", "librispeechmix"), "free"),
                WerResult("MS-Canary", "2mix", measure_wer("a b <cs> c", "wer", "librispeechmix"), "free"),
            ],
        )
    )
    assert tables_of(text)[0] == [
        "| system | 2mix WER (librispeechmix) |",
        "| --- | ---: |",
        "| Canary | 0.00 |",
        "| MS-Canary | 25.00 |",
    ]
    assert "counted_as orcwer" in text
    assert "counted_as cpwer" in text
    assert "Diarization" not in text


def test_a_set_with_one_number_of_speakers_has_one_column() -> None:
    report = score_der({"two": REFERENCE["two"]}, {"two": REFERENCE["two"]}, options=DerOptions(collar=0.25))
    results = Results("r", "abc1234", "2026-11-16", der=[DerResult("s", "CH109", "none", report)])
    assert tables_of(format_results(results))[0][0] == "| system | postprocessing | CH109 2 spk |"
    assert "- CH109: collar 0.25 s on each side, overlap scored" in format_results(results)


def test_the_summary_for_a_terminal_is_aligned() -> None:
    report = score_der({"two": REFERENCE["two"]}, {"two": REFERENCE["two"]}, options=DerOptions(collar=0.25))
    der = [DerResult("a", "CH109", "none", report), DerResult("longer name", "CH109", "tuned", report)]
    assert format_summary(Results("r", "abc1234", "2026-11-16", der=der)).splitlines() == [
        "DER (%)      postprocessing  CH109 2 spk",
        "a            none                   0.00",
        "longer name  tuned                  0.00",
    ]


def test_commit_date_settings_and_notes_are_told() -> None:
    partial = score_der(REFERENCE, {"one": REFERENCE["one"]}, options=DerOptions(collar=0))
    results = Results(
        "mini", "abc1234", "2026-11-16", {"score": {"collar": 0.0}}, [DerResult("s", "test", "none", partial)]
    )
    lines = format_results(results).split("\n")
    assert lines[:3] == ["# Results of mini", "", "Commit abc1234, 2026-11-16."]
    assert "- test, s: no hypothesis, counted as all missed: 1 session (two)" in lines
    assert lines[-5:] == ["", "```", "score.collar = 0.0", "```", ""]


def test_nothing_measured_is_no_table() -> None:
    assert format_results(Results("r", "abc1234", "2026-11-16")) == "# Results of r\n\nCommit abc1234, 2026-11-16.\n"


def test_scores_hold_everything_as_fractions() -> None:
    found = json.loads(encode(as_json(small_results())))
    assert list(found) == ["recipe", "commit", "date", "settings", "der", "initial", "wer", "coverage"]
    first = found["der"][0]
    assert (first["system"], first["test_set"], first["postprocessing"]) == ("hybrid", "test", "none")
    assert first["overall"]["der"] == pytest.approx(0.2)
    assert first["by_speakers"]["2"]["der"] == pytest.approx(0.3)
    assert first["sessions"]["two"]["der"] == pytest.approx(0.3)
    assert found["wer"][2]["overall"]["cpwer"] == 0.5
    assert found["settings"] == {"seed": 1, "score": {"collar": 0.0, "sets": ["test"]}}


def test_one_column_is_measured_in_one_way() -> None:
    der = [DerResult("a", "test", "none", measure_der(0)), DerResult("b", "test", "none", measure_der(0, collar=0.25))]
    with pytest.raises(ValueError, match="test is scored with different settings"):
        Results("r", "abc1234", "2026-11-16", der=der)


def test_nothing_is_measured_twice() -> None:
    with pytest.raises(ValueError, match="measured twice: a, none, test"):
        Results("r", "abc1234", "2026-11-16", der=[DerResult("a", "test", "none", measure_der(0))] * 2)
    with pytest.raises(ValueError, match="measured twice: a, cpWER, test"):
        Results("r", "abc1234", "2026-11-16", wer=[WerResult("a", "test", measure_wer("a", "cpwer"), "free")] * 2)


def test_what_was_scored_and_what_was_not_is_told() -> None:
    sentence = (
        "- test: 1.250 h scored, 300 segments with 4 words; left out: 0.500 h, 90 segments without words; "
        "2 cuts inside a word, which is in the segment of its middle"
    )
    assert sentence in format_results(small_results()).splitlines()
    assert as_json(small_results())["coverage"] == {
        "test": {
            "scored": {"hours": 1.25, "segments": 300, "words": 4},
            "left_out": {"no_words": {"hours": 0.5, "segments": 90}},
            "cut_words": 2,
        }
    }
