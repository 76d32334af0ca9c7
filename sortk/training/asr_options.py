"""Settings of training the multi-speaker ASR. Nothing heavy is imported here, so that a recipe can be read without
torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sortk.formats.files import quote
from sortk.formats.sst import Level
from sortk.records import LATER
from sortk.training.options import LoopOptions, check_phases


def paper_loop() -> LoopOptions:
    """As the paper trains Canary-170M: 64 samples of up to 20 s at a time."""
    return LoopOptions(steps=50_000, learning_rate=3e-4, batch_seconds=1280.0)


@dataclass(frozen=True)
class AsrPhaseOptions:
    """A stretch of training with its own data and schedule.

    From scratch, a short phase of one speaker at a time comes first (min_speakers = max_speakers = 1, simulated = 1):
    it takes the place of the pretrained ASR that the paper starts from.
    """

    name: str = "train"  # of its folder
    recorded: bool = True  # learn from the training manifest
    simulated: float = 0.0  # share of examples that are simulated on the fly, from the sources of stage 1
    seconds: float = 20.0  # length of a simulated example
    min_seconds: float = 0.0  # of the shortest one, so that texts end where speech does; 0: all are as long
    min_speakers: int = 2  # of a simulated example
    max_speakers: int = 4
    speeds: tuple[float, ...] = (1.0,)  # at which the speakers of simulated examples are played
    word_weight: float = 0.0  # of naming, in each frame, the piece of a word that is spoken, beside writing the text
    loop: LoopOptions = field(default_factory=paper_loop)

    def __post_init__(self) -> None:
        if not 0 <= self.simulated <= 1:
            raise ValueError(f"simulated must be from 0 to 1, not {self.simulated}")
        if not self.recorded and self.simulated == 0:
            raise ValueError(f"phase {quote(self.name)} has nothing to learn from: neither recorded nor simulated")
        if not 0 <= self.min_seconds <= self.seconds:
            raise ValueError(f"min_seconds must be from 0 to seconds ({self.seconds:g}), not {self.min_seconds:g}")
        if not self.word_weight >= 0:
            raise ValueError(f"word_weight must not be negative, not {self.word_weight}")
        if not self.name or not self.name.replace("-", "").replace("_", "").isalnum():
            raise ValueError(f"{quote(self.name)} cannot be the name of a phase")


# Rows of Table 2, and of Table 3 (section 5.3.2: system 2 with SOT-style tokens), by supervision, adapters and level.
ROWS = {
    ("none", "", "word"): "1",
    ("frozen", "", "word"): "2",
    ("finetuned", "", "word"): "3",
    ("truth", "", "word"): "4",
    ("frozen", "adapters", "segment"): "5",
    ("frozen", "adapters", "word"): "6",
    ("none", "", "segment"): "MS-Canary",
    ("frozen", "", "segment"): "Sortformer-MS-Canary",
    ("none", "", "sot"): "Canary trained with SOT",
    ("none", "", "dom-sot"): "Canary trained with DOM-SOT",
}


@dataclass(frozen=True)
class TrainAsrOptions:
    """What the multi-speaker ASR is, and how it learns; the defaults are the paper's system 2."""

    size: Literal["tiny", "180m-flash", "1b"] = "180m-flash"  # of an ASR that starts from random numbers
    supervision: Literal["none", "frozen", "finetuned", "truth"] = "frozen"  # systems 1, 2, 3 and 4 of Table 2
    n_speakers: int = 4  # K; the diarizer's if there is one
    speaker_tokens: bool = True  # false: words alone, a single-speaker ASR (the baseline of Table 2)
    kernel: Literal["sinusoidal", "learned"] = "sinusoidal"
    kernel_scale: float = 1.0  # of the kernels against the states
    keep_norm: bool = False  # states keep their norm; in the paper they have norm 1
    adapters: int = 0  # bottleneck of adapters, with everything else frozen (systems 5 and 6: 256); 0: none
    label_smoothing: float = 0.1
    n_tokens: int = 1024  # of a tokenizer that is trained on the transcripts
    validation_samples: int = 200  # of the validation manifest, the first ones: decoding takes time
    phases: tuple[AsrPhaseOptions, ...] = (AsrPhaseOptions(),)  # none: the model of `init` as it is
    init: str = field(default="", metadata=LATER)  # in a recipe: an ASR to start from, a model folder or .nemo file

    def __post_init__(self) -> None:
        if not 1 <= self.n_speakers <= 20:
            raise ValueError(f"n_speakers must be from 1 to 20, not {self.n_speakers}")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing must be from 0 to below 1, not {self.label_smoothing}")
        if self.adapters < 0 or self.n_tokens < 1 or self.validation_samples < 1:
            raise ValueError("adapters must not be negative, n_tokens and validation_samples at least 1")
        check_phases([phase.name for phase in self.phases], self.init)

    def describe(self, level: Level) -> str:
        """Return the name of a row of Table 2 or 3, for transcripts of that level; a system that the paper does not
        have gets a description alone."""
        if not self.speaker_tokens:
            return "baseline: no speaker tokens"
        row = ROWS.get((self.supervision, "adapters" if self.adapters else "", level))
        about = {
            "none": "no supervision",
            "frozen": "Sortformer, frozen",
            "finetuned": "Sortformer, fine-tuned",
            "truth": "ground truth in training",
        }[self.supervision]
        adapters = f", adapters of {self.adapters}" if self.adapters else ""
        return f"{f'{row}: ' if row else ''}{about}, {level} level{adapters}"
