"""Word times against true ones, and the speed of stages 3 and 4.

    python tests/bench/bench_timestamps.py [WORDS ...]

True word times come from espeak-ng (sentences of stage 0, and of LibriSpeech and speechocean if they are in ../shared)
and from AudioMNIST (digits of a speaker in a row, each from where its sound starts to where it ends). WORDS are further
SegLST files or folders with one entry per word, for example of AMI. The first word of a segment starts with it by any
rule and is not counted.
"""

from __future__ import annotations

import itertools
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import get_args

from sortk.corpora.espeak import EspeakSpeaker, all_speakers, open_synthesizer
from sortk.corpora.sentences import make_sentence
from sortk.formats import seglst, sources
from sortk.formats.files import files_in
from sortk.formats.sst import build_sst, join_words
from sortk.prepare.sst import write_sst
from sortk.prepare.syllables import WordRule, approximate_word_times, weigh_word
from sortk.prepare.timestamps import TimestampOptions, time_words, write_timestamps
from sortk.records import Segment, Word

SHARED = Path(__file__).parents[3] / "shared" / "data"
RULES: tuple[WordRule, ...] = get_args(WordRule)
N_VOICES, SENTENCES_PER_VOICE = 12, 60
MIN_WORDS_PER_SECOND = 200_000
WORD = re.compile(r"[a-z']+")

Truth = list[list[Word]]
"""Segments of words with their true times."""


# ---------------------------------------------------------------------------------------------------------------------
# True word times


def speak_conversation() -> Truth:
    """Sentences of stage 0, with the pauses of their punctuation."""
    sentences = (
        (speaker, make_sentence(1, speaker.name, index).spoken)
        for speaker in all_speakers()[:N_VOICES]
        for index in range(SENTENCES_PER_VOICE)
    )
    return list(speak(sentences))


def speak_corpora() -> Truth:
    """Sentences that people have read, spoken by espeak-ng."""
    texts = [
        source.text
        for corpus in ("librispeech_sub", "speechocean_sub")
        for source in sources.read(SHARED / corpus / "sources.jsonl")
    ]
    speakers = all_speakers()[:N_VOICES]
    return list(speak((speakers[index * N_VOICES // len(texts)], text) for index, text in enumerate(texts)))


def speak(sentences: Iterable[tuple[EspeakSpeaker, str]]) -> Iterator[list[Word]]:
    """The words of each sentence (speaker and text; grouped by speaker) as they are spoken."""
    for speaker, group in itertools.groupby(sentences, key=lambda sentence: sentence[0]):
        with open_synthesizer(speaker.voice, seed=1) as synthesizer:
            for _, text in group:
                found = list(WORD.finditer(text))
                speech = synthesizer.speak(text, [match.start() for match in found])
                yield [
                    Word(match[0], start / speech.sample_rate, end / speech.sample_rate)
                    for match, (start, end) in zip(found, speech.word_spans, strict=True)
                ]


def join_digits() -> Truth:
    """AudioMNIST: three to ten digits of a speaker, end to end."""
    by_speaker: dict[str, list[tuple[str, float]]] = {}
    for source in sources.read(SHARED / "audiomnist" / "sources.jsonl"):
        seconds = (source.speech_end or source.duration) - (source.speech_start or 0.0)
        by_speaker.setdefault(source.speaker, []).append((source.text, seconds))
    rng = Random(0)
    segments = []
    for digits in by_speaker.values():
        rng.shuffle(digits)
        while digits:
            taken = [digits.pop() for _ in range(min(rng.randint(3, 10), len(digits)))]
            edges = list(itertools.accumulate((seconds for _, seconds in taken), initial=0.0))
            spans = itertools.pairwise(edges)
            segments.append([Word(text, *span) for (text, _), span in zip(taken, spans, strict=True)])
    return segments


def read_words(path: Path) -> Truth:
    """SegLST of words: those of a speaker with less than half a second between them are a segment."""
    by_session: dict[str, list[Segment]] = {}
    for file in files_in(path, ".json"):
        for word in seglst.read(file, zero_duration="keep"):
            by_session.setdefault(word.session_id, []).append(word)
    segments = []
    for words in by_session.values():
        by_speaker: dict[str, list[Segment]] = {}
        for word in sorted(words, key=lambda word: word.start):
            by_speaker.setdefault(word.speaker, []).append(word)
        for own in by_speaker.values():
            remaining = iter(own)
            for segment in join_words(own, 0.5):
                taken = itertools.islice(remaining, len(segment.text.split()))
                segments.append([Word(word.text, word.start, word.end) for word in taken])
    return segments


# ---------------------------------------------------------------------------------------------------------------------
# Errors


def measure_errors(segments: Truth, rule: WordRule) -> list[float]:
    """Absolute errors of word starts, in seconds."""
    errors = []
    for words in segments:
        texts = [word.text for word in words]
        guessed = approximate_word_times(texts, words[0].start, words[-1].end, rule=rule)
        errors += [abs(guess.start - word.start) for guess, word in zip(guessed[1:], words[1:], strict=True)]
    return errors


def print_errors(truths: dict[str, Truth]) -> bool:
    """The table; whether the default rule has the lowest error everywhere."""
    print("median error of word starts, ms (and over that of the paper's rule)")
    print(f"{'':28}{'words':>8}" + "".join(f"{rule:>18}" for rule in RULES))
    best = True
    for name, segments in truths.items():
        medians = {rule: 1000 * statistics.median(measure_errors(segments, rule)) for rule in RULES}
        ratios = {rule: median / medians["hyphenation"] for rule, median in medians.items()}
        cells = "".join(f"{medians[rule]:>10.1f} ({ratios[rule]:.2f}) " for rule in RULES)
        print(f"{name:28}{sum(map(len, segments)):>8}{cells}")
        best = best and min(medians, key=lambda rule: medians[rule]) == RULES[0]
    return best


# ---------------------------------------------------------------------------------------------------------------------
# Speed


def make_sessions(n_sessions: int, n_segments: int) -> list[list[Segment]]:
    """Conversations of four speakers, with overlap, from the sentences of stage 0."""
    sessions = []
    for session in range(n_sessions):
        segments, start = [], 0.0
        for index in range(n_segments):
            text = make_sentence(2, f"s{session}", index).text
            end = start + 0.35 * len(text.split())
            segments.append(Segment(f"session{session}", f"speaker{index * 7 % 4}", start, end, text))
            start = end - 0.2
        sessions.append(segments)
    return sessions


def print_speed(sessions: Sequence[Sequence[Segment]]) -> bool:
    """Words per second and core, in memory and with files; whether the first is high enough."""
    options = TimestampOptions()
    n_words = sum(len(segment.text.split()) for segments in sessions for segment in segments)
    seconds = []
    for _ in range(5):
        weigh_word.cache_clear()  # every round counts the vocabulary anew
        began = time.process_time()
        for segments in sessions:
            build_sst(time_words(segments, options))
        seconds.append(time.process_time() - began)
    in_memory = n_words / min(seconds)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for segments in sessions:
            seglst.write(folder / "in" / f"{segments[0].session_id}.json", segments)
        began = time.process_time()
        write_timestamps(folder / "in", folder / "words")
        write_sst(folder / "words", folder / "sst.jsonl")
        with_files = n_words / (time.process_time() - began)
    print(
        f"timestamps + sst, {n_words} words: {in_memory:,.0f} words per second and core; with files {with_files:,.0f}"
    )
    return in_memory >= MIN_WORDS_PER_SECOND


def main() -> int:
    truths = {"espeak-ng, stage 0": speak_conversation()}
    if SHARED.is_dir():
        truths |= {"espeak-ng, read sentences": speak_corpora(), "AudioMNIST, digits in a row": join_digits()}
    truths |= {path: read_words(Path(path)) for path in sys.argv[1:]}
    lowest = print_errors(truths)
    fast = print_speed(make_sessions(100, 300))
    print(f"default rule lowest everywhere: {lowest}; at least {MIN_WORDS_PER_SECOND:,} words per second: {fast}")
    return 0 if lowest and fast else 1


if __name__ == "__main__":
    sys.exit(main())
