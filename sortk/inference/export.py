"""A diarizer as an ONNX graph, for runtimes without Python and torch (extra `export`).

    offline    samples of any length from 0.09 s on -> posteriors
    step       one step of a stream, its state going in and coming out -> posteriors, and the next state
    features   samples -> log-mel frames, which a step takes
    windows    what the diarizer that comes with sortk runs (`windows.py`); only recipes/small/ship.py writes it

Each graph is compared with what torch computes before its file appears.
"""

from __future__ import annotations

import copy
import logging
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sortk.formats.files import atomic_path
from sortk.formats.manifest import check_other_file
from sortk.formats.model_folder import GRAPH_NAME, WEIGHTS_NAME, find_tensors
from sortk.inference.load import load_diarizer
from sortk.inference.windows import start_session
from sortk.models.diarizer import StreamableDiarizer, StreamingOptions
from sortk.models.fastconformer import ConformerLayer, Context, RelativeAttention, Subsampling, shift_relative
from sortk.models.features import (
    GAIN_FLOOR,
    LOG_FLOOR,
    N_FFT,
    PREEMPHASIS,
    WINDOW_SAMPLES,
    LogMel,
    normalize_bins,
)
from sortk.models.frames import HOP_SAMPLES, MEL_PER_FRAME, SAMPLE_RATE, key_bias
from sortk.models.sortformer import Sortformer
from sortk.models.speaker_cache import StreamingState, StreamingStep, clear
from sortk.models.transformer import SelfAttention, TransformerLayer

log = logging.getLogger(__name__)

Part = Literal["offline", "step", "features"]

MAX_DIFFERENCE = 1e-4  # of posteriors, from those of torch
MAX_MEL_DIFFERENCE = 1e-3  # of log-mel energies: those of a nearly silent bin are the logarithm of rounding errors
CHECKED_SECONDS = (1.3, 5.0, 23.0)
OPSET = 20
MAX_CONSTANT = 1024  # numbers that are computed beforehand and stored in the graph of windows
TORCH_CAN_EXPORT = "prefer_deferred_runtime_asserts_over_guards" in signature(torch.export.export).parameters


def export_onnx(model_path: Path, out: Path, part: Part = "offline", preset: str | None = None) -> None:
    """`sortk export-onnx`: the file appears only if onnxruntime computes from it what torch computes."""
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise ValueError(f"the export needs {', '.join(missing)}: pip install 'sortk[export]'")
    check_other_file(out, model_path)
    if not TORCH_CAN_EXPORT:
        raise ValueError(f"the export needs torch 2.9 or newer, this is {torch.__version__}: pip install 'torch>=2.9'")
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
    """Write one of the graphs and return the largest difference from torch; ValueError if it is too large."""
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
    """Write a graph that takes samples; return its largest difference from torch."""
    clips = [0.1 * torch.randn(1, round(seconds * SAMPLE_RATE)) for seconds in CHECKED_SECONDS]
    exported = _export(graph, (clips[0],), ({1: torch.export.Dim.DYNAMIC},), ["samples"], [output])
    exported.save(path, external_data=False)
    run = OnnxSession(path)
    with torch.inference_mode():
        differences = [_difference(run(samples=clip)[0], compute(clip)) for clip in clips]
    return _check(max(differences), allowed)


def _write_step(model: StreamableDiarizer, path: Path, options: StreamingOptions) -> float:
    graph = StepGraph(model, options)
    names = StreamingState._fields
    n_left, n_right = (torch.zeros(1, dtype=torch.long) for _ in range(2))  # one tensor for both would be one input
    mel = torch.randn(1, MEL_PER_FRAME * 5, model.options.features.n_mels)
    exported = _export(
        graph,
        (mel, n_left, n_right, *graph.take_step.start()),
        ({1: torch.export.Dim.DYNAMIC}, None, None, (None,) * len(names)),
        ["mel", "n_left", "n_right", *names],
        ["probs", *(f"next_{name}" for name in names)],
    )
    about = {name: str(value) for name, value in asdict(options).items()}
    exported.model.metadata_props.update(about | {"row_seconds": f"{model.row_seconds:g}"})
    exported.save(path, external_data=False)
    run = OnnxSession(path)
    with torch.inference_mode():
        return _check(max(_verify_step(run, model, options, filled) for filled in (0.0, 0.5, 1.0)), MAX_DIFFERENCE)


def _verify_step(run: OnnxSession, model: StreamableDiarizer, options: StreamingOptions, filled: float) -> float:
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


def write_windows(folder: Path) -> float:
    """Write the graph of windows into the folder of a Sortformer with linking; return its difference from torch.

    The graph has no weights: they are read from model.safetensors.
    """
    from onnx import save  # noqa: PLC0415 - only in the extra `export`

    loaded = load_diarizer(folder)
    assert isinstance(loaded.model, Sortformer) and loaded.linking is not None
    places = find_tensors(folder / WEIGHTS_NAME)
    for name, tensor in loaded.model.state_dict().items():
        if tensor.is_floating_point() and places[name][1] != 2 * tensor.numel():
            raise ValueError(f"{folder / WEIGHTS_NAME}: {name} is not in half precision")
    graph = WindowGraph(loaded.model)
    axes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    example = 0.1 * torch.randn(2, round(CHECKED_SECONDS[0] * SAMPLE_RATE))
    program = _export(graph, (example,), (axes,), ["samples"], ["probs", "embeddings"], optimize=False)
    model = _refer_to_weights(program.model_proto, graph, places)
    with atomic_path(folder / GRAPH_NAME) as temporary:
        save(model, temporary)
        session, differences = start_session(temporary, torch.get_num_threads()), []
        for n_samples in (
            HOP_SAMPLES,
            round(CHECKED_SECONDS[0] * SAMPLE_RATE),
            loaded.linking.window * MEL_PER_FRAME * HOP_SAMPLES,
        ):
            windows = 0.1 * torch.randn(2, n_samples)
            found = session.run(None, {"samples": windows.numpy()})
            expected = zip(*loaded.run_windows(list(windows.numpy())), strict=True)
            differences += [
                _difference(torch.from_numpy(own), torch.from_numpy(np.stack(theirs)))
                for own, theirs in zip(found, expected, strict=True)
            ]
        return _check(max(differences), MAX_DIFFERENCE)


def _refer_to_weights(model: Any, graph: WindowGraph, places: Mapping[str, tuple[int, int]]) -> Any:
    """Return an ONNX model whose weights are references to their half-precision form in model.safetensors."""
    from onnx import TensorProto, helper  # noqa: PLC0415
    from onnxscript.optimizer import optimize  # noqa: PLC0415

    names = {tensor.data_ptr(): name for name, tensor in graph.model.state_dict().items()}
    tensors = {name: tensor for name, tensor in graph.state_dict().items() if tensor.data_ptr() in names}
    halves, casts = [], []
    weights = [tensor for tensor in model.graph.initializer if tensor.name in tensors]
    for weight in weights:
        own = tensors[weight.name]
        offset, length = places[names[own.data_ptr()]]
        half = TensorProto(
            name=f"{weight.name}.half",
            dims=own.shape,
            data_type=TensorProto.FLOAT16,
            data_location=TensorProto.EXTERNAL,
        )
        for key, value in (("location", WEIGHTS_NAME), ("offset", offset), ("length", length)):
            half.external_data.add(key=key, value=str(value))
        halves.append(half)
        casts.append(helper.make_node("Cast", [half.name], [weight.name], to=TensorProto.FLOAT))  # once, when loaded
        # As an input, it is not part of what the optimizer computes beforehand.
        model.graph.initializer.remove(weight)
        model.graph.input.append(helper.make_tensor_value_info(weight.name, TensorProto.FLOAT, own.shape))
    model = optimize(model, input_size_limit=MAX_CONSTANT, output_size_limit=MAX_CONSTANT)
    del model.graph.input[1:], model.graph.value_info[:]
    nodes = [*casts, *model.graph.node]
    for node in nodes:  # where in the source each one comes from: most of the file
        del node.metadata_props[:]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(halves)
    return model


class OnnxSession:
    """A graph in onnxruntime, on tensors: the inputs by their names, the outputs in their order."""

    def __init__(self, path: Path) -> None:
        self._session = start_session(path, torch.get_num_threads())

    def __call__(self, **inputs: Tensor) -> list[Tensor]:
        outputs = self._session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
        return [torch.from_numpy(array) for array in outputs]


def _export(
    graph: nn.Module,
    example: tuple[Tensor, ...],
    dynamic: tuple[Any, ...],
    inputs: list[str],
    outputs: list[str],
    optimize: bool = True,
) -> torch.onnx.ONNXProgram:
    with _quiet_exporter(), torch.no_grad():
        # Asserts in place of guards: that 0 <= n - 1 <= 2 n is too much for its solver, where n counts frames.
        program = torch.export.export(
            graph.eval(), example, dynamic_shapes=dynamic, prefer_deferred_runtime_asserts_over_guards=True
        )
        exported = torch.onnx.export(
            program,
            dynamo=True,
            input_names=inputs,
            output_names=outputs,
            opset_version=OPSET,
            verbose=False,
            optimize=optimize,
        )
    assert exported is not None
    return exported


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Silence the exporter's warnings about optional packages and about its own methods."""
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(level)


def _difference(found: Tensor, expected: Tensor) -> float:
    if found.shape != expected.shape:
        raise ValueError(f"the exported graph gives {tuple(found.shape)} numbers, torch {tuple(expected.shape)}")
    return float((found - expected).abs().max())


def _check(difference: float, allowed: float) -> float:
    if not difference <= allowed:
        raise ValueError(f"the exported graph differs from torch by {difference:.1e}, more than {allowed:.0e}")
    return difference


# ---------------------------------------------------------------------------------------------------------------------
# Diarizers in forms that can be exported
#
# A graph has no branches and no loops that depend on lengths, so a few parts are written again here without them. The
# step of a stream is not: `StreamingStep` runs in torch and in a graph.

Module = TypeVar("Module", bound=nn.Module)
AnyDiarizer = TypeVar("AnyDiarizer", bound=StreamableDiarizer)


class PlainLogMel(nn.Module):
    """LogMel whose Fourier transform is a product of matrices: (batch, samples) -> (batch, mel frames, n_mels).

    The window is symmetric, w_n = w_{N-1-n}, and the power does not depend on where time 0 is. In the middle of N
    samples, a = 2 pi k / N_FFT, the transform of bin k is

        sum_{j < N/2} w_j [ (x_j + x_{-j}) cos a (j + 1/2) - i (x_j - x_{-j}) sin a (j + 1/2) ]

    where x_j and x_{-j} are the j-th samples to the right and left of the middle: half the products of a convolution.
    """

    window: Tensor
    filters: Tensor

    def __init__(self, features: LogMel) -> None:
        super().__init__()
        self.options, self.gain = features.options, features.gain
        self.register_buffer("window", features.window[WINDOW_SAMPLES // 2 :].cpu())
        self.register_buffer("filters", features.filters.cpu())

    def forward(self, samples: Tensor) -> Tensor:
        if self.gain:
            samples = samples / (samples.amax(dim=1, keepdim=True).clamp(min=0) + GAIN_FLOOR)
        before = functional.pad(samples, (1, 0))[:, :-1]
        half, n_frames = WINDOW_SAMPLES // 2, samples.shape[1] // HOP_SAMPLES
        samples = functional.pad(samples - PREEMPHASIS * before, (half, half))
        # A window is five half hops; frame t begins with the half hop 2 t.
        n_pieces, piece = WINDOW_SAMPLES * 2 // HOP_SAMPLES, HOP_SAMPLES // 2
        pieces = samples[:, : (2 * n_frames + n_pieces - 1) * piece].reshape(samples.shape[0], -1, piece)
        frames = torch.cat([pieces[:, n : n + 2 * n_frames : 2] for n in range(n_pieces)], dim=2)
        right, left = frames[..., half:], frames[..., :half].flip(2)
        # Constants, computed here so that no file holds them. (2 j + 1) k is exact, and so is its remainder.
        turns = torch.outer(2 * torch.arange(half) + 1, torch.arange(N_FFT // 2 + 1)) % (2 * N_FFT)
        angle, window = turns * (math.pi / N_FFT), self.window[:, None]
        cosine, sine = (right + left) @ (angle.cos() * window), (right - left) @ (angle.sin() * window)
        mel = ((cosine * cosine + sine * sine) @ self.filters + LOG_FLOOR).log()
        return normalize_bins(mel, None) if self.options.normalize == "per_feature" else mel


class PlainSubsampling(nn.Module):
    """Subsampling by plain convolutions: (batch, mel frames, n_mels) -> (batch, frames, d_model)."""

    def __init__(self, subsampling: Subsampling) -> None:
        super().__init__()
        self.conv, self.out = subsampling.conv, subsampling.out

    def forward(self, mel: Tensor) -> Tensor:
        frames: Tensor = self.out(self.conv(mel[:, None]).transpose(1, 2).flatten(2))
        return frames


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
    """Compute attention step by step: (batch, heads, frames, d_k) three times -> (batch, frames, heads, d_k)."""
    scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[3])
    scores = scores if bias is None else scores + bias
    return (scores.softmax(dim=3) @ value).transpose(1, 2)


class PlainRelativeAttention(RelativeAttention):
    """RelativeAttention with all queries at once."""

    def _attend_by_blocks(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        positions: Tensor,
        no_padding: Tensor | None,
        dropout: float,
        context: Context | None = None,
    ) -> Tensor:
        by_distance = (query + self.pos_bias_v[:, None]) / math.sqrt(query.shape[3])
        bias = shift_relative(by_distance @ positions, query.shape[2])
        return attend(query + self.pos_bias_u[:, None], key, value, bias if no_padding is None else bias + no_padding)

    def project_positions(self, distances: Tensor) -> Tensor:
        projected: Tensor = self.linear_pos(distances)
        return projected.view(distances.shape[0], self.n_heads, -1).permute(1, 2, 0)


class PlainSelfAttention(SelfAttention):
    """The Transformer's."""

    def forward(self, x: Tensor, valid: Tensor | None) -> Tensor:
        query, key, value = (
            linear(x).unflatten(2, (self.n_heads, -1)).transpose(1, 2) for linear in (self.query, self.key, self.value)
        )
        out: Tensor = self.out(attend(query, key, value, key_bias(valid, query.dtype)).flatten(2))
        return out


def plain_model(model: AnyDiarizer) -> AnyDiarizer:
    """Return a copy on the CPU whose attention is plain."""
    plain = copy.deepcopy(model).cpu()
    if isinstance(plain, Sortformer):
        for conformer in cast(Iterable[ConformerLayer], plain.encoder.layers):
            conformer.self_attn = _replace(conformer.self_attn, PlainRelativeAttention(plain.options.encoder))
        for layer in cast(Iterable[TransformerLayer], plain.transformer.layers):
            layer.attention = _replace(layer.attention, PlainSelfAttention(plain.options.transformer))
    return plain.eval()


def plain_subsampling(model: StreamableDiarizer) -> nn.Module:
    """Return the module from mel frames to model frames."""
    return PlainSubsampling(model.encoder.pre_encode) if isinstance(model, Sortformer) else Stacking(model)


class Stacking(nn.Module):
    """`model.subsample` as a module."""

    def __init__(self, model: StreamableDiarizer) -> None:
        super().__init__()
        self.model = model

    def forward(self, mel: Tensor) -> Tensor:
        return self.model.subsample(mel)[0]


def _replace(old: nn.Module, new: Module) -> Module:
    new.load_state_dict(old.state_dict())
    return new


# --- graphs


class FeatureGraph(nn.Module):
    """(1, samples) -> (1, mel frames, n_mels), without the gain and the normalisation over the clip."""

    def __init__(self, model: StreamableDiarizer) -> None:
        super().__init__()
        plain = replace(model.options.features, gain=False, normalize="none")
        self.features = PlainLogMel(LogMel(plain))

    def forward(self, samples: Tensor) -> Tensor:
        mel: Tensor = self.features(samples)
        return mel


class OfflineGraph(nn.Module):
    """(1, samples) -> (1, rows, speakers)."""

    def __init__(self, model: StreamableDiarizer) -> None:
        super().__init__()
        self.model = plain_model(model)
        self.features, self.subsampling = PlainLogMel(model.features), plain_subsampling(self.model)

    def forward(self, samples: Tensor) -> Tensor:
        mel = self.features(samples)
        probs = self.model.diarize_frames(self.subsampling(mel)).speaker_probs
        return probs if self.model.rows_per_frame == 1 else probs[:, : mel.shape[1]]


class WindowGraph(nn.Module):
    """(batch, samples) -> (batch, frames, speakers), and the embeddings, (batch, frames, d), of length 1."""

    def __init__(self, model: Sortformer) -> None:
        super().__init__()
        self.model = plain_model(model)
        self.features, self.subsampling = PlainLogMel(model.features), plain_subsampling(self.model)

    def forward(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        output = self.model.diarize_frames(self.subsampling(self.features(samples)))
        return output.speaker_probs, functional.normalize(output.embeddings, dim=2)


class StepGraph(nn.Module):
    """One step of one stream: mel frames and a state in, posteriors and the next state out."""

    def __init__(self, model: StreamableDiarizer, options: StreamingOptions) -> None:
        super().__init__()
        if model.options.n_speakers < 2:
            raise ValueError("a step of a stream needs a model of at least two speakers")
        self.model = plain_model(model)
        self.take_step = StreamingStep(self.model, options)
        self.subsampling = plain_subsampling(self.model)

    def forward(self, mel: Tensor, n_left: Tensor, n_right: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """(1, mel frames, n_mels), whose first and last (1,) model frames are context -> (1, rows, speakers), of the
        contexts too, and the state."""
        probs, after = self.take_step(StreamingState(*state), self.subsampling(mel), n_left, n_right)
        return probs, *after
