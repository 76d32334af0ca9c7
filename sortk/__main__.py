"""`python -m sortk` is `sortk`."""

from sortk.cli import main

main(prog_name="sortk")
