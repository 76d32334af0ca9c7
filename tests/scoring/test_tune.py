"""Tuning: what was spoilt in a known way is found again; studies survive kills, company and damage."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from click.testing import CliRunner, Result
from nemo_models import random_sortformer
from optuna import get_all_study_names, load_study
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from sortk.cli import main
from sortk.formats import manifest, rttm
from sortk.formats.files import FormatError
from sortk.formats.model_folder import save_model
from sortk.formats.postprocess import PRESETS, Postprocess, read_postprocess
from sortk.inference.postprocess import find_segments, name_segments
from sortk.models.fastconformer import FastConformerOptions
from sortk.models.features import FeatureOptions
from sortk.models.sortformer import SortformerOptions
from sortk.models.transformer import TransformerOptions
from sortk.records import Region, Segment, Session
from sortk.scoring.der import score_der
from sortk.scoring.intervals import DerOptions
from sortk.scoring.tune import (
    SPACE,
    Objective,
    Term,
    TuneOptions,
    TuneSet,
    check_development,
    check_not_scored,
    read_tune_set,
    tune,
    write_tuned,
)

N_FRAMES = 750  # a minute
TINY = SortformerOptions(
    features=FeatureOptions(n_mels=40),
    encoder=FastConformerOptions(d_model=16, n_layers=1, n_heads=2, subsampling_channels=8),
    transformer=TransformerOptions(d_model=16, n_layers=1, n_heads=2, d_inner=16),
    n_speakers=3,
)


def make_session(seed: int) -> tuple[list[Segment], np.ndarray]:
    """Two speakers on the grid of frames, and posteriors that were spoilt.

    Speech is 0.3 and silence 0.1, so that one half finds nothing; single frames of silence are 0.9 (spikes), and single
    frames of speech are 0.02 (gaps).
    """
    rng = np.random.default_rng(seed)
    speaks = np.zeros((N_FRAMES, 2), bool)
    for speaker in range(2):
        frame = int(rng.integers(0, 40))
        while frame < N_FRAMES - 60:
            length = int(rng.integers(12, 60))
            speaks[frame : frame + length, speaker] = True
            frame += length + int(rng.integers(12, 60))
    segments = name_segments("s", find_segments(speaks.astype(np.float32), Postprocess()))
    probs = np.where(speaks, 0.3, 0.1) + rng.normal(0, 0.02, speaks.shape)
    chance = rng.random(speaks.shape)
    probs[(chance < 0.01) & ~speaks] = 0.9
    probs[(chance > 0.98) & speaks] = 0.02
    return segments, np.clip(probs, 0, 1).astype(np.float32)


def make_set(n_sessions: int = 3) -> TuneSet:
    sessions = {f"s{seed}": make_session(seed) for seed in range(n_sessions)}
    return TuneSet(
        {name: probs for name, (_, probs) in sessions.items()}, {name: own for name, (own, _) in sessions.items()}
    )


@pytest.fixture(scope="module")
def data() -> TuneSet:
    return make_set()


def test_what_was_spoilt_is_recovered(data: TuneSet, tmp_path: Path) -> None:
    tuned = tune(data, TuneOptions(trials=60), 0, tmp_path / "study.log")
    assert tuned.der_before > 0.9  # unspoilt posteriors have no errors
    assert tuned.der_after < 0.05 * tuned.der_before
    assert tuned.der_after <= min(tuned.presets.values())
    assert [number for number, _ in tuned.history] == list(range(60))
    assert tuned.importance.keys() == SPACE.keys() and sum(tuned.importance.values()) == pytest.approx(1)


def test_the_objective_is_the_der_of_the_segments(data: TuneSet) -> None:
    for preset in [*PRESETS.values(), Postprocess(0.2, 0.15, 0.05, 0.05, 0.3, 0.2)]:
        hypotheses = {
            name: name_segments(name, find_segments(probs, preset)) for name, probs in data.posteriors.items()
        }
        exact, forgiving = (
            score_der(data.references, hypotheses, None, options).overall.der
            for options in (DerOptions(0.0), DerOptions(0.25, skip_overlap=True))
        )
        assert Objective(data, [Term(0.0)])(preset) == pytest.approx(exact, abs=1e-9)
        terms = [Term(0.0, weight=3), Term(0.25, skip_overlap=True, weight=1)]
        assert Objective(data, terms)(preset) == pytest.approx((3 * exact + forgiving) / 4, abs=1e-9)


def test_presets_are_in_the_space_and_tried_first(data: TuneSet, tmp_path: Path) -> None:
    for preset in PRESETS.values():
        assert all(low <= getattr(preset, name) <= high for name, (low, high) in SPACE.items())
    tuned = tune(data, TuneOptions(trials=3), 0, tmp_path / "study.log")
    assert [der for _, der in tuned.history] == pytest.approx(list(tuned.presets.values()))


def test_a_study_goes_on_as_if_it_had_not_been_stopped(data: TuneSet, tmp_path: Path) -> None:
    whole = tune(data, TuneOptions(trials=20), 0, tmp_path / "whole.log")
    first = tune(data, TuneOptions(trials=12), 0, tmp_path / "parts.log")
    both = tune(data, TuneOptions(trials=20), 0, tmp_path / "parts.log")
    assert both.history[:12] == first.history
    assert both == whole
    n_bytes = (tmp_path / "parts.log").stat().st_size
    assert tune(data, TuneOptions(trials=16), 0, tmp_path / "parts.log") == whole  # nothing is left to do
    assert (tmp_path / "parts.log").stat().st_size - n_bytes < 300
    assert tune(data, TuneOptions(trials=20), 1, tmp_path / "other.log").history != whole.history


@pytest.mark.parametrize("n_before", [1, 2, 5, 11])
def test_a_killed_trial_is_done_again_in_its_place(data: TuneSet, tmp_path: Path, n_before: int) -> None:
    whole = tune(data, TuneOptions(trials=14), 0, tmp_path / "whole.log")
    path = tmp_path / "parts.log"
    tune(data, TuneOptions(trials=n_before), 0, path)
    storage = JournalStorage(JournalFileBackend(str(path)))
    [name] = get_all_study_names(storage)
    for _ in range(2):  # killed, and killed again, in the middle of suggesting values
        load_study(study_name=name, storage=storage).ask().suggest_float("onset", *SPACE["onset"])
    assert tune(data, TuneOptions(trials=14), 0, path) == whole


def test_trials_of_other_tasks_do_not_mix(data: TuneSet, tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    tune(data, TuneOptions(trials=5), 0, path)
    assert len(tune(data, TuneOptions(trials=4, objective=(Term(0.0),)), 0, path).history) == 4
    assert len(tune(make_set(2), TuneOptions(trials=4), 0, path).history) == 4


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (lambda lines: [*lines[:3], b"garbage\n", *lines[3:]], 4),
        (lambda lines: [*lines[:2], lines[2][:20] + b"\n", *lines[3:]], 3),
        (lambda lines: [b"\x00\xff\x80 no journal"], 1),
        (lambda lines: [b"[1, 2]\n"], 1),
    ],
)
def test_a_damaged_journal_is_one_sentence(data: TuneSet, tmp_path: Path, damage: object, line: int) -> None:
    path = tmp_path / "study.log"
    tune(data, TuneOptions(trials=4), 0, path)
    path.write_bytes(b"".join(damage(path.read_bytes().splitlines(keepends=True))))  # type: ignore[operator]
    with pytest.raises(
        FormatError, match=f"study.log, line {line}: is not an entry of Optuna's journal; move the file away"
    ):
        tune(data, TuneOptions(trials=5), 0, path)


def test_a_journal_of_nonsense_operations_is_one_sentence(data: TuneSet, tmp_path: Path) -> None:
    (tmp_path / "study.log").write_text('{"op_code": 4, "worker_id": "x"}\n')
    with pytest.raises(FormatError, match="study.log: is not a journal of Optuna"):
        tune(data, TuneOptions(trials=5), 0, tmp_path / "study.log")


def test_an_entry_that_was_being_written_is_cut_off(data: TuneSet, tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    first = tune(data, TuneOptions(trials=6), 0, path)
    # The machine stopped; or the disk was full, and a shorter entry follows in the same line.
    for torn in (
        b'{"op_code":4,"worker',
        b'{"op',
        b'{"op_code":4,"wor{"op_code":6}\n',
        b'{{"op_code":6}\n',
    ):
        with path.open("ab") as file:
            file.write(torn)
        assert tune(data, TuneOptions(trials=8), 0, path).history[:6] == first.history


def test_a_database_by_its_url(data: TuneSet, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/study.db"
    tuned = tune(data, TuneOptions(trials=4, storage=url), 0, tmp_path / "unused.log")
    assert len(tuned.history) == 4 and not (tmp_path / "unused.log").exists()
    assert tune(data, TuneOptions(trials=4, storage=url), 0, tmp_path / "unused.log") == tuned
    with pytest.raises(OSError, match="--storage: the nosuch database cannot be opened") as error:
        tune(data, TuneOptions(storage="nosuch://user:secret@host/db"), 0, tmp_path / "unused.log")
    assert "secret" not in str(error.value)


def test_a_database_is_closed(data: TuneSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """sqlite3 warns of connections that are left open, since Python 3.13."""
    engines = []
    create = RDBStorage.__init__

    def remember(storage: RDBStorage, *args: Any, **options: Any) -> None:
        create(storage, *args, **options)
        engines.append(storage.engine)

    monkeypatch.setattr(RDBStorage, "__init__", remember)
    tune(data, TuneOptions(trials=2, storage=f"sqlite:///{tmp_path}/study.db"), 0, tmp_path / "unused.log")
    assert [engine.pool.checkedin() + engine.pool.checkedout() for engine in engines] == [0]


def test_the_result_is_written(data: TuneSet, tmp_path: Path) -> None:
    options = TuneOptions(trials=6)
    tuned = tune(data, options, 0, tmp_path / "study.log")
    write_tuned(tmp_path / "postprocess.toml", tuned, options, 0)
    assert read_postprocess(tmp_path / "postprocess.toml") == tuned.postprocess
    text = (tmp_path / "postprocess.toml").read_text()
    assert f"der_before = {tuned.der_before}\nder_after = {tuned.der_after}\ntrials = 6\n" in text
    study = json.loads((tmp_path / "postprocess.json").read_text())
    assert len(study["history"]) == 6 and study["history"][0] == {"trial": 0, "der": tuned.presets["none"]}
    assert study["importance"].keys() == SPACE.keys()


def test_options_and_sets_are_checked(data: TuneSet, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="trials must be at least 1, not 0"):
        TuneOptions(trials=0)
    with pytest.raises(ValueError, match="weight must be more than 0, not -1"):
        Term(weight=-1)
    with pytest.raises(ValueError, match=r"of the same sessions; 2 sessions \(s1, s2\) differ"):
        TuneSet(data.posteriors, {"s0": []})
    with pytest.raises(ValueError, match="there are no sessions to tune on"):
        TuneSet({}, {})
    with pytest.raises(ValueError, match=r"set \(3 sessions, 0\.0 s of speech\) has nothing left to score"):
        Objective(TuneSet(data.posteriors, {name: [] for name in data.posteriors}), [Term()])


def test_a_development_set_without_scorable_speech_is_refused_before_training(tmp_path: Path) -> None:
    """0.4 s of speech are all inside collars of 0.25 s, but not inside those of 0.1 s."""
    rttm.write(tmp_path / "a.rttm", [Segment("a", "x", 1.0, 1.4)])
    session = Session("a", tmp_path / "a.wav", duration=5.0, rttm_path=tmp_path / "a.rttm")
    check_development([session], [Term(0.1)])
    sentence = (
        r"the development set \(1 session, 0\.4 s of speech\) has nothing left to score after a collar of 0\.25 s; "
        r"give more sessions .*prepare\.valid_fraction.* or a smaller score\.collar"
    )
    with pytest.raises(ValueError, match=sentence):
        check_development([session], [Term(0.25)])


def test_tuning_on_few_sessions_warns(data: TuneSet, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tune(data, TuneOptions(trials=1), 0, tmp_path / "study.log")
    assert "tuning on 3 development sessions: the tuned values may not carry over" in caplog.text


# ---------------------------------------------------------------------------------------------------------------------
# Files and processes


@pytest.fixture
def files(data: TuneSet, tmp_path: Path) -> Path:
    """dev.jsonl, probs/ and rttm/."""
    sessions = []
    for name, probs in data.posteriors.items():
        rttm_path = tmp_path / "rttm" / f"{name}.rttm"
        rttm.write(rttm_path, [Segment(name, part.speaker, part.start, part.end) for part in data.references[name]])
        (tmp_path / "probs").mkdir(exist_ok=True)
        np.save(tmp_path / "probs" / f"{name}.npy", probs.astype(np.float16))
        sessions.append(Session(name, tmp_path / f"{name}.wav", N_FRAMES * 0.08, rttm_path=rttm_path))
    manifest.write(tmp_path / "dev.jsonl", sessions)
    return tmp_path


def arguments(files: Path, *more: object) -> list[str]:
    paths = ("--probs", files / "probs", "--manifest", files / "dev.jsonl", "--out", files / "postprocess.toml")
    return ["tune", *map(str, paths), *map(str, more)]


def run(files: Path, *more: object) -> Result:
    return CliRunner().invoke(main, arguments(files, *more))


def start(files: Path, *more: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sortk", *arguments(files, *more)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


def count_trials(files: Path) -> int:
    return len(json.loads((files / "postprocess.json").read_text())["history"])


def test_command(files: Path) -> None:
    result = run(files, "--trials", 5, "--collar", 0.1, "--set", "storage=")
    assert result.exit_code == 0, result.output
    assert "preset callhome  DER" in result.stderr and "5 trials" in result.stderr and result.stdout == ""
    text = (files / "postprocess.toml").read_text()
    assert r"\"collar\": 0.1" in text
    weighted = "objective=[{collar=0.0}, {collar=0.25, weight=2, skip_overlap=true}]"
    assert run(files, "--trials", 4, "--set", weighted).exit_code == 0
    assert count_trials(files) == 4
    described = " ".join(run(files, "--help").stdout.split())
    assert f"[default: {TuneOptions().trials}]" in described and f"[default: {Term().collar}]" in described
    result = run(files, "--model", files / "probs")
    assert result.exit_code == 2, result.output
    (files / "probs" / "s1.npy").unlink()
    result = run(files)
    assert result.exit_code == 1 and "no posteriors of session s1" in result.stderr


def test_a_pipe_has_no_study_beside_it(files: Path) -> None:
    before = set(files.iterdir())
    os.mkfifo(files / "pipe")
    result = CliRunner().invoke(main, [*arguments(files)[:-1], str(files / "pipe")])
    assert result.exit_code == 1 and "pipe is not a file; the study is kept beside --out" in result.stderr
    assert set(files.iterdir()) == before | {files / "pipe"}


def test_a_file_of_the_users_own_beside_the_result_stays(files: Path) -> None:
    by_hand = files / "postprocess.json"
    by_hand.write_text('{"values": "by hand"}')
    result = run(files, "--trials", 1)
    assert result.exit_code == 1 and "postprocess.json exists and is not the history of a search" in result.stderr
    assert by_hand.read_text() == '{"values": "by hand"}' and not (files / "postprocess.toml").exists()
    assert run(files, "--trials", 1, "--force").exit_code == 0
    assert run(files, "--trials", 2).exit_code == 0 and count_trials(files) == 2


def test_a_model_is_heard_once(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_sortformer(TINY)
    save_model(files / "model", model.state_dict(), {"model": "sortformer", "options": TINY.to_json()})
    for name in ("s0", "s1", "s2"):
        samples = np.random.default_rng(0).normal(0, 0.1, round(N_FRAMES * 0.08 * 16000))
        soundfile.write(files / f"{name}.wav", samples, 16000)
    command = ["tune", "--model", str(files / "model"), "--manifest", str(files / "dev.jsonl")]
    command += ["--out", str(files / "tuned.toml"), "--trials", "4"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    [cache] = files.glob("tuned.probs-*")
    assert np.load(cache / "s0.npy").shape == (N_FRAMES, TINY.n_speakers)
    first = (files / "tuned.toml").read_text()
    monkeypatch.setattr("sortk.inference.diarize.load", None)  # it is not needed again
    assert CliRunner().invoke(main, command).exit_code == 0 and (files / "tuned.toml").read_text() == first


def finished_by(journal: Path) -> Counter[str]:
    """How many trials each process has finished."""
    lines = journal.read_bytes().splitlines(keepends=True) if journal.exists() else []
    entries = [json.loads(line) for line in lines if line.endswith(b"\n")]  # the last one may be half written
    return Counter(entry["worker_id"] for entry in entries if entry["op_code"] == 6 and entry["state"] == 1)


def test_two_processes_share_a_study_and_a_third_goes_on_after_their_death(files: Path) -> None:
    journal = files / "postprocess.study.log"
    searches = [start(files, "--trials", 100000) for _ in range(2)]
    while all(search.poll() is None for search in searches):
        found = finished_by(journal)
        if len(found) == 2 and min(found.values()) >= 5:
            break
        time.sleep(0.02)
    for search in searches:
        search.send_signal(signal.SIGKILL)
        search.communicate()
    found = finished_by(journal)
    n_finished = found.total()
    assert len(found) == 2 and min(found.values()) >= 5
    result = run(files, "--trials", n_finished + 3)
    assert result.exit_code == 0 and f"the study has {n_finished} finished trials" in result.stderr
    history = json.loads((files / "postprocess.json").read_text())["history"]
    assert len(history) == len({trial["trial"] for trial in history}) == n_finished + 3
    # Processes of one seed try different settings: only the presets may have been tried by both.
    tried = [tuple(trial.params.values()) for trial in load_trials(journal)]
    assert len(set(tried)) >= len(tried) - len(PRESETS)


def load_trials(journal: Path) -> list[FrozenTrial]:
    storage = JournalStorage(JournalFileBackend(str(journal)))
    [name] = get_all_study_names(storage)
    return load_study(study_name=name, storage=storage).get_trials(states=[TrialState.COMPLETE])


def test_windows_and_uem(files: Path, data: TuneSet) -> None:
    [first, *_] = manifest.read(files / "dev.jsonl")
    uem_path = files / "all.uem"
    uem_path.write_text("s0 1 0 30\n")
    window = Session("w", files / "s0.wav", 40.0, 16.0, rttm_path=first.rttm_path, uem_path=uem_path)
    found = read_tune_set([window], files / "probs")
    np.testing.assert_array_equal(found.posteriors["w"], np.load(files / "probs" / "s0.npy")[200:700])
    assert found.uem == {"w": [Region("w", 0.0, 14.0)]}
    inside = [part for part in data.references["s0"] if part.end > 16.0 and part.start < 56.0]
    assert len(found.references["w"]) == len(inside)
    assert found.references["w"][0].start == max(0.0, round(inside[0].start - 16.0, 6))
    with pytest.raises(FormatError, match=r"750 frames cover 60.00 s, but the session lasts 90.00 s"):
        read_tune_set([Session("s0", files / "s0.wav", 90.0, rttm_path=first.rttm_path)], files / "probs")
    with pytest.raises(ValueError, match=r"names no RTTM, SegLST or CTM of 1 session \(s0\)"):
        read_tune_set([Session("s0", files / "s0.wav", 60.0)], files / "probs")


def test_tuning_on_what_is_scored_is_told() -> None:
    tuned = [Session("a", Path("a.wav"), 30.0), Session("b1", Path("b.wav"), 30.0, 0.0)]
    check_not_scored(tuned, [Session("c", Path("c.wav")), Session("b2", Path("b.wav"), 30.0, 30.0)])
    with pytest.raises(ValueError, match=r"tuned on what is scored: 2 sessions \(a, b3\) in both sets"):
        check_not_scored(tuned, [Session("a", Path("./a.wav")), Session("b3", Path("b.wav"), 30.0, 20.0)])
