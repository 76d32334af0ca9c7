"""Results to look at: report."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from sortk.cli.options import FILE, given_only, with_verbosity
from sortk.cli.scores import DER_OPTIONS


@click.command()
@click.option("--exp", type=FILE, help="The experiment's folder, such as exp/mini.")
@click.option("--ref", type=FILE, help="Instead of an experiment: a reference, as RTTM, STM, CTM or SegLST.")
@click.option("--hyp", "hyps", type=FILE, multiple=True, help="A system's output for REF; repeat it for each system.")
@click.option(
    "--audio", type=FILE, metavar="DIR", help="Recordings with the names of the sessions, for sound in the page."
)
@DER_OPTIONS
@click.option("--out", type=FILE, help="The page to write; of an experiment, by default report.html of stage 8.")
@with_verbosity
def report(
    exp: Path | None,
    ref: Path | None,
    hyps: Sequence[Path],
    audio: Path | None,
    uem: Path | None,
    out: Path | None,
    **given: Any,
) -> None:
    """Write an HTML page of an experiment, or of any files.

    The page needs no network. Of an experiment: tables, training curves, tuning, data, and a browser of the scored
    sessions with sound; stages that have not been run are left out. Of a reference and hypotheses: error rates side by
    side, and where each system is wrong. Prints the path of the page.

    Example: sortk report --exp exp/mini

    Example: sortk report --ref ref.rttm --hyp a.rttm --hyp b.rttm --audio recordings --out page.html
    """
    if exp is not None:
        if ref or hyps or audio or uem or any(given.values()):
            raise click.UsageError("--exp goes with --out only: the other options are for --ref and --hyp")
        from sortk.stages import report_experiment

        click.echo(report_experiment(exp, out))
        return
    if ref is None or not hyps or out is None:
        raise click.UsageError("give --exp, or --ref, --hyp and --out")
    from sortk.formats.files import atomic_text, check_other_file
    from sortk.options import read_options
    from sortk.report.comparison import format_comparison
    from sortk.scoring.intervals import DerOptions

    check_other_file(out, ref, *hyps, *([uem] if uem else []))
    options = read_options(DerOptions, given_only(given), "options")
    page = format_comparison(ref, hyps, uem, audio, options, f"sortk {shlex.join(sys.argv[1:])}")
    with atomic_text(out) as file:
        file.write(page)
    click.echo(out)
