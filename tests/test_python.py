"""What `import sortk` offers: loading, scoring, RTTM, and audio as other libraries hand it over."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import soundfile
import torch
from nemo_models import random_sortformer, sortformer_config, sortformer_tensors, write_nemo

import sortk
from sortk.formats.audio import from_array
from sortk.inference.results import Segments
from sortk.models.fastconformer import FastConformerOptions
from sortk.models.features import FeatureOptions
from sortk.models.sortformer import SortformerOptions
from sortk.models.transformer import TransformerOptions
from sortk.scoring.der import score_files

DIARIZER = SortformerOptions(
    n_speakers=4,
    features=FeatureOptions(n_mels=16),
    encoder=FastConformerOptions(d_model=32, n_layers=1, n_heads=2, subsampling_channels=8, scale_input=False),
    transformer=TransformerOptions(d_model=16, n_layers=1, n_heads=2, d_inner=32),
)
STEREO = np.stack([np.sin(np.arange(32000) / 20), np.sin(np.arange(32000) / 33)]).astype(np.float32) / 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "tiny.nemo"
    write_nemo(path, sortformer_config(DIARIZER), sortformer_tensors(random_sortformer(DIARIZER)))
    return str(path)


def test_import_is_fast() -> None:
    code = "import sys, sortk; sortk.load_diarizer, sortk.Segment; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "scipy", "soundfile", "click"} & set(loaded)


@pytest.mark.parametrize(
    "given",
    [
        STEREO,
        STEREO.T,
        torch.from_numpy(STEREO),
        torch.from_numpy(STEREO).double().requires_grad_(),
        {"waveform": torch.from_numpy(STEREO), "sample_rate": 16000},
        {"array": STEREO.mean(axis=0), "sampling_rate": 16000},
    ],
    ids=["channels first", "samples first", "tensor", "tensor with gradient", "pyannote", "Hugging Face"],
)
def test_samples_in_all_forms_are_the_same_audio(given: object) -> None:
    np.testing.assert_allclose(from_array(given, 16000), STEREO.mean(axis=0), atol=1e-6)


def test_samples_that_make_no_sense_are_refused_with_help() -> None:
    with pytest.raises(TypeError, match="a path, a NumPy array, a torch tensor or a dict .* got list"):
        from_array([0.0, 0.1], 16000)
    with pytest.raises(ValueError, match=r"of shape \(100, 16000\) would have 100 channels"):
        from_array(np.zeros((100, 16000), np.float32), 16000)
    with pytest.raises(ValueError, match="got int64 of shape"):
        from_array(np.zeros(100, np.int64), 16000)
    with pytest.raises(ValueError, match="has the keys waveform and sample_rate, got audio"):
        from_array({"audio": STEREO}, 16000)


def test_a_diarizer_takes_strings_and_tensors_and_gives_posteriors(model: str, tmp_path: Path) -> None:
    diarizer = sortk.load_diarizer(model, device="cpu")
    path = str(tmp_path / "a.wav")
    soundfile.write(path, STEREO.T, 16000, subtype="FLOAT")
    probs = diarizer.posteriors(path)
    assert probs.shape == (25, 4) and 0 <= probs.min() <= probs.max() <= 1  # 2 s in rows of 80 ms
    np.testing.assert_allclose(diarizer.posteriors({"waveform": torch.from_numpy(STEREO), "sample_rate": 16000}), probs)
    assert repr(diarizer) == "<Diarizer: Sortformer, 4 speakers, cpu>"


def test_settings_are_keywords(model: str) -> None:
    diarizer = sortk.load_diarizer(model, device="cpu", max_speakers=2, postprocess="callhome")
    assert diarizer.posteriors(STEREO).shape == (25, 2)
    assert diarizer.options.postprocess == sortk.load_diarizer(model, postprocess="callhome").options.postprocess
    with pytest.raises(TypeError, match="there is no setting 'num_speakers'; settings: .*max_speakers.*speakers"):
        sortk.load_diarizer(model, num_speakers=2)
    with pytest.raises(TypeError, match="either options or single settings"):
        sortk.load_diarizer(model, options=diarizer.options, max_speakers=2)


def test_scoring_takes_strings_segments_and_sessions(tmp_path: Path) -> None:
    ref = [sortk.Segment("m", "a", 0.0, 6.0), sortk.Segment("m", "b", 6.0, 10.0)]
    hyp = [sortk.Segment("m", "x", 0.0, 5.0), sortk.Segment("m", "y", 6.0, 10.0)]
    paths = str(tmp_path / "ref.rttm"), str(tmp_path / "hyp.rttm")
    for path, segments in zip(paths, (ref, hyp), strict=True):
        sortk.write_rttm(path, segments)
    assert sortk.read_rttm(paths[0]) == ref
    for given in (paths, (ref, hyp), ({"m": ref}, sortk.read_rttm(paths[1]))):
        assert sortk.score_der(*given, collar=0.0).overall.errors.der == pytest.approx(0.1)  # 1 s of 10
    assert score_files(*paths).overall.errors.der > 0
    with pytest.raises(TypeError, match="there is no setting 'colar'; settings: collar, skip_overlap, scorer"):
        sortk.score_der(*paths, colar=0.0)


def test_a_missing_transcriber_is_named_though_its_path_is_a_string() -> None:
    with pytest.raises(FileNotFoundError, match="nowhere.nemo: no such model folder"):
        sortk.load_transcriber("nowhere.nemo")


def test_notebooks_show_a_picture_of_the_first_session() -> None:
    found = Segments([sortk.Segment("m", "a", 0, 90.0), sortk.Segment("m", "b", 1, 2), sortk.Segment("n", "c", 0, 1)])
    texts = [text.text for text in ElementTree.fromstring(found._repr_svg_()).iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == "m" and {"a", "b", "1:30", "overlap"} <= set(texts) and "c" not in texts
    assert "<svg" in Segments()._repr_svg_()


def test_an_annotation_has_one_recording() -> None:
    segments = [sortk.Segment("m", "a", 0, 2), sortk.Segment("m", "b", 1, 3), sortk.Segment("n", "c", 0, 1)]
    annotation = Segments(segments[:2]).to_annotation()
    assert annotation.uri == "m" and annotation.labels() == ["a", "b"] and annotation.get_timeline().duration() == 3
    with pytest.raises(ValueError, match=r"are of 2 \(m, n\); select those of one session_id"):
        Segments(segments).to_annotation()


def test_types_are_for_others_too() -> None:
    assert (Path(sortk.__file__).parent / "py.typed").is_file()


def test_the_notebook_runs_and_has_its_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`jupyter nbconvert --to notebook --execute --inplace examples/diarize.ipynb` writes the outputs again."""
    notebook = json.loads((Path(__file__).parents[1] / "examples" / "diarize.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert all(cell["outputs"] for cell in cells) and all(output["output_type"] != "error" for output in outputs)
    assert sum("image/svg+xml" in output.get("data", {}) for output in outputs) == 2
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for cell in cells:
        exec(compile("".join(cell["source"]), "examples/diarize.ipynb", "exec"), names)
    assert sortk.read_rttm("demo.rttm") == names["segments"]
