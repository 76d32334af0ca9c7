from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Examples take longer on a busy machine; they are the same in every run, and `make fuzz` looks for others.
settings.register_profile("sortk", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("sortk")

TESTS = Path(__file__).parent
LONGEST = (
    "test_recipes.py",
    "test_parallel_stages.py",
    "inference/test_export.py",
    "training/test_processes.py",
    "test_cli.py",
    "test_package.py",
    "training/test_peers.py",
    "training/test_diarizer.py",
    "prepare/test_simulate.py",
    "scoring/test_tune.py",
    "training/test_asr.py",
    "models/test_multitalker.py",
    "test_cluster.py",
    "inference/test_nemotron.py",
    "prepare/test_clean.py",
    "prepare/test_activity.py",
    "corpora/test_miniature.py",
    "fuzz/test_fuzz.py",
    "inference/test_diarize.py",
    "inference/test_streaming.py",
    "prepare/test_librispeechmix.py",
    "inference/test_cascade.py",
    "test_tables_command.py",
    "corpora/test_espeak.py",
    "test_docs.py",
    "formats/test_real_files.py",
    "report/test_browser.py",
    "report/test_experiment.py",
    "inference/test_recognize.py",
    "scoring/test_intervals.py",
    "training/test_loop.py",
    "scoring/test_der_golden.py",
    "formats/test_random_bytes.py",
    "test_terminal.py",
    "inference/test_load.py",
    "chaos/test_chaos.py",
    "models/test_huggingface.py",
    "corpora/test_ami.py",
    "models/test_msasr.py",
    "models/test_parakeet.py",
    "inference/test_transcribe.py",
)
"""Files with long tests. They come first, so that the processes of `make test`, which share files, end together."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place_of = {TESTS / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place_of.get(item.path, len(LONGEST)))


@pytest.fixture(autouse=True, scope="session")
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the cache of content keys out of the user's home, and the user's cluster defaults out of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def own_log() -> Iterator[None]:
    """Undo what a command has set for the log of sortk, so that `caplog` has each message once in every test."""
    yield
    log = logging.getLogger("sortk")
    log.handlers, log.propagate = [], True


@pytest.fixture(scope="session")
def fake_cuda() -> None:
    """Skip a test of tensors without data that are on a GPU, where torch itself asks for the GPU (torch 2.6 does)."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    try:
        with FakeTensorMode(), torch.device("cuda"):
            torch.zeros(1).uniform_()
    except RuntimeError as error:
        pytest.skip(f"torch {torch.__version__} needs a GPU for this: {str(error).splitlines()[0]}")


@pytest.fixture(scope="session")
def torchaudio() -> Any:
    """Skip a test where torchaudio cannot be imported, as with the newest torch: it is built for another CUDA."""
    return pytest.importorskip("torchaudio", exc_type=(ImportError, OSError, RuntimeError))
