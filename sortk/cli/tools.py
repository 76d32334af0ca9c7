"""Commands about files and the machine: convert, validate, doctor, completion."""

from __future__ import annotations

import sys
import textwrap
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
    from sortk.formats.convert import validate as validate_file

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


@click.command()
@click.option("--corpora-dir", envvar="CORPORA", default="", help="Where corpora are, each in a folder of its name.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@with_verbosity
def doctor(corpora_dir: str, as_json: bool) -> None:
    """Check this machine and the installation.

    Shows versions, devices, memory, disk, Slurm and corpora, for bug reports; names no user, host, folder or variable.
    Exit code 1 if something that sortk needs is broken; lines that begin with `!` say what to do.

    Example: sortk doctor --corpora-dir /data
    """
    import dataclasses
    import json

    from sortk.run.doctor import examine

    findings = examine(Path.cwd(), corpora_dir)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=1))
    else:
        for finding in findings:
            click.echo(_wrap(finding.name, finding.found))
            if finding.advice:
                click.echo(_wrap("!", finding.advice))
        n_faults = sum(bool(finding.advice) for finding in findings)
        click.echo(_wrap("result", f"{n_faults} to repair, see !" if n_faults else "everything that sortk needs works"))
    if any(finding.advice for finding in findings):
        sys.exit(1)


def _wrap(name: str, text: str) -> str:
    return textwrap.fill(f"{name:<11}{text}", 100, subsequent_indent=" " * 11, break_on_hyphens=False)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@with_verbosity
def completion(shell: str) -> None:
    """Print a script for completion in a shell.

    It completes commands, options, files and recipes. Put this into ~/.bashrc (zsh: ~/.zshrc): eval "$(sortk completion
    bash)". For fish: sortk completion fish > ~/.config/fish/completions/sortk.fish

    Example: sortk completion bash
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise ValueError(f"this click cannot complete in {shell}; update it: pip install --upgrade click")
    command = click.get_current_context().find_root().command
    click.echo(kind(command, {}, "sortk", "_SORTK_COMPLETE").source())


def print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Print the versions: the callback of --version."""
    if wanted and not context.resilient_parsing:
        from sortk.run.doctor import describe_versions

        click.echo(f"sortk {describe_versions()}")
        context.exit()
