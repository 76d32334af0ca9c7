"""The same numbers as meeteval's own command line, on its example files and on a case of our own."""

from __future__ import annotations

import json
import shutil
from decimal import Decimal
from operator import attrgetter
from pathlib import Path

import meeteval
import meeteval.wer.api
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortk.edits import WordErrors
from sortk.records import Segment
from sortk.scoring.wer import Metric, Transcripts, WerOptions, score_words

EXAMPLES = Path(__file__).parents[3] / "shared" / "data" / "refs" / "meeteval"
METRICS: tuple[Metric, ...] = ("cpwer", "tcpwer", "orcwer")

REFERENCE = """\
kitchen 1 anna 0.00 2.40 shall we cook the rice first
kitchen 1 ben 2.10 3.00 yes please
kitchen 1 anna 3.00 5.50 then put the water on
kitchen 1 carl 4.90 5.10 wait
kitchen 1 ben 30.00 31.00 it boils
garden 1 ben 0.50 1.50
garden 1 carl 1.00 4.00 the roses need some water too
"""
HYPOTHESIS = """\
kitchen 1 1 0.10 2.30 shall we cook rice first
kitchen 1 2 2.20 5.60 yes please then put the water on
kitchen 1 1 4.80 5.20 wait wait
kitchen 1 3 12.00 13.00 it boils
garden 1 1 0.00 4.20 the rose needs some water too
"""


def run_meeteval(metric: Metric, ref: Path, *hyps: Path) -> dict[str, WordErrors]:
    """What meeteval's command of that name calls."""
    command = getattr(meeteval.wer.api, metric)
    found = command([ref], list(hyps), **({"collar": 5} if metric == "tcpwer" else {}))
    return {
        name: WordErrors(rate.length, rate.substitutions, rate.insertions, rate.deletions)
        for name, rate in found.items()
    }


def score(metric: Metric, ref: Path, hyp: Path) -> dict[str, WordErrors]:
    report = score_words(Transcripts.read(ref), Transcripts.read(hyp), metric)
    return {session.session_id: session.errors for session in report.sessions}


@pytest.mark.parametrize("metric", METRICS)
def test_a_case_of_our_own(metric: Metric, tmp_path: Path) -> None:
    ref, hyp = tmp_path / "ref.stm", tmp_path / "hyp.stm"
    ref.write_text(REFERENCE, encoding="utf-8")
    hyp.write_text(HYPOTHESIS, encoding="utf-8")
    assert score(metric, ref, hyp) == run_meeteval(metric, ref, hyp)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("suffix", ["stm", "seglst.json"])
def test_meetevals_examples(metric: Metric, suffix: str) -> None:
    if not EXAMPLES.exists():
        pytest.skip("needs the shared data")
    ref, hyp = EXAMPLES / f"ref.{suffix}", EXAMPLES / f"hyp.{suffix}"
    assert score(metric, ref, hyp) == run_meeteval(metric, ref, hyp)


def test_a_ctm_file_for_each_speaker(tmp_path: Path) -> None:
    if not EXAMPLES.exists():
        pytest.skip("needs the shared data")
    hyps = [EXAMPLES / "hyp1.ctm", EXAMPLES / "hyp2.ctm"]
    folder = tmp_path / "hyp"
    folder.mkdir()
    for hyp in hyps:
        shutil.copy(hyp, folder)
    ref = EXAMPLES / "ref.stm"
    assert score("orcwer", ref, folder) == run_meeteval("orcwer", ref, *hyps)


UNTIMED = [
    {"session_id": "a", "speaker": "ann", "words": "one two three"},
    {"session_id": "a", "speaker": "bob", "words": "four"},
    {"session_id": "a", "speaker": "ann", "words": "five six"},
    {"session_id": "b", "speaker": "ann", "start_time": 5.0, "end_time": 6.0, "words": "last words"},
    {"session_id": "b", "speaker": "ann", "start_time": 1.0, "end_time": 2.0, "words": "first words"},
]
GUESSED = [
    {"session_id": "a", "speaker": "1", "words": "four five"},
    {"session_id": "a", "speaker": "2", "words": "one two"},
    {"session_id": "a", "speaker": "2", "words": "three six"},
    {"session_id": "b", "speaker": "1", "start_time": 1.0, "end_time": 6.0, "words": "first words last words"},
]
TIMES = {"start_time": 9.0, "end_time": 9.5}


@pytest.mark.parametrize("metric", ["cpwer", "orcwer"])
@pytest.mark.parametrize("timed", [(), (0,), (1,), (0, 2)])  # entries of session a that have times, others have none
def test_seglst_without_times(metric: Metric, timed: tuple[int, ...], tmp_path: Path) -> None:
    entries = [entry | TIMES if number in timed else entry for number, entry in enumerate(UNTIMED)]
    ref, hyp = tmp_path / "ref.json", tmp_path / "hyp.json"
    ref.write_text(json.dumps(entries), encoding="utf-8")
    hyp.write_text(json.dumps(GUESSED), encoding="utf-8")
    expected = run_meeteval(metric, ref, hyp)
    assert score(metric, ref, hyp) == expected
    with_null = [{"start_time": None, "end_time": None} | entry for entry in entries]  # which meeteval cannot read
    ref.write_text(json.dumps(with_null), encoding="utf-8")
    assert score(metric, ref, hyp) == expected
    assert expected["a"].wrong == 2 and expected["b"].wrong == 0  # by hand: ann's "five" is in the other speaker


def test_words_without_times_are_in_the_order_of_the_file(tmp_path: Path) -> None:
    ref, hyp = tmp_path / "ref.json", tmp_path / "hyp.json"
    ref.write_text(json.dumps(UNTIMED), encoding="utf-8")
    hyp.write_text(json.dumps(GUESSED), encoding="utf-8")
    # one two three four five six / four five one two three six: "four five" moved, so two inserted and two deleted.
    errors = score("wer", ref, hyp)
    assert errors["a"] == WordErrors(6, 0, 2, 2) and errors["b"] == WordErrors(4)
    with pytest.raises(ValueError, match=r"tcpwer needs times, and the reference has none in 1 session \(a\)"):
        score("tcpwer", ref, hyp)
    report = score_words(Transcripts.read(ref), Transcripts.read(hyp), "cpwer")
    note = "without times, words are in the order of the file: 1 session (a)"
    assert report.notes == (f"reference: {note}", f"hypothesis: {note}")


SEGMENTS = st.lists(
    st.builds(
        lambda speaker, start, length, words: Segment("s", speaker, start / 10, (start + length) / 10, " ".join(words)),
        st.sampled_from("abc"),
        st.integers(0, 200),
        st.integers(0, 40),
        st.lists(st.sampled_from(["x", "yes", "longer"]), max_size=4),
    ),
    min_size=1,
    max_size=6,
)


def as_seglst(segments: list[Segment]) -> meeteval.io.SegLST:
    return meeteval.io.SegLST(
        [
            {
                "session_id": segment.session_id,
                "speaker": segment.speaker,
                "start_time": Decimal(str(segment.start)),
                "end_time": Decimal(str(segment.end)),
                "words": segment.text,
            }
            for segment in segments
        ]
    )


@given(SEGMENTS, SEGMENTS, st.sampled_from([1, 5]))
def test_any_transcripts(reference: list[Segment], hypothesis: list[Segment], collar: int) -> None:
    sides = as_seglst(reference), as_seglst(hypothesis)
    expected = {
        "cpwer": meeteval.wer.wer.cp.cp_word_error_rate(*sides),
        "tcpwer": meeteval.wer.wer.time_constrained.tcp_word_error_rate(*sides, collar=collar),
    }
    # Of streams in another order another one may be chosen: meeteval gets them in ours.
    streams: dict[str, str] = {}
    for segment in sorted(hypothesis, key=attrgetter("start")):
        streams[segment.speaker] = f"{streams.get(segment.speaker, '')} {segment.text}"
    streams = {speaker: text for speaker, text in streams.items() if text.strip()}
    texts = [segment.text for segment in sorted(reference, key=attrgetter("start")) if segment.text]
    if streams and texts:
        expected["orcwer"] = meeteval.wer.wer.orc.orc_word_error_rate(texts, streams)
    for metric, rate in expected.items():
        options = WerOptions(collar=collar)
        report = score_words(Transcripts.of(reference), Transcripts.of(hypothesis), metric, options)  # type: ignore[arg-type]
        assert report.overall == WordErrors(rate.length, rate.substitutions, rate.insertions, rate.deletions), metric
        chosen = tuple(stream for _, stream in report.sessions[0].assignment)
        assert (chosen if metric == "orcwer" else report.sessions[0].assignment) == tuple(rate.assignment)
