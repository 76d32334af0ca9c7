"""Stage 8 on files of any system: score der, cpwer, tcpwer, orcwer, wer."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click

from sortk.cli.options import (
    FILE,
    given_only,
    typed_options,
    with_options,
    with_verbosity,
)


@click.group()
def score() -> None:
    """Score hypotheses of any system: speakers (der) or words (cpwer, tcpwer, orcwer, wer)."""


@score.command("der")
@click.option("--ref", type=FILE, required=True, help="Who speaks when: an RTTM file, or a folder of them.")
@click.option("--hyp", type=FILE, required=True, help="What a diarizer found: an RTTM file, or a folder of them.")
@click.option("--uem", type=FILE, help="What is scored: a UEM file, or a folder of them.  [default: all speech]")
@click.option("--collar", type=float, help="Seconds on EACH side of a reference boundary not scored.  [default: 0.25]")
@click.option("--skip-overlap", is_flag=True, help="Do not score where several reference speakers talk.")
@click.option(
    "--scorer",
    type=click.Choice(["fast", "pyannote", "nist"]),
    help="fast: sortk's own, with the numbers of pyannote.metrics; pyannote: that itself; nist: md-eval's rules."
    "  [default: fast]",
)
@click.option("--by-speakers", is_flag=True, help="Also by the number of reference speakers.")
@click.option("--json", "json_path", type=FILE, help="Write all numbers to this file, rates as fractions.")
@click.option(
    "--format",
    "style",
    type=click.Choice(["text", "md", "csv"]),
    default="text",
    show_default=True,
    help="The table's.",
)
@with_verbosity
def score_der(
    ref: Path, hyp: Path, uem: Path | None, by_speakers: bool, json_path: Path | None, style: Any, **given: Any
) -> None:
    """Diarization error rate: a row per session, and OVERALL of all errors over all speech.

    A session without a hypothesis counts as all missed. Rates are per cent of the scored speech. JER is the Jaccard
    error rate of DIHARD; OVERALL single and overlap are where one, or several, reference speakers talk.

    Example: sortk score der --ref ref.rttm --hyp hyp.rttm --uem all.uem --collar 0.25 --by-speakers
    """
    from sortk.folders import write_json
    from sortk.scoring.der import score_files
    from sortk.scoring.der_counts import DerOptions
    from sortk.scoring.der_table import as_json, describe_settings, format_report

    report = score_files(ref, hyp, uem, typed_options(DerOptions, [], **given_only(given)))
    for note in report.notes:
        logging.getLogger(__name__).warning("sortk: %s", note)
    if json_path:
        write_json(json_path, as_json(report))
    if style == "csv":
        logging.getLogger(__name__).info("%s", describe_settings(report))
    click.echo(format_report(report, style, by_speakers))


SCORE_WORDS = with_options(
    click.option("--ref", type=FILE, required=True, help="What was said: SegLST, STM, CTM or SST; file or folder."),
    click.option("--hyp", type=FILE, required=True, help="What was recognised, in any of these formats."),
    click.option(
        "--normalizer",
        type=click.Choice(["none", "lower", "whisper", "chime8"]),
        default="none",
        show_default=True,
        help="Text rules for both sides.",
    ),
    click.option("--json", "json_path", type=FILE, help="Write settings, overall and sessions to this file."),
    click.option(
        "--format",
        "table_format",
        type=click.Choice(["text", "md", "csv"]),
        default="text",
        show_default=True,
        help="Of the printed table.",
    ),
)


@score.command()
@SCORE_WORDS
@with_verbosity
def cpwer(**common: Any) -> None:
    """Words and who said them: each speaker's words, speakers mapped so that errors are fewest.

    Example: sortk score cpwer --ref ref.stm --hyp hyp.json --normalizer chime8
    """
    _score_words("cpwer", **common)


@score.command()
@SCORE_WORDS
@click.option("--collar", type=float, default=5.0, show_default=True, help="Seconds by which word times may be wrong.")
@with_verbosity
def tcpwer(collar: float, **common: Any) -> None:
    """As cpwer, but words match only if their times do.

    Example: sortk score tcpwer --ref ref.stm --hyp hyp.stm --collar 5
    """
    _score_words("tcpwer", collar=collar, **common)


@score.command()
@SCORE_WORDS
@with_verbosity
def orcwer(**common: Any) -> None:
    """Words whoever said them: each reference segment counts with the output stream that it suits best.

    Example: sortk score orcwer --ref ref.stm --hyp hyp.stm
    """
    _score_words("orcwer", **common)


@score.command()
@SCORE_WORDS
@click.option(
    "--style",
    type=click.Choice(["sorted", "librispeechmix"]),
    default="sorted",
    show_default=True,
    help="sorted: all words by start time, speaker tokens removed. librispeechmix: cpwer if HYP names speakers, "
    "orcwer if not.",
)
@with_verbosity
def wer(style: str, **common: Any) -> None:
    """The two WERs of the paper (Appendix D): of Table 2 (sorted), and of Table 3 (librispeechmix).

    Example: sortk score wer --ref sst.jsonl --hyp decoded.jsonl --style sorted
    """
    _score_words("wer", style=style, **common)


def _score_words(
    metric: Any, ref: Path, hyp: Path, normalizer: Any, json_path: Path | None, table_format: Any, **settings: Any
) -> None:
    from sortk.formats.files import atomic_text
    from sortk.formats.objects import encode
    from sortk.scoring.wer import WerOptions, as_json, format_report, score_words
    from sortk.scoring.wer_transcripts import Transcripts

    options = WerOptions(normalizer, **settings)
    report = score_words(Transcripts.read(ref), Transcripts.read(hyp, predicted=True), metric, options)
    if json_path:
        with atomic_text(json_path) as file:
            file.write(encode(as_json(report)) + "\n")
    for note in report.notes:
        logging.getLogger(__name__).warning(note)
    click.echo(format_report(report, table_format))
