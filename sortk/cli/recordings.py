"""`sortk diarize` and `sortk transcribe`: recordings in, files or standard output out."""

from __future__ import annotations

import errno
import logging
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from sortk.formats.files import plural
from sortk.records import Segment, Session

if TYPE_CHECKING:
    from sortk.formats.posteriors import Posteriors
    from sortk.inference.diarize import Diarizer
    from sortk.inference.pieces import Transcriber

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DiarizeOutputs:
    """What `sortk diarize` writes of each recording: RTTM, to standard output if there is no folder, and what else."""

    folder: Path | None = None
    probs: bool = False
    plot: bool = False
    html: bool = False
    force: bool = False  # also replace files in the folder that sortk did not write

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
                page = path.with_name(f"{session.session_id}.html")
                write_page(page, session, segments, posteriors.Posteriors(probs, frame_seconds))


def write_page(
    path: Path,
    session: Session,
    segments: Sequence[Segment],
    posteriors: Posteriors | None = None,
    words: Sequence[Segment] = (),
) -> None:
    """Write the page of a recording, with the command line that makes it."""
    from sortk.formats.files import atomic_text
    from sortk.report.session import format_recording

    with atomic_text(path) as file:
        file.write(format_recording(session, segments, posteriors, words, f"sortk {shlex.join(sys.argv[1:])}"))


def choose_writable(
    sessions: Sequence[Session],
    paths_of: Callable[[Session], Sequence[Path]],
    force: bool,
    on_error: Callable[[Exception], None],
) -> list[Session]:
    """Return the sessions that files can be named after.

    Before any work, make the folder, and raise a ValueError if a file is the user's own.
    """
    from sortk.formats.files import make_folder
    from sortk.formats.outputs import check_replaceable

    paths: dict[str, Sequence[Path]] = {}
    for session in sessions:
        try:
            paths[session.session_id] = paths_of(session)
        except ValueError as error:
            on_error(error)
    found = [path for own in paths.values() for path in own]
    check_replaceable(found, force)
    for folder in {path.parent for path in found}:
        make_folder(folder)
    return [session for session in sessions if session.session_id in paths]


def diarize_files(
    diarizer: Diarizer,
    paths: Sequence[Path],
    outputs: DiarizeOutputs,
    on_error: Callable[[Exception], None],
    channel: int | None = None,
) -> None:
    """`sortk diarize`."""
    from sortk.inference.diarize import count_seconds, find_sessions
    from sortk.progress import Progress

    found = [replace(session, channel=channel) for session in find_sessions(paths, on_error)]
    sessions = choose_writable(found, outputs.paths, outputs.force, on_error)
    began, n_done, n_frames, n_speakers = time.monotonic(), 0, 0, set[int]()
    with Progress("diarizing", count_seconds(sessions), "s") as progress:
        for session, probs in diarizer.posteriors_of(sessions, lambda _, error: on_error(error), progress.update):
            try:
                segments = diarizer.find_segments(session, probs)
                outputs.write(session, segments, probs, diarizer.frame_seconds)
            except (ValueError, OSError) as error:
                if not _is_about_name(error):
                    raise
                on_error(error)
                continue
            n_done, n_frames = n_done + 1, n_frames + len(probs)
            n_speakers.add(len({segment.speaker for segment in segments}))
    spent, seconds = time.monotonic() - began, n_frames * diarizer.frame_seconds
    log.info("%d of %s, %.1f s of audio in %.1f s", n_done, plural(len(sessions), "recording"), seconds, spent)
    if n_speakers:
        fewest, most = min(n_speakers), max(n_speakers)
        log.info("%s", plural(most, "speaker") if fewest == most else f"{fewest} to {most} speakers per recording")
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
    html: bool = False,
    channel: int | None = None,
) -> None:
    """`sortk transcribe`; `html` needs a folder."""
    from sortk.formats.outputs import noting_outputs
    from sortk.inference.diarize import count_seconds, find_sessions
    from sortk.inference.results import find_utterances, print_transcripts, transcript_path, write_transcript
    from sortk.progress import Progress

    styles = [style, "html"] if html else [style]
    sessions = [replace(session, channel=channel) for session in find_sessions(paths, on_error)]
    if out_dir is not None:
        sessions = choose_writable(
            sessions, lambda session: [transcript_path(out_dir, session, own) for own in styles], force, on_error
        )
    if out_dir is None and style in ("srt", "vtt") and len(sessions) > 1:
        raise ValueError(f"--format {style} holds one recording: give --out-dir for {len(sessions)} of them")
    began, n_done, n_words = time.monotonic(), 0, 0
    printed = []
    with Progress("transcribing", transcriber.count_seconds(count_seconds(sessions)), "s") as progress:
        for session, words in transcriber.transcribe(sessions, lambda _, error: on_error(error), progress.update):
            n_done, n_words = n_done + 1, n_words + len(words)
            if out_dir is not None:
                try:
                    write_transcript(out_dir, session, words, style)
                    if html:
                        page = transcript_path(out_dir, session, "html")
                        with noting_outputs([page]):
                            write_page(page, session, find_utterances(words), words=words)
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
    counts = plural(len(sessions), "recording"), plural(n_words, "word")
    log.info("%d of %s, %s in %.1f s", n_done, *counts, spent)


def transcribe_live(transcriber: Transcriber[Any], file: BinaryIO, style: str) -> None:
    """`sortk transcribe -`: raw samples from a pipe; an utterance, or a word, as soon as it is final."""
    from sortk.inference.cascade import MultitalkerTranscriber
    from sortk.inference.results import format_dialogue, format_transcript, stream_utterances

    if not isinstance(transcriber, MultitalkerTranscriber):
        raise ValueError("only a multitalker Parakeet writes a stream; record it to a file for other models")
    if style not in ("txt", "ctm"):
        raise ValueError(f"a stream is written as txt or ctm, not as {style}")
    words = transcriber.transcribe_pcm(file)
    labels = {f"speaker_{number}": f"Speaker {number + 1}" for number in range(1000)}
    for group in stream_utterances(words) if style == "txt" else ([word] for word in words):
        sys.stdout.write(format_dialogue(group, labels) if style == "txt" else format_transcript(group, style))
        sys.stdout.flush()
