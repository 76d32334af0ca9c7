"""Synthetic speech without a download: the voices of espeak-ng speak sentences from a grammar.

A speaker is a voice variant with an accent, a pitch and a rate. Word times come from the synthesizer and are exact.

    flac/<speaker>.flac       all utterances of a speaker, end to end
    speakers/<speaker>.jsonl  their sources; written last: when it is there, the speaker is complete
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from sortk.corpora.sentences import Sentence, make_sentence
from sortk.corpora.splits import TEST, TRAIN, VALID, stable_random
from sortk.corpora.synthesizer import EspeakVoice, Speech, open_synthesizer
from sortk.formats import audio, sources
from sortk.options import Options, option
from sortk.records import SAMPLE_RATE, RunJobs, Source, Word

LEVEL_DB = -26.0  # of the words of a speaker, below full scale

# The variants of espeak-ng that sound like people and unlike each other. Left out are
# - whispering and croaking, with less than 30 % periodic speech: whisper, whisperf, croak, grandpa;
# - robots and effects: robosoft*, UniRobot, anikaRobot, announcer, RicishayMax*, Demonic, Marco, fast;
# - the Klatt synthesizers, some of which draw noise that cannot be seeded: klatt*, Reed, adam, caleb, david, ...;
# - vocal tracts that no adult has: zac, ian, travis, kaukovalta, boris, Lee, Jacky, Andy, AnxiousAndy, Tweaky;
# - near copies: less than about 2.6 dB (root mean square over 40 mel bands) from the mean spectrum of one that is here.
FEMALE_VARIANTS = (
    "f1", "Annie", "f3", "f4", "Andrea", "f2", "steph",
    "Alicia", "belinda", "f5", "anika", "grandma", "shelby", "linda",
)  # fmt: skip
MALE_VARIANTS = (
    "m3", "m1", "m7", "m5", "m8", "michel", "sandro",
    "pablo", "Mario", "pedro", "Storm", "iven2", "norbert", "gustave",
    "quincy", "Hugo", "paul", "victor", "ed", "robert", "antonio",
)  # fmt: skip

# Of each row of seven above: a variant is in one split only, so that test voices are new in every respect.
SPLIT_OF_COLUMN = (TRAIN, VALID, TEST, TRAIN, TRAIN, TRAIN, TRAIN)

# Every variant speaks at each of these pitches, as so many speakers.
FEMALE_PITCHES = (46, 24, 66)
MALE_PITCHES = (36, 64)

# "en" is British English; under its other name, en-gb, espeak-ng ignores the variant.
ACCENTS = (
    "en-us", "en", "en-gb-scotland", "en-gb-x-rp", "en-029", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-us-nyc",
)  # fmt: skip
MELODIES = ((6, 60), (-6, 40), (0, 50))  # what is added to the pitch, and the pitch range; by variant
RATES = (155, 175, 165)  # words per minute


@dataclass(frozen=True)
class EspeakOptions(Options):
    """How much synthetic speech to make."""

    # Up to 84, women and men in turn; with 6 or more, every split has a woman and a man.
    speakers: int = option(84, at_least=1, at_most=84)
    utterances_per_speaker: int = option(60, at_least=1)  # about 2.1 s each
    # Of each rule of the grammar, the first so many alternatives: 4 leave 132 words. None: all, 529 words.
    alternatives: int | None = option(None, at_least=2, hash_only_if_set=True)


@dataclass(frozen=True, slots=True)
class EspeakSpeaker:
    """One speaker of the table."""

    name: str
    gender: str
    split: str
    voice: EspeakVoice


def all_speakers() -> list[EspeakSpeaker]:
    """Return the table of speakers: women and men in turn, every variant once before any is repeated."""
    women = _speakers_of("f", FEMALE_VARIANTS, FEMALE_PITCHES)
    men = _speakers_of("m", MALE_VARIANTS, MALE_PITCHES)
    return [speaker for pair in zip(women, men, strict=True) for speaker in pair]


def _speakers_of(gender: str, variants: Sequence[str], pitches: Sequence[int]) -> list[EspeakSpeaker]:
    speakers = []
    for take, pitch in enumerate(pitches):
        for index, variant in enumerate(variants):
            # A variant changes its accent with its pitch. The melody stays: a wide range also raises the mean pitch.
            accent = ACCENTS[(index + 3 * take) % len(ACCENTS)]
            pitch_offset, pitch_range = MELODIES[index % len(MELODIES)]
            voice = EspeakVoice(accent, variant, pitch + pitch_offset, pitch_range, RATES[(index + take) % len(RATES)])
            split = SPLIT_OF_COLUMN[index % len(SPLIT_OF_COLUMN)]
            speakers.append(EspeakSpeaker(f"{variant.lower()}-{accent}", gender, split, voice))
    return speakers


def prepare(options: EspeakOptions, out_dir: Path, seed: int, run_jobs: RunJobs) -> list[Source]:
    """Synthesize every utterance that does not exist yet; a job is one speaker."""
    synthesize = partial(synthesize_speaker, options=options, seed=seed, out_dir=out_dir)
    parts = run_jobs(synthesize, all_speakers()[: options.speakers])
    return [source for part in parts for source in sources.read(part)]


def synthesize_speaker(speaker: EspeakSpeaker, options: EspeakOptions, seed: int, out_dir: Path) -> Path:
    """Write one speaker's audio and sources, unless they exist; return the path of the sources."""
    sources_path = out_dir / "speakers" / f"{speaker.name}.jsonl"
    audio_path = out_dir / "flac" / f"{speaker.name}.flac"
    if not sources_path.exists():
        samples, utterances = _speak_utterances(speaker, options, seed, audio_path)
        audio.write_flac(audio_path, samples, SAMPLE_RATE)
        sources.write(sources_path, utterances)
    return sources_path


def _speak_utterances(
    speaker: EspeakSpeaker, options: EspeakOptions, seed: int, audio_path: Path
) -> tuple[audio.Samples, list[Source]]:
    blocks: list[audio.Samples] = []
    utterances: list[Source] = []
    n_before = 0
    with open_synthesizer(speaker.voice, stable_random(seed, speaker.name).getrandbits(31)) as synthesizer:
        for index in range(options.utterances_per_speaker):
            sentence = make_sentence(seed, speaker.name, index, options.alternatives)
            speech = synthesizer.speak(sentence.spoken, sentence.word_positions)
            block = _resample(speech)
            name = f"{speaker.name}-{index:04d}"
            utterances.append(
                _source(speaker, name, sentence, speech, path=audio_path, n_before=n_before, n_samples=len(block))
            )
            blocks.append(block)
            n_before += len(block)
    return _set_level(np.concatenate(blocks), utterances), utterances


def _source(
    speaker: EspeakSpeaker,
    name: str,
    sentence: Sentence,
    speech: Speech,
    *,
    path: Path,
    n_before: int,
    n_samples: int,
) -> Source:
    # A tenth of a millisecond is as fine as the resampled signal can show.
    words = tuple(
        Word(text, round(start / speech.sample_rate, 4), round(end / speech.sample_rate, 4))
        for text, (start, end) in zip(sentence.words, speech.word_spans, strict=True)
    )
    return Source(
        utterance_id=name,
        audio_path=path,
        offset=n_before / SAMPLE_RATE,
        duration=n_samples / SAMPLE_RATE,
        speaker=speaker.name,
        text=sentence.text,
        words=words,
        speech_start=words[0].start,
        speech_end=words[-1].end,
        gender=speaker.gender,
        split=speaker.split,
    )


def _resample(speech: Speech) -> audio.Samples:
    """Return the samples at 16 kHz: 22050 * 320 / 441 = 16000."""
    from scipy.signal import resample_poly  # noqa: PLC0415  (takes a second to import)

    divisor = math.gcd(SAMPLE_RATE, speech.sample_rate)
    scaled = speech.samples.astype(np.float32) / np.float32(32768)
    resampled = resample_poly(scaled, SAMPLE_RATE // divisor, speech.sample_rate // divisor)
    return resampled.astype(np.float32, copy=False)


def _set_level(samples: audio.Samples, utterances: Sequence[Source]) -> audio.Samples:
    """Apply one gain to all utterances of a speaker: variants differ by 15 dB, people in one room do not."""
    times = [(source.offset + w.start, source.offset + w.end) for source in utterances for w in source.words]
    spoken = np.concatenate([samples[round(start * SAMPLE_RATE) : round(end * SAMPLE_RATE)] for start, end in times])
    rms = float(np.sqrt(np.mean(np.square(spoken, dtype=np.float64))))
    return samples * np.float32(10 ** (LEVEL_DB / 20) / rms)
