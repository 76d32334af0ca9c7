"""What a stage is: a function from settings and inputs to one output, declared once.

The same declaration makes a stage of a recipe, whose inputs are folders of earlier stages, and a command of its own
(`sortk simulate`), whose inputs are named by flags. Nothing heavy is imported here: `sortk --help` reads all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sortk.recipe import Recipe
    from sortk.records import RunJobs


@dataclass(frozen=True)
class Input:
    """A file or folder that a stage reads: in a recipe `path` in the folder of an earlier stage, in the stage's own
    command what a flag names. One of the two may be missing."""

    name: str
    stage: str = ""  # the earlier stage
    path: str = ""  # in its folder; empty: the folder itself
    flag: str = ""  # "--sources"
    help: str = ""
    required: bool = False  # by the command
    is_model: bool = False  # a model, which the command may also be given by name (`formats/hub.py`)
    suffix: str = ""  # of a folder that is given to the command, only such files count
    is_key: bool = True
    """False in a recipe: read only because another input names files in it, so its key is in that one's key. False in a
    command: too large to be read for a key, so its path counts as a setting."""


@dataclass(frozen=True)
class Flag:
    """A flag of a stage's own command: a setting, or without a key, something that only the command has."""

    name: str  # "--overlap"; without dashes: an argument
    help: str = ""
    keys: tuple[str, ...] = ()  # of the recipe: "simulate.overlap". Two: a range such as 2-4
    metavar: str = ""
    is_switch: bool = False

    @property
    def parameter(self) -> str:
        """The name of its value in Python."""
        return self.name.lstrip("-").replace("-", "_")


@dataclass(frozen=True)
class StageTask:
    """All that a stage's function is given."""

    settings: Recipe  # those of the stage's tables count
    inputs: Mapping[str, Path]  # by the names of the declaration, of those that are there
    out: Path
    run_jobs: RunJobs
    folders: Mapping[str, Path] = field(
        default_factory=dict
    )  # in a recipe, those of the stages it reads, by their names
    alone: bool = False  # run by the stage's own command, not by a recipe
    flags: Mapping[str, Any] = field(default_factory=dict)  # of that command, those that are not settings

    @property
    def seed(self) -> int:
        return self.settings.seed


@dataclass(frozen=True)
class Stage:
    """One numbered step: which settings it obeys, what it reads, what it does."""

    number: int
    name: str
    tables: tuple[str, ...]  # of the recipe; the first one is its own
    inputs: tuple[Input, ...]
    run: Callable[[StageTask], str | None]
    """Writes the output; returns what the command line prints, if anything. Its docstring is the command's help."""
    flags: tuple[Flag, ...] = ()
    """Of its own command, beside those of the inputs and --set."""
    files: Callable[[Recipe], Sequence[Path]] = lambda settings: ()
    """Files that settings name, from outside the experiment, whose content counts as a setting."""
    model: Callable[[Recipe], str] = lambda settings: ""
    """Likewise a model, by its path or its name (`formats/hub.py`); empty if there is none."""
    check: Callable[[Collection[str]], str] = lambda given: ""
    """Returns a sentence if the flags that were given to its own command do not go together."""
    finish: Callable[[StageTask], None] = lambda task: None
    """What its own command does when the output is there."""
    writes_file: bool = False
    """Its own command writes a file, not a folder with a marker."""
    marker: str = "done.json"
    """Of the folder that its own command writes."""
    trains: bool = False
    """Several processes, started by torchrun, may do it together."""
    revision: int = 0
    """Raised when new code makes another result of the same settings, so that what the old code made is stale."""
    wanted: Callable[[Recipe], bool] = lambda settings: True
    """A recipe may do without it; a later stage then does without its folder."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The names of the stages whose folders it reads in a recipe."""
        return tuple(dict.fromkeys(given.stage for given in self.inputs if given.stage))

    @property
    def has_command(self) -> bool:
        return any(given.flag for given in self.inputs) or bool(self.flags)

    @property
    def table(self) -> str:
        """The table of the recipe that is its own; [cluster.<table>] is about its jobs."""
        return self.tables[0]

    @property
    def folder_name(self) -> str:
        return f"{self.number:02d}-{self.name}"

    @property
    def title(self) -> str:
        return f"stage {self.number} ({self.name})"
