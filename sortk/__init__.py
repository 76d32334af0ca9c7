"""sortk: a complete open-source implementation of Sortformer. Start reading at `stages.py`.

docs/python.md shows what is in this module. Nothing slow is imported until it is used.
"""

from __future__ import annotations

import sys

# `python -m sortk` looks for modules in the current folder first, where data from elsewhere may hold a numpy.py. A
# checkout that is the current folder stays on the path, for workers to find sortk.
if sys.argv[:1] == ["-m"] and not sys.flags.safe_path and __file__ != f"{sys.path[0]}/sortk/__init__.py":
    del sys.path[0]

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sortk.records import Segment

if TYPE_CHECKING:
    from sortk.formats.postprocess import Postprocess
    from sortk.inference.diarize import DiarizeOptions, Diarizer
    from sortk.inference.pieces import TranscribeOptions, Transcriber
    from sortk.inference.results import Segments
    from sortk.scoring.der import DerReport

    AnyPath = str | PathLike[str]
    Annotated = AnyPath | Iterable[Segment] | Mapping[str, Sequence[Segment]]

__all__ = ["Segment", "load_diarizer", "load_transcriber", "read_rttm", "score_der", "write_rttm"]
__version__ = "0.1.0"

Made = TypeVar("Made")


def load_diarizer(
    path: AnyPath | None = None,
    *,
    postprocess: AnyPath | Postprocess | None = None,
    device: str | None = None,
    int8: bool = False,
    options: DiarizeOptions | None = None,
    **settings: Any,
) -> Diarizer:
    """Return a diarizer from a model folder, a `.nemo` file or a name such as nvidia/diar_sortformer_4spk-v1.

    Call it with a path, or with samples, and get segments.
    Without a path it is the small model that comes with sortk (docs/model-card.md), which needs no torch unless a
    device, int8, streaming or enrol is given. `postprocess` is a preset
    ("callhome"), a postprocess.toml or a `Postprocess`; without it, the model's own is used. `settings` are the
    fields of `DiarizeOptions`: speakers, min_speakers, max_speakers, streaming, enrol, ...; or give `options`.
    """
    from sortk.formats.hub import SHIPPED_MODEL, find_model  # noqa: PLC0415 - `import sortk` stays fast
    from sortk.formats.postprocess import Postprocess  # noqa: PLC0415
    from sortk.inference.diarize import DiarizeOptions, choose_postprocess, load  # noqa: PLC0415

    model = SHIPPED_MODEL if path is None else find_model(Path(path))
    if options is None:
        if not isinstance(postprocess, Postprocess):
            postprocess = choose_postprocess(None if postprocess is None else str(postprocess), model)
        options = _make_options(DiarizeOptions, settings | {"postprocess": postprocess})
    elif settings or postprocess is not None:
        raise TypeError("give either options or single settings, not both")
    return load(model, options, device, int8)


def load_transcriber(
    asr: AnyPath,
    diarizer: AnyPath | Diarizer | None = None,
    *,
    device: str | None = None,
    options: TranscribeOptions | None = None,
    diarize_options: DiarizeOptions | None = None,
    **settings: Any,
) -> Transcriber[Any]:
    """Return a transcriber: call it with a path, or with samples, and get the words with their speakers.

    `asr` and `diarizer` are model folders, `.nemo` files or names; a diarizer may also be one of `load_diarizer`.
    `settings` are the fields of `TranscribeOptions`: lang, decoding, punctuation, overlap, ...; or give `options`.
    """
    from sortk.inference.diarize import Diarizer  # noqa: PLC0415
    from sortk.inference.pieces import TranscribeOptions  # noqa: PLC0415
    from sortk.inference.transcribe import load_transcriber as load  # noqa: PLC0415

    if options is None:
        options = _make_options(TranscribeOptions, settings)
    elif settings:
        raise TypeError("give either options or single settings, not both")
    if diarizer is not None and not isinstance(diarizer, Diarizer):
        diarizer = Path(diarizer)
    return load(Path(asr), diarizer, options, device, diarize_options)


def score_der(ref: Annotated, hyp: Annotated, *, uem: AnyPath | None = None, **settings: Any) -> DerReport:
    """Return the diarization error rates of each session: `score_der(...).overall.errors.der` is the pooled rate.

    `ref` and `hyp` are RTTM files, folders of them, segments, or segments by session. `settings` are the fields of
    `DerOptions`: collar (seconds on each side of a boundary, 0.25), skip_overlap, scorer.
    """
    from sortk.scoring.der import read_regions  # noqa: PLC0415
    from sortk.scoring.der import score_der as score_sessions  # noqa: PLC0415
    from sortk.scoring.intervals import DerOptions  # noqa: PLC0415

    regions = None if uem is None else read_regions(Path(uem))
    return score_sessions(_by_session(ref), _by_session(hyp), regions, _make_options(DerOptions, settings))


def read_rttm(path: AnyPath) -> Segments:
    """Return the segments of an RTTM file in the order of the file; of several sessions, if it has several."""
    from sortk.formats import rttm  # noqa: PLC0415
    from sortk.inference.results import Segments  # noqa: PLC0415

    return Segments(rttm.read(Path(path)))


def write_rttm(path: AnyPath, segments: Iterable[Segment]) -> None:
    """Write segments as an RTTM file, sorted by session and start."""
    from sortk.formats import rttm  # noqa: PLC0415

    rttm.write(Path(path), segments)


def _by_session(source: Annotated) -> Mapping[str, Sequence[Segment]]:
    from sortk.scoring.der import read_segments  # noqa: PLC0415

    if isinstance(source, str | PathLike):
        return read_segments(Path(source))
    if isinstance(source, Mapping):
        return source
    sessions: dict[str, list[Segment]] = {}
    for segment in source:
        sessions.setdefault(segment.session_id, []).append(segment)
    return sessions


def _make_options(cls: type[Made], settings: Mapping[str, Any]) -> Made:
    """Return options of the class; TypeError names a setting that it does not have, and those that it has."""
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    for name in settings:
        if name not in names:
            raise TypeError(f"there is no setting {name!r}; settings: {', '.join(names)}")
    return cls(**settings)
