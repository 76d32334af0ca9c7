"""Random records for the round trips: every name, text and time that the formats promise to keep."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st

from sortk.records import Region, Segment, Session, Source, Word

REFS = Path(__file__).parents[3] / "shared" / "data"
"""Real files beside the repository; tests that read them are skipped where they are absent."""


def _is_name(text: str) -> bool:
    return text.split() == [text] and not text.startswith((";", "\ufeff"))


printed = st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"])
names = st.text(printed, min_size=1, max_size=8).filter(_is_name)
words = st.text(printed, min_size=1, max_size=6).filter(_is_name)
texts = st.lists(words, max_size=4).map(" ".join)
labels = st.sampled_from(["<o,f0,male>", "<NA>", "<>", "<spk0>"])
texts_with_labels = st.lists(words | labels, max_size=4).map(" ".join)

microseconds = st.integers(0, 10**11)
channels = st.sampled_from(["1", "2", "A"])


def seconds(count: int) -> float:
    """The float that stands for a number of microseconds."""
    return count / 10**6


@st.composite
def spans(draw: st.DrawFn) -> tuple[float, float]:
    start = draw(microseconds)
    return seconds(start), seconds(start + draw(st.integers(1, 10**9)))


@st.composite
def segments(
    draw: st.DrawFn,
    text: st.SearchStrategy[str] = texts,
    channel: st.SearchStrategy[str] = channels,
    session_id: st.SearchStrategy[str] = names,
    speaker: st.SearchStrategy[str] = names,
) -> Segment:
    start, end = draw(spans())
    return Segment(draw(session_id), draw(speaker), start, end, draw(text), draw(channel))


@st.composite
def regions(draw: st.DrawFn) -> Region:
    return Region(draw(names), *draw(spans()), draw(channels))


file_names = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=8).filter(
    lambda name: name not in (".", "..", "-") and bool(name.strip())
)
offsets = st.floats(0, 1e6)
durations = st.floats(1e-3, 1e6)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


def paths(folder: Path) -> st.SearchStrategy[Path]:
    """Files below, beside and far from a folder."""
    folders = [folder, folder / "a" / "b", folder.parent / "c", Path("/far/away")]
    return st.builds(Path, st.sampled_from(folders), file_names)


@st.composite
def sessions(draw: st.DrawFn, path: st.SearchStrategy[Path], session_id: str) -> Session:
    optional_path = st.none() | path
    return Session(
        session_id=session_id,
        audio_path=draw(path),
        duration=draw(st.none() | durations),
        offset=draw(offsets),
        text=draw(st.none() | texts.filter(lambda text: text != "-")),
        num_speakers=draw(st.none() | st.integers(0, 20)),
        rttm_path=draw(optional_path),
        uem_path=draw(optional_path),
        ctm_path=draw(optional_path),
        seglst_path=draw(optional_path),
        extra=draw(st.dictionaries(st.sampled_from(["label", "language", "x y"]), json_values, max_size=2)),
    )


@st.composite
def sources(draw: st.DrawFn, path: st.SearchStrategy[Path], utterance_id: str) -> Source:
    duration = draw(durations)
    edges = sorted(draw(st.lists(st.floats(0, duration), unique=True, max_size=6)))
    pairs = list(zip(edges[::2], edges[1::2], strict=False))
    return Source(
        utterance_id=utterance_id,
        audio_path=draw(path),
        offset=draw(offsets),
        duration=duration,
        speaker=draw(names),
        text=draw(texts),
        words=tuple(Word(draw(words), start, end) for start, end in pairs),
        speech_start=pairs[0][0] if pairs else None,
        speech_end=pairs[0][1] if pairs else None,
        gender=draw(st.sampled_from(["", "f", "m"])),
        split=draw(st.sampled_from(["", "train", "test"])),
    )
