"""Speech activity detection: the decisions of silero-vad, many times faster than its own loop.

silero-vad calls its network once for every window of 32 ms:

    64 samples of the last window + 512 -> STFT -> four convolutions -> LSTM cell -> probability of speech

Only the LSTM depends on earlier windows. So the weights of the package are applied to many windows at once, and only
the LSTM then runs over the sequence of their features: the same probabilities, the same segments. All of it is NumPy:
to import torch takes longer than to process minutes of speech.
"""

from __future__ import annotations

import importlib.util
import io
import pickle
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from sortk.formats import audio
from sortk.records import SAMPLE_RATE
from sortk.spans import Span, to_seconds

Floats = npt.NDArray[np.float32]

WINDOW = 512  # samples: 32 ms
CONTEXT = 64  # samples of the window before
STFT_HOP = 128
HIDDEN = 128  # size of the LSTM
STRIDES = (1, 2, 2, 1)  # of the convolutions: four STFT frames become one vector
WINDOWS_AT_ONCE = 512  # their features stay in the processor's cache
CHUNK_SECONDS = 120  # read at a time, an integer number of windows: memory does not grow with the recording
MARGIN_SECONDS = 1  # read around a chunk, so that resampling does not notice that there are chunks


@dataclass(frozen=True, slots=True)
class DetectorOptions:
    """How probabilities become speech; the defaults are silero-vad's own."""

    threshold: float = 0.5  # speech begins at this probability, and ends 0.15 below it
    min_speech_seconds: float = 0.25  # shorter speech is ignored
    min_silence_seconds: float = 0.1  # shorter silence does not end speech
    pad_seconds: float = 0.03  # speech is widened by this on both sides


def detect_speech(path: Path, span: Span, options: DetectorOptions) -> list[Span]:
    """Return the spans of speech inside a span of an audio file, in the file's time."""
    start, end = span
    n_samples = 0

    def chunks() -> Iterator[audio.Samples]:
        nonlocal n_samples
        for chunk in read_chunks(path, to_seconds(start), to_seconds(end - start)):
            n_samples += len(chunk)
            yield chunk

    probs = load_network().speech_probs(chunks())
    us_per_sample = 1_000_000 / SAMPLE_RATE
    return [
        (start + round(first * us_per_sample), min(start + round(last * us_per_sample), end))
        for first, last in find_speech(probs, n_samples, options)
    ]


def read_chunks(path: Path, offset: float, duration: float) -> Iterator[audio.Samples]:
    """Yield a part of a file at 16 kHz in chunks; all but the last are an integer number of windows."""
    end = offset + duration
    for chunk in range(0, int(np.ceil(duration)), CHUNK_SECONDS):
        margin = min(chunk, MARGIN_SECONDS)
        first = offset + chunk
        last = min(first + CHUNK_SECONDS + MARGIN_SECONDS, end)
        samples = audio.read(path, first - margin, last - first + margin, SAMPLE_RATE)
        yield samples[margin * SAMPLE_RATE :][: CHUNK_SECONDS * SAMPLE_RATE]


def find_speech(probs: Floats, n_samples: int, options: DetectorOptions) -> list[tuple[int, int]]:
    """Return the first and last sample of each span of speech, as silero-vad's get_speech_timestamps does."""
    speeches = _apply_hysteresis(probs.tolist(), n_samples, options)
    # Neighbours share the silence between them when it is too short for the padding of both.
    pad = int(options.pad_seconds * SAMPLE_RATE)
    gaps = [after[0] - before[1] for before, after in pairwise(speeches)]
    pads = [min(pad, gap // 2) for gap in gaps]
    return [
        (max(0, start - before), min(n_samples, end + after))
        for (start, end), before, after in zip(speeches, [pad, *pads], [*pads, pad], strict=False)
    ]


def _apply_hysteresis(probs: Iterable[float], n_samples: int, options: DetectorOptions) -> list[tuple[int, int]]:
    end_threshold = max(options.threshold - 0.15, 0.01)
    min_speech = options.min_speech_seconds * SAMPLE_RATE
    min_silence = options.min_silence_seconds * SAMPLE_RATE
    speeches: list[tuple[int, int]] = []
    start: int | None = None  # of the current speech
    silence: int | None = None  # where it may have ended
    for index, prob in enumerate(probs):
        sample = WINDOW * index
        if prob >= options.threshold:
            start, silence = sample if start is None else start, None
        elif prob < end_threshold and start is not None:
            silence = sample if silence is None else silence
            if sample - silence >= min_silence:
                if silence - start > min_speech:
                    speeches.append((start, silence))
                start = silence = None
    if start is not None and n_samples - start > min_speech:
        speeches.append((start, n_samples))
    return speeches


class SileroNetwork:
    """silero-vad's network at 16 kHz, with the weights of the installed package."""

    def __init__(self, weights: dict[str, Floats]) -> None:
        self._basis = weights["stft.forward_basis_buffer"][:, 0].T.copy()  # (256, 2 * bins): real, imaginary parts
        self._layers: list[tuple[Floats, Floats]] = []
        n_positions = WINDOW // STFT_HOP
        for n, stride in enumerate(STRIDES):
            weight, bias = weights[f"encoder.{n}.reparam_conv.weight"], weights[f"encoder.{n}.reparam_conv.bias"]
            matrix = _unroll(weight, n_positions, stride)
            n_positions = matrix.shape[1] // len(bias)
            self._layers.append((matrix, np.tile(bias, n_positions)))
        # The gates in the order input, forget, output, cell. One tanh does for all: sigmoid(z) = (1 + tanh(z / 2)) / 2.
        order = np.arange(4 * HIDDEN).reshape(4, HIDDEN)[[0, 1, 3, 2]].ravel()
        scale = np.repeat(np.array([0.5, 0.5, 0.5, 1.0], np.float32), HIDDEN)
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        inputs, recurrent, *biases = (scale * weights[f"decoder.rnn.{name}"].T[..., order] for name in names)
        self._inputs, self._biases = inputs, biases[0] + biases[1]
        # The loop keeps 2 h, which saves a product in every step.
        self._recurrent, self._output = recurrent / 2, weights["decoder.decoder.2.weight"][0, :, 0] / 2
        self._output_bias = weights["decoder.decoder.2.bias"]
        # With one thread, sums have the same order, so decisions are the same for any number of cores and jobs; and
        # products as small as these are not faster with more.
        self.blas = ThreadpoolController()

    def speech_probs(self, chunks: Iterable[audio.Samples]) -> Floats:
        """Return the probability of speech in each window of a recording that comes in chunks."""
        stream = SpeechStream(self)
        for chunk in chunks:
            stream.push(chunk)
        return stream.finish()

    def encode(self, windows: Floats) -> Floats:
        """(n, 576) samples -> (n, 128) features."""
        reflected = np.pad(windows, ((0, 0), (0, CONTEXT)), mode="reflect")
        frames = np.lib.stride_tricks.sliding_window_view(reflected, len(self._basis), axis=1)[:, ::STFT_HOP]
        squares = (frames.reshape(-1, len(self._basis)) @ self._basis) ** 2
        n_bins = squares.shape[1] // 2
        features = np.sqrt(squares[:, :n_bins] + squares[:, n_bins:]).reshape(len(windows), -1)
        for matrix, bias in self._layers:
            features = features @ matrix
            features += bias
            np.maximum(features, 0, out=features)
        return features

    def decode(self, features: Floats, hidden: Floats, cell: Floats) -> tuple[Floats, Floats]:
        """(n, 128) features -> (n,) probabilities of speech, and 2 h after the last.

        `hidden`, 2 h, and `cell` are the state of the LSTM, (128,) each; `cell` is updated in place.
        """
        states = np.empty((len(features), HIDDEN), np.float32)
        gates = np.empty(4 * HIDDEN, np.float32)
        enter, keep, show, new = np.split(gates, 4)
        sigmoids = gates[: 3 * HIDDEN]
        for inputs, state in zip(features @ self._inputs + self._biases, states, strict=True):
            np.dot(hidden, self._recurrent, gates)
            np.add(gates, inputs, gates)
            np.tanh(gates, gates)
            # c = (1 + keep) / 2 c + (1 + enter) / 2 new,  2 h = (1 + show) tanh(c)
            np.add(sigmoids, 1, sigmoids)
            np.multiply(cell, keep, cell)
            np.multiply(new, enter, new)
            np.add(cell, new, cell)
            np.multiply(cell, 0.5, cell)
            np.tanh(cell, state)
            np.multiply(state, show, state)
            hidden = state
        logits = np.maximum(states, 0) @ self._output + self._output_bias
        probs = np.asarray(1 / (1 + np.exp(-logits)), np.float32)
        return probs, hidden


class SpeechStream:
    """A recording on its way through the network: `push` samples at 16 kHz as they come, then `finish`."""

    def __init__(self, network: SileroNetwork) -> None:
        self._network = network
        self._hidden, self._cell = np.zeros(HIDDEN, np.float32), np.zeros(HIDDEN, np.float32)
        self._context, self._rest = np.zeros(CONTEXT, np.float32), np.zeros(0, np.float32)
        self._probs: list[Floats] = [np.zeros(0, np.float32)]

    def push(self, samples: audio.Samples) -> None:
        samples = np.concatenate([self._rest, samples])
        n_whole = len(samples) // WINDOW * WINDOW
        self._rest = samples[n_whole:]
        with self._network.blas.limit(limits=1):
            for first in range(0, n_whole, WINDOWS_AT_ONCE * WINDOW):
                self._run(samples[first : min(first + WINDOWS_AT_ONCE * WINDOW, n_whole)])

    def finish(self) -> Floats:
        """Return the probability of speech in each window; the last one is padded with silence."""
        if len(self._rest):
            self.push(np.zeros(WINDOW - len(self._rest), np.float32))
        return np.concatenate(self._probs)

    def _run(self, samples: audio.Samples) -> None:
        signal = np.concatenate([self._context, samples])
        windows = np.lib.stride_tricks.sliding_window_view(signal, CONTEXT + WINDOW)[::WINDOW]
        probs, self._hidden = self._network.decode(self._network.encode(windows), self._hidden, self._cell)
        self._probs.append(probs)
        self._context = signal[-CONTEXT:]


def _unroll(weight: Floats, n_positions: int, stride: int) -> Floats:
    """Return the matrix of a convolution over few positions: twice as fast on a CPU, although half of it is zeros.

    (outputs, inputs, kernel) -> (n_positions * inputs, positions of the result * outputs)
    """
    n_outputs, n_inputs, kernel = weight.shape
    n_after = (n_positions + 2 - kernel) // stride + 1
    matrix = np.zeros((n_positions + 2, n_inputs, n_after, n_outputs), np.float32)  # with padding on either side
    for after in range(n_after):
        matrix[after * stride : after * stride + kernel, :, after] = weight.transpose(2, 1, 0)
    return matrix[1:-1].reshape(n_positions * n_inputs, n_after * n_outputs)


@lru_cache(maxsize=1)
def load_network() -> SileroNetwork:
    """Return the network of the installed silero-vad, loaded once per process."""
    package = importlib.util.find_spec("silero_vad")
    if package is None or package.origin is None:
        raise ValueError("speech detection needs silero-vad; install it, or keep the annotations with sad = none")
    try:
        return SileroNetwork(read_weights(Path(package.origin).parent / "data" / "silero_vad.jit"))
    except (KeyError, ValueError, OSError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        raise ValueError(f"the installed silero-vad has an unknown network ({error}); install version 6.2") from None


def read_weights(path: Path) -> dict[str, Floats]:
    """Return the tensors of the 16 kHz network in silero-vad's TorchScript archive, by name.

    torch.jit.load is deprecated, and does not work on Python 3.14. The archive is a zip file: data.pkl describes the
    modules, data/N holds the numbers of storage N. (The safetensors file beside it holds another training of the
    network: on 30 s excerpts of meetings, up to 3 % of its decisions differ.)
    """
    with zipfile.ZipFile(path) as archive:
        [description] = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        folder = description.removesuffix(".pkl")
        model = _ArchiveReader(
            io.BytesIO(archive.read(description)), lambda key: archive.read(f"{folder}/{key}")
        ).load()
    found: dict[str, Floats] = {}
    modules = [("", model.__dict__["_model"])]  # the archive also holds `_model_8k`
    for prefix, module in modules:  # grows while it is read
        for name, value in module.__dict__.items():
            if isinstance(value, _Module):
                modules.append((f"{prefix}{name}.", value))
            elif hasattr(value, "shape"):
                found[prefix + name] = value
    return found


class _Module:
    """Any module of the archive; its attributes come from the archive."""


class _ArchiveReader(pickle.Unpickler):
    """Read the modules and tensors of a TorchScript archive. No class or function that the archive names is imported:
    modules become `_Module`, and the four functions that build values are the ones below."""

    def __init__(self, file: io.BytesIO, read_storage: Callable[[str], bytes]) -> None:
        super().__init__(file)
        self._read_storage = read_storage

    def find_class(self, module: str, name: str) -> Any:
        builders = {
            "torch._utils._rebuild_tensor_v2": _build_tensor,
            "torch.jit._pickle.build_intlist": list,
            "collections.OrderedDict": dict,
            "torch.FloatStorage": np.float32,
        }
        if module.startswith("__torch__."):
            return _Module
        try:
            return builders[f"{module}.{name}"]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is not expected in this archive") from None

    def persistent_load(self, pid: Any) -> Floats:
        _, dtype, key, *_ = pid
        return np.frombuffer(self._read_storage(key), dtype)


def _build_tensor(storage: Floats, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: object) -> Floats:
    """Return the array; ValueError if the storage does not have all its numbers."""
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if min(offset, *shape, *strides) < 0 or last >= len(storage):
        raise ValueError(f"a tensor of shape {shape} does not fit into {len(storage)} numbers")
    steps = [stride * storage.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(storage[offset:], shape, steps).copy()
