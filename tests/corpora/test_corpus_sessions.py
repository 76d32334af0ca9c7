"""Files by name, in any folder; names of speakers."""

from __future__ import annotations

from pathlib import Path

import pytest

from sortk.corpora.sessions import find_files, index_audio, name_speakers, need_audio
from sortk.records import Segment


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_linked_discs_are_searched_and_circles_end(tmp_path: Path) -> None:
    on_disc = touch(tmp_path / "elsewhere" / "audio" / "000" / "a.sph")
    corpus = tmp_path / "corpus"
    own = touch(corpus / "docs" / "b.txt")
    (corpus / "disc1").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(corpus)
    assert find_files(corpus) == [corpus / "disc1" / on_disc.relative_to(tmp_path / "elsewhere"), own]


def test_unpacked_audio_goes_before_the_packed_one(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.SPH", "a.wav", "b.flac", "b.sph", "c.sph", "c.txt")]
    found = index_audio(paths)
    assert found == {"a": tmp_path / "a.wav", "b": tmp_path / "b.flac", "c": tmp_path / "c.sph"}
    assert need_audio(found, "c", tmp_path) == tmp_path / "c.sph"
    with pytest.raises(FileNotFoundError, match=r"no d\.sph \(nor d\.wav or \.flac\) in this folder or below"):
        need_audio(found, "d", tmp_path)


def test_speakers_of_two_calls_are_not_the_same() -> None:
    assert name_speakers([Segment("x", "A", 0, 1), Segment("y", "A", 0, 1)]) == (
        Segment("x", "x-A", 0, 1),
        Segment("y", "y-A", 0, 1),
    )
