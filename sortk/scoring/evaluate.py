"""Stage 8: a recipe's models on its test sets. Writes their hypotheses, and measures what is wrong with them."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sortk.formats import posteriors, rttm, seglst
from sortk.formats.files import atomic_text, check_file_name, read_lines
from sortk.formats.objects import encode, entries
from sortk.formats.postprocess import Postprocess
from sortk.inference.postprocess import find_segments, name_segments
from sortk.prepare.syllables import approximate_word_times
from sortk.records import Segment, Session
from sortk.scoring.arrival import measure_arrival
from sortk.scoring.der import read_references, read_segments, score_der
from sortk.scoring.intervals import DerOptions
from sortk.scoring.results import METRICS, DerResult, WerResult
from sortk.scoring.wer import Metric, Transcripts, WerOptions, score_words

if TYPE_CHECKING:
    from sortk.inference.pools import PooledDiarizer, PooledTranscriber

log = logging.getLogger(__name__)


def choose_sessions(sets: Mapping[str, Sequence[Session]], names: Iterable[str]) -> dict[str, Sequence[Session]]:
    """Return the sets of these names, each of which must have sessions."""
    chosen = {name: sets.get(name, ()) for name in names}
    for name, sessions in chosen.items():
        if not sessions:
            known = ", ".join(sorted(name for name in sets if sets[name])) or "none"
            raise ValueError(f"there are no sessions in the split {name!r}; splits with sessions: {known}")
    return chosen


def evaluate_diarizer(
    diarizer: PooledDiarizer,
    system: str,
    test_set: str,
    sessions: Sequence[Session],
    postprocessing: Mapping[str, Postprocess],
    options: DerOptions,
    folder: Path,
) -> list[DerResult]:
    """Return the DER with each postprocessing.

    Hypotheses go to folder/<postprocessing>/<session>.rttm, posteriors to folder/probs/<session>.npy. Sessions that an
    earlier run has written are not processed again.
    """
    from sortk.inference.diarize import unfinished_pools  # noqa: PLC0415 - torch

    def hypothesis(name: str, session: Session) -> Path:
        return folder / name / f"{session.session_id}.rttm"

    def is_done(session: Session) -> bool:
        return posteriors.path_of(folder / "probs", session).is_file()  # written last

    references, uem = read_references(sessions)
    frame_seconds = diarizer.frame_seconds
    for session, probs in diarizer.posteriors_of(unfinished_pools(sessions, is_done)):
        if is_done(session):
            continue
        for name, chosen in postprocessing.items():
            found = name_segments(session.session_id, find_segments(probs, chosen, frame_seconds))
            # Times in files count from the start of the audio file, of which a session may be a part.
            rttm.write(hypothesis(name, session), [part.shift(session.offset) for part in found])
        posteriors.write(posteriors.path_of(folder / "probs", session), probs, frame_seconds)
    results = []
    for name in postprocessing:
        hypotheses = {
            session.session_id: [part.shift(-session.offset) for part in rttm.read(hypothesis(name, session))]
            for session in sessions
        }
        report = score_der(references, hypotheses, uem, options)
        log.info("%s, %s, postprocessing %s: DER %.2f %%", test_set, system, name, 100 * report.overall.der)
        results.append(DerResult(system, test_set, name, report, measure_arrival(references, hypotheses)))
    return results


def evaluate_asr(
    transcriber: PooledTranscriber,
    system: str,
    test_set: str,
    samples: Sequence[Session],
    options: WerOptions,
    names_speakers: bool,
    folder: Path,
) -> list[WerResult]:
    """Return WER and cpWER of samples that have an SST as their text, or LibriSpeechMix's WER alone.

    Transcripts go to folder/<sample>.json (SegLST) and folder/sst.jsonl. Samples that an earlier run has written are
    not processed again.
    """
    references = {sample.session_id: sample.text or "" for sample in samples}
    hypotheses = _transcribe_missing(transcriber, samples, folder)
    # What the system is meant to write decides how it is counted, not whether it did so in this set.
    sides = Transcripts.of_sst(references), replace(Transcripts.of_sst(hypotheses), names_speakers=names_speakers)
    metrics: tuple[Metric, ...] = ("wer", "cpwer") if options.style == "sorted" else ("wer",)
    reports = [score_words(*sides, metric, options) for metric in metrics]
    for report in reports:
        log.info("%s, %s: %s %.2f %%", test_set, system, METRICS[report.metric], 100 * report.overall.rate)
    return [WerResult(system, test_set, report, transcriber.decoding) for report in reports]


def evaluate_rttm(
    path: Path, system: str, test_set: str, sessions: Sequence[Session], options: DerOptions
) -> DerResult:
    """DER of another system's RTTM, a file or a folder, on a test set; sessions of other sets in it do not matter."""
    references, uem = read_references(sessions)
    found = read_segments(path)
    hypotheses = {
        session.session_id: [part.shift(-session.offset) for part in found[session.session_id]]
        for session in sessions
        if session.session_id in found
    }
    if not hypotheses:
        raise ValueError(f"{path}: has no session of the test set {test_set}, such as {sessions[0].session_id}")
    return DerResult(system, test_set, "as given", score_der(references, hypotheses, uem, options))


def evaluate_words(
    path: Path, system: str, test_set: str, samples: Sequence[Session], options: WerOptions
) -> list[WerResult]:
    """Word error rates of another system's transcripts, a file or a folder, on the samples of a test set.

    They may be of the samples, by their ids, or of whole recordings with times: a word then belongs to the sample in
    which its middle is.
    """
    found = Transcripts.read(path, predicted=True)
    by_sample = {
        sample.session_id: found.sessions.get(sample.session_id, ()) or _cut_words(found, sample) for sample in samples
    }
    if not any(by_sample.values()):
        raise ValueError(f"{path}: has no words of the test set {test_set}, such as of {samples[0].session_id}")
    references = Transcripts.of_sst({sample.session_id: sample.text or "" for sample in samples})
    metrics: tuple[Metric, ...] = ("wer", "cpwer") if options.style == "sorted" else ("wer",)
    reports = [score_words(references, replace(found, sessions=by_sample), metric, options) for metric in metrics]
    return [WerResult(system, test_set, report, "as given") for report in reports]


def _cut_words(found: Transcripts, sample: Session) -> list[Segment]:
    """Return the words of a sample out of those of its recording, which is named by the file of its words or of its
    audio."""
    names = [path.stem for path in (sample.seglst_path, sample.audio_path) if path is not None]
    words = next((found.sessions[name] for name in names if name in found.sessions), ())
    end = sample.offset + (sample.duration or math.inf)
    return [
        Segment(sample.session_id, entry.speaker, word.start, word.end, word.text)
        for entry in words
        for word in approximate_word_times(entry.text.split(), entry.start, entry.end)
        if sample.offset <= (word.start + word.end) / 2 < end
    ]


def _transcribe_missing(transcriber: PooledTranscriber, samples: Sequence[Session], folder: Path) -> dict[str, str]:
    """Return the SST of each sample, also in folder/sst.jsonl, which is written again after every pool."""
    from sortk.inference.diarize import POOL, unfinished_pools  # noqa: PLC0415 - torch

    path = folder / "sst.jsonl"
    lines = entries(read_lines(path), path) if path.exists() else ()
    texts = {entry.need(entry.text, "session_id"): entry.text("text") or "" for _, entry in lines}
    missing = unfinished_pools(samples, lambda sample: sample.session_id in texts)
    for n_done, (sample, text, words) in enumerate(transcriber.transcribe_samples(missing), start=1):
        seglst.write(folder / f"{check_file_name(sample.session_id)}.json", words)
        texts[sample.session_id] = text
        if n_done % POOL == 0 or n_done == len(missing):
            with atomic_text(path) as file:
                file.writelines(f"{encode({'session_id': name, 'text': text})}\n" for name, text in texts.items())
    return texts
