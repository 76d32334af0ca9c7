"""Stage 8: a recipe's models on its test sets. Writes their hypotheses, and measures what is wrong with them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sortk.formats import rttm, seglst
from sortk.formats.files import atomic_text
from sortk.formats.objects import encode
from sortk.inference.diarize import posteriors_path, save_posteriors
from sortk.inference.postprocess import Postprocess, find_segments, name_segments
from sortk.records import Segment, Session
from sortk.scoring.der import score_der
from sortk.scoring.der_counts import DerOptions
from sortk.scoring.results import DerResult, WerResult
from sortk.scoring.tune import make_tune_set
from sortk.scoring.wer import Metric, WerOptions, score_words
from sortk.scoring.wer_transcripts import Transcripts

if TYPE_CHECKING:
    from sortk.inference.pools import PooledDiarizer, PooledTranscriber

log = logging.getLogger(__name__)


def choose_sessions(sets: Mapping[str, Sequence[Session]], names: Iterable[str]) -> dict[str, Sequence[Session]]:
    """The sets of these names, each of which must have sessions."""
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
    """DER with each postprocessing; its hypotheses go to folder/<postprocessing>/<session>.rttm, posteriors to
    folder/probs/<session>.npy."""
    posteriors = {session.session_id: probs for session, probs in diarizer.hear(sessions)}
    for session in sessions:
        save_posteriors(posteriors_path(folder / "probs", session), posteriors[session.session_id])
    annotated = make_tune_set(sessions, posteriors)
    results = []
    for name, chosen in postprocessing.items():
        hypotheses = {
            session_id: name_segments(session_id, find_segments(probs, chosen))
            for session_id, probs in posteriors.items()
        }
        for session in sessions:
            found = hypotheses[session.session_id]
            rttm.write(folder / name / f"{session.session_id}.rttm", [_in_file(part, session) for part in found])
        report = score_der(annotated.references, hypotheses, annotated.uem, options)
        log.info("%s, %s, postprocessing %s: DER %.2f %%", test_set, system, name, 100 * report.overall.der)
        results.append(DerResult(system, test_set, name, report))
    return results


def _in_file(segment: Segment, session: Session) -> Segment:
    """With times of the audio file of which the session is a part."""
    return replace(segment, start=segment.start + session.offset, end=segment.end + session.offset)


def evaluate_asr(
    transcriber: PooledTranscriber,
    system: str,
    test_set: str,
    samples: Sequence[Session],
    options: WerOptions,
    names_speakers: bool,
    folder: Path,
) -> list[WerResult]:
    """WER and cpWER of samples that have an SST as their text, or LibriSpeechMix's WER alone; what was heard goes to
    folder/<sample>.json (SegLST) and folder/sst.jsonl."""
    references, hypotheses = {sample.session_id: sample.text or "" for sample in samples}, {}
    for sample, text, words in transcriber.transcribe_samples(samples):
        hypotheses[sample.session_id] = text
        seglst.write(folder / f"{sample.session_id}.json", words)
    with atomic_text(folder / "sst.jsonl") as file:
        file.writelines(f"{encode({'session_id': name, 'text': text})}\n" for name, text in hypotheses.items())
    # What the system is meant to write decides how it is counted, not whether it did so in this set.
    sides = Transcripts.of_sst(references), replace(Transcripts.of_sst(hypotheses), names_speakers=names_speakers)
    metrics: tuple[Metric, ...] = ("wer", "cpwer") if options.style == "sorted" else ("wer",)
    reports = [score_words(*sides, metric, options) for metric in metrics]
    for report in reports:
        log.info("%s, %s: %s %.2f %%", test_set, system, report.metric, 100 * report.overall.rate)
    return [WerResult(system, test_set, report) for report in reports]
