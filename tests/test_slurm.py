"""What can be known about Slurm jobs without a Slurm; tests/slurm has the others."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from sortk import cli
from sortk.recipe import load_recipe
from sortk.run.folders import Folder
from sortk.slurm.arrays import Call, cut_missing
from sortk.slurm.jobs import StageJob, describe_jobs, find_reason, write_script
from sortk.slurm.options import ClusterOptions, JobOptions
from sortk.slurm.queue import read_queue


@given(st.sets(st.integers(0, 50)), st.integers(0, 50), st.integers(1, 20))
def test_what_is_missing_is_cut_into_spans_that_cover_it_once(edges: set[int], n_items: int, size: int) -> None:
    cuts = sorted(edge for edge in edges if edge <= n_items)
    taken = list(zip(cuts[::2], cuts[1::2], strict=False))
    found = cut_missing(taken, n_items, size)
    items = [item for start, stop in (*taken, *found) for item in range(start, stop)]
    assert sorted(items) == list(range(n_items))
    assert all(0 < stop - start <= size for start, stop in found)


def test_a_stage_asks_for_what_its_table_says_and_else_for_what_all_jobs_ask() -> None:
    recipe = load_recipe(
        "mini",
        [
            "cluster.partition=cpu",
            "cluster.hours=1.5",
            "cluster.train_diar.partition=gpu",
            "cluster.train_diar.gpus=8",
            "cluster.train_diar.memory_gb=64",
            'cluster.train_diar.sbatch=["--constraint=a100", "--exclusive"]',
        ],
    )
    assert recipe.cluster.of_stage("simulate").flags() == {"partition": "cpu", "time": "90"}
    assert recipe.cluster.of_stage("train-diar").flags() == {
        "partition": "gpu",
        "time": "90",
        "gpus-per-node": "8",
        "mem": "65536M",
        "constraint": "a100",
        "exclusive": True,
    }


def test_every_stage_has_a_table_and_config_prints_it() -> None:
    from sortk.options import format_options, read_options
    from sortk.stages import STAGES

    for stage in STAGES:
        table = stage.name.replace("-", "_")
        recipe = load_recipe("mini", ["cluster.partition=cpu", f"cluster.{table}.partition=gpu"])
        assert recipe.cluster.of_stage(stage.name) == JobOptions(partition="gpu")
        assert ClusterOptions(partition="cpu").of_stage(stage.name) == JobOptions(partition="cpu")
        printed = tomllib.loads(format_options(recipe.cluster, "cluster").join(("[cluster]\n", "")))
        assert read_options(ClusterOptions, printed["cluster"], "printed") == recipe.cluster


def test_the_users_own_file_has_the_defaults_of_all_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    defaults = tmp_path / "sortk" / "cluster.toml"
    defaults.parent.mkdir()
    defaults.write_text('partition = "cpu"\nhours = 2\n[train_diar]\npartition = "gpu"\ngpus = 4\n', encoding="utf-8")
    own = tmp_path / "recipe.toml"
    own.write_text("[cluster]\nhours = 9\n[cluster.train_diar]\ngpus = 8\n", encoding="utf-8")
    cluster = load_recipe(str(own)).cluster  # the recipe goes on top, key by key
    assert cluster.of_stage("simulate") == JobOptions(partition="cpu", hours=9)
    assert cluster.of_stage("train-diar") == JobOptions(partition="gpu", hours=9, gpus=8)
    assert load_recipe("mini", ["cluster.partition=new"]).cluster.of_stage("sst").partition == "new"
    for wrong, sentence in (
        ("partitoin = 1\n", "unknown key 'partitoin'; did you mean 'partition'"),
        ("[trian_diar]\n", "unknown key 'trian_diar'; did you mean 'train_diar'"),
        ("hours = 0\n", "hours must be more than 0"),
    ):
        defaults.write_text(wrong, encoding="utf-8")
        with pytest.raises(ValueError, match=rf"sortk/cluster\.toml: cluster: {sentence}"):
            load_recipe("mini")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("cluster.partitoin=x", "unknown key 'partitoin'; did you mean 'partition'"),
        ("cluster.train_dair.gpus=1", "unknown key 'train_dair'; did you mean 'train_diar'"),
        ("cluster.tables.gpus=1", "unknown key 'tables'; keys: clean, prepare, "),
        ("cluster.nodes=0", "nodes must be more than 0 and at most 1000000000, got 0"),
        ("cluster.hours=1e308", "hours must be more than 0 and at most 1000000000, got 1e+308"),
        ('cluster.tune.sbatch=["exclusive"]', "'exclusive' is not an option of sbatch"),
    ],
)
def test_a_wrong_table_is_one_sentence(setting: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        load_recipe("mini", [setting])


def test_where_jobs_run_changes_no_stage() -> None:
    from sortk.run.experiment import Experiment
    from sortk.stages import STAGES

    keys = [
        [experiment.identity(stage).key for stage in experiment.stages]
        for settings in ([], ["cluster.partition=gpu", "cluster.train_diar.nodes=8"])
        for experiment in [Experiment(STAGES, load_recipe("mini", settings), Path("exp"))]
    ]
    assert keys[0] == keys[1]


def make_job(folder: Path, options: JobOptions, trains: bool) -> StageJob:
    command = ["/usr/bin/python", "-m", "sortk", "stage", "5", "--set", "a.b='c d'"]
    return StageJob("stage 5 (train-diar)", Folder(folder / "05-train-diar"), command, options, trains)


def test_the_script_of_a_training_starts_torchrun_on_each_node(tmp_path: Path) -> None:
    options = JobOptions(partition="gpu", gpus=8, nodes=4, cpus=6)
    script = write_script(make_job(tmp_path, options, trains=True))
    for line in ("--nodes=4", "--ntasks-per-node=1", "--gpus-per-node=8", "--cpus-per-task=48", "--partition=gpu"):
        assert f"#SBATCH {line}\n" in script
    assert "--nproc-per-node=8 -m " in script
    assert "\nexport OMP_NUM_THREADS=${OMP_NUM_THREADS:-6}\n" in script  # measured anew, it would change the last bits
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_the_job_that_waits_for_shards_takes_no_gpu(tmp_path: Path) -> None:
    script = write_script(make_job(tmp_path, JobOptions(gpus=1, hours=2), trains=False))
    assert "gpus" not in script
    assert "#SBATCH --time=120\n" in script
    assert "torch" not in script
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_the_reason_of_a_failure_is_sortks_own_sentence(tmp_path: Path) -> None:
    job = make_job(tmp_path, JobOptions(), trains=False)
    assert find_reason(job) == "it was never started"
    job.log.parent.mkdir()
    job.log.write_text("one\nsortk: the disk is full\nslurmstepd: error: exit 1\n\n", encoding="utf-8")
    assert find_reason(job) == "the disk is full"


SQUEUE = """#!/bin/sh
echo '12_0|RUNNING|/exp/01-simulate'
echo '12_1|PENDING|/exp/01-simulate'
echo '13|PENDING|a|b'
echo 'not a job'
"""


def test_the_queue_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "squeue").write_text(SQUEUE, encoding="utf-8")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    queue = read_queue()
    assert {job_id: job.state for job_id, job in queue.items()} == {
        "12_0": "RUNNING",
        "12_1": "PENDING",
        "13": "PENDING",
    }
    assert queue["13"].folder == "a|b"


def test_a_stage_is_described_by_its_jobs_and_its_shards(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "01-simulate")
    call = Call(folder.jobs / "make-0123")
    call.folder.mkdir(parents=True)
    call.results((0, 5)).touch()
    call.submission((5, 9)).write_text('{"job_id": "12_1", "attempts": 3}', encoding="utf-8")
    assert describe_jobs([], folder) == "0 pending, 0 running, 1 done, 2 failed"
    assert call.title == "make"
    assert call.spans(".results") == [(0, 5)]


def test_without_slurm_the_command_says_so_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    line = ["run", "--recipe", "mini", "--variant", "debug", "--exp", str(tmp_path / "exp"), "--cluster", "slurm"]
    finished = CliRunner().invoke(cli.main, line)
    assert finished.exit_code == 1
    assert finished.output.count("\n") == 1
    assert "there is no Slurm on this machine" in finished.output
    assert not (tmp_path / "exp").exists()
