from __future__ import annotations

import filecmp
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from sortk.formats import audio, manifest, rttm, seglst, uem
from sortk.prepare.clean import CleanOptions, CleanSummary, clean_sets, find_refined
from sortk.prepare.sst import serialize_sessions
from sortk.prepare.timestamps import TimestampOptions, time_words, write_timestamps
from sortk.records import Region, Segment, Session
from sortk.run.workers import run_local
from sortk.scoring.results import Coverage

SHARED = Path(__file__).parents[3] / "shared" / "data"
SPOKEN = Path(__file__).parents[1] / "fixtures" / "nemo" / "a_3p3.wav"
NO_SAD = CleanOptions(sad="none", check_audio=False)
WORDS = TimestampOptions()
VOCABULARY = ("yeah", "okay", "so", "uh", "um", "mm-hmm", "the", "remote", "control", "speech", "button", "animal")


def write_session(
    folder: Path, name: str, turns: Sequence[Segment], said: Sequence[Segment] | None, duration: float
) -> Session:
    rttm.write(folder / f"{name}.rttm", turns)
    if said is not None:
        seglst.write(folder / f"{name}.json", said)
    return Session(
        name,
        folder / f"{name}.flac",
        duration=duration,
        rttm_path=folder / f"{name}.rttm",
        seglst_path=None if said is None else folder / f"{name}.json",
    )


def fill_with_words(turns: Sequence[Segment], rng: Random) -> list[Segment]:
    """A transcript with a segment for each turn, three words a second."""
    filled = []
    for turn in turns:
        words = [rng.choice(VOCABULARY) for _ in range(max(1, round(3 * turn.duration)))]
        filled.append(Segment(turn.session_id, turn.speaker, turn.start, turn.end, " ".join(words)))
    return filled


def make_conversation(folder: Path, name: str, seconds: float, n_speakers: int = 3) -> Session:
    """Turns of a few seconds, some overlapping, some with pauses between them."""
    rng, at, turns = Random(name), 0.0, []
    while at < seconds - 6:
        length = round(rng.uniform(0.4, 5), 2)
        turns.append(Segment(name, f"spk{rng.randrange(n_speakers)}", at, round(at + length, 2)))
        at = round(max(0.0, at + length + rng.uniform(-1.5, 1.5)), 2)
    return write_session(folder, name, turns, fill_with_words(turns, rng), seconds)


def read_rejected(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines()]


# ---------------------------------------------------------------------------------------------------------------------
# One small session, by hand


def test_a_small_session_by_hand(tmp_path: Path) -> None:
    rows = [
        ("A", 0.5, 12.0, "there is nothing like a long introduction of a small subject"),
        ("B", 14.0, 15.0, "um"),
        ("A", 15.0, 28.0, "and then we were told that it was over"),
        ("C", 32.0, 36.0, "really"),
        ("A", 32.2, 38.0, "really so"),
        ("B", 40.0, 47.5, "that is the end of the meeting"),
    ]
    said = [Segment("rec", *row) for row in rows]
    session = write_session(tmp_path / "in", "rec", [Segment("rec", *row[:3]) for row in rows], said, 50.0)
    out = tmp_path / "out"
    options = replace(NO_SAD, window_max_seconds=40.0, max_speakers=2)
    summary = clean_sets({"train": [session]}, options, WORDS, out)["train"]

    # Windows: the longest silence from 30 to 40 s lies between 38 and 40 s. The first has three speakers.
    assert [line.session_id for line in manifest.read(out / "diar" / "train.jsonl")] == ["rec-0039000-0050000"]
    # Samples: silences at 12-14, 28-32, 38-40, 47.5-50. The cut at 13 lets a sample begin with "um", but everywhere
    # else up to 20 s somebody speaks, so it is made all the same. The last sample has three speakers.
    assert read_rejected(out) == [
        {"id": "rec-0000000-0039000", "rule": "max_speakers", "value": 3.0, "output": "diar", "seconds": 39.0},
        {"id": "rec-0013000-0030000", "rule": "filler_start", "value": 1.0, "output": "asr", "seconds": 17.0},
        {"id": "rec-0030000-0050000", "rule": "max_speakers", "value": 3.0, "output": "asr", "seconds": 20.0},
    ]
    [kept] = manifest.read(out / "asr" / "train.jsonl")
    assert kept == Session(
        "rec-0000000-0013000",
        tmp_path / "in" / "rec.flac",
        duration=13.0,
        offset=0.0,
        num_speakers=1,
        rttm_path=out / "rttm" / "rec.rttm",
        seglst_path=out / "seglst" / "rec.json",
    )
    assert seglst.read(out / "seglst" / "rec.json") == said
    assert [(s.speaker, s.start, s.end) for s in rttm.read(out / "rttm" / "rec.rttm")] == [row[:3] for row in rows]
    values = json.loads((out / "summary.json").read_text())["train"]
    assert values == summary.to_json()
    assert values["diar"]["out"] == {"pieces": 1, "seconds": 11.0, "hours": 11 / 3600}
    assert values["asr"]["rejected_by_rule"]["filler_start"]["seconds"] == 17.0
    assert values["asr"]["words"] == {"in": 31, "out": 11} and values["repairs"] == {}
    # What is scored has the same silences to cut at, and no rule: three speakers and "um" stay.
    scored = manifest.read(out / "scored" / "train.jsonl")
    assert [line.session_id for line in scored] == ["rec-0000000-0013000", "rec-0013000-0030000", "rec-0030000-0050000"]
    assert [line.num_speakers for line in scored] == [1, 2, 3] and scored[0] == kept
    assert values["scored"]["words"] == {"in": 31, "out": 31} and values["scored"]["rejected_by_rule"] == {}


def test_every_word_of_a_test_set_is_scored_once(tmp_path: Path) -> None:
    """Two who talk at once for 50 s, without a gap between words, then nobody; a UEM leaves out the end."""
    said = [Segment("rec", "A", 2.0 * n, 2.0 * n + 2, f"a{n}") for n in range(25)]
    said += [Segment("rec", "B", 2.0 * n + 1, 2.0 * n + 3, f"b{n}") for n in range(25)] + [
        Segment("rec", "A", 74.0, 76.0, "late words")
    ]
    session = write_session(tmp_path / "in", "rec", said, said, 80.0)
    uem.write(tmp_path / "rec.uem", [Region("rec", 0.0, 72.0)])
    out = tmp_path / "out"
    summary = clean_sets({"test": [replace(session, uem_path=tmp_path / "rec.uem")]}, NO_SAD, WORDS, out)["test"]
    assert manifest.read(out / "asr" / "test.jsonl") == []
    scored = manifest.read(out / "scored" / "test.jsonl")
    assert all(10 <= (piece.duration or 0) <= 20 for piece in scored) and scored[0].offset == 0
    serialized, found = serialize_sessions(scored, cut_words="middle")
    words = [word for piece in serialized for word in (piece.text or "").split() if not word.startswith("<")]
    assert sorted(words) == sorted(f"{name}{n}" for name in "ab" for n in range(25)) and found.words == 50
    values = summary.to_json()
    assert values["scored"]["words"] == {"in": 50, "out": 50}
    assert values["scored"]["rejected_by_rule"].keys() == {"no_words", "outside_uem"}
    assert values["repairs"]["words_outside_uem"] == 2 and values["repairs"]["word_cut_by_scored"] == 3
    coverage = Coverage.of("test", values, found.to_json())
    assert (coverage.segments, coverage.words, coverage.cut_words) == (len(scored), 50, 3)
    assert coverage.left_out["outside_uem"] == {"hours": 8 / 3600, "segments": 1, "words": 2}
    hours = coverage.hours + sum(part["hours"] for part in coverage.left_out.values())
    assert hours == pytest.approx(80 / 3600)


def test_the_table_adds_up_to_the_microsecond(tmp_path: Path) -> None:
    sessions = [make_conversation(tmp_path / "in", f"s{n}", 301.234567 + n, n_speakers=5) for n in range(3)]
    summary = clean_sets({"train": sessions}, NO_SAD, WORDS, tmp_path / "out")["train"]
    for counts in summary.outputs.values():
        assert counts.us_in == counts.us_out + sum(counts.us_rejected.values()) == 906_703_701
    assert summary.outputs["diar"].us_rejected and summary.outputs["asr"].us_rejected
    lines = str(summary).splitlines()
    assert lines[:3] == [
        "3 sessions",
        "diar                        pieces      hours   share",
        "  in                                   0.2519  100.0%",
    ]
    assert str(CleanSummary(1, repairs={"no_speech_kept": 14})).splitlines()[-2:] == [
        "repairs:",
        "  turns in which no speech was detected, kept as annotated: 14",
    ]


def test_the_table_has_no_samples_for_an_asr_without_transcripts(tmp_path: Path) -> None:
    session = replace(make_conversation(tmp_path / "in", "s", 100.0), seglst_path=None)
    text = str(clean_sets({"train": [session]}, NO_SAD, WORDS, tmp_path / "out")["train"])
    assert text.startswith("1 session\ndiar ") and "asr" not in text and "scored" not in text


# ---------------------------------------------------------------------------------------------------------------------
# AMI: real annotation, long sessions


def ami_sessions(folder: Path, split: str, names: Sequence[str]) -> list[Session]:
    if not (SHARED / "refs" / "ami").is_dir():
        pytest.skip("needs the shared data")
    turns = defaultdict(list)
    for segment in rttm.stream(SHARED / "refs" / "ami" / f"{split}.rttm"):
        turns[segment.session_id].append(segment)
    ends = {region.session_id: region.end for region in uem.read(SHARED / "refs" / "ami" / f"{split}.uem")}
    return [
        write_session(folder, name, turns[name], fill_with_words(turns[name], Random(name)), ends[name])
        for name in names
    ]


def edge_overlaps(segments: Sequence[Segment], start: float, end: float) -> tuple[float, float]:
    """Overlap that begins with the first speech, and that ends with the last: counted every 10 ms."""
    n_frames = round((end - start) * 100)
    counts = np.zeros(n_frames, int)
    for segment in segments:
        counts[max(0, round((segment.start - start) * 100)) : max(0, round((segment.end - start) * 100))] += 1
    overlap = np.trim_zeros(counts) >= 2
    return 0.01 * np.argmin([*overlap, False]), 0.01 * np.argmin([*overlap[::-1], False])


def test_ami_sessions_obey_every_rule(tmp_path: Path) -> None:
    sessions = ami_sessions(tmp_path / "in", "train", ["EN2001a", "ES2002a"])
    sessions += ami_sessions(tmp_path / "in", "dev", ["ES2011a"])
    out = tmp_path / "out"
    summary = clean_sets({"dev": sessions}, NO_SAD, WORDS, out)["dev"]
    windows, samples = manifest.read(out / "diar" / "dev.jsonl"), manifest.read(out / "asr" / "dev.jsonl")
    assert max(window.duration or 0 for window in windows) <= 90
    assert all(10 <= (sample.duration or 0) <= 20 for sample in samples)
    assert all(1 <= (piece.num_speakers or 0) <= 4 for piece in [*windows, *samples])
    for session in sessions:
        turns = rttm.read(out / "rttm" / f"{session.session_id}.rttm")
        words = time_words(seglst.read(out / "seglst" / f"{session.session_id}.json"), WORDS)
        for window in (window for window in windows if window.rttm_path == out / "rttm" / f"{session.session_id}.rttm"):
            assert window.num_speakers == len({turn.speaker for turn in inside(turns, window)})
        for sample in (s for s in samples if s.rttm_path == out / "rttm" / f"{session.session_id}.rttm"):
            start, end = sample.offset, sample.offset + (sample.duration or 0)
            said = inside(words, sample, 1e-6)
            assert all(start - 1e-6 <= word.start and word.end <= end + 1e-6 for word in said)  # no word is cut
            assert max(edge_overlaps(inside(turns, sample), start, end)) <= 1.02
            first = [word.text for word in said]
            changes = [n for n, word in enumerate(said) if word.speaker != said[0].speaker]
            opening = first[: changes[0]] if changes else first
            assert len(opening) > 2 or not set(opening) <= {"yeah", "okay", "so", "uh", "um", "mm-hmm"}
    check_sums(summary, sessions, windows, samples, read_rejected(out))
    assert summary.outputs["diar"].us_rejected["max_speakers"] > 0  # EN2001a has five speakers
    assert summary.outputs["asr"].us_out > 0.8 * summary.outputs["asr"].us_in


def test_no_window_of_the_ami_dev_set_cuts_a_word(tmp_path: Path) -> None:
    ends = uem.read(SHARED / "refs" / "ami" / "dev.uem") if (SHARED / "refs" / "ami").is_dir() else []
    sessions = ami_sessions(tmp_path / "in", "dev", [region.session_id for region in ends])
    out, n_cuts = tmp_path / "out", 0
    options = replace(NO_SAD, max_speakers=9)  # keeps all windows with speech
    summary = clean_sets({"dev": sessions}, options, WORDS, out)["dev"]
    assert len(sessions) == 18 and "word_cut_by_window" not in summary.repairs
    windows = manifest.read(out / "diar" / "dev.jsonl")
    for session in sessions:
        words = time_words(seglst.read(out / "seglst" / f"{session.session_id}.json"), WORDS)
        own = [window for window in windows if window.audio_path == session.audio_path]
        for _, after in pairwise(own):
            n_cuts += 1
            assert not any(word.start < after.offset - 2e-6 and word.end > after.offset + 2e-6 for word in words)
    assert n_cuts > 18 * 10


def inside(segments: Sequence[Segment], piece: Session, tolerance: float = 0.0) -> list[Segment]:
    start, end = piece.offset + tolerance, piece.offset + (piece.duration or 0) - tolerance
    return [segment for segment in segments if segment.start < end and segment.end > start]


def check_sums(
    summary: CleanSummary,
    sessions: Sequence[Session],
    windows: Sequence[Session],
    samples: Sequence[Session],
    rejected: Sequence[dict[str, Any]],
) -> None:
    total = sum(session.duration or 0 for session in sessions)
    values = summary.to_json()
    for output, kept in (("diar", windows), ("asr", samples)):
        dropped = [line["seconds"] for line in rejected if line["output"] == output]
        assert sum(piece.duration or 0 for piece in kept) + sum(dropped) == pytest.approx(total, abs=1e-5)
        counts = summary.outputs[output]
        assert counts.us_in == counts.us_out + sum(counts.us_rejected.values()) == round(total * 1e6)
        hours = values[output]
        assert hours["in"]["hours"] == pytest.approx(hours["out"]["hours"] + hours["rejected"]["hours"], abs=1e-12)
        assert 0 < hours["speech_out"]["hours"] < hours["out"]["hours"]


# ---------------------------------------------------------------------------------------------------------------------
# Jobs, resuming, the speech detector, bad input


def all_files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_any_number_of_jobs_writes_the_same_bytes(tmp_path: Path) -> None:
    sessions = [make_conversation(tmp_path / "in", f"s{n}", 120.0 + n) for n in range(4)]

    def run_two(work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        return run_local(work, items, 2)

    clean_sets({"a": sessions[:3], "b": sessions[3:]}, NO_SAD, WORDS, tmp_path / "one")
    clean_sets({"a": sessions[:3], "b": sessions[3:]}, NO_SAD, WORDS, tmp_path / "two", run_two)
    names = all_files(tmp_path / "one")
    assert names == all_files(tmp_path / "two")
    assert filecmp.cmpfiles(tmp_path / "one", tmp_path / "two", names, shallow=False)[0] == names


def test_a_killed_run_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    sessions = [make_conversation(tmp_path / "in", f"s{n}", 120.0) for n in range(3)]
    clean_sets({"a": sessions}, NO_SAD, WORDS, tmp_path / "whole")

    def run_one(work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        yield work(items[0])
        raise KeyboardInterrupt

    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        clean_sets({"a": sessions}, NO_SAD, WORDS, out, run_one)
    assert all_files(out) == ["rttm/s0.rttm", "seglst/s0.json", "sessions/s0.json"]
    before = (out / "sessions" / "s0.json").stat().st_mtime_ns
    clean_sets({"a": sessions}, NO_SAD, WORDS, out)
    assert (out / "sessions" / "s0.json").stat().st_mtime_ns == before
    names = all_files(out)
    assert filecmp.cmpfiles(out, tmp_path / "whole", names, shallow=False)[0] == names == all_files(tmp_path / "whole")


def test_silence_is_taken_off_the_turns(tmp_path: Path) -> None:
    """Speech (of espeak-ng) between two seconds of silence, annotated with all of it."""
    speech = audio.read(SPOKEN, 0.21, 3.08)  # speech from the first to the last sample
    quiet = np.zeros(2 * 16000, np.float32)
    audio.write_flac(tmp_path / "in" / "rec.flac", np.concatenate([quiet, speech, quiet]))
    turns = [Segment("rec", "A", 0.5, 6.5)]
    session = write_session(tmp_path / "in", "rec", turns, None, 7.08)
    summary = clean_sets({"train": [session]}, CleanOptions(), WORDS, tmp_path / "out")["train"]
    [turn] = rttm.read(tmp_path / "out" / "rttm" / "rec.rttm")
    assert turn.start == pytest.approx(2.0, abs=0.1) and turn.end == pytest.approx(5.08, abs=0.15)
    assert read_rejected(tmp_path / "out") == [
        {"id": "rec-0000000-0007080", "rule": "no_transcript", "value": 0.0, "output": output, "seconds": 7.08}
        for output in ("asr", "scored")
    ]
    assert summary.repairs == {}


def test_posteriors_refine_without_a_speech_detector(tmp_path: Path) -> None:
    session = write_session(tmp_path / "in", "rec", [Segment("rec", "A", 0.0, 10.0)], None, 12.0)
    probs = np.zeros((150, 4), np.float16)
    probs[25:100, 1] = 0.9  # 2 to 8 s; spans are one frame wider
    (tmp_path / "probs").mkdir()
    np.save(tmp_path / "probs" / "rec.npy", probs)
    clean_sets({"train": [session]}, NO_SAD, WORDS, tmp_path / "out", probs_dir=tmp_path / "probs")
    [turn] = rttm.read(tmp_path / "out" / "rttm" / "rec.rttm")
    assert (turn.start, turn.end) == (1.92, 8.08)


def test_an_empty_transcript_and_an_empty_annotation(tmp_path: Path) -> None:
    session = write_session(tmp_path / "in", "rec", [], [], 25.0)
    summary = clean_sets({"train": [session]}, NO_SAD, WORDS, tmp_path / "out")["train"]
    assert {(line["output"], line["rule"]) for line in read_rejected(tmp_path / "out")} == {
        ("diar", "no_speech"),
        ("asr", "no_words"),
        ("scored", "no_words"),
    }
    assert summary.outputs["asr"].us_in == summary.outputs["diar"].us_in == 25_000_000
    assert manifest.read(tmp_path / "out" / "asr" / "train.jsonl") == []


def test_ids_that_would_overwrite_files_are_refused(tmp_path: Path) -> None:
    session = make_conversation(tmp_path / "in", "s", 30.0)
    with pytest.raises(ValueError, match="two sessions have the id 's'"):
        clean_sets({"train": [session], "valid": [replace(session, offset=1.0)]}, NO_SAD, WORDS, tmp_path / "out")
    with pytest.raises(ValueError, match=r"session id '\.\./s' cannot be the name of a file"):
        clean_sets({"train": [Session("../s", session.audio_path)]}, NO_SAD, WORDS, tmp_path / "out")
    with pytest.raises(ValueError, match=r"session id '\.s' cannot be the name of a file: it starts with a dot"):
        clean_sets({"train": [Session(".s", session.audio_path)]}, NO_SAD, WORDS, tmp_path / "out")


def test_a_session_may_be_in_two_sets(tmp_path: Path) -> None:
    session = make_conversation(tmp_path / "in", "s", 30.0)
    clean_sets({"train": [session], "tune": [session]}, NO_SAD, WORDS, tmp_path / "both")
    clean_sets({"train": [session]}, NO_SAD, WORDS, tmp_path / "one")
    for name in ("diar/train.jsonl", "diar/tune.jsonl", "asr/tune.jsonl", "rejected.jsonl"):
        expected = (tmp_path / "one" / name.replace("tune", "train")).read_text(encoding="utf-8")
        assert (tmp_path / "both" / name).read_text(encoding="utf-8") == expected


def test_missing_files_name_the_session(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="session s: has no rttm_filepath"):
        clean_sets({"train": [Session("s", tmp_path / "s.flac", duration=3.0)]}, NO_SAD, WORDS, tmp_path / "out")
    session = make_conversation(tmp_path / "in", "s", 30.0)
    for options in (CleanOptions(), CleanOptions(sad="none"), CleanOptions(check_audio=False)):
        with pytest.raises(ValueError, match=r"s\.flac: no such audio file"):
            clean_sets({"train": [session]}, options, WORDS, tmp_path / "out")


def test_one_rttm_cannot_be_about_several_other_recordings(tmp_path: Path) -> None:
    first, second = (make_conversation(tmp_path / "in", name, 30.0) for name in ("a", "b"))
    rttm.write(tmp_path / "c.rttm", [Segment("c", "A", 1.0, 2.0)])
    shared = [replace(session, rttm_path=tmp_path / "c.rttm") for session in (first, second)]
    with pytest.raises(ValueError, match=r"c\.rttm: is about session 'c', but 'a' and 1 more sessions"):
        clean_sets({"train": shared[:1], "valid": shared[1:]}, NO_SAD, WORDS, tmp_path / "out")
    windows = [replace(shared[0], session_id="w1"), replace(shared[0], session_id="w2", offset=5.0, duration=9.0)]
    summary = clean_sets({"train": windows}, NO_SAD, WORDS, tmp_path / "out")["train"]
    assert summary.repairs["rttm_of_other_id"] == 2


def test_time_outside_the_uem_is_rejected_and_counted(tmp_path: Path) -> None:
    session = make_conversation(tmp_path / "in", "s", 200.0)
    uem.write(tmp_path / "s.uem", [Region("s", 12.5, 60), Region("s", 100, 180)])
    sessions = [replace(session, uem_path=tmp_path / "s.uem")]
    sessions += [replace(sessions[0], session_id="late", audio_path=tmp_path / "s.flac", offset=190.0, duration=8.0)]
    out = tmp_path / "out"
    summary = clean_sets({"train": sessions}, NO_SAD, WORDS, out)["train"]
    for output in ("diar", "asr"):
        counts = summary.outputs[output]
        assert counts.us_rejected["outside_uem"] == 12_500_000 + 20_000_000 + 8_000_000
        assert counts.us_in == counts.us_out + sum(counts.us_rejected.values()) == 208_000_000
        pieces = manifest.read(out / output / "train.jsonl")
        assert min(piece.offset for piece in pieces) >= 12.5
        assert max(piece.offset + (piece.duration or 0) for piece in pieces) <= 180
    lines = [line for line in read_rejected(out) if line["rule"] == "outside_uem" and line["output"] == "diar"]
    assert [(line["id"], line["value"]) for line in lines] == [
        ("s-0000000-0012500", 12.5),
        ("s-0180000-0200000", 20.0),
        ("late-0190000-0198000", 8.0),
    ]


def test_fillers_count_in_the_language_of_the_transcripts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [("A", 0.0, 1.0, "um"), ("B", 2.0, 12.0, "und dann noch einmal")]
    said = [Segment("s", *row) for row in rows]
    session = write_session(tmp_path / "in", "s", said, said, 15.0)
    kept = {}
    for lang in ("en_US", "de_DE", "it_IT"):
        summary = clean_sets({"a": [session], "b": []}, NO_SAD, TimestampOptions(lang), tmp_path / lang)["a"]
        kept[lang] = summary.outputs["asr"].pieces_out
    assert kept == {"en_US": 0, "de_DE": 1, "it_IT": 1}
    assert [record.args for record in caplog.records if record.levelname == "WARNING"] == [("it_IT",)]


def test_the_folder_of_transcripts_is_there_even_without_any(tmp_path: Path) -> None:
    session = write_session(tmp_path / "in", "s", [Segment("s", "A", 0.0, 5.0)], None, 15.0)
    clean_sets({"train": [session]}, NO_SAD, WORDS, tmp_path / "out")
    assert list((tmp_path / "out" / "seglst").iterdir()) == []


def test_manifests_keep_what_other_tools_wrote_and_can_be_moved(tmp_path: Path) -> None:
    session = make_conversation(tmp_path / "in", "s", 30.0)
    tagged = Session(
        session.session_id, session.audio_path, session.duration, rttm_path=session.rttm_path, extra={"lang": "en"}
    )
    clean_sets({"train": [tagged]}, NO_SAD, WORDS, tmp_path / "out")
    line = json.loads((tmp_path / "out" / "diar" / "train.jsonl").read_text())
    assert line["lang"] == "en" and line["rttm_filepath"] == "../rttm/s.rttm" and line["offset"] == 0.0
    assert "seglst_filepath" not in line


# ---------------------------------------------------------------------------------------------------------------------
# Corpora


def of_corpus(session: Session, corpus: str) -> Session:
    return replace(session, extra={"corpus": corpus})


def test_only_the_corpora_that_are_named_are_refined(tmp_path: Path) -> None:
    turns = [Segment("any", "A", 0.0, 10.0)]
    sessions = [
        of_corpus(write_session(tmp_path / "in", name, turns, None, 12.0), name) for name in ("fisher", "icsi", "ami")
    ]
    probs = np.zeros((150, 4), np.float16)
    probs[25:100, 1] = 0.9
    (tmp_path / "probs").mkdir()
    for name in ("fisher", "ami"):  # there are none of the others
        np.save(tmp_path / "probs" / f"{name}.npy", probs)
    options = replace(NO_SAD, refine=("fisher", "sre", "dev"))
    sets = {"train": sessions[:2], "dev": sessions[2:]}
    assert [session.session_id for session in find_refined(sets, options)] == ["fisher", "ami"]
    clean_sets(sets, options, WORDS, tmp_path / "out", probs_dir=tmp_path / "probs")
    times = {name: rttm.read(tmp_path / "out" / "rttm" / f"{name}.rttm")[0] for name in ("fisher", "icsi", "ami")}
    assert {name: (turn.start, turn.end) for name, turn in times.items()} == {
        "fisher": (1.92, 8.08),
        "icsi": (0.0, 10.0),
        "ami": (1.92, 8.08),
    }
    with pytest.raises(
        ValueError, match="clean.refine names 'fischer', which is neither a corpus nor a set; known: ami"
    ):
        clean_sets(sets, replace(options, refine=("fischer",)), WORDS, tmp_path / "out")


def test_samples_of_a_corpus_are_drawn_by_the_seed(tmp_path: Path) -> None:
    sessions = [
        of_corpus(make_conversation(tmp_path / "in", f"{corpus}{n}", 200.0), corpus)
        for corpus in ("fisher", "ami")
        for n in range(3)
    ]
    all_of_them = clean_sets({"train": sessions}, NO_SAD, WORDS, tmp_path / "all")["train"]
    options, drawn = replace(NO_SAD, max_samples={"fisher": 5}), []
    for seed, out in ((0, "a"), (0, "b"), (1, "c")):
        summary = clean_sets({"train": sessions}, options, WORDS, tmp_path / out, seed=seed)["train"]
        drawn.append([piece.session_id for piece in manifest.read(tmp_path / out / "asr" / "train.jsonl")])
    assert drawn[0] == drawn[1] != drawn[2]
    everything = [piece.session_id for piece in manifest.read(tmp_path / "all" / "asr" / "train.jsonl")]
    assert [name for name in everything if name in drawn[0]] == drawn[0]  # in their order
    assert [name for name in drawn[0] if "ami" in name] == [name for name in everything if "ami" in name]
    assert sum("fisher" in name for name in drawn[0]) == 5
    counts, before = summary.outputs["asr"], all_of_them.outputs["asr"]
    assert counts.pieces_out == len(drawn[2]) and counts.us_in == before.us_in
    assert counts.us_out + sum(counts.us_rejected.values()) == counts.us_in
    n_dropped = counts.pieces_rejected["max_samples"]
    assert n_dropped == len(everything) - len(drawn[2])
    assert sum(line["rule"] == "max_samples" for line in read_rejected(tmp_path / "c")) == n_dropped
    write_timestamps(tmp_path / "c" / "seglst", tmp_path / "words")
    pieces = manifest.read(tmp_path / "c" / "asr" / "train.jsonl")
    timed = [replace(piece, seglst_path=tmp_path / "words" / f"{piece.audio_path.stem}.json") for piece in pieces]
    assert counts.words_out == serialize_sessions(timed)[1].words
    assert summary.outputs["diar"] == all_of_them.outputs["diar"]  # the diarizer learns from all
    with pytest.raises(ValueError, match=r"max_samples.fisher must be 1 or more, got 0"):
        replace(options, max_samples={"fisher": 0})
