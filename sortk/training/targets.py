"""What a clip teaches: who speaks in each model frame, and for the ASR which tokens its transcript has.

`DiarizerLabels` and `AsrLabels` make a training `Example` of a `LabelledClip`: samples with their annotation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sortk.formats.audio import Samples
from sortk.formats.sst import TOKEN, SstOptions, build_sst, strip_tokens
from sortk.formats.tokens import Tokenizer
from sortk.models.frames import FRAME_SECONDS, count_frames, count_rows
from sortk.records import Segment, Session, arrival_order

NO_SPEAKER = -1  # instead of a speaker's number
NOT_KNOWN = -100  # instead of a token: what cross_entropy leaves out
NO_SPAN = -1  # instead of a frame: the time of a token is not known

Targets = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LabelledClip:
    """Samples with all that is known about them; times count as in the annotation."""

    name: str
    samples: Samples
    start: float  # time of the first sample
    segments: Sequence[Segment]  # who speaks when
    words: Sequence[Segment] = ()  # with their times; () if the times are not known
    text: str | None = None  # the transcript; None: that of the words, which are complete

    @property
    def n_frames(self) -> int:
        return count_frames(len(self.samples))


@dataclass(frozen=True)
class Example:
    """One training example; the last four fields are the ASR's."""

    name: str
    samples: Samples
    targets: Targets  # (rows of the model's output, speakers)
    speakers: Numbers  # (frames,): which of all speakers of the training data speaks alone, or NO_SPEAKER
    text: str = ""
    tokens: Sequence[int] | None = None  # with prompt and end
    frame_tokens: Numbers | None = None  # (frames,): the token that is spoken, padding in silence, or NOT_KNOWN
    token_spans: Numbers | None = None  # (tokens, 2): first and last + 1 of the frames of each token, or NO_SPAN


class Labels(Protocol):
    """How clips become examples."""

    needs_words: bool

    def check(self, session: Session) -> None:
        """Raise ValueError if a session lacks what its examples need."""

    def make_example(self, clip: LabelledClip) -> Example: ...


@dataclass(frozen=True)
class DiarizerLabels:
    """Examples for a diarizer: who speaks when, in the order of arrival."""

    n_speakers: int
    number_of: Mapping[str, int] = field(default_factory=dict)  # the speakers of the training data, to be named
    rows_per_frame: int = 1  # of the model's output, see `DiarizerModel`

    needs_words = False

    def check(self, session: Session) -> None:
        if session.rttm_path is None:
            raise ValueError(f"session {session.session_id} has no rttm_filepath, which training requires")

    def make_example(self, clip: LabelledClip) -> Example:
        targets, names = frame_targets(clip.segments, clip.start, clip.n_frames, self.n_speakers)
        speakers = frame_speakers(targets, names, self.number_of)  # of model frames, whatever the output has
        if self.rows_per_frame > 1:
            n_rows = count_rows(len(clip.samples), self.rows_per_frame)
            row_seconds = FRAME_SECONDS / self.rows_per_frame
            targets, _ = frame_targets(clip.segments, clip.start, n_rows, self.n_speakers, row_seconds)
        return Example(clip.name, clip.samples, targets, speakers)


@dataclass(frozen=True)
class AsrLabels:
    """Examples for an ASR: the tokens of the transcript, and who speaks when in the order of the transcript."""

    tokenizer: Tokenizer
    n_speakers: int
    sst: SstOptions
    speaker_tokens: bool = True
    max_tokens: int = 1024  # positions of the decoder
    needs_turns: bool = False  # who speaks comes from the annotation (supervision truth)

    needs_words = True

    def check(self, session: Session) -> None:
        if session.text is None:
            raise ValueError(f"session {session.session_id} has no text, which training requires")
        if session.duration is None:
            raise ValueError(f"session {session.session_id} has no duration; `sortk clean` writes samples with one")
        if self.needs_turns and session.rttm_path is None:
            raise ValueError(f'session {session.session_id} has no rttm_filepath, which supervision = "truth" requires')

    def make_example(self, clip: LabelledClip) -> Example:
        text = clip.text
        if text is None:
            text = build_sst(clip.words, self.sst)
        text, tokens = self.tokenize(clip.name, text)
        if clip.words or clip.text is None:
            frame_tokens = self.frame_token_targets(clip.words, clip.start, clip.n_frames)
        else:
            frame_tokens = np.full(clip.n_frames, NOT_KNOWN)
        spans = self.token_span_targets(clip.words, text, clip.start, clip.n_frames)
        targets = self.speaker_targets(clip.segments, clip.words, clip.start, clip.n_frames)
        no_names = np.full(clip.n_frames, NO_SPEAKER)
        return Example(clip.name, clip.samples, targets, no_names, text, tokens, frame_tokens, spans)

    def tokenize(self, name: str, text: str) -> tuple[str, list[int]]:
        """Return the text to learn, and its tokens with prompt and end; `name` is for messages."""
        if not self.speaker_tokens:
            text = strip_tokens(text)
        try:
            tokens = [*self.tokenizer.prompt, *self.tokenizer.encode(text), self.tokenizer.end]
        except ValueError as error:
            raise ValueError(f"session {name}: {error}") from None
        if len(tokens) > self.max_tokens:
            raise ValueError(
                f"session {name}: its text has {len(tokens)} tokens, more than the {self.max_tokens} positions of the "
                "decoder; cut it into shorter samples (`sortk clean`)"
            )
        return text, tokens

    def frame_token_targets(self, words: Sequence[Segment], offset: float, n_frames: int) -> Numbers:
        """(n_frames,): the token that is spoken; the tokens of a word share its time evenly.

        Frames without a word have the padding token, frames with two words are NOT_KNOWN. Only `word_weight` uses it.
        """
        frame_tokens = np.full(n_frames, self.tokenizer.pad)
        n_words = np.zeros(n_frames, np.int64)
        for word in words:
            first, last = _find_frames(word, offset, n_frames)
            pieces = self.tokenizer.encode(word.text)
            if first >= last or not pieces:
                continue
            frame_tokens[first:last] = np.array(pieces)[np.arange(last - first) * len(pieces) // (last - first)]
            n_words[first:last] += 1
        return np.where(n_words > 1, NOT_KNOWN, frame_tokens)

    def token_span_targets(self, words: Sequence[Segment], text: str, offset: float, n_frames: int) -> Numbers:
        """(tokens with prompt and end, 2): the first and the last + 1 of the frames in which a token is spoken.

        All tokens of a word have the word's time, and a speaker token that of the word after it. NO_SPAN is where there
        is none, and everywhere if the words are not those of the text. Only `alignment_weight` uses it.
        """
        spoken = [word for word in words if word.text.strip()]
        numbered = [replace(word, text=str(number)) for number, word in enumerate(spoken)]
        in_order = [spoken[int(number)] for number in strip_tokens(build_sst(numbered, self.sst)).split()]
        spans: list[tuple[int, int]] = []
        if [word.text for word in in_order] == strip_tokens(text).split():
            following, n_waiting = iter(in_order), 0  # speaker tokens that wait for a word
            for part in text.split():
                if TOKEN.fullmatch(part):
                    n_waiting += 1
                    continue
                first, last = _find_frames(next(following), offset, n_frames)
                span = (first, last) if first < last else (NO_SPAN, NO_SPAN)
                spans += [span] * (n_waiting + len(self.tokenizer.encode(part)))
                n_waiting = 0
        n_tokens = len(self.tokenizer.encode(text))
        spans = spans if len(spans) == n_tokens else [(NO_SPAN, NO_SPAN)] * n_tokens
        return np.array([*[(NO_SPAN, NO_SPAN)] * len(self.tokenizer.prompt), *spans, (NO_SPAN, NO_SPAN)], np.int64)

    def speaker_targets(
        self, segments: Sequence[Segment], words: Sequence[Segment], offset: float, n_frames: int
    ) -> Targets:
        """(n_frames, n_speakers): who speaks; columns in the order in which the transcript numbers the speakers."""
        targets, names = frame_targets(segments, offset, n_frames, self.n_speakers)
        order = arrival_order(words)
        # A speaker without words comes after those with.
        places = sorted(range(len(names)), key=lambda column: (order.get(names[column], len(order)), column))
        return targets[:, [*places, *range(len(names), self.n_speakers)]]


def _find_frames(word: Segment, offset: float, n_frames: int) -> tuple[int, int]:
    """Return the first and the last + 1 of the frames of a word: at least one, unless it begins after all of them."""
    first = max(round((word.start - offset) / FRAME_SECONDS), 0)
    return first, min(max(round((word.end - offset) / FRAME_SECONDS), first + 1), n_frames)


# ---------------------------------------------------------------------------------------------------------------------
# Segments in seconds -> a 0/1 matrix, one column per speaker


def frame_targets(
    segments: Sequence[Segment], offset: float, n_frames: int, n_speakers: int, frame_seconds: float = FRAME_SECONDS
) -> tuple[Targets, list[str]]:
    """(n_frames, n_speakers): 1 where a speaker is active for at least half of the frame; and the speakers' names.

    Frame k starts at offset + k frame_seconds. Columns are in the order of arrival in this window
    (`records.arrival_order`). Of more than `n_speakers`, those who speak longest in the window are kept; the columns of
    absent ones are 0.
    """
    end = offset + n_frames * frame_seconds
    inside = [segment for segment in segments if segment.start < end and segment.end > offset]
    activity = {speaker: np.zeros(n_frames) for speaker in arrival_order(inside, offset)}
    for segment in inside:
        first, last = (segment.start - offset) / frame_seconds, (segment.end - offset) / frame_seconds
        _cover(activity[segment.speaker], first, last)
    # A microsecond of rounding must not decide whether exactly half a frame is half a frame.
    active = {speaker: covered >= 0.5 - 1e-5 for speaker, covered in activity.items()}
    by_length = sorted(active, key=lambda speaker: -int(active[speaker].sum()))
    kept = [speaker for speaker in active if speaker in by_length[:n_speakers]]
    targets = np.zeros((n_frames, n_speakers), np.float32)
    for column, speaker in enumerate(kept):
        targets[:, column] = active[speaker]
    return targets, kept


def frame_speakers(targets: Targets, names: Sequence[str], number_of: Mapping[str, int]) -> Numbers:
    """(n_frames,): the number of the speaker where exactly one speaks, NO_SPEAKER elsewhere."""
    numbers = np.array(
        [number_of.get(name, NO_SPEAKER) for name in names] + [NO_SPEAKER] * (targets.shape[1] - len(names))
    )
    return np.where(targets.sum(axis=1) == 1, numbers[targets.argmax(axis=1)], NO_SPEAKER)


def _cover(covered: npt.NDArray[np.float64], start: float, end: float) -> None:
    """Add the share of each frame that is between start and end, in frames; two segments may share a frame."""
    start, end = max(start, 0.0), min(end, float(len(covered)))
    if end <= start:
        return
    first, last = int(start), min(int(end), len(covered) - 1)
    if first == last:
        covered[first] += end - start
        return
    covered[first] += first + 1 - start
    covered[first + 1 : last] += 1.0
    covered[last] += end - last
