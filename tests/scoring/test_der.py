"""Every trap in which scorers differ, with the number worked out; and the API that other rooms use."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sortk.records import Region, Segment
from sortk.scoring.der import DerReport, read_segments, score_der, score_files
from sortk.scoring.intervals import DerCounts, DerOptions, ErrorSeconds, Scorer

NVIDIA = Path(__file__).parents[1] / "fixtures" / "nemo" / "der"
Spans = dict[str, list[tuple[float, float]]]


def session(spans: Spans, name: str = "s") -> list[Segment]:
    return [Segment(name, speaker, start, end) for speaker, own in spans.items() for start, end in own]


@dataclass(frozen=True)
class Case:
    """A session of two sides, and its DER as wrong seconds / scored seconds."""

    ref: Spans
    hyp: Spans
    wrong: float
    scored: float
    collar: float = 0.0
    skip_overlap: bool = False
    uem: list[tuple[float, float]] | None = None
    nist_wrong: float | None = None  # where md-eval says something else
    parts: dict[str, float] = field(default_factory=dict)


OVERLAPPED = {"a": [(0.0, 10.0)], "b": [(5.0, 15.0)]}

CASES = {
    # Around 0 and 10 nothing is scored: 0.25-9.75 is, and after 10.25 there is 0.15 s of false alarm. As the whole
    # width of a collar, 0.25 would score 0.125-9.875 and 10.125-10.4, with 0.075 s missed.
    "collar on each side": Case(
        {"a": [(0, 10)]}, {"x": [(0.2, 10.4)]}, 0.15, 9.5, 0.25, uem=[(0, 11)], parts={"false_alarm": 0.15}
    ),
    # x has 2.4 s of a, y 1.6 s. Of what is scored, 1-3, x has 0.4 s and y 1.6 s: who is mapped after the collar is
    # taken out finds y, and 0.4 s confused; who is mapped before finds x, and 1.6 s confused.
    "mapping and collar": Case(
        {"a": [(0, 4)]}, {"x": [(0, 1.2), (2.8, 4)], "y": [(1.2, 2.8)]}, 0.4, 2.0, 1.0, nist_wrong=1.6
    ),
    # Ten seconds of false alarm before the reference begins; md-eval without a UEM does not see them.
    "no UEM": Case({"a": [(10, 20)]}, {"x": [(0, 20)]}, 10.0, 10.0, nist_wrong=0.0, parts={"false_alarm": 10.0}),
    "UEM": Case({"a": [(10, 20)]}, {"x": [(0, 20)]}, 5.0, 10.0, uem=[(5, 20)]),
    "UEM of two parts that overlap": Case({"a": [(0, 20)]}, {"x": [(0, 5)]}, 5.0, 10.0, uem=[(0, 8), (6, 8), (18, 20)]),
    "UEM that cuts": Case({"a": [(0, 20)]}, {"x": [(0, 20)]}, 0.0, 4.0, uem=[(3, 7)]),
    # 5 s of two speakers, of whom one is found.
    "overlap": Case(OVERLAPPED, {"x": [(0, 10)], "y": [(10, 15)]}, 5.0, 20.0, parts={"miss": 5.0}),
    "overlap skipped": Case(OVERLAPPED, {"x": [(0, 10)], "y": [(10, 15)]}, 0.0, 10.0, skip_overlap=True),
    # Two segments of one speaker that overlap are one: 10 s, not 12.
    "own overlap": Case({"a": [(0, 6), (4, 10)]}, {"x": [(0, 10)]}, 0.0, 10.0),
    "own overlap of the hypothesis": Case({"a": [(0, 10)]}, {"x": [(0, 6), (4, 10)]}, 0.0, 10.0),
    # Nor is a boundary inside of speech: with a collar of 1 s, 1-9 is scored, not 1-4 and 6-9.
    "own abutting segments": Case({"a": [(0, 5), (5, 10)]}, {"x": [(0, 10)]}, 0.0, 8.0, 1.0),
    "zero length": Case({"a": [(0, 10), (12, 12)], "b": [(3, 3)]}, {"x": [(0, 10)], "y": [(5, 5)]}, 0.0, 10.0, 0.0),
    "zero length has no collar": Case(
        {"a": [(0, 10), (20, 20)]}, {"x": [(0, 10), (19.5, 20.5)]}, 1.0, 9.5, 0.25, nist_wrong=0.0
    ),
    "empty hypothesis": Case({"a": [(0, 10)]}, {}, 10.0, 10.0, parts={"miss": 10.0}),
    "more speakers than there are": Case(
        {"a": [(0, 10)]}, {"x": [(0, 6)], "y": [(6, 10)]}, 4.0, 10.0, parts={"confusion": 4.0}
    ),
    "fewer speakers than there are": Case({"a": [(0, 6)], "b": [(6, 10)]}, {"x": [(0, 10)]}, 4.0, 10.0),
    # While one talks and two are heard, one is a false alarm.
    "heard twice": Case({"a": [(0, 10)]}, {"x": [(0, 10)], "y": [(4, 6)]}, 2.0, 10.0, parts={"false_alarm": 2.0}),
    "30 speakers, named otherwise": Case(
        {f"a{n}": [(n, n + 1.5)] for n in range(30)}, {f"x{29 - n}": [(n, n + 1.5)] for n in range(30)}, 0.0, 45.0
    ),
    "hours away": Case({"a": [(36000, 36010)]}, {"x": [(36000, 36009)]}, 1.0, 10.0),
}


def score_case(case: Case, scorer: Scorer) -> DerReport:
    uem = None if case.uem is None else {"s": [Region("s", *span) for span in case.uem]}
    options = DerOptions(case.collar, case.skip_overlap, scorer)
    return score_der({"s": session(case.ref)}, {"s": session(case.hyp)}, uem, options)


@pytest.mark.parametrize("scorer", ["fast", "pyannote", "nist"])
@pytest.mark.parametrize("name", list(CASES))
def test_traps(name: str, scorer: Scorer) -> None:
    case = CASES[name]
    errors = score_case(case, scorer).overall.errors
    wrong = case.nist_wrong if scorer == "nist" and case.nist_wrong is not None else case.wrong
    assert errors.scored == pytest.approx(case.scored, abs=1e-6)
    assert errors.wrong == pytest.approx(wrong, abs=1e-6)
    assert errors.der == pytest.approx(wrong / case.scored, abs=1e-6)
    if wrong == case.wrong:
        assert {part: getattr(errors, part) for part in case.parts} == pytest.approx(case.parts, abs=1e-6)


def test_md_eval_differs_where_it_should() -> None:
    differing = [name for name, case in CASES.items() if case.nist_wrong is not None]
    assert differing == ["mapping and collar", "no UEM", "zero length has no collar"]


def test_a_session_without_hypothesis_is_all_missed_and_named() -> None:
    references = {"s1": session({"a": [(0, 10)]}, "s1"), "s2": session({"a": [(0, 30)]}, "s2")}
    report = score_der(references, {"s1": session({"x": [(0, 10)]}, "s1")}, options=DerOptions(0.0))
    assert report.overall.der == 0.75  # 30 of 40 s
    assert [(found.session_id, found.counts.der, found.has_hypothesis) for found in report.sessions] == [
        ("s1", 0.0, True),
        ("s2", 1.0, False),
    ]
    assert report.notes == ("no hypothesis, counted as all missed: 1 session (s2)",)


def test_the_score_of_a_set_is_pooled() -> None:
    references = {"s1": session({"a": [(0, 10)]}, "s1"), "s2": session({"a": [(0, 90)]}, "s2")}
    hypotheses = {"s1": [], "s2": session({"x": [(0, 90)]}, "s2")}
    report = score_der(references, hypotheses, options=DerOptions(0.0))
    assert report.overall.der == 0.1  # 10 of 100 s, not the mean of 1 and 0
    assert report.notes == ()


def test_another_sessions_hypothesis_is_named() -> None:
    one = {"s": session({"a": [(0, 10)]})}
    report = score_der(one, one | {"t": session({"a": [(0, 99)]}, "t")}, options=DerOptions(0.0))
    assert report.overall.der == 0
    assert report.notes == ("not in the reference, so not scored: 1 session (t)",)


def test_dotted_ids_are_ids() -> None:
    names = ["a.b", "a.c", "a"]
    references = {name: session({"a": [(0, 10)]}, name) for name in names}
    hypotheses = {name: session({"x": [(0, 5.0 + n)]}, name) for n, name in enumerate(names)}
    uem = {name: [Region(name, 0, 10)] for name in names}
    report = score_der(references, hypotheses, uem, DerOptions(0.0))
    assert [found.counts.errors.miss for found in report.sessions] == [5.0, 4.0, 3.0]


def test_ids_in_other_case_are_an_error() -> None:
    ours, theirs = {"ES2011a": session({"a": [(0, 1)]})}, {"es2011A": session({"a": [(0, 1)]})}
    with pytest.raises(ValueError, match="session 'ES2011a' of the reference is 'es2011A' in the hypothesis"):
        score_der(ours, theirs)
    with pytest.raises(ValueError, match="session 'ES2011a' of the reference is 'es2011A' in the UEM"):
        score_der(ours, ours, {"es2011A": [Region("es2011A", 0, 1)]})


def test_sides_without_a_common_session_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"no session in common: 1 session \(s\) in the reference, 1 session \(t\)"):
        score_der({"s": session({"a": [(0, 1)]})}, {"t": session({"a": [(0, 1)]}, "t")})


def test_uem_for_other_sessions() -> None:
    references = {name: session({"a": [(0, 10)]}, name) for name in ("s", "t")}
    with pytest.raises(ValueError, match=r"the UEM is for other recordings: it names 1 session \(u\)"):
        score_der(references, references, {"u": [Region("u", 0, 1)]})
    report = score_der(references, {"s": []}, {"s": [Region("s", 0, 5)], "u": [Region("u", 0, 1)]}, DerOptions(0.0))
    assert [found.session_id for found in report.sessions] == ["s"] and report.overall.errors.scored == 5
    assert report.notes == ("not in the UEM, so not scored: 1 session (t)",)


def test_an_empty_reference_is_an_error() -> None:
    with pytest.raises(ValueError, match="the reference has no sessions, so there is nothing to score"):
        score_der({}, {"s": session({"x": [(0, 1)]})})


def test_nobody_speaks_in_a_session() -> None:
    references = {"s": session({"a": [(0, 10)]}), "silent": []}
    hypotheses = {"s": session({"x": [(0, 10)]}), "silent": session({"x": [(3, 5)]}, "silent")}
    report = score_der(references, hypotheses, options=DerOptions(0.0))
    assert report.overall.errors == ErrorSeconds(10.0, 0.0, 2.0, 0.0)
    assert report.sessions[1].counts.der == float("inf")


@pytest.mark.parametrize("scorer", ["fast", "pyannote", "nist"])
def test_nothing_is_left_to_score(scorer: Scorer) -> None:
    one = {"s": session({"a": [(0, 0.4)]})}
    report = score_der(one, one, options=DerOptions(0.25, scorer=scorer))
    assert report.overall.errors.scored == 0 and report.overall.der == 0
    assert "nothing is scored" in report.notes[0]


def test_zero_lengths_are_named_and_are_no_speakers() -> None:
    report = score_case(CASES["zero length"], "fast")
    assert (report.overall.n_ref_speakers, report.overall.n_hyp_speakers) == (1, 1)
    assert report.notes == (
        "segments of zero length in the reference, which hold no speech: 1 session (s)",
        "segments of zero length in the hypothesis, which hold no speech: 1 session (s)",
    )


def test_regions_speakers_and_jer() -> None:
    report = score_case(CASES["overlap"], "fast")
    regions = report.overall.regions
    assert regions["single"] == ErrorSeconds(10.0, 0.0, 0.0, 0.0)
    assert regions["overlap"] == ErrorSeconds(10.0, 5.0, 0.0, 0.0)
    # a and x share 10 of 10 s; b and y 5 of 10 s.
    assert report.overall.jer == (0 + 0.5) / 2
    report = score_der({"s": session({"a": [(0, 10)], "b": [(10, 20)]})}, {"s": session({"x": [(0, 15)]})})
    assert (report.overall.n_ref_speakers, report.overall.n_hyp_speakers, report.overall.count_accuracy) == (2, 1, 0)
    exact = score_der(
        {"s": session({"a": [(0, 10)], "b": [(10, 20)]})}, {"s": session({"x": [(0, 15)]})}, options=DerOptions(0.0)
    )
    assert exact.overall.jer == pytest.approx((1 / 3 + 1) / 2)  # 10 of 15 s; nobody is left for b


def test_by_number_of_speakers() -> None:
    references = {
        "one": session({"a": [(0, 10)]}, "one"),
        "two": session({"a": [(0, 10)], "b": [(10, 20)]}, "two"),
        "uno": session({"a": [(0, 30)]}, "uno"),
    }
    hypotheses = {"one": [], "two": references["two"], "uno": references["uno"]}
    found = score_der(references, hypotheses, options=DerOptions(0.0)).by_speakers()
    assert list(found) == [1, 2]
    assert found[1].der == 0.25 and found[1].n_sessions == 2 and found[1].count_accuracy == 0.5
    assert found[2].der == 0 and found[2].count_accuracy == 1


def test_bootstrap() -> None:
    same = {f"s{n}": session({"a": [(0, 10)]}, f"s{n}") for n in range(5)}
    half = {name: session({"x": [(0, 5)]}, name) for name in same}
    assert score_der(same, half, options=DerOptions(0.0)).bootstrap() == (0.5, 0.5)
    report = score_der(same, {"s0": same["s0"]}, options=DerOptions(0.0))
    low, high = report.bootstrap() or (0, 0)
    assert low < report.overall.der == 0.8 < high <= 1
    assert report.bootstrap() == (low, high)
    assert score_case(CASES["overlap"], "fast").bootstrap() is None  # one session tells nothing of others


def test_counts_add_up() -> None:
    counts = score_case(CASES["overlap"], "fast").overall
    assert sum([counts, counts], DerCounts()).errors == ErrorSeconds(40.0, 10.0, 0.0, 0.0)
    assert (counts + counts).der == counts.der and (counts + counts).n_sessions == 2


@pytest.mark.parametrize("collar", [0.0, 0.05, 0.25])
@pytest.mark.parametrize("skip_overlap", [False, True])
def test_nvidias_own_figures(collar: float, skip_overlap: bool) -> None:
    # NeMo maps speakers before it takes out collars, like md-eval, but scores all time.
    references, hypotheses = read_segments(NVIDIA / "ref"), read_segments(NVIDIA / "hyp")
    uem = {name: [Region(name, 0, 1000)] for name in references}
    errors = score_der(references, hypotheses, uem, DerOptions(collar, skip_overlap, "nist")).overall.errors
    golden = json.loads((NVIDIA / "der.json").read_text())[f"collar{collar}_ignoreoverlap{skip_overlap}"]
    assert errors.der == pytest.approx(golden["DER"], abs=1e-9)
    parts = {"CER": errors.confusion, "FA": errors.false_alarm, "MISS": errors.miss}
    for name, seconds in parts.items():
        assert errors.rate(seconds) == pytest.approx(golden[name], abs=1e-9), name


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="collar must be from 0 to 3600, got -1"):
        DerOptions(-1)
    with pytest.raises(ValueError, match="scorer must be one of pyannote, fast, nist, got 'mdeval'"):
        DerOptions(scorer="mdeval")  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------------------------
# Files


def line(name: str, start: float, seconds: float, speaker: str, gap: str = " ") -> str:
    return gap.join(["SPEAKER", name, "1", str(start), str(seconds), "<NA>", "<NA>", speaker, "<NA>", "<NA>"]) + "\n"


def test_files_folders_tabs_and_silent_sessions(tmp_path: Path) -> None:
    (tmp_path / "ref").mkdir()
    (tmp_path / "ref" / "s.rttm").write_text(line("s", 0, 10, "a", "\t"))
    (tmp_path / "ref" / "silent.rttm").write_text("")
    (tmp_path / "hyp.rttm").write_text(line("s", 0, 8, "x") + line("silent", 0, 1, "x"))
    (tmp_path / "all.uem").write_text("s 1 0 9\nsilent\t1\t0\t9\n")
    report = score_files(tmp_path / "ref", tmp_path / "hyp.rttm", tmp_path / "all.uem", DerOptions(0.0))
    assert report.overall.errors == ErrorSeconds(9.0, 1.0, 1.0, 0.0)
    assert report.uem == str(tmp_path / "all.uem")
    assert score_files(tmp_path / "ref", tmp_path / "hyp.rttm").uem == "none: extent of reference and hypothesis"


def test_a_session_in_two_files_is_an_error(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.rttm").write_text(line("s", 0, 10, "a"))
    with pytest.raises(ValueError, match=r"b.rttm: session 's' is in another file of this folder, too"):
        read_segments(tmp_path)
