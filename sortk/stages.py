"""The stages in order: what each reads, runs and writes. Read this first.

    corpus on disk -> 0 prepare -> 1 simulate -> 2 clean -> 3 timestamps -> 4 sst -> 5 train-diar -> 6 train-asr
                   -> 7 tune -> 8 score

Each stage is a plain function from the recipe and the folders of earlier stages to one output folder, which it may
find partly filled by a killed run. `pipeline.py` tells when a stage is run, skipped, resumed or refused. The second
half of this file does the same work on any files, for the commands that need no recipe.
"""

from __future__ import annotations

import dataclasses
import logging
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from sortk.cluster import build_together
from sortk.corpora.registry import PrepareOptions, prepare_corpus
from sortk.folders import Folder, Identity, build_folder, find_commit, hash_file, hash_files, settings_of, write_json
from sortk.pipeline import Experiment, Stage, StageRun
from sortk.prepare.clean_options import CleanOptions
from sortk.prepare.simulate import SimulateOptions
from sortk.prepare.sst import SstOptions, SstSummary, serialize_sessions, write_sst
from sortk.prepare.timestamps import TimestampOptions
from sortk.recipe import load_elders, load_recipe
from sortk.records import RunJobs, Segment, Session
from sortk.slurm.arrays import SlurmArrays
from sortk.training.asr_options import TrainAsrOptions
from sortk.training.options import TrainDiarOptions

if TYPE_CHECKING:
    from sortk.inference.diarize import Diarizer
    from sortk.inference.transcribe import Transcriber
    from sortk.prepare.pieces import SpeakerIndex
    from sortk.report.experiment import ExperimentFolders
    from sortk.scoring.results import WerResult

log = logging.getLogger(__name__)


def prepare(run: StageRun) -> None:
    """Corpora on disk -> sources.jsonl: single-speaker utterances, each marked train, valid or test; real sessions:
    <set>.jsonl, rttm/, seglst/, uem/; lists of mixtures for stage 1: mixtures/<set>.jsonl."""
    _prepare(run.recipe.prepare, run.out, run.recipe.seed, run.run_jobs)


def _prepare(options: PrepareOptions, out: Path, seed: int, run_jobs: RunJobs) -> None:
    for split, held in prepare_corpus(options, out, seed, run_jobs).items():
        log.info("%s: %d speakers, %d utterances, %.2f h", split, held.speakers, held.utterances, held.hours)


def simulate(run: StageRun) -> None:
    """sources.jsonl -> conversations: <split>.jsonl, audio/, rttm/, seglst/, ctm/, and the plan/ of each. The same of
    random mixtures, and of the mixtures that stage 0 lists. With none of them, nothing."""
    from sortk.formats import sources
    from sortk.prepare.librispeechmix import mix_at_random, mix_lists
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
    summaries |= mix_at_random(utterances, options.mixtures, run.recipe.seed, run.out, run.run_jobs)
    summaries |= mix_lists(lists, run.out, run.run_jobs)
    write_json(run.out / "summary.json", {name: summary.to_json() for name, summary in summaries.items()})


def clean(run: StageRun) -> None:
    """Sessions of stages 0 and 1 -> diar/<split>.jsonl (windows), asr/<split>.jsonl (samples), rejected.jsonl."""
    from sortk.prepare.clean import clean_sets

    sets = _sets_of(run.inputs["prepare"], run.inputs["simulate"])
    clean_sets(sets, run.recipe.clean, run.recipe.timestamps, run.out, run.run_jobs)


def timestamps(run: StageRun) -> None:
    """Transcripts of stage 2 -> seglst/<recording>.json with one entry per word."""
    from sortk.prepare.timestamps import write_timestamps

    transcripts, words = run.inputs["clean"] / "seglst", run.out / "seglst"
    summary = write_timestamps(transcripts, words, run.recipe.timestamps, run.run_jobs, allow_empty=True)
    log.info("%s", summary)
    write_json(run.out / "summary.json", summary.to_json())


def sst(run: StageRun) -> None:
    """Samples of stage 2 and words of stage 3 -> <split>.jsonl whose text is the sorted serialized transcript."""
    words = run.inputs["timestamps"] / "seglst"
    summaries = {}
    for path in sorted((run.inputs["clean"] / "asr").glob("*.jsonl")):
        summary = _serialize_manifest(path, words, run.recipe.sst, run.out / path.name, run.run_jobs)
        summaries[path.stem] = summary.to_json()
    write_json(run.out / "summary.json", summaries)


def _serialize_manifest(
    samples_path: Path, words: Path, options: SstOptions, out: Path, run_jobs: RunJobs
) -> SstSummary:
    """The samples of a manifest with their SST as text, from the words of their recordings."""
    from sortk.formats import manifest

    samples = [
        # A sample that names no transcript stays as it is: serializing it is an error that names it.
        replace(sample, seglst_path=words / sample.seglst_path.name) if sample.seglst_path else sample
        for sample in manifest.read(samples_path)
    ]
    serialized, summary = serialize_sessions(samples, options, run_jobs)
    manifest.write(out, serialized)
    log.info("%s: %s", out.name, summary)
    return summary


def train_diar(run: StageRun) -> None:
    """Windows of stage 2, and conversations on the fly from the voices of stage 1 -> model/, checkpoints/."""
    from sortk.formats import manifest
    from sortk.formats.model_folder import save_model
    from sortk.inference.load import read_model
    from sortk.training.train_diar import TrainingData, train_diarizer

    options = run.recipe.train_diar
    initial = read_model(Path(options.init)) if options.init else None
    if initial and not options.phases:
        save_model(run.out / "model", *initial)
        return
    windows = run.inputs["clean"] / "diar"
    data = TrainingData(
        manifest.read(windows / "train.jsonl"),
        manifest.read(windows / "valid.jsonl"),
        _read_train_speakers(run),
        run.recipe.simulate,
    )
    train_diarizer(data, options, run.recipe.seed, run.out, initial)


def _read_train_speakers(run: StageRun) -> list[SpeakerIndex]:
    """The voices of stage 1 that models may learn from."""
    from sortk.formats import sources
    from sortk.prepare.simulate import read_speakers

    utterances = sources.read(run.inputs["prepare"] / "sources.jsonl")
    names = {source.speaker for source in utterances if source.split == "train"}
    return [speaker for speaker in read_speakers(run.inputs["simulate"]) if speaker.speaker in names]


def train_asr(run: StageRun) -> None:
    """Samples of stage 4, speech on the fly, and the diarizer of stage 5 -> model/, checkpoints/."""
    from sortk.formats import manifest
    from sortk.formats.model_folder import load_model, save_model
    from sortk.formats.tokens import save_tokenizer
    from sortk.inference.load import read_asr
    from sortk.training.train_asr import AsrData, Pretrained, train_asr

    options = run.recipe.train_asr
    initial = Pretrained(*read_asr(Path(options.init))) if options.init else None
    if initial and initial.tokenizer and not options.phases:
        save_tokenizer(run.out / "model", initial.tokenizer)
        save_model(run.out / "model", initial.weights, initial.config)
        return
    data = AsrData(
        manifest.read(run.inputs["sst"] / "train.jsonl"),
        manifest.read(run.inputs["sst"] / "valid.jsonl"),
        run.recipe.sst,
        _read_train_speakers(run),
        run.recipe.simulate,
    )
    diarizer = Pretrained(*load_model(run.inputs["train-diar"] / "model"))
    train_asr(data, options, run.recipe.seed, run.out, initial, diarizer)


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
    sets = _sets_of(run.inputs["prepare"], run.inputs["simulate"])
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
    from sortk.inference.pools import PooledDiarizer
    from sortk.inference.postprocess import Postprocess, read_postprocess
    from sortk.scoring.der_counts import DerOptions
    from sortk.scoring.evaluate import choose_sessions, evaluate_diarizer
    from sortk.scoring.results import Results, as_json, format_results

    recipe, options = run.recipe, run.recipe.score
    sets = choose_sessions(_sets_of(run.inputs["prepare"], run.inputs["simulate"]), options.sets)
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
        table: dataclasses.asdict(getattr(recipe, table)) for table in ("train_diar", "train_asr", "tune", "score")
    }
    results = Results(recipe.name, find_commit(), time.strftime("%Y-%m-%d"), settings, der, wer)
    write_json(run.out / "scores.json", as_json(results))
    with atomic_text(run.out / "RESULTS.md") as file:
        file.write(format_results(results))
    print(format_results(replace(results, settings={})), end="")
    _report_scores(run)


def _report_scores(run: StageRun) -> None:
    """The page. It also shows stages that this one does not read: nothing that is measured hangs on them."""
    from sortk.report.experiment import find_folders

    roots = dict.fromkeys([run.out.parent, *(folder.parent for folder in run.inputs.values())])
    folders = find_folders(list(roots), {**run.inputs, "score": run.out})
    try:
        write_report(folders, run.out / "report.html")
    except (ValueError, OSError) as error:  # what was measured stands all the same
        log.warning("there is no report.html: %s", error)
        return
    print(f"\nReport: {run.out.with_name(run.out.name.removesuffix('.partial')) / 'report.html'}")


def _score_asr(run: StageRun) -> list[WerResult]:
    from sortk.formats import manifest
    from sortk.inference.pools import PooledTranscriber
    from sortk.scoring.evaluate import evaluate_asr
    from sortk.scoring.wer import WerOptions

    models = run.inputs["train-asr"] / "model", run.inputs["train-diar"] / "model"
    transcriber = PooledTranscriber(*models, run.run_jobs)
    scored, system = run.recipe.score, run.recipe.train_asr.describe()
    options = WerOptions(scored.normalizer, style="librispeechmix" if scored.mixtures else "sorted")
    return [
        result
        for name in run.recipe.score.sets
        for result in evaluate_asr(
            transcriber,
            system,
            name,
            manifest.read(run.inputs["sst"] / f"{name}.jsonl"),
            options,
            run.recipe.train_asr.speaker_tokens,
            run.out / "hyp" / name / "words",
        )
    ]


def _sets_of(*folders: Path) -> dict[str, list[Session]]:
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
    """Folders with noise and rooms; what is in them counts as a setting."""
    return [Path(folder) for folder in (options.noise_dir, options.rir_dir) if folder]


def model_files(init: str) -> list[Path]:
    """A model from outside the experiment: its files count by their content; the path itself if there are none yet."""
    path = Path(init)
    if path.is_dir():
        return sorted(path.glob("*.json")) + sorted(path.glob("*.safetensors"))
    return [path] if init else []


STAGES = (
    Stage(0, "prepare", tables=("prepare",), reads=(), run=prepare, files=lambda recipe: ready_sources(recipe.prepare)),
    Stage(
        1,
        "simulate",
        tables=("simulate",),
        reads=("prepare",),
        run=simulate,
        files=lambda recipe: clip_folders(recipe.simulate),
    ),
    # Cutting between words needs their times, so stage 2 gives them as stage 3 will.
    Stage(2, "clean", tables=("clean", "timestamps"), reads=("prepare", "simulate"), run=clean),
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
        reads=("prepare", "simulate", "sst", "train-diar", "train-asr", "tune"),
        run=score,
    ),
)


def find_stage(number: int) -> Stage:
    """The stage of that number."""
    for stage in STAGES:
        if stage.number == number:
            return stage
    known = ", ".join(f"{stage.number} {stage.name}" for stage in STAGES)
    raise ValueError(f"there is no stage {number} in this version of sortk; stages: {known}")


def open_experiment(name_or_path: str, exp: Path | None, overrides: Sequence[str], variant: str = "") -> Experiment:
    """The stages of a recipe, or of a variant of it, in `exp`, by default exp/<recipe>."""
    recipe = load_recipe(name_or_path, overrides, variant)
    elders = load_elders(name_or_path, overrides, variant)
    return Experiment(STAGES, recipe, exp or Path("exp") / recipe.name, variant, elders)


# ---------------------------------------------------------------------------------------------------------------------
# The same work on any files


def prepare_folder(options: PrepareOptions, seed: int, out: Path, run_jobs: RunJobs, force: bool) -> None:
    """`sortk prepare`."""

    def work(partial: Path) -> None:
        _prepare(options, partial, seed, run_jobs)

    settings = {"seed": seed} | settings_of(options)
    inputs = {path.name: hash_file(path) for path in ready_sources(options)}
    build_folder(Folder(out), Identity("sortk prepare", settings, inputs), work, force)


def simulate_folder(
    sources_path: Path,
    split: str | None,
    options: SimulateOptions,
    seed: int,
    out: Path,
    run_jobs: RunJobs,
    force: bool,
) -> None:
    """`sortk simulate`."""
    from sortk.formats import sources
    from sortk.prepare.simulate import index_sources, simulate_set

    hours = sum(options.hours.values())
    if hours == 0:
        raise ValueError("hours must be more than 0")

    def work(partial: Path) -> None:
        utterances = [source for source in sources.read(sources_path) if split in (None, source.split)]
        speakers = index_sources(utterances, partial, options.sample_rate, run_jobs)
        summary = simulate_set(speakers, options, seed, "sim", hours, partial / "manifest.jsonl", run_jobs)
        write_json(partial / "summary.json", summary.to_json())

    settings = {"seed": seed, "split": split} | settings_of(options)
    inputs = {sources_path.name: hash_file(sources_path)}
    inputs |= {f"folder {path}": hash_file(path) for path in clip_folders(options)}
    build_folder(Folder(out), Identity("sortk simulate", settings, inputs), work, force)


def mix_listed_folder(list_path: Path, librispeech: Path, out: Path, run_jobs: RunJobs, force: bool) -> None:
    """`sortk simulate --mixtures`: exactly the mixtures of a LibriSpeechMix list."""
    from sortk.formats import mixlist
    from sortk.prepare.librispeechmix import ListedMixtures
    from sortk.prepare.mixtures import write_set

    def work(partial: Path) -> None:
        mixer = ListedMixtures(mixlist.read(list_path), librispeech)
        summary = write_set(mixer, len(mixer.mixtures), partial / "manifest.jsonl", run_jobs)
        write_json(partial / "summary.json", summary.to_json())

    settings = {"librispeech": str(librispeech)}
    inputs = {list_path.name: hash_file(list_path)}
    build_folder(Folder(out), Identity("sortk simulate", settings, inputs), work, force)


def clean_folder(
    manifest_path: Path,
    options: CleanOptions,
    words: TimestampOptions,
    probs_dir: Path | None,
    diarizer: Path | None,
    out: Path,
    run_jobs: RunJobs,
    force: bool,
) -> None:
    """`sortk clean`; with a diarizer, its posteriors are made first, into probs/."""
    from sortk.formats import manifest
    from sortk.formats.files import files_in
    from sortk.prepare.clean import clean_sets

    def work(partial: Path) -> None:
        sessions, heard = manifest.read(manifest_path), probs_dir
        if diarizer:
            from sortk.inference.diarize import load, write_posteriors

            heard = partial / "probs"
            write_posteriors(load(diarizer), sessions, heard)
        clean_sets({"manifest": sessions}, options, words, partial, run_jobs, heard)

    settings = settings_of(options) | settings_of(words)
    settings |= {"probs": probs_dir and str(probs_dir), "diarizer": diarizer and str(diarizer)}
    inputs = {manifest_path.name: hash_file(manifest_path)}
    if manifest_path.is_file():
        named = [
            path for s in manifest.read(manifest_path) for path in (s.rttm_path, s.seglst_path, s.ctm_path, s.uem_path)
        ]
        inputs["files that it names"] = hash_files(sorted({path for path in named if path}))
    if probs_dir:
        inputs[probs_dir.name] = hash_file(probs_dir)
    if diarizer:
        inputs["diarizer"] = hash_files(files_in(diarizer, ".json", ".safetensors"))
    build_folder(Folder(out), Identity("sortk clean", settings, inputs), work, force)


def timestamps_folder(seglst: Path, options: TimestampOptions, out: Path, run_jobs: RunJobs, force: bool) -> None:
    """`sortk timestamps`."""
    from sortk.formats.files import files_in
    from sortk.prepare.timestamps import write_timestamps

    def work(partial: Path) -> None:
        log.info("%s", write_timestamps(seglst, partial, options, run_jobs))

    inputs = {path.name: hash_file(path) for path in files_in(seglst, ".json")}
    folder = Folder(out, marker=".done.json")
    build_folder(folder, Identity("sortk timestamps", settings_of(options), inputs), work, force)


def sst_file(seglst: Path, manifest_path: Path | None, options: SstOptions, out: Path, run_jobs: RunJobs) -> None:
    """`sortk sst`."""
    if manifest_path is not None:
        _serialize_manifest(manifest_path, seglst, options, out, run_jobs)
    else:
        log.info("%s: %s", out.name, write_sst(seglst, out, options, run_jobs))
    shutil.rmtree(Folder(out).partial, ignore_errors=True)  # what jobs of a cluster have left


def train_diar_folder(
    train: Path,
    valid: Path,
    sources_path: Path | None,
    options: TrainDiarOptions,
    init: Path | None,
    seed: int,
    out: Path,
    force: bool,
) -> None:
    """`sortk train-diar`."""
    from sortk.formats import manifest
    from sortk.inference.load import read_model
    from sortk.training.train_diar import TrainingData, train_diarizer

    init = _find_init(init, options)

    def work(partial: Path) -> None:
        simulate = SimulateOptions()
        speakers = _index_together(sources_path, partial, simulate.sample_rate)
        data = TrainingData(manifest.read(train), manifest.read(valid), speakers, simulate)
        initial = read_model(init) if init else None
        train_diarizer(data, options, seed, partial, initial)

    settings = {"seed": seed} | settings_of(options)
    given = {"train": train, "valid": valid, "sources": sources_path, "init": init}
    inputs = {name: hash_file(path) for name, path in given.items() if path}
    identity = Identity("sortk train-diar", settings, inputs)
    build_together(lambda lead: build_folder(Folder(out), identity, lead, force), work)


def _find_init(given: Path | None, options: TrainDiarOptions | TrainAsrOptions) -> Path | None:
    """The model to start from: the one that is given, or the one of the settings."""
    if not options.phases:
        raise ValueError("the settings have no phases, so there is nothing to train")
    return given or (Path(options.init) if options.init else None)


def _index_together(sources_path: Path | None, out: Path, sample_rate: int) -> list[SpeakerIndex]:
    """The voices for conversations on the fly; of several processes, the leading one finds their speech."""
    from sortk.formats import sources
    from sortk.prepare.simulate import index_sources
    from sortk.training.processes import leader_first

    found = sources.read(sources_path) if sources_path else []
    with leader_first():
        return index_sources(found, out, sample_rate, map)


def train_asr_folder(
    train: Path,
    valid: Path,
    sources_path: Path | None,
    options: TrainAsrOptions,
    sst: SstOptions,
    init: Path | None,
    diarizer: Path | None,
    seed: int,
    out: Path,
    force: bool,
) -> None:
    """`sortk train-asr`."""
    from sortk.formats import manifest
    from sortk.inference.load import read_asr, read_model
    from sortk.training.train_asr import AsrData, Pretrained, train_asr

    init = _find_init(init, options)

    def work(partial: Path) -> None:
        simulate = SimulateOptions()
        speakers = _index_together(sources_path, partial, simulate.sample_rate)
        data = AsrData(manifest.read(train), manifest.read(valid), sst, speakers, simulate)
        initial = Pretrained(*read_asr(init)) if init else None
        train_asr(data, options, seed, partial, initial, Pretrained(*read_model(diarizer)) if diarizer else None)

    settings = {"seed": seed} | settings_of(sst) | settings_of(options)
    given = {"train": train, "valid": valid, "sources": sources_path, "init": init, "diarizer": diarizer}
    inputs = {name: hash_file(path) for name, path in given.items() if path}
    identity = Identity("sortk train-asr", settings, inputs)
    build_together(lambda lead: build_folder(Folder(out), identity, lead, force), work)


@dataclass(frozen=True)
class DiarizeOutputs:
    """What `sortk diarize` writes of each recording: RTTM, to standard output if there is no folder, and what else."""

    folder: Path | None = None
    probs: bool = False
    plot: bool = False
    html: bool = False

    def write(self, session: Session, segments: Sequence[Segment], probs: Any) -> None:
        from sortk.formats import rttm
        from sortk.formats.files import atomic_text
        from sortk.inference.diarize import posteriors_path, save_posteriors
        from sortk.report.recording import format_recording
        from sortk.report.timeline import draw_timeline

        if self.folder is None:
            sys.stdout.writelines(rttm.format_lines(segments))
            sys.stdout.flush()
            return
        path = posteriors_path(self.folder, session)
        rttm.write(path.with_name(f"{session.session_id}.rttm"), segments)
        if self.probs:
            save_posteriors(path, probs)
        if self.plot:
            with atomic_text(path.with_name(f"{session.session_id}.svg")) as file:
                file.write(draw_timeline(segments, title=session.session_id))
        if self.html:
            with atomic_text(path.with_name(f"{session.session_id}.html")) as file:
                file.write(format_recording(session, segments, probs))


def diarize_files(
    diarizer: Diarizer, paths: Sequence[Path], outputs: DiarizeOutputs, on_error: Callable[[Exception], None]
) -> None:
    """`sortk diarize`."""
    from tqdm import tqdm

    from sortk.inference.diarize import count_seconds, find_sessions
    from sortk.inference.postprocess import FRAME_SECONDS

    sessions = find_sessions(paths)
    began, n_done, n_frames = time.monotonic(), 0, 0
    bar = tqdm(
        total=round(count_seconds(sessions)), desc="diarize", unit=" s", unit_scale=True, disable=None, leave=False
    )
    with bar:
        for session, probs in diarizer.hear(sessions, lambda _, error: on_error(error), bar.update):
            outputs.write(session, diarizer.find_segments(session, probs), probs)
            n_done, n_frames = n_done + 1, n_frames + len(probs)
    spent, seconds = time.monotonic() - began, n_frames * FRAME_SECONDS
    log.info("%d of %d recordings, %.1f s of audio in %.1f s", n_done, len(sessions), seconds, spent)
    if seconds:
        log.info("real-time factor %.4f", spent / seconds)


def diarize_live(diarizer: Diarizer, file: BinaryIO) -> None:
    """`sortk diarize -`: raw samples from a pipe; a line as soon as it is final."""
    from sortk.formats import rttm
    from sortk.inference.live import diarize_pcm

    for segment in diarize_pcm(diarizer, file):
        sys.stdout.writelines(rttm.format_lines([segment]))
        sys.stdout.flush()


def transcribe_files(
    transcriber: Transcriber,
    paths: Sequence[Path],
    out_dir: Path | None,
    style: str,
    on_error: Callable[[Exception], None],
) -> None:
    """`sortk transcribe`."""
    from sortk.inference.diarize import find_sessions
    from sortk.inference.transcribe import print_transcripts, write_transcript

    sessions = find_sessions(paths)
    began, n_done, n_words = time.monotonic(), 0, 0
    transcripts = transcriber.transcribe(sessions, lambda _, error: on_error(error))
    printed = []
    for session, words in transcripts:
        n_done, n_words = n_done + 1, n_words + len(words)
        if out_dir is not None:
            write_transcript(out_dir, session, words, style)
        else:
            printed.append((session, words))
    if out_dir is None:
        print_transcripts(printed, style, sys.stdout)
    spent = time.monotonic() - began
    log.info("%d of %d recordings, %d words in %.1f s", n_done, len(sessions), n_words, spent)


def plot_sessions(manifest_path: Path, out: Path, at_most: int = 12) -> None:
    """Draws who speaks when in the first sessions of a manifest."""
    from sortk.formats import manifest, rttm, seglst
    from sortk.formats.files import atomic_text
    from sortk.report.timeline import draw_timeline

    for session in manifest.read(manifest_path)[:at_most]:
        segments = rttm.read(session.rttm_path) if session.rttm_path else []
        words = seglst.read(session.seglst_path) if session.seglst_path else []
        with atomic_text(out / f"{session.session_id}.svg") as file:
            file.write(draw_timeline(segments, words, session.duration, title=session.session_id))


def report_experiment(exp: Path, out: Path | None) -> Path:
    """`sortk report`; by default the page lies where stage 8 puts it, or else in the experiment's folder."""
    from sortk.report.experiment import open_experiment

    folders = open_experiment(exp)
    out = out or folders.stages.get("score", exp) / "report.html"
    write_report(folders, out)
    return out


def write_report(folders: ExperimentFolders, out: Path) -> None:
    """One self-contained page of an experiment."""
    from sortk.formats.files import atomic_text
    from sortk.report.experiment import format_report

    with atomic_text(out) as file:
        file.write(format_report(folders, _read_speaker_words(folders)))


def _read_speaker_words(folders: ExperimentFolders) -> Callable[[str], dict[str, list[str]]]:
    """How the words of a serialized transcript were scored: by speaker, normalised as stage 8 was told to."""
    from sortk.report.curves import read_json
    from sortk.scoring.normalizers import find_normalizer
    from sortk.scoring.wer_transcripts import parse_turns

    done = folders.file("score", "scores.json")
    settings = read_json(done)["settings"] if done else {}
    normalizer = find_normalizer(settings.get("score", {}).get("normalizer", "none"))

    def words_of(text: str) -> dict[str, list[str]]:
        turns: dict[str, list[str]] = {}
        for speaker, said in parse_turns(text):
            turns.setdefault(speaker, []).append(normalizer.clean_entry(said))
        return {speaker: normalizer.normalize(" ".join(own)).split() for speaker, own in turns.items()}

    return words_of
