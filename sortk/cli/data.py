"""Stages 0 to 4 on files of one's own: prepare, simulate, clean, timestamps, sst."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from sortk.cli.options import (
    FILE,
    FORCE,
    JOBS,
    LANGUAGE,
    OUT,
    SEED,
    SETTINGS,
    given_only,
    typed_options,
    with_verbosity,
)


@click.command()
@click.argument("corpus")
@click.option("--corpus-dir", default="", help="Where the corpus lies on disk; espeak needs none.")
@OUT
@SEED
@SETTINGS
@JOBS
@FORCE
@with_verbosity
def prepare(
    corpus: str, corpus_dir: str, out: Path, seed: int, overrides: Sequence[str], nj: int, cluster: str, force: bool
) -> None:
    """Stage 0: turn a corpus on disk into sources.jsonl (single-speaker utterances), or into manifests of sessions.

    CORPUS is one of espeak (voices that come with sortk), audiomnist, librispeech, sources (a ready sources.jsonl),
    sre (single speakers on the telephone), or a corpus of conversations: aishell4, ami, callhome, ch109, dihard3,
    dipco, fisher, icsi, librispeechmix, voxconverse, sessions (your own recordings with RTTM, a manifest, or a Kaldi
    directory). docs/corpora.md says where to get them and how they must lie.

    Example: sortk prepare librispeech --corpus-dir /data/LibriSpeech --out data/librispeech
    """
    from sortk.cluster import choose_cluster
    from sortk.corpora.options import PrepareOptions
    from sortk.folders import Folder
    from sortk.standalone import prepare_folder

    options = typed_options(PrepareOptions, overrides, corpus=corpus, corpus_dir=corpus_dir)
    prepare_folder(options, seed, out, choose_cluster(cluster, nj, Folder(out)), force)


@click.command()
@click.option("--sources", type=FILE, help="Single-speaker utterances: sources.jsonl.")
@OUT
@click.option("--hours", type=float, help="How much to make.")
@click.option("--speakers", default="2-4", show_default=True, help="In a session: a number or a range.")
@click.option("--overlap", type=float, help="Time with two speakers / time with at least one.  [default: 0.12]")
@click.option("--silence", type=float, help="Time with nobody / duration.  [default: 0.1]")
@click.option("--seconds", type=float, help="Length of a session.  [default: 90]")
@SEED
@click.option("--noise", "noise_dir", help="A folder with noise to add.")
@click.option("--rir", "rir_dir", help="A folder with room impulse responses.")
@click.option("--split", help="Use only the sources of this split.")
@click.option("--mixtures", type=FILE, help="Instead of --sources: a list of LibriSpeechMix, to be made exactly.")
@click.option("--librispeech", type=FILE, help="The LibriSpeech folder that the list's paths are relative to.")
@click.option("--plot", is_flag=True, help="Draw the first sessions into plots/, as SVG.")
@SETTINGS
@JOBS
@FORCE
@with_verbosity
def simulate(
    sources: Path | None,
    out: Path,
    hours: float | None,
    speakers: str,
    seed: int,
    split: str | None,
    mixtures: Path | None,
    librispeech: Path | None,
    plot: bool,
    overrides: Sequence[str],
    nj: int,
    cluster: str,
    force: bool,
    **given: Any,
) -> None:
    """Stage 1: make conversations out of single-speaker speech.

    Writes manifest.jsonl, audio/, rttm/, seglst/ and ctm/ (words), and plan/ (how each session was made).

    Example: sortk simulate --sources data/sources.jsonl --out data/sim --hours 2 --speakers 2-4 --nj 4
    """
    from sortk.cluster import choose_cluster
    from sortk.folders import Folder
    from sortk.prepare.simulate import SimulateOptions
    from sortk.standalone import mix_listed_folder, plot_sessions, simulate_folder

    run_jobs = choose_cluster(cluster, nj, Folder(out))
    by_list = (mixtures, librispeech)
    if any(by_list) and (not all(by_list) or sources or hours is not None or overrides or given_only(given)):
        raise click.UsageError("--mixtures and --librispeech go together, and with no settings of simulated sessions")
    if mixtures is not None and librispeech is not None:
        mix_listed_folder(mixtures, librispeech, out, run_jobs, force)
    elif sources is None or hours is None:
        raise click.UsageError("give --sources and --hours, or --mixtures and --librispeech")
    else:
        options = typed_options(
            SimulateOptions, overrides, hours={"all": hours}, **_speaker_range(speakers), **given_only(given)
        )
        simulate_folder(sources, split, options, seed, out, run_jobs, force)
    if plot:
        plot_sessions(out / "manifest.jsonl", out / "plots")


def _speaker_range(text: str) -> dict[str, int]:
    low, _, high = text.partition("-")
    if not low.isdecimal() or not (high or low).isdecimal():
        raise click.BadParameter(f"{text!r} is neither a number nor a range such as 2-4", param_hint="--speakers")
    return {"min_speakers": int(low), "max_speakers": int(high or low)}


@click.command()
@click.option("--manifest", "manifest_path", type=FILE, required=True, help="The sessions to clean.")
@OUT
@click.option("--sad", type=click.Choice(["silero", "none"]), help="What refines boundaries.  [default: silero]")
@click.option("--diarizer", type=FILE, help="A trained model whose posteriors refine boundaries too.")
@click.option("--probs", type=FILE, help="Instead: a folder with its posteriors, <session>.npy.")
@LANGUAGE
@SETTINGS
@JOBS
@FORCE
@with_verbosity
def clean(
    manifest_path: Path,
    out: Path,
    sad: str | None,
    diarizer: Path | None,
    probs: Path | None,
    lang: str | None,
    rule: str | None,
    overrides: Sequence[str],
    nj: int,
    cluster: str,
    force: bool,
) -> None:
    """Stage 2: refine annotations, cut windows and samples, drop what would spoil a model.

    Writes diar/ (windows of at most 90 s), asr/ (samples of 10-20 s to learn from), scored/ (samples of 10-20 s that
    keep every word, to score), rejected.jsonl and summary.json.

    Example: sortk clean --manifest data/ami.jsonl --out data/ami-clean --nj 4
    """
    from sortk.cluster import choose_cluster
    from sortk.folders import Folder
    from sortk.prepare.clean_options import CleanOptions
    from sortk.prepare.timestamps import TimestampOptions
    from sortk.standalone import clean_folder

    if diarizer is not None and probs is not None:
        raise click.UsageError("give --diarizer or --probs, not both")
    given = {"sad": sad, "diarizer": diarizer and str(diarizer)}
    options = typed_options(CleanOptions, overrides, **given_only(given))
    words = typed_options(TimestampOptions, [], **given_only({"lang": lang, "rule": rule}))
    clean_folder(manifest_path, options, words, probs, out, choose_cluster(cluster, nj, Folder(out)), force)


@click.command()
@click.option("--seglst", type=FILE, required=True, help="Transcripts: a SegLST file, or a folder of them.")
@OUT
@LANGUAGE
@JOBS
@FORCE
@with_verbosity
def timestamps(seglst: Path, out: Path, lang: str | None, rule: str | None, nj: int, cluster: str, force: bool) -> None:
    """Stage 3: give words approximate times, from the times of their segments.

    Writes OUT/<session>.json, one entry per word.

    Example: sortk timestamps --seglst data/ami/seglst --out data/ami-words
    """
    from sortk.cluster import choose_cluster
    from sortk.folders import Folder
    from sortk.prepare.timestamps import TimestampOptions
    from sortk.standalone import timestamps_folder

    options = typed_options(TimestampOptions, [], **given_only({"lang": lang, "rule": rule}))
    timestamps_folder(seglst, options, out, choose_cluster(cluster, nj, Folder(out)), force)


@click.command()
@click.option("--seglst", type=FILE, required=True, help="Words: a SegLST file, or a folder of them.")
@click.option("--manifest", "manifest_path", type=FILE, help="Samples of these recordings (asr/ of clean).")
@click.option("--transcripts", type=FILE, help="With --manifest: the folder of segments the words were taken from.")
@click.option("--out", type=FILE, required=True, help="The file to write.")
@click.option(
    "--level",
    type=click.Choice(["word", "segment", "change", "sot", "dom-sot"]),
    help="Where speaker tokens stand: before each word, each segment, or where the speaker changes.  [default: word]",
)
@SETTINGS
@JOBS
@with_verbosity
def sst(
    seglst: Path,
    manifest_path: Path | None,
    transcripts: Path | None,
    out: Path,
    level: str | None,
    overrides: Sequence[str],
    nj: int,
    cluster: str,
) -> None:
    """Stage 4: build sorted serialized transcripts.

    Writes lines {"session_id", "text"}; `<spk0>` is who speaks first. With --manifest, the lines of that manifest with
    their text: of each sample, `<spk0>` is who speaks first in it.

    Example: sortk sst --seglst data/ami-words --manifest data/ami-clean/asr/manifest.jsonl --out data/ami-sst.jsonl
    """
    from sortk.cluster import choose_cluster
    from sortk.folders import Folder
    from sortk.formats.sst import SstOptions
    from sortk.standalone import sst_file

    if transcripts is not None and manifest_path is None:
        raise click.UsageError("--transcripts needs --manifest; without it, give the transcripts as --seglst")
    options = typed_options(SstOptions, overrides, **given_only({"level": level}))
    sst_file(seglst, manifest_path, transcripts, options, out, choose_cluster(cluster, nj, Folder(out)))
