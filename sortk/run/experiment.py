"""Running stages: those of a recipe in an experiment (which is done, stale or missing), and one alone on any files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sortk.formats.files import files_in
from sortk.formats.hub import find_local, find_model
from sortk.formats.manifest import check_other_file
from sortk.formats.postprocess import POSTPROCESS_NAME
from sortk.recipe import Recipe
from sortk.records import RunJobs
from sortk.run.content import content_key, input_keys
from sortk.run.folders import (
    Folder,
    Identity,
    Status,
    build_folder,
    find_edits,
    inspect_folder,
    remove_jobs,
    say_skipped,
    settings_of,
)
from sortk.run.locks import clear_left, hold_for_reading
from sortk.run.stage import Stage, StageTask
from sortk.run.workers import build_together, is_distributed
from sortk.slurm.jobs import StageJob, describe_jobs, find_reason, submit_stages, write_script
from sortk.slurm.queue import find_jobs, read_queue_patiently


class Experiment:
    """The stages of one recipe in one folder, `exp/<recipe>/NN-name/`.

    A variant's own stages go to `exp/<recipe>/variant-<name>/NN-name/`. A stage that has the same settings and inputs
    in the plain recipe, or in a variant before it, is not its own: it shares the folder of the first that has it.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        recipe: Recipe,
        root: Path,
        variant: str = "",
        shareable: Mapping[str, Recipe] | None = None,
    ) -> None:
        """`shareable`: the recipes whose stages it may share, by variant; see `recipe.load_shareable`."""
        self.stages = [stage for stage in stages if stage.wanted(recipe)]
        self.recipe, self.root, self.variant = recipe, root, variant
        self._by_name = {stage.name: stage for stage in self.stages}
        self._identities: dict[str, Identity] = {}
        self._hashes: dict[Path, str] = {}  # of files from outside, which may be large and named by every variant
        self._shareable = [Experiment(stages, other, root, name) for name, other in (shareable or {}).items()]
        self._edits: dict[Path, str] = {}  # of folders of stages, see `find_edits`
        for other in self._shareable:
            other._hashes, other._edits = self._hashes, self._edits

    def inputs(self, stage: Stage) -> list[Stage]:
        """Return the stages that it reads, of those that the recipe wants."""
        return [self._by_name[name] for name in stage.reads if name in self._by_name]

    def identity(self, stage: Stage) -> Identity:
        """Return what the stage's folder should be made from, by the recipe as it is now."""
        if stage.name not in self._identities:
            tables = {table: settings_of(getattr(self.recipe, table)) for table in stage.tables}
            hashes = {f"content of {path}": self._hash(path) for path in stage.files(self.recipe)}
            if model := stage.model(self.recipe):
                hashes |= {f"content of {Path(model)}": self._hash(find_local(model) or Path(model))}
            keyed = {given.stage for given in stage.inputs if given.is_key}
            needed = [needed for needed in self.inputs(stage) if needed.name in keyed]
            revision = {"revision": stage.revision} if stage.revision else {}
            self._identities[stage.name] = Identity(
                stage.title,
                {"seed": self.recipe.seed} | revision | tables | hashes,
                {other.folder_name: self._key_as_it_is(other) for other in needed},
            )
        return self._identities[stage.name]

    def _key_as_it_is(self, stage: Stage) -> str:
        """Return the key of a stage's folder; another one if someone has edited a file in it."""
        key, folder = self.identity(stage).key, self.folder(stage)
        if folder.final not in self._edits:
            self._edits[folder.final] = find_edits(folder)
        edits = self._edits[folder.final]
        return f"{key}, edited: {edits}" if edits else key

    def _look_again(self) -> None:
        """Forget the identities: a model was downloaded, or a stage has run."""
        self._edits.clear()
        for experiment in (self, *self._shareable):
            experiment._identities.clear()

    def _hash(self, path: Path) -> str:
        if path not in self._hashes:
            self._hashes[path] = content_key(path)
        return self._hashes[path]

    def folder(self, stage: Stage) -> Folder:
        key = self.identity(stage).key
        sharing = (other for other in self._shareable if stage in other.stages and other.identity(stage).key == key)
        variant = next(sharing, self).variant
        return Folder((self.root / f"variant-{variant}" if variant else self.root) / stage.folder_name)

    def status(self, stage: Stage) -> Status:
        return inspect_folder(self.folder(stage), self.identity(stage))

    def missing_input(self, stage: Stage, made: Collection[Stage] = ()) -> str:
        """Return which stage must run first, and why; empty if the inputs exist, or will be `made` before."""
        for needed in self.inputs(stage):
            status = self.status(needed)
            if status.state != "done" and needed not in made:
                why = f" ({status.why})" if status.why else ""
                return f"{needed.title}, which is {status.state}{why}; run stage {needed.number} first"
        return ""

    def check_files(self, stages: Sequence[Stage]) -> None:
        """Raise FileNotFoundError for the first file from outside that these stages lack, before any of them runs.

        A model that the recipe names is downloaded.
        """
        for stage in stages:
            remedy = f"{stage.title} is to read it; get it, or name another in [{stage.tables[0]}] of the recipe"
            for path in stage.files(self.recipe):
                if not path.exists():
                    raise FileNotFoundError(f"{path}: no such file or folder, but {remedy}")
            if (model := stage.model(self.recipe)) and find_local(model) is None:
                try:
                    find_model(model)
                except FileNotFoundError as error:
                    raise FileNotFoundError(f"{error}, but {remedy}") from None
                self._look_again()

    def dry_run(
        self,
        stages: Sequence[Stage],
        force: bool,
        redo_done: bool,
        command: Callable[[Stage, bool], Sequence[str]] | None = None,
    ) -> Iterator[str]:
        """Yield a line for each stage: what would be done, and why; with the `command` of a job, also its script."""
        for stage in stages:
            status = self.status(stage)
            if status.state == "done" and not redo_done:
                yield f"{stage.title}: would be skipped, it is done"
            elif missing := self.missing_input(stage, stages):
                yield f"{stage.title}: would be refused: it reads {missing}"
            elif status.state == "stale" and not force:
                yield f"{stage.title}: would be refused as stale ({status.why}); --force runs it again"
            else:
                why = {"done": "--force", "missing": "not done yet"}.get(status.state, status.why)
                yield f"{stage.title}: would run, output in {self.folder(stage).final} ({why})"
                if command:
                    yield from (f"    {line}" for line in write_script(self._make_job(stage, command)).splitlines())

    def run_stages(
        self,
        stages: Sequence[Stage],
        choose_jobs: Callable[[Stage], RunJobs],
        show: Callable[[str], None],
        force: bool = False,
        redo_done: bool = False,
    ) -> None:
        """Run the stages in order, skipping what is done; `force` does stale ones again, `redo_done` also others."""
        for place, stage in enumerate(stages):
            if stage.reads:  # the first thing to be missing is the corpus, about which stage 0 has more to say
                self.check_files(stages[place:])
            is_stale = force and self.status(stage).state == "stale"
            self.run(stage, choose_jobs(stage), is_stale or redo_done, show)

    def run(
        self, stage: Stage, run_jobs: RunJobs, force: bool = False, show: Callable[[str], None] = lambda text: None
    ) -> bool:
        """Run the stage and `show` what it has to say; False if it was done already."""
        if not force and self.status(stage).state == "done":
            say_skipped(stage.title, self.folder(stage))
            for known in (stage, *self.inputs(stage)):  # who did it may have been killed right after
                clear_left(self.folder(known).lock)
            return False
        if missing := self.missing_input(stage):
            raise ValueError(f"{stage.title} reads {missing}")
        if is_distributed() and not stage.trains:
            raise ValueError(f"{stage.title} cannot run under torchrun; use --nj N instead")
        folders = {needed.name: self.folder(needed) for needed in self.inputs(stage)}
        finals = {name: folder.final for name, folder in folders.items()}
        inputs = {given.name: finals[given.stage] / given.path for given in stage.inputs if given.stage in finals}

        def work(out: Path) -> None:
            text = stage.run(StageTask(self.recipe, inputs, out, run_jobs, finals))
            for folder in finals.values():
                if not folder.is_dir():  # a stage may take what is gone for empty
                    raise FileNotFoundError(f"{folder} vanished while {stage.title} ran; put it back and run it again")
            if text:
                show(text)

        with contextlib.ExitStack() as reading:  # no process may replace an input while it is read
            for name, folder in folders.items():
                reading.enter_context(hold_for_reading(folder.lock, self._by_name[name].title))

            def build(work: Callable[[Path], None]) -> bool:
                return build_folder(self.folder(stage), self.identity(stage), work, force, self.root)

            has_run = build_together(build, work) if stage.trains else build(work)
            self._look_again()
            return has_run

    def submit(
        self, stages: Sequence[Stage], force: bool, command: Callable[[Stage, bool], Sequence[str]]
    ) -> dict[Stage, StageJob]:
        """Submit a Slurm job for each stage that is not done; `command` runs one, forced where it is stale."""
        jobs: dict[Stage, StageJob] = {}
        for stage in stages:
            status, folder = self.status(stage), self.folder(stage)
            if status.state == "done":
                say_skipped(stage.title, folder)
                continue
            if missing := self.missing_input(stage, stages):
                raise ValueError(f"{stage.title} reads {missing}")
            if status.state == "stale" and not force:
                raise ValueError(f"{stage.title} is stale: {status.why}. Use --force to run it again ({folder.final})")
            jobs[stage] = self._make_job(stage, command)
        submit_stages(list(jobs.values()))
        return jobs

    def _make_job(self, stage: Stage, command: Callable[[Stage, bool], Sequence[str]]) -> StageJob:
        is_stale = self.status(stage).state == "stale"
        options = self.recipe.cluster.of_stage(stage.name)
        return StageJob(stage.title, self.folder(stage), command(stage, is_stale), options, stage.trains)

    def watch(self, jobs: Mapping[Stage, StageJob]) -> Iterator[list[str]]:
        """Yield the lines of all stages until no job is in the queue; raise ValueError if a stage is not done."""
        while True:
            queue, lines = read_queue_patiently(), []
            for stage, job in jobs.items():
                is_done = self.status(stage).state == "done"
                state = "done" if is_done else describe_jobs(find_jobs(queue, [job.folder]), job.folder)
                lines.append(f"{stage.title}: {state}")
            yield lines
            if not find_jobs(queue, [job.folder for job in jobs.values()]):
                break
        for stage, job in jobs.items():
            if self.status(stage).state != "done":
                raise ValueError(f"{stage.title} failed: {find_reason(job)} ({job.log})")


def run_alone(
    stage: Stage,
    settings: Recipe,
    inputs: Mapping[str, Path],
    flags: Mapping[str, Any],
    out: Path,
    run_jobs: RunJobs,
    force: bool,
) -> None:
    """Run a stage on any files, into a file or folder that belongs to no experiment: `sortk simulate`, ..."""
    task = StageTask(settings, inputs, out, run_jobs, alone=True, flags=flags)
    if stage.writes_file:
        for given in stage.inputs:
            path = inputs.get(given.name)
            if path is not None and out != path / POSTPROCESS_NAME:  # in a model folder, this is where it belongs
                check_other_file(out, path)
        stage.run(task)
        remove_jobs(Folder(out))
        return

    def work(partial: Path) -> None:
        stage.run(replace(task, out=partial))

    def build(work: Callable[[Path], None]) -> bool:  # of several processes, one reads all inputs for their keys
        return build_folder(Folder(out, stage.marker), _identify_alone(stage, task), work, force)

    if stage.trains:
        build_together(build, work)
    else:
        build(work)
    stage.finish(task)


def _identify_alone(stage: Stage, task: StageTask) -> Identity:
    """Return what the output of a stage's own command is made from: settings that it has flags for, and its inputs."""
    keys = [key for flag in stage.flags for key in flag.keys]
    settings: dict[str, Any] = {"seed": task.seed} if "seed" in keys else {}
    for table in dict.fromkeys([stage.table, *(key.partition(".")[0] for key in keys if "." in key)]):
        settings |= settings_of(getattr(task.settings, table))
    settings |= {
        flag.parameter: task.flags[flag.parameter] for flag in stage.flags if not (flag.keys or flag.is_switch)
    }
    paths = {f"folder {path}" if path.is_dir() else path.name: path for path in stage.files(task.settings)}
    if model := stage.model(task.settings):
        paths[f"folder {model}" if Path(model).is_dir() else Path(model).name] = find_model(model)
    for given in stage.inputs:
        path = task.inputs.get(given.name)
        if path is None:
            continue
        if not given.is_key:
            settings[given.name] = str(path)
        elif given.suffix and path.is_dir():
            paths |= {file.name: file for file in files_in(path, given.suffix)}
        else:  # training reads several manifests, which may have one name
            paths[given.name if stage.trains or path.is_dir() else path.name] = path
    return Identity(f"sortk {stage.name}", settings, input_keys(paths))
