"""Stage 8 on files of any system: score der, cpwer, tcpwer, orcwer, wer, compare; and pages of results: report."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sortk.cli.group import CheckedGroup
from sortk.cli.options import (
    FILE,
    SettingOption,
    given_only,
    with_options,
    with_verbosity,
)

if TYPE_CHECKING:
    from sortk.scoring.der import DerReport
    from sortk.scoring.wer import WerReport


class ScoreGroup(CheckedGroup):
    """Explains what is missing when no score is named, or one that is a column of another."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "-h", "--help"):
            if args[0].startswith("-"):
                raise click.UsageError(f"name the score first: {', '.join(self.commands)}", ctx)
            if args[0] == "jer":
                raise click.UsageError("JER is a column of `sortk score der`", ctx)
        return super().parse_args(ctx, args)


@click.group(cls=ScoreGroup)
def score() -> None:
    """Score hypotheses of any system.

    der scores speakers; cpwer, tcpwer, orcwer and wer score words; compare tests whether systems differ.

    Example: sortk score der --ref ref.rttm --hyp hyp.rttm
    """


DER_OPTIONS = with_options(
    click.option("--uem", type=FILE, help="The time spans to score: a UEM file, or a folder of them; else all speech."),
    click.option(
        "--collar",
        cls=SettingOption,
        settings=["sortk.scoring.intervals:DerOptions.collar"],
        type=float,
        help="Seconds on EACH side of a reference boundary not scored.",
    ),
    click.option("--skip-overlap", is_flag=True, help="Do not score where several reference speakers talk."),
    click.option(
        "--scorer",
        cls=SettingOption,
        settings=["sortk.scoring.intervals:DerOptions.scorer"],
        type=click.Choice(["fast", "pyannote", "nist"]),
        help="fast: same numbers as pyannote.metrics; pyannote: pyannote.metrics itself; nist: md-eval's rules.",
    ),
)
NORMALIZER = click.option(
    "--normalizer",
    cls=SettingOption,
    settings=["sortk.scoring.wer:WerOptions.normalizer"],
    type=click.Choice(["none", "lower", "whisper", "chime8"]),
    help="Text rules for both sides.",
)
OUTPUT = with_options(
    click.option("--json", "json_path", type=FILE, help="Write all numbers to this file, rates as fractions."),
    click.option(
        "--format",
        "table_format",
        type=click.Choice(["text", "md", "csv"]),
        default="text",
        show_default=True,
        help="Format of the printed table.",
    ),
)


@score.command("der")
@click.option("--ref", type=FILE, required=True, help="Who speaks when: an RTTM file, or a folder of them.")
@click.option(
    "--hyp",
    "hyps",
    type=FILE,
    required=True,
    multiple=True,
    help="What a diarizer found: an RTTM file, or a folder of them. Repeat it to see several systems side by side.",
)
@DER_OPTIONS
@click.option("--by-speakers", is_flag=True, help="Also print a row for each number of reference speakers.")
@OUTPUT
@with_verbosity
def score_der(
    ref: Path,
    hyps: Sequence[Path],
    uem: Path | None,
    by_speakers: bool,
    json_path: Path | None,
    table_format: Any,
    **given: Any,
) -> None:
    """Score who spoke when: the diarization error rate.

    Prints a row per session, and OVERALL: all errors over all speech. A session without a hypothesis counts as all
    missed. Rates are per cent of the scored speech. JER is the Jaccard error rate of DIHARD; OVERALL single and overlap
    are where one, or several, reference speakers talk.

    Example: sortk score der --ref ref.rttm --hyp hyp.rttm --uem all.uem --collar 0.25 --by-speakers
    """
    from sortk.scoring.compare import format_systems
    from sortk.scoring.der import as_json, describe_settings, format_report

    _check_json(json_path, ref, *hyps, *([uem] if uem else []))
    reports = _read_der(ref, hyps, uem, given)
    [first, *others] = reports.values()
    _write(json_path, reports, as_json)
    if table_format == "csv":
        logging.getLogger(__name__).info("%s", describe_settings(first))
    elif others:
        click.echo(f"DER in %; {describe_settings(first)}\n")
    click.echo(format_systems(reports, table_format) if others else format_report(first, table_format, by_speakers))


def _read_der(ref: Path, hyps: Sequence[Path], uem: Path | None, given: dict[str, Any]) -> dict[str, DerReport]:
    from sortk.options import read_options
    from sortk.scoring.compare import name_systems
    from sortk.scoring.der import score_files
    from sortk.scoring.intervals import DerOptions

    options = read_options(DerOptions, given_only(given), "options")
    reports = {name: score_files(ref, hyp, uem, options) for name, hyp in zip(name_systems(hyps), hyps, strict=True)}
    _note(reports)
    return reports


def _note(reports: dict[str, Any]) -> None:
    """Log what a reader of the scores should know; of several systems, with the name of the system."""
    for name, report in reports.items():
        for note in report.notes:
            logging.getLogger(__name__).warning("sortk: %s", f"{name}: {note}" if len(reports) > 1 else note)


def _check_json(json_path: Path | None, *inputs: Path) -> None:
    from sortk.formats.manifest import check_other_file

    if json_path:
        check_other_file(json_path, *inputs)


def _write(json_path: Path | None, reports: dict[str, Any], as_json: Any) -> None:
    """Write one report as it is, several as {"systems": {name: report}}."""
    from sortk.formats.files import atomic_text
    from sortk.formats.objects import encode

    if json_path:
        contents = {name: as_json(report) for name, report in reports.items()}
        [first, *others] = contents.values()
        with atomic_text(json_path) as file:
            file.write(encode({"systems": contents} if others else first) + "\n")


SCORE_WORDS = with_options(
    click.option("--ref", type=FILE, required=True, help="What was said: SegLST, STM, CTM or SST; file or folder."),
    click.option(
        "--hyp",
        "hyps",
        type=FILE,
        required=True,
        multiple=True,
        help="What was recognised, in any of these formats. Repeat it to see several systems side by side.",
    ),
    NORMALIZER,
    OUTPUT,
)


@score.command()
@SCORE_WORDS
@with_verbosity
def cpwer(**common: Any) -> None:
    """Score words and who said them.

    The words of each speaker are scored together; speakers are mapped so that errors are fewest.

    Example: sortk score cpwer --ref ref.stm --hyp hyp.json --normalizer chime8
    """
    _score_words("cpwer", **common)


@score.command()
@SCORE_WORDS
@click.option(
    "--collar",
    cls=SettingOption,
    settings=["sortk.scoring.wer:WerOptions.collar"],
    type=float,
    help="Seconds by which word times may be wrong.",
)
@with_verbosity
def tcpwer(**common: Any) -> None:
    """Score as cpwer; words match only if their times do.

    Example: sortk score tcpwer --ref ref.stm --hyp hyp.stm --collar 5
    """
    _score_words("tcpwer", **common)


@score.command()
@SCORE_WORDS
@with_verbosity
def orcwer(**common: Any) -> None:
    """Score words, whoever said them.

    Each reference segment counts with the output stream that it fits best.

    Example: sortk score orcwer --ref ref.stm --hyp hyp.stm
    """
    _score_words("orcwer", **common)


@score.command()
@SCORE_WORDS
@click.option(
    "--style",
    cls=SettingOption,
    settings=["sortk.scoring.wer:WerOptions.style"],
    type=click.Choice(["sorted", "librispeechmix"]),
    help="sorted: all words by start time, speaker tokens removed. librispeechmix: cpwer if HYP names speakers, "
    "orcwer if not.",
)
@with_verbosity
def wer(**common: Any) -> None:
    """Score words as the paper does (Appendix D).

    The style is that of Table 2 (sorted) or of Table 3 (librispeechmix).

    Example: sortk score wer --ref sst.jsonl --hyp decoded.jsonl --style sorted
    """
    _score_words("wer", **common)


def _score_words(
    metric: Any,
    ref: Path,
    hyps: Sequence[Path],
    json_path: Path | None,
    table_format: Any,
    **given: Any,
) -> None:
    from sortk.scoring.compare import format_systems
    from sortk.scoring.wer import as_json, describe_settings, format_report

    _check_json(json_path, ref, *hyps)
    reports = _read_words(metric, ref, hyps, given)
    [first, *others] = reports.values()
    _write(json_path, reports, as_json)
    if others and table_format != "csv":
        click.echo(describe_settings(first) + "\n")
    click.echo(format_systems(reports, table_format) if others else format_report(first, table_format))


def _read_words(metric: Any, ref: Path, hyps: Sequence[Path], given: dict[str, Any]) -> dict[str, WerReport]:
    from sortk.scoring.compare import name_systems
    from sortk.scoring.wer import Transcripts, WerOptions, score_words

    options, reference = WerOptions(**given_only(given)), Transcripts.read(ref)
    reports = {
        name: score_words(reference, Transcripts.read(hyp, predicted=True), metric, options)
        for name, hyp in zip(name_systems(hyps), hyps, strict=True)
    }
    _note(reports)
    return reports


@score.command()
@click.option(
    "--metric",
    type=click.Choice(["der", "cpwer", "orcwer", "wer"]),
    default="der",
    show_default=True,
    help="The error rate to compare.",
)
@click.option("--ref", type=FILE, required=True, help="The reference, a file or a folder, as for that score.")
@click.option("--hyp", "hyps", type=FILE, required=True, multiple=True, help="A system's output; give two or more.")
@DER_OPTIONS
@NORMALIZER
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the drawn sets of sessions.")
@OUTPUT
@with_verbosity
def compare(
    metric: str,
    ref: Path,
    hyps: Sequence[Path],
    uem: Path | None,
    normalizer: str | None,
    seed: int,
    json_path: Path | None,
    table_format: Any,
    **given: Any,
) -> None:
    """Test whether systems differ, by a paired bootstrap.

    Each further --hyp is compared with the first; sessions are resampled. The difference is that of the pooled rates in
    percentage points: below 0, the system is better than the first one. p is the two-sided p-value. The options of der
    apply to der, --normalizer to the word error rates.

    Example: sortk score compare --metric der --ref ref.rttm --hyp a.rttm --hyp b.rttm
    """
    from dataclasses import asdict

    from sortk.formats.files import atomic_text
    from sortk.formats.objects import encode
    from sortk.scoring import der, wer
    from sortk.scoring.compare import compare_systems, format_comparison

    if len(hyps) < 2:
        raise click.UsageError("a comparison needs two systems; give --hyp at least twice")
    _check_json(json_path, ref, *hyps, *([uem] if uem else []))
    reports: dict[str, Any]
    if metric == "der":
        reports = _read_der(ref, hyps, uem, given)
        settings = f"DER in %; {der.describe_settings(next(iter(reports.values())))}"
    else:
        reports = _read_words(metric, ref, hyps, {"normalizer": normalizer})
        settings = wer.describe_settings(next(iter(reports.values())))
    differences = compare_systems(reports, seed)
    if json_path:
        found = {name: asdict(difference) for name, difference in differences.items()}
        with atomic_text(json_path) as file:
            file.write(encode({"metric": metric, "first": next(iter(reports)), "differences": found}) + "\n")
    if table_format != "csv":
        click.echo(settings + "\n")
    click.echo(format_comparison(reports, differences, table_format))


# ---------------------------------------------------------------------------------------------------------------------
# Pages


@click.command()
@click.option("--exp", type=FILE, help="The experiment's folder, such as exp/mini.")
@click.option("--ref", type=FILE, help="Instead of an experiment: a reference, as RTTM, STM, CTM or SegLST.")
@click.option("--hyp", "hyps", type=FILE, multiple=True, help="A system's output for REF; repeat it for each system.")
@click.option(
    "--audio", type=FILE, metavar="DIR", help="Recordings with the names of the sessions, for sound in the page."
)
@DER_OPTIONS
@click.option("--out", type=FILE, help="The page to write; of an experiment, by default report.html of stage 8.")
@with_verbosity
def report(
    exp: Path | None,
    ref: Path | None,
    hyps: Sequence[Path],
    audio: Path | None,
    uem: Path | None,
    out: Path | None,
    **given: Any,
) -> None:
    """Write an HTML page of an experiment, or of any files.

    The page needs no network. Of an experiment: tables, training curves, tuning, data, and a browser of the scored
    sessions with sound; stages that have not been run are left out. Of a reference and hypotheses: error rates side by
    side, and where each system is wrong. Prints the path of the page.

    Example: sortk report --exp exp/mini

    Example: sortk report --ref ref.rttm --hyp a.rttm --hyp b.rttm --audio recordings --out page.html
    """
    if exp is not None:
        if ref or hyps or audio or uem or any(given.values()):
            raise click.UsageError("--exp goes with --out only: the other options are for --ref and --hyp")
        from sortk.stages import report_experiment

        click.echo(report_experiment(exp, out))
        return
    if ref is None or not hyps or out is None:
        raise click.UsageError("give --exp, or --ref, --hyp and --out")
    from sortk.formats.files import atomic_text
    from sortk.formats.manifest import check_other_file
    from sortk.options import read_options
    from sortk.report.comparison import format_comparison
    from sortk.scoring.intervals import DerOptions

    check_other_file(out, ref, *hyps, *([uem] if uem else []))
    options = read_options(DerOptions, given_only(given), "options")
    page = format_comparison(ref, hyps, uem, audio, options, f"sortk {shlex.join(sys.argv[1:])}")
    with atomic_text(out) as file:
        file.write(page)
    click.echo(out)
