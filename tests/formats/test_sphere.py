"""NIST SPHERE: plain samples are read, packed ones explained."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spheres import write_sphere

from sortk.formats import audio, containers
from sortk.formats.files import FormatError


def test_linear_samples(tmp_path: Path) -> None:
    write_sphere(tmp_path / "a.sph", struct.pack("<4h", 0, 16384, -32768, 8192), "pcm", channels=1)
    assert audio.read(tmp_path / "a.sph", sample_rate=8000).tolist() == [0.0, 0.5, -1.0, 0.25]


def test_both_channels_of_a_call_in_u_law(tmp_path: Path) -> None:
    # 0x80 is the largest value of u-law, 32124 of 32768; 0x00 the smallest; 0xff is zero (ITU-T G.711).
    write_sphere(tmp_path / "a.sph", b"\x80\xff\xff\x00\x80\x00")
    assert audio.info(tmp_path / "a.sph") == audio.AudioInfo(3 / 8000, 8000, 2, 3)
    largest = 32124 / 32768
    np.testing.assert_allclose(audio.read(tmp_path / "a.sph", sample_rate=8000), [largest / 2, -largest / 2, 0])


@pytest.mark.parametrize("coding", ["ulaw,embedded-shorten-v2.00", "pcm,embedded-shorten-v1.09"])
def test_what_to_do_with_packed_samples(tmp_path: Path, coding: str) -> None:
    path = tmp_path / "fe_03_00001.sph"
    write_sphere(path, b"ajkg\x02" + bytes(500), coding)
    with pytest.raises(FormatError) as caught:
        audio.info(path)
    assert str(caught.value) == (
        f"{path}: its samples are packed ({coding}), which libsndfile cannot read; "
        "unpack it: sph2pipe -p -f wav fe_03_00001.sph fe_03_00001.wav"
    )


@pytest.mark.parametrize("content", [b"", b"RIFF", b"NIST_1A\n   1024\n", b"sample_coding -s3 a,b\n"])
def test_other_damage_is_not_blamed_on_packing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.sph"
    path.write_bytes(content)
    with pytest.raises(FormatError, match="not an audio file|is empty"):
        audio.info(path)


@given(st.binary(max_size=200))
def test_any_bytes_after_the_magic_are_survived(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.sph"
    path.write_bytes(b"NIST_1A\n   1024\nsample_coding -s9 " + content)
    assert ("sph2pipe" in containers.find_packing(path)) == (
        b"," in content.partition(b"end_head")[0].partition(b"\n")[0]
    )
