"""The command line as a user meets it: real commands, exit codes, sentences, and the recipe from end to end."""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from sortk import __version__
from sortk.cli import main
from sortk.formats import audio, manifest, rttm, seglst, sources
from sortk.records import Segment, Session


def sortk(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def failed(result: Result) -> str:
    """The one sentence of a failed command."""
    assert result.exit_code == 1, result.output
    lines = [line for line in result.stderr.splitlines() if line.startswith("sortk: ")]
    assert len(lines) == 1 and "Traceback" not in result.output
    return lines[0]


@pytest.fixture(scope="session")
def voices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("voices") / "out"
    result = sortk(
        "prepare", "espeak", "--out", out, "--set", "espeak.speakers=6", "--set", "espeak.utterances_per_speaker=6"
    )
    assert result.exit_code == 0, result.output
    assert "train: " in result.stderr and "utterances" in result.stderr and result.stdout == ""
    return out / "sources.jsonl"


def simulate(voices: Path, out: Path, *more: object) -> Result:
    options = {"--hours": 0.01, "--seconds": 9, "--speakers": "2-3"}
    usual = [part for name, value in options.items() if name not in more for part in (name, value)]
    return sortk("simulate", "--sources", voices, "--out", out, *usual, *more)


def test_version() -> None:
    assert __version__ in sortk("--version").output


def test_the_defaults_in_the_help_are_those_of_the_options() -> None:
    from sortk.prepare.simulate import SimulateOptions

    defaults, text = SimulateOptions(), " ".join(sortk("simulate", "--help").output.split())
    for name in ("overlap", "silence", "seconds"):
        described = text.split(f"--{name} FLOAT")[1].split("[default: ")[1].split("]")[0]
        assert float(described) == getattr(defaults, name)
    assert f"[default: {defaults.min_speakers}-{defaults.max_speakers}]" in text


def test_simulate_writes_what_it_says(voices: Path, tmp_path: Path) -> None:
    result = simulate(voices, tmp_path / "sim", "--plot", "--nj", 2)
    assert result.exit_code == 0, result.output
    sessions = manifest.read(tmp_path / "sim" / "manifest.jsonl")
    assert len(sessions) == 4
    for session in sessions:
        assert audio.info(session.audio_path).seconds == session.duration == 9.0
        assert session.rttm_path and rttm.read(session.rttm_path)
        assert session.seglst_path and seglst.read(session.seglst_path)
    assert len(list((tmp_path / "sim" / "plots").glob("*.svg"))) == 4
    assert "done already" in simulate(voices, tmp_path / "sim").stderr
    assert "overlap was 0.12, is now 0.2" in failed(simulate(voices, tmp_path / "sim", "--overlap", 0.2))
    assert simulate(voices, tmp_path / "sim", "--overlap", 0.2, "--force").exit_code == 0


def test_simulate_with_noise_and_rooms(voices: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    audio.write_flac(tmp_path / "noise" / "n.flac", rng.normal(0, 0.1, 16000).astype(np.float32))
    response = (rng.normal(0, 0.2, 4000) * np.exp(-np.arange(4000) / 800)).astype(np.float32)
    response[100] = 0.9
    audio.write_flac(tmp_path / "rir" / "r.flac", response)
    assert simulate(voices, tmp_path / "a", "--noise", tmp_path / "noise", "--rir", tmp_path / "rir").exit_code == 0
    assert simulate(voices, tmp_path / "b").exit_code == 0
    first, second = (audio.read(tmp_path / name / "audio" / "sim-000000.flac") for name in "ab")
    assert len(first) == len(second) and np.abs(first).min() < np.abs(first).max()
    quiet = np.abs(second) < 1e-4
    assert np.square(first[quiet]).mean() > 10 * np.square(second[quiet]).mean()  # noise and echo fill the silence
    rttms = [tmp_path / name / "rttm" / "sim-000000.rttm" for name in "ab"]
    assert filecmp.cmp(*rttms, shallow=False)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--hours", "-1"], "hours.all must be from 0 to 1e+06, got -1.0"),
        (["--hours", "0"], "hours must be more than 0"),
        (["--hours", "1e300"], "hours.all must be from 0 to 1e+06"),
        (["--overlap", "0.9"], "overlap must be from 0 to 0.3, got 0.9"),
        (["--silence", "1"], "silence must be from 0 to 0.8, got 1.0"),
        (["--speakers", "4-2"], "speakers must be a range such as 2-4, got 4-2"),
        (["--speakers", "9"], "sessions of up to 9 speakers need as many different ones"),
        (["--noise", "nowhere"], "nowhere: no such folder"),
        (["--set", "overlapp=1"], "unknown key 'overlapp'; did you mean 'overlap'?"),
        (["--split", "nosuch"], "the sources of 'sim' have 0"),
    ],
)
def test_wrong_options_are_one_sentence(voices: Path, tmp_path: Path, options: list[str], sentence: str) -> None:
    assert sentence in failed(simulate(voices, tmp_path / "out", *options))
    assert not (tmp_path / "out").exists()


def spoil(voices: Path, folder: Path, spoiled: bytes | None) -> Path:
    """A copy of the sources in which the first speaker's audio holds other bytes."""
    shutil.copytree(voices.parent, folder)
    found = sources.read(folder / "sources.jsonl")
    if spoiled is None:
        found[0].audio_path.unlink()
    else:
        found[0].audio_path.write_bytes(spoiled)
    return folder / "sources.jsonl"


def test_bad_sources_are_one_sentence_with_the_file(voices: Path, tmp_path: Path) -> None:
    whole = sources.read(voices)[0].audio_path.read_bytes()
    cases = {"cut off": whole[: len(whole) // 2], "not an audio file": b"RIFF nonsense", "no such audio file": None}
    for number, (reason, content) in enumerate(cases.items()):
        sentence = failed(simulate(spoil(voices, tmp_path / f"bad{number}", content), tmp_path / f"out{number}"))
        assert reason in sentence and ".flac" in sentence
    broken = tmp_path / "broken.jsonl"
    lines = voices.read_text(encoding="utf-8").splitlines()
    broken.write_text("\n".join([*lines[:2], lines[2][:40], *lines[3:]]), encoding="utf-8")
    assert "broken.jsonl, line 3: broken JSON" in failed(simulate(broken, tmp_path / "out"))
    assert "nosuch.jsonl: no such file" in failed(simulate(tmp_path / "nosuch.jsonl", tmp_path / "out"))
    assert not list(tmp_path.glob("out*/")) or not (tmp_path / "out").exists()


def test_stereo_and_other_rates_are_accepted(voices: Path, tmp_path: Path) -> None:
    import soundfile

    path = spoil(voices, tmp_path / "other", None)
    found = sources.read(path)
    samples, rate = soundfile.read(sources.read(voices)[0].audio_path)
    soundfile.write(found[0].audio_path, np.stack([samples[::2], samples[::2]], axis=1), rate // 2, format="WAV")
    assert simulate(path, tmp_path / "out").exit_code == 0


def test_from_a_manifest_to_transcripts(voices: Path, tmp_path: Path) -> None:
    simulate(voices, tmp_path / "sim", "--seconds", 15)
    result = sortk(
        "clean", "--manifest", tmp_path / "sim" / "manifest.jsonl", "--out", tmp_path / "clean", "--sad", "none"
    )
    assert result.exit_code == 0 and "hours" in result.stderr, result.output
    assert sortk("timestamps", "--seglst", tmp_path / "clean" / "seglst", "--out", tmp_path / "words").exit_code == 0
    for level in ("word", "segment", "change", "sot", "dom-sot"):
        out = tmp_path / f"{level}.jsonl"
        assert sortk("sst", "--seglst", tmp_path / "words", "--out", out, "--level", level).exit_code == 0
        lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
        assert len(lines) == 2 and all(
            line["text"].startswith("<spk0> ") == (level in ("word", "segment", "change")) for line in lines
        )
    samples = tmp_path / "clean" / "asr" / "manifest.jsonl"
    command = ("sst", "--seglst", tmp_path / "words", "--manifest", samples, "--out", tmp_path / "samples.jsonl")
    assert sortk(*command).exit_code == 0
    assert all(sample.text and sample.text.startswith("<spk0>") for sample in manifest.read(tmp_path / "samples.jsonl"))
    nameless = tmp_path / "nameless.jsonl"
    nameless.write_text('{"audio_filepath": "a.flac", "duration": 12.0}\n', encoding="utf-8")
    command = ("sst", "--seglst", tmp_path / "words", "--manifest", nameless, "--out", tmp_path / "x.jsonl")
    assert "session 'a' has no seglst_filepath" in failed(sortk(*command))
    assert "model: no such model folder or .nemo file" in failed(
        sortk(
            "clean", "--manifest", tmp_path / "sim" / "manifest.jsonl", "--out", tmp_path / "x", "--diarizer", "model"
        )
    )


@pytest.mark.parametrize(
    ("level", "text"),
    [
        ("word", "<spk0> well <spk0> i <spk1> yes <spk0> think <spk0> so"),
        ("segment", "<spk0> well i think <spk1> yes <spk0> so"),
        ("change", "<spk0> well i <spk1> yes <spk0> think so"),
        ("sot", "well i think <cs> yes <cs> so"),
        ("dom-sot", "well i think so <cs> yes"),
    ],
)
def test_the_dialogue_of_the_documentation_at_every_level(level: str, text: str, tmp_path: Path) -> None:
    entries = [("amy", 0.0, 3.0, "well i think"), ("bob", 1.4, 1.9, "yes"), ("amy", 3.2, 3.6, "so")]
    seglst.write(tmp_path / "in" / "m.json", [Segment("m", *entry) for entry in entries])
    assert sortk("timestamps", "--seglst", tmp_path / "in", "--out", tmp_path / "words").exit_code == 0
    manifest.write(tmp_path / "m.jsonl", [Session("m", tmp_path / "m.flac", seglst_path=tmp_path / "in" / "m.json")])
    command = ("sst", "--seglst", tmp_path / "words", "--manifest", tmp_path / "m.jsonl", "--level", level)
    result = sortk(*command, "--transcripts", tmp_path / "in", "--out", tmp_path / "sst.jsonl")
    assert result.exit_code == 0, result.output
    [sample] = manifest.read(tmp_path / "sst.jsonl")
    assert (sample.text, sample.num_speakers) == (text, 2)
    assert (
        "--transcripts needs --manifest"
        in sortk(
            "sst", "--seglst", tmp_path / "words", "--transcripts", tmp_path / "in", "--out", tmp_path / "x.jsonl"
        ).stderr
    )


def test_training_from_manifests(voices: Path, tmp_path: Path) -> None:
    simulate(voices, tmp_path / "sim")
    sessions = tmp_path / "sim" / "manifest.jsonl"
    (tmp_path / "train.toml").write_text(
        'size = "tiny"\nphases = [{loop = {steps = 2, warmup_steps = 1, batch_seconds = 18, validate_every = 2}}]\n',
        encoding="utf-8",
    )
    command = (
        "train-diar",
        "--train",
        sessions,
        "--valid",
        sessions,
        "--out",
        tmp_path / "diar",
        "--config",
        tmp_path / "train.toml",
    )
    result = sortk(*command)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "diar" / "model" / "config.json").is_file()
    assert "done already" in sortk(*command).stderr
    assert "must be one of tiny, tiny-no-positions, compact, small, base" in failed(
        sortk(*command, "--set", "size=huge", "--force")
    )


def test_convert_and_validate(tmp_path: Path) -> None:
    (tmp_path / "ref.rttm").write_text("SPEAKER a 1 0.5 1.25 <NA> <NA> bob <NA> <NA>\n", encoding="utf-8")
    assert sortk("convert", tmp_path / "ref.rttm", tmp_path / "ref.json", "--to", "seglst").exit_code == 0
    assert json.loads((tmp_path / "ref.json").read_text(encoding="utf-8"))[0]["speaker"] == "bob"
    assert "1 session" in sortk("validate", tmp_path / "ref.rttm", tmp_path / "ref.json").stdout
    (tmp_path / "bad.rttm").write_text("SPEAKER a 1 0.5 nan <NA> <NA> bob <NA> <NA>\n", encoding="utf-8")
    result = sortk("validate", tmp_path / "bad.rttm", tmp_path / "ref.rttm")
    assert "bad.rttm, line 1: duration is not finite" in failed(result) and "ref.rttm: rttm" in result.stdout


def test_a_recipe_from_end_to_end(tmp_path: Path) -> None:
    common = ("--recipe", "mini", "--variant", "debug", "--exp", tmp_path / "exp", "--set", "score.collar=0.3")
    exp = tmp_path / "exp" / "variant-debug"
    assert "stage 0 (prepare): would run" in sortk("run", *common, "--dry-run").stdout
    jobs = sortk("run", *common, "--dry-run", "--cluster", "slurm", "--nj", 4).stdout  # no Slurm is asked
    assert "    #SBATCH --job-name=sortk-05-train-diar" in jobs and " -m sortk stage 1 " in jobs
    assert "run stage 0 first" in failed(sortk("stage", 1, *common))
    result = sortk("run", *common)
    assert result.exit_code == 0, result.output
    assert sortk("run", *common).stderr.count("done already, skipped") == 9
    assert sortk("status", *common).stdout.count(" done ") == 9
    results = (exp / "08-score" / "RESULTS.md").read_text(encoding="utf-8")
    assert all(row in results for row in ("hybrid loss, alpha 0.5 | none", "hybrid loss, alpha 0.5 | tuned", "cpWER"))
    assert "has no stage 6" in failed(sortk("stage", 6, *common, "--set", "asr=false"))
    assert "test-000000" in failed(sortk("stage", 7, *common, "--set", 'tune.sets=["test"]', "--force"))
    for sample in manifest.read(exp / "04-sst" / "train.jsonl"):
        assert sample.text and sample.text.startswith("<spk0> ") and sample.duration and 5 <= sample.duration <= 10
    study = json.loads((exp / "07-tune" / "postprocess.json").read_text(encoding="utf-8"))
    assert [term["collar"] for term in study["objective"]] == [0.3]  # what is scored is what is tuned
    changed = (*common, "--set", "simulate.silence=0.2")
    assert "stage 1 (simulate) is stale: simulate.silence was 0.1, is now 0.2" in failed(sortk("stage", 1, *changed))
    assert "would be refused as stale (simulate.silence was 0.1" in sortk("run", *changed, "--dry-run").stdout
    assert sortk("stage", 1, *changed, "--force").exit_code == 0
    assert sortk("status", *changed).stdout.count(" stale ") == 7 and "its input 01-simulate changed" in failed(
        sortk("stage", 2, *changed)
    )
    for session in manifest.read(exp / "01-simulate" / "test.jsonl"):
        assert session.audio_path.is_file()


def test_what_changed_behind_a_manifest_is_noticed(voices: Path, tmp_path: Path) -> None:
    simulate(voices, tmp_path / "sim")
    command = ("clean", "--manifest", tmp_path / "sim" / "manifest.jsonl", "--out", tmp_path / "clean", "--sad", "none")
    assert sortk(*command).exit_code == 0
    path = tmp_path / "sim" / "rttm" / "sim-000000.rttm"
    path.write_text(path.read_text(encoding="utf-8").splitlines()[0] + "\n", encoding="utf-8")
    assert "its input files that manifest.jsonl names changed" in failed(sortk(*command))


def test_other_noise_in_a_folder_of_the_same_name_is_noticed(voices: Path, tmp_path: Path) -> None:
    clips = {kind: tmp_path / kind / "clips" for kind in ("noise", "rir")}  # two folders of one name
    for number, folder in enumerate(clips.values()):
        audio.write_flac(folder / "x.flac", np.full(4000 + number, 0.1, np.float32))
    command = (tmp_path / "out", "--noise", clips["noise"], "--rir", clips["rir"])
    assert simulate(voices, *command).exit_code == 0
    audio.write_flac(clips["noise"] / "y.flac", np.full(4000, 0.1, np.float32))
    assert f"its input folder {clips['noise']} changed" in failed(simulate(voices, *command))


def test_options_that_do_not_go_together_are_usage_errors(voices: Path, tmp_path: Path) -> None:
    lists = ("--mixtures", "x.jsonl", "--librispeech", tmp_path, "--out", tmp_path / "o")
    assert sortk("simulate", *lists, "--overlap", 0.1).exit_code == 2
    assert simulate(voices, tmp_path / "o", "--mixtures", "x.jsonl").exit_code == 2
    assert sortk("run", "--recipe", "mini", "--stage", 3, "--stop-stage", 1).exit_code == 2


def test_unknown_stages_and_recipes_are_named() -> None:
    assert "there is no stage '12'" in failed(sortk("stage", 12, "--recipe", "mini"))
    assert "shipped recipes: " in failed(sortk("run", "--recipe", "nosuch"))
    assert "no variant 'x'; variants: baseline, debug, eend-eda" in failed(
        sortk("run", "--recipe", "mini", "--variant", "x")
    )
    assert sortk("run").exit_code == 2


def test_status_names_the_variants_that_have_been_run(tmp_path: Path) -> None:
    (tmp_path / "variant-debug").mkdir()
    result = sortk("status", "--recipe", "mini", "--exp", tmp_path)
    assert result.stdout.count("missing") == 9
    # Before it, a Slurm that is installed but not configured may be named.
    assert result.stderr.endswith(f"variants in {tmp_path}: debug; show one with --variant\n")
    assert "variants" not in sortk("status", "--recipe", "mini", "--exp", tmp_path, "--variant", "debug").stderr


def test_output_can_be_piped_into_a_reader_that_stops(tmp_path: Path) -> None:
    lines = [f"SPEAKER s{n} 1 0 1 <NA> <NA> x <NA> <NA>\n" for n in range(3)]
    (tmp_path / "a.rttm").write_text("".join(lines), encoding="utf-8")
    command = f"{sys.executable} -m sortk validate {' '.join(['a.rttm'] * 300)} | head -n 1"
    result = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert result.stdout.count("\n") == 1 and "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("redirection", "code", "told"),
    [
        ("2>&-", 0, ""),
        ("<&-", 0, ""),
        (">&-", 1, "sortk: standard input or output is closed\n"),
        ("| true", None, ""),
    ],
)
def test_streams_that_are_closed(redirection: str, code: int | None, told: str) -> None:
    command = f"{sys.executable} -m sortk recipes {redirection}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, env=os.environ)
    assert result.stderr == told
    assert code is None or result.returncode == code
    assert ("mini" in result.stdout) == (code == 0)


def test_ctrl_c_before_the_command_starts_is_one_line() -> None:
    script = "import os, signal, sys\nimport sortk.__main__ as entry\n"
    script += "sys.meta_path.insert(0, type('Stop', (), {'find_spec': staticmethod(\n"
    script += "    lambda name, *_: os.kill(os.getpid(), signal.SIGINT) if name == 'sortk.cli' else None)}))\n"
    script += "entry.start()\n"
    expect_one_line(script)


def test_ctrl_c_while_libraries_clean_up_is_one_line() -> None:
    script = "import atexit, os, signal, sys\nimport sortk.__main__ as entry\n"
    script += "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
    script += "sys.argv = ['sortk', '--version']\nentry.start()\n"
    expect_one_line(script)


def expect_one_line(script: str) -> None:
    """Run a script that is interrupted."""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 130
    assert result.stderr == "sortk: interrupted; run the same command again to continue\n"
