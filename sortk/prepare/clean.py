"""Stage 2: annotated sessions -> windows for the diarizer and samples for MS-ASR (the paper's Data Cleaning).

    session --load, repair--> turns, words --refine--> tight turns --cut--> pieces --rules--> kept | rejected

    diar/     windows that a diarizer learns from
    asr/      samples of 10 to 20 s that an MS-ASR learns from, by the rules of Appendix A; validation has them too, so
              that its loss is one of samples like those of training
    scored/   samples of 10 to 20 s that cover every word: what stage 8 scores, if the set is one that it scores

Nothing is copied: a piece is a line of a manifest that names the original audio with offset and duration, the refined
RTTM of the whole recording, and its transcript. The pieces of each output tile
the recording, so kept and rejected time add up to it.
A session is one unit of work, and its result file is written last: a killed run goes on with the first one missing.
"""

from __future__ import annotations

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sortk.corpora.recorded import CORPUS_KEY
from sortk.corpora.registry import CORPORA
from sortk.corpora.splits import stable_random
from sortk.formats import manifest, posteriors, rttm, seglst
from sortk.formats.annotation import only_name, own_names
from sortk.formats.files import atomic_text, check_file_name, is_file, quote
from sortk.formats.objects import read_own
from sortk.prepare.activity import DetectorOptions, detect_speech
from sortk.prepare.clean_options import CleanOptions
from sortk.prepare.clean_summary import OUTPUTS, CleanSummary
from sortk.prepare.posteriors import find_speakers
from sortk.prepare.recordings import Recording, Turns, load_recording
from sortk.prepare.refine import refine_turns
from sortk.prepare.rules import (
    Excerpt,
    RecordingView,
    end_rules,
    has_no_words,
    judge,
    sample_rules,
    scored_rules,
    start_rules,
    window_rules,
)
from sortk.prepare.timestamps import TimestampOptions
from sortk.prepare.verdict import Kept, Verdict, piece_id, rejected_line
from sortk.prepare.windows import count_word_cuts, cut_samples, cut_scored, cut_windows, find_gaps
from sortk.records import RunJobs, Segment, Session
from sortk.spans import Profile, Span, to_seconds, to_us

__all__ = ["CleanOptions", "CleanSummary", "clean_session", "clean_sets", "find_refined"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CleanPaths:
    """Every file of the stage, named here and nowhere else."""

    out: Path

    def manifest(self, output: str, set_name: str) -> Path:
        return self.out / output / f"{set_name}.jsonl"

    def rttm(self, session: Session) -> Path:
        return self.out / "rttm" / f"{session.session_id}.rttm"

    @property
    def transcripts(self) -> Path:
        """There even if no session has one: stage 3 reads it."""
        return self.out / "seglst"

    def seglst(self, session: Session) -> Path:
        return self.transcripts / f"{session.session_id}.json"

    def result(self, session: Session) -> Path:
        """Written last: where it is, the session is done."""
        return self.out / "sessions" / f"{session.session_id}.json"

    @property
    def rejected(self) -> Path:
        return self.out / "rejected.jsonl"

    @property
    def summary(self) -> Path:
        return self.out / "summary.json"


def clean_sets(
    sets: Mapping[str, Sequence[Session]],
    options: CleanOptions,
    words: TimestampOptions,
    out: Path,
    run_jobs: RunJobs = map,
    probs_dir: Path | None = None,
    seed: int = 0,
) -> dict[str, CleanSummary]:
    """Cleans several sets into one folder: the manifests of each; rejected.jsonl and summary.json for all.

    `words` are the options of stage 3, so that cuts made here lie between the words that it will find. `probs_dir`
    holds posteriors of a trained diarizer, <session id>.npy or <audio's name>.npy, of the sessions to refine.
    """
    paths, summaries = CleanPaths(out), {}
    surplus: list[tuple[str, Kept]] = []
    _check_sessions([session for sessions in sets.values() for session in sessions])
    refined = {session.session_id for session in find_refined(sets, options)}
    _check_names(sets, options.max_samples, "max_samples")
    if not options.find_fillers(words.lang):
        log.warning("no fillers are known for language %s, so no sample is dropped for them", words.lang)
    paths.transcripts.mkdir(parents=True, exist_ok=True)
    for set_name, sessions in sets.items():
        jobs = [(session, session.session_id in refined) for session in sessions]
        summary = CleanSummary()
        for of_session in run_jobs(partial(clean_session, options, words, out, probs_dir), jobs):
            summary.add(of_session)
        not_drawn = _find_not_drawn(sessions, paths, set_name, options.max_samples, seed)
        for _, kept in not_drawn:
            summary.outputs["asr"].drop("max_samples", kept.end - kept.start, kept.speech_us, kept.n_words)
        for output in OUTPUTS:
            left_out = {(session_id, kept.start) for session_id, kept in not_drawn} if output == "asr" else set()
            manifest.write(paths.manifest(output, set_name), _read_pieces(sessions, paths, output, left_out))
        log.info("%s\n%s", set_name, summary)
        summaries[set_name], surplus = summary, surplus + not_drawn
    with atomic_text(paths.rejected) as file:
        results = dict.fromkeys(paths.result(session) for sessions in sets.values() for session in sessions)
        for path in results:
            file.writelines(f"{json.dumps(line)}\n" for line in _read_result(path)["rejected"])
        for session_id, kept in surplus:
            line = rejected_line(session_id, "asr", (kept.start, kept.end), "max_samples", 0)
            file.write(f"{json.dumps(line)}\n")
    with atomic_text(paths.summary) as file:
        json.dump({name: summary.to_json() for name, summary in summaries.items()}, file, indent=2)
        file.write("\n")
    return summaries


def find_refined(sets: Mapping[str, Sequence[Session]], options: CleanOptions) -> list[Session]:
    """Return the sessions whose annotation is refined, each once: all, or those that `refine` names."""
    _check_names(sets, options.refine, "refine")
    named = {
        session.session_id: session
        for set_name, sessions in sets.items()
        for session in sessions
        if not options.refine or set_name in options.refine or _corpus_of(session) in options.refine
    }
    return list(named.values())


def _corpus_of(session: Session) -> str:
    """Return the corpus that stage 0 has noted; empty for a session from elsewhere."""
    return str(session.extra.get(CORPUS_KEY, ""))


def _check_names(sets: Mapping[str, Sequence[Session]], names: Iterable[str], key: str) -> None:
    corpora = {_corpus_of(session) for sessions in sets.values() for session in sessions} - {""}
    for name in names:
        if name not in sets and name not in corpora and name not in CORPORA:
            known = ", ".join(sorted(corpora | set(sets)))
            raise ValueError(f"clean.{key} names {quote(name)}, which is neither a corpus nor a set; known: {known}")


def _find_not_drawn(
    sessions: Sequence[Session], paths: CleanPaths, set_name: str, max_samples: Mapping[str, int], seed: int
) -> list[tuple[str, Kept]]:
    """Return the samples that are too many: of each corpus, or set, all but `max_samples` drawn by the seed."""
    surplus: dict[tuple[str, int], Kept] = {}
    for name, count in max_samples.items():
        samples = [
            (session.session_id, Kept(*kept))
            for session in sessions
            if name in (set_name, _corpus_of(session))
            for kept in _read_result(paths.result(session))["kept"]["asr"]
        ]
        if len(samples) > count:
            drawn = set(stable_random(seed, "max_samples", set_name, name).sample(range(len(samples)), count))
            left = (sample for number, sample in enumerate(samples) if number not in drawn)
            surplus |= {(session_id, kept.start): kept for session_id, kept in left}
    return [(session_id, kept) for (session_id, _), kept in surplus.items()]


def _check_sessions(sessions: Sequence[Session]) -> None:
    """Files are named after sessions, so their ids must be different and fit for names; and see `_check_sharing`. A
    session may be in several sets."""
    seen: dict[str, Session] = {}
    by_rttm: defaultdict[Path, list[Session]] = defaultdict(list)
    for session in sessions:
        name = session.session_id
        if seen.setdefault(check_file_name(name), session) != session:
            raise ValueError(f"two sessions have the id {quote(name)}; their files would overwrite each other")
        if session.rttm_path is not None:
            by_rttm[session.rttm_path].append(session)
    for rttm_path, sharing in by_rttm.items():
        if len({session.audio_path for session in sharing}) > 1 and is_file(rttm_path):
            _check_sharing(rttm_path, sharing)


def _check_sharing(rttm_path: Path, sharing: Sequence[Session]) -> None:
    """A file about one session may have any name in it, but then it cannot be about several recordings."""
    name = only_name(rttm_path)
    if name is not None and not any(name in own_names(session) for session in sharing):
        others = f"{quote(sharing[0].session_id)} and {len(sharing) - 1} more sessions of several recordings"
        raise ValueError(f"{rttm_path}: is about session {quote(name)}, but {others} name it as theirs")


# ---------------------------------------------------------------------------------------------------------------------
# One session


def clean_session(
    options: CleanOptions, words: TimestampOptions, out: Path, probs_dir: Path | None, job: tuple[Session, bool]
) -> CleanSummary:
    """Reads, refines (if the job says so), cuts and judges one session, and writes its files; one that is done is only
    counted."""
    paths, (session, is_refined) = CleanPaths(out), job
    if paths.result(session).exists():
        return CleanSummary.from_json(_read_result(paths.result(session))["counts"])
    recording = load_recording(session, words, options.check_audio)
    turns, n_undetected = recording.turns, 0
    if is_refined:
        turns, n_undetected = refine_recording(recording, session, options, probs_dir)
    view = RecordingView(recording, turns, Profile(span for spans in turns.values() for span in spans))
    gaps = find_gaps(recording.words, recording.span)
    windows = cut_into_windows(recording.span, gaps, view, options)
    min_us, max_us = to_us(options.sample_min_seconds), to_us(options.sample_max_seconds)
    scored = [view.sample(piece) for piece in cut_scored(recording.span, gaps, view.profile, min_us, max_us)]
    repairs = recording.repairs + Counter(
        no_speech_kept=n_undetected,
        word_cut_by_window=count_word_cuts([window.span for window in windows], gaps),
        word_cut_by_scored=count_word_cuts([piece.span for piece in scored], gaps),
    )
    verdict = Verdict(session.session_id, CleanSummary(1, repairs=dict(repairs)))
    verdict.reject_outside(recording.outside)
    verdict.judge("diar", windows, window_rules(options))
    if recording.entries is None:
        for output in ("asr", "scored"):
            verdict.judge(output, [view.sample(recording.span)], {"no_transcript": has_no_words})
    else:
        fillers = options.find_fillers(words.lang)
        samples = cut_into_samples(recording.span, gaps, view, options, fillers)
        verdict.judge("asr", samples, sample_rules(options, fillers))
        verdict.judge("scored", scored, scored_rules())
        seglst.write(paths.seglst(session), recording.entries)
    rttm.write(paths.rttm(session), _as_segments(recording.session_id, turns))
    with atomic_text(paths.result(session)) as file:
        json.dump(verdict.to_json(), file)
    return verdict.summary


def refine_recording(
    recording: Recording, session: Session, options: CleanOptions, probs_dir: Path | None
) -> tuple[Turns, int]:
    """The turns with tight boundaries, and how many stay because nothing was heard in them."""
    if not recording.turns or (options.sad == "none" and probs_dir is None):
        return recording.turns, 0
    detector = DetectorOptions(
        options.sad_threshold,
        options.sad_min_speech_seconds,
        options.sad_min_silence_seconds,
        options.sad_pad_seconds,
    )
    speech = detect_speech(session.audio_path, recording.span, detector) if options.sad == "silero" else None
    heard: dict[str, list[Span]] = {}
    if probs_dir is not None:
        heard = find_speakers(recording, posteriors.find(probs_dir, session), options.diarizer_threshold)
    return refine_turns(recording.turns, speech, heard, to_us(options.outward_seconds))


def cut_into_windows(span: Span, gaps: Sequence[Span], view: RecordingView, options: CleanOptions) -> list[Excerpt]:
    """Pieces for the diarizer, before any rule."""
    lengths = (options.window_min_seconds, options.window_max_seconds, options.window_search_seconds)
    return [view.window(window) for window in cut_windows(span, gaps, view.profile, *map(to_us, lengths))]


def cut_into_samples(
    span: Span, gaps: Sequence[Span], view: RecordingView, options: CleanOptions, fillers: Collection[str]
) -> list[Excerpt]:
    """Pieces for MS-ASR, before any rule; but cuts are preferred that leave the rules nothing to drop."""
    min_us, max_us = to_us(options.sample_min_seconds), to_us(options.sample_max_seconds)
    before, after = end_rules(options), start_rules(options, fillers)

    def is_good_cut(start: int, cut: int) -> bool:
        following = (cut, min(cut + min_us, span[1]))
        return not judge(view.sample((start, cut)), before) and not judge(view.sample(following), after)

    samples = cut_samples(span, gaps, view.profile, min_us, max_us, is_good_cut)
    return [view.sample(sample) for sample in samples]


def _as_segments(session_id: str, turns: Turns) -> list[Segment]:
    return [
        Segment(session_id, speaker, to_seconds(start), to_seconds(end))
        for speaker, spans in turns.items()
        for start, end in spans
    ]


def _read_pieces(
    sessions: Sequence[Session], paths: CleanPaths, output: str, left_out: Collection[tuple[str, int]]
) -> Iterator[Session]:
    for session in sessions:
        for start, end, n_speakers, *_ in _read_result(paths.result(session))["kept"][output]:
            if (session.session_id, start) in left_out:
                continue
            yield Session(
                piece_id(session.session_id, (start, end)),
                session.audio_path,
                duration=to_seconds(end - start),
                offset=to_seconds(start),
                num_speakers=n_speakers,
                rttm_path=paths.rttm(session),
                seglst_path=None if output == "diar" else paths.seglst(session),
                extra=session.extra,
            )


def _read_result(path: Path) -> dict[str, Any]:
    return read_own(path, _check_result)


def _check_result(result: Any) -> dict[str, Any]:
    rows = [row for output in result["kept"].values() for row in output]
    if not all(isinstance(row, list) and len(row) >= 3 for row in rows) or not isinstance(result["rejected"], list):
        raise ValueError("no lists of pieces")
    CleanSummary.from_json(result["counts"])
    return dict(result)
