"""The report of an experiment: what its folders contain, as one page. Stages that are missing are named.

Every scored session is in the table. Sound is large, so only some sessions have it: the worst, those in the middle and
the best, in turn, until a budget is used up; the views of sessions (turns, errors, posteriors, words) have another. So
a page stays below 30 MB, whatever it reports on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sortk.edits import align
from sortk.formats import manifest, posteriors, rttm, seglst
from sortk.formats.annotation import session_segments
from sortk.formats.files import FormatError, read_lines
from sortk.formats.objects import decode
from sortk.formats.sst import parse_any
from sortk.records import Segment, Session
from sortk.report.curves import read_cleaning, read_json, read_simulation, read_training
from sortk.report.page import encode_data, format_page
from sortk.report.session import Budget, add_views, describe_session
from sortk.scoring.intervals import DerOptions
from sortk.scoring.normalizers import find_normalizer

log = logging.getLogger(__name__)

RATES = ("der", "miss", "false_alarm", "confusion", "jer", "speaker_count_accuracy", "scored_seconds", "n_sessions")
SETTLED = "tuned"  # the postprocessing whose hypotheses are shown, if it is there


@dataclass(frozen=True)
class ExperimentFolders:
    """Where the finished stages are."""

    names: Mapping[str, str]  # stage -> the name of its folder, of all stages
    stages: Mapping[str, Path]
    variants: Mapping[str, Path] = field(default_factory=dict)
    """Folders of variants that have stages of their own."""

    def file(self, stage: str, name: str) -> Path | None:
        """Return the path of a file of a stage; None if the stage or the file is missing."""
        path = self.stages[stage] / name if stage in self.stages else None
        return path if path and path.is_file() else None


def find_folders(
    roots: Sequence[Path], names: Mapping[str, str], known: Mapping[str, Path] | None = None
) -> ExperimentFolders:
    """Find each stage in the first root that has it, unless it is known, and the variants in the first root."""
    stages = {
        name: root / folder
        for root in reversed(roots)
        for name, folder in names.items()
        if (root / folder / "done.json").is_file()
    }
    variants = {path.name.removeprefix("variant-"): path for root in roots[:1] for path in root.glob("variant-*")}
    return ExperimentFolders(names, {**stages, **(known or {})}, dict(sorted(variants.items())))


def open_experiment(exp: Path, names: Mapping[str, str]) -> ExperimentFolders:
    """Find the stages of an experiment; for the folder of a variant, also those that it shares with the recipe."""
    if not exp.is_dir():
        raise FileNotFoundError(f"{exp}: no such folder; give the folder of an experiment, such as exp/mini")
    folders = find_folders([exp, exp.parent] if exp.name.startswith("variant-") else [exp], names)
    if not folders.stages:
        raise ValueError(f"{exp}: has no finished stage, so there is nothing to report; see `sortk status`")
    return folders


def format_report(folders: ExperimentFolders, budget: Budget | None = None) -> str:
    """Return the page of an experiment."""
    scores_path = folders.file("score", "scores.json")
    scores = read_json(scores_path) if scores_path else {}
    with _blaming(scores_path or next(iter(folders.stages.values()))):
        return _format_report(folders, scores, budget or Budget())


@contextmanager
def _blaming(path: Path) -> Iterator[None]:
    """Turn whatever a damaged file leads to into a FormatError that names it."""
    try:
        yield
    except (TypeError, LookupError, AttributeError, ArithmeticError):
        raise FormatError(path, None, "is damaged; run the stage that wrote it again, with --force") from None


def _format_report(folders: ExperimentFolders, scores: Mapping[str, Any], budget: Budget) -> str:
    last = folders.stages.get("score") or next(iter(folders.stages.values()))
    name = scores.get("recipe") or last.parent.name
    if scores and last.parent.name.startswith("variant-"):
        name += f", variant {last.parent.name.removeprefix('variant-')}"
    parts = {
        "kind": "experiment",
        "title": name,
        "about": _read_about(folders, scores),
        "missing": _find_missing(folders, scores),
        "der": _read_der(folders, scores),
        "wer": _read_wer(folders, scores),
        "training": _read_trainings(folders),
        "tuning": _read_optional(folders.file("tune", "postprocess.json"), read_json),
        "cleaning": _read_optional(folders.file("clean", "summary.json"), read_cleaning),
        "simulation": _read_optional(folders.stages.get("simulate"), read_simulation),
        "sessions": _Sessions(folders, scores, budget).describe(),
        "settings": _flatten(scores.get("settings", {})),
    }
    return format_page(f"sortk: {name}", parts)


def _find_missing(folders: ExperimentFolders, scores: Mapping[str, Any]) -> list[str]:
    """Return the folders of stages that have not been run; a recipe with `asr = false` does not need all of them."""
    has_no_asr = "train_diar" in (settings := scores.get("settings", {})) and "train_asr" not in settings
    unwanted = ("train-asr",) if has_no_asr else ()
    return [folder for name, folder in folders.names.items() if name not in (*folders.stages, *unwanted)]


def _read_optional(path: Path | None, read: Callable[[Path], Any]) -> Any:
    if path is None:
        return None
    with _blaming(path):
        return read(path)


def _read_about(folders: ExperimentFolders, scores: Mapping[str, Any]) -> dict[str, Any]:
    done = [path / "done.json" for path in folders.stages.values() if (path / "done.json").is_file()]
    versions = {}
    if done:
        with _blaming(done[-1]):
            versions = read_json(done[-1]).get("versions", {})
    return {"commit": scores.get("commit"), "date": scores.get("date"), "versions": versions}


def _scores_with_variants(
    folders: ExperimentFolders, scores: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "", scores
    for name, folder in folders.variants.items():
        path = folder / folders.names["score"] / "scores.json"
        if path.is_file():
            with _blaming(path):
                yield name, read_json(path)


def _read_der(folders: ExperimentFolders, scores: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of Table 1: systems and postprocessings. A variant that shares the diarizer has no own row."""
    rows: dict[str, dict[str, Any]] = {}
    for variant, own in _scores_with_variants(folders, scores):
        for is_initial, result in [
            *((True, result) for result in own.get("initial", ())),
            *((False, result) for result in own.get("der", ())),
        ]:
            row = {
                "is_initial": is_initial,
                **{key: result[key] for key in ("system", "test_set", "postprocessing", "settings")},
                "overall": {**_rates(result["overall"]), "interval": result["overall"].get("der_interval_95")},
                "by_speakers": {n: _rates(counts) for n, counts in result.get("by_speakers", {}).items()},
                "arrival": result.get("arrival"),
            }
            rows.setdefault(encode_data(row), {**row, "variant": variant})
    return list(rows.values())


def _rates(counts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: counts.get(key) for key in RATES}


def _read_wer(folders: ExperimentFolders, scores: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of Tables 2 and 3: systems and scores."""
    return [
        {
            **{key: result[key] for key in ("system", "test_set", "settings", "overall")},
            "n_sessions": len(result["sessions"]),
            "variant": variant,
        }
        for variant, own in _scores_with_variants(folders, scores)
        for result in own.get("wer", ())
    ]


def _read_trainings(folders: ExperimentFolders) -> list[dict[str, Any]]:
    logs = {"Diarizer": folders.file("train-diar", "log.jsonl"), "ASR": folders.file("train-asr", "log.jsonl")}
    for variant, folder in folders.variants.items():
        for kind, stage in (("Diarizer", "train-diar"), ("ASR", "train-asr")):
            path = folder / folders.names[stage]
            if (path / "done.json").is_file() and (path / "log.jsonl").is_file():
                logs[f"{kind}, variant {variant}"] = path / "log.jsonl"
    return [{"name": name, **_read_optional(path, read_training)} for name, path in logs.items() if path]


def _flatten(settings: Mapping[str, Any], prefix: str = "") -> list[list[str]]:
    """Return [table.key, value] pairs."""
    found: list[list[str]] = []
    for key, value in settings.items():
        found += _flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [[f"{prefix}{key}", value]]
    return found


@dataclass(frozen=True)
class _Sessions:
    """The scored sessions of an experiment, worst first."""

    folders: ExperimentFolders
    scores: Mapping[str, Any]
    budget: Budget

    def describe(self) -> list[dict[str, Any]]:
        keys = ("der", "miss", "false_alarm", "confusion", "scored_seconds", "ref_speakers", "hyp_speakers")
        rows: list[dict[str, Any]] = [
            {"id": session_id, "set": result["test_set"], **{key: counts[key] for key in keys}}
            for result in self._shown_results().values()
            for session_id, counts in result["sessions"].items()
        ]
        rows.sort(key=lambda row: -(row["der"] if row["der"] is not None else -1.0))
        samples = self._read_samples()
        for row in rows:
            row.update(_count_words(samples.get((row["set"], row["id"]), ())))
        self._add_views(rows, samples)
        return rows

    def _shown_results(self) -> dict[str, Mapping[str, Any]]:
        """Return the result of each test set whose hypotheses are shown: the tuned ones, or else the first."""
        chosen: dict[str, Mapping[str, Any]] = {}
        for result in self.scores.get("der", ()):
            if result["test_set"] not in chosen or result["postprocessing"] == SETTLED:
                chosen[result["test_set"]] = result
        return chosen

    def _manifest(self, test_set: str) -> dict[str, Session]:
        paths = [self.folders.file(stage, f"{test_set}.jsonl") for stage in ("prepare", "simulate")]
        return {session.session_id: session for path in paths if path for session in manifest.read(path)}

    def _read_samples(self) -> dict[tuple[str, str], list[dict[str, Any]]]:
        """Return the ASR's samples with their scores, by test set and the session that they are part of."""
        found: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for result in self.scores.get("wer", ()):
            path = self.folders.file("sst", f"scored/{result['test_set']}.jsonl")
            if result["settings"].get("metric") != "cpwer" or path is None:
                continue
            by_audio: dict[Path, list[Session]] = {}
            for session in self._manifest(result["test_set"]).values():
                by_audio.setdefault(session.audio_path.resolve(), []).append(session)
            for sample in manifest.read(path):
                owner = _find_owner(sample, by_audio.get(sample.audio_path.resolve(), ()))
                if owner and sample.session_id in result["sessions"]:
                    counts = result["sessions"][sample.session_id]
                    entry = {"sample": sample, "start": sample.offset - owner.offset, "counts": counts}
                    found.setdefault((result["test_set"], owner.session_id), []).append(entry)
        return found

    def _add_views(self, rows: list[dict[str, Any]], samples: Mapping[tuple[str, str], list[dict[str, Any]]]) -> None:
        results = self._shown_results()
        sessions = {name: self._manifest(name) for name in results}
        texts = {name: self._read_recognized_texts(name) for name in sessions}

        def make_view(row: dict[str, Any]) -> tuple[dict[str, Any], Session | None] | None:
            session = sessions[row["set"]].get(row["id"])
            if session is None:
                return None
            own = samples.get((row["set"], row["id"]), [])
            view = self._view(session, results[row["set"]], own)
            view["samples"] = [self._align(entry, texts[row["set"]]) for entry in own]
            return view, session if session.audio_path.is_file() else None

        add_views(rows, make_view, self.budget)

    def _view(
        self, session: Session, result: Mapping[str, Any], samples: Iterable[Mapping[str, Any]]
    ) -> dict[str, Any]:
        folder = self.folders.stages["score"] / "hyp" / result["test_set"]
        hypothesis_path = folder / result["postprocessing"] / f"{session.session_id}.rttm"
        hypothesis = rttm.read(hypothesis_path) if hypothesis_path.is_file() else []
        posteriors_path = posteriors.path_of(folder / "probs", session)
        found = posteriors.read(posteriors_path) if posteriors_path.is_file() else None
        words = [word for entry in samples for word in _read_recognized_words(folder / "words", entry)]
        options = DerOptions(result["settings"]["collar"], result["settings"]["skip_overlap"])
        return describe_session(session, hypothesis, found, words, options)

    def _read_recognized_texts(self, test_set: str) -> dict[str, str]:
        path = self.folders.file("score", f"hyp/{test_set}/words/sst.jsonl")
        lines = (decode(line, path, number) for number, line in read_lines(path)) if path else ()
        return {line["session_id"]: line["text"] for line in lines}

    def _align(self, entry: Mapping[str, Any], recognized: Mapping[str, str]) -> dict[str, Any]:
        """Return the words of a sample beside those of the ASR, for each pair of speakers that cpWER matches."""
        sample, counts = entry["sample"], entry["counts"]
        normalizer = self.scores.get("settings", {}).get("score", {}).get("normalizer", "none")
        texts = sample.text or "", recognized.get(sample.session_id, "")
        reference, hypothesis = (_words_by_speaker(text, normalizer) for text in texts)
        names = _name_by_arrival(sample)
        return {
            "start": round(entry["start"], 3),
            "end": round(entry["start"] + (sample.duration or 0.0), 3),
            "errors": counts["errors"],
            "words": counts["words"],
            "speakers": [
                (
                    names.get(ref, ref),
                    hyp and hyp.replace("spk", "speaker_", 1),
                    align_words(reference.get(ref, ()), hypothesis.get(hyp, ())),
                )
                for ref, hyp in counts["assignment"]
            ],
        }


def align_words(reference: Sequence[str], hypothesis: Sequence[str]) -> list[tuple[str | None, str | None]]:
    """Return pairs of words with the fewest errors; None is in the place of a word without a partner."""
    return [
        (None if ref is None else reference[ref], None if hyp is None else hypothesis[hyp])
        for ref, hyp in align(reference, hypothesis)
    ]


def _words_by_speaker(text: str, normalizer_name: str) -> dict[str, list[str]]:
    """Return the words of a serialized transcript as stage 8 scored them."""
    normalizer = find_normalizer(normalizer_name)
    turns: dict[str, list[str]] = {}
    for speaker, said in parse_any(text):
        turns.setdefault(speaker, []).append(normalizer.clean_entry(said))
    return {speaker: normalizer.normalize(" ".join(own)).split() for speaker, own in turns.items()}


def _count_words(samples: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the cpWER of a session: the sums over its samples."""
    counts = [entry["counts"] for entry in samples]
    words = sum(count["words"] for count in counts)
    return {"cpwer": sum(count["errors"] for count in counts) / words} if words else {}


def _find_owner(sample: Session, sessions: Sequence[Session]) -> Session | None:
    """Return the session, of those with the same audio, in which a sample begins."""
    for session in sessions:
        end = session.offset + (session.duration if session.duration is not None else float("inf"))
        if session.offset <= sample.offset < end:
            return session
    return None


def _read_recognized_words(folder: Path, entry: Mapping[str, Any]) -> list[Segment]:
    """Read the words that the ASR recognized in a sample, with the names of the speakers to whom cpWER maps them."""
    path = folder / f"{entry['sample'].session_id}.json"
    words = seglst.read(path, zero_duration="keep") if path.is_file() else []
    arrived = _name_by_arrival(entry["sample"])
    names = {
        hyp.replace("spk", "speaker_", 1): arrived[ref]
        for ref, hyp in entry["counts"]["assignment"]
        if ref in arrived and hyp is not None
    }
    return [replace(word, speaker=names.get(word.speaker, word.speaker)) for word in words]


def _name_by_arrival(sample: Session) -> dict[str, str]:
    """Return the speakers of a sample by their tokens in its transcript: spk0 is the first to speak in the sample."""
    words = sorted(session_segments(sample), key=lambda word: word.start)
    return {f"spk{n}": name for n, name in enumerate(dict.fromkeys(word.speaker for word in words))}
