"""Stage 7: the postprocessing with the lowest DER on a development set, found by Optuna's TPE.

Posteriors and references are prepared once; a trial then takes a few milliseconds of numpy. The study is kept in a
journal file, or a database by its URL: several processes may work on one study, and a killed one continues with all
finished trials. A study's name holds a key over posteriors, references and objective, so trials of different
tasks never mix. What a trial tries follows from the seed, its place and the trials before it, not from the process.

The shipped presets are the first trials, and inside the space, so the result is never worse than any of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sortk.formats import posteriors
from sortk.formats.files import FormatError, absolute_path, atomic_text, make_folder, plural
from sortk.formats.posteriors import Probs
from sortk.formats.postprocess import PRESETS, Postprocess, write_postprocess
from sortk.inference.postprocess import UNIT_SECONDS, PosteriorRows, find_all_segments, join_posteriors
from sortk.options import option
from sortk.progress import ProgressBar
from sortk.records import FRAME_SECONDS, Region, RunJobs, Segment, Session
from sortk.scoring.der import read_references
from sortk.scoring.intervals import DerOptions, Reference, prepare_reference
from sortk.scoring.sessions import name_sessions

if TYPE_CHECKING:
    from optuna import Study
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage, RDBStorage
    from optuna.storages.journal import JournalFileOpenLock
    from optuna.trial import FrozenTrial


log = logging.getLogger(__name__)

SPACE = {
    "onset": (0.01, 0.99),
    "offset": (0.01, 0.99),
    "pad_onset": (0.0, 0.5),
    "pad_offset": (0.0, 0.5),
    "min_duration_on": (0.0, 1.0),
    "min_duration_off": (0.0, 1.0),
}
"""Lowest and highest value of each parameter; wide enough for all presets."""

THRESHOLDS = ("onset", "offset")  # all others are seconds, in whole units of decisions: so 0 is a value like any other

N_DECIMALS = 4  # of the values that are written: finer than posteriors and frames resolve


@dataclass(frozen=True)
class Term:
    """A pooled DER, and how much it counts in the objective."""

    collar: float = 0.25  # seconds on each side of a reference boundary
    skip_overlap: bool = False  # leave out time in which several reference speakers talk
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not (isfinite(self.weight) and self.weight > 0):
            raise ValueError(f"weight must be more than 0, not {self.weight}")


@dataclass(frozen=True)
class TuneOptions:
    """Settings of stage 7."""

    trials: int = 200  # in all, including those of earlier runs and other processes
    objective: tuple[Term, ...] = ()  # the weighted mean of these is minimised; none: the DER that stage 8 reports
    storage: str = option(
        "", secret=True
    )  # URL of a database, instead of a journal file: postgresql://..., mysql://...
    sets: tuple[str, ...] = ("valid",)  # stage 7: splits of the corpus, and of the simulated sessions, to tune on
    even_if_scored: bool = False  # stage 7: tune also on sessions that stage 8 scores; such a score says little

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise ValueError(f"trials must be at least 1, not {self.trials}")

    @property
    def terms(self) -> tuple[Term, ...]:
        return self.objective or (Term(),)


@dataclass(frozen=True)
class TuneSet:
    """A development set by session id; all times count from the first frame of the posteriors."""

    posteriors: Mapping[str, Probs]  # (frames, speakers)
    references: Mapping[str, Sequence[Segment]]
    uem: Mapping[str, Sequence[Region]] | None = None  # without one, all time is scored
    frame_seconds: float = FRAME_SECONDS

    def __post_init__(self) -> None:
        if not self.posteriors:
            raise ValueError("there are no sessions to tune on")
        for what, names in (("references", self.references), ("regions to score", self.uem)):
            if names is not None and (missing := self.posteriors.keys() ^ names.keys()):
                raise ValueError(f"posteriors and {what} must be of the same sessions; {name_sessions(missing)} differ")

    def key(self) -> str:
        """Return a key over everything in it."""
        digest = hashlib.sha256()
        for name in sorted(self.posteriors):
            probs = np.ascontiguousarray(self.posteriors[name], np.float32)
            spans = sorted((part.speaker, part.start, part.end) for part in self.references[name])
            regions = None if self.uem is None else sorted((part.start, part.end) for part in self.uem[name])
            digest.update(repr((name, probs.shape, spans, regions, self.frame_seconds)).encode())
            digest.update(probs.tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Tuned:
    """What a search found; DER is the objective, as a fraction."""

    postprocess: Postprocess
    der_before: float  # of posteriors cut at one half
    der_after: float
    presets: Mapping[str, float]  # DER of each
    history: tuple[tuple[int, float], ...]  # place and DER of each finished trial
    importance: Mapping[str, float]  # of each parameter; they sum to 1


class Objective:
    """A set and what is measured on it, ready for thousands of trials."""

    def __init__(self, data: TuneSet, terms: Sequence[Term]) -> None:
        names = list(data.posteriors)
        references = [data.references[name] for name in names]
        uem = None if data.uem is None else [data.uem[name] for name in names]
        self._rows: PosteriorRows = join_posteriors([data.posteriors[name] for name in names], data.frame_seconds)
        self._terms: list[tuple[float, Reference]] = [
            (term.weight, prepare_reference(references, uem, DerOptions(term.collar, term.skip_overlap, "fast")))
            for term in terms
        ]
        _check_scorable(references, terms, [reference for _, reference in self._terms])

    def __call__(self, postprocess: Postprocess) -> float:
        """Return the weighted mean of pooled DERs."""
        found = find_all_segments(self._rows, postprocess)
        total = sum(weight * reference.score_pooled(found).der for weight, reference in self._terms)
        return total / sum(weight for weight, _ in self._terms)


FEW_SESSIONS = 5  # below, values that fit one session may fit no other


def check_development(sessions: Sequence[Session], terms: Sequence[Term]) -> None:
    """Raise ValueError if the sessions to tune on have no speech that can be scored: hours of training come before."""
    references, uem = read_references(sessions)
    own, regions = list(references.values()), None if uem is None else list(uem.values())
    prepared = [prepare_reference(own, regions, DerOptions(term.collar, term.skip_overlap, "fast")) for term in terms]
    _check_scorable(own, terms, prepared)


def _check_scorable(
    references: Sequence[Sequence[Segment]], terms: Sequence[Term], prepared: Sequence[Reference]
) -> None:
    for term, reference in zip(terms, prepared, strict=True):
        if not reference.region_us.sum():
            seconds = sum(segment.duration for segments in references for segment in segments)
            overlap = " and without overlap" if term.skip_overlap else ""
            raise ValueError(
                f"the development set ({plural(len(references), 'session')}, {seconds:.1f} s of speech) has nothing "
                f"left to score after a collar of {term.collar:g} s{overlap}; give more sessions "
                "(prepare.valid_fraction, or folders train/, dev/ and test/) or a smaller score.collar (sortk tune: "
                "--collar)"
            )


def tune(data: TuneSet, options: TuneOptions, seed: int, study_path: Path) -> Tuned:
    """Run the trials that the study still lacks, and return what it found; `study_path` is the journal."""
    objective = Objective(data, options.terms)
    if len(data.posteriors) < FEW_SESSIONS:
        log.warning(
            "tuning on %s: the tuned values may not carry over to other recordings",
            plural(len(data.posteriors), "development session"),
        )
    presets = {name: objective(preset) for name, preset in PRESETS.items()}
    task = hashlib.sha256(repr((data.key(), options.terms, SPACE)).encode()).hexdigest()
    with open_study(study_path, options.storage, f"sortk-tune-{task[:16]}", seed) as study:
        with contextlib.nullcontext() if options.storage else working_on(study, study_path):
            _run_trials(study, objective, options.trials)
        finished = _finished(study)
        importance = measure_importance(study)
    best_first = sorted(finished, key=lambda trial: (_value(trial), trial.number))
    candidates = [
        Postprocess(**{name: round(value, N_DECIMALS) for name, value in trial.params.items()})
        for trial in best_first[:5]
    ]
    best = min([*candidates, *PRESETS.values()], key=objective)
    return Tuned(
        best,
        presets["none"],
        objective(best),
        presets,
        tuple((place, _value(trial)) for place, trial in enumerate(finished)),
        importance,
    )


def _run_trials(study: Study, objective: Objective, n_trials: int) -> None:
    from optuna.distributions import FloatDistribution  # noqa: PLC0415 - only tuning needs it

    space = {
        name: FloatDistribution(low, high, step=None if name in THRESHOLDS else UNIT_SECONDS)
        for name, (low, high) in SPACE.items()
    }
    n_finished = len(_finished(study))
    if n_finished:
        log.info("the study has %d finished trials", n_finished)
    with ProgressBar(total=n_trials, initial=min(n_finished, n_trials), desc="tuning", unit=" trials") as bar:
        while n_finished < n_trials:
            _enqueue_preset(study)
            trial = study.ask(dict(space))
            study.tell(trial, objective(Postprocess(**trial.params)))
            n_before, n_finished = n_finished, len(_finished(study))  # other processes may finish some, too
            bar.update(n_finished - n_before)


def _enqueue_preset(study: Study) -> None:
    """Enqueue the first preset that has not been tried: one at a time, so that a kill does not change their order."""
    from optuna.trial import TrialState  # noqa: PLC0415

    tried = [
        trial.system_attrs.get("fixed_params", trial.params)
        for trial in study.get_trials(deepcopy=False)
        if trial.state != TrialState.FAIL
    ]
    for preset in PRESETS.values():
        if asdict(preset) not in tried:
            study.enqueue_trial(asdict(preset))
            return


def _finished(study: Study) -> list[FrozenTrial]:
    from optuna.trial import TrialState  # noqa: PLC0415

    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))


def _value(trial: FrozenTrial) -> float:
    assert trial.value is not None  # it is finished
    return trial.value


def check_history_path(path: Path, force: bool = False) -> None:
    """Raise a ValueError if `path`, a postprocess.toml to write, is not a file, or the .json beside it is something
    else than a history."""
    if path.exists() and not path.is_file():  # such as /dev/stdout
        raise ValueError(f"{path} is not a file; the study is kept beside --out, so give a file, such as dev.toml")
    history = path.with_suffix(".json")
    if force or not history.exists():
        return
    try:
        content = json.loads(history.read_text(encoding="utf-8"))
    except (ValueError, OSError):
        content = None
    if not isinstance(content, dict) or not {"values", "history", "importance"} <= content.keys():
        raise ValueError(
            f"{history} exists and is not the history of a search, which would replace it; give another --out, or use "
            "--force"
        )


def write_tuned(path: Path, tuned: Tuned, options: TuneOptions, seed: int) -> None:
    """`path`: postprocess.toml; beside it, of the same name, a .json with history and importance for the report."""
    objective = [asdict(term) for term in options.terms]
    notes: dict[str, str | float] = {
        "der_before": tuned.der_before,
        "der_after": tuned.der_after,
        "trials": len(tuned.history),
        "objective": json.dumps(objective),
        "seed": seed,
    }
    study = {
        "values": asdict(tuned.postprocess),
        "der_before": tuned.der_before,
        "der_after": tuned.der_after,
        "presets": dict(tuned.presets),
        "objective": objective,
        "seed": seed,
        "history": [{"trial": number, "der": der} for number, der in tuned.history],
        "importance": dict(tuned.importance),
    }
    with atomic_text(path.with_suffix(".json")) as file:
        json.dump(study, file, indent=1)
        file.write("\n")
    write_postprocess(path, tuned.postprocess, notes)


# ---------------------------------------------------------------------------------------------------------------------
# Sets from files


def write_session_posteriors(
    model: Path, sessions: Sequence[Session], folder: Path, device: str | None = None, run_jobs: RunJobs = map
) -> None:
    """Write the posteriors of a diarizer as <session>.npy, for the sessions that have no file yet."""
    from sortk.inference.diarize import write_posteriors  # noqa: PLC0415 - torch
    from sortk.inference.pools import PooledDiarizer  # noqa: PLC0415

    write_posteriors(PooledDiarizer(model, run_jobs, device), sessions, folder)


def name_cache(out: Path, model: Path, sessions: Sequence[Session]) -> Path:
    """Return where posteriors are kept between runs: beside `out`, another folder for another model or other audio."""
    digest = hashlib.sha256()
    for path in sorted(model.rglob("*")) if model.is_dir() else [model]:
        if path.is_file():
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    for session in sessions:
        facts = session.audio_path.stat()
        window = (session.session_id, session.offset, session.duration)
        digest.update(repr((*window, str(session.audio_path), facts.st_size, facts.st_mtime_ns)).encode())
    return out.with_name(f"{out.stem}.probs-{digest.hexdigest()[:12]}")


def read_tune_set(sessions: Sequence[Session], probs_dir: Path) -> TuneSet:
    """Return the sessions of a manifest with their posteriors, <session>.npy in a folder."""
    found = {session.session_id: posteriors.read_session(probs_dir, session) for session in sessions}
    lengths = {own.frame_seconds for own in found.values()} or {FRAME_SECONDS}  # one folder has frames of one length
    return make_tune_set(sessions, {name: own.probs for name, own in found.items()}, *lengths)


def make_tune_set(
    sessions: Sequence[Session], probs: Mapping[str, Probs], frame_seconds: float = FRAME_SECONDS
) -> TuneSet:
    """Return the sessions of a manifest with posteriors that begin where each session does."""
    return TuneSet(probs, *read_references(sessions), frame_seconds)


def check_not_scored(tuned_on: Sequence[Session], scored: Sequence[Session]) -> None:
    """ValueError if a session is in both sets: its score would be that of what was fitted to it."""
    spans_of: dict[Path, list[tuple[float, float]]] = {}
    for session in tuned_on:
        spans_of.setdefault(session.audio_path.resolve(), []).append(_span(session))
    shared = []
    for session in scored:
        start, end = _span(session)
        spans = spans_of.get(session.audio_path.resolve(), [])
        if any(start < other_end and other_start < end for other_start, other_end in spans):
            shared.append(session.session_id)
    if shared:
        raise ValueError(f"postprocessing would be tuned on what is scored: {name_sessions(shared)} in both sets")


def _span(session: Session) -> tuple[float, float]:
    return session.offset, float("inf") if session.duration is None else session.offset + session.duration


# ---------------------------------------------------------------------------------------------------------------------
# Optuna studies that several processes share and that survive a kill: in a journal file, or a database by its URL

LOCK_SECONDS = 10  # a lock is held for milliseconds; after so long, who held it is dead


@contextlib.contextmanager
def open_study(journal: Path, url: str, name: str, seed: int) -> Iterator[Study]:
    """Open the study of that name, new if there is none; it minimises. At the end, a database is closed."""
    import optuna  # noqa: PLC0415 - only tuning needs it

    optuna.logging.set_verbosity(optuna.logging.WARNING)  # one line per trial is too many
    storage = _open_database(url) if url else _open_journal(journal)
    try:
        study = optuna.create_study(storage=storage, sampler=make_sampler(seed), study_name=name, load_if_exists=True)
        for trial in study.get_trials(deepcopy=False):
            if not all(isinstance(value, int | float) for value in trial.values or ()) or len(trial.values or [0]) != 1:
                raise FormatError(
                    journal, None, f"trial {trial.number} has no number as its result; move it away to start over"
                )
        yield study
    finally:
        if isinstance(storage, optuna.storages.RDBStorage):
            storage.engine.dispose()


@contextlib.contextmanager
def working_on(study: Study, journal: Path) -> Iterator[None]:
    """Inside, this process runs trials of a study that lives in a journal.

    If no other process does, then the last trials, if they are said to be running, are those of killed ones. They have
    failed, and the next trial takes their place.
    """
    import fcntl  # noqa: PLC0415 - where it is missing, all but stages and tuning works

    from optuna.trial import TrialState  # noqa: PLC0415

    with journal.open("rb") as file:
        # Every process that works on the study holds a shared lock on its journal (Optuna's own lock is another file).
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            log.info("another process works on this study, too")
        else:
            last_first = reversed(study.get_trials(deepcopy=False))
            for trial in itertools.takewhile(lambda trial: trial.state == TrialState.RUNNING, last_first):
                study.tell(trial.number, state=TrialState.FAIL)
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


def make_sampler(seed: int) -> BaseSampler:
    """TPE whose random numbers follow from the seed and the trial's place among those that have not failed.

    So two processes of one seed do not try the same, and a killed study continues as if it had not been.
    """
    from optuna.samplers import BaseSampler, TPESampler  # noqa: PLC0415
    from optuna.trial import TrialState  # noqa: PLC0415

    class NumberedSampler(BaseSampler):
        def __init__(self) -> None:
            self._tpe = TPESampler(multivariate=True)

        def before_trial(self, study: Any, trial: Any) -> None:
            earlier = study.get_trials(deepcopy=False)[: trial.number]
            place = sum(other.state != TrialState.FAIL for other in earlier)
            digest = hashlib.sha256(f"{seed}/{place}".encode()).digest()
            self._tpe = TPESampler(seed=int.from_bytes(digest[:4], "big"), multivariate=True)
            self._tpe.before_trial(study, trial)

        def infer_relative_search_space(self, study: Any, trial: Any) -> Any:
            return self._tpe.infer_relative_search_space(study, trial)

        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> Any:
            return self._tpe.sample_relative(study, trial, search_space)

        def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
            return self._tpe.sample_independent(study, trial, param_name, param_distribution)

        def after_trial(self, study: Any, trial: Any, state: Any, values: Any) -> None:
            self._tpe.after_trial(study, trial, state, values)

    return NumberedSampler()


def measure_importance(study: Study) -> dict[str, float]:
    """Return how much each parameter matters for the best trials (PED-ANOVA); empty if there are too few."""
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances  # noqa: PLC0415
    from optuna.trial import TrialState  # noqa: PLC0415

    values = {trial.value for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))}
    if len(values) < 2:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few trials say little, and values of 1e308 say nothing
        try:
            return dict(get_param_importances(study, evaluator=PedAnovaImportanceEvaluator()))
        except (ValueError, TypeError, LookupError, ArithmeticError):  # parameters of a damaged journal
            return {}


ENTRY = b'{"op_code":'
"""How an entry of a journal starts."""


def _open_journal(path: Path) -> BaseStorage:
    from optuna.storages import JournalStorage  # noqa: PLC0415
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock  # noqa: PLC0415

    path = absolute_path(path)
    make_folder(path.parent)
    if path.is_dir():
        raise IsADirectoryError(f"{path}: is a folder, not a journal of trials")
    lock = JournalFileOpenLock(str(path), grace_period=LOCK_SECONDS)
    if path.exists():
        _mend_journal(path, lock)
    try:
        return JournalStorage(JournalFileBackend(str(path), lock))
    except (ValueError, TypeError, AttributeError, AssertionError, LookupError, ArithmeticError) as error:
        why = f"{type(error).__name__}: {error}"
        raise FormatError(path, None, f"is not a journal of Optuna ({why}); move it away to start over") from None


def _mend_journal(path: Path, lock: JournalFileOpenLock) -> None:
    """Cut off what was being written when the machine stopped or the disk was full; FormatError for any other damage.

    On a full disk, an entry that is cut off may be followed by a shorter one in the same line.
    """
    lock.acquire()
    try:
        lines = path.read_bytes().splitlines(keepends=True)
        n_complete = next((number for number, line in enumerate(lines) if not _is_entry(line)), len(lines))
        torn = lines[n_complete:]
        if any(_is_entry(line) or not _is_torn(line) for line in torn):
            reason = "is not an entry of Optuna's journal; move the file away to start over"
            raise FormatError(path, n_complete + 1, reason)
        if torn:
            log.warning("%s: the last entry is cut off; going on without it", path)
            os.truncate(path, sum(map(len, lines[:n_complete])))
    finally:
        lock.release()


def _is_entry(line: bytes) -> bool:
    """Return whether a line of a journal is complete."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return line.endswith(b"\n") and isinstance(entry, dict) and "op_code" in entry


def _is_torn(line: bytes) -> bool:
    """Return whether a line starts as an entry does, however early it is cut off."""
    following = line.find(ENTRY, 1)
    first = line if following < 0 else line[:following]
    return first.startswith(ENTRY) or ENTRY.startswith(first)


def _open_database(url: str) -> RDBStorage:
    import optuna  # noqa: PLC0415

    try:
        return optuna.storages.RDBStorage(url)
    except Exception as error:  # of any driver; its message may hold the password
        kind = url.partition("://")[0]
        raise OSError(f"--storage: the {kind} database cannot be opened ({type(error).__name__})") from error
