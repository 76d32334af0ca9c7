"""A diarizer as an ONNX graph, for runtimes without Python and torch (extra `export`).

    offline    samples of any length from 0.09 s on -> posteriors
    step       one step of a stream, its state going in and coming out -> posteriors, and the next state
    features   samples -> log-mel frames, which a step takes

Each graph (see `export_graphs`) is held to what torch computes before its file appears.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sortk.formats.files import atomic_path
from sortk.inference.export_graphs import FeatureGraph, OfflineGraph, StepGraph
from sortk.inference.load import load_diarizer
from sortk.models.diarizer import StreamableDiarizer, StreamingOptions
from sortk.models.features import LogMel
from sortk.models.frames import MEL_PER_FRAME, SAMPLE_RATE
from sortk.models.speaker_cache import StreamingState, StreamingStep, clear

log = logging.getLogger(__name__)

Part = Literal["offline", "step", "features"]

MAX_DIFFERENCE = 1e-4  # of posteriors, from those of torch
MAX_MEL_DIFFERENCE = 1e-3  # of log-mel energies: those of a nearly silent bin are the logarithm of rounding errors
CHECKED_SECONDS = (1.3, 5.0, 23.0)
OPSET = 20


def export_onnx(model_path: Path, out: Path, part: Part = "offline", preset: str | None = None) -> None:
    """`sortk export-onnx`: the file appears only if onnxruntime computes from it what torch computes."""
    _require_packages()
    loaded = load_diarizer(model_path)
    if not isinstance(loaded.model, StreamableDiarizer):
        raise ValueError(f"{model_path}: this model cannot be exported, only one that sorts speakers by arrival")
    presets = loaded.model.presets
    if preset is not None and preset not in presets:
        raise ValueError(f"there is no preset {preset!r}; choose from {', '.join(presets)}")
    steps = presets[preset] if preset is not None else loaded.streaming or presets[loaded.model.default_preset]
    with atomic_path(out) as temporary:
        difference = write_graph(loaded.model, temporary, part, steps)
    log.info("%s: %s, at most %.0e from what torch computes", out, part, difference)


def write_graph(model: StreamableDiarizer, path: Path, part: Part, steps: StreamingOptions) -> float:
    """Writes one of the graphs and returns the largest difference from torch; ValueError if it is too large."""
    if part == "step":
        return _write_step(model, path, steps)
    if part == "features":
        graph: nn.Module = FeatureGraph(model)
        features = LogMel(replace(model.options.features, gain=False, normalize="none")).eval()
        return _write_clip(graph, path, "mel", lambda samples: features(samples)[0], MAX_MEL_DIFFERENCE)
    return _write_clip(OfflineGraph(model), path, "probs", lambda samples: model(samples).speaker_probs, MAX_DIFFERENCE)


def _write_clip(
    graph: nn.Module, path: Path, output: str, compute: Callable[[Tensor], Tensor], allowed: float
) -> float:
    """A graph from samples on."""
    clips = [0.1 * torch.randn(1, round(seconds * SAMPLE_RATE)) for seconds in CHECKED_SECONDS]
    _export(graph, (clips[0],), ({1: torch.export.Dim.DYNAMIC},), ["samples"], [output], {}, path)
    run = Session(path)
    with torch.inference_mode():
        differences = [_difference(run(samples=clip)[0], compute(clip)) for clip in clips]
    return _check(max(differences), allowed)


def _write_step(model: StreamableDiarizer, path: Path, options: StreamingOptions) -> float:
    graph = StepGraph(model, options)
    names = StreamingState._fields
    n_left, n_right = (torch.zeros(1, dtype=torch.long) for _ in range(2))  # one tensor for both would be one input
    mel = torch.randn(1, MEL_PER_FRAME * 5, model.options.features.n_mels)
    about = {name: str(value) for name, value in asdict(options).items()}
    _export(
        graph,
        (mel, n_left, n_right, *graph.take_step.start()),
        ({1: torch.export.Dim.DYNAMIC}, None, None, (None,) * len(names)),
        ["mel", "n_left", "n_right", *names],
        ["probs", *(f"next_{name}" for name in names)],
        about | {"row_seconds": f"{model.row_seconds:g}"},
        path,
    )
    run = Session(path)
    with torch.inference_mode():
        return _check(max(_verify_step(run, model, options, filled) for filled in (0.0, 0.5, 1.0)), MAX_DIFFERENCE)


def _verify_step(run: Session, model: StreamableDiarizer, options: StreamingOptions, filled: float) -> float:
    """Compare a step of the graph with one of torch, from a random state whose memories are filled so far."""
    step = StreamingStep(model, options)
    frames, _ = model.subsample(torch.randn(1, MEL_PER_FRAME * 32, model.options.features.n_mels))
    random = frames[:, torch.randint(frames.shape[1], (options.cache + max(options.fifo, 1),))]
    n_cache, n_fifo = (torch.tensor([round(filled * size)]) for size in (options.cache, options.fifo))
    state = step.start()._replace(
        cache=clear(random[:, : options.cache], n_cache),
        n_cache=n_cache,
        fifo=clear(random[:, options.cache :], n_fifo),
        n_fifo=n_fifo,
        n_silence=torch.tensor([round(100 * filled)]),
    )
    if filled == 1:
        probs = torch.rand(1, options.cache, model.options.n_speakers)
        state = state._replace(cache_probs=probs, is_compressed=torch.ones(1, dtype=torch.long))
    if model.find_silence() is None:
        state = state._replace(silence=torch.randn_like(state.silence))
    n_left, n_right = round(filled * options.left_context), round(filled * options.right_context)
    mel = torch.randn(1, MEL_PER_FRAME * (n_left + options.chunk + n_right), model.options.features.n_mels)
    expected, after = step(state, model.subsample(mel)[0], n_left, n_right)
    counts = {"n_left": torch.tensor([n_left]), "n_right": torch.tensor([n_right])}
    probs, *rest = run(mel=mel, **counts, **state._asdict())
    found = StreamingState(*rest)
    for name in ("n_cache", "n_fifo", "n_silence", "is_compressed"):
        if not torch.equal(getattr(found, name), getattr(after, name)):
            raise ValueError(f"the exported step has another {name} than torch; this is a bug of sortk")
    return _difference(probs, expected)


class Session:
    """A graph in onnxruntime, on tensors: the inputs by their names, the outputs in their order."""

    def __init__(self, path: Path) -> None:
        import onnxruntime  # noqa: PLC0415 - only in the extra `export`

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors
        options.intra_op_num_threads = torch.get_num_threads()
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def __call__(self, **inputs: Tensor) -> list[Tensor]:
        outputs = self._session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
        return [torch.from_numpy(array) for array in outputs]


def _export(
    graph: nn.Module,
    example: tuple[Tensor, ...],
    dynamic: tuple[Any, ...],
    inputs: list[str],
    outputs: list[str],
    about: Mapping[str, str],
    path: Path,
) -> None:
    with _quiet_exporter(), torch.no_grad():
        # Asserts in place of guards: that 0 <= n - 1 <= 2 n is too much for its solver, where n counts frames.
        program = torch.export.export(
            graph.eval(), example, dynamic_shapes=dynamic, prefer_deferred_runtime_asserts_over_guards=True
        )
        exported = torch.onnx.export(
            program, dynamo=True, input_names=inputs, output_names=outputs, opset_version=OPSET, verbose=False
        )
    assert exported is not None
    exported.model.metadata_props.update(about)
    exported.save(path, external_data=False)


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """It warns of packages that nobody needs, and of its own ways."""
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(level)


def _require_packages() -> None:
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise ValueError(f"the export needs {', '.join(missing)}: pip install 'sortk[export]'")


def _difference(found: Tensor, expected: Tensor) -> float:
    if found.shape != expected.shape:
        raise ValueError(f"the exported graph gives {tuple(found.shape)} numbers, torch {tuple(expected.shape)}")
    return float((found - expected).abs().max())


def _check(difference: float, allowed: float) -> float:
    if not difference <= allowed:
        raise ValueError(f"the exported graph differs from torch by {difference:.1e}, more than {allowed:.0e}")
    return difference
