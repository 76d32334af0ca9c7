"""`python -m sortk` is `sortk`."""

from __future__ import annotations

import os
import signal


def start() -> None:
    """Run the command line; Ctrl-C while it is imported, or while libraries clean up at the end, is one line, too."""
    signal.signal(signal.SIGINT, _interrupted)
    from sortk.cli import main  # noqa: PLC0415

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        main(prog_name="sortk")
    finally:
        signal.signal(signal.SIGINT, _interrupted)


def _interrupted(_number: int, _frame: object) -> None:
    os.write(2, b"sortk: interrupted; run the same command again to continue\n")
    os._exit(130)


if __name__ == "__main__":
    start()
