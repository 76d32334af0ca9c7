"""Real systems' outputs on AMI: figures of pyannote.metrics, of a C++ scorer and of the systems' authors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sortk.scoring.der import read_regions, read_segments, score_der, score_files
from sortk.scoring.intervals import DerOptions, ErrorSeconds

REFS = Path(__file__).parents[3] / "shared" / "data" / "refs"
pytestmark = pytest.mark.skipif(not REFS.exists(), reason="the data beside the repository is not here")

GOLDEN: dict[str, Any] = json.loads((REFS / "golden_der.json").read_text()) if REFS.exists() else {}
SETTINGS = {
    "full_collar0": DerOptions(0.0),
    "fair_collar0.25": DerOptions(0.25),
    "forgiving_collar0.25_nooverlap": DerOptions(0.25, skip_overlap=True),
}
SHORT = ("ES2011a", "IS1008a", "TS3004a")  # pyannote.metrics is slow


def percents(errors: ErrorSeconds) -> dict[str, float]:
    parts = {"miss": errors.miss, "fa": errors.false_alarm, "conf": errors.confusion, "der": errors.wrong}
    return {name: 100 * errors.rate(seconds) for name, seconds in parts.items()}


@pytest.mark.parametrize("name", list(GOLDEN))
@pytest.mark.parametrize("setting", list(SETTINGS))
def test_every_figure_is_reproduced(name: str, setting: str) -> None:
    golden = GOLDEN[name]
    paths = (REFS / golden["ref"], REFS / golden["hyp"], REFS / golden["uem"])
    report = score_files(*paths, SETTINGS[setting])
    found = percents(report.overall.errors)
    for scorer, total in (("pyannote", "total"), ("spyder", "scored_speaker_s")):
        expected = golden[f"{scorer}_{setting}"]
        assert found == pytest.approx({part: expected[part] for part in found}, abs=0.01)
        assert report.overall.errors.scored == pytest.approx(expected[total], abs=0.02)
    assert found["der"] == pytest.approx(golden["published"][setting.split("_", maxsplit=1)[0]], abs=0.01)
    per_file = {session.session_id: 100 * session.counts.der for session in report.sessions}
    assert per_file == pytest.approx(golden.get(f"pyannote_{setting}_per_file", per_file), abs=0.001)


@pytest.mark.parametrize("has_uem", [False, True])
@pytest.mark.parametrize("collar", [0.0, 0.25])
@pytest.mark.parametrize("skip_overlap", [False, True])
def test_the_fast_scorer_is_pyannote_session_by_session(has_uem: bool, collar: float, skip_overlap: bool) -> None:
    golden = next(iter(GOLDEN.values()))
    references, hypotheses = (
        {name: own for name, own in read_segments(REFS / golden[side]).items() if name in SHORT}
        for side in ("ref", "hyp")
    )
    uem = read_regions(REFS / golden["uem"]) if has_uem else None
    fast, slow = (
        score_der(references, hypotheses, uem, DerOptions(collar, skip_overlap, scorer))
        for scorer in ("fast", "pyannote")
    )
    for ours, theirs in zip(fast.sessions, slow.sessions, strict=True):
        assert percents(ours.counts.errors) == pytest.approx(percents(theirs.counts.errors), abs=1e-6)
