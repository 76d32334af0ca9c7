from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from sortk.formats.files import FormatError
from sortk.formats.model_folder import save_model
from sortk.inference.load import load_diarizer, read_model
from sortk.models.blocks import OFF, Blocks
from sortk.models.eend_vc import SIZES, EendVc, EendVcOptions
from sortk.models.transformer import TransformerOptions
from sortk.models.wavlm import WavlmFrontEnd, WavlmOptions, convert_weights, guess_options
from sortk.training.diarizer import build_diarizer, start_from
from sortk.training.losses import SpeakerDictionary, diarization_loss, name_columns
from sortk.training.options import TrainDiarOptions

SMALL = TransformerOptions(d_model=16, n_layers=1, n_heads=4, d_inner=32, dropout=0.0)
WAVLM = WavlmOptions(d_model=16, n_layers=2, n_heads=4, d_inner=16, channels=8)
LOG_MEL = EendVcOptions(n_speakers=3, chunk=8, inference_chunk=10, vector_size=4, transformer=SMALL)
needs_torchaudio = pytest.mark.usefixtures("torchaudio")
BOTH = pytest.mark.parametrize(
    "options", [LOG_MEL, replace(LOG_MEL, wavlm=WAVLM)], ids=["log-mel", "WavLM"], indirect=True
)


@pytest.fixture
def options(request: pytest.FixtureRequest) -> EendVcOptions:
    chosen: EendVcOptions = request.param
    if chosen.wavlm is not None:
        request.getfixturevalue("torchaudio")
    return chosen


def count_millions(model: torch.nn.Module) -> float:
    return sum(weight.numel() for weight in model.parameters()) / 1e6


@needs_torchaudio
def test_sizes() -> None:
    """Table 1 says 317M, which is WavLM Large; the WavLM paper has 316.6M, torchaudio's 315.5M."""
    with torch.device("meta"):
        model = EendVc(SIZES["wavlm-eend-vc", "base"])
        assert count_millions(EendVc(SIZES["eend-vc", "base"])) == pytest.approx(8.25, abs=0.05)
    assert model.front_end is not None
    assert count_millions(model.front_end) == pytest.approx(317, rel=0.01)
    assert count_millions(model) == pytest.approx(317, rel=0.025)


def unit(*degrees: float) -> torch.Tensor:
    angles = torch.deg2rad(torch.tensor(degrees))
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def test_a_vector_is_a_weighted_mean() -> None:
    """The vector of an output: its frames, each of length 1, weighted by the output's probability."""
    model = EendVc(replace(LOG_MEL, n_speakers=1, vector_size=2)).eval()
    samples = torch.randn(1, 1280 * 3)
    chunks, embeddings, _ = model.diarize_chunks(samples, None)
    probs = model.speakers(embeddings[0, :3]).sigmoid()
    frames = model.vectors(embeddings[0, :3])
    expected = (probs * frames / frames.norm(dim=1, keepdim=True)).sum(dim=0)
    torch.testing.assert_close(chunks.vectors[0, 0], expected / expected.norm())


def test_how_a_clip_is_cut() -> None:
    """In training, 25 frames are four chunks of up to 8: 7, 7, 7, 4. In inference, chunks of 10: 10, 10, 5."""
    model, samples = EendVc(LOG_MEL), torch.randn(1, 32000)
    assert model.diarize_chunks(samples, None)[0].lengths.tolist() == [7, 7, 7, 4]
    assert model.eval().diarize_chunks(samples, None)[0].lengths.tolist() == [10, 10, 5]
    assert model.diarize_chunks(samples[:, :3000], None)[0].logits.shape == (1, 3, 3)


def test_chunks_are_joined_by_distance() -> None:
    """Two chunks with two speakers, swapped; then one who is silent, and a new one: 60 degrees are a distance of 1."""
    vectors = torch.stack([unit(0, 90), unit(100, 5), unit(0, 200)])
    logits = torch.tensor([[[2.0, 3.0]] * 2, [[4.0, 5.0]] * 2, [[-9.0, 6.0]] * 2])
    blocks = Blocks(torch.zeros(3).long(), torch.tensor([0, 2, 4]), torch.tensor([2, 2, 1]), logits, vectors)
    [joined] = EendVc(LOG_MEL).join_chunks(blocks, 1, 5)
    assert joined.tolist() == [[2, 3, OFF], [2, 3, OFF], [5, 4, OFF], [5, 4, OFF], [OFF, OFF, 6]]
    near, far = (blocks._replace(vectors=torch.stack([unit(0, 180), unit(x, 270), unit(0, 270)])) for x in (59.9, 60.1))
    assert [EendVc(LOG_MEL).join_chunks(case, 1, 5)[0].shape[1] for case in (near, far)] == [3, 4]


def test_the_vector_loss_by_hand() -> None:
    # A clip of two chunks of 2 frames. Speaker 7 is column 0, speaker 1 column 1, who never speaks in chunk 0.
    targets = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]])
    speakers = torch.tensor([[7, 7, -1, 1]])
    assert name_columns(targets, speakers).tolist() == [[7, 1]]
    vectors = torch.stack([unit(0, 90), unit(0, 180)])
    logits = torch.zeros(2, 2, 2)
    chunks = Blocks(torch.zeros(2).long(), torch.tensor([0, 2]), torch.tensor([2, 2]), logits, vectors)
    dictionary = SpeakerDictionary(8, 2)
    with torch.no_grad():
        dictionary.vectors.copy_(5 * unit(90, 90, 90, 90, 90, 90, 90, 0))  # their length does not matter
        dictionary.scale.fill_(0.5)
    permutation = torch.tensor([[0, 1], [1, 0]])  # in chunk 1, output 0 is column 1
    # exp(-0.5 d^2) is 1 for a distance of 0, e^-1 for 90 degrees (d^2 = 2) and e^-2 for 180 degrees (d^2 = 4).
    seven_at_0 = -math.log(1 / (1 + 7 * math.exp(-1)))  # chunk 0, output 0
    one_at_0 = -math.log(math.exp(-1) / (1 + 7 * math.exp(-1)))  # chunk 1, output 0
    seven_at_180 = -math.log(math.exp(-2) / (math.exp(-2) + 7 * math.exp(-1)))  # chunk 1, output 1
    found = dictionary(chunks, permutation, targets, speakers)
    assert found.item() == pytest.approx((seven_at_0 + 0 + one_at_0 + seven_at_180) / 4, abs=1e-6)
    assert dictionary(chunks, permutation, targets, torch.full((1, 4), -1)).item() == 0  # nobody has a name


def test_pil_is_of_each_chunk_by_hand() -> None:
    """Outputs swap between the chunks: PIL of each chunk is small, that of the clip would not be."""
    targets = torch.tensor([[[1.0, 0.0]] * 2 + [[0.0, 1.0]] * 2])
    logits = torch.tensor([[[9.0, -9.0]] * 2, [[9.0, -9.0]] * 2])
    chunks = Blocks(torch.zeros(2).long(), torch.tensor([0, 2]), torch.tensor([2, 2]), logits, torch.zeros(2, 2, 4))
    model = EendVc(replace(LOG_MEL, n_speakers=2, chunk=2))
    output = model(torch.randn(1, 1280 * 4))._replace(for_loss=chunks)
    loss = diarization_loss(output, targets)
    assert loss.total.item() == pytest.approx(math.log(1 + math.exp(-9)), abs=1e-6)
    assert loss.permutation.tolist() == [[0, 1], [1, 0]]


@BOTH
def test_a_padded_batch_equals_each_clip_alone(options: EendVcOptions) -> None:
    torch.manual_seed(0)
    model, samples, lengths = EendVc(options).eval(), torch.randn(3, 32000), [32000, 21000, 400]
    together = model(samples, torch.tensor(lengths))
    assert together.lengths.tolist() == [25, 17, 1]
    for row, n in enumerate(lengths):
        padded = samples[row : row + 1].clone()
        padded[:, n:] = 0
        alone = model(samples[row : row + 1, :n]).speaker_probs[0]
        found = model(padded, torch.tensor([n])).speaker_probs[0, : len(alone), : alone.shape[1]]
        torch.testing.assert_close(found, alone, atol=1e-5, rtol=0)
        if options.wavlm is None:  # of the padding behind a clip, WavLM sees less than a frame
            found = together.speaker_probs[row, : len(alone), : alone.shape[1]]
            torch.testing.assert_close(found, alone, atol=1e-5, rtol=0)


@BOTH
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_every_weight_learns(options: EendVcOptions, precision: torch.dtype) -> None:
    model, dictionary = EendVc(options), SpeakerDictionary(5, 4)
    targets = torch.zeros(2, 25, 3)
    targets[:, 3:9, 0], targets[:, 8:20, 1] = 1, 1
    speakers = torch.full((2, 25), -1)
    speakers[:, 3:8], speakers[:, 9:20] = 2, 4
    with torch.autocast("cpu", torch.bfloat16, enabled=precision is torch.bfloat16):
        output = model(torch.randn(2, 32000), torch.tensor([32000, 20000]))
        loss = diarization_loss(output, targets)
        assert isinstance(output.for_loss, Blocks)
        total = loss.total + dictionary(output.for_loss, loss.permutation, targets, speakers)
    total.backward()
    for name, parameter in [*model.named_parameters(), *dictionary.named_parameters()]:
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


@BOTH
def test_it_is_read_from_a_folder(options: EendVcOptions, tmp_path: Path) -> None:
    assert EendVcOptions.from_json(json.loads(json.dumps(options.to_json()))) == options
    model, samples = EendVc(options).eval(), torch.randn(1, 16000)
    save_model(tmp_path, model.state_dict(), {"model": "eend-vc", "options": options.to_json()})
    torch.testing.assert_close(load_diarizer(tmp_path).model(samples).speaker_probs, model(samples).speaker_probs)
    with pytest.raises(ValueError, match="not the options of an EEND-VC"):
        EendVcOptions.from_json({"layers": 3})


def as_huggingface(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Rename as Hugging Face's WavLMModel has it; torchaudio's own importer must take it back."""
    theirs = {"masked_spec_embed": torch.zeros(16)}
    for ours, tensor in weights.items():
        name = ours.replace("encoder.transformer.", "encoder.").replace("encoder.feature_proj", "feature_proj")
        name = name.replace("attention.attention.out_proj", "attention.out_proj")
        name = name.replace("parametrizations.weight.original0", "weight_g")
        name = name.replace("parametrizations.weight.original1", "weight_v")
        if ".attention.attention.in_proj_" in name:
            for part, piece in zip("qkv", tensor.chunk(3), strict=True):
                theirs[name.replace("attention.in_proj_", f"{part}_proj.")] = piece.clone()
        else:
            theirs[name] = tensor
    return theirs


@needs_torchaudio
def test_weights_of_wavlm_from_files(tmp_path: Path) -> None:
    weights = {name: tensor.clone() for name, tensor in WavlmFrontEnd(WAVLM).wavlm.state_dict().items()}
    assert guess_options(weights) == WAVLM
    theirs = as_huggingface(weights)
    from torchaudio.models.wav2vec2.utils.import_huggingface import transform_wavlm_encoder_state

    encoder = {name.removeprefix("encoder."): tensor for name, tensor in theirs.items() if name.startswith("encoder.")}
    transform_wavlm_encoder_state(encoder, WAVLM.n_layers)
    converted = convert_weights(theirs)
    assert converted.keys() == weights.keys()
    for name, tensor in encoder.items():
        if "weight_" not in name:  # the convolution, whose two parts torchaudio's importer does not rename
            torch.testing.assert_close(converted[f"encoder.transformer.{name}"], tensor, rtol=0, atol=0)
    for name, tensor in weights.items():
        torch.testing.assert_close(converted[name], tensor, rtol=0, atol=0)
    save_file(theirs, tmp_path / "model.safetensors")
    torch.save(weights, tmp_path / "wavlm.pth")
    for file in ("model.safetensors", "wavlm.pth"):
        initial, config = read_model(tmp_path / file)
        options = TrainDiarOptions(model="wavlm-eend-vc", size="tiny", global_speakers=True)
        model, built = build_diarizer(options, config)
        assert built["options"]["wavlm"] == WAVLM.to_json()
        start_from(model, initial)
        assert isinstance(model, EendVc) and model.front_end is not None
        for name, tensor in model.front_end.wavlm.state_dict().items():
            torch.testing.assert_close(tensor, weights[name], rtol=0, atol=0)


def test_other_files_are_one_sentence(tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(FormatError, match=r"other.safetensors: not the weights of a WavLM: expected a state dict"):
        read_model(tmp_path / "other.safetensors")
    torch.save({"weight": torch.zeros(3), "code": print}, tmp_path / "other.pt")
    with pytest.raises(FormatError, match="loading it could run code: refused"):
        read_model(tmp_path / "other.pt")
    with pytest.raises(ValueError, match="so it needs global_speakers = true"):
        TrainDiarOptions(model="eend-vc")
