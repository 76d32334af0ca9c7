"""The stages in order: what each reads, runs and writes. Read this first.

    corpus on disk -> 0 prepare -> 1 simulate -> 2 clean -> 3 timestamps -> 4 sst -> 5 train-diar -> 6 train-asr
                   -> 7 tune -> 8 score

Each stage is a plain function from the recipe and the folders of earlier stages to one output folder, which it may
find partly filled by a killed run. `pipeline.py` tells when a stage is run, skipped, resumed or refused;
`standalone.py` does the same work on any files.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sortk.corpora.options import PrepareOptions
from sortk.corpora.registry import prepare_corpus
from sortk.folders import find_commit, settings_of, write_json
from sortk.formats.files import quote
from sortk.formats.sst import SstOptions
from sortk.pipeline import Experiment, Stage, StageRun
from sortk.prepare.clean_options import CleanOptions
from sortk.prepare.simulate import SimulateOptions
from sortk.prepare.sst import CutWords, SstSummary, serialize_sessions
from sortk.prepare.timestamps import TimestampOptions
from sortk.recipe import load_recipe, load_shareable
from sortk.records import RunJobs, Session
from sortk.slurm.arrays import SlurmArrays

if TYPE_CHECKING:
    from sortk.report.experiment import ExperimentFolders
    from sortk.scoring.results import Coverage, WerResult
    from sortk.training.phases import TrainingData

log = logging.getLogger(__name__)


def prepare(run: StageRun) -> None:
    """Corpora on disk -> sources.jsonl: single-speaker utterances, each marked train, valid or test; real sessions:
    <set>.jsonl, rttm/, seglst/, uem/; lists of mixtures for stage 1: mixtures/<set>.jsonl."""
    prepare_into(run.recipe.prepare, run.out, run.recipe.seed, run.run_jobs)


def prepare_into(options: PrepareOptions, out: Path, seed: int, run_jobs: RunJobs) -> None:
    for split, held in prepare_corpus(options, out, seed, run_jobs).items():
        log.info("%s: %d speakers, %d utterances, %.2f h", split, held.speakers, held.utterances, held.hours)


def simulate(run: StageRun) -> None:
    """sources.jsonl -> conversations: <split>.jsonl, audio/, rttm/, seglst/, ctm/, and the plan/ of each. The same of
    random mixtures, and of those that stage 0 lists. mixtures/<split>.jsonl lists those that training renders."""
    from sortk.formats import sources
    from sortk.prepare.librispeechmix import list_at_random, mix_at_random, mix_lists
    from sortk.prepare.simulate import simulate_splits

    prepared, options = run.inputs["prepare"], run.recipe.simulate
    utterances, lists = sources.read(prepared / "sources.jsonl"), sorted((prepared / "mixtures").glob("*.jsonl"))
    simulated, listed = [name for name in options.hours if options.hours[name]], [path.stem for path in lists]
    for name, n_ways in Counter([*simulated, *options.mixtures, *listed]).items():
        if n_ways > 1:
            raise ValueError(
                f"set {name} is to be made in two ways; choose one of simulate.hours, simulate.mixtures and the "
                "corpus's own list of mixtures"
            )
    summaries = simulate_splits(utterances, options, run.recipe.seed, run.out, run.run_jobs)
    listed_only = {name: count for name, count in options.mixtures.items() if name in options.on_the_fly}
    rendered = {name: count for name, count in options.mixtures.items() if name not in options.on_the_fly}
    summaries |= mix_at_random(utterances, rendered, run.recipe.seed, run.out, run.run_jobs)
    summaries |= mix_lists(lists, run.out, run.run_jobs)
    made = {name: summary.to_json() for name, summary in summaries.items()}
    made |= list_at_random(utterances, listed_only, run.recipe.seed, run.out)
    write_json(run.out / "summary.json", made)


def clean(run: StageRun) -> None:
    """Sessions of stages 0 and 1 -> diar/<split>.jsonl (windows), asr/<split>.jsonl (samples to learn from),
    scored/<split>.jsonl (samples with every word, for test sets), rejected.jsonl."""
    from sortk.scoring.tune import Term, check_development

    sets = sets_of(run.inputs["prepare"], run.inputs["simulate"])
    scored = run.recipe.score
    development = [session for name in run.recipe.tune.sets for session in sets.get(name, ())]
    if development:  # before the models are trained, not after
        check_development(development, run.recipe.tune.objective or (Term(scored.collar, scored.skip_overlap),))
    clean_into(sets, run.recipe.clean, run.recipe.timestamps, run.out, run.run_jobs, seed=run.recipe.seed)


def clean_into(
    sets: Mapping[str, Sequence[Session]],
    options: CleanOptions,
    words: TimestampOptions,
    out: Path,
    run_jobs: RunJobs,
    probs_dir: Path | None = None,
    seed: int = 0,
) -> None:
    """Clean the sets; with a diarizer, its posteriors of the sessions to refine are computed first, into probs/."""
    from sortk.prepare.clean import clean_sets, find_refined

    if options.diarizer:
        from sortk.inference.diarize import write_posteriors
        from sortk.inference.pools import PooledDiarizer

        probs_dir = out / "probs"
        write_posteriors(PooledDiarizer(Path(options.diarizer), run_jobs), find_refined(sets, options), probs_dir)
    clean_sets(sets, options, words, out, run_jobs, probs_dir, seed)


def timestamps(run: StageRun) -> None:
    """Transcripts of stage 2 -> seglst/<recording>.json with one entry per word."""
    from sortk.prepare.timestamps import write_timestamps

    transcripts, words = run.inputs["clean"] / "seglst", run.out / "seglst"
    summary = write_timestamps(transcripts, words, run.recipe.timestamps, run.run_jobs, allow_empty=True)
    log.info("%s", summary)
    write_json(run.out / "summary.json", summary.to_json())


def sst(run: StageRun) -> None:
    """Samples of stage 2 and words of stage 3 -> <split>.jsonl whose text is the sorted serialized transcript; the same
    of the samples to score, in scored/."""
    words, transcripts = run.inputs["timestamps"] / "seglst", run.inputs["clean"] / "seglst"
    summaries = {}
    kinds: dict[str, tuple[Path, CutWords]] = {"asr": (run.out, "error"), "scored": (run.out / "scored", "middle")}
    for kind, (out, cut_words) in kinds.items():
        for path in sorted((run.inputs["clean"] / kind).glob("*.jsonl")):
            summary = serialize_manifest(
                path, words, run.recipe.sst, out / path.name, run.run_jobs, cut_words, transcripts
            )
            summaries[(out / path.stem).relative_to(run.out).as_posix()] = summary.to_json()
    write_json(run.out / "summary.json", summaries)


def serialize_manifest(
    samples_path: Path,
    words: Path,
    options: SstOptions,
    out: Path,
    run_jobs: RunJobs,
    cut_words: CutWords = "error",
    transcripts: Path | None = None,
) -> SstSummary:
    """Write the samples of a manifest with their SST as text, from the words of their recordings; segments are those
    of `transcripts`, from which the words were taken."""
    from sortk.formats import manifest

    samples = [
        # A sample that names no transcript stays as it is: serializing it is an error that names it.
        replace(sample, seglst_path=words / sample.seglst_path.name) if sample.seglst_path else sample
        for sample in manifest.read(samples_path)
    ]
    serialized, summary = serialize_sessions(samples, options, run_jobs, cut_words, transcripts)
    manifest.write(out, serialized)
    log.info("%s: %s", out.name, summary)
    return summary


def train_diar(run: StageRun) -> None:
    """Windows of stage 2, and conversations on the fly from the voices of stage 1 -> model/, checkpoints/."""
    from sortk.formats.model_folder import save_model
    from sortk.inference.load import read_model
    from sortk.training.diarizer import train_diarizer
    from sortk.training.phases import Pretrained

    options = run.recipe.train_diar
    initial = Pretrained(*read_model(Path(options.init))) if options.init else None
    if initial and not options.phases:
        save_model(run.out / "model", initial.weights, initial.config)
        return
    train_diarizer(_read_training_data(run, run.inputs["clean"] / "diar"), options, run.recipe.seed, run.out, initial)


def _read_training_data(run: StageRun, folder: Path) -> TrainingData:
    """Read the manifests of the folder, of which train.jsonl may be missing (`hours.train = 0`), and the voices of
    stage 1 that models may learn from."""
    from sortk.formats import manifest, sources
    from sortk.formats.mixlist import IndexedList
    from sortk.prepare.librispeechmix import ListedMixtures, list_path
    from sortk.prepare.simulate import read_speakers
    from sortk.training.phases import TrainingData

    train, mixtures = folder / "train.jsonl", list_path(run.inputs["simulate"], "train")
    utterances = sources.read(run.inputs["prepare"] / "sources.jsonl")
    names = {source.speaker for source in utterances if source.split == "train"}
    return TrainingData(
        manifest.read(train) if train.exists() else [],
        manifest.read(folder / "valid.jsonl"),
        [speaker for speaker in read_speakers(run.inputs["simulate"]) if speaker.speaker in names],
        run.recipe.simulate,
        ListedMixtures(IndexedList(mixtures), mixtures.parent, rounds=False) if mixtures.exists() else None,
    )


def train_asr(run: StageRun) -> None:
    """Samples of stage 4, speech on the fly, and the diarizer of stage 5 -> model/, checkpoints/."""
    from sortk.formats.model_folder import load_model, save_model
    from sortk.formats.tokens import save_tokenizer
    from sortk.inference.load import read_asr
    from sortk.training.asr import train_asr
    from sortk.training.phases import Pretrained

    options = run.recipe.train_asr
    initial = Pretrained(*read_asr(Path(options.init))) if options.init else None
    if initial and initial.tokenizer and not options.phases:
        save_tokenizer(run.out / "model", initial.tokenizer)
        save_model(run.out / "model", initial.weights, initial.config)
        return
    diarizer = Pretrained(*load_model(run.inputs["train-diar"] / "model"))
    data = _read_training_data(run, run.inputs["sst"])
    train_asr(data, run.recipe.sst, options, run.recipe.seed, run.out, initial, diarizer)


def tune(run: StageRun) -> None:
    """The diarizer on development sessions -> postprocess.toml with the lowest DER, the study, and probs/."""
    from sortk.formats.files import atomic_text
    from sortk.report.study import draw_study
    from sortk.scoring.evaluate import choose_sessions
    from sortk.scoring.tune import (
        Term,
        check_not_scored,
        hear_sessions,
        read_tune_set,
        tune,
        tune_together,
        write_tuned,
    )

    options, scored = run.recipe.tune, run.recipe.score
    if not options.objective:
        options = replace(options, objective=(Term(scored.collar, scored.skip_overlap),))
    sets = sets_of(run.inputs["prepare"], run.inputs["simulate"])
    sessions = [session for own in choose_sessions(sets, options.sets).values() for session in own]
    if not options.even_if_scored:
        check_not_scored(sessions, [session for name in scored.sets for session in sets.get(name, ())])
    probs, study = run.out / "probs", run.out / "study.log"
    hear_sessions(run.inputs["train-diar"] / "model", sessions, probs, run_jobs=run.run_jobs)
    if isinstance(run.run_jobs, SlurmArrays):  # not in local processes: what they find depends on who is faster
        worker = partial(tune_together, sessions, probs, options, run.recipe.seed, study)
        list(run.run_jobs(worker, range(run.run_jobs.n_jobs)))
    tuned = tune(read_tune_set(sessions, probs), options, run.recipe.seed, study)
    write_tuned(run.out / "postprocess.toml", tuned, options, run.recipe.seed)
    with atomic_text(run.out / "study.svg") as file:
        file.write(draw_study(tuned.history, tuned.importance, f"{run.recipe.name}: search for postprocessing"))
    log.info("DER %.2f %% without and %.2f %% with postprocessing", 100 * tuned.der_before, 100 * tuned.der_after)


def score(run: StageRun) -> None:
    """Both models on the test sets -> hypotheses in hyp/, scores.json, RESULTS.md, report.html."""
    from sortk.formats.files import atomic_text
    from sortk.formats.postprocess import Postprocess, read_postprocess
    from sortk.inference.pools import PooledDiarizer
    from sortk.scoring.der_counts import DerOptions
    from sortk.scoring.evaluate import choose_sessions, evaluate_diarizer
    from sortk.scoring.results import Results, as_json, format_results

    recipe, options = run.recipe, run.recipe.score
    sets = choose_sessions(sets_of(run.inputs["prepare"], run.inputs["simulate"]), options.sets)
    postprocessing = {"none": Postprocess(), "tuned": read_postprocess(run.inputs["tune"] / "postprocess.toml")}
    diarizer, system = PooledDiarizer(run.inputs["train-diar"] / "model", run.run_jobs), recipe.train_diar.describe()
    der_options = DerOptions(options.collar, options.skip_overlap)
    der = [
        result
        for name, sessions in sets.items()
        for result in evaluate_diarizer(
            diarizer, system, name, sessions, postprocessing, der_options, run.out / "hyp" / name
        )
    ]
    wer = _score_asr(run) if "train-asr" in run.inputs else []
    settings = {"seed": recipe.seed} | {
        table: settings_of(getattr(recipe, table)) for table in ("train_diar", "train_asr", "tune", "score")
    }
    coverage = _read_coverage(run) if wer else []
    results = Results(recipe.name, find_commit(), time.strftime("%Y-%m-%d"), settings, der, wer, coverage)
    write_json(run.out / "scores.json", as_json(results))
    with atomic_text(run.out / "RESULTS.md") as file:
        file.write(format_results(results))
    print(format_results(replace(results, settings={})), end="")
    _report_scores(run)


def _report_scores(run: StageRun) -> None:
    """The page. It also shows stages that this one does not read, if they are there: nothing measured hangs on them."""
    from sortk.report.experiment import find_folders

    roots = dict.fromkeys([run.out.parent, *(folder.parent for folder in run.inputs.values())])
    write_report(find_folders(list(roots), {**run.inputs, "score": run.out}), run.out / "report.html")
    print(f"\nReport: {run.out.with_name(run.out.name.removesuffix('.partial')) / 'report.html'}")


def write_report(folders: ExperimentFolders, out: Path) -> None:
    """One self-contained page of an experiment."""
    from sortk.formats.files import atomic_text
    from sortk.report.experiment import format_report

    with atomic_text(out) as file:
        file.write(format_report(folders))


def _score_asr(run: StageRun) -> list[WerResult]:
    from sortk.formats import manifest
    from sortk.formats.model_folder import load_config, read_sst_level
    from sortk.inference.pools import PooledTranscriber
    from sortk.scoring.evaluate import evaluate_asr
    from sortk.scoring.wer import WerOptions

    scored, model = run.recipe.score, run.inputs["train-asr"] / "model"
    config = load_config(model)
    # The Sortformer inside a model is the one it was trained with: in system 3 it was fine-tuned there.
    diarizer = None if config["options"].get("diarizer") else run.inputs["train-diar"] / "model"
    decoding = scored.decoding if read_sst_level(config) else "free"  # nothing to decode by
    transcriber = PooledTranscriber(model, diarizer, decoding, run.run_jobs)
    system = run.recipe.train_asr.describe(run.recipe.sst.level)
    options = WerOptions(scored.normalizer, style="librispeechmix" if scored.mixtures else "sorted")
    return [
        result
        for name in run.recipe.score.sets
        for result in evaluate_asr(
            transcriber,
            system,
            name,
            manifest.read(run.inputs["sst"] / "scored" / f"{name}.jsonl"),
            options,
            run.recipe.train_asr.speaker_tokens,
            run.out / "hyp" / name / "words",
        )
    ]


def _read_coverage(run: StageRun) -> list[Coverage]:
    from sortk.report.curves import read_json
    from sortk.scoring.results import Coverage

    cleaned, serialized = (read_json(run.inputs[stage] / "summary.json") for stage in ("clean", "sst"))
    return [Coverage.of(name, cleaned[name], serialized[f"scored/{name}"]) for name in run.recipe.score.sets]


def sets_of(*folders: Path) -> dict[str, list[Session]]:
    """The sessions of the manifests <split>.jsonl in the folders, by split."""
    from sortk.formats import manifest

    sets: dict[str, list[Session]] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.jsonl")):
            if path.name != "sources.jsonl":
                sets.setdefault(path.stem, []).extend(manifest.read(path))
    return sets


def ready_sources(options: PrepareOptions) -> list[Path]:
    """A ready sources.jsonl, or sessions of one's own, which may be edited: what was made from them is stale then."""
    given = [Path(choice.corpus_dir) for choice in options.choices if choice.corpus_dir]
    ready = [path if path.suffix == ".jsonl" else path / "sources.jsonl" for path in given]
    own = [Path(choice.corpus_dir) for choice in options.choices if choice.corpus == "sessions" and choice.corpus_dir]
    return [path for path in ready if path.is_file()] + [path for path in own if path.is_dir()]


def clip_folders(options: SimulateOptions) -> list[Path]:
    """Folders with noise, rooms and turn-taking; what is in them counts as a setting."""
    return [Path(folder) for folder in (options.noise_dir, options.rir_dir, options.like) if folder]


def model_files(init: str) -> list[Path]:
    """Return the model from outside the experiment that a setting names: a folder or a file; none if it is empty."""
    return [Path(init)] if init else []


STAGES = (
    Stage(
        0,
        "prepare",
        tables=("prepare",),
        reads=(),
        run=prepare,
        files=lambda recipe: ready_sources(recipe.prepare),
        revision=1,
    ),
    Stage(
        1,
        "simulate",
        tables=("simulate",),
        reads=("prepare",),
        run=simulate,
        files=lambda recipe: clip_folders(recipe.simulate),
    ),
    # Cutting between words needs their times, so stage 2 gives them as stage 3 will.
    Stage(
        2,
        "clean",
        tables=("clean", "timestamps"),
        reads=("prepare", "simulate"),
        run=clean,
        files=lambda recipe: model_files(recipe.clean.diarizer),
        revision=1,
    ),
    Stage(3, "timestamps", tables=("timestamps",), reads=("clean",), run=timestamps),
    Stage(4, "sst", tables=("sst",), reads=("clean", "timestamps"), run=sst),
    # Conversations on the fly have the ratios of the simulate table.
    Stage(
        5,
        "train-diar",
        tables=("train_diar", "simulate"),
        reads=("prepare", "simulate", "clean"),
        run=train_diar,
        files=lambda recipe: model_files(recipe.train_diar.init),
        trains=True,
    ),
    Stage(
        6,
        "train-asr",
        tables=("train_asr", "simulate", "sst"),
        reads=("prepare", "simulate", "sst", "train-diar"),
        run=train_asr,
        files=lambda recipe: model_files(recipe.train_asr.init),
        trains=True,
        wanted=lambda recipe: recipe.asr,
    ),
    Stage(7, "tune", tables=("tune", "score"), reads=("prepare", "simulate", "train-diar"), run=tune),
    Stage(
        8,
        "score",
        tables=("score",),
        reads=("prepare", "simulate", "clean", "sst", "train-diar", "train-asr", "tune"),
        run=score,
    ),
)


def find_stage(number_or_name: int | str) -> Stage:
    """Return the stage of that number ("5") or name ("train-diar")."""
    for stage in STAGES:
        if str(number_or_name) in (str(stage.number), stage.name):
            return stage
    known = ", ".join(f"{stage.number} {stage.name}" for stage in STAGES)
    raise ValueError(f"there is no stage {quote(number_or_name)}; stages: {known}")


def open_experiment(name_or_path: str, exp: Path | None, overrides: Sequence[str], variant: str = "") -> Experiment:
    """The stages of a recipe, or of a variant of it, in `exp`, by default exp/<recipe>."""
    recipe = load_recipe(name_or_path, overrides, variant)
    shareable = load_shareable(name_or_path, overrides, variant)
    return Experiment(STAGES, recipe, exp or Path("exp") / recipe.name, variant, shareable)
