from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sortk.formats.model_folder import save_model
from sortk.inference.load import load_diarizer
from sortk.models.aed_eend import (
    SIZES,
    AedEend,
    AedEendOptions,
    SpeechTypes,
    choose_enrolment,
    drop_speakers,
    longest_run,
    mean_frames,
)
from sortk.models.frames import count_frames
from sortk.models.transformer import TransformerOptions
from sortk.training.losses import aed_loss, diarization_loss

SMALL = TransformerOptions(d_model=16, n_layers=1, n_heads=4, d_inner=32, dropout=0.1)
PLAIN = AedEendOptions(n_speakers=3, transformer=SMALL, decoder_layers=1)
ENHANCED = AedEendOptions(n_speakers=3, transformer=SMALL, decoder_layers=1, enhancer_layers=1)
BOTH = pytest.mark.parametrize("options", [PLAIN, ENHANCED], ids=["AED-EEND", "AED-EEND-EE"])


@pytest.mark.parametrize("name", ["aed-eend", "aed-eend-ee"])
def test_sizes_of_table_1(name: str) -> None:
    with torch.device("meta"):
        model = AedEend(SIZES[name, "base"])
    assert sum(weight.numel() for weight in model.parameters()) / 1e6 == pytest.approx(11.6, abs=0.1)


def test_the_longest_run_by_hand() -> None:
    mask = torch.tensor([[1, 1, 0, 1, 1, 1, 0], [0, 1, 1, 0, 1, 1, 0], [0] * 7], dtype=torch.bool)
    runs, lengths = longest_run(mask)
    assert runs.int().tolist() == [[0, 0, 0, 1, 1, 1, 0], [0, 1, 1, 0, 0, 0, 0], [0] * 7]
    assert lengths.tolist() == [3, 2, 0]


def test_who_is_enrolled_speaks_alone() -> None:
    # The first speaks alone in frames 0, 1 and 4; the second only with the first; the third not at all.
    targets = torch.tensor([[[1, 0, 0], [1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 0, 0]]]).float()
    everything = choose_enrolment(targets, 9)[0].T.tolist()
    assert everything == [[1, 1, 0, 0, 1], [0, 0, 1, 0, 0], [0] * 5]
    found = {tuple(choose_enrolment(targets, 2)[0, :, 0].tolist()) for _ in range(60)}
    assert found == {(1, 1, 0, 0, 0), (0, 1, 0, 0, 1), (1, 0, 0, 0, 1)}  # after the last comes the first


def test_an_enrolment_is_a_mean() -> None:
    frames = torch.tensor([[[1.0, 2.0], [3.0, 6.0], [9.0, 9.0]]])
    chosen = torch.tensor([[[1, 0], [1, 0], [0, 0]]]).float()
    assert mean_frames(frames, chosen).tolist() == [[[2.0, 4.0], [0.0, 0.0]]]


def test_some_speakers_are_dropped_but_never_all() -> None:
    present = torch.tensor([[True, True, True, False]]).expand(400, 4)
    kept = drop_speakers(present)
    n_kept = kept.sum(dim=1)
    assert not kept[:, 3].any() and n_kept.min() == 1
    assert 0.5 < (n_kept == 3).float().mean() < 0.75  # half, and a quarter of the others by chance


def test_the_loss_by_hand() -> None:
    logits = torch.tensor([[[2.0, -1.0], [0.0, 3.0]]])  # 2 frames, 2 speakers
    targets = torch.tensor([[[1.0, 0.0], [1.0, 1.0]]])
    types = torch.zeros(1, 2, 3)  # each costs log 2
    softplus = torch.nn.functional.softplus
    of_first = (softplus(torch.tensor(-2.0)) + softplus(torch.tensor(0.0))) / 2
    of_second = (softplus(torch.tensor(-1.0)) + softplus(torch.tensor(-3.0))) / 2
    log_2 = torch.tensor(2.0).log()
    both = aed_loss(logits, SpeechTypes(types, torch.tensor([[True, True]])), targets)
    torch.testing.assert_close(both.total, (of_first + of_second) / 2 + log_2)
    first = aed_loss(logits, SpeechTypes(types, torch.tensor([[True, False]])), targets)
    torch.testing.assert_close(first.total, of_first + log_2)
    # One speaker, then overlap: logits that say so cost nothing.
    right = torch.tensor([[[-99.0, 99.0, -99.0], [-99.0, -99.0, 99.0]]])
    torch.testing.assert_close(
        aed_loss(logits, SpeechTypes(right, torch.tensor([[True, False]])), targets).total, of_first
    )


def test_inference_goes_on_until_nobody_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder that knows the answer: frames have the number of their speaker, 0 is silence."""
    model = AedEend(AedEendOptions(n_speakers=2, transformer=SMALL, enrolment=3)).eval()
    numbers = torch.tensor([[1.0] * 5 + [0] + [2] * 6 + [3] * 2 + [0] + [4] * 3, [0.0] * 5 + [5] * 4 + [0] * 9])
    frames = numbers[:, :, None].expand(-1, -1, 16)

    def decode(frames, lengths, vectors, enrolled):  # type: ignore[no-untyped-def]
        types = torch.where(frames[:, :, :1] > 0, 5.0, -5.0).expand(-1, -1, 3)
        return types, 5 - 20 * (frames[:, :, :1] - vectors[:, :, 0][:, None]).abs()

    monkeypatch.setattr(model, "decode", decode)
    logits, found = model.find_speakers(frames, torch.tensor([18, 18]))
    # The longest run is 2 2 2 2 2 2 3 3: its first 3 frames are speaker 2. Then 1, then 4; 3 is too short.
    assert found.int().tolist() == [[1, 1, 1], [1, 0, 0]]
    active = (logits > 0) & found[:, None]
    assert [numbers[0][active[0, :, k]].unique().tolist() for k in range(3)] == [[2.0], [1.0], [4.0]]
    assert numbers[1][active[1, :, 0]].unique().tolist() == [5.0]
    assert not model.find_speakers(torch.zeros(1, 18, 16), None)[1].any()


@BOTH
def test_a_padded_batch_equals_each_clip_alone(options: AedEendOptions) -> None:
    torch.manual_seed(3)
    model, samples, lengths = AedEend(options).eval(), torch.randn(3, 32000), [32000, 21000, 400]
    together = model(samples, torch.tensor(lengths))
    assert together.lengths.tolist() == [count_frames(n) for n in lengths]
    for row, n in enumerate(lengths):
        alone = model(samples[row : row + 1, :n]).speaker_probs[0]
        padded = together.speaker_probs[row, : len(alone)]
        n_columns = max(alone.shape[1], padded.shape[1])
        alone, padded = (torch.nn.functional.pad(x, (0, n_columns - x.shape[1])) for x in (alone, padded))
        torch.testing.assert_close(padded, alone, atol=1e-5, rtol=0)


@BOTH
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_every_weight_learns(options: AedEendOptions, precision: torch.dtype) -> None:
    model = AedEend(options)
    targets = (torch.rand(2, 25, 3) < 0.3).float()
    with torch.autocast("cpu", torch.bfloat16, enabled=precision is torch.bfloat16):
        loss = diarization_loss(model(torch.randn(2, 32000), torch.tensor([32000, 20000]), targets), targets)
    loss.total.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


@BOTH
def test_it_is_read_from_a_folder(options: AedEendOptions, tmp_path: Path) -> None:
    assert AedEendOptions.from_json(json.loads(json.dumps(options.to_json()))) == options
    model, samples = AedEend(options).eval(), torch.randn(1, 16000)
    name = "aed-eend-ee" if options.enhancer_layers else "aed-eend"
    save_model(tmp_path, model.state_dict(), {"model": name, "options": options.to_json()})
    torch.testing.assert_close(load_diarizer(tmp_path).model(samples).speaker_probs, model(samples).speaker_probs)
    with pytest.raises(ValueError, match="not the options of an AED-EEND"):
        AedEendOptions.from_json({"layers": 3})
