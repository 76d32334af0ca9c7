"""The command line: click commands, no logic. Errors become one sentence and exit code 1; usage errors exit with 2."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import click

from sortk import __version__

Command = TypeVar("Command", bound=Callable[..., Any])
FILE = click.Path(path_type=Path)


class SortkGroup(click.Group):
    """Turns the errors of library code into one clean line; lists commands in the order of the pipeline."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader of our output has gone, as with `| head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(1)
        except (ValueError, OSError) as error:
            logging.getLogger(__name__).debug("failed", exc_info=True)  # the traceback, with -v only
            click.echo(f"sortk: {_sentence(error)}", err=True)
            ctx.exit(1)
        except KeyboardInterrupt:
            click.echo("sortk: interrupted; run the same command again to go on", err=True)
            ctx.exit(130)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            logging.getLogger(__name__).debug("failed", exc_info=True)
            about = f"{type(error).__name__}: {error}"
            click.echo(f"sortk: {about}. This is a bug of sortk; please report it with the output of -v", err=True)
            ctx.exit(1)


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


@click.group(cls=SortkGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="sortk")
def main() -> None:
    """Sortformer, whole: speaker diarization sorted by arrival time, and the multi-speaker ASR it supervises.

    Run a recipe with `sortk run`, one of its stages with `sortk stage`, or any step on your own files with the
    command of its name.
    """


def _with_verbosity(command: Command) -> Command:
    """-v and -q, which every command takes."""

    @click.option("-v", "--verbose", is_flag=True, help="Say more, and show tracebacks.")
    @click.option("-q", "--quiet", is_flag=True, help="Say nothing but warnings and errors.")
    @functools.wraps(command)
    def wrapped(*args: Any, verbose: bool, quiet: bool, **kwargs: Any) -> Any:
        level = logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO
        console = logging.StreamHandler()  # standard error: standard output is for results
        console.setLevel(level)
        console.setFormatter(logging.Formatter("%(message)s"))
        logging.raiseExceptions = False  # a log that cannot be written is no reason for a traceback
        if quiet:
            os.environ["TQDM_DISABLE"] = "1"
        root = logging.getLogger("sortk")
        root.handlers, root.propagate = [console], False
        root.setLevel(min(level, logging.INFO))
        return command(*args, **kwargs)

    return wrapped  # type: ignore[return-value]


def _with_options(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


JOBS = _with_options(
    click.option("--nj", type=click.IntRange(min=1), default=1, show_default=True, help="Processes to use."),
    click.option(
        "--cluster", type=click.Choice(["local", "slurm"]), default="local", show_default=True, help="Where jobs run."
    ),
)
FORCE = click.option("--force", is_flag=True, help="Do it again where settings or inputs have changed.")
SETTINGS = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a setting (repeatable)."
)
SEED = click.option("--seed", type=int, default=0, show_default=True, help="All random choices follow from it.")
OUT = click.option("--out", type=FILE, required=True, help="The folder to write.")
LANGUAGE = _with_options(
    click.option("--lang", help="Language of the transcripts, as pyphen names it.  [default: en_US]"),
    click.option(
        "--rule",
        type=click.Choice(["sounds", "syllables", "hyphenation", "letters"]),
        help="What makes a word long; the same for clean and timestamps.  [default: sounds]",
    ),
)
RECIPE = _with_options(
    click.option("--recipe", required=True, metavar="NAME|PATH", help="A shipped recipe, or a recipe.toml."),
    click.option("--exp", type=FILE, help="Where the stages' folders are.  [default: exp/<recipe>]"),
    click.option(
        "--set", "overrides", multiple=True, metavar="TABLE.KEY=VALUE", help="Override a setting (repeatable)."
    ),
    click.option("--variant", metavar="NAME", help="A variant of the recipe, or several: debug+pil."),
)
RUN = _with_options(RECIPE, JOBS, FORCE, click.option("--dry-run", is_flag=True, help="Say what would run, and why."))


@main.command()
@click.argument("number", type=int)
@RUN
@_with_verbosity
def stage(number: int, **common: Any) -> None:
    """Run exactly one stage of a recipe.

    Example: sortk stage 1 --recipe mini --nj 4
    """
    from sortk.slurm import was_requeued
    from sortk.stages import find_stage

    if find_stage(number).trains and common["cluster"] == "slurm" and not common["dry_run"]:
        _submit_stages([number], True, **common)
        return
    # The job of a stage that has begun to do it again goes on with that.
    _run_stages([number], redo_done=common["force"] and not was_requeued(), **common)


@main.command()
@click.option("--stage", "first", type=int, default=0, show_default=True, help="The first stage to run.")
@click.option("--stop-stage", "last", type=int, help="The last stage to run.  [default: all]")
@click.option("--wait", is_flag=True, help="With --cluster slurm: show how the jobs stand until they have ended.")
@RUN
@_with_verbosity
def run(first: int, last: int | None, wait: bool, **common: Any) -> None:
    """Run the stages of a recipe in order, skipping what is done.

    With --force, stages whose settings have changed are done again; those that are done as they should be are
    skipped all the same. With --cluster slurm, every stage becomes a job that starts after the one before it.

    Example: sortk run --recipe mini --stop-stage 1
    """
    from sortk.stages import STAGES, find_stage

    last = STAGES[-1].number if last is None else find_stage(last).number
    if find_stage(first).number > last:
        raise click.UsageError(f"--stage {first} comes after --stop-stage {last}")
    if common["cluster"] == "slurm" and not common["dry_run"]:
        _submit_stages(range(first, last + 1), wait, **common)
    else:
        _run_stages(range(first, last + 1), redo_done=False, **common)


@main.command()
@RUN
@click.option("--out", type=FILE, help="The file to write.  [default: RESULTS.md beside the recipe]")
@_with_verbosity
def tables(
    recipe: str,
    exp: Path | None,
    overrides: Sequence[str],
    variant: str | None,
    nj: int,
    cluster: str,
    force: bool,
    dry_run: bool,
    out: Path | None,
) -> None:
    """Measure the paper's Tables 1 to 3 on a recipe's variants, and write RESULTS.md.

    Runs what is missing of the variants that the recipe names in [tables]; what they have in common is run once. After
    a stop, the same command goes on. The paper's own numbers stand beside the measured ones.

    Example: sortk tables --recipe audiomnist --set prepare.corpus_dir=/data/AudioMNIST
    """
    from sortk.tables import place_results, plan_tables, write_tables

    plan = plan_tables(recipe, exp, overrides, variant or "")
    if dry_run:
        for experiment in plan.experiments:
            for line in experiment.dry_run(experiment.stages, force, redo_done=False):
                click.echo(f"{experiment.variant or plan.recipe}: {line}")
        return
    written = write_tables(
        plan,
        out or place_results(recipe, exp, variant or ""),
        lambda experiment: _run_here(experiment, experiment.stages, False, nj, cluster, force),
    )
    click.echo(written, nl=False)


@main.command()
@RECIPE
@_with_verbosity
def status(recipe: str, exp: Path | None, overrides: Sequence[str], variant: str | None) -> None:
    """Show how the stages of a recipe stand: a line each, with its jobs if Slurm has any.

    Example: sortk status --recipe mini
    """
    from sortk.slurm import describe_jobs, glance_at_jobs

    experiment = _open_experiment(recipe, exp, overrides, variant)
    for stage in experiment.stages:
        found, folder = experiment.status(stage), experiment.folder(stage)
        why = f"running: {found.holder}" if found.holder else found.why
        if jobs := glance_at_jobs([folder]):
            why = f"{why}; jobs: {describe_jobs(jobs, folder)}".removeprefix("; ")
        click.echo(f"{stage.number}  {stage.name:<10}  {found.state:<7}  {_time_and_size(found):<20}  {why}".rstrip())


def _time_and_size(status: Any) -> str:
    if status.seconds is None:
        return ""
    return f"{status.seconds:9.1f} s {status.n_bytes / 1e6:8.1f} MB"


def _run_stages(
    numbers: Sequence[int],
    redo_done: bool,
    recipe: str,
    exp: Path | None,
    overrides: Sequence[str],
    variant: str | None,
    nj: int,
    cluster: str,
    force: bool,
    dry_run: bool,
) -> None:
    experiment = _open_experiment(recipe, exp, overrides, variant)
    stages = [stage for stage in experiment.stages if stage.number in numbers]
    if not stages:
        raise ValueError(f"recipe {recipe} does without stage {numbers[0]}")
    if dry_run:
        for line in experiment.dry_run(stages, force, redo_done):
            click.echo(line)
        return
    _run_here(experiment, stages, redo_done, nj, cluster, force)


def _run_here(experiment: Any, stages: Sequence[Any], redo_done: bool, nj: int, cluster: str, force: bool) -> None:
    from sortk.cluster import choose_cluster

    for place, stage in enumerate(stages):
        if stage.reads:  # the first thing to be missing is the corpus, about which stage 0 has more to say
            experiment.check_files(stages[place:])
        stale = force and experiment.status(stage).state == "stale"
        folder = experiment.folder(stage)
        run_jobs = choose_cluster(cluster, nj, folder, experiment.recipe.cluster, stage.name)
        with _offer_to_cancel([folder] if cluster == "slurm" else []):
            experiment.run(stage, run_jobs, force=stale or redo_done)


def _submit_stages(
    numbers: Sequence[int],
    wait: bool,
    recipe: str,
    exp: Path | None,
    overrides: Sequence[str],
    variant: str | None,
    nj: int,
    force: bool,
    **_: Any,
) -> None:
    experiment = _open_experiment(recipe, exp, overrides, variant)
    stages = [stage for stage in experiment.stages if stage.number in numbers]
    experiment.check_files(stages)
    settings = [argument for override in overrides for argument in ("--set", override)]
    chosen = ["--variant", variant] if variant else []

    def command(stage: Any, forced: bool) -> list[str]:
        line = [sys.executable, "-m", "sortk", "stage", str(stage.number), "--recipe", recipe, *settings, *chosen]
        jobs = [] if stage.trains else ["--nj", str(nj), "--cluster", "slurm"]
        return [*line, "--exp", str(experiment.root), *jobs, *(["--force"] if forced else [])]

    jobs = experiment.submit(stages, force, command)
    if wait:
        with _offer_to_cancel([job.folder for job in jobs.values()]):
            _show_changes(experiment.watch(jobs))


def _show_changes(views: Iterable[Sequence[str]]) -> None:
    """A view that changes in place on a terminal; elsewhere only the lines that have changed."""
    shown: Sequence[str] = []
    for view in views:
        changed = [line for line in view if line not in shown]
        if sys.stderr.isatty() and changed:
            click.echo(f"\x1b[{len(shown)}A\x1b[J" if shown else "", err=True, nl=False)
            changed = list(view)
        for line in changed:
            click.echo(line, err=True)
        shown = view
        time.sleep(2)


@contextlib.contextmanager
def _offer_to_cancel(folders: Sequence[Any]) -> Iterator[None]:
    """Ctrl-C while jobs work for these folders."""
    try:
        yield
    except KeyboardInterrupt:
        from sortk.slurm import cancel, find_jobs

        jobs = [job.job_id for job in find_jobs(folders)] if folders else []
        if jobs and sys.stdin.isatty() and click.confirm(f"\ncancel {len(jobs)} jobs?", err=True):
            cancel(jobs)
        elif jobs:
            click.echo(f"\n{len(jobs)} jobs stay in the queue; sortk status shows them", err=True)
        raise


def _open_experiment(recipe: str, exp: Path | None, overrides: Sequence[str], variant: str | None) -> Any:
    from sortk.stages import open_experiment

    return open_experiment(recipe, exp, overrides, variant or "")


@main.command()
@click.argument("corpus")
@click.option("--corpus-dir", default="", help="Where the corpus lies on disk; espeak needs none.")
@OUT
@SEED
@SETTINGS
@JOBS
@FORCE
@_with_verbosity
def prepare(
    corpus: str, corpus_dir: str, out: Path, seed: int, overrides: Sequence[str], nj: int, cluster: str, force: bool
) -> None:
    """Stage 0: turn a corpus on disk into sources.jsonl (single-speaker utterances), or into manifests of sessions.

    CORPUS is one of espeak (voices that come with sortk), audiomnist, librispeech, sources (a ready sources.jsonl),
    sre (single speakers on the telephone), or a corpus of conversations: aishell4, ami, callhome, ch109, dihard3,
    dipco, fisher, icsi, librispeechmix, voxconverse, sessions (your own recordings with RTTM, a manifest, or a Kaldi
    directory). docs/corpora.md says where to get them and how they must lie.

    Example: sortk prepare librispeech --corpus-dir /data/LibriSpeech --out data/librispeech
    """
    from sortk.cluster import choose_cluster
    from sortk.corpora.registry import PrepareOptions
    from sortk.folders import Folder
    from sortk.stages import prepare_folder

    options = _options(PrepareOptions, overrides, corpus=corpus, corpus_dir=corpus_dir)
    prepare_folder(options, seed, out, choose_cluster(cluster, nj, Folder(out)), force)


@main.command()
@click.option("--sources", type=FILE, help="Single-speaker utterances: sources.jsonl.")
@OUT
@click.option("--hours", type=float, help="How much to make.")
@click.option("--speakers", default="2-4", show_default=True, help="In a session: a number or a range.")
@click.option("--overlap", type=float, help="Time with two speakers / time with at least one.  [default: 0.12]")
@click.option("--silence", type=float, help="Time with nobody / duration.  [default: 0.1]")
@click.option("--seconds", type=float, help="Length of a session.  [default: 90]")
@SEED
@click.option("--noise", "noise_dir", help="A folder with noise to add.")
@click.option("--rir", "rir_dir", help="A folder with room impulse responses.")
@click.option("--split", help="Use only the sources of this split.")
@click.option("--mixtures", type=FILE, help="Instead of --sources: a list of LibriSpeechMix, to be made exactly.")
@click.option("--librispeech", type=FILE, help="The LibriSpeech folder that the list's paths are relative to.")
@click.option("--plot", is_flag=True, help="Draw the first sessions into plots/, as SVG.")
@SETTINGS
@JOBS
@FORCE
@_with_verbosity
def simulate(
    sources: Path | None,
    out: Path,
    hours: float | None,
    speakers: str,
    seed: int,
    split: str | None,
    mixtures: Path | None,
    librispeech: Path | None,
    plot: bool,
    overrides: Sequence[str],
    nj: int,
    cluster: str,
    force: bool,
    **given: Any,
) -> None:
    """Stage 1: make conversations out of single-speaker speech.

    Writes manifest.jsonl, audio/, rttm/, seglst/ and ctm/ (words), and plan/ (how each session was made).

    Example: sortk simulate --sources data/sources.jsonl --out data/sim --hours 2 --speakers 2-4 --nj 4
    """
    from sortk.cluster import choose_cluster
    from sortk.folders import Folder
    from sortk.prepare.simulate import SimulateOptions
    from sortk.stages import mix_listed_folder, plot_sessions, simulate_folder

    run_jobs = choose_cluster(cluster, nj, Folder(out))
    by_list = (mixtures, librispeech)
    if any(by_list) and (not all(by_list) or sources or hours is not None or overrides or _given(given)):
        raise click.UsageError("--mixtures and --librispeech go together, and with no settings of simulated sessions")
    if mixtures is not None and librispeech is not None:
        mix_listed_folder(mixtures, librispeech, out, run_jobs, force)
    elif sources is None or hours is None:
        raise click.UsageError("give --sources and --hours, or --mixtures and --librispeech")
    else:
        options = _options(
            SimulateOptions, overrides, hours={"all": hours}, **_speaker_range(speakers), **_given(given)
        )
        simulate_folder(sources, split, options, seed, out, run_jobs, force)
    if plot:
        plot_sessions(out / "manifest.jsonl", out / "plots")


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given; the others keep the default that stands on their dataclass."""
    return {name: value for name, value in options.items() if value is not None}


def _speaker_range(text: str) -> dict[str, int]:
    low, _, high = text.partition("-")
    if not low.isdecimal() or not (high or low).isdecimal():
        raise click.BadParameter(f"{text!r} is neither a number nor a range such as 2-4", param_hint="--speakers")
    return {"min_speakers": int(low), "max_speakers": int(high or low)}


def _options(options: type, overrides: Sequence[str], **given: Any) -> Any:
    from sortk.recipe import build_options, merge_tables, parse_override

    table = given
    for override in overrides:
        table = merge_tables(table, parse_override(override))
    return build_options(options, table, "options")


@main.command()
@click.option("--manifest", "manifest_path", type=FILE, required=True, help="The sessions to clean.")
@OUT
@click.option("--sad", type=click.Choice(["silero", "none"]), help="What refines boundaries.  [default: silero]")
@click.option("--diarizer", type=FILE, help="A trained model whose posteriors refine boundaries too.")
@click.option("--probs", type=FILE, help="Instead: a folder with its posteriors, <session>.npy.")
@LANGUAGE
@SETTINGS
@JOBS
@FORCE
@_with_verbosity
def clean(
    manifest_path: Path,
    out: Path,
    sad: str | None,
    diarizer: Path | None,
    probs: Path | None,
    lang: str | None,
    rule: str | None,
    overrides: Sequence[str],
    nj: int,
    cluster: str,
    force: bool,
) -> None:
    """Stage 2: refine annotations, cut windows and samples, drop what would spoil a model.

    Writes diar/ (windows of at most 90 s), asr/ (samples of 10-20 s), rejected.jsonl and summary.json.

    Example: sortk clean --manifest data/ami.jsonl --out data/ami-clean --nj 4
    """
    from sortk.cluster import choose_cluster
    from sortk.folders import Folder
    from sortk.prepare.clean_options import CleanOptions
    from sortk.prepare.timestamps import TimestampOptions
    from sortk.stages import clean_folder

    if diarizer is not None and probs is not None:
        raise click.UsageError("give --diarizer or --probs, not both")
    options = _options(CleanOptions, overrides, **_given({"sad": sad}))
    words = _options(TimestampOptions, [], **_given({"lang": lang, "rule": rule}))
    clean_folder(manifest_path, options, words, probs, diarizer, out, choose_cluster(cluster, nj, Folder(out)), force)


@main.command()
@click.option("--seglst", type=FILE, required=True, help="Transcripts: a SegLST file, or a folder of them.")
@OUT
@LANGUAGE
@JOBS
@FORCE
@_with_verbosity
def timestamps(seglst: Path, out: Path, lang: str | None, rule: str | None, nj: int, cluster: str, force: bool) -> None:
    """Stage 3: give words approximate times, from the times of their segments.

    Writes OUT/<session>.json, one entry per word.

    Example: sortk timestamps --seglst data/ami/seglst --out data/ami-words
    """
    from sortk.cluster import choose_cluster
    from sortk.folders import Folder
    from sortk.prepare.timestamps import TimestampOptions
    from sortk.stages import timestamps_folder

    options = _options(TimestampOptions, [], **_given({"lang": lang, "rule": rule}))
    timestamps_folder(seglst, options, out, choose_cluster(cluster, nj, Folder(out)), force)


@main.command()
@click.option("--seglst", type=FILE, required=True, help="Words: a SegLST file, or a folder of them.")
@click.option("--manifest", "manifest_path", type=FILE, help="Samples of these recordings (asr/ of clean).")
@click.option("--out", type=FILE, required=True, help="The file to write.")
@click.option("--level", type=click.Choice(["word", "segment", "sot", "dom-sot"]), help="[default: word]")
@SETTINGS
@JOBS
@_with_verbosity
def sst(
    seglst: Path,
    manifest_path: Path | None,
    out: Path,
    level: str | None,
    overrides: Sequence[str],
    nj: int,
    cluster: str,
) -> None:
    """Stage 4: build sorted serialized transcripts.

    Writes lines {"session_id", "text"}; `<spk0>` is who speaks first. With --manifest, the lines of that manifest with
    their text: of each sample, `<spk0>` is who speaks first in it.

    Example: sortk sst --seglst data/ami-words --manifest data/ami-clean/asr/manifest.jsonl --out data/ami-sst.jsonl
    """
    from sortk.cluster import choose_cluster
    from sortk.folders import Folder
    from sortk.prepare.sst import SstOptions
    from sortk.stages import sst_file

    options = _options(SstOptions, overrides, **_given({"level": level}))
    sst_file(seglst, manifest_path, options, out, choose_cluster(cluster, nj, Folder(out)))


@main.command("train-diar")
@click.option("--train", type=FILE, required=True, help="Manifest of the sessions to learn from.")
@click.option("--valid", type=FILE, required=True, help="Manifest of the sessions to validate on.")
@OUT
@click.option("--config", type=FILE, help="Settings: a recipe.toml, or only its table train_diar.")
@click.option("--init", type=FILE, help="A model folder or .nemo file whose weights, and sizes, to start from.")
@click.option("--sources", type=FILE, help="A sources.jsonl, for phases that simulate on the fly.")
@SEED
@SETTINGS
@FORCE
@_with_verbosity
def train_diar(
    train: Path,
    valid: Path,
    out: Path,
    config: Path | None,
    init: Path | None,
    sources: Path | None,
    seed: int,
    overrides: Sequence[str],
    force: bool,
) -> None:
    """Stage 5: train a diarizer.

    Writes model/ (config.json, model.safetensors) and checkpoints/; the same command again goes on after a stop.

    Example: sortk train-diar --train train.jsonl --valid valid.jsonl --out exp/diar --set size=tiny
    """
    from sortk.recipe import read_settings
    from sortk.stages import train_diar_folder
    from sortk.training.options import TrainDiarOptions

    options = _options(TrainDiarOptions, overrides, **(read_settings(config, "train_diar") if config else {}))
    train_diar_folder(train, valid, sources, options, init, seed, out, force)


@main.command("train-asr")
@click.option("--train", type=FILE, required=True, help="Manifest of the samples to learn from, with text (stage 4).")
@click.option("--valid", type=FILE, required=True, help="Manifest of the samples to validate on.")
@OUT
@click.option("--config", type=FILE, help="Settings: a recipe.toml, or only its table train_asr.")
@click.option("--init", type=FILE, help="An ASR to start from: a model folder, or a .nemo file.")
@click.option("--diarizer", type=FILE, help="The Sortformer that tells who speaks: a model folder, or a .nemo file.")
@click.option("--sources", type=FILE, help="A sources.jsonl, for phases that simulate on the fly.")
@click.option(
    "--level", type=click.Choice(["word", "segment", "sot", "dom-sot"]), help="Of the transcripts.  [default: word]"
)
@SEED
@SETTINGS
@FORCE
@_with_verbosity
def train_asr(
    train: Path,
    valid: Path,
    out: Path,
    config: Path | None,
    init: Path | None,
    diarizer: Path | None,
    sources: Path | None,
    level: str | None,
    seed: int,
    overrides: Sequence[str],
    force: bool,
) -> None:
    """Stage 6: train a multi-speaker ASR that a diarizer supervises.

    Writes model/ (config.json, model.safetensors, tokenizer.model) and checkpoints/; the same command again goes on
    after a stop.

    Example: sortk train-asr --train train.jsonl --valid valid.jsonl --diarizer exp/diar/model --out exp/asr
    """
    from sortk.prepare.sst import SstOptions
    from sortk.recipe import read_settings
    from sortk.stages import train_asr_folder
    from sortk.training.asr_options import TrainAsrOptions

    options = _options(TrainAsrOptions, overrides, **(read_settings(config, "train_asr") if config else {}))
    transcripts = _options(SstOptions, [], **_given({"level": level}))
    train_asr_folder(train, valid, sources, options, transcripts, init, diarizer, seed, out, force)


@main.command("import-nemo")
@click.argument("file", type=FILE, metavar="FILE.nemo")
@click.option("--out", type=FILE, required=True, help="The model folder to write.")
@_with_verbosity
def import_nemo(file: Path, out: Path) -> None:
    """Turn a checkpoint of NVIDIA's into a model folder: Sortformer, NEST encoder or Canary.

    Wherever a model is asked for, the .nemo file itself will do as well; a model folder loads faster. Nothing in the
    file is executed.

    Example: sortk import-nemo diar_sortformer_4spk-v1.nemo --out models/sortformer
    """
    from sortk.inference.load import import_nemo as import_file

    import_file(file, out)


@main.command("export-onnx")
@click.option("--model", type=FILE, required=True, help="A Sortformer: a model folder or .nemo file.")
@click.option("--out", type=FILE, required=True, help="The file to write.")
@click.option(
    "--part",
    type=click.Choice(["offline", "step", "features"]),
    default="offline",
    show_default=True,
    help="All of it, for clips of any length; a step of a stream; or the log-mel frames that a step takes.",
)
@click.option(
    "--preset", help="Of a step: 0.32, 1.04, 10 or 30.4 seconds of latency.  [default: the model's own, or 10]"
)
@_with_verbosity
def export_onnx(model: Path, out: Path, part: Literal["offline", "step", "features"], preset: str | None) -> None:
    """Write a Sortformer as an ONNX graph, for runtimes without Python and torch.

    onnxruntime must compute from it what torch computes, or there is no file. A step takes mel frames and its state,
    and gives posteriors and the next state (next_...); all zeros are the state at the start.

    Example: sortk export-onnx --model models/sortformer --out sortformer.onnx
    """
    from sortk.inference.export import export_onnx as export_file

    export_file(model, out, part, preset)


@main.command()
@click.option("--model", type=FILE, help="The diarizer: a model folder or a .nemo file.")
@click.option("--probs", type=FILE, help="Instead: a folder with its posteriors, <session>.npy.")
@click.option("--manifest", "manifest_path", type=FILE, required=True, help="The development set, with its RTTM.")
@click.option("--out", type=FILE, required=True, help="The postprocess.toml to write.")
@click.option("--trials", type=int, help="Of the study in the end, earlier runs included.  [default: 200]")
@click.option("--collar", type=float, help="Seconds on EACH side of a boundary not scored.  [default: 0.25]")
@click.option("--storage", metavar="URL", help="A database for the study.  [default: a journal beside OUT]")
@click.option("--device", help="Where the model runs: cpu, cuda, cuda:1, ...  [default: the GPU if there is one]")
@SEED
@SETTINGS
@_with_verbosity
def tune(
    model: Path | None,
    probs: Path | None,
    manifest_path: Path,
    out: Path,
    collar: float | None,
    device: str | None,
    seed: int,
    overrides: Sequence[str],
    **given: Any,
) -> None:
    """Stage 7: find the postprocessing with the lowest DER on a development set.

    Writes OUT and, of the same name, a .json with the history of the search. The same command again goes on with the
    study; run it in several processes at once, and they share the work.

    Example: sortk tune --model exp/diar/model --manifest dev.jsonl --out postprocess.toml --trials 200
    """
    from sortk.formats import manifest
    from sortk.scoring.tune import TuneOptions, hear_sessions, name_cache, read_tune_set, tune_file

    objective = {} if collar is None else {"objective": [{"collar": collar}]}
    options = _options(TuneOptions, overrides, **objective, **_given(given))
    sessions = manifest.read(manifest_path)
    if model is not None and probs is None:
        probs = name_cache(out, model, sessions)
        hear_sessions(model, sessions, probs, device)
    elif model is not None or probs is None:
        raise click.UsageError("give either --model or --probs")
    tune_file(read_tune_set(sessions, probs), options, seed, out)


@main.command()
@click.argument("files", type=FILE, nargs=-1, metavar="FILE...")
@click.option("--model", type=FILE, required=True, help="A model folder, or a .nemo file.")
@click.option("--postprocess", metavar="TOML|PRESET", help="A postprocess.toml, or none, callhome, dihard3.  [none]")
@click.option("--out-dir", type=FILE, help="Write <name>.rttm here, not to standard output.")
@click.option(
    "--streaming",
    is_flag=False,
    flag_value="own",
    metavar="[PRESET]",
    help="Hear recordings step by step, with a latency of 0.32, 1.04, 10 or 30.4 s.  [the model's own, or 10]",
)
@click.option("--max-speakers", type=click.IntRange(min=1), help="No recording has more speakers than this.")
@click.option("--int8", is_flag=True, help="Weights of 8 bits: faster on CPU, a little less exact.")
@click.option("--probs", is_flag=True, help="Also write <name>.npy: posteriors, frames x speakers.")
@click.option("--plot", is_flag=True, help="Also write <name>.svg: who spoke when.")
@click.option("--device", help="cpu, cuda, cuda:1, ...  [default: the GPU if there is one]")
@_with_verbosity
def diarize(
    files: Sequence[Path],
    model: Path,
    postprocess: str | None,
    out_dir: Path | None,
    streaming: str | None,
    max_speakers: int | None,
    int8: bool,
    probs: bool,
    plot: bool,
    device: str | None,
) -> None:
    """Find out who spoke when.

    FILE is an audio file, a folder of them, a manifest, or `-`: raw samples from standard input (signed 16 bits, 16
    kHz, mono), whose lines are printed as they become final. Recordings of any length, rate and number of channels
    will do; beyond ten minutes they are heard step by step, in bounded memory.

    Example: sortk diarize meeting.wav --model diar_sortformer.nemo > meeting.rttm
    """
    from sortk.inference.diarize import OWN_STEPS, DiarizeOptions, choose_postprocess, load
    from sortk.inference.streaming import PRESETS
    from sortk.stages import DiarizeOutputs, diarize_files, diarize_live

    if streaming not in (None, OWN_STEPS, *PRESETS):  # `--streaming FILE`, as if FILE were a preset
        if streaming != "-" and not Path(str(streaming)).exists():
            raise click.BadParameter(f"{streaming!r} is none of {', '.join(PRESETS)}", param_hint="--streaming")
        files, streaming = [Path(str(streaming)), *files], OWN_STEPS
    if not files:
        raise click.UsageError("give a FILE, or `-` for standard input")
    live = Path("-") in files
    if live and (len(files) > 1 or out_dir):
        raise click.UsageError("`-`, standard input, stands alone, and goes to standard output")
    if out_dir is None and (probs or plot):
        raise click.UsageError("--probs and --plot need --out-dir")
    options = DiarizeOptions(
        streaming=streaming or (OWN_STEPS if live else None),
        max_speakers=max_speakers,
        postprocess=choose_postprocess(postprocess),
    )
    diarizer = load(model, options, device, int8)
    if live:
        diarize_live(diarizer, sys.stdin.buffer)
        return
    errors: list[Exception] = []

    def tell(error: Exception) -> None:
        click.echo(f"sortk: {_sentence(error)}", err=True)
        errors.append(error)

    diarize_files(diarizer, files, DiarizeOutputs(out_dir, probs, plot), tell)
    if errors:
        sys.exit(1)


@main.command()
@click.argument("files", type=FILE, nargs=-1, required=True, metavar="FILE...")
@click.option("--model", type=FILE, required=True, help="A model folder of train-asr, or a .nemo file.")
@click.option("--diarizer", type=FILE, help="Tells who speaks, instead of the diarizer inside the model.")
@click.option("--out-dir", type=FILE, help="Write a file for each recording here, not to standard output.")
@click.option(
    "--format",
    "style",
    type=click.Choice(["seglst", "stm", "txt"]),
    default="seglst",
    show_default=True,
    help="Words with times, utterances with times, or text for people.",
)
@click.option("--beam", type=click.IntRange(min=1), default=1, show_default=True, help="Of the search; 1 is greedy.")
@click.option("--lang", help="Language of the words, for their times.  [default: en_US]")
@click.option("--device", help="cpu, cuda, cuda:1, ...  [default: the GPU if there is one]")
@_with_verbosity
def transcribe(
    files: Sequence[Path],
    model: Path,
    diarizer: Path | None,
    out_dir: Path | None,
    style: str,
    beam: int,
    lang: str | None,
    device: str | None,
) -> None:
    """Write down who said what.

    FILE is an audio file, a folder of them, or a manifest. Long recordings are cut at silences; speakers are those of
    the whole recording. Times of words are approximate.

    Example: sortk transcribe meeting.wav --model exp/asr/model --format txt
    """
    from sortk.inference.transcribe import TranscribeOptions, load_transcriber
    from sortk.models.decoding import DecodingOptions
    from sortk.stages import transcribe_files

    options = TranscribeOptions(decoding=DecodingOptions(beam=beam), **_given({"lang": lang}))
    transcriber = load_transcriber(model, diarizer, options, device)
    errors: list[Exception] = []

    def tell(error: Exception) -> None:
        click.echo(f"sortk: {_sentence(error)}", err=True)
        errors.append(error)

    transcribe_files(transcriber, files, out_dir, style, tell)
    if errors:
        sys.exit(1)


@main.group()
def score() -> None:
    """Score hypotheses of any system: speakers (der) or words (cpwer, tcpwer, orcwer, wer)."""


@score.command("der")
@click.option("--ref", type=FILE, required=True, help="Who speaks when: an RTTM file, or a folder of them.")
@click.option("--hyp", type=FILE, required=True, help="What a diarizer found: an RTTM file, or a folder of them.")
@click.option("--uem", type=FILE, help="What is scored: a UEM file, or a folder of them.  [default: all speech]")
@click.option("--collar", type=float, help="Seconds on EACH side of a reference boundary not scored.  [default: 0.25]")
@click.option("--skip-overlap", is_flag=True, help="Do not score where several reference speakers talk.")
@click.option(
    "--scorer",
    type=click.Choice(["fast", "pyannote", "nist"]),
    help="fast: sortk's own, with the numbers of pyannote.metrics; pyannote: that itself; nist: md-eval's rules."
    "  [default: fast]",
)
@click.option("--by-speakers", is_flag=True, help="Also by the number of reference speakers.")
@click.option("--json", "json_path", type=FILE, help="Write all numbers to this file, rates as fractions.")
@click.option(
    "--format",
    "style",
    type=click.Choice(["text", "md", "csv"]),
    default="text",
    show_default=True,
    help="The table's.",
)
@_with_verbosity
def score_der(
    ref: Path, hyp: Path, uem: Path | None, by_speakers: bool, json_path: Path | None, style: Any, **given: Any
) -> None:
    """Diarization error rate: a row per session, and OVERALL of all errors over all speech.

    A session without a hypothesis counts as all missed. Rates are per cent of the scored speech. JER is the Jaccard
    error rate of DIHARD; OVERALL single and overlap are where one, or several, reference speakers talk.

    Example: sortk score der --ref ref.rttm --hyp hyp.rttm --uem all.uem --collar 0.25 --by-speakers
    """
    from sortk.folders import write_json
    from sortk.scoring.der import score_files
    from sortk.scoring.der_counts import DerOptions
    from sortk.scoring.der_table import as_json, describe_settings, format_report

    report = score_files(ref, hyp, uem, _options(DerOptions, [], **_given(given)))
    for note in report.notes:
        logging.getLogger(__name__).warning("sortk: %s", note)
    if json_path:
        write_json(json_path, as_json(report))
    if style == "csv":
        logging.getLogger(__name__).info("%s", describe_settings(report))
    click.echo(format_report(report, style, by_speakers))


SCORE_WORDS = _with_options(
    click.option("--ref", type=FILE, required=True, help="What was said: SegLST, STM, CTM or SST; file or folder."),
    click.option("--hyp", type=FILE, required=True, help="What was recognised, in any of these formats."),
    click.option(
        "--normalizer",
        type=click.Choice(["none", "lower", "whisper", "chime8"]),
        default="none",
        show_default=True,
        help="Text rules for both sides.",
    ),
    click.option("--json", "json_path", type=FILE, help="Write settings, overall and sessions to this file."),
    click.option(
        "--format",
        "table_format",
        type=click.Choice(["text", "md", "csv"]),
        default="text",
        show_default=True,
        help="Of the printed table.",
    ),
)


@score.command()
@SCORE_WORDS
@_with_verbosity
def cpwer(**common: Any) -> None:
    """Words and who said them: each speaker's words, speakers mapped so that errors are fewest.

    Example: sortk score cpwer --ref ref.stm --hyp hyp.json --normalizer chime8
    """
    _score_words("cpwer", **common)


@score.command()
@SCORE_WORDS
@click.option("--collar", type=float, default=5.0, show_default=True, help="Seconds by which word times may be wrong.")
@_with_verbosity
def tcpwer(collar: float, **common: Any) -> None:
    """As cpwer, but words match only if their times do.

    Example: sortk score tcpwer --ref ref.stm --hyp hyp.stm --collar 5
    """
    _score_words("tcpwer", collar=collar, **common)


@score.command()
@SCORE_WORDS
@_with_verbosity
def orcwer(**common: Any) -> None:
    """Words whoever said them: each reference segment counts with the output stream that it suits best.

    Example: sortk score orcwer --ref ref.stm --hyp hyp.stm
    """
    _score_words("orcwer", **common)


@score.command()
@SCORE_WORDS
@click.option(
    "--style",
    type=click.Choice(["sorted", "librispeechmix"]),
    default="sorted",
    show_default=True,
    help="sorted: all words by start time, speaker tokens removed. librispeechmix: cpwer if HYP names speakers, "
    "orcwer if not.",
)
@_with_verbosity
def wer(style: str, **common: Any) -> None:
    """The two WERs of the paper (Appendix D): of Table 2 (sorted), and of Table 3 (librispeechmix).

    Example: sortk score wer --ref sst.jsonl --hyp decoded.jsonl --style sorted
    """
    _score_words("wer", style=style, **common)


def _score_words(
    metric: Any, ref: Path, hyp: Path, normalizer: Any, json_path: Path | None, table_format: Any, **settings: Any
) -> None:
    from sortk.formats.files import atomic_text
    from sortk.formats.objects import encode
    from sortk.scoring.wer import WerOptions, as_json, format_report, score_words
    from sortk.scoring.wer_transcripts import Transcripts

    options = WerOptions(normalizer, **settings)
    report = score_words(Transcripts.read(ref), Transcripts.read(hyp, predicted=True), metric, options)
    if json_path:
        with atomic_text(json_path) as file:
            file.write(encode(as_json(report)) + "\n")
    for note in report.notes:
        logging.getLogger(__name__).warning(note)
    click.echo(format_report(report, table_format))


@main.command()
@click.argument("source", type=FILE, metavar="IN")
@click.argument("target", type=FILE, metavar="OUT")
@click.option(
    "--to",
    required=True,
    type=click.Choice(["rttm", "stm", "ctm", "seglst", "manifest", "kaldi", "lhotse"]),
    help="The format of OUT; that of IN is found out.",
)
@_with_verbosity
def convert(source: Path, target: Path, to: str) -> None:
    """Convert between RTTM, STM, CTM, SegLST, manifests, Kaldi and lhotse folders.

    Example: sortk convert ref.rttm ref.json --to seglst
    """
    from sortk.formats.convert import convert as convert_file

    convert_file(source, target, to)


@main.command()
@click.argument("files", type=FILE, nargs=-1, required=True)
@_with_verbosity
def validate(files: Sequence[Path]) -> None:
    """Check files of any format that sortk knows; a line each says what is in them.

    Example: sortk validate ref.rttm train.jsonl
    """
    from sortk.formats.validate import validate as validate_file

    faulty = 0
    for path in files:
        try:
            click.echo(f"{path}: {validate_file(path)}")
        except BrokenPipeError:
            raise
        except (ValueError, OSError) as error:
            click.echo(f"sortk: {_sentence(error)}", err=True)
            faulty += 1
    if faulty:
        sys.exit(1)
