from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from miniatures import write_audio, write_text

from sortk.cli import main
from sortk.corpora.aishell4 import clean_text, read
from sortk.corpora.miniature import format_textgrid
from sortk.formats import manifest, seglst

NAME = "20200616_M_R001S01C01"
TIERS = {
    "001-M": [(0.0, 0.4, ""), (0.4, 1.5, "那我们<sil>开始吧。"), (1.5, 1.75, "<%>"), (1.75, 2.0, "嗯 OK")],
    "002-F": [(0.0, 1.25, ""), (1.25, 1.6, "好的`"), (1.6, 2.0, " ")],
}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "aishell4"
    for part, name in {"train_L": "20200706_L_R001S01C01", "train_M": NAME, "test": "L_R003S01C02"}.items():
        write_audio(folder / part / "wav" / f"{name}.flac", 2.0, channels=8)
        write_text(folder / part / "TextGrid" / f"{name}.TextGrid", format_textgrid(TIERS, 2.0))
        write_text(folder / part / "TextGrid" / f"{name}.rttm", "")
    return folder


def test_tiers_are_speakers_and_the_rooms_one_part(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = CliRunner().invoke(main, ["prepare", "aishell4", "--corpus-dir", str(corpus), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "aishell4 train: 2 sessions, 0.00 h, but published are 191 sessions, 107.50 h" in result.stderr
    assert [session.session_id for session in manifest.read(out / "test.jsonl")] == ["L_R003S01C02"]
    sessions = {session.session_id: session for session in manifest.read(out / "train.jsonl")}
    assert list(sessions) == ["20200706_L_R001S01C01", NAME]
    session = sessions[NAME]
    assert (session.audio_path.name, session.duration, session.num_speakers) == (f"{NAME}.flac", 2.0, 2)
    assert session.rttm_path and session.rttm_path.read_text() == (
        f"SPEAKER {NAME} 1 0.400 1.100 <NA> <NA> {NAME}-001-M <NA> <NA>\n"
        f"SPEAKER {NAME} 1 1.250 0.350 <NA> <NA> {NAME}-002-F <NA> <NA>\n"
        f"SPEAKER {NAME} 1 1.750 0.250 <NA> <NA> {NAME}-001-M <NA> <NA>\n"
    )
    assert session.seglst_path
    assert [entry.text for entry in seglst.read(session.seglst_path)] == ["那我们 开始吧。", "好的", "嗯 OK"]


def test_a_tier_that_ends_elsewhere_than_the_file_is_no_error(corpus: Path) -> None:
    """Two files of the corpus are like that, and other readers leave them out."""
    path = corpus / "train_M" / "TextGrid" / f"{NAME}.TextGrid"
    text = path.read_text(encoding="utf-8").replace(
        "        xmax = 2.0\n        intervals", "        xmax = 1.9\n        intervals"
    )
    write_text(path, text)
    assert len(read(corpus, map)["train"][1].segments) == 3


def test_the_first_missing_file_is_named(corpus: Path) -> None:
    (corpus / "train_L" / "wav" / "20200706_L_R001S01C01.flac").unlink()
    with pytest.raises(FileNotFoundError, match=r"train_L/wav/20200706_L_R001S01C01\.flac: no such file"):
        read(corpus, map)
    (corpus / "train_L" / "TextGrid" / "20200706_L_R001S01C01.TextGrid").unlink()
    (corpus / "test" / "TextGrid" / "L_R003S01C02.TextGrid").unlink()
    with pytest.raises(FileNotFoundError, match=r"test/TextGrid/L_R003S01C02\.TextGrid: no such file"):
        read(corpus, map)


def test_an_empty_folder_is_explained(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"test/wav: no \.flac file here"):
        read(tmp_path, map)


@pytest.mark.parametrize(
    ("text", "cleaned"), [("<sil>", ""), (" ", ""), ("<%>对<$>", "对"), ("a & b", "a b"), ("，。", ""), ("<_>", "")]
)
def test_marks_are_no_words(text: str, cleaned: str) -> None:
    assert clean_text(text) == cleaned
