"""Commands about the installation: doctor, completion."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import click

from sortk.cli.options import with_verbosity


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
