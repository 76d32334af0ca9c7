"""Recipes, folders and unfinished experiments of others: no code of theirs runs, and nothing is written elsewhere."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tiny_recipe import STAGES as TINY
from tiny_recipe import sortk

from sortk.cli import main
from sortk.options import format_options
from sortk.prepare.simulate import SimulateOptions
from sortk.recipe import load_recipe
from sortk.records import Segment, Session
from sortk.report.curves import read_simulation
from sortk.run.experiment import Experiment
from sortk.run.folders import Folder, settings_of
from sortk.run.tables import place_results
from sortk.slurm.arrays import Call, Shard
from sortk.slurm.jobs import StageJob, submit_stages, write_script
from sortk.slurm.options import JobOptions
from sortk.stages import STAGES


@pytest.mark.parametrize(
    "table",
    ['partition = "x\\ntouch MARKER\\n#"', 'account = "x\\ry"', 'sbatch = ["--comment2\\ntouch MARKER\\n#x"]'],
)
@pytest.mark.parametrize("head", ["[cluster]", "[cluster.prepare]"])
def test_no_setting_of_a_cluster_is_a_command(tmp_path: Path, table: str, head: str) -> None:
    recipe = tmp_path / "evil.toml"
    recipe.write_text(f"{head}\n{table}\n")
    result = sortk("stage", 0, "--recipe", recipe, "--cluster", "slurm")
    assert result.exit_code == 1 and "holds a line break or a control character" in result.output


PLANTED = """import os
open(os.environ["MARKER"], "a").write(__name__ + " was imported\\n")
raise SystemExit(1)
"""


def test_workers_import_nothing_from_the_current_folder(tmp_path: Path) -> None:
    """signal.py is of the standard library, and one of the first that a worker imports."""
    data, program = tmp_path / "data", tmp_path / "bin" / "sortk"
    for folder in (data, program.parent):
        folder.mkdir()
    program.write_text("if __name__ == '__main__':\n    from sortk.cli import main\n    main()\n")
    for name in ("signal.py", "sortk.py", "numpy.py"):
        (data / name).write_text(PLANTED)
    for name in ("a", "b"):
        entry = {"session_id": name, "speaker": "x", "start_time": 0.0, "end_time": 1.0, "words": "so here we go"}
        (data / f"{name}.json").write_text(json.dumps([entry]))
    environment = {**os.environ, "MARKER": str(tmp_path / "MARKER")}
    environment.pop("PYTHONSAFEPATH", None)
    command = [sys.executable, program, "timestamps", "--seglst", ".", "--out", "out", "--nj", "2"]
    ended = subprocess.run(command, cwd=data, env=environment, check=False, capture_output=True, text=True)
    assert not (tmp_path / "MARKER").exists() and (data / "out" / "a.json").exists(), ended.stderr


def test_python_m_imports_nothing_from_the_current_folder(tmp_path: Path) -> None:
    for name in ("signal.py", "dataclasses.py", "numpy.py", "click.py"):
        (tmp_path / name).write_text(PLANTED)
    environment = {**os.environ, "MARKER": str(tmp_path / "MARKER")}
    environment.pop("PYTHONSAFEPATH", None)
    command = [sys.executable, "-m", "sortk", "--version"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)
    assert not (tmp_path / "MARKER").exists() and ended.stdout.startswith("sortk "), ended.stderr


def test_the_job_of_a_stage_imports_nothing_from_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "signal.py").write_text(PLANTED)
    command = [sys.executable, "-m", "sortk", "--version"]
    script = write_script(StageJob("stage 0", Folder(tmp_path / "00-prepare"), command, JobOptions(), trains=False))
    environment = {**os.environ, "MARKER": str(tmp_path / "MARKER")}
    environment.pop("PYTHONSAFEPATH", None)
    subprocess.run(["bash"], input=script, cwd=tmp_path, env=environment, text=True, check=True, capture_output=True)
    assert not (tmp_path / "MARKER").exists()


class Planted:
    def __init__(self, call: Any, *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call, self.arguments


class CalledShard(Planted):
    """`Shard(...)()` would load a pickle that lies anywhere."""

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.arguments[0], ()


def double(item: int) -> int:
    return 2 * item


def test_results_that_are_code_are_not_run(tmp_path: Path) -> None:
    marker, call = tmp_path / "MARKER", Call(tmp_path / "jobs" / "double-0123")
    content = pickle.dumps((os.system, [f"touch {marker}"]))
    call.open(content)
    shard = Shard(call, sha256(content).hexdigest(), (0, 1), None)
    for planted in (
        Planted(os.system, f"touch {marker}"),
        Planted(partial, os.system, f"touch {marker}"),
        Planted(eval, f"open({str(marker)!r}, 'w')"),
        Planted(subprocess.run, ["touch", str(marker)]),
        Planted(shutil.copy, "/etc/hostname", str(marker)),
        CalledShard(None, shard),
    ):
        call.results((0, 1)).write_bytes(pickle.dumps([planted]))
        with pytest.raises(ValueError, match=r"00000000-00000001\.results is not a file of results"):
            list(call.read_results())
    assert not marker.exists()


def test_a_shard_runs_what_was_submitted_and_nothing_else(tmp_path: Path) -> None:
    call, content = Call(tmp_path / "double-0123"), pickle.dumps((double, [1, 2, 3]))
    call.open(content)
    shard = Shard(call, sha256(content).hexdigest(), (1, 3), None)
    shard()
    assert list(call.read_results()) == [4, 6]
    call.content.write_bytes(pickle.dumps((os.system, ["touch MARKER"] * 3)))
    with pytest.raises(OSError, match=r"call\.pickle was changed after this job was submitted"):
        shard()


def through_results(work: Any, items: Sequence[Any], folder: Path) -> Iterator[Any]:
    """RunJobs whose results go through files as those of a shard do."""
    call = Call(folder)
    folder.mkdir(exist_ok=True)
    for item in items:
        call.results((0, 1)).write_bytes(pickle.dumps([work(item)]))
        [result] = call.read_results()
        yield result


def test_all_that_stages_hand_back_is_data(tmp_path: Path) -> None:
    recipe_path = tmp_path / "recipe.toml"
    recipe_path.write_text(TINY)
    experiment = Experiment(STAGES, load_recipe(str(recipe_path)), tmp_path / "exp")
    for stage in STAGES[:5]:
        experiment.run(stage, partial(through_results, folder=tmp_path / "jobs"))
    assert (tmp_path / "exp" / "04-sst" / "train.jsonl").exists()


def test_sessions_segments_and_arrays_come_back_from_a_shard(tmp_path: Path) -> None:
    found = [
        Session("a", Path("a.wav"), 1.0),
        [Segment("a", "x", 0.0, 1.0)],
        {"probs": np.eye(3, dtype=np.float16), "scalar": np.float32(2)},
        {1, 2},
        None,
    ]
    call = Call(tmp_path)
    call.results((0, 5)).write_bytes(pickle.dumps(found))
    back = list(call.read_results())
    assert back[:2] == found[:2] and back[3:] == found[3:]
    assert np.array_equal(back[2]["probs"], np.eye(3)) and back[2]["scalar"] == 2


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('name = "/tmp/elsewhere"', "name '/tmp/elsewhere' cannot be the name of a file"),
        ('name = "../../x"', "name '../../x' cannot be the name of a file"),
        ('[simulate.hours]\n"../../../x" = 0.01', "set '../../../x' cannot be the name of a file"),
        ('[simulate.mixtures]\n"a/b" = 1', "set 'a/b' cannot be the name of a file"),
        ('[[train_diar.phases]]\nname = "../x"', "'../x' cannot be the name of a phase"),
        ('[[prepare.corpora]]\ncorpus = "ami"\nsets = { dev = "../x" }', "a set cannot be called '../x'"),
    ],
)
def test_a_recipe_writes_into_its_own_folders_only(tmp_path: Path, text: str, what: str) -> None:
    recipe = tmp_path / "evil.toml"
    recipe.write_text(text)
    result = sortk("status", "--recipe", recipe)
    assert result.exit_code == 1 and what in result.output


def test_the_name_of_a_variant_is_one_folder(tmp_path: Path) -> None:
    recipe = tmp_path / "evil.toml"
    recipe.write_text('[variants."../../x".simulate]\noverlap = 0.1\n')
    with pytest.raises(ValueError, match=r"variant '../../x' cannot be the name of a file"):
        load_recipe(str(recipe), variant="../../x")


def test_the_password_of_a_database_is_written_nowhere(tmp_path: Path) -> None:
    secret = "tune.storage=postgresql://bob:HUNTER2@host/db"
    plain, shared = (Experiment(STAGES, load_recipe("mini", overrides), tmp_path) for overrides in ([], [secret]))
    tune = STAGES[7]
    assert plain.identity(tune).key == shared.identity(tune).key
    assert "HUNTER2" not in json.dumps(shared.identity(tune).marker())
    assert "HUNTER2" not in json.dumps(settings_of(shared.recipe.tune))  # what stage 8 writes of the settings
    assert shared.recipe.tune.storage.endswith("HUNTER2@host/db")
    printed = CliRunner().invoke(main, ["config", "--recipe", "mini", "--set", secret]).output
    assert "HUNTER2" not in printed and "# storage is set, but not shown" in printed
    assert 'storage = ""' in format_options(plain.recipe.tune)
    old = {"settings": {"tune": {"storage": "postgresql://bob:HUNTER2@host/db"}}}
    assert "HUNTER2" not in "".join(plain.identity(tune).changes_since(old))


def test_settings_from_a_device_without_an_end(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    (tmp_path / "zeros.toml").symlink_to("/dev/zero")
    common = ("--train", tmp_path / "a.jsonl", "--valid", tmp_path / "a.jsonl", "--out", tmp_path / "out")
    result = sortk("train-diar", *common, "--config", tmp_path / "zeros.toml")
    assert result.exit_code == 1 and "zeros.toml: is a device, not a file" in result.output


def test_an_input_is_not_replaced_by_a_page_or_scores(tmp_path: Path) -> None:
    ref = tmp_path / "ref.rttm"
    ref.write_text("SPEAKER s 1 0 5 <NA> <NA> a <NA> <NA>\n")
    (tmp_path / "link").symlink_to("ref.rttm")
    hyp = tmp_path / "hyp.rttm"
    shutil.copy(ref, hyp)
    files = ("--ref", ref, "--hyp", hyp)
    for command in (("report", "--out"), ("score", "der", "--json"), ("score", "cpwer", "--json")):
        result = sortk(*command, tmp_path / "link", *files)
        assert result.exit_code == 1 and "which would be replaced; give another file to write" in result.output
    assert ref.read_text() == hyp.read_text()


def test_a_pipe_in_an_experiment_is_not_read(tmp_path: Path) -> None:
    """Nobody writes into it: a run that reads it never ends."""
    (tmp_path / "out.partial").mkdir()
    os.mkfifo(tmp_path / "out.partial" / ".started.json")
    espeak = ("prepare", "espeak", "--set", "espeak.speakers=6", "--set", "espeak.utterances_per_speaker=1")
    result = sortk(*espeak, "--out", tmp_path / "out")
    assert result.exit_code == 1 and ".started.json is damaged" in result.output


def test_names_of_sets_as_they_are(tmp_path: Path) -> None:
    assert SimulateOptions(hours={"train-2spk": 1.0}).hours == {"train-2spk": 1.0}


def test_nothing_is_written_through_a_link_that_came_with_a_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    thesis = tmp_path / "thesis.tex"
    thesis.write_text("forty pages")
    (tmp_path / "recipe.toml").write_text(TINY)
    (tmp_path / "RESULTS.md").symlink_to(thesis)
    with pytest.raises(ValueError, match=r"RESULTS\.md is a link, which could lead anywhere"):
        place_results(str(tmp_path / "recipe.toml"), None, "")
    job = StageJob("stage 0", Folder(tmp_path / "00-prepare"), ["true"], JobOptions(), trains=False)
    job.script.parent.mkdir()
    for name in ("sbatch", "squeue", "scancel", "scontrol"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    job.script.symlink_to(thesis)
    with pytest.raises(ValueError, match=r"00-prepare\.sbatch is a link, which could lead anywhere"):
        submit_stages([job])
    assert thesis.read_text() == "forty pages"
    job.script.unlink()
    submit_stages([job])
    assert job.script.stat().st_mode & 0o077 == 0  # it holds all settings of the command line


def test_a_folder_beside_the_output_of_sst_stays(tmp_path: Path) -> None:
    entry = {"session_id": "a", "speaker": "x", "start_time": 0.0, "end_time": 1.0, "words": "so"}
    (tmp_path / "a.json").write_text(json.dumps([entry]))
    own = tmp_path / "s.jsonl.partial" / "annotations.rttm"
    own.parent.mkdir()
    own.write_text("by hand")
    result = sortk("sst", "--seglst", tmp_path / "a.json", "--out", tmp_path / "s.jsonl")
    assert result.exit_code == 0 and own.read_text() == "by hand"


def test_a_command_does_not_replace_its_own_input(tmp_path: Path) -> None:
    own, folder, link = tmp_path / "words" / "a.json", tmp_path / "words", tmp_path / "link"
    folder.mkdir()
    own.write_text(json.dumps([{"session_id": "a", "speaker": "x", "start_time": 0, "end_time": 1, "words": "so"}]))
    link.symlink_to(own)
    for command in (
        ("sst", "--seglst", own, "--out", own),
        ("sst", "--seglst", own, "--out", link),
        ("sst", "--seglst", folder, "--out", own),
        ("tune", "--probs", tmp_path, "--manifest", own, "--out", own),
        ("export-onnx", "--model", own, "--out", own),
        ("export-onnx", "--model", folder, "--out", own),
    ):
        result = sortk(*command)
        assert result.exit_code == 1 and "which would be replaced" in result.output, command
        assert "so" in own.read_text()


def test_a_command_does_not_replace_what_its_manifest_names(tmp_path: Path) -> None:
    own, model = tmp_path / "a.rttm", tmp_path / "model"
    own.write_text("SPEAKER a 1 0 5 <NA> <NA> x <NA> <NA>\n")
    line = {"session_id": "a", "audio_filepath": "a.wav", "duration": 5.0, "rttm_filepath": "a.rttm"}
    (tmp_path / "m.jsonl").write_text(json.dumps(line) + "\n")
    model.mkdir()
    (model / "config.json").write_text("{}")
    for command in (
        ("tune", "--probs", tmp_path, "--manifest", tmp_path / "m.jsonl", "--out", own),
        ("tune", "--model", model, "--manifest", tmp_path / "m.jsonl", "--out", model / "config.json"),
        ("convert", tmp_path / "m.jsonl", own, "--to", "stm"),
        ("convert", tmp_path, own, "--to", "stm"),
        ("score", "der", "--ref", tmp_path, "--hyp", tmp_path, "--json", own),
        ("report", "--ref", tmp_path, "--hyp", tmp_path, "--out", own),
    ):
        result = sortk(*command)
        assert result.exit_code == 1 and "which would be replaced" in result.output, (command, result.output)
        assert own.read_text().startswith("SPEAKER") and (model / "config.json").read_text() == "{}"


def test_a_page_does_not_wait_for_a_pipe_in_an_experiment(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.jsonl")
    assert read_simulation(tmp_path) == {"target": {}, "sets": []}
