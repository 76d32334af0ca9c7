"""A recipe whose stages take seconds, for tests that add tables and variants to it."""

from __future__ import annotations

from click.testing import CliRunner, Result

from sortk.cli import main

STAGES = """
asr = false
[prepare.espeak]
speakers = 12
utterances_per_speaker = 4
[simulate]
hours = { train = 0.02, valid = 0.005, test = 0.005 }
seconds = 10
max_speakers = 2
[clean]
sad = "none"
[train_diar]
size = "tiny"
[[train_diar.phases]]
loop = { steps = 1, warmup_steps = 1, batch_seconds = 20, validate_every = 1, keep_best = 1 }
[tune]
trials = 3
"""


def sortk(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])
