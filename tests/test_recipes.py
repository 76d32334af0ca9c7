"""The recipes of the paper: all stages of each, on miniatures, as a user runs them; and data of one's own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from click.testing import CliRunner, Result

from sortk.cli import main
from sortk.corpora.audiomnist import DIGITS
from sortk.corpora.miniature import MiniatureMaker
from sortk.formats import manifest, mixlist, rttm
from sortk.formats.posteriors import Probs
from sortk.inference.diarize import load
from sortk.inference.pieces import Piece
from sortk.inference.transcribe import MsAsrTranscriber, load_transcriber
from sortk.recipe import find_recipe, load_recipe, shipped_recipes
from sortk.records import Segment
from sortk.run.tables import TablesRequest, list_first, list_missing, plan_tables, write_tables
from sortk.stages import STAGES
from sortk.training.options import AsrPhaseOptions, BatchLimit

README = Path(__file__).parents[1] / "README.md"
TINY = ('train_diar.size="tiny"', "tune.trials=3", 'train_diar.init=""')


def sortk(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def run(recipe: object, exp: Path, *more: object) -> Result:
    result = sortk("run", "--recipe", recipe, "--exp", exp, *more)
    assert result.exit_code == 0, result.output
    return result


def variants(recipe: str) -> dict[str, object]:
    found: dict[str, object] = tomllib.loads(find_recipe(recipe).read_text(encoding="utf-8")).get("variants", {})
    return found


PEERS = ("EEND-SA", "EEND-EDA", "EEND-GLA-Large", "AED-EEND", "AED-EEND-EE", "EEND-VC")


def scores(exp: Path, variant: str) -> dict[str, list[dict[str, object]]]:
    path = exp / f"variant-{variant}" / "08-score" / "scores.json"
    content: dict[str, list[dict[str, object]]] = json.loads(path.read_text(encoding="utf-8"))
    return content


def count_lines(exp: Path, name: str) -> int:
    return len(manifest.read(exp / "variant-debug" / name))


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_variant_loads_and_every_row_is_one(name: str) -> None:
    known = variants(name)
    for variant in known:
        load_recipe(name, variant=variant)
    tables = load_recipe(name).tables
    rows = [*tables.table1.values(), *tables.table2.values(), *tables.table3.values()]
    assert {part for row in rows for one in row.variants for part in one.split("+")} <= {"", *known}


def test_audiomnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "hunter2-3f9c")
    result = run("audiomnist", tmp_path, "--variant", "debug")
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]  # logs and the report among them
    assert not any(b"hunter2-3f9c" in content for content in [*written, result.output.encode()])
    measured = scores(tmp_path, "debug")
    assert len(measured["der"]) == 2 and len(measured["wer"]) == 2
    texts = [sample.text or "" for sample in manifest.read(tmp_path / "variant-debug" / "04-sst" / "train.jsonl")]
    assert texts and all(set(text.split()) <= {*DIGITS, *(f"<spk{n}>" for n in range(4))} for text in texts)


def words_have_tokens(exp: Path) -> bool:
    """Whether a speaker token stands before every word (section 4.3)."""
    texts = [(sample.text or "").split() for sample in manifest.read(exp / "variant-debug" / "04-sst" / "train.jsonl")]
    return all(
        before.startswith("<spk") and not word.startswith("<")
        for text in texts
        for before, word in zip(text[::2], text[1::2], strict=True)
    )


def check_system3(exp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stage 8 must use the Sortformer that was fine-tuned inside the ASR, and not that of stage 5."""
    used: dict[str, Probs] = {}
    write = MsAsrTranscriber.write

    def watch(self: MsAsrTranscriber, pieces: Sequence[Piece]) -> list[str]:
        used.update({piece.session.session_id: piece.probs for piece in pieces if piece.probs is not None})
        return write(self, pieces)

    monkeypatch.setattr(MsAsrTranscriber, "write", watch)
    run("ami", exp, "--variant", "debug+system3")
    monkeypatch.undo()
    assert scores(exp, "debug+system3")["wer"][0]["system"] == "3: Sortformer, fine-tuned, word level"
    samples = manifest.read(exp / "variant-debug" / "04-sst" / "scored" / "test.jsonl")
    inner = load_transcriber(exp / "variant-debug+system3" / "06-train-asr" / "model", device="cpu").diarizer
    assert inner is not None
    before = load(exp / "variant-debug" / "05-train-diar" / "model", device="cpu")
    for (sample, fine_tuned), (_, as_trained) in zip(
        inner.posteriors_of(samples), before.posteriors_of(samples), strict=True
    ):
        np.testing.assert_array_equal(used[sample.session_id], fine_tuned)
        assert np.abs(fine_tuned - as_trained).max() > 1e-3


def check_refined(exp: Path) -> None:
    """Of the corpora, a diarizer refines those of section 5.1.2, and no others; of Fisher, samples are drawn."""
    samples = manifest.read(exp / "variant-debug" / "02-clean" / "asr" / "train.jsonl")
    assert sum(sample.extra["corpus"] == "fisher" for sample in samples) == 1
    diarizer = f"clean.diarizer={exp / 'variant-debug' / '05-train-diar' / 'model'}"
    shutil.copytree(exp / "variant-debug" / "00-prepare", exp / "refined" / "variant-debug" / "00-prepare")
    run("ami", exp / "refined", "--variant", "debug", "--stop-stage", 2, "--set", diarizer)
    refined = exp / "refined" / "variant-debug"
    by_corpus: dict[object, set[str]] = {}
    for name in ("train", "valid", "test", "ch109"):
        for session in manifest.read(refined / "00-prepare" / f"{name}.jsonl"):
            by_corpus.setdefault(session.extra["corpus"], set()).add(session.session_id)
    heard = {path.stem for path in (refined / "02-clean" / "probs").iterdir()}
    assert heard == by_corpus["ami"] | by_corpus["fisher"] and {"icsi", "dipco", "ch109"} <= by_corpus.keys()


def test_ami(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("ami", tmp_path, "--variant", "debug")
    assert words_have_tokens(tmp_path)
    assert count_lines(tmp_path, "02-clean/diar/train.jsonl") >= 5
    assert count_lines(tmp_path, "04-sst/scored/test.jsonl") >= 3
    measured = scores(tmp_path, "debug")
    assert {entry["test_set"] for entry in measured["der"]} == {"test", "ch109"}
    assert [entry["system"] for entry in measured["wer"]] == ["2: Sortformer, frozen, word level"] * 4
    assert {entry["decoding"] for entry in measured["wer"]} == {"free"}
    check_system3(tmp_path, monkeypatch)
    check_refined(tmp_path)
    # The baseline takes an ASR as it is, and runs no other stage than those that it changes.
    init = f"train_asr.init={tmp_path / 'variant-debug' / '06-train-asr' / 'model'}"
    result = run("ami", tmp_path, "--variant", "debug+baseline", "--set", init)
    assert result.stderr.count("skipped") == 7
    assert scores(tmp_path, "debug+baseline")["wer"][0]["system"] == "baseline: no speaker tokens"
    own = tmp_path / "variant-debug+baseline"
    assert {path.name for path in own.iterdir() if path.is_dir()} == {"06-train-asr", "08-score"}
    assert not (own / "06-train-asr" / "checkpoints").exists()


def test_callhome(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    run("callhome", tmp_path, "--variant", "debug")
    measured = scores(tmp_path, "debug")
    assert [entry["test_set"] for entry in measured["der"]] == ["part2", "part2", "ch109", "ch109"]
    assert measured["der"][0]["by_speakers"].keys() == {"2", "3", "4"}  # type: ignore[attr-defined]
    assert count_lines(tmp_path, "00-prepare/part1.jsonl") == 3
    recorded = Counter(
        session.extra["corpus"] for session in manifest.read(tmp_path / "variant-debug" / "00-prepare" / "train.jsonl")
    )  # all corpora of section 5.1.1
    counts = {"fisher": 4, "callhome": 3, "ami": 4, "dihard3": 4, "voxconverse": 2, "icsi": 6, "aishell4": 1}
    assert recorded == counts
    assert not (tmp_path / "variant-debug" / "01-simulate" / "train.jsonl").exists()  # made while the model learns
    assert not (tmp_path / "variant-debug" / "06-train-asr").exists()
    for peer in ("eend-gla", "aed-eend-ee"):
        run("callhome", tmp_path, "--variant", f"debug+{peer}", "--stop-stage", 5)
    run("callhome", tmp_path, "--variant", "debug+eend-vc")
    assert {entry["system"] for entry in scores(tmp_path, "debug+eend-vc")["der"]} == {"EEND-VC"}
    request.getfixturevalue("torchaudio")
    # WavLM's weights are in a file, so debug goes on top: it starts from random ones.
    run("callhome", tmp_path, "--variant", "wavlm-eend-vc+debug", "--stop-stage", 5)


def test_voices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where no experiment of the full recipe is
    request = TablesRequest("voices", tmp_path, variant="debug")
    rows = list(request.list_rows([]))
    full = list(replace(request, variant="").list_rows([]))
    assert [one.variant for one in list_first(full)] == ["encoder"] and len(list_missing(rows)) == 42
    # Also on top of debug, the Sortformers start from the encoder of the full recipe, which is not here.
    assert list_first(rows) == []
    plan = plan_tables(request)
    assert {row.name for row in plan.rows} == set(PEERS) and len(plan.experiments) == 18
    assert all("variant-encoder/05-train-diar/model: no such model" in note for note in plan.notes)
    rows = [row for row in plan.rows if row.variant in ("debug+eend-sa+seed1", "debug+eend-eda")]
    text = write_tables(
        replace(plan, rows=rows), tmp_path / "RESULTS.md", lambda one: [one.run(stage, map) for stage in one.stages]
    )
    assert "| EEND-SA | none |" in text and "| EEND-EDA | tuned |" in text
    assert "| debug+eend-sa+seed1 | 1000 |" in text and "Speakers in the order of arrival" in text
    assert "`sortk run --recipe voices --variant debug+eend-sa+seed1`" in text
    assert "It says nothing about error rates" in text


def test_dihard3_and_a_model_as_it_is(tmp_path: Path) -> None:
    run("dihard3", tmp_path, "--variant", "debug")
    model = tmp_path / "variant-debug" / "05-train-diar" / "model"
    assert [entry["settings"]["collar"] for entry in scores(tmp_path, "debug")["der"]] == [0.0, 0.0]  # type: ignore[index]
    settings = ("--set", "prepare.miniature=true", "--set", f"train_diar.init={model}", "--set", "tune.trials=3")
    run("dihard3", tmp_path / "taken", *settings)
    taken = tmp_path / "taken" / "05-train-diar" / "model" / "model.safetensors"
    assert taken.read_bytes() == (model / "model.safetensors").read_bytes()
    other = ("--set", "prepare.miniature=true", "--set", "train_diar.init=nowhere.nemo")
    result = sortk("run", "--recipe", "dihard3", "--exp", tmp_path / "other", *other)
    assert (
        result.exit_code == 1
        and "nowhere.nemo: no such model folder or .nemo file, but stage 5 (train-diar)" in result.stderr
    )
    assert not (tmp_path / "other" / "01-simulate").exists()  # told at once


def test_librispeechmix(tmp_path: Path) -> None:
    run("librispeechmix", tmp_path, "--variant", "debug")
    measured = scores(tmp_path, "debug")
    assert [entry["test_set"] for entry in measured["wer"]] == ["test-1mix", "test-2mix", "test-3mix"]
    counted = {entry["settings"]["counted_as"] for entry in measured["wer"]}  # type: ignore[index]
    assert counted == {"cpwer"}  # as Appendix D has it, whatever the model has written
    simulated = tmp_path / "variant-debug" / "01-simulate"
    assert len(mixlist.read(simulated / "mixtures" / "train.jsonl")) == 12  # rendered while the models learn
    assert not (simulated / "train.jsonl").exists() and not list((simulated / "audio").glob("train*"))
    for name, count in (("valid", 12), ("test-3mix", 4)):  # all of them, whole
        assert count_lines(tmp_path, f"01-simulate/{name}.jsonl") == count
        assert count_lines(tmp_path, f"04-sst/scored/{name}.jsonl") == count


@pytest.mark.parametrize("name", ["ami", "callhome", "dihard3", "librispeechmix"])
def test_without_the_corpus_one_sentence_says_what_to_do(name: str, tmp_path: Path) -> None:
    result = sortk("run", "--recipe", name, "--exp", tmp_path / "exp")
    lines = [line for line in result.stderr.splitlines() if line.startswith("sortk: ")]
    assert result.exit_code == 1 and len(lines) == 1
    assert "--set prepare.corpora.0.corpus_dir=DIR" in lines[0] and "--set prepare.corpora_dir=DIR" in lines[0]
    result = sortk("run", "--recipe", name, "--exp", tmp_path / "exp", "--set", "prepare.corpora_dir=/no/where")
    assert result.exit_code == 1 and "/no/where/" in result.stderr and "no such file or folder (" in result.stderr
    result = sortk("stage", 3, "--recipe", name, "--exp", tmp_path / "exp")
    assert result.exit_code == 1 and "run stage 2 first" in result.stderr


def test_all_corpora_that_are_missing_are_named(tmp_path: Path) -> None:
    settings = ("--set", "prepare.corpora.1.corpus_dir=/data/icsi")
    result = sortk("run", "--recipe", "ami", "--exp", tmp_path, *settings)
    assert result.exit_code == 1 and result.stderr.endswith("; no folder is given for dipco, fisher, ch109 either\n")


@pytest.mark.parametrize(
    ("recipe", "variant", "row"),
    [
        ("ami", "baseline", "baseline: no speaker tokens"),
        ("ami", "system1", "1: no supervision, word level"),
        ("ami", "", "2: Sortformer, frozen, word level"),
        ("ami", "system3", "3: Sortformer, fine-tuned, word level"),
        ("ami", "system4", "4: ground truth in training, word level"),
        ("ami", "system5", "5: Sortformer, frozen, segment level, adapters of 256"),
        ("ami", "system6", "6: Sortformer, frozen, word level, adapters of 256"),
        ("librispeechmix", "canary", "baseline: no speaker tokens"),
        ("librispeechmix", "ms", "MS-Canary: no supervision, segment level"),
        ("librispeechmix", "", "Sortformer-MS-Canary: Sortformer, frozen, segment level"),
        ("librispeechmix", "sot", "Canary trained with SOT: no supervision, sot level"),
        ("librispeechmix", "dom-sot", "Canary trained with DOM-SOT: no supervision, dom-sot level"),
        ("audiomnist", "", "2: Sortformer, frozen, word level"),
        ("audiomnist", "change", "Sortformer, frozen, change level"),
        ("audiomnist", "system5", "5: Sortformer, frozen, segment level, adapters of 256"),
        ("audiomnist", "system6", "6: Sortformer, frozen, word level, adapters of 256"),
        ("audiomnist", "mix+dom-sot", "Canary trained with DOM-SOT: no supervision, dom-sot level"),
        ("mini", "", "Sortformer, frozen, change level"),
    ],
)
def test_every_row_of_tables_2_and_3_has_its_own_name(recipe: str, variant: str, row: str) -> None:
    loaded = load_recipe(recipe, variant=variant)
    assert loaded.train_asr.describe(loaded.sst.level) == row
    assert loaded.score.decoding == ("valid" if recipe in ("mini", "audiomnist") else "free")


def test_the_settings_are_those_of_the_paper() -> None:
    ami, callhome, mixtures = (load_recipe(name) for name in ("ami", "callhome", "librispeechmix"))
    steps = [
        load_recipe("ami", variant=name).train_asr.phases[0].loop.steps for name in ("system1", "system5", "system6")
    ]
    assert [ami.train_asr.phases[0].loop.steps, *steps] == [50_000, 50_000, 75_000, 75_000]
    assert mixtures.train_asr.phases[0].loop.steps == 180_000 and mixtures.simulate.mixtures == {"train": 2_000_000}
    for loop in (ami.train_asr.phases[0].loop, mixtures.train_asr.phases[0].loop):
        assert (loop.optimizer, loop.annealing, loop.learning_rate) == ("adamw", "inverse_sqrt", 3e-4)
        assert (loop.min_learning_rate, loop.warmup_steps, loop.weight_decay) == (1e-6, 2500, 1e-3)
    for recipe in (ami, mixtures, callhome):
        assert recipe.train_asr.label_smoothing == 0  # plain cross-entropy
        phases = [*recipe.train_diar.phases, *(recipe.train_asr.phases if recipe.asr else ())]
        for phase in phases:
            assert phase.batch_limit == BatchLimit(samples=64 if isinstance(phase, AsrPhaseOptions) else 4)
            assert (phase.loop.clip_norm, phase.loop.keep_best) == (0, 1)  # additions to the paper are off
    pretrain, finetune = callhome.train_diar.phases
    assert (pretrain.loop.learning_rate, pretrain.loop.warmup_steps) == (1e-4, 2500)
    assert pretrain.recorded and pretrain.simulated == pytest.approx(5150 / 7180, abs=0.005)
    assert finetune.recorded and finetune.simulated == 0 and pretrain.seconds == finetune.seconds == 90
    assert (callhome.simulate.overlap, callhome.simulate.silence) == (0.12, 0.10)
    assert (callhome.score.collar, callhome.tune.sets) == (0.25, ("part1",))  # Set-B
    recorded = {choice.corpus for choice in callhome.prepare.corpora} - {"librispeech", "sre", "ch109"}
    assert recorded == {"fisher", "ami", "dihard3", "voxconverse", "icsi", "aishell4", "callhome"}  # section 5.1.1
    assert ami.score.sets == ("test", "ch109")  # both halves of Table 2
    dihard3 = load_recipe("dihard3")
    assert dihard3.train_diar.init == "exp/callhome/05-train-diar/model" and not dihard3.train_diar.phases
    assert (dihard3.score.collar, dihard3.tune.sets) == (0.0, ("dev",))  # Set-A


@pytest.mark.parametrize("name", ["ami", "audiomnist", "callhome", "librispeechmix", "mini", "voices"])
def test_no_recipe_simulates_training_audio_that_nothing_reads(name: str) -> None:
    recipe = load_recipe(name)
    is_read = any(phase.recorded for phase in (*recipe.train_diar.phases, *recipe.train_asr.phases))
    assert is_read or not recipe.simulate.hours.get("train")


def test_own_data_by_the_recipe_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = README.read_text(encoding="utf-8").partition("## Own data in three steps")[2]
    text = section.partition("```toml\n")[2].partition("```")[0]
    assert text.count("\n") <= 11
    (tmp_path / "my.toml").write_text(text, encoding="utf-8")
    maker = MiniatureMaker(tmp_path, 0, map)
    (tmp_path / "my-data").mkdir()
    for number in range(4):
        talk = maker.talk("train", 2, first=number)
        samples = np.clip(talk.tracks.sum(axis=0), -1, 1)
        soundfile.write(tmp_path / "my-data" / f"call{number}.wav", samples, 16_000)
        turns = [Segment(f"call{number}", turn.speaker, turn.start, turn.end) for turn in talk.turns]
        rttm.write(tmp_path / "my-data" / f"call{number}.rttm", turns)
    monkeypatch.chdir(tmp_path)
    loop = "{steps = 1, warmup_steps = 1, batch_seconds = 60, validate_every = 1, keep_best = 1}"
    settings = [argument for setting in TINY for argument in ("--set", setting)]
    result = sortk("run", "--recipe", "my.toml", *settings, "--set", f"train_diar.phases.0.loop={loop}")
    assert result.exit_code == 0, result.output
    assert "test 2 spk" in Path("exp/my/08-score/RESULTS.md").read_text(encoding="utf-8")


def test_run_sh_runs_the_chosen_stages(tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "recipes" / "mini" / "run.sh"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sortk").write_text(f'#!/bin/sh\necho "$@" >> "{tmp_path}/commands"\n', encoding="utf-8")
    (tmp_path / "bin" / "sortk").chmod(0o755)

    def run_sh(*arguments: str, programs: Path = tmp_path / "bin") -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        return subprocess.run([script, *arguments], check=False, env=environment, capture_output=True, text=True)

    for chosen in (["--stop-stage", "simulate", "--nj", "2"], ["--stage", "train-diar", "--stop-stage", "6"]):
        assert run_sh("--variant", "debug", *chosen).returncode == 0
    common = f"--recipe {script.parent} --variant debug"
    assert (tmp_path / "commands").read_text(encoding="utf-8").splitlines() == [
        f"stage prepare {common} --nj 2",
        f"stage simulate {common} --nj 2",
        f"stage train-diar {common}",
        f"stage train-asr {common}",
    ]
    listed = run_sh("--help").stdout
    assert [line.split()[:2] for line in listed.splitlines()[1:]] == [[str(each.number), each.name] for each in STAGES]
    refused = run_sh("--stage", "trian")
    assert refused.returncode == 2 and "there is no stage 'trian'" in refused.stderr
    options = ("--variant", "debug", "--exp", str(tmp_path / "exp"), "--quiet")
    done = run_sh(*options, "--stop-stage", "prepare", programs=Path(sys.executable).parent)
    assert done.returncode == 0, done.stderr
    assert [path.parent.name for path in (tmp_path / "exp").rglob("done.json")] == ["00-prepare"]


def test_every_run_sh_names_the_stages_as_sortk_does() -> None:
    scripts = sorted((Path(__file__).parents[1] / "recipes").glob("*/run.sh"))
    assert [script.parent.name for script in scripts] == shipped_recipes()
    for script in scripts:
        shown = [line.split()[1:3] for line in script.read_text(encoding="utf-8").splitlines() if line[:4] == "run "]
        known = [[str(each.number), each.name] for each in STAGES]
        assert shown == [each for each in known if each in shown] and shown, script


def test_stages_have_names(tmp_path: Path) -> None:
    options = ("--recipe", "mini", "--variant", "debug", "--exp", tmp_path)
    assert sortk("run", *options, "--stop-stage", "prepare").exit_code == 0
    result = sortk("stage", "prepare", *options)
    assert result.exit_code == 0 and "stage 0 (prepare): done already" in result.stderr
