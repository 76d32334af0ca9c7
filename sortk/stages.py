"""The stages in order: what each reads, runs and writes. Read this first.

    corpus on disk -> 0 prepare -> 1 simulate -> 2 clean -> 3 timestamps -> 4 sst -> 5 train-diar -> 6 train-asr
                   -> 7 tune -> 8 score

Each stage is one function, and the declaration above it says all that others need to know: which tables of the recipe
it obeys, what it reads, and which flags its own command has. In a recipe (`task.alone` is false) inputs are folders of
earlier stages and the output is a folder of the experiment; `sortk <stage>` runs the same function on any files. The
output may be partly filled by a killed run.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sortk.formats.files import atomic_path, own_path, plural, quote
from sortk.run.folders import find_commit, settings_of, write_json
from sortk.run.stage import Flag, Input, Stage, StageTask

if TYPE_CHECKING:
    from sortk.formats.sst import SstOptions
    from sortk.prepare.sst import CutWords, SstSummary
    from sortk.records import RunJobs, Session
    from sortk.report.experiment import ExperimentFolders
    from sortk.run.experiment import Experiment
    from sortk.scoring.intervals import DerOptions
    from sortk.scoring.results import DerResult, WerResult
    from sortk.scoring.tune import Term
    from sortk.training.data import TrainingData

log = logging.getLogger(__name__)

STAGES: list[Stage] = []
"""All stages in order, as declared below."""

SEED = Flag("--seed", "Seed of all random choices.", ("seed",))
LEVEL = Flag(
    "--level",
    "Where speaker tokens stand in transcripts: before each word, before each segment, or where the speaker changes; "
    "sot and dom-sot have a token for a change of speaker.",
    ("sst.level",),
)
LANGUAGE = (
    Flag("--lang", "Language of the transcripts, such as de_DE.", ("timestamps.lang",)),
    Flag(
        "--rule",
        "What word lengths are estimated from; the same for clean and timestamps.",
        ("timestamps.rule",),
    ),
)


def declare(**declaration: Any) -> Callable[[Callable[[StageTask], str | None]], Stage]:
    """Make the decorated function the next of STAGES; it gives the stage its name."""

    def add(run: Callable[[StageTask], str | None]) -> Stage:
        stage = Stage(number=len(STAGES), name=run.__name__.replace("_", "-"), run=run, **declaration)
        STAGES.append(stage)
        return stage

    return add


def given_paths(*settings: str) -> list[Path]:
    """Return the paths that settings name; a setting that is empty names none."""
    return [Path(setting) for setting in settings if setting]


# ---------------------------------------------------------------------------------------------------------------------


@declare(
    tables=("prepare",),
    inputs=(),
    flags=(
        Flag("corpus", keys=("prepare.corpus",)),
        Flag("--corpus-dir", "Where the corpus is on disk; espeak needs none.", ("prepare.corpus_dir",), metavar="DIR"),
        SEED,
    ),
    files=lambda settings: settings.prepare.own_files,
    revision=1,
)
def prepare(task: StageTask) -> None:
    """Turn a corpus into sources.jsonl or sessions.

    sources.jsonl lists single-speaker utterances; sessions are recordings with several speakers, in manifests.

    CORPUS is one of {corpora}. espeak is a set of voices that come with sortk, sources a ready sources.jsonl, sessions
    your own recordings with RTTM, a manifest or a Kaldi directory. docs/corpora.md describes where to get the others,
    and the directory layout that each needs.

    Writes sources.jsonl, whose utterances are marked train, valid or test; of sessions <set>.jsonl, rttm/, seglst/ and
    uem/; of lists of mixtures mixtures/<set>.jsonl.

    Example: sortk prepare librispeech --corpus-dir /data/LibriSpeech --out data/librispeech
    """
    from sortk.corpora.registry import prepare_corpus

    for split, held in prepare_corpus(task.settings.prepare, task.out, task.seed, task.run_jobs).items():
        counts = plural(held.speakers, "speaker"), plural(held.utterances, "utterance")
        log.info("%s: %s, %s, %.2f h", split, *counts, held.hours)


def _check_simulate(given: Collection[str]) -> str:
    listed = {"--mixtures", "--librispeech"}
    if listed & set(given):
        wrong = "--mixtures and --librispeech go together, and with no settings of simulated sessions"
        return wrong if set(given) != listed else ""
    missing = "give --sources and --hours, or --mixtures and --librispeech"
    return "" if {"--sources", "--hours"} <= set(given) else missing


def _draw_sessions(task: StageTask) -> None:
    from sortk.formats.timeline import draw_sessions

    if task.flags["plot"]:
        draw_sessions(task.out / "manifest.jsonl", task.out / "plots")


@declare(
    tables=("simulate",),
    inputs=(
        Input("sources", "prepare", "sources.jsonl", "--sources", "Single-speaker utterances: sources.jsonl."),
        Input(
            "mixtures",
            "prepare",
            "mixtures",
            "--mixtures",
            "Instead of --sources: a list of LibriSpeechMix, to be made exactly.",
        ),
        Input(
            "librispeech",
            flag="--librispeech",
            help="The LibriSpeech folder that the list's paths are relative to.",
            is_key=False,
        ),
    ),
    flags=(
        Flag("--hours", "Hours of conversation to simulate.", ("simulate.hours.all",)),
        Flag("--speakers", "In a session: a number or a range.", ("simulate.min_speakers", "simulate.max_speakers")),
        Flag("--overlap", "Time with two speakers / time with at least one.", ("simulate.overlap",)),
        Flag("--silence", "Time without speech / duration.", ("simulate.silence",)),
        Flag("--seconds", "Length of a session.", ("simulate.seconds",)),
        Flag("--noise", "A folder with noise to add.", ("simulate.noise_dir",), metavar="DIR"),
        Flag("--rir", "A folder with room impulse responses.", ("simulate.rir_dir",), metavar="DIR"),
        Flag("--split", "Use only the sources of this split."),
        Flag("--plot", "Draw the first sessions into plots/, as SVG.", is_switch=True),
        SEED,
    ),
    files=lambda settings: given_paths(settings.simulate.noise_dir, settings.simulate.rir_dir, settings.simulate.like),
    check=_check_simulate,
    finish=_draw_sessions,
)
def simulate(task: StageTask) -> None:
    """Make conversations out of single-speaker speech.

    Writes manifest.jsonl, audio/, rttm/, seglst/ and ctm/ (words), and plan/ (how each session was made).

    Example: sortk simulate --sources data/sources.jsonl --out data/sim --hours 2 --speakers 2-4 --nj 4
    """
    from sortk.formats import mixlist, sources
    from sortk.prepare.librispeechmix import ListedMixtures, list_at_random, mix_at_random, mix_lists
    from sortk.prepare.render import write_set
    from sortk.prepare.simulate import index_sources, simulate_set, simulate_splits

    options, seed, out, run_jobs = task.settings.simulate, task.seed, task.out, task.run_jobs
    if task.alone:  # one set, whose manifest is manifest.jsonl
        if "mixtures" in task.inputs:
            mixer = ListedMixtures(mixlist.read(task.inputs["mixtures"]), task.inputs["librispeech"])
            summary = write_set(mixer, len(mixer.mixtures), out / "manifest.jsonl", run_jobs)
        else:
            hours, split = sum(options.hours.values()), task.flags["split"]
            if hours == 0:
                raise ValueError("hours must be more than 0")
            utterances = [source for source in sources.read(task.inputs["sources"]) if split in (None, source.split)]
            speakers = index_sources(utterances, out, options.sample_rate, run_jobs)
            summary = simulate_set(speakers, options, seed, "sim", hours, out / "manifest.jsonl", run_jobs)
        write_json(out / "summary.json", summary.to_json())
        return
    # A recipe: conversations of the splits of `hours`, mixtures at random, and those that stage 0 lists; each set is
    # <set>.jsonl. mixtures/<set>.jsonl lists the mixtures that training renders.
    utterances, lists = sources.read(task.inputs["sources"]), sorted(task.inputs["mixtures"].glob("*.jsonl"))
    simulated, listed = [name for name in options.hours if options.hours[name]], [path.stem for path in lists]
    for name, n_ways in Counter([*simulated, *options.mixtures, *listed]).items():
        if n_ways > 1:
            raise ValueError(
                f"set {name} is to be made in two ways; choose one of simulate.hours, simulate.mixtures and the "
                "corpus's own list of mixtures"
            )
    summaries = simulate_splits(utterances, options, seed, out, run_jobs)
    listed_only = {name: count for name, count in options.mixtures.items() if name in options.on_the_fly}
    rendered = {name: count for name, count in options.mixtures.items() if name not in options.on_the_fly}
    summaries |= mix_at_random(utterances, rendered, seed, out, run_jobs, options.joined_sources)
    summaries |= mix_lists(lists, out, run_jobs)
    made = {name: summary.to_json() for name, summary in summaries.items()}
    made |= list_at_random(utterances, listed_only, seed, out, options.joined_sources)
    write_json(out / "summary.json", made)


@declare(
    # Cutting between words needs their times, so stage 2 computes them as stage 3 will.
    tables=("clean", "timestamps"),
    inputs=(
        Input("prepared", "prepare"),
        Input("simulated", "simulate"),
        Input("manifest", flag="--manifest", help="The sessions to clean.", required=True),
        Input("probs", flag="--probs", help="Instead of --diarizer: a folder with its posteriors, <session>.npy."),
    ),
    flags=(
        Flag("--sad", "What refines boundaries.", ("clean.sad",)),
        Flag(
            "--diarizer",
            "A trained model whose posteriors refine boundaries too.",
            ("clean.diarizer",),
            metavar="MODEL",
        ),
        *LANGUAGE,
    ),
    model=lambda settings: settings.clean.diarizer,
    check=lambda given: "give --diarizer or --probs, not both" if {"--diarizer", "--probs"} <= set(given) else "",
    revision=1,
)
def clean(task: StageTask) -> None:
    """Refine annotations, cut windows and samples.

    Drops what would harm a model. Writes diar/ (windows of at most 90 s), asr/ (samples of 10-20 s to learn from),
    scored/ (samples of 10-20 s that keep every word, to score), rejected.jsonl and summary.json. With a diarizer, its
    posteriors go to probs/.

    Example: sortk clean --manifest data/ami.jsonl --out data/ami-clean --nj 4
    """
    from sortk.formats import manifest
    from sortk.prepare.clean import clean_sets, find_refined
    from sortk.scoring.tune import check_development

    options, words = task.settings.clean, task.settings.timestamps
    if task.alone:
        sets = {"manifest": manifest.read(task.inputs["manifest"])}
    else:
        sets = read_sets(task)
        development = [session for name in task.settings.tune.sets for session in sets.get(name, ())]
        if development:  # before the models are trained, not after
            check_development(development, _find_objective(task))
    probs = task.inputs.get("probs")
    if options.diarizer:
        from sortk.inference.diarize import write_posteriors
        from sortk.inference.pools import PooledDiarizer

        probs = task.out / "probs"
        write_posteriors(PooledDiarizer(Path(options.diarizer), task.run_jobs), find_refined(sets, options), probs)
    clean_sets(sets, options, words, task.out, task.run_jobs, probs, task.seed)


@declare(
    tables=("timestamps",),
    inputs=(
        Input(
            "transcripts",
            "clean",
            "seglst",
            "--seglst",
            "Transcripts: a SegLST file, or a folder of them.",
            required=True,
            suffix=".json",
        ),
    ),
    flags=LANGUAGE,
    marker=".done.json",  # all other .json files are transcripts
)
def timestamps(task: StageTask) -> None:
    """Estimate word times from the times of segments.

    Writes OUT/<session>.json, one entry per word.

    Example: sortk timestamps --seglst data/ami/seglst --out data/ami-words
    """
    from sortk.prepare.timestamps import write_timestamps

    out = task.out if task.alone else task.out / "seglst"
    summary = write_timestamps(
        task.inputs["transcripts"], out, task.settings.timestamps, task.run_jobs, allow_empty=not task.alone
    )
    log.info("%s", summary)
    if not task.alone:
        write_json(task.out / "summary.json", summary.to_json())


@declare(
    tables=("sst",),
    inputs=(
        Input(
            "words",
            "timestamps",
            "seglst",
            "--seglst",
            "Words: a SegLST file, or a folder of them.",
            required=True,
            suffix=".json",
        ),
        Input("cleaned", "clean"),
        Input("manifest", flag="--manifest", help="Samples of these recordings (asr/ of clean)."),
        Input(
            "transcripts",
            "clean",
            "seglst",
            "--transcripts",
            "With --manifest: the folder of segments that the words were taken from.",
        ),
    ),
    flags=(LEVEL,),
    check=lambda given: (
        "--transcripts needs --manifest; without it, give the transcripts as --seglst"
        if "--transcripts" in given and "--manifest" not in given
        else ""
    ),
    writes_file=True,
)
def sst(task: StageTask) -> None:
    """Build sorted serialized transcripts.

    Writes lines {"session_id", "text"}; `<spk0>` is who speaks first. With --manifest, the lines of that manifest with
    their text: in each sample, `<spk0>` is who speaks first in it.

    Example: sortk sst --seglst data/ami-words --manifest data/ami-clean/asr/manifest.jsonl --out data/ami-sst.jsonl
    """
    from sortk.prepare.sst import write_sst

    options, words, transcripts = task.settings.sst, task.inputs["words"], task.inputs.get("transcripts")
    if task.alone and "manifest" not in task.inputs:
        log.info("%s: %s", task.out.name, write_sst(words, task.out, options, task.run_jobs))
        return
    if task.alone:
        samples = task.inputs["manifest"]
        summary = _serialize_manifest(samples, words, options, task.out, task.run_jobs, "error", transcripts)
        log.info("%s: %s", task.out.name, summary)
        return
    # A recipe: samples to learn from, and in scored/ samples to score.
    summaries = {}
    kinds: dict[str, tuple[Path, CutWords]] = {"asr": (task.out, "error"), "scored": (task.out / "scored", "middle")}
    for kind, (out, cut_words) in kinds.items():
        for path in sorted((task.inputs["cleaned"] / kind).glob("*.jsonl")):
            summary = _serialize_manifest(path, words, options, out / path.name, task.run_jobs, cut_words, transcripts)
            name = (out / path.stem).relative_to(task.out).as_posix()
            if summary.sessions or summary.empty_sessions:
                log.info("%s.jsonl: %s", name, summary)
            summaries[name] = summary.to_json()
    if not any(summary["sessions"] for summary in summaries.values()):
        log.info("no transcripts")
    write_json(task.out / "summary.json", summaries)


def _serialize_manifest(
    samples_path: Path,
    words: Path,
    options: SstOptions,
    out: Path,
    run_jobs: RunJobs,
    cut_words: CutWords,
    transcripts: Path | None,
) -> SstSummary:
    """Write the samples of a manifest with their SST as text, from the words of their recordings; segments are those
    of `transcripts`, from which the words were taken."""
    from sortk.formats import manifest
    from sortk.prepare.sst import serialize_sessions

    samples = [
        # A sample that names no transcript stays as it is: serializing it is an error that names it.
        replace(sample, seglst_path=words / sample.seglst_path.name) if sample.seglst_path else sample
        for sample in manifest.read(samples_path)
    ]
    serialized, summary = serialize_sessions(samples, options, run_jobs, cut_words, transcripts)
    manifest.write(out, serialized)
    return summary


@declare(
    # Conversations on the fly have the ratios of the simulate table.
    tables=("train_diar", "simulate"),
    inputs=(
        Input(
            "train", "clean", "diar/train.jsonl", "--train", "Manifest of the sessions to learn from.", required=True
        ),
        Input(
            "valid", "clean", "diar/valid.jsonl", "--valid", "Manifest of the sessions to validate on.", required=True
        ),
        Input(
            "sources", "prepare", "sources.jsonl", "--sources", "A sources.jsonl, for phases that simulate on the fly."
        ),
        Input("simulated", "simulate"),
        Input("init", flag="--init", help="Start from this model: a folder, .nemo file or name.", is_model=True),
    ),
    flags=(SEED,),
    files=lambda settings: given_paths(settings.train_diar.encoder_warmup.teacher),
    model=lambda settings: settings.train_diar.init,
    trains=True,
)
def train_diar(task: StageTask) -> None:
    """Train a diarizer.

    Writes model/ (config.json, model.safetensors) and checkpoints/; the same command continues after a stop.

    Example: sortk train-diar --train train.jsonl --valid valid.jsonl --out exp/diar --set size=tiny
    """
    from sortk.formats.hub import find_model
    from sortk.formats.model_folder import save_model
    from sortk.inference.linking import VOICES_NAME
    from sortk.inference.load import read_model
    from sortk.training.data import Pretrained
    from sortk.training.diarizer import train_diarizer

    options = task.settings.train_diar
    init = task.inputs.get("init", options.init)
    initial = Pretrained(*read_model(Path(init))) if init else None
    if initial and "linking" in initial.config and (voices := find_model(init) / VOICES_NAME).is_file():
        # Further training changes the vectors of voices, but less than starting without any statistics would.
        with atomic_path(task.out / "model" / VOICES_NAME) as written:
            shutil.copyfile(voices, written)
    if initial and not options.phases:
        save_model(task.out / "model", initial.weights, initial.config)
        return
    train_diarizer(_read_training_data(task), options, task.seed, task.out, initial)


def _read_training_data(task: StageTask) -> TrainingData:
    """Read the manifests, and the voices for conversations on the fly: in a recipe those of stage 1, else those of
    sources.jsonl, whose speech is found here. In a recipe, train.jsonl may be missing (`hours.train = 0`)."""
    from sortk.formats import manifest, sources
    from sortk.formats.mixlist import IndexedList
    from sortk.prepare.librispeechmix import ListedMixtures, list_path
    from sortk.prepare.simulate import index_sources, read_speakers
    from sortk.training.data import TrainingData
    from sortk.training.processes import rank0_first

    options, train = task.settings.simulate, task.inputs["train"]
    utterances = sources.read(task.inputs["sources"]) if "sources" in task.inputs else []
    mixtures = None
    if task.alone:
        with rank0_first():  # of several processes, one finds the speech
            speakers = index_sources(utterances, task.out, options.sample_rate, map)
    else:
        names = {source.speaker for source in utterances if source.split == "train"}
        speakers = [speaker for speaker in read_speakers(task.inputs["simulated"]) if speaker.speaker in names]
        listed = list_path(task.inputs["simulated"], "train")
        mixtures = ListedMixtures(IndexedList(listed), listed.parent, rounds=False) if listed.exists() else None
    recorded = manifest.read(train) if task.alone or train.exists() else []
    return TrainingData(recorded, manifest.read(task.inputs["valid"]), speakers, options, mixtures)


@declare(
    tables=("train_asr", "simulate", "sst"),
    inputs=(
        Input(
            "train",
            "sst",
            "train.jsonl",
            "--train",
            "Manifest of the samples to learn from, with text (stage 4).",
            required=True,
        ),
        Input("valid", "sst", "valid.jsonl", "--valid", "Manifest of the samples to validate on.", required=True),
        Input(
            "diarizer",
            "train-diar",
            "model",
            "--diarizer",
            "The Sortformer that supervises the ASR: a model folder, a .nemo file or a name.",
            is_model=True,
        ),
        Input(
            "sources", "prepare", "sources.jsonl", "--sources", "A sources.jsonl, for phases that simulate on the fly."
        ),
        Input("simulated", "simulate"),
        Input("init", flag="--init", help="Start from this ASR: a folder, .nemo file or name.", is_model=True),
        Input("cleaned", "clean", is_key=False),  # the samples of stage 4 name annotations of stage 2
        Input("words", "timestamps", is_key=False),  # and words of stage 3
    ),
    flags=(LEVEL, SEED),
    model=lambda settings: settings.train_asr.init,
    trains=True,
    wanted=lambda settings: settings.asr,
)
def train_asr(task: StageTask) -> None:
    """Train a multi-speaker ASR with speaker supervision.

    Writes model/ (config.json, model.safetensors, tokenizer.model) and checkpoints/; the same command continues after a
    stop.

    Example: sortk train-asr --train train.jsonl --valid valid.jsonl --diarizer exp/diar/model --out exp/asr
    """
    from sortk.formats.model_folder import save_model
    from sortk.formats.tokens import save_tokenizer
    from sortk.inference.load import read_asr, read_model
    from sortk.training.asr import train_asr
    from sortk.training.data import Pretrained

    options = task.settings.train_asr
    init = task.inputs.get("init", options.init)
    initial = Pretrained(*read_asr(Path(init))) if init else None
    if initial and initial.tokenizer and not options.phases:
        save_tokenizer(task.out / "model", initial.tokenizer)
        save_model(task.out / "model", initial.weights, initial.config)
        return
    diarizer = Pretrained(*read_model(task.inputs["diarizer"])) if "diarizer" in task.inputs else None
    train_asr(_read_training_data(task), task.settings.sst, options, task.seed, task.out, initial, diarizer)


@declare(
    tables=("tune", "score"),
    inputs=(
        Input("model", "train-diar", "model", "--model", "The diarizer: a folder, .nemo file or name.", is_model=True),
        Input("probs", flag="--probs", help="Instead of --model: a folder with its posteriors, <session>.npy."),
        Input("prepared", "prepare"),
        Input("simulated", "simulate"),
        Input("manifest", flag="--manifest", help="The development set, with its RTTM.", required=True),
    ),
    flags=(
        Flag("--trials", "Total number of trials, including those of earlier runs.", ("tune.trials",)),
        Flag("--collar", "Seconds on EACH side of a boundary that are not scored.", ("score.collar",)),
        Flag("--storage", "A database for the study, in place of a journal beside OUT.", ("tune.storage",), "URL"),
        Flag("--device", "Where the model runs: cpu, cuda, cuda:1, ...; else on the GPU if there is one."),
        Flag("--force", "Replace the .json beside OUT even if it is not the history of a search.", is_switch=True),
        SEED,
    ),
    check=lambda given: "" if ("--model" in given) != ("--probs" in given) else "give either --model or --probs",
    writes_file=True,
)
def tune(task: StageTask) -> None:
    """Find the postprocessing with the lowest DER.

    The DER is that of a development set. Writes OUT and, of the same name, a .json with the history of the search. The
    same command continues the study; run it in several processes at once, and they share the work.

    Example: sortk tune --model exp/diar/model --manifest dev.jsonl --out postprocess.toml --trials 200
    """
    from sortk.formats import manifest
    from sortk.formats.files import atomic_text
    from sortk.report.study import draw_study
    from sortk.scoring.evaluate import choose_sessions
    from sortk.scoring.tune import (
        check_history_path,
        check_not_scored,
        name_cache,
        read_tune_set,
        tune,
        write_session_posteriors,
        write_tuned,
    )

    options, scored, out = replace(task.settings.tune, objective=_find_objective(task)), task.settings.score, task.out
    if task.alone:
        sessions = manifest.read(task.inputs["manifest"])
        study, postprocess = out.with_name(f"{out.stem}.study.log"), out
        check_history_path(out, force=bool(task.flags.get("force")))
        probs = task.inputs.get("probs") or name_cache(out, task.inputs["model"], sessions)
    else:
        sets = read_sets(task)
        sessions = [session for own in choose_sessions(sets, options.sets).values() for session in own]
        if not options.even_if_scored:
            check_not_scored(sessions, [session for name in scored.sets for session in sets.get(name, ())])
        study, postprocess, probs = out / "study.log", out / "postprocess.toml", out / "probs"
    if "model" in task.inputs:
        write_session_posteriors(task.inputs["model"], sessions, probs, task.flags.get("device"), task.run_jobs)
    tuned = tune(read_tune_set(sessions, probs), options, task.seed, study)
    write_tuned(postprocess, tuned, options, task.seed)
    if not task.alone:
        with atomic_text(out / "study.svg") as file:
            title = f"{task.settings.name}: search for postprocessing"
            file.write(draw_study(tuned.history, tuned.importance, title))
    for name, der in tuned.presets.items():
        log.info("preset %-9s DER %6.2f %%", name, 100 * der)
    log.info("tuned            DER %6.2f %%, %s", 100 * tuned.der_after, plural(len(tuned.history), "trial"))


def _find_objective(task: StageTask) -> tuple[Term, ...]:
    """Return what stage 7 minimises: what the recipe says, or else the DER that stage 8 reports."""
    from sortk.scoring.tune import Term

    scored = task.settings.score
    return task.settings.tune.objective or (Term(scored.collar, scored.skip_overlap),)


@declare(
    tables=("score",),
    inputs=(
        Input("prepared", "prepare"),
        Input("simulated", "simulate"),
        Input("cleaned", "clean"),
        Input("words", "timestamps", is_key=False),  # the samples of stage 4 name them
        Input("serialized", "sst"),
        Input("diarizer", "train-diar", "model"),
        Input("asr", "train-asr", "model"),
        Input("postprocess", "tune", "postprocess.toml"),
    ),
)
def score(task: StageTask) -> str:
    """Score both models on the test sets, in a recipe.

    Writes hypotheses in hyp/, scores.json, RESULTS.md and report.html. The commands `sortk score der`, `sortk score
    cpwer`, ... score files of any system.
    """
    from sortk.formats.files import atomic_text
    from sortk.formats.postprocess import Postprocess, read_postprocess
    from sortk.inference.pools import PooledDiarizer
    from sortk.report.curves import read_json
    from sortk.report.experiment import find_folders
    from sortk.scoring.evaluate import choose_sessions, evaluate_diarizer
    from sortk.scoring.intervals import DerOptions
    from sortk.scoring.results import Coverage, Results, as_json, format_results, format_summary

    recipe, options = task.settings, task.settings.score
    sets = choose_sessions(read_sets(task), options.sets)
    postprocessing = {"none": Postprocess(), "tuned": read_postprocess(task.inputs["postprocess"])}
    diarizer, system = PooledDiarizer(task.inputs["diarizer"], task.run_jobs), recipe.train_diar.describe()
    der_options = DerOptions(options.collar, options.skip_overlap)
    der = [
        result
        for name, sessions in sets.items()
        for result in evaluate_diarizer(
            diarizer, system, name, sessions, postprocessing, der_options, task.out / "hyp" / name
        )
    ]
    initial = _score_initial(task, sets, der_options)
    wer = _score_asr(task) if "asr" in task.inputs else []
    tables = ("train_diar", "train_asr", "tune", "score") if recipe.asr else ("train_diar", "tune", "score")
    settings = {"seed": recipe.seed} | {table: settings_of(getattr(recipe, table)) for table in tables}
    coverage = []
    if wer:
        cleaned, serialized = (read_json(task.inputs[name] / "summary.json") for name in ("cleaned", "serialized"))
        coverage = [Coverage.of(name, cleaned[name], serialized[f"scored/{name}"]) for name in options.sets]
    results = Results(recipe.name, find_commit(), time.strftime("%Y-%m-%d"), settings, der, wer, coverage, initial)
    write_json(task.out / "scores.json", as_json(results))
    with atomic_text(task.out / "RESULTS.md") as file:
        file.write(format_results(results))
    # The page also shows stages that this one does not read, if they are there: no score depends on them.
    roots = dict.fromkeys([task.out.parent, *(folder.parent for folder in task.folders.values())])
    known = {**task.folders, "score": task.out}
    write_report(find_folders(list(roots), folder_names(), known), task.out / "report.html")
    out = task.out.with_name(task.out.name.removesuffix(".partial"))
    return f"\n{format_summary(results)}\n\nmore: {out / 'RESULTS.md'}\npage: {out / 'report.html'}\n"


def _score_initial(task: StageTask, sets: Mapping[str, Sequence[Session]], options: DerOptions) -> list[DerResult]:
    """Score the diarizer that training started from, so that the results show what training changed."""
    from sortk.formats.postprocess import Postprocess
    from sortk.inference.load import read_kind
    from sortk.inference.pools import PooledDiarizer
    from sortk.scoring.evaluate import evaluate_diarizer

    init = task.settings.train_diar.init
    if not init or not task.settings.train_diar.phases:
        return []
    try:
        if not read_kind(Path(init)).is_diarizer:  # such as an encoder
            return []
    except (OSError, ValueError) as error:
        log.warning("the initial model is not scored: %s", error)
        return []
    diarizer, system = PooledDiarizer(Path(init), task.run_jobs), f"initial model: {Path(init).name}"
    return [
        result
        for name, sessions in sets.items()
        for result in evaluate_diarizer(
            diarizer, system, name, sessions, {"none": Postprocess()}, options, task.out / "hyp" / name / "initial"
        )
    ]


def _score_asr(task: StageTask) -> list[WerResult]:
    from sortk.formats import manifest
    from sortk.formats.model_folder import load_config, read_sst_level
    from sortk.inference.pools import PooledTranscriber
    from sortk.scoring.evaluate import evaluate_asr
    from sortk.scoring.wer import WerOptions

    recipe, options, model = task.settings, task.settings.score, task.inputs["asr"]
    config = load_config(model)
    # The Sortformer inside a model is the one it was trained with: in system 3 it was fine-tuned there.
    diarizer = None if config["options"].get("diarizer") else task.inputs["diarizer"]
    decoding = options.decoding if read_sst_level(config) else "free"  # nothing to decode by
    transcriber = PooledTranscriber(model, diarizer, decoding, task.run_jobs)
    wer_options = WerOptions(options.normalizer, style="librispeechmix" if options.mixtures else "sorted")
    return [
        result
        for name in options.sets
        for result in evaluate_asr(
            transcriber,
            recipe.train_asr.describe(recipe.sst.level),
            name,
            manifest.read(task.inputs["serialized"] / "scored" / f"{name}.jsonl"),
            wer_options,
            recipe.train_asr.speaker_tokens,
            task.out / "hyp" / name / "words",
        )
    ]


# ---------------------------------------------------------------------------------------------------------------------
# Used by other modules


def find_stage(number_or_name: int | str) -> Stage:
    """Return the stage of that number ("5") or name ("train-diar")."""
    for stage in STAGES:
        if str(number_or_name) in (str(stage.number), stage.name):
            return stage
    raise ValueError(f"there is no stage {quote(number_or_name)}; stages: {list_stages()}")


def list_stages() -> str:
    """Return "0 prepare, 1 simulate, ..."."""
    return ", ".join(f"{stage.number} {stage.name}" for stage in STAGES)


def open_experiment(name_or_path: str, exp: Path | None, overrides: Sequence[str], variant: str = "") -> Experiment:
    """Return the stages of a recipe, or of a variant of it, in `exp`, by default exp/<recipe>."""
    from sortk.recipe import load_recipe, load_shareable
    from sortk.run.experiment import Experiment

    recipe = load_recipe(name_or_path, overrides, variant)
    shareable = load_shareable(name_or_path, overrides, variant)
    return Experiment(STAGES, recipe, exp or Path("exp") / recipe.name, variant, shareable)


def write_report(folders: ExperimentFolders, out: Path) -> None:
    """Write one self-contained page of an experiment."""
    from sortk.formats.files import atomic_text
    from sortk.report.experiment import format_report

    with atomic_text(out) as file:
        file.write(format_report(folders))


def report_experiment(exp: Path, out: Path | None) -> Path:
    """Write the page of an experiment; by default where stage 8 puts it, or else into the experiment's folder."""
    from sortk.report.experiment import open_experiment

    folders = open_experiment(exp, folder_names())
    out = out or own_path(folders.stages.get("score", exp) / "report.html")
    write_report(folders, out)
    return out


def folder_names() -> dict[str, str]:
    """Return the name of each stage's folder in an experiment."""
    return {stage.name: stage.folder_name for stage in STAGES}


def read_sets(task: StageTask) -> dict[str, list[Session]]:
    """Read the sessions that stages 0 and 1 have made for a recipe."""
    return sets_of(task.inputs["prepared"], task.inputs["simulated"])


def sets_of(*folders: Path) -> dict[str, list[Session]]:
    """Read the sessions of the manifests <set>.jsonl in the folders, by set."""
    from sortk.formats import manifest

    sets: dict[str, list[Session]] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.jsonl")):
            if path.name != "sources.jsonl":
                sets.setdefault(path.stem, []).extend(manifest.read(path))
    return sets
