"""Settings of training. Nothing heavy is imported here, so that a recipe can be read without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from sortk.formats.files import quote
from sortk.records import LATER


@dataclass(frozen=True)
class LoopOptions:
    """How a model is trained; the defaults are the paper's (section "Training Setup")."""

    steps: int = 100_000  # updates of the weights
    optimizer: Literal["adamw", "muon"] = "adamw"  # muon: fewer steps for a model that starts from nothing
    learning_rate: float = 1e-4  # its peak
    min_learning_rate: float = 1e-6
    warmup_steps: int = 2500
    annealing: Literal["inverse_sqrt", "cosine"] = "inverse_sqrt"
    weight_decay: float = 1e-3
    clip_norm: float = 1.0  # gradients are scaled down to this norm; 0: never
    batch_seconds: float = 360.0  # of audio in a batch of each process: 4 x 90 s
    accumulate: int = 1  # batches in an update
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    validate_every: int = 1000  # steps
    checkpoint_every: int = 1000
    log_every: int = 10
    keep_best: int = 3  # checkpoints whose weights are averaged in the end
    patience: int = 0  # validations without a better score before it stops early; 0: never
    freeze: tuple[str, ...] = ()  # parts of the model that do not learn, such as "encoder"
    workers: int = 0  # processes that load batches; 0: this one
    compile: bool = False  # torch.compile
    shard: bool = False  # several processes share weights and optimiser state (FSDP2): for models that fill a GPU
    # Updates whose loss or gradients are not finite are skipped, and their examples are named; at as many in a row the
    # run stops. 1: at the first; 0: at 10.
    max_bad_updates: int = field(default=0, metadata=LATER)

    def __post_init__(self) -> None:
        for name in ("steps", "validate_every", "checkpoint_every", "log_every", "accumulate", "keep_best"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.max_bad_updates < 0:
            raise ValueError(f"max_bad_updates must not be negative, but it is {self.max_bad_updates}")
        if not self.learning_rate > 0 or not self.batch_seconds > 0:
            raise ValueError("learning_rate and batch_seconds must be more than 0")
        if self.shard and (self.optimizer == "muon" or self.precision == "float16" or self.compile):
            raise ValueError("shard goes with adamw, float32 or bfloat16, and without compile")


def check_phases(names: Sequence[str], init: str) -> None:
    """ValueError unless phases have different names; there may be none if the model of `init` is taken as it is."""
    if len(set(names)) < len(names):
        raise ValueError(f"phases need different names, not {', '.join(names)}")
    if not names and not init:
        raise ValueError("there are no phases, so init must name the model to take as it is")


@dataclass(frozen=True)
class PhaseOptions:
    """A stretch of training with its own data and schedule; the paper has two, pretraining and fine-tuning."""

    name: str = "train"  # of its folder
    recorded: bool = True  # learn from the training manifest
    simulated: float = 0.0  # share of examples that are simulated on the fly, from the sources of stage 1
    seconds: float = 90.0  # longest window of a session, and length of a simulated one
    min_speakers: int = 2  # of a simulated session
    max_speakers: int = 4
    speeds: tuple[float, ...] = (1.0,)  # at which the speakers of simulated sessions are played
    speaker_weight: float = 0.0  # of naming speakers beside diarization; falls to 0 over the phase
    loop: LoopOptions = field(default_factory=LoopOptions)

    def __post_init__(self) -> None:
        if not 0 <= self.simulated <= 1:
            raise ValueError(f"simulated must be from 0 to 1, not {self.simulated}")
        if not self.recorded and self.simulated == 0:
            raise ValueError(f"phase {quote(self.name)} has nothing to learn from: neither recorded nor simulated")
        if not self.name or not self.name.replace("-", "").replace("_", "").isalnum():
            raise ValueError(f"{quote(self.name)} cannot be the name of a phase")


@dataclass(frozen=True)
class WarmupOptions:
    """Before the first phase, the lower half of the encoder learns to tell voices apart, by naming the speakers of the
    training data. It takes the place of a pretrained encoder (the paper's NEST) where there is none."""

    steps: int = 0  # 0: none, as in the paper
    optimizer: Literal["adamw", "muon"] = "adamw"
    learning_rate: float = 1.5e-3
    warmup_steps: int = 30
    batch_seconds: float = 60.0
    seconds: float = 8.0  # of a window
    simulated: float = 1.0  # share of examples that are simulated on the fly
    speeds: tuple[float, ...] = (1.0,)  # of these; see PhaseOptions

    def as_phase(self) -> PhaseOptions:
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
        return PhaseOptions(
            "encoder-warmup",
            recorded=self.simulated < 1,
            simulated=self.simulated,
            seconds=self.seconds,
            speeds=self.speeds,
            loop=loop,
        )


@dataclass(frozen=True)
class TrainDiarOptions:
    """What the diarizer is, and how it learns; the defaults are the paper's."""

    model: Literal["sortformer", "eend-sa", "eend-eda"] = "sortformer"  # the others are the baselines of Table 1
    size: Literal["tiny", "small", "base"] = "base"  # of a Sortformer; base has 123M parameters
    n_speakers: int = 4  # K
    alpha: float = 0.5  # L = alpha Sort + (1 - alpha) PIL: 1 is Sort Loss alone, 0 PIL alone
    global_speakers: bool = False  # the same name is the same person in all sessions of the training data
    validation_seconds: float = 90.0  # longest window of a session of the validation manifest
    encoder_warmup: WarmupOptions = field(default_factory=WarmupOptions)
    phases: tuple[PhaseOptions, ...] = (PhaseOptions(),)  # none: the model of `init` as it is
    # Added to the seed of the recipe: other first weights and other batches, of the same data.
    seed_offset: int = field(default=0, metadata=LATER)
    # In a recipe: a model folder or .nemo file whose weights, and sizes, to start from; may be an encoder alone (NEST).
    init: str = field(default="", metadata=LATER)

    def __post_init__(self) -> None:
        if not 1 <= self.n_speakers <= 20:
            raise ValueError(f"n_speakers must be from 1 to 20, not {self.n_speakers}")
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must be from 0 to 1, not {self.alpha}")
        check_phases([phase.name for phase in self.phases], self.init)
        if self.encoder_warmup.steps and not self.global_speakers:
            raise ValueError("encoder_warmup names speakers, so it needs global_speakers = true")

    def describe(self) -> str:
        """The name of a row in Table 1."""
        if self.model != "sortformer":
            return self.model.upper()
        loss = {0.0: "PIL", 1.0: "Sort Loss"}.get(self.alpha, f"hybrid loss, alpha {self.alpha:g}")
        return f"Sortformer, {loss}"
