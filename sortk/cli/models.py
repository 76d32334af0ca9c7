"""Models in use: diarize, transcribe, import and export."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import click

from sortk.cli.group import Failures
from sortk.cli.options import (
    FILE,
    MODEL,
    SettingOption,
    given_only,
    with_verbosity,
)

log = logging.getLogger(__name__)

SPEAKERS = click.option(
    "--speakers", type=click.IntRange(min=1), help="Number of speakers in every recording, if you know it."
)
MIN_SPEAKERS = click.option(
    "--min-speakers", type=click.IntRange(min=1), help="Least number of speakers in a recording."
)
MAX_SPEAKERS = click.option(
    "--max-speakers", type=click.IntRange(min=1), help="Largest number of speakers in a recording."
)


CHANNEL = click.option(
    "--channel", type=click.IntRange(min=1), help="Read only this channel of each recording, not the average of all."
)
REPLACE = click.option(
    "--force", is_flag=True, help="Replace files in --out-dir that sortk did not write, or that were changed since."
)


@click.command()
@click.argument("files", type=FILE, nargs=-1, metavar="FILE...")
@click.option(
    "--model",
    type=MODEL,
    help="A model folder, a .nemo file, or a name: see `sortk models`.  [the small one that comes with sortk]",
)
@click.option("--demo", is_flag=True, help="Diarize a short conversation that comes with sortk, in place of FILE.")
@click.option(
    "--postprocess",
    metavar="TOML|PRESET",
    help="A postprocess.toml, or none, callhome, dihard3.  [that in the model folder, or none]",
)
@click.option("--out-dir", type=FILE, help="Write <name>.rttm here, not to standard output.")
@click.option(
    "--streaming",
    is_flag=False,
    flag_value="own",
    metavar="[PRESET]",
    help="Process recordings step by step with this latency in seconds: 0.32, 1.04, 10 or 30.4 for Sortformer; "
    "0.32, 0.64, 1.04 or 30.4 for Nemotron.  [the model's own]",
)
@SPEAKERS
@MIN_SPEAKERS
@MAX_SPEAKERS
@click.option(
    "--enrol",
    multiple=True,
    metavar="NAME=FILE",
    help="A sample of a voice, 5 to 15 s: this speaker gets the name (repeatable). Approximate.",
)
@CHANNEL
@click.option("--int8", is_flag=True, help="8-bit weights: faster on CPUs, slightly less accurate.")
@click.option("--probs", is_flag=True, help="Also write <name>.npy: posteriors, frames x speakers.")
@click.option("--plot", is_flag=True, help="Also write <name>.svg: who spoke when.")
@click.option(
    "--html",
    is_flag=True,
    help="Also write <name>.html: a page with posteriors and sound (that of the first 12 minutes).",
)
@REPLACE
@click.option("--device", help="cpu, cuda, cuda:1, ...; else the GPU if there is one. Without --model: cpu.")
@with_verbosity
def diarize(
    files: Sequence[Path],
    model: Path | None,
    demo: bool,
    postprocess: str | None,
    out_dir: Path | None,
    streaming: str | None,
    speakers: int | None,
    min_speakers: int | None,
    max_speakers: int | None,
    enrol: Sequence[str],
    channel: int | None,
    int8: bool,
    probs: bool,
    plot: bool,
    html: bool,
    force: bool,
    device: str | None,
) -> None:
    """Find out who spoke when.

    FILE is an audio file, a folder of them, a manifest, or `-`: raw samples from standard input (signed 16 bits, 16
    kHz, mono), whose lines are printed as they become final. Recordings may have any length, rate and number
    of channels; those longer than ten minutes are processed in chunks with a speaker cache, in bounded memory.

    Example: sortk diarize meeting.wav > meeting.rttm
    """
    from sortk.cli.recordings import DiarizeOutputs, diarize_files, diarize_live
    from sortk.formats.hub import BETTER_MODEL, DEMO_AUDIO, SHIPPED_MODEL
    from sortk.inference.diarize import OWN_STEPS, DiarizeOptions, choose_postprocess, load

    # `--streaming FILE`, as if FILE were a preset; a latency is a number
    if streaming not in (None, OWN_STEPS) and not re.fullmatch(r"[0-9.]+", str(streaming)):
        if streaming != "-" and not Path(str(streaming)).exists():
            raise click.BadParameter(f"{streaming!r} is not a latency such as 1.04", param_hint="--streaming")
        files, streaming = [Path(str(streaming)), *files], OWN_STEPS
    if demo and files:
        raise click.UsageError("--demo takes the place of FILE: give one or the other")
    files = [DEMO_AUDIO] if demo else files
    if not files:
        raise click.UsageError("give a FILE, `-` for standard input, or --demo")
    live = Path("-") in files
    if live and (len(files) > 1 or out_dir):
        raise click.UsageError("`-`, standard input, stands alone, and goes to standard output")
    if live and channel:
        raise click.UsageError("--channel is for files; standard input is mono")
    if out_dir is None and (probs or plot):
        raise click.UsageError("--probs and --plot need --out-dir")
    if out_dir is None and html:
        raise click.UsageError("--html needs --out-dir")
    samples: dict[str, Path] = {}
    for given in enrol:
        name, equals, path = given.partition("=")
        if not (name and equals and path) or name in samples:
            wrong = "is enrolled twice" if name in samples else "is not NAME=FILE, such as alice=alice.wav"
            raise click.BadParameter(f"{given!r} {wrong}", param_hint="--enrol")
        samples[name] = Path(path)
    options = DiarizeOptions(
        streaming=streaming or (OWN_STEPS if live else None),
        max_speakers=max_speakers,
        postprocess=choose_postprocess(postprocess, model or SHIPPED_MODEL),
        min_speakers=min_speakers,
        speakers=speakers,
        enrol=samples,
    )
    if model is None:
        log.info(
            "using the small model that comes with sortk; NVIDIA's are better: --model %s (see `sortk models`)",
            BETTER_MODEL,
        )
    diarizer = load(model, options, device, int8)
    if live:
        diarize_live(diarizer, sys.stdin.buffer)
        return
    failures = Failures()
    diarize_files(diarizer, files, DiarizeOutputs(out_dir, probs, plot, html, force), failures.report, channel)
    failures.exit_if_any()


@click.command()
@click.argument("files", type=FILE, nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--model",
    type=MODEL,
    required=True,
    help="The ASR (Parakeet, Canary, ...): a model folder, a .nemo file, or a name: see `sortk models`.",
)
@click.option("--diarizer", type=MODEL, help="The diarizer: a model folder, a .nemo file or a name.")
@click.option("--out-dir", type=FILE, help="Write a file for each recording here, not to standard output.")
@click.option(
    "--format",
    "style",
    type=click.Choice(["txt", "json", "srt", "vtt", "seglst", "stm", "ctm", "rttm"]),
    default="seglst",
    show_default=True,
    help="txt, srt, vtt: for people; json: words, times, speakers and confidences; others: for other tools.",
)
@click.option(
    "--html", is_flag=True, help="Also write <name>.html: a page with words and sound (that of the first 12 minutes)."
)
@SPEAKERS
@MIN_SPEAKERS
@MAX_SPEAKERS
@CHANNEL
@click.option(
    "--overlap",
    type=click.Choice(["mask"]),
    help="mask: run the ASR once for each speaker, with the other speakers silenced.",
)
@click.option("--pnc/--no-pnc", default=None, help="Canary: punctuation and capitals, which it writes by default.")
@click.option("--ctc", is_flag=True, help="Use the CTC head of a Parakeet that has two.")
@click.option("--latency", type=float, help="Multitalker Parakeet: seconds of a chunk; else the model's first.")
@click.option(
    "--beam",
    cls=SettingOption,
    settings=["sortk.models.decoding:DecodingOptions.beam"],
    type=click.IntRange(min=1),
    help="Beam size; 1 is greedy search.",
)
@click.option(
    "--decoding",
    cls=SettingOption,
    settings=["sortk.inference.transcribe:TranscribeOptions.decoding"],
    type=click.Choice(["free", "valid"]),
    help="free: whatever the decoder prefers; valid: only texts in which speaker tokens stand as the model has learned "
    "them. A model without speaker tokens decodes freely.",
)
@click.option(
    "--lang",
    cls=SettingOption,
    settings=["sortk.inference.transcribe:TranscribeOptions.lang"],
    help="Language that is spoken, such as de_DE.",
)
@REPLACE
@click.option("--device", help="cpu, cuda, cuda:1, ...; else the GPU if there is one.")
@with_verbosity
def transcribe(
    files: Sequence[Path],
    model: Path,
    diarizer: Path | None,
    out_dir: Path | None,
    style: str,
    html: bool,
    speakers: int | None,
    min_speakers: int | None,
    max_speakers: int | None,
    channel: int | None,
    overlap: str | None,
    pnc: bool | None,
    ctc: bool,
    latency: float | None,
    beam: int | None,
    decoding: str | None,
    lang: str | None,
    force: bool,
    device: str | None,
) -> None:
    """Write down who said what.

    FILE is an audio file, a folder of them, a manifest, or `-` with a multitalker Parakeet: raw samples from standard
    input (signed 16 bits, 16 kHz, mono). Any ASR works with any diarizer: a word belongs to the speaker who is most
    active while it is said. Long recordings are cut at silences; speakers are those of the complete recording.

    Example: sortk transcribe meeting.wav --model parakeet.nemo --diarizer sortformer.nemo --format srt > meeting.srt
    """
    from sortk.cli.recordings import transcribe_files, transcribe_live
    from sortk.inference.diarize import OWN_STEPS, DiarizeOptions
    from sortk.inference.pieces import TranscribeOptions
    from sortk.inference.transcribe import load_transcriber
    from sortk.models.decoding import DecodingOptions

    live = Path("-") in files
    if live and (len(files) > 1 or out_dir):
        raise click.UsageError("`-`, standard input, stands alone, and goes to standard output")
    if live and channel:
        raise click.UsageError("--channel is for files; standard input is mono")
    if html and out_dir is None:
        raise click.UsageError("--html needs --out-dir")
    given = {"lang": lang, "decoding": decoding, "punctuation": pnc, "overlap": overlap, "latency": latency}
    search = DecodingOptions(**given_only({"beam": beam}))
    options = TranscribeOptions(search=search, head="ctc" if ctc else None, **given_only(given))
    counts = given_only({"speakers": speakers, "min_speakers": min_speakers, "max_speakers": max_speakers})
    if counts and diarizer is None:
        raise click.UsageError("a number of speakers needs --diarizer")
    counts |= given_only({"streaming": OWN_STEPS if live else None})
    transcriber = load_transcriber(model, diarizer, options, device, DiarizeOptions(**counts))
    if live:
        transcribe_live(transcriber, sys.stdin.buffer, style if style != "seglst" else "txt")
        return
    failures = Failures()
    transcribe_files(transcriber, files, out_dir, style, failures.report, force, html, channel)
    failures.exit_if_any()


@click.command("import-nemo")
@click.argument("file", type=MODEL, metavar="FILE.nemo")
@click.option("--out", type=FILE, required=True, help="The model folder to write.")
@with_verbosity
def import_nemo(file: Path, out: Path) -> None:
    """Convert a checkpoint of NVIDIA's to a model folder.

    It may be a Sortformer, Nemotron, NEST, Canary or Parakeet, as a .nemo file or a Hugging Face folder. Every --model
    option also accepts the file itself; a model folder loads faster. Nothing in the file is executed.

    Example: sortk import-nemo diar_sortformer_4spk-v1.nemo --out models/sortformer
    """
    from sortk.inference.load import import_nemo as import_file

    import_file(file, out)


@click.command("export-onnx")
@click.option("--model", type=MODEL, required=True, help="A Sortformer or Nemotron: a folder, .nemo file or name.")
@click.option("--out", type=FILE, required=True, help="The file to write.")
@click.option(
    "--part",
    type=click.Choice(["offline", "step", "features"]),
    default="offline",
    show_default=True,
    help="All of it, for clips of any length; a step of a stream; or the log-mel frames that a step takes.",
)
@click.option("--preset", help="Latency of a step in seconds, as for diarize --streaming; else the model's own.")
@with_verbosity
def export_onnx(model: Path, out: Path, part: Literal["offline", "step", "features"], preset: str | None) -> None:
    """Write a diarizer as an ONNX graph.

    It is for runtimes without Python and torch. onnxruntime must compute from it what torch computes, or there is no
    file. A step takes mel frames and its state, and gives posteriors and the next state (next_...); all zeros are the
    state at the start.

    Example: sortk export-onnx --model models/sortformer --out sortformer.onnx
    """
    from sortk.inference.export import export_onnx as export_file

    export_file(model, out, part, preset)


@click.command("models")
@with_verbosity
def list_models() -> None:
    """List published models by name.

    Each line has the licence, and whether the model is on this machine. A name stands wherever a model is asked for.
    NAME@REVISION pins a branch, tag or commit. Models are looked for in ./models and in the cache of Hugging Face
    (HF_HOME), and are downloaded if sortk[hub] is installed.

    Example: sortk models
    """
    from sortk.formats.hub import KNOWN_MODELS, SHIPPED_MODEL, SHIPPED_NAME, find_local

    rows = [("name", "kind", "parameters", "speakers", "latency", "licence", "on this machine")]
    if SHIPPED_MODEL.is_dir():
        rows.append((SHIPPED_NAME, "Sortformer", "6.8M", "any", "offline", "docs/model-card.md", str(SHIPPED_MODEL)))
    for known in KNOWN_MODELS:
        facts = (known.name, known.kind, known.parameters, known.speakers, known.latency, known.licence)
        rows.append((*facts, str(find_local(known.name) or "")))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
