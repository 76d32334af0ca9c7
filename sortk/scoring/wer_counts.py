"""Word errors of one session: numbers that add up, and which speaker is taken for which.

A normaliser sees all the words that are aligned as one, so that the score does not depend on how a system cuts them
into segments: cpwer a speaker's, wer a session's, tcpwer those of an entry; orcwer an entry of the reference and a
stream of the hypothesis. meeteval's own command line normalises entry by entry.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import accumulate
from operator import attrgetter, itemgetter

from sortk.edits import (
    Assignment,
    TimedWords,
    WordErrors,
    assign_segments,
    count_edits,
    count_timed_edits,
    match_speakers,
)
from sortk.formats.files import quote
from sortk.prepare.syllables import Rule, find_word_edges
from sortk.records import Segment, arrival_order
from sortk.scoring.normalizers import Normalizer

MAX_SPEAKERS = 20  # for cpwer and tcpwer; with more, the labels are probably wrong. meeteval has the same limits
MAX_STREAMS = 10  # and for orcwer
MAX_ORC_CELLS = 200_000_000  # for one session, two or four bytes each

LANGUAGE = "en_US"
RULE: Rule = "sounds"  # how long words are, to order those of overlapping segments; as in stage 3


def count_by_speaker(
    reference: Sequence[Segment], hypothesis: Sequence[Segment], normalizer: Normalizer
) -> tuple[WordErrors, Assignment]:
    """cpwer."""
    _check_speakers(reference, hypothesis)
    sides = (_join_speakers(side, normalizer) for side in (reference, hypothesis))
    spoken, found = ({speaker: text.split() for speaker, text in side.items()} for side in sides)
    return match_speakers(spoken, found, count_edits, [])


def count_by_speaker_and_time(
    reference: Sequence[Segment], hypothesis: Sequence[Segment], normalizer: Normalizer, collar: float
) -> tuple[WordErrors, Assignment]:
    """tcpwer; words of an entry get times by their numbers of letters, which is meeteval's way."""
    _check_speakers(reference, hypothesis)
    spoken, found = _time_words(reference, normalizer), _time_words(hypothesis, normalizer, _decimal(collar))
    return match_speakers(spoken, found, count_timed_edits, TimedWords((), (), ()))


def count_by_stream(
    reference: Sequence[Segment], hypothesis: Sequence[Segment], normalizer: Normalizer
) -> tuple[WordErrors, Assignment]:
    """orcwer; the assignment has a pair per reference segment that has words, in the order of starts."""
    texts = [(segment.speaker, normalizer(segment.text).split()) for segment in _by_start(reference)]
    texts = [(speaker, words) for speaker, words in texts if words]
    joined = _join_speakers(hypothesis, normalizer)
    streams = {speaker: words for speaker, text in joined.items() if (words := text.split())}
    if not streams:
        n_words = sum(len(words) for _, words in texts)
        return WordErrors(n_words, deletions=n_words), tuple((speaker, None) for speaker, _ in texts)
    _check_streams(hypothesis[0].session_id, len(texts), streams)
    names = list(streams)
    chosen = [names[number] for number in assign_segments([words for _, words in texts], list(streams.values()))]
    given: dict[str, list[str]] = {name: [] for name in names}
    for name, (_, words) in zip(chosen, texts, strict=True):
        given[name] += words
    errors = sum((count_edits(given[name], streams[name]) for name in names), WordErrors())
    return errors, tuple(zip((speaker for speaker, _ in texts), chosen, strict=True))


def count_in_order(reference: Sequence[Segment], hypothesis: Sequence[Segment], normalizer: Normalizer) -> WordErrors:
    """wer, sorted."""
    return count_edits(_join_words(reference, normalizer).split(), _join_words(hypothesis, normalizer).split())


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


def _time_words(
    segments: Sequence[Segment], normalizer: Normalizer, collar: Decimal | None = None
) -> dict[str, TimedWords]:
    """Return the words of each speaker; with a collar, a word reaches from `collar` seconds before its centre to as
    many after it."""
    speakers: dict[str, list[tuple[str, float, float]]] = {}
    for segment in _by_start(segments):
        own = speakers.setdefault(segment.speaker, [])
        words = normalizer(segment.text).split()
        if not words:
            continue
        first, last = _decimal(segment.start), _decimal(segment.end)
        letters = [0, *accumulate(map(len, words))]
        per_letter = (last - first) / letters[-1]
        edges = [first + per_letter * n_letters for n_letters in letters] if len(words) > 1 else [first, last]
        for word, start, end in zip(words, edges[:-1], edges[1:], strict=True):
            if collar is None:
                own.append((word, float(start), float(end)))
            else:
                centre = (start + end) / 2
                own.append((word, float(centre - collar), float(centre + collar)))
    return {
        speaker: TimedWords(*(tuple(column) for column in zip(*own, strict=True))) if own else TimedWords((), (), ())
        for speaker, own in speakers.items()
    }


def _decimal(seconds: float) -> Decimal:
    # meeteval computes times so, and whether a word just touches another's time depends on it.
    return Decimal(str(seconds))


def _check_speakers(reference: Sequence[Segment], hypothesis: Sequence[Segment]) -> None:
    n_ref, n_hyp = count_speakers(reference), count_speakers(hypothesis)
    if max(n_ref, n_hyp) > MAX_SPEAKERS:
        session_id = (*reference, *hypothesis)[0].session_id
        raise ValueError(
            f"session {quote(session_id)}: {n_ref} speakers in the reference and {n_hyp} in the hypothesis; "
            f"cpwer and tcpwer map at most {MAX_SPEAKERS}, so check the labels, or score wer"
        )


def _check_streams(session_id: str, n_segments: int, streams: Mapping[str, Sequence[str]]) -> None:
    where = f"session {quote(session_id)}: {len(streams)} speakers in the hypothesis"
    if len(streams) > MAX_STREAMS:
        raise ValueError(f"{where}; orcwer takes at most {MAX_STREAMS}, so check the labels, or score cpwer")
    n_cells = n_segments * math.prod(len(words) + 1 for words in streams.values())
    if n_cells > MAX_ORC_CELLS and len(streams) > 1:
        raise ValueError(
            f"{where} with so many words that orcwer would need {n_cells:.1e} cells, which is too much "
            f"(at most {MAX_ORC_CELLS:.0e}); score cpwer or tcpwer, or shorter sessions"
        )


def count_speakers(segments: Sequence[Segment]) -> int:
    return len({segment.speaker for segment in segments})
