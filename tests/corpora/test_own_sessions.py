"""Data of one's own, as a new user would lay it out: a folder, a manifest, a Kaldi data directory."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from miniatures import write_audio, write_text

from sortk.cli import main
from sortk.corpora.own_sessions import read
from sortk.corpora.sessions import RecordedSession
from sortk.records import Region, Segment

RTTM = "SPEAKER {0} 1 0.50 1.00 <NA> <NA> ann <NA> <NA>\nSPEAKER {0} 1 1.25 1.50 <NA> <NA> bob <NA> <NA>\n"
TURNS = ((0.5, 1.5, "ann"), (1.25, 2.75, "bob"))


def segments(name: str) -> tuple[Segment, ...]:
    return tuple(Segment(name, speaker, start, end) for start, end, speaker in TURNS)


def read_all(folder: Path, valid: float = 0.1, test: float = 0.1) -> dict[str, list[RecordedSession]]:
    return read(folder, map, valid, test, 0)


def test_recordings_with_rttm_are_divided(tmp_path: Path) -> None:
    for number in range(10):
        write_audio(tmp_path / f"call{number}.wav", 3.0)
        write_text(tmp_path / f"call{number}.rttm", RTTM.format(f"call{number}"))
    parts = read_all(tmp_path, valid=0.2)
    assert {part: len(sessions) for part, sessions in parts.items()} == {"train": 7, "valid": 2, "test": 1}
    assert list(parts) == ["train", "valid", "test"]
    assert parts == read_all(tmp_path, valid=0.2) != read(tmp_path, map, 0.2, 0.1, 1)
    session = parts["test"][0]
    name = session.session_id
    assert session == RecordedSession(name, tmp_path / f"{name}.wav", 3.0, segments(name))


def test_a_recording_with_little_speech_is_not_drawn_for_dev_or_test(tmp_path: Path) -> None:
    """A random development set of one such recording has nothing to tune on, and ends a run in stage 2."""
    for number in range(5):
        name = f"call{number}"
        write_audio(tmp_path / f"{name}.wav", 9.0)
        seconds = 8.0 if number < 3 else 0.5
        write_text(tmp_path / f"{name}.rttm", f"SPEAKER {name} 1 0.50 {seconds} <NA> <NA> ann <NA> <NA>\n")
    for seed in range(20):
        parts = read(tmp_path, map, 0.2, 0.2, seed)
        assert {part: len(sessions) for part, sessions in parts.items()} == {"train": 3, "valid": 1, "test": 1}
        drawn = {session.session_id for part in ("valid", "test") for session in parts[part]}
        assert drawn < {"call0", "call1", "call2"}


def test_other_speakers_in_the_transcript_than_in_the_rttm_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_audio(tmp_path / "a.wav", 3.0)
    write_text(tmp_path / "a.rttm", RTTM.format("a"))
    write_text(tmp_path / "a.stm", "a 1 Diane 0.50 1.50 so here we go\n")
    read_all(tmp_path, 0, 0)
    assert "no speaker of its transcript (Diane, ...) is in its RTTM (ann, ...)" in caplog.text


def test_folders_are_parts_and_annotations_lie_anywhere(tmp_path: Path) -> None:
    for part, name in (("train", "a"), ("dev", "b"), ("test", "c")):
        write_audio(tmp_path / part / f"{name}.flac", 3.0)
    write_text(tmp_path / "ref" / "all.rttm", RTTM.format("a") + RTTM.format("b"))
    write_text(tmp_path / "ref" / "words.stm", "b 1 ann 0.50 1.50 so here we go\nc 1 bob 1.00 2.00 yes\n")
    entry = {"session_id": "a", "speaker": "ann", "start_time": 0.5, "end_time": 1.5, "words": "hello"}
    write_text(tmp_path / "a.json", json.dumps([entry]))
    write_text(tmp_path / "settings.json", "{}")  # none of ours
    write_text(tmp_path / "ref" / "all.uem", "a 1 0.0 2.0\n")
    assert read_all(tmp_path) == {
        "train": [
            RecordedSession(
                "a",
                tmp_path / "train" / "a.flac",
                3.0,
                segments("a"),
                (Segment("a", "ann", 0.5, 1.5, "hello"),),
                (Region("a", 0.0, 2.0),),
            )
        ],
        "dev": [
            RecordedSession(
                "b", tmp_path / "dev" / "b.flac", 3.0, segments("b"), (Segment("b", "ann", 0.5, 1.5, "so here we go"),)
            )
        ],
        "test": [
            RecordedSession(
                "c",
                tmp_path / "test" / "c.flac",
                3.0,
                (Segment("c", "bob", 1.0, 2.0),),  # the transcript tells who speaks
                (Segment("c", "bob", 1.0, 2.0, "yes"),),
            )
        ],
    }


def test_a_manifest_with_windows(tmp_path: Path) -> None:
    write_audio(tmp_path / "long.wav", 3.0)
    write_text(tmp_path / "long.rttm", RTTM.format("long"))
    line = {"audio_filepath": "long.wav", "rttm_filepath": "long.rttm"}
    lines = [line | {"session_id": "w1", "offset": 0.0, "duration": 1.0}, line | {"session_id": "w2", "offset": 1.0}]
    for part in ("train", "valid"):
        write_text(tmp_path / f"{part}.jsonl", "".join(json.dumps(each) + "\n" for each in lines))
    first, second = read_all(tmp_path)["valid"]
    assert first == RecordedSession("w1", tmp_path / "long.wav", 1.0, (Segment("w1", "ann", 0.5, 1.0),))
    assert (second.duration, second.offset) == (2.0, 1.0)
    assert second.segments == (Segment("w2", "ann", 1.0, 1.5), Segment("w2", "bob", 1.25, 2.75))
    with pytest.raises(ValueError, match="too few recordings to split \\(1\\)"):
        read(tmp_path / "train.jsonl", map, 0.5, 0.5, 0)


def test_a_kaldi_directory(tmp_path: Path) -> None:
    write_audio(tmp_path / "wavs" / "a.wav", 3.0)
    for part in ("train", "dev", "test"):
        folder = tmp_path / "data" / part
        write_text(folder / "wav.scp", f"a ../../wavs/a.wav\nb-{part} ../../wavs/a.wav\n")
        write_text(folder / "segments", f"ann-1 a 0.5 1.5\nbob-1 b-{part} 1.25 2.75\n")
        write_text(folder / "utt2spk", "ann-1 ann\nbob-1 bob\n")
        write_text(folder / "text", "ann-1 good morning\nbob-1 hi\n")
    first, second = read_all(tmp_path / "data")["dev"]
    assert first.segments == (Segment("a", "ann", 0.5, 1.5),)
    assert first.transcript == (Segment("a", "ann", 0.5, 1.5, "good morning"),)
    assert (second.session_id, second.segments[0].speaker, second.duration) == ("b-dev", "bob", 3.0)


def test_what_is_wrong_is_one_sentence_with_the_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no recording \(\*\.wav, \*\.flac, \.\.\.\) here or below"):
        read_all(tmp_path)
    write_audio(tmp_path / "a.wav", 1.0)
    with pytest.raises(FileNotFoundError, match=r"a\.wav: no RTTM, STM or SegLST file in this folder names session a"):
        read_all(tmp_path)
    write_text(tmp_path / "a.rttm", RTTM.format("a") + RTTM.format("other"))
    with pytest.raises(FileNotFoundError, match=r"a\.rttm: refers to session 'other', but there is no recording"):
        read_all(tmp_path)
    write_audio(tmp_path / "more" / "a.wav", 1.0)
    with pytest.raises(ValueError, match=r"a\.wav and .*a\.wav are both session a; rename one"):
        read_all(tmp_path)
    write_text(tmp_path / "m.jsonl", '{"audio_filepath": "a.wav"}\n')
    with pytest.raises(ValueError, match=r"m\.jsonl: session a names no RTTM, SegLST or CTM"):
        read_all(tmp_path / "m.jsonl")


def test_the_command(tmp_path: Path) -> None:
    for number in range(4):
        write_audio(tmp_path / "in" / f"{number}.wav", 3.0)
        write_text(tmp_path / "in" / f"{number}.rttm", RTTM.format(number))
    command = ["prepare", "sessions", "--corpus-dir", str(tmp_path / "in"), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    assert {path.name for path in (tmp_path / "out").glob("*.jsonl")} == {
        *(f"{name}.jsonl" for name in ("train", "valid", "test", "sources"))
    }
    assert "skipped" in CliRunner().invoke(main, command).stderr
    write_text(tmp_path / "in" / "0.rttm", RTTM.format(0) + RTTM.format(0).replace("ann", "carl"))
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 1 and "changed" in result.stderr


@pytest.mark.parametrize("name", ["../../victim/precious", "{}/victim/precious", "..\\u001b", "a\\u001b[31mb"])
def test_a_session_id_does_not_lead_out_of_the_folder(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    for path in (victim / "precious.rttm", victim / "precious.json"):
        write_text(path, "by hand")
    write_audio(tmp_path / "a.wav", 3.0)
    session_id = json.loads(f'"{name.format(tmp_path)}"')
    write_text(tmp_path / "1.rttm", RTTM.format("a"))
    line = {"session_id": session_id, "audio_filepath": "a.wav", "rttm_filepath": "1.rttm", "duration": 3.0}
    write_text(tmp_path / "evil.jsonl", json.dumps(line))
    command = [
        "prepare",
        "sessions",
        "--corpus-dir",
        str(tmp_path / "evil.jsonl"),
        "--out",
        str(tmp_path / "out" / "o"),
    ]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 1 and "\x1b" not in result.output
    assert "cannot be the name of a file" in result.output or "holds control characters" in result.output
    assert {path.read_text() for path in victim.iterdir()} == {"by hand"}


def test_a_key_of_kaldi_does_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_audio(tmp_path / "a.wav", 3.0)
    write_text(data / "wav.scp", f"../../victim {tmp_path / 'a.wav'}\n")
    write_text(data / "segments", "u ../../victim 0.0 1.0\n")
    write_text(data / "utt2spk", "u ann\n")
    result = CliRunner().invoke(
        main, ["prepare", "sessions", "--corpus-dir", str(data), "--out", str(tmp_path / "out" / "o")]
    )
    assert result.exit_code == 1 and "'../../victim' cannot be the name of a file" in result.output
    assert not list(tmp_path.rglob("victim*"))


def test_windows_of_one_recording_are_in_one_part(tmp_path: Path) -> None:
    lines = []
    for number in range(8):
        write_audio(tmp_path / f"r{number}.wav", 6.0)
        write_text(tmp_path / f"r{number}.rttm", RTTM.format(f"r{number}"))
        lines += [
            {
                "session_id": f"r{number}-{start}",
                "audio_filepath": f"r{number}.wav",
                "offset": start,
                "duration": 1.5,
                "rttm_filepath": f"r{number}.rttm",
            }
            for start in (0.0, 0.5, 1.0, 1.5)
        ]
    write_text(tmp_path / "all.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    parts = read_all(tmp_path / "all.jsonl", valid=0.25, test=0.25)
    recordings = {part: {session.audio_path for session in sessions} for part, sessions in parts.items()}
    assert {part: len(paths) for part, paths in recordings.items()} == {"train": 4, "valid": 2, "test": 2}
    assert not recordings["train"] & (recordings["valid"] | recordings["test"])
    assert {part: len(sessions) for part, sessions in parts.items()} == {"train": 16, "valid": 8, "test": 8}


def test_recordings_beside_the_parts_are_named(tmp_path: Path) -> None:
    for place in ("train/a", "dev/b", "c"):
        write_audio(tmp_path / f"{place}.wav", 3.0)
        write_text(tmp_path / f"{place}.rttm", RTTM.format(place[-1]))
    with pytest.raises(
        ValueError, match=r"1 recordings are in none of the parts \(train, dev\), the first is .*c\.wav"
    ):
        read_all(tmp_path)


def test_what_an_stm_ignores_is_neither_learned_nor_scored(tmp_path: Path) -> None:
    for name in "abcd":
        write_audio(tmp_path / f"{name}.wav", 4.0)
    ignored = "{0} 1 ann 1.0 2.0 ignore_time_segment_in_scoring\n{0} 1 ann 0.5 0.9 yes\n"
    write_text(tmp_path / "all.stm", "".join(ignored.format(name) for name in "abcd"))
    [session, *_] = read_all(tmp_path)["train"]
    assert [segment.text for segment in session.transcript] == ["yes"]
    assert [(region.start, region.end) for region in session.regions] == [(0.0, 1.0), (2.0, 4.0)]


def test_a_folder_whose_name_is_not_utf8_is_named(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    for name in "abcd":
        write_audio(tmp_path / "data" / f"{name}.wav", 3.0)
        write_text(tmp_path / "data" / f"{name}.rttm", RTTM.format(name))
    (tmp_path / "data").rename(folder)
    command = ["prepare", "sessions", "--corpus-dir", str(folder), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 1
    assert "a name is not UTF-8: " in result.output and "caf\\udce9" in result.output and "rename" in result.output


def check(folder: Path) -> Result:
    return CliRunner().invoke(main, ["validate", str(folder)])


def write_sessions(folder: Path, *names: str) -> None:
    for name in names:
        write_audio(folder / f"{name}.wav", 3.0)
        write_text(folder / f"{name}.rttm", RTTM.format(name))


def test_validate_says_what_prepare_would(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_sessions(data, "a", "b", "c")
    write_text(data / "words.stm", "b 1 ann 0.50 1.50 so here we go\n")  # RTTM and STM, as the README recommends
    before = sorted(tmp_path.rglob("*"))
    result = check(data)
    assert result.exit_code == 0, result.output
    assert [line.split()[1:3] for line in result.stdout.split(": ")[1].split(";")] == [["1", "session,"]] * 3
    assert "4 words" in result.stdout and sorted(tmp_path.rglob("*")) == before
    write_audio(data / "d.wav", 3.0)
    result = check(data)
    assert (
        result.exit_code == 1 and "d.wav: no RTTM, STM or SegLST file in this folder names session d" in result.output
    )


def test_validate_knows_parts_and_the_output_of_prepare(tmp_path: Path) -> None:
    for part, name in (("train", "a"), ("dev", "b"), ("test", "c")):
        write_sessions(tmp_path / "data" / part, name)
    result = check(tmp_path / "data")
    assert result.exit_code == 0 and "train 1 session, 2 speakers, 0.00 h; valid (dev/) 1 session" in result.stdout
    prepare = ["prepare", "sessions", "--corpus-dir", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    assert CliRunner().invoke(main, prepare).exit_code == 0
    result = check(tmp_path / "out")
    assert result.exit_code == 0 and "sources.jsonl: empty; test.jsonl: manifest, 1 session" in result.stdout


@pytest.mark.parametrize("name", ["Monday", "monday.wav", "mondey"])
def test_an_id_that_is_almost_right_names_the_recording(tmp_path: Path, name: str) -> None:
    write_audio(tmp_path / "monday.wav", 3.0)
    write_text(tmp_path / "all.rttm", RTTM.format(name))
    found = (
        f"session '{name}', but there is no recording of that name; the nearest is monday.wav, whose session is 'mon"
    )
    assert found in check(tmp_path).output


def test_blanks_in_file_names_are_underscores_in_ids(tmp_path: Path) -> None:
    for name in ("my meeting", "b", "c"):
        write_audio(tmp_path / f"{name}.wav", 3.0)
    write_text(tmp_path / "all.rttm", "".join(RTTM.format(name) for name in ("my_meeting", "b", "c")))
    assert check(tmp_path).exit_code == 0


def test_annotation_beyond_the_end_of_the_audio_is_refused(tmp_path: Path) -> None:
    write_sessions(tmp_path, "a", "b", "c")
    write_audio(tmp_path / "a.wav", 1.0)
    assert "a.wav: ends at 1 s, but its annotation at 2.75 s" in check(tmp_path).output
