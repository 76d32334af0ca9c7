"""The command group: errors of library code become one sentence and exit code 1; usage errors exit with 2."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import click


class SortkGroup(click.Group):
    """Turns the errors of library code into one clean line; lists commands in sections, as they were added."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections: dict[str, list[click.Command]] = {}

    def add_section(self, title: str, *commands: click.Command) -> None:
        self.sections[title] = list(commands)
        for command in commands:
            self.add_command(command)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(len(name) for name in self.commands)
        for title, commands in self.sections.items():
            with formatter.section(title):
                limit = formatter.width - 6 - width
                rows = [(str(command.name).ljust(width), command.get_short_help_str(limit)) for command in commands]
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader of our output has gone, as with `| head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(1)
        except (ValueError, OSError) as error:
            logging.getLogger(__name__).debug("failed", exc_info=True)  # the traceback, with -v only
            click.echo(f"sortk: {sentence(error)}", err=True)
            ctx.exit(1)
        except KeyboardInterrupt:
            click.echo("sortk: interrupted; run the same command again to go on", err=True)
            ctx.exit(130)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            logging.getLogger(__name__).debug("failed", exc_info=True)
            about = f"{type(error).__name__}: {error}"
            click.echo(f"sortk: {about}. This is a bug of sortk; please report it with the output of -v", err=True)
            ctx.exit(1)


def sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


class Failures:
    """Errors of single files, each told when it comes; the other files are worked on all the same."""

    def __init__(self) -> None:
        self.count = 0

    def tell(self, error: Exception) -> None:
        click.echo(f"sortk: {sentence(error)}", err=True)
        self.count += 1

    def exit_if_any(self) -> None:
        if self.count:
            sys.exit(1)
