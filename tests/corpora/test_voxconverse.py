from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from miniatures import write_audio, write_text

from sortk.cli import main
from sortk.corpora.voxconverse import PUBLISHED, read
from sortk.formats import manifest, rttm

REFERENCE = Path(__file__).parents[3] / "shared" / "data" / "refs" / "voxconverse"

ABJXC = """\
SPEAKER abjxc 1 0.400000 1.640000 <NA> <NA> spk00 <NA> <NA>
SPEAKER abjxc 1 1.680000 0.960000 <NA> <NA> spk01 <NA> <NA>
"""
AEPYX = "SPEAKER aepyx 1 0.000000 1.000000 <NA> <NA> spk00 <NA> <NA>\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The repository with the audio as the zip files unpack: abjxc in dev, aepyx in test."""
    folder = tmp_path / "voxconverse"
    write_text(folder / "README.md", "## VoxConverse speaker diarisation dataset\n")
    write_text(folder / "dev" / "abjxc.rttm", ABJXC)
    write_text(folder / "test" / "aepyx.rttm", AEPYX)
    write_audio(folder / "audio" / "abjxc.wav", 3.0)
    write_audio(folder / "voxconverse_test_wav" / "aepyx.wav", 1.5)
    return folder


def test_both_parts_are_read(checkout: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = CliRunner().invoke(main, ["prepare", "voxconverse", "--corpus-dir", str(checkout), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "voxconverse dev: 1 session, 0.00 h, but published are 216 sessions, 20.30 h" in result.stderr
    (dev,), (test,) = manifest.read(out / "valid.jsonl"), manifest.read(out / "test.jsonl")
    assert (dev.audio_path, dev.duration, dev.num_speakers) == (checkout / "audio" / "abjxc.wav", 3.0, 2)
    assert (test.session_id, test.duration, test.seglst_path, test.uem_path) == ("aepyx", 1.5, None, None)
    assert dev.rttm_path and dev.rttm_path.read_text() == (
        "SPEAKER abjxc 1 0.400 1.640 <NA> <NA> abjxc-spk00 <NA> <NA>\n"
        "SPEAKER abjxc 1 1.680 0.960 <NA> <NA> abjxc-spk01 <NA> <NA>\n"
    )


def test_the_audio_may_lie_beside_the_rttm(checkout: Path) -> None:
    (checkout / "audio" / "abjxc.wav").rename(checkout / "dev" / "abjxc.wav")
    assert read(checkout, map)["dev"][0].audio_path == checkout / "dev" / "abjxc.wav"


def test_a_part_without_audio_is_left_out_and_one_without_some_is_not(checkout: Path) -> None:
    (checkout / "voxconverse_test_wav" / "aepyx.wav").unlink()
    assert list(read(checkout, map)) == ["dev"]
    write_text(checkout / "dev" / "zzzzz.rttm", ABJXC.replace("abjxc", "zzzzz"))
    with pytest.raises(FileNotFoundError, match=r"audio/zzzzz\.wav: no such file \(the audio of zzzzz\)"):
        read(checkout, map)


def test_wrong_folders_and_wrong_files_are_named(checkout: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no \.rttm file here; --corpus-dir must be a git checkout"):
        read(tmp_path, map)
    write_text(checkout / "dev" / "abjxc.rttm", ABJXC.replace("SPEAKER abjxc", "SPEAKER other"))
    with pytest.raises(ValueError, match=r"abjxc\.rttm: has a segment of another clip, other"):
        read(checkout, map)


@pytest.mark.skipif(not REFERENCE.is_dir(), reason="the shared data are not on this machine")
def test_the_published_development_part_has_as_many_clips(tmp_path: Path) -> None:
    """The hours of the audio cannot be seen here; but nobody speaks after its end."""
    end_of: dict[str, float] = {}
    for segment in rttm.read(REFERENCE / "dev.rttm"):
        end_of[segment.session_id] = max(segment.end, end_of.get(segment.session_id, 0.0))
    published = PUBLISHED["dev"]
    assert len(end_of) == published.sessions
    assert published.hours is not None and 0.98 < sum(end_of.values()) / 3600 / published.hours <= 1
