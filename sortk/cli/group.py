"""The command group: errors of library code become one sentence and exit code 1; usage errors exit with 2."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
import typing
from collections.abc import Iterable, Iterator
from typing import Any

import click

from sortk.formats.files import printable

INTERRUPTED = "interrupted; run the same command again to continue"


def open_closed_streams() -> None:
    """Put /dev/null in the place of standard streams that are closed (`sortk ... 2>&-`).

    Without that, the next file that is opened would take their place. Messages are lost then; but reading from standard
    input, and writing to standard output, is an error, because /dev/null is opened for the opposite.
    """
    for number, name, mode, flag in (
        (0, "stdin", "r", os.O_WRONLY),
        (1, "stdout", "w", os.O_RDONLY),
        (2, "stderr", "w", os.O_WRONLY),
    ):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, flag)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 (until the process ends)


def _drop_output() -> None:
    """Let what is still buffered go nowhere: Python would complain about it when the process ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class CheckedGroup(click.Group):
    """Refuses an option that is given twice and takes one value; click would keep the last one silently."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None:
            own = click.Context(command, info_name=name, parent=ctx, resilient_parsing=True)
            with contextlib.suppress(click.UsageError):  # reported when the command itself parses its arguments
                order = command.make_parser(own).parse_args(list(rest))[2]
                options = [param for param in order if isinstance(param, click.Option)]
                for option in options:
                    n_times = options.count(option)
                    if n_times > 1 and not (option.multiple or option.is_flag or option.count):
                        raise RepeatedOption(f"{option.opts[-1]} is given {n_times} times; give it once", own)
        return name, command, rest


class RepeatedOption(click.ClickException):
    """An option that takes one value was given several."""

    exit_code = 2

    def __init__(self, message: str, ctx: click.Context) -> None:
        super().__init__(message)
        self.ctx = ctx


class SortkGroup(CheckedGroup):
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

    def main(self, *args: Any, **kwargs: Any) -> Any:
        open_closed_streams()
        try:
            return super().main(*args, **kwargs)
        except KeyboardInterrupt:  # before or after the command itself
            say(INTERRUPTED)
            sys.exit(130)

    def invoke(self, ctx: click.Context) -> Any:
        # Worker processes would else import a signal.py that is in the current folder, such as of downloaded data.
        os.environ["PYTHONSAFEPATH"] = "1"
        try:
            with _printable_output():
                return super().invoke(ctx)
        except BrokenPipeError:  # the reader of our output has gone, as with `| head`
            _drop_output()
            ctx.exit(1)
        except (ValueError, OSError, FloatingPointError) as error:
            logging.getLogger(__name__).debug("failed", exc_info=True)  # the traceback, with -v only
            say(sentence(error))
            if isinstance(error, OSError) and error.errno == errno.EBADF:
                _drop_output()
            ctx.exit(1)
        except MemoryError:
            say("out of memory; close other programs, or give less data or a smaller --nj")
            ctx.exit(1)
        except KeyboardInterrupt:
            say(INTERRUPTED)
            ctx.exit(130)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            logging.getLogger(__name__).debug("failed", exc_info=True)
            about = f"{type(error).__name__}: {error}"
            say(f"{about}. This is a bug of sortk; please report it with the output of -v")
            ctx.exit(1)


def say(text: str) -> None:
    """Print a message of sortk's own on standard error."""
    click.echo(f"sortk: {printable(text)}", err=True)


@contextlib.contextmanager
def _printable_output() -> Iterator[None]:
    """Inside, whatever is printed reaches standard output without control characters.

    Otherwise names in untrusted files could rewrite the screen or the title of a terminal.
    """
    stream = sys.stdout
    if stream is not None:
        sys.stdout = typing.cast(typing.TextIO, _PrintableStream(stream))
    try:
        yield
    finally:
        sys.stdout = stream


class _PrintableStream:
    def __init__(self, stream: typing.TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(printable(text))

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.EBADF and not error.filename:
        return "standard input or output is closed"
    if isinstance(error, UnicodeEncodeError):  # bytes of a file's name that are not UTF-8 cannot be written down
        shown = error.object[max(0, error.start - 120) : error.end + 40]
        return f"a name is not UTF-8: {shown!r}; rename the file or folder"
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


class Failures:
    """Errors of single files: each is reported at once, and the other files are still processed."""

    def __init__(self) -> None:
        self.count = 0

    def report(self, error: Exception) -> None:
        say(sentence(error))
        self.count += 1

    def exit_if_any(self) -> None:
        if self.count:
            sys.exit(1)
