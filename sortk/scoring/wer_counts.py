"""Word errors of one session, counted by meeteval: numbers that add up, and which speaker is taken for which.

A normaliser sees all the words that are aligned as one, so that the score does not hang on how a system cuts them into
segments: cpwer a speaker's, wer a session's, tcpwer those of an entry; orcwer an entry of the reference and a stream
of the hypothesis. meeteval's own command line normalises entry by entry.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from operator import attrgetter, itemgetter
from typing import Any

from meeteval.io import SegLST
from meeteval.wer.wer.cp import cp_word_error_rate
from meeteval.wer.wer.orc import orc_word_error_rate
from meeteval.wer.wer.siso import siso_word_error_rate
from meeteval.wer.wer.time_constrained import tcp_word_error_rate

from sortk.formats.files import quote
from sortk.prepare.syllables import Rule, find_word_edges
from sortk.records import Segment, arrival_order
from sortk.scoring.normalizers import Normalizer

MAX_SPEAKERS = 20  # of meeteval for cpwer and tcpwer; beyond, its authors suspect a mistake
MAX_STREAMS = 10  # and for orcwer
MAX_ORC_CELLS = 200_000_000  # that meeteval fills for one session, about 17 bytes each: more than 3 GB

AS_GIVEN = {"reference_sort": False, "hypothesis_sort": False}  # the words are in order when meeteval gets them
LANGUAGE = "en_US"
RULE: Rule = "sounds"  # how long words are, to order those of overlapping segments; as in stage 3


@dataclass(frozen=True, slots=True)
class WordErrors:
    """Counts that add up."""

    words: int = 0  # of the reference
    substitutions: int = 0
    insertions: int = 0
    deletions: int = 0

    def __add__(self, other: WordErrors) -> WordErrors:
        return WordErrors(
            self.words + other.words,
            self.substitutions + other.substitutions,
            self.insertions + other.insertions,
            self.deletions + other.deletions,
        )

    @property
    def wrong(self) -> int:
        return self.substitutions + self.insertions + self.deletions

    @property
    def rate(self) -> float:
        """As a fraction of the reference: infinite if that has no words, but something is inserted."""
        if self.words:
            return self.wrong / self.words
        return math.inf if self.wrong else 0.0


Assignment = tuple[tuple[str | None, str | None], ...]
"""Reference and hypothesis speaker; None where one has no partner."""


def count_by_speaker(
    reference: Sequence[Segment], hypothesis: Sequence[Segment], normalizer: Normalizer
) -> tuple[WordErrors, Assignment]:
    """cpwer."""
    _check_speakers(reference, hypothesis)
    found = cp_word_error_rate(
        _join_speakers(reference, normalizer), _join_speakers(hypothesis, normalizer), **AS_GIVEN
    )
    return _errors(found), tuple(found.assignment)


def count_by_speaker_and_time(
    reference: Sequence[Segment], hypothesis: Sequence[Segment], normalizer: Normalizer, collar: float
) -> tuple[WordErrors, Assignment]:
    """tcpwer; words of an entry get times by their numbers of letters, which is meeteval's way."""
    _check_speakers(reference, hypothesis)
    entries = [SegLST([_as_entry(segment, normalizer) for segment in side]) for side in (reference, hypothesis)]
    found = tcp_word_error_rate(*entries, collar=_decimal(collar))
    return _errors(found), tuple(found.assignment)


def count_by_stream(
    reference: Sequence[Segment], hypothesis: Sequence[Segment], normalizer: Normalizer
) -> tuple[WordErrors, Assignment]:
    """orcwer; the assignment has a pair per reference segment that has words, in the order of starts."""
    texts = [(segment.speaker, normalizer(segment.text)) for segment in _by_start(reference)]
    texts = [(speaker, text) for speaker, text in texts if text.split()]
    streams = {speaker: text for speaker, text in _join_speakers(hypothesis, normalizer).items() if text.split()}
    if not streams:  # meeteval cannot do without
        n_words = sum(len(text.split()) for _, text in texts)
        return WordErrors(n_words, deletions=n_words), tuple((speaker, None) for speaker, _ in texts)
    _check_streams(hypothesis[0].session_id, len(texts), streams)
    found = orc_word_error_rate([text for _, text in texts], streams, **AS_GIVEN)
    return _errors(found), tuple(zip((speaker for speaker, _ in texts), found.assignment, strict=True))


def count_in_order(reference: Sequence[Segment], hypothesis: Sequence[Segment], normalizer: Normalizer) -> WordErrors:
    """wer, sorted."""
    return _errors(siso_word_error_rate(_join_words(reference, normalizer), _join_words(hypothesis, normalizer)))


def _errors(found: Any) -> WordErrors:
    return WordErrors(found.length, found.substitutions, found.insertions, found.deletions)


def _by_start(segments: Sequence[Segment]) -> list[Segment]:
    return sorted(segments, key=attrgetter("start"))


def _join_speakers(segments: Sequence[Segment], normalizer: Normalizer) -> dict[str, str]:
    """All that each speaker says."""
    texts: dict[str, list[str]] = {}
    for segment in _by_start(segments):
        texts.setdefault(segment.speaker, []).append(normalizer.clean_entry(segment.text))
    return {speaker: normalizer.normalize(" ".join(own)) for speaker, own in texts.items()}


def _join_words(segments: Sequence[Segment], normalizer: Normalizer) -> str:
    """All that is said, word by word in the order of starts; of two that start together, as in an SST."""
    arrival = arrival_order(segments)
    timed = []
    for segment in segments:
        words = normalizer.clean_entry(segment.text).split()
        starts = find_word_edges(words, segment.start, segment.end, LANGUAGE, RULE)[:-1]
        timed += [(start, arrival[segment.speaker], word) for start, word in zip(starts, words, strict=True)]
    return normalizer.normalize(" ".join(word for _, _, word in sorted(timed, key=itemgetter(0, 1))))


def _as_entry(segment: Segment, normalizer: Normalizer) -> dict[str, Any]:
    return {
        "session_id": segment.session_id,
        "speaker": segment.speaker,
        "start_time": _decimal(segment.start),
        "end_time": _decimal(segment.end),
        "words": normalizer(segment.text),
    }


def _decimal(seconds: float) -> Decimal:
    # meeteval reads times so, and whether a word just touches another's time hangs on it.
    return Decimal(str(seconds))


def _check_speakers(reference: Sequence[Segment], hypothesis: Sequence[Segment]) -> None:
    n_ref, n_hyp = count_speakers(reference), count_speakers(hypothesis)
    if max(n_ref, n_hyp) > MAX_SPEAKERS:
        session_id = (*reference, *hypothesis)[0].session_id
        raise ValueError(
            f"session {quote(session_id)}: {n_ref} speakers in the reference and {n_hyp} in the hypothesis; "
            f"cpwer and tcpwer map at most {MAX_SPEAKERS}, so check the labels, or score wer"
        )


def _check_streams(session_id: str, n_segments: int, streams: Mapping[str, str]) -> None:
    where = f"session {quote(session_id)}: {len(streams)} speakers in the hypothesis"
    if len(streams) > MAX_STREAMS:
        raise ValueError(f"{where}; orcwer takes at most {MAX_STREAMS}, so check the labels, or score cpwer")
    n_cells = n_segments * math.prod(len(text.split()) + 1 for text in streams.values())
    if n_cells > MAX_ORC_CELLS:
        raise ValueError(
            f"{where} with so many words that orcwer would need {n_cells:.1e} cells, which is too much "
            f"(at most {MAX_ORC_CELLS:.0e}); score cpwer or tcpwer, or shorter sessions"
        )


def count_speakers(segments: Sequence[Segment]) -> int:
    return len({segment.speaker for segment in segments})
