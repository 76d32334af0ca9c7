"""What the page shows of one session: who spoke when, what was found, where that is wrong, words, sound.

All times in it are seconds from the start of the session.
"""

from __future__ import annotations

import base64
import io
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile

from sortk.formats import audio
from sortk.formats.annotation import is_annotated, session_segments
from sortk.formats.posteriors import Posteriors
from sortk.records import SAMPLE_RATE, Region, Segment, Session
from sortk.report.page import encode_data, format_page
from sortk.scoring.der import read_references
from sortk.scoring.intervals import DerOptions, ErrorMarks, find_errors
from sortk.spans import speaker_turns, to_seconds

DECIMALS = 3  # of seconds


def describe_session(
    session: Session,
    hypothesis: Sequence[Segment],
    posteriors: Posteriors | None = None,
    words: Sequence[Segment] = (),
    options: DerOptions | None = None,
) -> dict[str, Any]:
    """Return the view of a session, without sound; the hypothesis and its words have times of the audio file."""
    found = [segment.shift(-session.offset) for segment in hypothesis]
    reference: Sequence[Segment] = []
    errors = ErrorMarks({}, ())
    if is_annotated(session):
        references, uem = read_references([session])
        reference = references[session.session_id]
        options = options or DerOptions(collar=0.0)
        errors = find_errors(reference, found, uem[session.session_id] if uem else None, options)
    ends = [segment.end for segment in (*reference, *found)]
    said = [segment.shift(-session.offset) for segment in session_segments(session) if segment.text]
    return {
        "duration": round(session.duration if session.duration is not None else max(ends, default=1.0), DECIMALS),
        "offset": round(session.offset, DECIMALS),
        "reference": describe_lanes(reference),
        **_describe_errors(found, errors),
        "reference_words": describe_words(said),
        "recognized_words": describe_words([word.shift(-session.offset) for word in words]),
        "posteriors": {
            "frames": posteriors.probs.shape[0],
            "speakers": posteriors.probs.shape[1],
            "frame_seconds": posteriors.frame_seconds,
            "levels": encode_posteriors(posteriors.probs),
        }
        if posteriors is not None and posteriors.probs.size
        else None,
    }


def describe_system(
    reference: Sequence[Segment], found: Sequence[Segment], uem: Sequence[Region] | None, options: DerOptions
) -> dict[str, Any]:
    """Return what a system found in a session, and where that differs from the reference."""
    return _describe_errors(found, find_errors(reference, found, uem, options))


def _describe_errors(found: Sequence[Segment], errors: ErrorMarks) -> dict[str, Any]:
    """Return the lanes of a hypothesis, the reference speaker of each of its speakers, and its errors."""
    return {
        "hypothesis": describe_lanes(found),
        "mapping": dict(errors.mapping),
        "marks": [
            [
                round(mark.start, DECIMALS),
                round(mark.end, DECIMALS),
                mark.missed,
                mark.false_alarm,
                mark.confusion,
                int(mark.is_scored),
            ]
            for mark in errors.marks
        ],
    }


def describe_lanes(segments: Sequence[Segment]) -> list[dict[str, Any]]:
    """Return a lane per speaker, by arrival."""
    return [
        {"speaker": speaker, "turns": [[round(to_seconds(edge), DECIMALS) for edge in turn] for turn in turns]}
        for speaker, turns in speaker_turns(segments).items()
    ]


def describe_words(words: Sequence[Segment]) -> list[list[Any]]:
    """Return words, or longer stretches of text, with speakers and times."""
    ordered = sorted(words, key=lambda word: (word.start, word.end))
    return [[word.speaker, round(word.start, DECIMALS), round(word.end, DECIMALS), word.text] for word in ordered]


def describe_sound(session: Session, at_most_seconds: float) -> dict[str, Any]:
    """Return the sound of the beginning of a session, and the waveform of all of it."""
    samples = read_sound(session, at_most_seconds)
    return {
        "audio": encode_sound(samples),
        "audio_seconds": len(samples) / SAMPLE_RATE,
        "waveform": encode_waveform(session),
    }


# ---------------------------------------------------------------------------------------------------------------------
# Many sessions on one page


@dataclass(frozen=True)
class Budget:
    """How much of an experiment's sessions goes into a page."""

    sessions_with_sound: int = 24
    seconds_of_sound: float = 300.0  # of each; a longer session has sound at its beginning only
    sound_bytes: int = 11_000_000  # of all sound together, as text
    view_bytes: int = 10_000_000  # of all views together


def add_views(
    rows: Sequence[dict[str, Any]],
    make_view: Callable[[dict[str, Any]], tuple[dict[str, Any], Session | None] | None],
    budget: Budget,
) -> None:
    """Add views and sound to rows, the worst first, until the budget is used up.

    `make_view` returns the view of a row and the session to play, if there is sound; None if there is nothing to show.
    """
    view_bytes, sound_bytes, n_sounds = budget.view_bytes, budget.sound_bytes, 0
    for row in worst_middle_best(rows):
        made = make_view(row)
        if made is None:
            continue
        view, session = made
        view_bytes -= len(encode_data(view))
        if view_bytes < 0:
            break
        row["view"] = view
        if session is not None and n_sounds < budget.sessions_with_sound:
            sound = describe_sound(session, budget.seconds_of_sound)
            if len(sound["audio"]) <= sound_bytes:
                sound_bytes, n_sounds = sound_bytes - len(sound["audio"]), n_sounds + 1
                view |= sound


def worst_middle_best(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Reorder rows that begin with the worst: one of the worst, the middle and the best in turn."""
    middle = len(rows) // 2
    outwards = chain.from_iterable(zip_longest(rows[middle:], reversed(rows[:middle])))
    in_turn = chain.from_iterable(zip(rows, (row for row in outwards if row), reversed(rows), strict=True))
    return list({id(row): row for row in in_turn}.values())


# ---------------------------------------------------------------------------------------------------------------------
# The page of one recording that was diarized or transcribed, without a recipe

SOUND_SECONDS = 720.0
"""How much of a recording the page can play: 12 minutes are about 3 MB. A reader can choose the file to play more."""
PAGE_BYTES = 4_000_000
"""A page of more bytes has less sound, but at least a tenth of that."""


def format_recording(
    session: Session,
    segments: Sequence[Segment],
    posteriors: Posteriors | None = None,
    words: Sequence[Segment] = (),
    command: str = "",
) -> str:
    """Return the page of a recording; segments and words have times of the audio file, as in an RTTM.

    `command` is shown as what made the page.
    """
    if session.duration is None:
        session = replace(session, duration=audio.info(session.audio_path).seconds - session.offset)
    view = describe_session(session, segments, posteriors, words) | describe_sound(session, SOUND_SECONDS)
    row = {"id": session.session_id, "hyp_speakers": len({segment.speaker for segment in segments}), "view": view}
    data = {"kind": "recording", "title": session.session_id, "command": command, "sessions": [row]}
    page = format_page(f"sortk: {session.session_id}", data)
    excess = len(page.encode()) - PAGE_BYTES
    if excess <= 0:
        return page
    kept = max(0.1, 0.95 - excess / len(view["audio"]))  # sound is not equally dense everywhere
    view |= describe_sound(session, kept * view["audio_seconds"])
    return format_page(f"sortk: {session.session_id}", data)


# ---------------------------------------------------------------------------------------------------------------------
# Sound and posteriors as text: Ogg Vorbis, a waveform of bytes, probabilities of four bits

VORBIS_LEVEL = 1.0
"""Of libsndfile, 0 to 1. 30 s of conversation: 92 kB (25 kbit/s: speech is clear) in 0.1 s. Opus: 70 kB, but 1.5 s;
MP3: 78 kB in 0.3 s, but browsers seek in it only approximately, so the cursor would be wrong."""
BLOCK_SAMPLES = 60 * SAMPLE_RATE  # libsndfile's Vorbis encoder fails on much more at once

MIRRORED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))  # each byte, its bits in the other order

PEAK_SAMPLES = SAMPLE_RATE // 25  # in one peak of a waveform,
MAX_PEAKS = 60_000  # or more of them in a recording of more than 40 minutes


def read_sound(session: Session, at_most_seconds: float) -> npt.NDArray[np.float32]:
    """Return the beginning of a session, mono."""
    seconds = at_most_seconds if session.duration is None else min(session.duration, at_most_seconds)
    return audio.read(session.audio_path, session.offset, seconds, SAMPLE_RATE, session.channel)


def encode_sound(samples: npt.NDArray[np.float32]) -> str:
    """Return Ogg Vorbis, which every current browser plays, as base64."""
    memory = io.BytesIO()
    settings = {"format": "OGG", "subtype": "VORBIS", "compression_level": VORBIS_LEVEL}
    with soundfile.SoundFile(memory, "w", SAMPLE_RATE, channels=1, **settings) as file:
        for start in range(0, len(samples), BLOCK_SAMPLES):
            file.write(samples[start : start + BLOCK_SAMPLES])
    return _as_text(renumber_stream(memory.getvalue()))


def renumber_stream(ogg: bytes) -> bytes:
    """Replace the random number of an Ogg stream by 0, so that equal sound gives equal bytes (RFC 3533)."""
    pages, start = [], 0
    while start < len(ogg):
        n_parts = ogg[start + 26]
        end = start + 27 + n_parts + sum(ogg[start + 27 : start + 27 + n_parts])
        head, tail = ogg[start : start + 14] + bytes(4) + ogg[start + 18 : start + 22], ogg[start + 26 : end]
        pages += [head, _checksum(head + bytes(4) + tail), tail]
        start = end
    return b"".join(pages)


def _checksum(page: bytes) -> bytes:
    """Return Ogg's CRC-32: zlib's with the bits of all bytes in the other order, and no inversions."""
    mirrored = zlib.crc32(page.translate(MIRRORED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{mirrored:032b}"[::-1], 2).to_bytes(4, "little")


def encode_waveform(session: Session) -> dict[str, Any]:
    """Return the waveform of a session: `peaks`, a byte each, as base64, and `peak_seconds`, the time of each."""
    window = session.audio_path, session.offset, session.duration, SAMPLE_RATE, session.channel
    parts = [find_peaks(block) for block in audio.read_blocks(*window)]
    peaks = np.concatenate(parts) if parts else np.zeros(1, np.float32)
    n_merged = -(-len(peaks) // MAX_PEAKS)
    peaks = np.maximum.reduceat(peaks, np.arange(0, len(peaks), n_merged))
    levels = np.round(255 * peaks / max(float(peaks.max()), 1e-6)).astype(np.uint8)
    return {"peaks": _as_text(levels.tobytes()), "peak_seconds": n_merged * PEAK_SAMPLES / SAMPLE_RATE}


def find_peaks(samples: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the largest amplitude of each PEAK_SAMPLES samples."""
    starts = np.arange(0, len(samples), PEAK_SAMPLES)
    return np.maximum.reduceat(np.abs(samples), starts) if len(samples) else np.zeros(0, np.float32)


def encode_posteriors(probs: npt.NDArray[np.float32]) -> str:
    """Return (frames, speakers) in fifteenths, two to a byte, frame by frame, as base64."""
    levels = np.clip(np.round(probs.astype(np.float32) * 15), 0, 15).astype(np.uint8).reshape(-1)
    if len(levels) % 2:
        levels = np.append(levels, np.uint8(0))
    return _as_text((levels[::2] << 4 | levels[1::2]).tobytes())


def _as_text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
