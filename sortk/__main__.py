"""`python -m sortk` is `sortk`."""

from __future__ import annotations

import os
import signal


def start() -> None:
    """Run the command line; Ctrl-C while it is still being imported is one line, too."""
    signal.signal(signal.SIGINT, _interrupted)
    from sortk.cli import main  # noqa: PLC0415

    signal.signal(signal.SIGINT, signal.default_int_handler)
    main(prog_name="sortk")


def _interrupted(_number: int, _frame: object) -> None:
    os.write(2, b"sortk: interrupted; run the same command again to continue\n")
    os._exit(130)


if __name__ == "__main__":
    start()
