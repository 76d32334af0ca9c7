"""Stage 2: annotated sessions -> windows for the diarizer and samples for MS-ASR (the paper's Data Cleaning).

    session --load, repair--> turns, words --refine--> tight turns --cut--> pieces --rules--> kept | rejected
            (recordings.py)                (refine.py)              (windows.py)

    diar/     windows to train a diarizer on
    asr/      samples of 10 to 20 s to train MS-ASR on, by the rules of Appendix A; validation has them too, so that
              the validation loss is measured on samples like those of training
    scored/   samples of 10 to 20 s that cover every word: what stage 8 scores, if the set is one that it scores

Nothing is copied: a piece is a line of a manifest that names the original audio with offset and duration, the refined
RTTM of the entire recording, and its transcript. The pieces of each output tile the recording, so kept and rejected
time add up to its duration.
A session is one unit of work, and its result file is written last: a killed run continues with the first one missing.
"""

from __future__ import annotations

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from sortk.corpora.registry import CORPORA
from sortk.corpora.sessions import CORPUS_KEY
from sortk.corpora.splits import stable_random
from sortk.formats import manifest, posteriors, rttm, seglst
from sortk.formats.annotation import only_name, own_names
from sortk.formats.files import atomic_text, check_file_name, is_file, plural, quote
from sortk.formats.objects import read_own
from sortk.options import Options, option
from sortk.prepare.activity import DetectorOptions, detect_speech
from sortk.prepare.recordings import REPAIRS, load_recording
from sortk.prepare.refine import find_speakers, refine_turns
from sortk.prepare.timestamps import TimestampOptions
from sortk.prepare.windows import (
    DropRule,
    Excerpt,
    RecordingView,
    count_word_cuts,
    cut_samples,
    cut_scored,
    cut_windows,
    cuts_words,
    find_gaps,
    find_violation,
    has_no_cut,
    has_no_speech,
    has_no_words,
    has_too_many_speakers,
    is_too_short,
    overlaps_at_end,
    overlaps_at_start,
    starts_with_fillers,
)
from sortk.records import RunJobs, Segment, Session
from sortk.spans import Span, to_seconds, to_us

log = logging.getLogger(__name__)

OUTPUTS = ("diar", "asr", "scored")
DIARIZER_THRESHOLD = 0.5  # posterior from which on a speaker is active
WINDOW_MIN_SECONDS = 10.0  # left for the last window of a longer recording
WINDOW_SEARCH_SECONDS = 10.0  # before the limit of a window, in which the best place to cut is looked for
EDGE_SECONDS = 0.5  # overlap so close to the first or last speech is at the beginning or end

# fmt: off
FILLERS = {
    "en": ("ah", "aha", "eh", "er", "erm", "hm", "hmm", "huh", "mhm", "mm", "mm-hm", "mm-hmm", "mmm", "oh", "ok",
           "okay", "right", "so", "uh", "uh-huh", "uhuh", "um", "well", "yeah", "yep", "yup"),
    "de": ("ach", "ah", "also", "genau", "hm", "hmm", "ja", "mhm", "na", "oh", "okay", "so", "ä", "äh", "ähm", "öh"),
    "es": ("ah", "ajá", "bueno", "eh", "em", "este", "hm", "mm", "oh", "pues", "sí", "vale"),
    "fr": ("ah", "bah", "ben", "bon", "eh", "euh", "hein", "hm", "hum", "mm", "oh", "ok", "ouais", "oui", "voilà"),
    "zh": ("呃", "哎", "哦", "啊", "喔", "嗯", "噢", "对", "是", "那个", "额"),
}
# fmt: on


@dataclass(frozen=True)
class CleanOptions(Options):
    """Settings of cleaning; the defaults are the paper's where it gives one."""

    FIXED = MappingProxyType(
        {  # see sortk/options.py
            "diarizer_threshold": DIARIZER_THRESHOLD,
            "edge_seconds": EDGE_SECONDS,
            "sad_min_silence_seconds": DetectorOptions().min_silence_seconds,
            "sad_min_speech_seconds": DetectorOptions().min_speech_seconds,
            "sad_pad_seconds": DetectorOptions().pad_seconds,
            "window_min_seconds": WINDOW_MIN_SECONDS,
            "window_search_seconds": WINDOW_SEARCH_SECONDS,
        }
    )

    check_audio: bool = True  # false: the audio may be missing on this machine, if the manifest has the durations
    sad: Literal["silero", "none"] = "silero"  # what refines the annotation; none keeps it
    sad_threshold: float = option(0.5, above=0, below=1)  # probability of speech; the default is silero-vad's own
    outward_seconds: float = option(0.1, at_least=0)  # a boundary moves outward at most by this much
    max_speakers: int = option(4, at_least=1)  # in a window or a sample
    window_max_seconds: float = option(90.0, above=WINDOW_MIN_SECONDS + WINDOW_SEARCH_SECONDS)  # diarization window
    sample_min_seconds: float = option(10.0, above=0)  # MS-ASR sample
    sample_max_seconds: float = 20.0
    max_edge_overlap_seconds: float = option(1.0, at_least=0)  # a sample with longer overlap at an edge is dropped
    # Corpora, or sets, whose annotation is refined by `sad` and `diarizer`; empty: all.
    refine: tuple[str, ...] = option((), hash_only_if_set=True)
    # A trained diarizer, folder or .nemo, whose posteriors refine the annotation, too.
    diarizer: str = option("", hash_only_if_set=True)
    # Number of samples for asr/ that are drawn from a corpus or set; of others, all samples are used.
    max_samples: dict[str, int] = option(default_factory=dict, at_least=1, hash_only_if_set=True)
    # A sample is dropped if its first speaker says only fillers, this many or fewer, before another speaks.
    max_filler_words: int = option(2, at_least=0)
    filler_lang: str = ""  # language of the list to use; empty: that of the transcripts
    fillers: dict[str, tuple[str, ...]] = option(default_factory=lambda: dict(FILLERS))  # by language, lower case

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sample_min_seconds > self.sample_max_seconds:
            raise ValueError(
                f"sample_min_seconds must be at most sample_max_seconds ({self.sample_max_seconds:g}), "
                f"got {self.sample_min_seconds:g}"
            )
        if self.filler_lang not in ("", *self.fillers):
            known = ", ".join(sorted(self.fillers)) or "none"
            raise ValueError(f"no fillers for language {self.filler_lang!r}, only for {known}")

    def find_fillers(self, transcript_lang: str) -> frozenset[str]:
        """Return the fillers for transcripts in a language such as de_DE; empty, so that the rule has no effect,
        without a list."""
        return frozenset(self.fillers.get(self.filler_lang or transcript_lang[:2].lower(), ()))


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
        """Exists even if no session has a transcript: stage 3 reads it."""
        return self.out / "seglst"

    def seglst(self, session: Session) -> Path:
        return self.transcripts / f"{session.session_id}.json"

    def result(self, session: Session) -> Path:
        """Written last: when it is there, the session is complete."""
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
    """Clean several sets into one folder: the manifests of each; rejected.jsonl and summary.json for all.

    `words` are the options of stage 3, so that cuts made here are between the words that it will find. `probs_dir`
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
            summary.outputs["asr"].drop("max_samples", kept)
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


def _check_sessions(sessions: Sequence[Session]) -> None:
    """Raise a ValueError if output files of two sessions would have the same name, or an RTTM cannot be theirs.

    A session may be in several sets. A file about one session may use any name for it, but then several recordings
    cannot share it.
    """
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
            only = only_name(rttm_path)
            if only is not None and not any(only in own_names(session) for session in sharing):
                others = f"{quote(sharing[0].session_id)} and {len(sharing) - 1} more sessions of several recordings"
                raise ValueError(f"{rttm_path}: is about session {quote(only)}, but {others} name it as theirs")


def _find_not_drawn(
    sessions: Sequence[Session], paths: CleanPaths, set_name: str, max_samples: Mapping[str, int], seed: int
) -> list[tuple[str, Kept]]:
    """Return the surplus samples: of each corpus, or set, all but `max_samples` drawn by the seed."""
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


# ---------------------------------------------------------------------------------------------------------------------
# One session


def clean_session(
    options: CleanOptions, words: TimestampOptions, out: Path, probs_dir: Path | None, job: tuple[Session, bool]
) -> CleanSummary:
    """Read, refine (if the job says so), cut and filter one session, and write its files. Only count a session that is
    complete already."""
    paths, (session, is_refined) = CleanPaths(out), job
    if paths.result(session).exists():
        return CleanSummary.from_json(_read_result(paths.result(session))["counts"])
    recording = load_recording(session, words, options.check_audio)
    span, turns, n_undetected = recording.span, recording.turns, 0
    if is_refined and turns and (options.sad == "silero" or probs_dir is not None):
        speech, speaker_speech = None, dict[str, list[Span]]()
        if options.sad == "silero":
            speech = detect_speech(session.audio_path, span, DetectorOptions(options.sad_threshold))
        if probs_dir is not None:
            speaker_speech = find_speakers(recording, posteriors.find(probs_dir, session), DIARIZER_THRESHOLD)
        turns, n_undetected = refine_turns(turns, speech, speaker_speech, to_us(options.outward_seconds))

    view = RecordingView(recording, turns)
    gaps = find_gaps(recording.words, span)
    lengths = (WINDOW_MIN_SECONDS, options.window_max_seconds, WINDOW_SEARCH_SECONDS)
    windows = [view.window(window) for window in cut_windows(span, gaps, view.profile, *map(to_us, lengths))]
    min_us, max_us = to_us(options.sample_min_seconds), to_us(options.sample_max_seconds)
    scored = [view.sample(piece) for piece in cut_scored(span, gaps, view.profile, min_us, max_us)]
    repairs = recording.repairs + Counter(
        no_speech_kept=n_undetected,
        word_cut_by_window=count_word_cuts([window.span for window in windows], gaps),
        word_cut_by_scored=count_word_cuts([piece.span for piece in scored], gaps),
    )
    result = CleanResult(session.session_id, CleanSummary(1, repairs=dict(repairs)))
    result.reject_outside(recording.outside)
    result.apply("diar", windows, window_rules(options))
    if recording.entries is None:
        for output in ("asr", "scored"):
            result.apply(output, [view.sample(span)], {"no_transcript": has_no_words})
    else:
        fillers = options.find_fillers(words.lang)
        before, after = end_rules(options), start_rules(options, fillers)

        def is_good_cut(start: int, cut: int) -> bool:
            """Return whether no rule about edges drops the sample before the cut or the one after it."""
            following = (cut, min(cut + min_us, span[1]))
            return not (
                find_violation(view.sample((start, cut)), before) or find_violation(view.sample(following), after)
            )

        samples = cut_samples(span, gaps, view.profile, min_us, max_us, is_good_cut)
        result.apply("asr", [view.sample(sample) for sample in samples], sample_rules(options, fillers))
        # Appendix A is about training: a piece of a test set is left out only if it has no word.
        result.apply("scored", scored, {"no_words": has_no_words})
        seglst.write(paths.seglst(session), recording.entries)
    segments = [
        Segment(session.session_id, speaker, to_seconds(start), to_seconds(end))
        for speaker, spans in turns.items()
        for start, end in spans
    ]
    rttm.write(paths.rttm(session), segments)
    with atomic_text(paths.result(session)) as file:
        json.dump({"kept": result.kept, "rejected": result.rejected, "counts": asdict(result.summary)}, file)
    return result.summary


def window_rules(options: CleanOptions) -> dict[str, DropRule]:
    """Return what drops a diarization window, in this order."""
    return {
        "no_speech": has_no_speech,
        "max_speakers": partial(has_too_many_speakers, max_speakers=options.max_speakers),
    }


def sample_rules(options: CleanOptions, fillers: Collection[str]) -> dict[str, DropRule]:
    """Return what drops an MS-ASR sample, in this order."""
    return {
        "cut_word": cuts_words,
        "too_short": partial(is_too_short, min_us=to_us(options.sample_min_seconds)),
        "no_cut": partial(has_no_cut, max_us=to_us(options.sample_max_seconds)),
        "no_words": has_no_words,
        "max_speakers": partial(has_too_many_speakers, max_speakers=options.max_speakers),
        **start_rules(options, fillers),
        **end_rules(options),
    }


def start_rules(options: CleanOptions, fillers: Collection[str]) -> dict[str, DropRule]:
    """Return the rules about the beginning of a sample."""
    max_us, edge_us = to_us(options.max_edge_overlap_seconds), to_us(EDGE_SECONDS)
    return {
        "overlap_start": partial(overlaps_at_start, max_us=max_us, edge_us=edge_us),
        "filler_start": partial(starts_with_fillers, fillers=fillers, max_words=options.max_filler_words),
    }


def end_rules(options: CleanOptions) -> dict[str, DropRule]:
    """Return the rules about the end of a sample."""
    max_us, edge_us = to_us(options.max_edge_overlap_seconds), to_us(EDGE_SECONDS)
    return {"overlap_end": partial(overlaps_at_end, max_us=max_us, edge_us=edge_us)}


# ---------------------------------------------------------------------------------------------------------------------
# What was kept, rejected and repaired. Times are integer microseconds, so in = out + rejected, exactly.


class Kept(NamedTuple):
    """A piece that is kept; times in microseconds."""

    start: int
    end: int
    n_speakers: int
    speech_us: int  # with at least one speaker
    n_words: int


@dataclass(frozen=True, slots=True)
class CleanResult:
    """The pieces of a session: kept, or rejected with rule and value; and counted."""

    session_id: str
    summary: CleanSummary
    kept: dict[str, list[Kept]] = field(default_factory=lambda: {name: [] for name in OUTPUTS})  # by output
    rejected: list[dict[str, Any]] = field(default_factory=list)  # lines of rejected.jsonl

    def apply(self, output: str, pieces: Sequence[Excerpt], rules: Mapping[str, DropRule]) -> None:
        """Keep or reject each piece by the rules, and count it."""
        counts = self.summary.outputs[output]
        for piece in pieces:
            start, end = piece.span
            if start == end:  # nothing is left of the session
                continue
            counts.us_in += end - start
            counts.words_in += len(piece.words)
            if violation := find_violation(piece, rules):
                self._reject(output, piece.span, *violation)
            else:
                kept = Kept(start, end, len(piece.speakers), piece.speech_us, len(piece.words))
                counts.keep(kept)
                self.kept[output].append(kept)

    def reject_outside(self, outside: Sequence[Span]) -> None:
        """Reject, from all outputs, what the session's UEM leaves out. Value: its seconds."""
        for output, counts in self.summary.outputs.items():
            for start, end in outside:
                counts.us_in += end - start
                self._reject(output, (start, end), "outside_uem", to_seconds(end - start))

    def _reject(self, output: str, span: Span, rule: str, value: float) -> None:
        self.summary.outputs[output].reject(rule, span[1] - span[0])
        self.rejected.append(rejected_line(self.session_id, output, span, rule, value))


def rejected_line(session_id: str, output: str, span: Span, rule: str, value: float) -> dict[str, Any]:
    """Return an entry of rejected.jsonl."""
    seconds = to_seconds(span[1] - span[0])
    return {"id": piece_id(session_id, span), "rule": rule, "value": value, "output": output, "seconds": seconds}


def piece_id(session_id: str, span: Span) -> str:
    """Return an id such as meeting1-0090000-0109500: start and end in milliseconds of the recording."""
    start_ms, end_ms = (round(us / 1000) for us in span)
    return f"{session_id}-{start_ms:07d}-{end_ms:07d}"


def _read_result(path: Path) -> dict[str, Any]:
    def check(result: Any) -> dict[str, Any]:
        rows = [row for output in OUTPUTS for row in result["kept"][output]]
        if not all(type(value) is int for row in rows for value in Kept(*row)):
            raise ValueError("no lists of pieces")
        if not all(isinstance(line, dict) for line in result["rejected"]):
            raise ValueError("no lines of rejected.jsonl")
        total = CleanSummary()
        total.add(CleanSummary.from_json(result["counts"]))
        str(total)  # all values can be added up and shown
        return dict(result)

    return read_own(path, check)


@dataclass
class OutputCounts:
    """Counts of one output."""

    us_in: int = 0
    us_out: int = 0
    speech_us_out: int = 0  # of us_out: with at least one speaker
    pieces_out: int = 0
    words_in: int = 0
    words_out: int = 0
    us_rejected: dict[str, int] = field(default_factory=dict)  # by rule
    pieces_rejected: dict[str, int] = field(default_factory=dict)

    def keep(self, kept: Kept, sign: int = 1) -> None:
        """Count a piece as kept; with sign -1, no longer."""
        self.us_out += sign * (kept.end - kept.start)
        self.speech_us_out += sign * kept.speech_us
        self.pieces_out += sign
        self.words_out += sign * kept.n_words

    def reject(self, rule: str, us: int) -> None:
        """Count a piece as rejected by a rule."""
        _add_counts(self.us_rejected, {rule: us})
        _add_counts(self.pieces_rejected, {rule: 1})

    def drop(self, rule: str, kept: Kept) -> None:
        """Count a piece that was kept as rejected."""
        self.keep(kept, sign=-1)
        self.reject(rule, kept.end - kept.start)

    def add(self, other: OutputCounts) -> None:
        for name, value in vars(other).items():
            if isinstance(value, dict):
                _add_counts(getattr(self, name), value)
            else:
                setattr(self, name, getattr(self, name) + value)

    def to_json(self) -> dict[str, Any]:
        by_rule = {
            rule: {"pieces": self.pieces_rejected[rule], **_time(us)} for rule, us in sorted(self.us_rejected.items())
        }
        return {
            "in": _time(self.us_in),
            "out": {"pieces": self.pieces_out, **_time(self.us_out)},
            "rejected": {"pieces": sum(self.pieces_rejected.values()), **_time(sum(self.us_rejected.values()))},
            "rejected_by_rule": by_rule,
            "speech_out": _time(self.speech_us_out),
            "words": {"in": self.words_in, "out": self.words_out},
        }


def _add_counts(counts: dict[str, int], others: Mapping[str, int]) -> None:
    for name, count in others.items():
        counts[name] = counts.get(name, 0) + count


def _time(us: int) -> dict[str, float]:
    return {"seconds": to_seconds(us), "hours": us / 3.6e9}


@dataclass
class CleanSummary:
    """Counts of a set, or of one session."""

    sessions: int = 0
    outputs: dict[str, OutputCounts] = field(default_factory=lambda: {name: OutputCounts() for name in OUTPUTS})
    repairs: dict[str, int] = field(default_factory=dict)  # by the names in REPAIRS

    def add(self, other: CleanSummary) -> None:
        self.sessions += other.sessions
        _add_counts(self.repairs, other.repairs)
        for name, counts in other.outputs.items():
            self.outputs[name].add(counts)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> CleanSummary:
        """Return a summary from the fields that `dataclasses.asdict` gives: those of a session's result file."""
        outputs = {name: OutputCounts(**counts) for name, counts in values["outputs"].items()}
        return cls(values["sessions"], outputs, dict(values["repairs"]))

    def to_json(self) -> dict[str, Any]:
        """Return the fields of summary.json, in seconds and hours."""
        outputs = {name: counts.to_json() for name, counts in self.outputs.items()}
        return {"sessions": self.sessions, **outputs, "repairs": dict(sorted(self.repairs.items()))}

    def __str__(self) -> str:
        """Return a table: a block per output, in which out and the rejected rows sum up to in.

        Without transcripts, the outputs for the ASR are empty and have no block.
        """
        lines = [plural(self.sessions, "session")]
        outputs = {name: counts for name, counts in self.outputs.items() if name == "diar" or counts.words_in}
        for name, counts in outputs.items():
            lines += [f"{name:<26}{'pieces':>8}{'hours':>11}{'share':>8}"]
            rows: list[tuple[str, int | str, int]] = [
                ("in", "", counts.us_in),
                ("out", counts.pieces_out, counts.us_out),
            ]
            for rule, us in sorted(counts.us_rejected.items()):
                rows.append((f"rejected: {rule}", counts.pieces_rejected[rule], us))
            for label, pieces, us in [*rows, ("(speech in out)", "", counts.speech_us_out)]:
                share = us / counts.us_in if counts.us_in else 0.0
                lines += [f"  {label:<24}{pieces:>8}{us / 3.6e9:>11.4f}{share:>8.1%}"]
        repairs = [f"  {REPAIRS[name]}: {count}" for name, count in sorted(self.repairs.items())]
        return "\n".join([*lines, "repairs:" if repairs else "repairs: none", *repairs])
