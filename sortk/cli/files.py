"""Commands for files: convert, validate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from sortk.cli.group import Failures
from sortk.cli.options import FILE, with_verbosity


@click.command()
@click.argument("source", type=FILE, metavar="IN")
@click.argument("target", type=FILE, metavar="OUT")
@click.option(
    "--to",
    required=True,
    type=click.Choice(["rttm", "stm", "ctm", "seglst", "manifest", "kaldi", "lhotse"]),
    help="The format of OUT; the format of IN is detected.",
)
@click.option("--force", is_flag=True, help="Replace annotations beside a manifest that have another content.")
@with_verbosity
def convert(source: Path, target: Path, to: str, force: bool) -> None:
    """Convert between formats of annotations and manifests.

    They are RTTM, STM, CTM, SegLST, manifests, Kaldi and lhotse folders. For a manifest, annotations that come in other
    formats are written beside OUT: rttm/<session>.rttm and, if there is text, seglst/<session>.json.

    Example: sortk convert ref.rttm ref.json --to seglst
    """
    from sortk.formats.convert import convert as convert_file

    convert_file(source, target, to, force)


@click.command()
@click.argument("files", type=FILE, nargs=-1, required=True)
@with_verbosity
def validate(files: Sequence[Path]) -> None:
    """Check files of any format that sortk knows.

    A line for each says what is in it. A folder of recordings with their annotation is checked as `sortk prepare
    sessions` does it, without writing.

    Example: sortk validate ref.rttm train.jsonl my-data
    """
    from sortk.corpora import own_sessions
    from sortk.corpora.registry import PrepareOptions
    from sortk.formats.validate import validate as validate_file

    options, failures = PrepareOptions(), Failures()
    for path in files:
        try:
            if own_sessions.is_own_data(path):
                described = own_sessions.describe(path, options.valid_fraction, options.test_fraction)
            else:
                described = validate_file(path)
            click.echo(f"{path}: {described}")
        except BrokenPipeError:
            raise
        except (ValueError, OSError) as error:
            failures.report(error)
    failures.exit_if_any()
