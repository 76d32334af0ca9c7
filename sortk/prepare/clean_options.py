"""Settings of stage 2, and the filler words of each language."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sortk.records import LATER

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
class CleanOptions:
    """Settings of cleaning; the defaults are the paper's where it gives one."""

    check_audio: bool = True  # false: the audio need not be on this machine, if the manifest has the durations
    sad: Literal["silero", "none"] = "silero"  # what refines the annotation; none keeps it
    sad_threshold: float = 0.5  # probability of speech; this and the next three are silero-vad's own defaults
    sad_min_speech_seconds: float = 0.25  # shorter speech is ignored
    sad_min_silence_seconds: float = 0.1  # shorter silence does not end speech
    sad_pad_seconds: float = 0.03  # speech is widened by this on both sides
    diarizer_threshold: float = 0.5  # posterior from which on a diarizer hears a speaker
    outward_seconds: float = 0.1  # a boundary moves outward at most by this much
    max_speakers: int = 4  # in a window or a sample
    window_max_seconds: float = 90.0  # of a diarization window
    window_min_seconds: float = 10.0  # left for the last window of a longer recording
    window_search_seconds: float = 10.0  # before the limit, in which the best place to cut is looked for
    sample_min_seconds: float = 10.0  # of an MS-ASR sample
    sample_max_seconds: float = 20.0
    max_edge_overlap_seconds: float = 1.0  # longer overlap at the beginning or end drops a sample
    edge_seconds: float = 0.5  # overlap so close to the first or last speech is at the beginning or end
    # Corpora, or sets, whose annotation is refined by `sad` and `diarizer`; empty: all.
    refine: tuple[str, ...] = field(default=(), metadata=LATER)
    diarizer: str = field(default="", metadata=LATER)  # a trained one, folder or .nemo, whose posteriors refine as well
    # Corpus, or set -> samples that are drawn from it for asr/; others give all that they have.
    max_samples: dict[str, int] = field(default_factory=dict, metadata=LATER)
    max_filler_words: int = 2  # so few of them, and nothing else, drop a sample that they open
    filler_lang: str = ""  # which of the following lists counts; empty: the one of the transcripts' language
    fillers: dict[str, tuple[str, ...]] = field(default_factory=lambda: dict(FILLERS))  # by language, lower case

    def __post_init__(self) -> None:
        _require(self.sad in ("silero", "none"), f"sad must be silero or none, not {self.sad!r}")
        for name in ("sad_threshold", "diarizer_threshold"):
            _require(0 < getattr(self, name) < 1, f"{name} must lie between 0 and 1, not {getattr(self, name)}")
        for name in vars(self):
            if name.endswith("_seconds"):
                _require(getattr(self, name) >= 0, f"{name} must not be negative, but it is {getattr(self, name)}")
        _require(self.max_speakers >= 1, f"max_speakers must be at least 1, not {self.max_speakers}")
        _require(
            self.window_min_seconds + self.window_search_seconds < self.window_max_seconds,
            f"window_max_seconds ({self.window_max_seconds}) must exceed window_min_seconds + window_search_seconds "
            f"({self.window_min_seconds} + {self.window_search_seconds})",
        )
        _require(
            0 < self.sample_min_seconds <= self.sample_max_seconds,
            f"samples must be a range such as 10-20 s, not {self.sample_min_seconds}-{self.sample_max_seconds}",
        )
        _require(
            self.max_filler_words >= 0, f"max_filler_words must not be negative, but it is {self.max_filler_words}"
        )
        for name, count in self.max_samples.items():
            _require(count >= 1, f"max_samples.{name} must be 1 or more, got {count}")
        known = ", ".join(sorted(self.fillers)) or "none"
        known_lang = self.filler_lang in ("", *self.fillers)
        _require(known_lang, f"no fillers for language {self.filler_lang!r}, only for {known}")

    def find_fillers(self, transcript_lang: str) -> frozenset[str]:
        """The fillers for transcripts in a language such as de_DE; empty, so that no rule applies, without a list."""
        return frozenset(self.fillers.get(self.filler_lang or transcript_lang[:2].lower(), ()))


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise ValueError(sentence)
