"""Files that other tools wrote."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from sortk.formats import ctm, lhotse, rttm, seglst, sources, stm, uem
from sortk.formats.convert import validate
from sortk.formats.files import FormatError

from .strategies import REFS

pytestmark = pytest.mark.skipif(not REFS.exists(), reason="the data beside the repository is not here")

READERS = {".rttm": rttm.read, ".stm": stm.read, ".ctm": ctm.read, ".json": seglst.read}


def files(pattern: str) -> list[Path]:
    return sorted(REFS.glob(pattern)) if REFS.exists() else []


@pytest.mark.parametrize(
    "path", [path for path in files("refs/meeteval/*.*") if "_per_reco" not in path.name], ids=lambda path: path.name
)
def test_meeteval_examples_read_with_zero_durations_kept(path: Path) -> None:
    if path.suffix == ".uem":
        assert uem.read(path)[0].end == 4.5
        return
    assert READERS[path.suffix](path, zero_duration="keep")


@pytest.mark.parametrize("name", ["ref.rttm", "ref.stm", "ref.seglst.json", "hyp1.ctm"])
def test_zero_durations_of_the_examples_are_errors_elsewhere(name: str) -> None:
    path = REFS / "refs" / "meeteval" / name
    with pytest.raises(FormatError, match="duration is zero"):
        READERS[path.suffix](path)


@pytest.mark.parametrize(
    "path",
    [*files("refs/[!m]*/*.rttm"), *files("conversation/*.rttm"), *files("conversation/*.stm")],
    ids=lambda p: p.name,
)
def test_segments_come_back(path: Path, tmp_path: Path) -> None:
    module = {".rttm": rttm, ".stm": stm}[path.suffix]
    segments = module.read(path)
    module.write(tmp_path / path.name, segments)
    assert Counter(module.read(tmp_path / path.name)) == Counter(segments)


@pytest.mark.parametrize("path", [*files("refs/*/*.uem"), *files("conversation/*.uem")], ids=lambda path: path.name)
def test_regions(path: Path) -> None:
    assert uem.read(path)


def test_ami_in_lhotse() -> None:
    segments, sessions = lhotse.read(REFS / "refs" / "lhotse_ami" / "ES2011a_sups.jsonl.gz")
    assert not sessions
    assert segments[0].text == "I'M KRISTA AND I'M THE INDUSTRIAL DESIGNER"
    assert segments[0].end == 95.68


@pytest.mark.parametrize("path", files("*/sources.jsonl"), ids=lambda path: path.parent.name)
def test_sources(path: Path) -> None:
    assert len(sources.read(path)) > 100
    assert validate(path).startswith("sources, ")
