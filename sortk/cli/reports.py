"""Results to look at: report."""

from __future__ import annotations

from pathlib import Path

import click

from sortk.cli.options import FILE, with_verbosity


@click.command()
@click.option("--exp", type=FILE, required=True, help="The experiment's folder, such as exp/mini.")
@click.option("--out", type=FILE, help="The page to write; report.html in the folder of stage 8 if it is not given.")
@with_verbosity
def report(exp: Path, out: Path | None) -> None:
    """Write all that an experiment holds as one HTML page that needs no network.

    Tables, training curves, the search for postprocessing, data, and a browser of the scored sessions with sound.
    Stages that have not been run are left out. Prints the path of the page.

    Example: sortk report --exp exp/mini
    """
    from sortk.stages import report_experiment

    click.echo(report_experiment(exp, out))
