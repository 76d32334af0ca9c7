"""Run a sortk command that ends with its parent process: `python -m sortk.cli.child PARENT_PID ARGUMENTS...`."""

from __future__ import annotations

import sys

from sortk import cli
from sortk.run.workers import die_with

if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    cli.main(sys.argv[2:], prog_name="sortk")
