"""`sortk report --ref R --hyp A --hyp B`: the page of anyone's files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chromium import browse, find_chromium
from click.testing import CliRunner, Result

from sortk.cli import main
from sortk.formats import audio, rttm, stm
from sortk.records import Segment

REF = [Segment("m1", "ann", 0, 6), Segment("m1", "bob", 6, 10), Segment("m2", "cat", 1, 5)]
GOOD = [Segment("m1", "x", 0, 5), Segment("m1", "y", 6, 10), Segment("m2", "z", 1, 5)]  # 1 s of 14 is missed
BAD = [Segment("m1", "x", 0, 10), Segment("m2", "z", 1, 3)]  # 4 s of confusion, 2 s missed


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, segments in (("ref", REF), ("good", GOOD), ("bad", BAD)):
        rttm.write(tmp_path / f"{name}.rttm", segments)
    (tmp_path / "audio").mkdir()
    audio.write_flac(tmp_path / "audio" / "m1.flac", np.sin(np.arange(16000 * 12) / 30).astype(np.float32) / 3)
    return tmp_path


def report(folder: Path, *arguments: str) -> Result:
    given = [str(folder / one) if "." in one or one == "audio" else one for one in arguments]
    return CliRunner().invoke(main, ["report", *given])


def read_data(page: Path) -> dict[str, Any]:
    found = re.search(r'id="report">(.*?)</script>', page.read_text(encoding="utf-8"), re.S)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_systems_side_by_side(files: Path) -> None:
    given = ["--ref", "ref.rttm", "--hyp", "good.rttm", "--hyp", "bad.rttm", "--audio", "audio", "--collar", "0"]
    result = report(files, *given, "--out", "page.html")
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(files / "page.html")
    data = read_data(files / "page.html")
    assert [row["system"] for row in data["der"]] == ["good.rttm", "bad.rttm"]
    assert [row["overall"]["der"] for row in data["der"]] == pytest.approx([1 / 14, 6 / 14])
    first, second = data["sessions"]
    assert first["id"] == "m1" and [one["der"] for one in first["systems"]] == pytest.approx([0.1, 0.4])
    assert [one["der"] for one in second["systems"]] == pytest.approx([0.0, 0.5])
    good, bad = first["view"]["systems"]
    assert good["mapping"] == {"x": "ann", "y": "bob"} and good["marks"] == [[5.0, 6.0, 1, 0, 0, 1]]
    assert bad["marks"] == [[6.0, 10.0, 0, 0, 1, 1]]
    assert first["view"]["audio_seconds"] == 12.0 and first["view"]["duration"] == 12.0
    assert "audio" not in second["view"] and data["command"].startswith("sortk ")


def test_one_system_with_words(files: Path) -> None:
    stm.write(files / "ref.stm", [Segment("m1", "ann", 0, 6, "good morning"), Segment("m1", "bob", 6, 10, "yes")])
    assert report(files, "--ref", "ref.stm", "--hyp", "good.rttm", "--out", "page.html").exit_code == 0
    [row] = read_data(files / "page.html")["sessions"]
    assert row["view"]["reference_words"][0] == ["ann", 0.0, 6.0, "good morning"] and "systems" not in row


def test_what_cannot_be_reported_is_said(files: Path) -> None:
    assert "give --exp, or --ref, --hyp and --out" in report(files, "--ref", "ref.rttm").output
    assert "--exp goes with --out only" in report(files, "--exp", "e.x", "--ref", "ref.rttm").output
    (files / "audio" / "m1.flac").rename(files / "audio" / "other.flac")
    given = ["--ref", "ref.rttm", "--hyp", "bad.rttm", "--audio", "audio", "--out", "page.html"]
    result = report(files, *given)
    assert result.exit_code == 1 and "a session is 'm2', a recording 'other'" in str(result.output)
    assert not (files / "page.html").exists()


@pytest.mark.skipif(not find_chromium(), reason="no Chromium here; on Debian: apt-get install chromium")
def test_the_page_opens_and_shows_each_system(files: Path) -> None:
    report(files, "--ref", "ref.rttm", "--hyp", "good.rttm", "--hyp", "bad.rttm", "--collar", "0", "--out", "page.html")
    with browse() as tab:
        tab.open(files / "page.html", width=400)
        assert tab.run("[...document.querySelectorAll('#rows .rate')].map((one) => one.textContent)") == [
            "10.0 / 40.0 %",
            "0.0 / 50.0 %",
        ]
        names = tab.run("view.lanes().filter((lane) => lane.heading).map((lane) => lane.name)")
        assert names == ["Reference", "good.rttm", "bad.rttm"]
        assert tab.run("document.documentElement.scrollWidth") <= 400
        assert tab.run("[...Array(2)].map((_, n) => difference(data.sessions[n]).toFixed(1))") == ["0.3", "0.5"]
        assert tab.complaints == []
