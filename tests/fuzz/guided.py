"""One reader with atheris, whose inputs follow the code that they reach: pip install -e '.[fuzz]'.

    python tests/fuzz/guided.py rttm -max_total_time=60

What is no documented error ends the run, and its input is left in a file crash-*. Arguments after the reader's name are
libFuzzer's.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

with atheris.instrument_imports(include=["sortk"]):
    from fuzz.run import FOLDER, find_fault
    from fuzz.targets import FILE, TARGETS


def main() -> None:
    name, *options = sys.argv[1:]
    target = TARGETS[name]
    with tempfile.TemporaryDirectory() as temporary:
        folder, corpus = Path(temporary) / FOLDER, Path(temporary) / "corpus"
        folder.mkdir()
        corpus.mkdir()
        for number, parts in enumerate(target.seeds()):
            (corpus / str(number)).write_bytes(parts[FILE])

        def try_bytes(data: bytes) -> None:
            try:
                with atheris.instrument_imports(include=["sortk"]):  # readers import what they need when they run
                    target.read({FILE: data}, folder)
            except (ValueError, OSError) as error:
                if find_fault(error, folder):
                    raise

        atheris.Setup([sys.argv[0], *options, str(corpus)], try_bytes)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
