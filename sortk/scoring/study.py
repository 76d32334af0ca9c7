"""Optuna studies that several processes share and that survive a kill: in a journal file, or a database by its URL."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sortk.formats.files import FormatError, absolute_path

if TYPE_CHECKING:
    from optuna import Study
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage
    from optuna.storages.journal import JournalFileOpenLock

log = logging.getLogger(__name__)

LOCK_SECONDS = 10  # a lock is held for milliseconds; after so long, who held it is dead


def load_study(journal: Path, url: str, name: str, seed: int) -> Study:
    """The study of that name, new if there is none; it minimises."""
    import optuna  # noqa: PLC0415 - only tuning needs it

    optuna.logging.set_verbosity(optuna.logging.WARNING)  # one line per trial is too many
    storage = _open_database(url) if url else _open_journal(journal)
    return optuna.create_study(storage=storage, sampler=make_sampler(seed), study_name=name, load_if_exists=True)


@contextlib.contextmanager
def working_on(study: Study, journal: Path) -> Iterator[None]:
    """Inside, this process runs trials of a study that lives in a journal.

    If no other process does, then the last trials, if they are said to be running, are those of killed ones. They have
    failed, and the next trial takes their place.
    """
    import fcntl  # noqa: PLC0415 - where it is missing, all but stages and tuning works

    from optuna.trial import TrialState  # noqa: PLC0415

    with journal.open("rb") as file:
        if _is_alone(file.fileno()):
            last_first = reversed(study.get_trials(deepcopy=False))
            for trial in itertools.takewhile(lambda trial: trial.state == TrialState.RUNNING, last_first):
                study.tell(trial.number, state=TrialState.FAIL)
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


def _is_alone(file: int) -> bool:
    """Everybody who works on the study holds a shared lock on its journal (Optuna's own lock is another file)."""
    import fcntl  # noqa: PLC0415 - see above

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def make_sampler(seed: int) -> BaseSampler:
    """TPE whose random numbers follow from the seed and the trial's place among those that have not failed.

    So two processes of one seed do not try the same, and a study that was killed goes on as if it had not been.
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
    """How much each parameter matters for being among the best trials (PED-ANOVA); empty if there are too few."""
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances  # noqa: PLC0415
    from optuna.trial import TrialState  # noqa: PLC0415

    values = {trial.value for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))}
    if len(values) < 2:
        return {}
    return dict(get_param_importances(study, evaluator=PedAnovaImportanceEvaluator()))


def _open_journal(path: Path) -> BaseStorage:
    from optuna.storages import JournalStorage  # noqa: PLC0415
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock  # noqa: PLC0415

    path = absolute_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(f"{path}: is a folder, not a journal of trials")
    lock = JournalFileOpenLock(str(path), grace_period=LOCK_SECONDS)
    if path.exists():
        _mend_journal(path, lock)
    try:
        return JournalStorage(JournalFileBackend(str(path), lock))
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError, IndexError) as error:
        raise FormatError(path, None, f"is no journal of Optuna ({_name(error)}); move it away to start over") from None


def _name(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _mend_journal(path: Path, lock: JournalFileOpenLock) -> None:
    """Cut off an entry that was being written when the machine stopped; FormatError for any other damage."""
    lock.acquire()
    try:
        content = path.read_bytes()
        whole, torn = content[: content.rfind(b"\n") + 1], content[content.rfind(b"\n") + 1 :]
        for number, line in enumerate(whole.splitlines(), start=1):
            _check_entry(path, number, line)
        if not torn:
            return
        if not torn.startswith(b'{"op_code":'):
            raise _damaged(path, whole.count(b"\n") + 1)
        log.warning("%s: the last entry is cut off; going on without it", path)
        with path.open("rb+") as file:
            file.truncate(len(whole))
    finally:
        lock.release()


def _check_entry(path: Path, number: int, line: bytes) -> None:
    try:
        entry = json.loads(line)
    except ValueError:
        raise _damaged(path, number) from None
    if not isinstance(entry, dict) or "op_code" not in entry:
        raise _damaged(path, number)


def _damaged(path: Path, line: int) -> FormatError:
    return FormatError(path, line, "is no entry of Optuna's journal; move the file away to start over")


def _open_database(url: str) -> BaseStorage:
    import optuna  # noqa: PLC0415

    try:
        return optuna.storages.get_storage(url)
    except Exception as error:  # of any driver; its message may hold the password
        kind = url.partition("://")[0]
        raise OSError(f"--storage: the {kind} database cannot be opened ({type(error).__name__})") from error
