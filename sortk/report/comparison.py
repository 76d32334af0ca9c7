"""The page of any reference and any systems' hypotheses: rates side by side, and where each system is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sortk.formats import audio
from sortk.formats.convert import detect, stream_segments
from sortk.formats.files import files_in
from sortk.formats.objects import id_of
from sortk.records import Region, Segment, Session
from sortk.report.page import format_page
from sortk.report.session import Budget, add_views, describe_lanes, describe_system, describe_words
from sortk.scoring.compare import name_systems
from sortk.scoring.der import as_json, read_regions, read_segments, score_der
from sortk.scoring.intervals import DerOptions

Segmented = Mapping[str, Sequence[Segment]]


def format_comparison(
    ref: Path,
    hyps: Sequence[Path],
    uem_path: Path | None = None,
    audio_dir: Path | None = None,
    options: DerOptions | None = None,
    command: str = "",
    budget: Budget | None = None,
) -> str:
    """Return the page of files or folders in RTTM, STM, CTM or SegLST; `audio_dir` has recordings of those names.

    `command` is shown as what made the page.
    """
    options = options or DerOptions()
    references, uem = _read(ref), read_regions(uem_path) if uem_path else None
    systems = {name: _read(path) for name, path in zip(name_systems(hyps), hyps, strict=True)}
    scores = {name: as_json(score_der(references, found, uem, options)) for name, found in systems.items()}
    rows = [_describe_row(session_id, scores) for session_id in next(iter(scores.values()))["sessions"]]
    rows.sort(key=lambda row: -(row["der"] or 0.0))
    recordings = _find_recordings(audio_dir, [row["id"] for row in rows]) if audio_dir else {}

    def make_view(row: dict[str, Any]) -> tuple[dict[str, Any], Session | None]:
        name, recording = row["id"], recordings.get(row["id"])
        found = {system: segments.get(name, ()) for system, segments in systems.items()}
        view = _describe_session(references[name], found, uem[name] if uem else None, recording, options)
        return view, Session(name, recording) if recording else None

    add_views(rows, make_view, budget or Budget())
    notes = {name: score["notes"] for name, score in scores.items() if score["notes"]}
    title = ref.name.removesuffix(".gz").removesuffix(".rttm")
    der = [_describe_rates(name, score, title) for name, score in scores.items()]
    data = {"kind": "comparison", "title": title, "command": command, "der": der, "sessions": rows, "notes": notes}
    return format_page(f"sortk: {title}", data)


def _read(path: Path) -> Segmented:
    found = detect(path)
    if found == "rttm":
        return read_segments(path)
    if found not in ("stm", "ctm", "seglst"):
        raise ValueError(f"{path}: is {found}; a page is made from RTTM, STM, CTM or SegLST")
    sessions: dict[str, list[Segment]] = {}
    for segment in stream_segments(path, found):
        sessions.setdefault(segment.session_id, []).append(segment)
    return sessions


def _find_recordings(folder: Path, session_ids: Sequence[str]) -> dict[str, Path]:
    """Return the recordings of sessions by name; ValueError if no recording has the name of a session."""
    suffixes = (*audio.SUFFIXES, *(suffix.upper() for suffix in audio.SUFFIXES))
    names = {id_of(file): file for file in files_in(folder, *suffixes)}
    found = {session_id: names[session_id] for session_id in session_ids if session_id in names}
    if not found and session_ids:
        raise ValueError(
            f"{folder}: no recording has the name of a session; a session is {session_ids[0]!r}, "
            f"a recording {next(iter(names))!r}"
        )
    return found


def _describe_rates(name: str, score: Mapping[str, Any], test_set: str) -> dict[str, Any]:
    overall = dict(score["overall"])
    return {
        "system": name,
        "test_set": test_set,
        "postprocessing": "",
        "settings": score["settings"],
        "overall": overall | {"interval": overall.pop("der_interval_95")},
        "by_speakers": score["by_speakers"],
    }


def _describe_row(session_id: str, scores: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the line of a session in the list: the rates of the first system, and the DER of all."""
    own = {name: score["sessions"][session_id] for name, score in scores.items()}
    first = next(iter(own.values()))
    keys = ("der", "miss", "false_alarm", "confusion", "scored_seconds", "ref_speakers", "hyp_speakers")
    systems = [{"name": name, "der": counts["der"]} for name, counts in own.items()]
    return {"id": session_id, **{key: first[key] for key in keys}} | ({"systems": systems} if len(own) > 1 else {})


def _describe_session(
    reference: Sequence[Segment],
    found: Mapping[str, Sequence[Segment]],
    regions: Sequence[Region] | None,
    recording: Path | None,
    options: DerOptions,
) -> dict[str, Any]:
    """Return the view of a session; `found` has the segments of each system."""
    seconds = audio.info(recording).seconds if recording else 0.0
    ends = [segment.end for segment in (*reference, *(one for own in found.values() for one in own))]
    described = [{"name": system, **describe_system(reference, own, regions, options)} for system, own in found.items()]
    # Words have the names of the reference speakers to whom the system's speakers are mapped.
    mapping, first = described[0]["mapping"], next(iter(found.values()))
    words = [replace(one, speaker=mapping.get(one.speaker, one.speaker)) for one in first if one.text]
    return {
        "duration": round(max([seconds, *ends], default=1.0) or 1.0, 3),
        "offset": 0.0,
        "reference": describe_lanes(reference),
        **{key: described[0][key] for key in ("hypothesis", "mapping", "marks")},
        **({"systems": described} if len(described) > 1 else {}),
        "reference_words": describe_words([segment for segment in reference if segment.text]),
        "recognized_words": describe_words(words),
        "posteriors": None,
    }
