"""The work of the stages on any files, for the commands that need no recipe."""

from __future__ import annotations

import errno
import logging
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from sortk.cluster import build_together
from sortk.content import input_keys
from sortk.corpora.options import PrepareOptions
from sortk.folders import Folder, Identity, build_folder, settings_of, write_json
from sortk.formats.sst import SstOptions
from sortk.prepare.clean_options import CleanOptions
from sortk.prepare.simulate import SimulateOptions
from sortk.prepare.sst import write_sst
from sortk.prepare.timestamps import TimestampOptions
from sortk.records import RunJobs, Segment, Session
from sortk.stages import clean_into, clip_folders, prepare_into, ready_sources, serialize_manifest, write_report
from sortk.training.options import TrainAsrOptions, TrainDiarOptions

if TYPE_CHECKING:
    from sortk.inference.diarize import Diarizer
    from sortk.inference.pieces import Transcriber
    from sortk.prepare.pieces import SpeakerIndex

log = logging.getLogger(__name__)


def prepare_folder(options: PrepareOptions, seed: int, out: Path, run_jobs: RunJobs, force: bool) -> None:
    """`sortk prepare`."""

    def work(partial: Path) -> None:
        prepare_into(options, partial, seed, run_jobs)

    settings = {"seed": seed} | settings_of(options)
    inputs = input_keys({path.name: path for path in ready_sources(options)})
    build_folder(Folder(out), Identity("sortk prepare", settings, inputs), work, force)


def simulate_folder(
    sources_path: Path,
    split: str | None,
    options: SimulateOptions,
    seed: int,
    out: Path,
    run_jobs: RunJobs,
    force: bool,
) -> None:
    """`sortk simulate`."""
    from sortk.formats import sources
    from sortk.prepare.simulate import index_sources, simulate_set

    hours = sum(options.hours.values())
    if hours == 0:
        raise ValueError("hours must be more than 0")

    def work(partial: Path) -> None:
        utterances = [source for source in sources.read(sources_path) if split in (None, source.split)]
        speakers = index_sources(utterances, partial, options.sample_rate, run_jobs)
        summary = simulate_set(speakers, options, seed, "sim", hours, partial / "manifest.jsonl", run_jobs)
        write_json(partial / "summary.json", summary.to_json())

    settings = {"seed": seed, "split": split} | settings_of(options)
    inputs = input_keys({sources_path.name: sources_path} | {f"folder {path}": path for path in clip_folders(options)})
    build_folder(Folder(out), Identity("sortk simulate", settings, inputs), work, force)


def mix_listed_folder(list_path: Path, librispeech: Path, out: Path, run_jobs: RunJobs, force: bool) -> None:
    """`sortk simulate --mixtures`: exactly the mixtures of a LibriSpeechMix list."""
    from sortk.formats import mixlist
    from sortk.prepare.librispeechmix import ListedMixtures
    from sortk.prepare.mixtures import write_set

    def work(partial: Path) -> None:
        mixer = ListedMixtures(mixlist.read(list_path), librispeech)
        summary = write_set(mixer, len(mixer.mixtures), partial / "manifest.jsonl", run_jobs)
        write_json(partial / "summary.json", summary.to_json())

    settings = {"librispeech": str(librispeech)}
    inputs = input_keys({list_path.name: list_path})
    build_folder(Folder(out), Identity("sortk simulate", settings, inputs), work, force)


def clean_folder(
    manifest_path: Path,
    options: CleanOptions,
    words: TimestampOptions,
    probs_dir: Path | None,
    out: Path,
    run_jobs: RunJobs,
    force: bool,
) -> None:
    """`sortk clean`."""
    from sortk.formats import manifest

    def work(partial: Path) -> None:
        clean_into({"manifest": manifest.read(manifest_path)}, options, words, partial, run_jobs, probs_dir)

    settings = settings_of(options) | settings_of(words) | {"probs": probs_dir and str(probs_dir)}
    diarizer = Path(options.diarizer) if options.diarizer else None
    inputs = input_keys({manifest_path.name: manifest_path, "probs": probs_dir, "diarizer": diarizer})
    build_folder(Folder(out), Identity("sortk clean", settings, inputs), work, force)


def timestamps_folder(seglst: Path, options: TimestampOptions, out: Path, run_jobs: RunJobs, force: bool) -> None:
    """`sortk timestamps`."""
    from sortk.formats.files import files_in
    from sortk.prepare.timestamps import write_timestamps

    def work(partial: Path) -> None:
        log.info("%s", write_timestamps(seglst, partial, options, run_jobs))

    inputs = input_keys({path.name: path for path in files_in(seglst, ".json")})
    folder = Folder(out, marker=".done.json")
    build_folder(folder, Identity("sortk timestamps", settings_of(options), inputs), work, force)


def sst_file(
    seglst: Path,
    manifest_path: Path | None,
    transcripts: Path | None,
    options: SstOptions,
    out: Path,
    run_jobs: RunJobs,
) -> None:
    """`sortk sst`."""
    if manifest_path is not None:
        serialize_manifest(manifest_path, seglst, options, out, run_jobs, transcripts=transcripts)
    else:
        log.info("%s: %s", out.name, write_sst(seglst, out, options, run_jobs))
    shutil.rmtree(Folder(out).partial, ignore_errors=True)  # what jobs of a cluster have left


def train_diar_folder(
    train: Path,
    valid: Path,
    sources_path: Path | None,
    options: TrainDiarOptions,
    init: Path | None,
    seed: int,
    out: Path,
    force: bool,
) -> None:
    """`sortk train-diar`."""
    from sortk.formats import manifest
    from sortk.inference.load import read_model
    from sortk.training.diarizer import train_diarizer
    from sortk.training.phases import Pretrained, TrainingData

    init = _find_init(init, options)

    def work(partial: Path) -> None:
        simulate = SimulateOptions()
        speakers = _index_together(sources_path, partial, simulate.sample_rate)
        data = TrainingData(manifest.read(train), manifest.read(valid), speakers, simulate)
        initial = Pretrained(*read_model(init)) if init else None
        train_diarizer(data, options, seed, partial, initial)

    settings = {"seed": seed} | settings_of(options)
    given = {"train": train, "valid": valid, "sources": sources_path, "init": init}

    def build(lead: Callable[[Path], None]) -> bool:  # of several processes, one reads all inputs for their keys
        inputs = input_keys(given)
        return build_folder(Folder(out), Identity("sortk train-diar", settings, inputs), lead, force)

    build_together(build, work)


def _find_init(given: Path | None, options: TrainDiarOptions | TrainAsrOptions) -> Path | None:
    """The model to start from: the one that is given, or the one of the settings."""
    if not options.phases:
        raise ValueError("the settings have no phases, so there is nothing to train")
    return given or (Path(options.init) if options.init else None)


def _index_together(sources_path: Path | None, out: Path, sample_rate: int) -> list[SpeakerIndex]:
    """The voices for conversations on the fly; of several processes, the leading one finds their speech."""
    from sortk.formats import sources
    from sortk.prepare.simulate import index_sources
    from sortk.training.processes import rank0_first

    found = sources.read(sources_path) if sources_path else []
    with rank0_first():
        return index_sources(found, out, sample_rate, map)


def train_asr_folder(
    train: Path,
    valid: Path,
    sources_path: Path | None,
    options: TrainAsrOptions,
    sst: SstOptions,
    init: Path | None,
    diarizer: Path | None,
    seed: int,
    out: Path,
    force: bool,
) -> None:
    """`sortk train-asr`."""
    from sortk.formats import manifest
    from sortk.inference.load import read_asr, read_model
    from sortk.training.asr import train_asr
    from sortk.training.phases import Pretrained, TrainingData

    init = _find_init(init, options)

    def work(partial: Path) -> None:
        simulate = SimulateOptions()
        speakers = _index_together(sources_path, partial, simulate.sample_rate)
        data = TrainingData(manifest.read(train), manifest.read(valid), speakers, simulate)
        initial = Pretrained(*read_asr(init)) if init else None
        train_asr(data, sst, options, seed, partial, initial, Pretrained(*read_model(diarizer)) if diarizer else None)

    settings = {"seed": seed} | settings_of(sst) | settings_of(options)
    given = {"train": train, "valid": valid, "sources": sources_path, "init": init, "diarizer": diarizer}

    def build(lead: Callable[[Path], None]) -> bool:  # of several processes, one reads all inputs for their keys
        inputs = input_keys(given)
        return build_folder(Folder(out), Identity("sortk train-asr", settings, inputs), lead, force)

    build_together(build, work)


@dataclass(frozen=True)
class DiarizeOutputs:
    """What `sortk diarize` writes of each recording: RTTM, to standard output if there is no folder, and what else."""

    folder: Path | None = None
    probs: bool = False
    plot: bool = False
    html: bool = False
    force: bool = False  # replace files in the folder that are not of sortk's making, too

    def paths(self, session: Session) -> list[Path]:
        """Return the files of a recording; none if there is no folder."""
        from sortk.formats.files import check_file_name

        kinds = {"rttm": True, "npy": self.probs, "svg": self.plot, "html": self.html}
        name = check_file_name(session.session_id)
        return [self.folder / f"{name}.{kind}" for kind, wanted in kinds.items() if wanted] if self.folder else []

    def write(self, session: Session, segments: Sequence[Segment], probs: Any, frame_seconds: float) -> None:
        from sortk.formats import posteriors, rttm
        from sortk.formats.files import atomic_text
        from sortk.formats.outputs import noting_outputs
        from sortk.formats.timeline import draw_timeline
        from sortk.report.recording import format_recording

        if self.folder is None:
            sys.stdout.writelines(rttm.format_lines(segments))
            sys.stdout.flush()
            return
        path = posteriors.path_of(self.folder, session)
        with noting_outputs(self.paths(session)):
            rttm.write(path.with_name(f"{session.session_id}.rttm"), segments)
            if self.probs:
                posteriors.write(path, probs, frame_seconds)
            if self.plot:
                with atomic_text(path.with_name(f"{session.session_id}.svg")) as file:
                    file.write(draw_timeline(segments, title=session.session_id))
            if self.html:
                with atomic_text(path.with_name(f"{session.session_id}.html")) as file:
                    file.write(format_recording(session, segments, probs, frame_seconds))


def choose_writable(
    sessions: Sequence[Session],
    paths_of: Callable[[Session], Sequence[Path]],
    force: bool,
    on_error: Callable[[Exception], None],
) -> list[Session]:
    """Return the sessions that files can be named after; ValueError, before any work, if a file is the user's own."""
    from sortk.formats.outputs import check_replaceable

    paths: dict[str, Sequence[Path]] = {}
    for session in sessions:
        try:
            paths[session.session_id] = paths_of(session)
        except ValueError as error:
            on_error(error)
    check_replaceable([path for own in paths.values() for path in own], force)
    return [session for session in sessions if session.session_id in paths]


def diarize_files(
    diarizer: Diarizer, paths: Sequence[Path], outputs: DiarizeOutputs, on_error: Callable[[Exception], None]
) -> None:
    """`sortk diarize`."""
    from tqdm import tqdm

    from sortk.inference.diarize import count_seconds, find_sessions

    sessions = choose_writable(find_sessions(paths, on_error), outputs.paths, outputs.force, on_error)
    began, n_done, n_frames = time.monotonic(), 0, 0
    bar = tqdm(
        total=round(count_seconds(sessions)), desc="diarize", unit=" s", unit_scale=True, disable=None, leave=False
    )
    with bar:
        for session, probs in diarizer.hear(sessions, lambda _, error: on_error(error), bar.update):
            try:
                outputs.write(session, diarizer.find_segments(session, probs), probs, diarizer.frame_seconds)
            except (ValueError, OSError) as error:
                if not _is_about_name(error):
                    raise
                on_error(error)
                continue
            n_done, n_frames = n_done + 1, n_frames + len(probs)
    spent, seconds = time.monotonic() - began, n_frames * diarizer.frame_seconds
    log.info("%d of %d recordings, %.1f s of audio in %.1f s", n_done, len(sessions), seconds, spent)
    if seconds:
        log.info("real-time factor %.4f", spent / seconds)


def _is_about_name(error: Exception) -> bool:
    """Return whether a session cannot be written because of its name; the others can, unless the disk is full."""
    return not isinstance(error, OSError) or error.errno in (errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL)


def diarize_live(diarizer: Diarizer, file: BinaryIO) -> None:
    """`sortk diarize -`: raw samples from a pipe; a line as soon as it is final."""
    from sortk.formats import rttm
    from sortk.inference.live import diarize_pcm

    for segment in diarize_pcm(diarizer, file):
        sys.stdout.writelines(rttm.format_lines([segment]))
        sys.stdout.flush()


def transcribe_files(
    transcriber: Transcriber[Any],
    paths: Sequence[Path],
    out_dir: Path | None,
    style: str,
    on_error: Callable[[Exception], None],
    force: bool = False,
) -> None:
    """`sortk transcribe`."""
    from sortk.inference.dialogue import print_transcripts, transcript_path, write_transcript
    from sortk.inference.diarize import count_seconds, find_sessions

    sessions = find_sessions(paths, on_error)
    if out_dir is not None:
        sessions = choose_writable(
            sessions, lambda session: [transcript_path(out_dir, session, style)], force, on_error
        )
    if out_dir is None and style in ("srt", "vtt") and len(sessions) > 1:
        raise ValueError(f"--format {style} holds one recording: give --out-dir for {len(sessions)} of them")
    began, n_done, n_words = time.monotonic(), 0, 0
    printed = []
    with Progress("transcribing", transcriber.count_seconds(count_seconds(sessions))) as progress:
        for session, words in transcriber.transcribe(sessions, lambda _, error: on_error(error), progress.update):
            n_done, n_words = n_done + 1, n_words + len(words)
            if out_dir is not None:
                try:
                    write_transcript(out_dir, session, words, style)
                except (ValueError, OSError) as error:
                    if not _is_about_name(error):
                        raise
                    on_error(error)
                    n_done -= 1
            else:
                printed.append((session, words))
    if out_dir is None:
        print_transcripts(printed, style, sys.stdout)
    spent = time.monotonic() - began
    log.info("%d of %d recordings, %d words in %.1f s", n_done, len(sessions), n_words, spent)


def transcribe_live(transcriber: Transcriber[Any], file: BinaryIO, style: str) -> None:
    """`sortk transcribe -`: raw samples from a pipe; an utterance, or a word, as soon as it is final."""
    from sortk.inference.cascade import MultitalkerTranscriber
    from sortk.inference.dialogue import format_dialogue, format_transcript, stream_utterances

    if not isinstance(transcriber, MultitalkerTranscriber):
        raise ValueError("only a multitalker Parakeet writes a stream; record it to a file for other models")
    if style not in ("txt", "ctm"):
        raise ValueError(f"a stream is written as txt or ctm, not as {style}")
    words = transcriber.transcribe_pcm(file)
    labels = {f"speaker_{number}": f"Speaker {number + 1}" for number in range(1000)}
    for group in stream_utterances(words) if style == "txt" else ([word] for word in words):
        sys.stdout.write(format_dialogue(group, labels) if style == "txt" else format_transcript(group, style))
        sys.stdout.flush()


class Progress:
    """Seconds of audio that are done: a bar on a terminal, a line every now and then in a log."""

    LINE_SECONDS = 30.0  # between two lines

    def __init__(self, verb: str, total: float) -> None:
        from tqdm import tqdm

        self.verb, self.total, self.done = verb, total, 0.0
        self._bar = tqdm(total=round(total), desc=verb, unit=" s", unit_scale=True, disable=None, leave=False)
        self._began = self._told = time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def update(self, seconds: float) -> None:
        self.done += seconds
        self._bar.update(seconds)
        now = time.monotonic()
        if self._bar.disable and now - self._told >= self.LINE_SECONDS and self.done:
            left = (now - self._began) * max(self.total / self.done - 1, 0)
            log.info("%s: %.0f %% done, about %.0f s left", self.verb, 100 * self.done / max(self.total, 1), left)
            self._told = now


def plot_sessions(manifest_path: Path, out: Path, at_most: int = 12) -> None:
    """Draws who speaks when in the first sessions of a manifest."""
    from sortk.formats import manifest, rttm, seglst
    from sortk.formats.files import atomic_text, check_file_name
    from sortk.formats.timeline import draw_timeline

    for session in manifest.read(manifest_path)[:at_most]:
        segments = rttm.read(session.rttm_path) if session.rttm_path else []
        words = seglst.read(session.seglst_path) if session.seglst_path else []
        with atomic_text(out / f"{check_file_name(session.session_id)}.svg") as file:
            file.write(draw_timeline(segments, words, session.duration, title=session.session_id))


def report_experiment(exp: Path, out: Path | None) -> Path:
    """`sortk report`; by default the page lies where stage 8 puts it, or else in the experiment's folder."""
    from sortk.report.experiment import open_experiment

    folders = open_experiment(exp)
    out = out or folders.stages.get("score", exp) / "report.html"
    write_report(folders, out)
    return out
