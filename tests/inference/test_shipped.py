"""The diarizer that comes with sortk, and the demo."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import sortk
from sortk.cli import main
from sortk.formats import audio, rttm
from sortk.formats.hub import DEMO_AUDIO, SHIPPED_MODEL
from sortk.formats.model_folder import load_model
from sortk.formats.postprocess import POSTPROCESS_NAME, Postprocess, read_postprocess
from sortk.inference.diarize import choose_postprocess, load


def test_it_is_small_and_in_half_precision() -> None:
    assert sum(path.stat().st_size for path in SHIPPED_MODEL.parent.rglob("*") if path.is_file()) < 25e6
    weights, config = load_model(SHIPPED_MODEL)
    assert config["model"] == "sortformer"
    assert {tensor.dtype for tensor in weights.values() if tensor.is_floating_point()} == {torch.float16}


def test_without_a_path_it_is_loaded_with_its_own_postprocessing() -> None:
    diarizer = sortk.load_diarizer()
    assert diarizer.options.postprocess == read_postprocess(SHIPPED_MODEL / POSTPROCESS_NAME) != Postprocess()
    assert choose_postprocess("none", SHIPPED_MODEL) == Postprocess()
    segments = diarizer(DEMO_AUDIO)
    spoken = sum(segment.duration for segment in rttm.read(DEMO_AUDIO.with_suffix(".rttm")))
    assert sum(segment.duration for segment in segments) == pytest.approx(spoken, rel=0.3)


def test_the_command_needs_neither_model_nor_file() -> None:
    result = CliRunner().invoke(main, ["diarize", "--demo"])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("SPEAKER demo 1 ")
    assert "the small model that comes with sortk" in result.stderr
    assert "nvidia/diar_sortformer_4spk-v1" in result.stderr
    both = CliRunner().invoke(main, ["diarize", "--demo", str(DEMO_AUDIO)])
    assert both.exit_code == 2 and "give one or the other" in both.output


def test_windows_are_linked_so_a_repeated_conversation_has_the_same_speakers() -> None:
    samples = audio.read(DEMO_AUDIO)
    diarizer = load()
    once, twice = diarizer(samples), diarizer(np.tile(samples, 3))
    assert len({segment.speaker for segment in twice}) == len({segment.speaker for segment in once}) == 2
