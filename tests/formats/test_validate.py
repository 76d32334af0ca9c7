"""Summaries, and faults that only the named files show."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sortk.formats import audio, ctm, kaldi, manifest, rttm, seglst, sources, uem
from sortk.formats.convert import validate
from sortk.formats.files import FormatError
from sortk.records import Region, Segment, Session, Source

SPOKEN = [Segment("s", "a", 0, 1, "hi"), Segment("s", "b", 0.5, 2, "you"), Segment("t", "a", 0, 900, "long")]


@pytest.fixture
def flac(tmp_path: Path) -> Path:
    """Two seconds."""
    path = tmp_path / "s.flac"
    audio.write_flac(path, np.ones(32_000, dtype=np.int16))
    return path


def test_segments(tmp_path: Path) -> None:
    rttm.write(tmp_path / "a.rttm", SPOKEN)
    seglst.write(tmp_path / "a.json", SPOKEN[:1])
    kaldi.write(tmp_path / "kaldi", {"s": Path("/s.wav"), "t": Path("/t.wav")}, SPOKEN)
    assert validate(tmp_path / "a.rttm") == "rttm, 2 sessions, 3 segments, 2 speakers, 0.25 h of speech"
    assert validate(tmp_path / "a.json") == "seglst, 1 session, 1 segment, 1 speaker, 0.00 h of speech"
    assert validate(tmp_path / "kaldi") == "kaldi, 2 sessions, 3 segments, 2 speakers, 0.25 h of speech"


def test_uem(tmp_path: Path) -> None:
    uem.write(tmp_path / "a.uem", [Region("s", 0, 1800), Region("s", 1900, 3700)])
    assert validate(tmp_path / "a.uem") == "uem, 1 session, 2 regions, 1.00 h to score"


def test_faults_pass_through(tmp_path: Path) -> None:
    (tmp_path / "a.rttm").write_text("SPEAKER s 1 0 x <NA> <NA> a <NA> <NA>\n")
    with pytest.raises(FormatError, match=r"a\.rttm, line 1: duration is not a number: 'x'"):
        validate(tmp_path / "a.rttm")


def test_a_sound_manifest(tmp_path: Path, flac: Path) -> None:
    rttm.write(tmp_path / "s.rttm", [Segment("s", "a", 0, 2.4)])
    uem.write(tmp_path / "s.uem", [Region("s", 0, 2)])
    whole = Session("s", flac, rttm_path=tmp_path / "s.rttm", uem_path=tmp_path / "s.uem")
    window = Session("w", flac, 0.5, offset=1.0, rttm_path=tmp_path / "s.rttm")
    manifest.write(tmp_path / "a.jsonl", [whole, window])
    assert validate(tmp_path / "a.jsonl") == "manifest, 2 sessions, 0.00 h of audio"


@pytest.mark.parametrize("kind", ["rttm", "ctm", "seglst"])
def test_annotation_that_outlasts_the_audio(tmp_path: Path, flac: Path, kind: str) -> None:
    file = tmp_path / "long"
    {"rttm": rttm, "ctm": ctm, "seglst": seglst}[kind].write(file, [Segment("s", "a", 0, 2.6, "hi")])
    fine = Session("fine", flac, 2.0)
    manifest.write(tmp_path / "a.jsonl", [fine, Session("s", flac, 2.0, **{f"{kind}_path": file})])  # type: ignore[arg-type]
    with pytest.raises(FormatError) as caught:
        validate(tmp_path / "a.jsonl")
    assert str(caught.value) == (
        f"{tmp_path / 'a.jsonl'}, line 2: {kind}_filepath ends at 2.6 s, its audio at 2.0 s: {file}"
    )


@pytest.mark.parametrize(("offset", "duration"), [(2.0, None), (1.0, 2.0), (5.0, 1.0)])
def test_a_window_outside_its_audio(tmp_path: Path, flac: Path, offset: float, duration: float | None) -> None:
    manifest.write(tmp_path / "a.jsonl", [Session("s", flac, duration, offset)])
    with pytest.raises(FormatError, match=r"line 1: .* is not inside its audio, which ends at 2\.0 s"):
        validate(tmp_path / "a.jsonl")


def test_a_file_that_is_not_there_or_broken(tmp_path: Path, flac: Path) -> None:
    manifest.write(tmp_path / "a.jsonl", [Session("s", flac, uem_path=tmp_path / "s.uem")])
    with pytest.raises(FormatError, match="line 1: uem_filepath names a file that does not exist"):
        validate(tmp_path / "a.jsonl")
    (tmp_path / "s.uem").write_text("s 1 0\n")
    with pytest.raises(FormatError, match=r"s\.uem, line 1: a UEM line has 4 fields, not 3"):
        validate(tmp_path / "a.jsonl")


def test_sources(tmp_path: Path, flac: Path) -> None:
    path = tmp_path / "sources.jsonl"
    spoken = [Source("u1", flac, 0.0, 1.0, "ann", "hi"), Source("u2", flac, 1.0, 1.0, "bob", "you")]
    sources.write(path, spoken)
    assert validate(path) == "sources, 2 utterances, 2 speakers, 0.00 h of audio"
    sources.write(path, [*spoken, Source("u3", flac, 1.0, 9.0, "ann", "")])
    with pytest.raises(FormatError, match=r"line 3: 1\.0 s to 10\.0 s is not inside its audio"):
        validate(path)
    sources.write(path, [*spoken, Source("u3", tmp_path / "none.flac", 1.0, 9.0, "ann", "")])
    with pytest.raises(FormatError, match="line 3: audio_filepath names a file that does not exist"):
        validate(path)


def test_sst(tmp_path: Path) -> None:
    path = tmp_path / "sst.jsonl"
    texts = {"s": "<spk0> well i <spk1> yes", "t": "hi <cs> you"}
    path.write_text("".join(f'{{"session_id": "{name}", "text": "{text}"}}\n' for name, text in texts.items()))
    assert validate(path) == "sst, 2 sessions, 5 words"
    path.write_text('{"session_id": "s", "text": "hi"}\n' * 2)
    with pytest.raises(FormatError, match=r"line 2: session_id 's' stands in line 1 already$"):
        validate(path)
    path.write_text('{"session_id": "s", "text": "hi"}\n{"session_id": "t"}\n')
    with pytest.raises(FormatError, match="line 2: text is missing"):
        validate(path)


def test_a_list_of_librispeechmix(tmp_path: Path) -> None:
    columns = {"wavs": ["a", "b"], "delays": [0, 1.5], "durations": [1800, 1800], "speakers": ["1", "2"]}
    mixtures = [columns | {"id": f"dev/{name}", "texts": ["A", "B"]} for name in "xyz"]
    (tmp_path / "list.jsonl").write_text("\n".join(map(json.dumps, mixtures)))
    assert validate(tmp_path / "list.jsonl") == "mixlist, 3 mixtures, 6 utterances, 2 speakers, 3.00 h of speech"


def test_the_folder_of_a_stage(tmp_path: Path, flac: Path) -> None:
    out = tmp_path / "out"
    for name in ("diar/train", "diar/dev", "asr/train"):
        manifest.write(out / f"{name}.jsonl", [Session("s", flac)])
    for name in ("done.json", "summary.json"):
        (out / name).write_text('{\n "key": 1\n}\n')
    (out / "rejected.jsonl").write_text('{"id": "x", "rule": "short", "value": 1}\n')
    one = "manifest, 1 session, 0.00 h of audio"
    assert validate(out) == f"asr/train.jsonl: {one}; diar/dev.jsonl: {one}; diar/train.jsonl: {one}"
    assert validate(out / "diar") == f"dev.jsonl: {one}; train.jsonl: {one}"
    (out / "diar" / "dev.jsonl").write_text('{"audio_filepath": "none.flac"}')
    with pytest.raises(FormatError, match=r"dev\.jsonl, line 1: audio_filepath names a file that does not exist"):
        validate(out)
