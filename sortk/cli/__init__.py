"""The command line: click commands, no logic."""

from __future__ import annotations

import os

import click

# Before torch is loaded: idle OpenMP threads sleep. By default they spin, and on a core that another process needs as
# well, the thread that has work waits for them: on a busy machine, two threads trained at 0.02 times the speed of one,
# and at 0.83 times if they sleep (tests/bench/bench_sharing.py; see also training/threads.py). A value that the user
# has set is kept.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from sortk.cli.group import SortkGroup
from sortk.cli.models import diarize, export_onnx, import_nemo, list_models, transcribe
from sortk.cli.recipes import config, recipes, run, stage, status, tables
from sortk.cli.scores import report, score
from sortk.cli.stages import StageCommand
from sortk.cli.tools import completion, convert, doctor, print_version, validate
from sortk.stages import STAGES


@click.group(cls=SortkGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=print_version,
    help="Show the versions of sortk, Python, PyTorch and CUDA.",
)
def main() -> None:
    """A complete open-source implementation of Sortformer: speaker diarization sorted by arrival time, and the
    multi-speaker ASR it supervises.

    Run a recipe with `sortk run`, one of its stages with `sortk stage`, or any step on your own files with the
    command of its name. `sortk COMMAND --help` shows options and an example; README.md and docs/ of the source code are
    the documentation.
    """


main.add_section("Recipes", recipes, config, run, stage, status, tables, report)
main.add_section(
    f"Stages 0 to {STAGES[-1].number}, on your own files",
    *(StageCommand(stage) for stage in STAGES if stage.has_command),
    score,
)
main.add_section("Models in use", diarize, transcribe, list_models, import_nemo, export_onnx)
main.add_section("Files", convert, validate)
main.add_section("This machine", doctor, completion)
