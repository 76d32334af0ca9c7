"""Settings of training, for both models. Nothing heavy is imported here, so that a recipe can be read without torch.

What a model needs that starts from random weights on little data is not the paper's: `optimizer = "muon"`,
`encoder_warmup`, `global_speakers`, `speaker_weight`, `layer_weight`, `word_weight`, `alignment_weight`,
`kernel_scale`, `keep_norm` and `label_smoothing`. All of it is off by default. `small_scale.py` and `optimizer.py` have
the code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sortk.formats.files import quote
from sortk.formats.sst import Level
from sortk.options import Options, option

PAPER_SPEAKERS = 4  # K
MAX_SPEAKERS = 20


@dataclass(frozen=True)
class BatchLimit:
    """How large a batch of one process is: a number of samples, or seconds of padded audio."""

    samples: int = 0
    seconds: float = 0.0

    def allows(self, n_samples: int, longest: float) -> bool:
        """Return whether so many samples, the longest of `longest` seconds, are not too many."""
        return n_samples <= self.samples if self.samples else n_samples * longest <= self.seconds

    def times(self, n: int) -> BatchLimit:
        return BatchLimit(self.samples * n, self.seconds * n)


@dataclass(frozen=True)
class LoopOptions(Options):
    """How a model is trained; the defaults are the paper's (section "Training Setup") unless the comment says so."""

    steps: int = option(100_000, at_least=1)  # updates of the weights
    optimizer: Literal["adamw", "muon"] = "adamw"  # muon: fewer steps from random weights
    learning_rate: float = option(1e-4, above=0)  # the highest, after the warm-up
    min_learning_rate: float = 1e-6
    warmup_steps: int = 2500
    annealing: Literal["inverse_sqrt", "cosine"] = "inverse_sqrt"
    weight_decay: float = 1e-3
    clip_norm: float = 1.0  # gradients are scaled down to this norm, an addition to the paper; 0: never
    # A batch of each process is limited by samples or by seconds of padded audio, not both. Neither: the paper's number
    # of samples, 4 for the diarizer and 64 for the ASR.
    batch_size: int = option(0, at_least=0, hash_only_if_set=True)
    batch_seconds: float = option(0.0, at_least=0, hash_only_if_set=True)
    accumulate: int = option(1, at_least=1)  # batches in an update
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    validate_every: int = option(1000, at_least=1)  # steps
    checkpoint_every: int = option(1000, at_least=1)
    log_every: int = option(10, at_least=1)
    # How many of the best checkpoints are averaged at the end, an addition to the paper; 1: only the best is used.
    keep_best: int = option(3, at_least=1)
    patience: int = 0  # validations without a better score before it stops early; 0: never
    freeze: tuple[str, ...] = ()  # parts of the model that do not learn, such as "encoder"
    workers: int = 0  # processes that load batches; 0: this one
    compile: bool = False  # torch.compile
    shard: bool = False  # several processes share weights and optimiser state (FSDP2): for models that fill a GPU
    # Updates whose loss or gradients are not finite are skipped, and their examples are named; training stops after
    # this many in a row. 1: at the first; 0: after 10.
    max_bad_updates: int = option(0, at_least=0, hash_only_if_set=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size and self.batch_seconds:
            raise ValueError(
                f"batch_size ({self.batch_size} samples) and batch_seconds ({self.batch_seconds:g} s) are both set; "
                "exactly one of them is used, so set the other to 0"
            )
        if self.shard and (self.optimizer == "muon" or self.precision == "float16" or self.compile):
            raise ValueError('shard requires optimizer = "adamw", precision float32 or bfloat16, and compile = false')


def check_phases(names: Sequence[str], init: str, warms_up: bool = False) -> None:
    """Raise ValueError unless phases have different names; there may be none if `init` is taken as it is, or if the
    encoder warm-up is all that is wanted."""
    if len(set(names)) < len(names):
        raise ValueError(f"phases need different names, not {', '.join(names)}")
    if not names and not init and not warms_up:
        raise ValueError("there are no phases, so init must name the model to take as it is")


@dataclass(frozen=True)
class PhaseOptions(Options):
    """A stretch of training with its own data and schedule; the paper has two, pretraining and fine-tuning."""

    name: str = "train"  # of the phase, and of its folder
    recorded: bool = True  # learn from the training manifest
    # Share of examples simulated on the fly, from the sources of stage 1.
    simulated: float = option(0.0, at_least=0, at_most=1)
    seconds: float = 90.0  # longest window of a session, and length of a simulated one
    # Train on a random window of this length of each simulated session; it cuts turns off, as windows of a recording
    # do. 0: the complete session.
    window_seconds: float = option(0.0, at_least=0, hash_only_if_set=True)
    min_speakers: int = 2  # of a simulated session
    max_speakers: int = 4
    speeds: tuple[float, ...] = (1.0,)  # playback speeds of speakers in simulated sessions
    loop: LoopOptions = option(default_factory=LoopOptions)

    paper_batch_size = 4  # samples; not an option

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.recorded and self.simulated == 0:
            raise ValueError(f"phase {quote(self.name)} has nothing to learn from: neither recorded nor simulated")
        if not self.name or not self.name.replace("-", "").replace("_", "").isalnum():
            raise ValueError(f"{quote(self.name)} cannot be the name of a phase")
        if self.window_seconds > self.seconds:
            raise ValueError(f"window_seconds must be at most seconds ({self.seconds:g}), got {self.window_seconds:g}")

    @property
    def batch_limit(self) -> BatchLimit:
        """The size of a batch: the loop's, or the paper's."""
        if self.loop.batch_seconds:
            return BatchLimit(seconds=self.loop.batch_seconds)
        return BatchLimit(samples=self.loop.batch_size or self.paper_batch_size)

    @property
    def audio_hours(self) -> float:
        """Hours of audio in all batches of one process: updates times the size of a batch."""
        per_batch = self.batch_limit.seconds or self.batch_limit.samples * self.seconds
        return self.loop.steps * self.loop.accumulate * per_batch / 3600


# ---------------------------------------------------------------------------------------------------------------------
# The diarizer


@dataclass(frozen=True)
class DiarPhaseOptions(PhaseOptions):
    """A phase of the diarizer."""

    # Weight of an additional loss, naming the speakers, at the start of the phase and at its end. Not in the paper.
    speaker_weight: float = option(0.0, at_least=0)
    final_speaker_weight: float = option(0.0, at_least=0, hash_only_if_set=True)
    # Weight of the mean loss of the Transformer's lower layers, which then also learn to diarize. Not in the paper.
    layer_weight: float = option(0.0, at_least=0, hash_only_if_set=True)


WARMUP = "encoder-warmup"


@dataclass(frozen=True)
class WarmupPhase(DiarPhaseOptions):
    """The phase that WarmupOptions describes: naming speakers is its only task."""

    name: str = WARMUP


@dataclass(frozen=True)
class WarmupOptions(Options):
    """Not the paper's. Before the first phase, the lower half of the encoder learns to distinguish voices, by naming
    the speakers of the training data. It replaces a pretrained encoder (the paper's NEST) where there is none."""

    steps: int = 0  # 0: none, as in the paper
    optimizer: Literal["adamw", "muon"] = "adamw"
    learning_rate: float = 1.5e-3
    warmup_steps: int = 30
    batch_seconds: float = 60.0
    seconds: float = 8.0  # length of a window
    simulated: float = 1.0  # share of examples that are simulated on the fly
    speeds: tuple[float, ...] = (1.0,)  # as in a phase
    # A file with a teacher's embeddings of all voices (recipes/small/teacher.py): frames learn to resemble them.
    # Empty: a vector for each voice is learned.
    teacher: str = option("", hash_only_if_set=True)

    def as_phase(self) -> WarmupPhase:
        loop = LoopOptions(
            steps=self.steps,
            optimizer=self.optimizer,
            learning_rate=self.learning_rate,
            warmup_steps=self.warmup_steps,
            batch_seconds=self.batch_seconds,
            validate_every=self.steps,
            checkpoint_every=100,
            keep_best=1,
        )
        return WarmupPhase(
            recorded=self.simulated < 1, simulated=self.simulated, seconds=self.seconds, speeds=self.speeds, loop=loop
        )


@dataclass(frozen=True)
class TrainDiarOptions(Options):
    """What the diarizer is, and how it learns; the defaults are the paper's."""

    # The others are the systems that Table 1 compares with.
    model: Literal[
        "sortformer", "eend-sa", "eend-eda", "aed-eend", "aed-eend-ee", "eend-gla", "eend-vc", "wavlm-eend-vc"
    ] = "sortformer"
    # Sortformer: base has 123M parameters, tiny 1.9M. The others: base (as published), compact (2M), tiny (0.1M).
    size: Literal["tiny", "tiny-no-positions", "compact", "small", "base"] = "base"
    # K, the number of outputs; 0: as in the initial model, or 4.
    n_speakers: int = option(0, at_least=0, at_most=MAX_SPEAKERS, hash_only_if_set=True)
    # L = alpha Sort + (1 - alpha) PIL: 1 is Sort Loss alone, 0 PIL alone.
    alpha: float = option(0.5, at_least=0, at_most=1)
    # A name means the same person in all sessions of the training data. Not in the paper; needed to name speakers.
    global_speakers: bool = False
    validation_seconds: float = 90.0  # longest window of a session of the validation manifest
    encoder_warmup: WarmupOptions = option(default_factory=WarmupOptions)
    phases: tuple[DiarPhaseOptions, ...] = (DiarPhaseOptions(),)  # empty: `init` as it is, or the warm-up alone
    # Added to the seed of the recipe: other initial weights and batches, the same data.
    seed_offset: int = option(0, hash_only_if_set=True)
    # In a recipe: the model (folder, .nemo file or name) to start from, with its sizes; may be only an encoder (NEST).
    init: str = option("", hash_only_if_set=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_phases([phase.name for phase in self.phases], self.init, self.encoder_warmup.steps > 0)
        if self.encoder_warmup.steps and any(phase.name == WARMUP for phase in self.phases):
            raise ValueError(f"phase {WARMUP!r} has the name of the encoder warm-up; give the phase another name")
        if self.encoder_warmup.steps and not self.global_speakers:
            raise ValueError("encoder_warmup names speakers, so it needs global_speakers = true")
        if self.model in ("eend-vc", "wavlm-eend-vc") and not self.global_speakers:
            raise ValueError(f"{self.model} learns a vector for each speaker, so it needs global_speakers = true")

    @property
    def audio_hours(self) -> float:
        """Hours of audio in all batches of one process, those of the encoder warm-up included."""
        warmup = self.encoder_warmup.as_phase().audio_hours if self.encoder_warmup.steps else 0.0
        return warmup + sum(phase.audio_hours for phase in self.phases)

    def describe(self) -> str:
        """Return the name of a row in Table 1."""
        if self.model != "sortformer":
            return self.model.upper()
        loss = {0.0: "PIL", 1.0: "Sort Loss"}.get(self.alpha, f"hybrid loss, alpha {self.alpha:g}")
        return f"Sortformer, {loss}"


# ---------------------------------------------------------------------------------------------------------------------
# The multi-speaker ASR


def paper_asr_loop() -> LoopOptions:
    """Return the settings with which the paper trains Canary-170M."""
    return LoopOptions(steps=50_000, learning_rate=3e-4)


@dataclass(frozen=True)
class AsrPhaseOptions(PhaseOptions):
    """A phase of the ASR.

    From scratch, a short phase of one speaker at a time comes first (min_speakers = max_speakers = 1, simulated = 1):
    it replaces the pretrained ASR that the paper starts from.
    """

    seconds: float = 20.0  # length of a simulated example
    loop: LoopOptions = option(default_factory=paper_asr_loop)
    min_seconds: float = 0.0  # of the shortest simulated example; 0: all are as long
    # Weight of an additional loss that predicts the token spoken in each frame. Not in the paper.
    word_weight: float = option(0.0, at_least=0)
    # Weight of an additional loss: a head of each upper decoder layer attends to the word that comes next. Not in the
    # paper.
    alignment_weight: float = option(0.0, at_least=0, hash_only_if_set=True)

    paper_batch_size = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.min_seconds <= self.seconds:
            raise ValueError(f"min_seconds must be from 0 to seconds ({self.seconds:g}), got {self.min_seconds:g}")


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
class TrainAsrOptions(Options):
    """What the multi-speaker ASR is, and how it learns; the defaults are the paper's system 2."""

    # Size of an ASR that starts from random weights.
    size: Literal["tiny", "small", "33m", "136m", "180m-flash", "1b"] = "180m-flash"
    supervision: Literal["none", "frozen", "finetuned", "truth"] = "frozen"  # systems 1, 2, 3 and 4 of Table 2
    # K; 0: as in the diarizer or the initial model, or 4.
    n_speakers: int = option(0, at_least=0, at_most=MAX_SPEAKERS, hash_only_if_set=True)
    speaker_tokens: bool = True  # false: words alone, a single-speaker ASR (the baseline of Table 2)
    kernel: Literal["sinusoidal", "learned"] = "sinusoidal"
    kernel_scale: float = 1.0  # of the kernels relative to the states; the paper: 1
    keep_norm: bool = False  # states keep their norm; the paper: they have norm 1
    # Bottleneck of adapters, with everything else frozen (systems 5 and 6: 256); 0: none.
    adapters: int = option(0, at_least=0)
    label_smoothing: float = option(0.0, at_least=0, below=1)  # of the cross-entropy; the paper: none
    n_tokens: int = option(1024, at_least=1)  # size of a tokenizer trained on the transcripts
    validation_samples: int = option(200, at_least=1)  # how many of the validation manifest are decoded
    phases: tuple[AsrPhaseOptions, ...] = (AsrPhaseOptions(),)  # empty: `init` is not trained
    # Added to the seed of the recipe: other initial weights and batches, the same data.
    seed_offset: int = option(0, hash_only_if_set=True)
    init: str = option("", hash_only_if_set=True)  # in a recipe: the ASR to start from, as for train_diar

    def __post_init__(self) -> None:
        super().__post_init__()
        check_phases([phase.name for phase in self.phases], self.init)

    @property
    def audio_hours(self) -> float:
        """Hours of audio in all batches of one process."""
        return sum(phase.audio_hours for phase in self.phases)

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
