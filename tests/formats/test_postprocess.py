"""postprocess.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from sortk.formats.files import FormatError
from sortk.formats.postprocess import PRESETS, Postprocess, read_postprocess, write_postprocess


def test_options_survive_a_file(tmp_path: Path) -> None:
    path = tmp_path / "postprocess.toml"
    write_postprocess(path, PRESETS["callhome"], {"trials": 200, "set": 'a "dev" set', "der_after": 0.125})
    assert read_postprocess(path) == PRESETS["callhome"]
    path.write_text("onset = 0.6\n")
    assert read_postprocess(path) == Postprocess(onset=0.6)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("onsett = 1", "unknown key 'onsett'; keys: onset, offset"),
        ("onset = 'x'", "onset is 'x'; it must be a number"),
        ("onset = true", "onset is True; it must be a number"),
        ("onset = nan", "onset must be a finite number"),
        ("onset = 1.5", "onset must be from 0 to 1, got 1.5"),
        ("min_duration_on = -1", "min_duration_on must be from 0 to 3600, got -1"),
        ("min_duration_off = 1e300", r"min_duration_off must be from 0 to 3600, got 1e\+300"),
        ("pad_onset = -1e9", r"pad_onset must be from -3600 to 3600, got -1000000000.0"),
        ("onset = ", "not valid TOML"),
    ],
)
def test_wrong_options_are_a_sentence(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "postprocess.toml"
    path.write_text(text)
    with pytest.raises(FormatError, match=reason):
        read_postprocess(path)
