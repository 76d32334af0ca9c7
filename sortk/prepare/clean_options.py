"""Settings of stage 2, and the filler words of each language."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sortk.options import Options, option

# fmt: off
FILLERS = {
    "en": ("ah", "aha", "eh", "er", "erm", "hm", "hmm", "huh", "mhm", "mm", "mm-hm", "mm-hmm", "mmm", "oh", "ok",
           "okay", "right", "so", "uh", "uh-huh", "uhuh", "um", "well", "yeah", "yep", "yup"),
    "de": ("ach", "ah", "also", "genau", "hm", "hmm", "ja", "mhm", "na", "oh", "okay", "so", "ä", "äh", "ähm", "öh"),
    "es": ("ah", "ajá", "bueno", "eh", "em", "este", "hm", "mm", "oh", "pues", "sí", "vale"),
    "fr": ("ah", "bah", "ben", "bon", "eh", "euh", "hein", "hm", "hum", "mm", "oh", "ok", "ouais", "oui", "voilà"),
    "zh": ("呃", "哎", "哦", "啊", "喔", "嗯", "噢", "对", "是", "那个", "额"),
}
# fmt: on


@dataclass(frozen=True)
class CleanOptions(Options):
    """Settings of cleaning; the defaults are the paper's where it gives one."""

    check_audio: bool = True  # false: the audio need not be on this machine, if the manifest has the durations
    sad: Literal["silero", "none"] = "silero"  # what refines the annotation; none keeps it
    # Probability of speech; this and the next three are silero-vad's own defaults.
    sad_threshold: float = option(0.5, above=0, below=1)
    sad_min_speech_seconds: float = option(0.25, at_least=0)  # shorter speech is ignored
    sad_min_silence_seconds: float = option(0.1, at_least=0)  # shorter silence does not end speech
    sad_pad_seconds: float = option(0.03, at_least=0)  # speech is widened by this on both sides
    diarizer_threshold: float = option(0.5, above=0, below=1)  # posterior from which on a speaker is active
    outward_seconds: float = option(0.1, at_least=0)  # a boundary moves outward at most by this much
    max_speakers: int = option(4, at_least=1)  # in a window or a sample
    window_max_seconds: float = 90.0  # of a diarization window
    window_min_seconds: float = option(10.0, at_least=0)  # left for the last window of a longer recording
    # Before the limit, in which the best place to cut is looked for.
    window_search_seconds: float = option(10.0, at_least=0)
    sample_min_seconds: float = option(10.0, above=0)  # of an MS-ASR sample
    sample_max_seconds: float = 20.0
    max_edge_overlap_seconds: float = option(1.0, at_least=0)  # longer overlap at the beginning or end drops a sample
    # Overlap so close to the first or last speech is at the beginning or end.
    edge_seconds: float = option(0.5, at_least=0)
    # Corpora, or sets, whose annotation is refined by `sad` and `diarizer`; empty: all.
    refine: tuple[str, ...] = option((), hash_only_if_set=True)
    # A trained diarizer, folder or .nemo, whose posteriors refine the annotation, too.
    diarizer: str = option("", hash_only_if_set=True)
    # Corpus, or set -> samples that are drawn from it for asr/; others give all that they have.
    max_samples: dict[str, int] = option(default_factory=dict, at_least=1, hash_only_if_set=True)
    max_filler_words: int = option(2, at_least=0)  # so few of them, and nothing else, drop a sample that they open
    filler_lang: str = ""  # which of the following lists counts; empty: the one of the transcripts' language
    fillers: dict[str, tuple[str, ...]] = option(default_factory=lambda: dict(FILLERS))  # by language, lower case

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(
            self.window_min_seconds + self.window_search_seconds < self.window_max_seconds,
            f"window_max_seconds ({self.window_max_seconds}) must exceed window_min_seconds + window_search_seconds "
            f"({self.window_min_seconds} + {self.window_search_seconds})",
        )
        _require(
            self.sample_min_seconds <= self.sample_max_seconds,
            f"sample_min_seconds must be at most sample_max_seconds ({self.sample_max_seconds:g}), "
            f"got {self.sample_min_seconds:g}",
        )
        known = ", ".join(sorted(self.fillers)) or "none"
        known_lang = self.filler_lang in ("", *self.fillers)
        _require(known_lang, f"no fillers for language {self.filler_lang!r}, only for {known}")

    def find_fillers(self, transcript_lang: str) -> frozenset[str]:
        """The fillers for transcripts in a language such as de_DE; empty, so that no rule applies, without a list."""
        return frozenset(self.fillers.get(self.filler_lang or transcript_lang[:2].lower(), ()))


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise ValueError(sentence)
