"""The diarizer that comes with sortk in onnxruntime: a graph from windows to posteriors and embeddings, without torch.

To import torch takes as long as to diarize minutes of speech, and more memory. The graph, windows.onnx, has no weights
of its own: they are ONNX's external data at their places in model.safetensors (`export.write_windows`).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sortk.formats.audio import Samples
from sortk.formats.files import FormatError
from sortk.formats.hub import SHIPPED_MODEL
from sortk.formats.model_folder import GRAPH_NAME, load_checked_config
from sortk.inference.linking import VOICES_NAME, Floats, LinkingOptions, read_voices
from sortk.options import read_options

if TYPE_CHECKING:
    from sortk.inference.load import LoadedDiarizer
    from sortk.models.diarizer import DiarizerModel, StreamingOptions


def has_graph(folder: Path) -> bool:
    """Return whether a model folder can be used with onnxruntime. Only the graph that comes with sortk is trusted: a
    graph of another folder may be any program."""
    if folder != SHIPPED_MODEL or not (folder / GRAPH_NAME).exists():
        return False
    try:
        import onnxruntime  # noqa: F401, PLC0415
    except ImportError:  # also if it is there and does not fit the system
        return False
    return True


class OnnxDiarizer:
    """What `LoadedDiarizer` is with torch. The torch model is loaded if something else than windows is asked for."""

    rows_per_frame = 1
    device = "cpu"
    streaming: StreamingOptions | None = None

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        config = load_checked_config(folder)
        try:
            self.linking = read_options(LinkingOptions, config.get("linking", {}), "linking")
        except ValueError as error:
            raise FormatError(folder, None, str(error)) from None
        self._session = start_session(folder / GRAPH_NAME, count_threads())
        self.n_speakers, self.embedding_size = (int(output.shape[2]) for output in self._session.get_outputs())
        self.voices = read_voices(folder / VOICES_NAME, self.embedding_size)

    def run_windows(self, windows: Sequence[Samples]) -> Iterator[tuple[Floats, Floats]]:
        """Yield posteriors, (frames, speakers), and embeddings, (frames, d), of each window.

        Windows of one length are processed together: the graph knows no padding, and only a last window is shorter.
        """
        for _, alike in itertools.groupby(windows, key=len):
            probs, embeddings = self._session.run(None, {"samples": np.stack(list(alike))})
            yield from zip(probs, embeddings, strict=True)

    @property
    def model(self) -> DiarizerModel:
        return self._with_torch.model

    @cached_property
    def _with_torch(self) -> LoadedDiarizer:
        from sortk.inference.load import load_diarizer  # noqa: PLC0415 - torch takes seconds

        loaded = load_diarizer(self._folder)
        loaded.model.freeze_for_inference()
        return loaded


def start_session(path: Path, n_threads: int) -> Any:
    """Return an onnxruntime.InferenceSession; FormatError if the file is not a graph that can be run."""
    import onnxruntime  # noqa: PLC0415 - a tenth of a second

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = n_threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # threads that wait take no CPU time
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of many types of its own
        about = str(error).strip().partition("\n")[0]
        raise FormatError(path, None, f"onnxruntime cannot run this graph ({about}); install sortk again") from None


def count_threads() -> int:
    """Return OMP_NUM_THREADS or, if it is not set, the number of cores that this process may use."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
